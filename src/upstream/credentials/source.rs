//! Where weir's own credential comes from: the configuration, files, or a credential plugin.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderValue;
use rustls::sign::CertifiedKey;

use crate::upstream::credentials::exec_credential::PluginCredential;
use crate::upstream::credentials::exec_plugin::{ExecPlugin, PluginError, PluginFailure};
use crate::upstream::credentials::refresh_schedule::next_refresh;
use crate::upstream::tls::{Pem, PemError, PemInput, parse_certified_key};
use weir_base::clock::Clock;
use weir_tokens::bearer::bearer_header;

/// How often files are read again. client-go reads a token file as often, which is half of the time
/// that the kubelet leaves between a new token and the expiry of the old one.
pub(super) const REREAD_INTERVAL: Duration = Duration::from_secs(60);

/// Where weir's own credential comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum CredentialSource {
    /// Given inline or in files. Without both, weir's calls are anonymous.
    Configured {
        /// The client certificate.
        certificate: Option<ClientCertificate>,
        /// The bearer token.
        token: Option<BearerToken>,
    },
    /// Obtained from a credential plugin.
    Plugin(ExecPlugin),
}

/// A client certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate with its chain.
    pub(crate) certificate: Pem,
    /// Its private key.
    pub(crate) key: Pem,
}

/// A bearer token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BearerToken {
    /// In a file, which may change.
    File {
        /// The file.
        path: PathBuf,
        /// The token that is used until the file has been read (`token` beside `tokenFile`).
        fallback: Option<HeaderValue>,
    },
    /// The header value of an inline token, as [`bearer_header`] builds it.
    Inline(HeaderValue),
}

/// Why there is no credential, or no new one.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CredentialError {
    /// The certificate or its key is unusable.
    #[error("the client certificate: {0}")]
    Certificate(PemError),
    /// The plugin failed.
    #[error("{0}")]
    Plugin(PluginError),
    /// The token file is unusable.
    #[error("the token file {}: {message}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
}

impl CredentialError {
    /// Leaves out what a plugin said, which is for the log: pages and other replicas, which show the
    /// rest, are for more readers, and it may have said a secret.
    pub(super) fn forget_stderr(&mut self) {
        if let Self::Plugin(error) = self {
            error.forget_stderr();
        }
    }

    /// Whether the key belongs to another certificate.
    #[must_use]
    pub(crate) fn is_key_mismatch(&self) -> bool {
        matches!(self, Self::Certificate(error) if error.is_key_mismatch())
    }
}

#[derive(Clone)]
pub(super) struct LoadedCredential {
    pub(super) authorization: Option<HeaderValue>,
    pub(super) certificate: Option<Arc<CertifiedKey>>,
    /// On the monotonic clock, so that a change of the wall clock does not expire it. The API
    /// server decides in any case.
    pub(super) expires: Option<Instant>,
}

impl LoadedCredential {
    fn from_plugin(credential: PluginCredential, clock: Clock) -> Result<Self, PluginFailure> {
        let PluginCredential {
            authorization,
            certificate,
            expires,
        } = credential;
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

    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

impl CredentialSource {
    /// Whether there is no credential: calls are anonymous.
    #[must_use]
    pub(crate) const fn is_anonymous(&self) -> bool {
        matches!(
            self,
            Self::Configured {
                certificate: None,
                token: None,
            }
        )
    }

    /// Whether the credential is in files, which may have other contents at any time.
    #[must_use]
    pub(crate) fn is_in_files(&self) -> bool {
        matches!(self, Self::Configured { .. }) && self.can_change()
    }

    /// The files of the certificate, the key and the token.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let (certificate, token) = match self {
            Self::Configured { certificate, token } => (certificate.as_ref(), token.as_ref()),
            Self::Plugin(_) => (None, None),
        };
        let pems = certificate
            .into_iter()
            .flat_map(|pair| [&pair.certificate, &pair.key]);
        let pems = pems.filter_map(|pem| match pem {
            Pem::File(path) => Some(path.as_path()),
            Pem::Data { .. } => None,
        });
        let token = token.and_then(|token| match token {
            BearerToken::File { path, .. } => Some(path.as_path()),
            BearerToken::Inline(_) => None,
        });
        pems.chain(token)
    }

    pub(super) fn can_change(&self) -> bool {
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

    /// When the source is read again, after a credential that expires at `expires`.
    pub(super) fn refresh_due(&self, now: Instant, expires: Option<Instant>) -> Option<Instant> {
        match self {
            Self::Configured { .. } => self.can_change().then(|| now + REREAD_INTERVAL),
            Self::Plugin(_) => expires.map(|expires| next_refresh(now, expires)),
        }
    }
}

impl ClientCertificate {
    pub(super) fn can_change(&self) -> bool {
        let file = |pem: &Pem| matches!(pem, Pem::File(_));
        file(&self.certificate) || file(&self.key)
    }

    pub(super) async fn read(&self) -> Result<Arc<CertifiedKey>, CredentialError> {
        let read = async {
            let (certificate, key) = (self.certificate.read().await?, self.key.read().await?);
            let (certificate_origin, key_origin) = (self.certificate.origin(), self.key.origin());
            parse_certified_key(
                PemInput::new(&certificate_origin, &certificate),
                PemInput::new(&key_origin, &key),
            )
        };
        read.await.map_err(CredentialError::Certificate)
    }
}

pub(super) async fn run_plugin(
    plugin: &ExecPlugin,
    clock: Clock,
) -> Result<LoadedCredential, CredentialError> {
    let credential = plugin.run().await.map_err(CredentialError::Plugin)?;
    LoadedCredential::from_plugin(credential, clock)
        .map_err(|cause| CredentialError::Plugin(plugin.error(cause)))
}

pub(super) async fn initial_token(
    token: Option<&BearerToken>,
) -> Result<Option<HeaderValue>, CredentialError> {
    let (path, fallback) = match token {
        None => return Ok(None),
        Some(BearerToken::Inline(value)) => return Ok(Some(value.clone())),
        Some(BearerToken::File { path, fallback }) => (path, fallback),
    };
    match (read_token(path).await, fallback) {
        (Ok(value), _) => Ok(Some(value)),
        (Err(why), Some(value)) => {
            tracing::warn!("the token given beside it serves until it can be read: {why}");
            Ok(Some(value.clone()))
        }
        (Err(why), None) => Err(why),
    }
}

/// Reads a token. As in client-go, surrounding white space is removed, and it must not be empty.
pub(super) async fn read_token(path: &Path) -> Result<HeaderValue, CredentialError> {
    let error = |message: String| CredentialError::TokenFile {
        path: path.to_owned(),
        message,
    };
    let bytes = tokio::fs::read(path)
        .await
        .map_err(|why| error(why.to_string()))?;
    parse_token(&bytes).map_err(error)
}

/// The header for the token in a file's content.
///
/// # Errors
/// What is wrong with the content.
pub(crate) fn parse_token(bytes: &[u8]) -> Result<HeaderValue, String> {
    let text = str::from_utf8(bytes)
        .map_err(|_| "not text".to_owned())?
        .trim();
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    bearer_header(text).map_err(|why| format!("it holds {why}"))
}
