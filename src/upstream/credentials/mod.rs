//! What weir itself shows the API server for its own calls, never for those of its clients.
//!
//! Promises: a credential is there from the start, or the start fails and says what to do; it is renewed before it ends, one
//! attempt at a time; while renewing fails, the old one serves until its end, and then there is none, which is an error and
//! not an anonymous call; no secret gets into a log or a `Debug`. Files are read again every minute, which costs nothing and is
//! soon enough for whatever rotates them. Deliberately not here: clients' credentials, and the calls themselves.

pub mod bearer;
pub mod exec_credential;
pub mod exec_plugin;
mod refresh_schedule;
mod refresh_task;

use std::fmt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use arc_swap::ArcSwap;
use http::HeaderValue;
use http::StatusCode;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use tokio::sync::Notify;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::upstream::credentials::bearer::bearer_header;
use crate::upstream::credentials::exec_credential::PluginCredential;
use crate::upstream::credentials::exec_plugin::ExecPlugin;
use crate::upstream::credentials::exec_plugin::PluginError;
use crate::upstream::credentials::exec_plugin::PluginFailure;
use crate::upstream::credentials::refresh_schedule::RefreshSchedule;
use crate::upstream::credentials::refresh_schedule::next_refresh;
use crate::upstream::tls::Pem;
use crate::upstream::tls::PemError;
use crate::upstream::tls::parse_certified_key;

pub use refresh_task::RefreshTask;

/// How often files are read again: as client-go reads a token file, which is half of what the kubelet leaves between a new token
/// and the end of the old one.
const REREAD_INTERVAL: Duration = Duration::from_secs(60);

/// Where weir's own credential comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum CredentialSource {
    /// What was given, or stands in files; nothing at all is an anonymous caller.
    Configured {
        /// The client certificate.
        certificate: Option<ClientCertificate>,
        /// The bearer token.
        token: Option<BearerToken>,
    },
    /// A program is asked.
    Plugin(ExecPlugin),
}

/// A client certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate with its chain.
    pub certificate: Pem,
    /// Its private key.
    pub key: Pem,
}

/// A bearer token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BearerToken {
    /// In a file, which may change.
    File {
        /// The file.
        path: PathBuf,
        /// What serves as long as the file has not been read (`token` beside `tokenFile`).
        until_read: Option<HeaderValue>,
    },
    /// The header's value for one that was given, as [`bearer`] makes it.
    Inline(HeaderValue),
}

/// Why there is no credential, or no new one.
#[derive(Clone, Debug)]
pub enum CredentialError {
    /// The certificate or its key.
    Certificate(PemError),
    /// The plugin.
    Plugin(PluginError),
    /// The token file.
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
}

impl fmt::Display for CredentialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(fault) => write!(f, "the client certificate: {fault}"),
            Self::Plugin(why) => why.fmt(f),
            Self::TokenFile { path, message } => {
                write!(f, "the token file {}: {message}", path.display())
            }
        }
    }
}

impl std::error::Error for CredentialError {}

/// The credential is over and there is no other.
#[derive(Clone, Debug)]
pub struct CredentialExpired {
    /// Why the last attempt to renew it failed; none if none has yet.
    pub failure: Option<Arc<CredentialError>>,
}

impl fmt::Display for CredentialExpired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weir's own credential for the API server has expired")?;
        match &self.failure {
            Some(why) => write!(f, ", and there is no new one: {why}"),
            None => write!(f, " and is being renewed"),
        }
    }
}

impl std::error::Error for CredentialExpired {}

#[derive(Clone)]
struct LoadedCredential {
    authorization: Option<HeaderValue>,
    certificate: Option<Arc<CertifiedKey>>,
    /// On the monotonic clock, so that a wall clock set anew does not end it; the API server's word counts in any case.
    expires: Option<Instant>,
}

impl LoadedCredential {
    fn from_plugin(obtained: PluginCredential, clock: Clock) -> Result<Self, PluginFailure> {
        let PluginCredential {
            authorization,
            certificate,
            expires,
        } = obtained;
        let expires = match expires {
            None => None,
            Some(at) => match at.duration_since(clock.wall()) {
                Ok(left) if !left.is_zero() => clock.now().checked_add(left),
                _ => return Err(PluginFailure::Expired(at)),
            },
        };
        Ok(Self {
            authorization,
            certificate,
            expires,
        })
    }

    fn is_expired(&self, now: Instant) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

struct CredentialState {
    credential: LoadedCredential,
    failure: Option<Arc<CredentialError>>,
}

/// The credential that weir uses for its own calls, as it is at the moment.
pub struct OwnCredentials {
    current: ArcSwap<CredentialState>,
    refresh_requested: Notify,
    /// The API server's last answer to it was 401.
    unauthorized: AtomicBool,
    certificate_changes: watch::Sender<u64>,
    clock: Clock,
}

impl OwnCredentials {
    /// Fetches the credential for the first time. Whoever starts it has the [`Renewal`] run.
    ///
    /// # Errors
    /// There is none; the error says why, and what to do.
    ///
    /// # Cancel safety
    /// Dropping the future kills a plugin that runs.
    pub async fn start(
        source: CredentialSource,
        clock: Clock,
    ) -> Result<(Arc<Self>, RefreshTask), CredentialError> {
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
        let own = Arc::new(Self {
            current: ArcSwap::from_pointee(CredentialState {
                credential,
                failure: None,
            }),
            refresh_requested: Notify::new(),
            unauthorized: AtomicBool::new(false),
            certificate_changes: watch::Sender::new(0),
            clock,
        });
        Ok((
            Arc::clone(&own),
            RefreshTask {
                credentials: own,
                source,
                schedule,
            },
        ))
    }

    /// What stands in the `Authorization` header; none for a caller that has only a certificate, or nothing.
    ///
    /// # Errors
    /// The credential is over: the call must not be made without it.
    pub fn authorization(&self) -> Result<Option<HeaderValue>, CredentialExpired> {
        self.authorization_at(self.clock.now())
    }

    fn authorization_at(&self, now: Instant) -> Result<Option<HeaderValue>, CredentialExpired> {
        let current = self.current.load();
        if current.credential.is_expired(now) {
            return Err(CredentialExpired {
                failure: current.failure.clone(),
            });
        }
        Ok(current.credential.authorization.clone())
    }

    /// The certificate that is shown now, if there is one.
    #[must_use]
    pub fn certificate(&self) -> Option<Arc<CertifiedKey>> {
        self.certificate_at(self.clock.now())
    }

    fn certificate_at(&self, now: Instant) -> Option<Arc<CertifiedKey>> {
        let current = self.current.load();
        if current.credential.is_expired(now) {
            None
        } else {
            current.credential.certificate.clone()
        }
    }

    /// Records the code that the API server answered a call of weir's own with. The first 401 is logged, and so is the first
    /// other code after it.
    pub fn record_response(&self, code: StatusCode) {
        let unauthorized = code == StatusCode::UNAUTHORIZED;
        if unauthorized {
            self.request_refresh();
        }
        if !self.is_configured()
            || self.unauthorized.swap(unauthorized, Ordering::AcqRel) == unauthorized
        {
            return;
        }
        if unauthorized {
            tracing::error!(
                "the API server answers 401 to weir's own credential (--kubeconfig): it has expired, was revoked, or is of \
                 another cluster. Until it is accepted again, tokens that weir cannot verify by their signature count as \
                 system:anonymous, and nobody is impersonated"
            );
        } else {
            tracing::info!("the API server accepts weir's own credential again");
        }
    }

    /// Whether there is a credential at all: without one, weir's calls are anonymous.
    #[must_use]
    pub fn is_configured(&self) -> bool {
        let credential = &self.current.load().credential;
        credential.authorization.is_some() || credential.certificate.is_some()
    }

    /// Whether it serves: it is not over, and the API server has not answered it with 401.
    ///
    /// # Errors
    /// Why it does not.
    pub fn health(&self) -> Result<(), String> {
        self.authorization().map_err(|why| why.to_string())?;
        if self.unauthorized.load(Ordering::Acquire) {
            return Err("the API server answers 401 to weir's own credential".to_owned());
        }
        Ok(())
    }

    /// To be told when the API server has answered 401 to a call of weir's own: a new credential is fetched, at once if the
    /// last attempt is a minute ago, and then if it is not.
    pub fn request_refresh(&self) {
        self.refresh_requested.notify_one();
    }

    /// Shows the current certificate, whichever that is when a connection is made.
    #[must_use]
    pub fn certificate_resolver(self: &Arc<Self>) -> Arc<dyn ResolvesClientCert> {
        Arc::new(CurrentCertResolver(Arc::clone(self)))
    }

    /// A number that changes with the certificate. Connections made before keep showing the old one, which the API server
    /// refuses once it is over: they have to be closed.
    #[must_use]
    pub fn certificate_changes(&self) -> watch::Receiver<u64> {
        self.certificate_changes.subscribe()
    }

    fn replace(&self, credential: LoadedCredential) {
        let previous = self.current.swap(Arc::new(CredentialState {
            credential,
            failure: None,
        }));
        let current = self.current.load();
        let [before, after] = [&previous, &*current].map(|current| {
            current
                .credential
                .certificate
                .as_ref()
                .map(|pair| &pair.cert)
        });
        if before != after {
            self.certificate_changes
                .send_modify(|changes| *changes = changes.wrapping_add(1));
        }
    }

    fn record_failure(&self, why: CredentialError) {
        let credential = self.current.load().credential.clone();
        if credential.is_expired(self.clock.now()) {
            tracing::error!("weir's own credential has expired, and there is no new one: {why}");
        } else {
            tracing::warn!("weir's own credential is not renewed yet: {why}");
        }
        self.current.store(Arc::new(CredentialState {
            credential,
            failure: Some(Arc::new(why)),
        }));
    }
}

impl fmt::Debug for OwnCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let current = self.current.load();
        f.debug_struct("OwnCredentials")
            .field("authorization", &current.credential.authorization)
            .field("certificate", &current.credential.certificate.is_some())
            .field("expires", &current.credential.expires)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct CurrentCertResolver(Arc<OwnCredentials>);

impl ResolvesClientCert for CurrentCertResolver {
    /// Whatever issuers the server names, as client-go's callback does: it judges the certificate anyway.
    fn resolve(
        &self,
        _issuers: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.0.certificate_at(self.0.clock.now())
    }

    /// Asked before the handshake, in which one may have come.
    fn has_certs(&self) -> bool {
        true
    }
}

impl CredentialSource {
    /// Whether there is nothing: calls are made as an anonymous caller.
    #[must_use]
    pub const fn is_anonymous(&self) -> bool {
        matches!(
            self,
            Self::Configured {
                certificate: None,
                token: None,
            }
        )
    }

    fn can_change(&self) -> bool {
        match self {
            Self::Configured { certificate, token } => {
                certificate
                    .as_ref()
                    .is_some_and(ClientCertificate::can_change)
                    || matches!(token, Some(BearerToken::File { .. }))
            }
            Self::Plugin(_) => true,
        }
    }

    /// When it is to be asked for what comes after a credential that ends at `expires`.
    fn refresh_due(&self, now: Instant, expires: Option<Instant>) -> Option<Instant> {
        match self {
            Self::Configured { .. } => self.can_change().then(|| now + REREAD_INTERVAL),
            Self::Plugin(_) => expires.map(|expires| next_refresh(now, expires)),
        }
    }
}

impl ClientCertificate {
    fn can_change(&self) -> bool {
        let file = |pem: &Pem| matches!(pem, Pem::File(_));
        file(&self.certificate) || file(&self.key)
    }

    async fn read(&self) -> Result<Arc<CertifiedKey>, CredentialError> {
        let read = async {
            let (certificate, key) = (self.certificate.read().await?, self.key.read().await?);
            let (certificate_origin, key_origin) = (self.certificate.origin(), self.key.origin());
            parse_certified_key((&certificate_origin, &certificate), (&key_origin, &key))
        };
        read.await.map_err(CredentialError::Certificate)
    }
}

async fn run_plugin(
    plugin: &ExecPlugin,
    clock: Clock,
) -> Result<LoadedCredential, CredentialError> {
    let obtained = plugin.run().await.map_err(CredentialError::Plugin)?;
    LoadedCredential::from_plugin(obtained, clock)
        .map_err(|cause| CredentialError::Plugin(plugin.error(cause)))
}

async fn initial_token(
    token: Option<&BearerToken>,
) -> Result<Option<HeaderValue>, CredentialError> {
    let (path, until_read) = match token {
        None => return Ok(None),
        Some(BearerToken::Inline(value)) => return Ok(Some(value.clone())),
        Some(BearerToken::File { path, until_read }) => (path, until_read),
    };
    match (read_token(path).await, until_read) {
        (Ok(value), _) => Ok(Some(value)),
        (Err(why), Some(value)) => {
            tracing::warn!("the token given beside it serves until it can be read: {why}");
            Ok(Some(value.clone()))
        }
        (Err(why), None) => Err(why),
    }
}

/// As client-go: without white space around it, and never empty.
async fn read_token(path: &Path) -> Result<HeaderValue, CredentialError> {
    let fault = |message: String| CredentialError::TokenFile {
        path: path.to_owned(),
        message,
    };
    let bytes = tokio::fs::read(path)
        .await
        .map_err(|why| fault(why.to_string()))?;
    let text = str::from_utf8(&bytes)
        .map_err(|_| fault("not text".to_owned()))?
        .trim();
    if text.is_empty() {
        return Err(fault("it is empty".to_owned()));
    }
    bearer_header(text).map_err(|why| fault(format!("it holds {why}")))
}

#[cfg(test)]
mod tests;
