//! Keeps a credential fresh: waits until its source is to be asked, asks it, and hands over what came.
//!
//! Decides nothing: when is `refresh`'s matter.

use std::sync::Arc;

use crate::upstream::credentials::BearerToken;
use crate::upstream::credentials::ClientCertificate;
use crate::upstream::credentials::CredentialSource;
use crate::upstream::credentials::LoadedCredential;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::credentials::read_token;
use crate::upstream::credentials::refresh_schedule::RefreshSchedule;
use crate::upstream::credentials::run_plugin;

/// Keeps [`OwnCredentials`] fresh. There is one for each, and so one attempt at a time.
#[derive(Debug)]
#[must_use = "credentials end unless their renewal runs"]
pub struct RefreshTask {
    pub(super) credentials: Arc<OwnCredentials>,
    pub(super) source: CredentialSource,
    pub(super) schedule: RefreshSchedule,
}

impl RefreshTask {
    /// Runs until it is dropped.
    ///
    /// # Cancel safety
    /// Dropping the future kills a plugin that runs; the credentials stay as they are.
    pub async fn run(mut self) {
        if !self.source.can_change() {
            return std::future::pending().await;
        }
        loop {
            self.wait_until_due().await;
            self.refresh().await;
        }
    }

    /// Waits until the source is to be asked.
    pub(super) async fn wait_until_due(&mut self) {
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
                () = self.credentials.refresh_requested.notified() => self.schedule = self.schedule.after_rejection(),
            }
        }
    }

    /// Asks the source once.
    pub(super) async fn refresh(&mut self) {
        let (own, clock) = (&self.credentials, self.credentials.clock);
        let renewed = match &self.source {
            CredentialSource::Configured { certificate, token } => {
                own.replace(
                    self.reread_files(certificate.as_ref(), token.as_ref())
                        .await,
                );
                Ok(())
            }
            CredentialSource::Plugin(plugin) => run_plugin(plugin, clock)
                .await
                .map(|credential| own.replace(credential)),
        };
        let now = clock.now();
        self.schedule = match renewed {
            Ok(()) => {
                let expires = own.current.load().credential.expires;
                RefreshSchedule::after_success(now, self.source.refresh_due(now, expires))
            }
            Err(why) => {
                own.record_failure(why);
                self.schedule.after_failure(now)
            }
        };
    }

    /// The files as they are now; one that cannot be read leaves its part as it was.
    async fn reread_files(
        &self,
        certificate: Option<&ClientCertificate>,
        token: Option<&BearerToken>,
    ) -> LoadedCredential {
        let mut credential = self.credentials.current.load().credential.clone();
        if let Some(certificate) = certificate {
            match certificate.read().await {
                Ok(pair) => credential.certificate = Some(pair),
                Err(why) => tracing::warn!("the one read before serves on: {why}"),
            }
        }
        if let Some(BearerToken::File { path, .. }) = token {
            match read_token(path).await {
                Ok(value) => credential.authorization = Some(value),
                Err(why) => tracing::warn!("the one read before serves on: {why}"),
            }
        }
        credential
    }
}
