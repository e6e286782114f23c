//! Refreshes a credential: waits until its source is due, reads the source, and replaces the
//! credential.
//!
//! The schedule is decided in [`refresh_schedule`](crate::upstream::credentials::refresh_schedule).

use std::sync::Arc;

use crate::upstream::credentials::own_credentials::{OwnCredentials, PreparedCredentials};
use crate::upstream::credentials::refresh_schedule::RefreshSchedule;
use crate::upstream::credentials::source::{
    BearerToken, ClientCertificate, CredentialError, CredentialSource, LoadedCredential,
    initial_token, read_token, run_plugin,
};
use weir_base::clock::Clock;

/// Refreshes [`OwnCredentials`]. There is one task for each, and so one attempt at a time.
#[derive(Debug)]
#[must_use = "credentials end unless their renewal runs"]
pub(crate) struct RefreshTask {
    pub(super) credentials: Arc<OwnCredentials>,
    pub(super) source: CredentialSource,
    /// The number of the source: what an earlier one gives does not count any more.
    pub(super) number: u64,
    pub(super) schedule: RefreshSchedule,
}

impl PreparedCredentials {
    /// Loads the first credential of `source`.
    ///
    /// # Errors
    /// There is no credential. The error says why, and what to do.
    ///
    /// # Cancel safety
    /// Dropping the future kills a running plugin.
    pub(crate) async fn load(
        source: CredentialSource,
        clock: Clock,
    ) -> Result<Self, CredentialError> {
        let credential = match &source {
            CredentialSource::Configured { certificate, token } => LoadedCredential {
                authorization: initial_token(token.as_ref()).await?,
                certificate: match certificate {
                    Some(certificate) => Some(certificate.read().await?),
                    None => None,
                },
                expires: None,
            },
            CredentialSource::Plugin(plugin) => run_plugin(plugin, clock).await?,
        };
        let now = clock.now();
        let schedule =
            RefreshSchedule::after_success(now, source.refresh_due(now, credential.expires));
        Ok(Self {
            source,
            schedule,
            credential,
        })
    }
}

impl OwnCredentials {
    /// Loads the first credential. The caller has to run the [`RefreshTask`].
    ///
    /// # Errors
    /// There is no credential. The error says why, and what to do.
    ///
    /// # Cancel safety
    /// Dropping the future kills a running plugin.
    pub(crate) async fn start(
        source: CredentialSource,
        clock: Clock,
    ) -> Result<(Arc<Self>, RefreshTask), CredentialError> {
        let PreparedCredentials {
            source,
            schedule,
            credential,
        } = PreparedCredentials::load(source, clock).await?;
        let credentials = Self::new(credential, clock);
        Ok((
            Arc::clone(&credentials),
            RefreshTask {
                credentials,
                source,
                number: 0,
                schedule,
            },
        ))
    }
}

impl RefreshTask {
    /// Runs until it is dropped.
    ///
    /// # Cancel safety
    /// Dropping the future kills a running plugin; the credentials stay as they are.
    pub(crate) async fn run(mut self) {
        let credentials = Arc::clone(&self.credentials);
        loop {
            tokio::select! {
                biased;
                () = credentials.source_replaced.notified() => self.follow_replacement(),
                () = self.refresh_when_due() => {}
            }
        }
    }

    /// Continues with the source of a reload.
    fn follow_replacement(&mut self) {
        if let Some((number, prepared)) = self.credentials.take_replacement() {
            self.number = number;
            self.source = prepared.source;
            self.schedule = prepared.schedule;
        }
    }

    async fn refresh_when_due(&mut self) {
        if !self.source.can_change() {
            return std::future::pending().await;
        }
        self.wait_until_due().await;
        self.refresh().await;
    }

    /// Waits until the source is due.
    pub(super) async fn wait_until_due(&mut self) {
        loop {
            let due = self.schedule.due();
            let elapsed = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = elapsed => return,
                () = self.credentials.refresh_requested.notified() => self.schedule = self.schedule.after_rejection(),
            }
        }
    }

    /// Reads the source once.
    pub(super) async fn refresh(&mut self) {
        let (credentials, clock) = (&self.credentials, self.credentials.clock);
        let outcome = match &self.source {
            CredentialSource::Configured { certificate, token } => {
                let reread = self.reread_files(certificate.as_ref(), token.as_ref());
                let (credential, failure) = reread.await;
                credentials.renew(self.number, credential, failure);
                Ok(())
            }
            CredentialSource::Plugin(plugin) => run_plugin(plugin, clock)
                .await
                .map(|credential| credentials.renew(self.number, credential, None)),
        };
        let now = clock.now();
        self.schedule = match outcome {
            Ok(()) => {
                let expires = credentials.loaded().expires;
                RefreshSchedule::after_success(now, self.source.refresh_due(now, expires))
            }
            Err(why) => {
                credentials.record_failure(self.number, why);
                self.schedule.after_failure(now)
            }
        };
    }

    /// Reads the files. A file that cannot be read leaves its part unchanged; the last error says
    /// why.
    async fn reread_files(
        &self,
        certificate: Option<&ClientCertificate>,
        token: Option<&BearerToken>,
    ) -> (LoadedCredential, Option<CredentialError>) {
        let (mut credential, mut failure) = (self.credentials.loaded(), None);
        if let Some(certificate) = certificate {
            match certificate.read().await {
                Ok(pair) => credential.certificate = Some(pair),
                Err(why) => {
                    tracing::warn!("the one read before serves on: {why}");
                    failure = Some(why);
                }
            }
        }
        if let Some(BearerToken::File { path, .. }) = token {
            match read_token(path).await {
                Ok(value) => credential.authorization = Some(value),
                Err(why) => {
                    tracing::warn!("the one read before serves on: {why}");
                    failure = Some(why);
                }
            }
        }
        (credential, failure)
    }
}
