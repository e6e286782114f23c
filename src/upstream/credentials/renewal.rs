//! Keeps a credential fresh: waits until its source is to be asked, asks it, and hands over what came.
//!
//! Decides nothing: when is `refresh`'s matter.

use std::sync::Arc;

use crate::upstream::credentials::ClientCertificate;
use crate::upstream::credentials::Credential;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::credentials::Source;
use crate::upstream::credentials::Token;
use crate::upstream::credentials::ask;
use crate::upstream::credentials::read_token;
use crate::upstream::credentials::refresh::Schedule;

/// Keeps [`OwnCredentials`] fresh. There is one for each, and so one attempt at a time.
#[derive(Debug)]
#[must_use = "credentials end unless their renewal runs"]
pub struct Renewal {
    pub(super) own: Arc<OwnCredentials>,
    pub(super) source: Source,
    pub(super) schedule: Schedule,
}

impl Renewal {
    /// Runs until it is dropped.
    ///
    /// # Cancel safety
    /// Dropping the future kills a plugin that runs; the credentials stay as they are.
    pub async fn run(mut self) {
        if !self.source.can_change() {
            return std::future::pending().await;
        }
        loop {
            self.wait().await;
            self.renew().await;
        }
    }

    /// Waits until the source is to be asked.
    pub(super) async fn wait(&mut self) {
        loop {
            let due = self.schedule.due();
            let come = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = come => return,
                () = self.own.refused.notified() => self.schedule = self.schedule.refused(),
            }
        }
    }

    /// Asks the source once.
    pub(super) async fn renew(&mut self) {
        let (own, clock) = (&self.own, self.own.clock);
        let renewed = match &self.source {
            Source::Given { certificate, token } => {
                own.replace(self.reread(certificate.as_ref(), token.as_ref()).await);
                Ok(())
            }
            Source::Plugin(plugin) => ask(plugin, clock)
                .await
                .map(|credential| own.replace(credential)),
        };
        let now = clock.now();
        self.schedule = match renewed {
            Ok(()) => {
                let expires = own.current.load().credential.expires;
                Schedule::succeeded(now, self.source.due(now, expires))
            }
            Err(why) => {
                own.failed(why);
                self.schedule.failed(now)
            }
        };
    }

    /// The files as they are now; one that cannot be read leaves its part as it was.
    async fn reread(
        &self,
        certificate: Option<&ClientCertificate>,
        token: Option<&Token>,
    ) -> Credential {
        let mut credential = self.own.current.load().credential.clone();
        if let Some(certificate) = certificate {
            match certificate.read().await {
                Ok(pair) => credential.certificate = Some(pair),
                Err(why) => tracing::warn!("the one read before serves on: {why}"),
            }
        }
        if let Some(Token::File { path, .. }) = token {
            match read_token(path).await {
                Ok(value) => credential.authorization = Some(value),
                Err(why) => tracing::warn!("the one read before serves on: {why}"),
            }
        }
        credential
    }
}
