//! What weir itself shows the API server for its own calls, never for those of its clients.
//!
//! Promises: a credential is there from the start, or the start fails and says what to do; it is renewed before it ends, one
//! attempt at a time; while renewing fails, the old one serves until its end, and then there is none, which is an error and
//! not an anonymous call; no secret gets into a log or a `Debug`. Files are read again every minute, which costs nothing and is
//! soon enough for whatever rotates them. Deliberately not here: clients' credentials, and the calls themselves.

pub mod bearer;
pub mod exec;
pub mod exec_credential;
mod refresh;
mod renewal;

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
use crate::upstream::credentials::bearer::bearer;
use crate::upstream::credentials::exec::Cause;
use crate::upstream::credentials::exec::Plugin;
use crate::upstream::credentials::exec::PluginError;
use crate::upstream::credentials::exec_credential::Obtained;
use crate::upstream::credentials::refresh::Schedule;
use crate::upstream::credentials::refresh::next_refresh;
use crate::upstream::tls::Pem;
use crate::upstream::tls::PemFault;
use crate::upstream::tls::certified_key_from_pem;

pub use renewal::Renewal;

/// How often files are read again: as client-go reads a token file, which is half of what the kubelet leaves between a new token
/// and the end of the old one.
const REREAD: Duration = Duration::from_secs(60);

/// Where weir's own credential comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// What was given, or stands in files; nothing at all is an anonymous caller.
    Given {
        /// The client certificate.
        certificate: Option<ClientCertificate>,
        /// The bearer token.
        token: Option<Token>,
    },
    /// A program is asked.
    Plugin(Plugin),
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
pub enum Token {
    /// In a file, which may change.
    File {
        /// The file.
        path: PathBuf,
        /// What serves as long as the file has not been read (`token` beside `tokenFile`).
        until_read: Option<HeaderValue>,
    },
    /// The header's value for one that was given, as [`bearer`] makes it.
    Given(HeaderValue),
}

/// Why there is no credential, or no new one.
#[derive(Clone, Debug)]
pub enum CredentialError {
    /// The certificate or its key.
    Certificate(PemFault),
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
pub struct Expired {
    /// Why the last attempt to renew it failed; none if none has yet.
    pub failure: Option<Arc<CredentialError>>,
}

impl fmt::Display for Expired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weir's own credential for the API server has expired")?;
        match &self.failure {
            Some(why) => write!(f, ", and there is no new one: {why}"),
            None => write!(f, " and is being renewed"),
        }
    }
}

impl std::error::Error for Expired {}

#[derive(Clone)]
struct Credential {
    authorization: Option<HeaderValue>,
    certificate: Option<Arc<CertifiedKey>>,
    /// On the monotonic clock, so that a wall clock set anew does not end it; the API server's word counts in any case.
    expires: Option<Instant>,
}

impl Credential {
    fn from_plugin(obtained: Obtained, clock: Clock) -> Result<Self, Cause> {
        let Obtained {
            authorization,
            certificate,
            expires,
        } = obtained;
        let expires = match expires {
            None => None,
            Some(at) => match at.duration_since(clock.wall()) {
                Ok(left) if !left.is_zero() => clock.now().checked_add(left),
                _ => return Err(Cause::Expired(at)),
            },
        };
        Ok(Self {
            authorization,
            certificate,
            expires,
        })
    }

    fn is_over(&self, now: Instant) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

struct Current {
    credential: Credential,
    failure: Option<Arc<CredentialError>>,
}

/// The credential that weir uses for its own calls, as it is at the moment.
pub struct OwnCredentials {
    current: ArcSwap<Current>,
    refused: Notify,
    /// The API server's last answer to it was 401.
    unauthorized: AtomicBool,
    certificates: watch::Sender<u64>,
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
        source: Source,
        clock: Clock,
    ) -> Result<(Arc<Self>, Renewal), CredentialError> {
        let credential = match &source {
            Source::Given { certificate, token } => Credential {
                authorization: first_token(token.as_ref()).await?,
                certificate: match certificate {
                    Some(certificate) => Some(certificate.read().await?),
                    None => None,
                },
                expires: None,
            },
            Source::Plugin(plugin) => ask(plugin, clock).await?,
        };
        let now = clock.now();
        let schedule = Schedule::succeeded(now, source.due(now, credential.expires));
        let own = Arc::new(Self {
            current: ArcSwap::from_pointee(Current {
                credential,
                failure: None,
            }),
            refused: Notify::new(),
            unauthorized: AtomicBool::new(false),
            certificates: watch::Sender::new(0),
            clock,
        });
        Ok((
            Arc::clone(&own),
            Renewal {
                own,
                source,
                schedule,
            },
        ))
    }

    /// What stands in the `Authorization` header; none for a caller that has only a certificate, or nothing.
    ///
    /// # Errors
    /// The credential is over: the call must not be made without it.
    pub fn authorization(&self) -> Result<Option<HeaderValue>, Expired> {
        self.authorization_at(self.clock.now())
    }

    fn authorization_at(&self, now: Instant) -> Result<Option<HeaderValue>, Expired> {
        let current = self.current.load();
        if current.credential.is_over(now) {
            return Err(Expired {
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
        if current.credential.is_over(now) {
            None
        } else {
            current.credential.certificate.clone()
        }
    }

    /// Records the code that the API server answered a call of weir's own with. The first 401 is logged, and so is the first
    /// other code after it.
    pub fn answered(&self, code: StatusCode) {
        let unauthorized = code == StatusCode::UNAUTHORIZED;
        if unauthorized {
            self.refused();
        }
        if !self.is_given()
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
    pub fn is_given(&self) -> bool {
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
    pub fn refused(&self) {
        self.refused.notify_one();
    }

    /// Shows the current certificate, whichever that is when a connection is made.
    #[must_use]
    pub fn certificate_resolver(self: &Arc<Self>) -> Arc<dyn ResolvesClientCert> {
        Arc::new(CurrentCertificate(Arc::clone(self)))
    }

    /// A number that changes with the certificate. Connections made before keep showing the old one, which the API server
    /// refuses once it is over: they have to be closed.
    #[must_use]
    pub fn certificate_changes(&self) -> watch::Receiver<u64> {
        self.certificates.subscribe()
    }

    fn replace(&self, credential: Credential) {
        let previous = self.current.swap(Arc::new(Current {
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
            self.certificates
                .send_modify(|changes| *changes = changes.wrapping_add(1));
        }
    }

    fn failed(&self, why: CredentialError) {
        let credential = self.current.load().credential.clone();
        if credential.is_over(self.clock.now()) {
            tracing::error!("weir's own credential has expired, and there is no new one: {why}");
        } else {
            tracing::warn!("weir's own credential is not renewed yet: {why}");
        }
        self.current.store(Arc::new(Current {
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
struct CurrentCertificate(Arc<OwnCredentials>);

impl ResolvesClientCert for CurrentCertificate {
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

impl Source {
    /// Whether there is nothing: calls are made as an anonymous caller.
    #[must_use]
    pub const fn is_nobody(&self) -> bool {
        matches!(
            self,
            Self::Given {
                certificate: None,
                token: None,
            }
        )
    }

    fn can_change(&self) -> bool {
        match self {
            Self::Given { certificate, token } => {
                certificate
                    .as_ref()
                    .is_some_and(ClientCertificate::can_change)
                    || matches!(token, Some(Token::File { .. }))
            }
            Self::Plugin(_) => true,
        }
    }

    /// When it is to be asked for what comes after a credential that ends at `expires`.
    fn due(&self, now: Instant, expires: Option<Instant>) -> Option<Instant> {
        match self {
            Self::Given { .. } => self.can_change().then(|| now + REREAD),
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
            certified_key_from_pem((&certificate_origin, &certificate), (&key_origin, &key))
        };
        read.await.map_err(CredentialError::Certificate)
    }
}

async fn ask(plugin: &Plugin, clock: Clock) -> Result<Credential, CredentialError> {
    let obtained = plugin.run().await.map_err(CredentialError::Plugin)?;
    Credential::from_plugin(obtained, clock)
        .map_err(|cause| CredentialError::Plugin(plugin.error(cause)))
}

async fn first_token(token: Option<&Token>) -> Result<Option<HeaderValue>, CredentialError> {
    let (path, until_read) = match token {
        None => return Ok(None),
        Some(Token::Given(value)) => return Ok(Some(value.clone())),
        Some(Token::File { path, until_read }) => (path, until_read),
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
    bearer(text).map_err(|why| fault(format!("it holds {why}")))
}

#[cfg(test)]
mod tests;
