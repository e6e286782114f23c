//! weir's current credential: what connections and requests use, and whether the API server accepts
//! it.

use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use http::{HeaderValue, StatusCode};
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use tokio::sync::{Notify, watch};

use crate::upstream::credentials::refresh_schedule::RefreshSchedule;
use crate::upstream::credentials::source::{CredentialError, CredentialSource, LoadedCredential};
use weir_base::clock::Clock;
use weir_status::alarms::CredentialTrouble;

/// The credential has expired and there is no other.
#[derive(Clone, Debug)]
pub(crate) struct CredentialExpired {
    /// Why the last refresh failed; none if no refresh has failed yet.
    pub(crate) failure: Option<Arc<CredentialError>>,
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

struct CredentialState {
    credential: LoadedCredential,
    failure: Option<Arc<CredentialError>>,
}

/// The credential that weir uses for its own calls at the moment.
pub struct OwnCredentials {
    current: ArcSwap<CredentialState>,
    pub(super) refresh_requested: Notify,
    /// Whether the API server's last response to it was 401.
    unauthorized: AtomicBool,
    /// Whether the credential before this one was rejected with 401, until the next response.
    replaced_unauthorized: AtomicBool,
    certificate_changes: watch::Sender<u64>,
    /// The source after a reload. Locked to replace the credential, never by a request.
    source: Mutex<SourceSlot>,
    pub(super) source_replaced: Notify,
    pub(super) clock: Clock,
}

/// The number of sources so far, and the last one until the refresh task takes it.
#[derive(Default)]
struct SourceSlot {
    number: u64,
    replacement: Option<PreparedCredentials>,
}

/// A source and the credential that it has given.
pub(crate) struct PreparedCredentials {
    pub(super) source: CredentialSource,
    pub(super) schedule: RefreshSchedule,
    pub(super) credential: LoadedCredential,
}

impl OwnCredentials {
    /// Starts with `credential`.
    pub(super) fn new(credential: LoadedCredential, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            current: ArcSwap::from_pointee(CredentialState {
                credential,
                failure: None,
            }),
            refresh_requested: Notify::new(),
            unauthorized: AtomicBool::new(false),
            replaced_unauthorized: AtomicBool::new(false),
            certificate_changes: watch::Sender::new(0),
            source: Mutex::default(),
            source_replaced: Notify::new(),
            clock,
        })
    }

    pub(super) fn loaded(&self) -> LoadedCredential {
        self.current.load().credential.clone()
    }

    /// The `Authorization` header; none if there is only a certificate, or no credential.
    ///
    /// # Errors
    /// The credential has expired: the call must not be made without it.
    pub(crate) fn authorization(&self) -> Result<Option<HeaderValue>, CredentialExpired> {
        self.authorization_at(self.clock.now())
    }

    pub(super) fn authorization_at(
        &self,
        now: Instant,
    ) -> Result<Option<HeaderValue>, CredentialExpired> {
        let current = self.current.load();
        if current.credential.is_expired(now) {
            return Err(CredentialExpired {
                failure: current.failure.clone(),
            });
        }
        Ok(current.credential.authorization.clone())
    }

    /// The certificate that is presented now, if any.
    #[must_use]
    pub(crate) fn certificate(&self) -> Option<Arc<CertifiedKey>> {
        self.certificate_at(self.clock.now())
    }

    pub(super) fn certificate_at(&self, now: Instant) -> Option<Arc<CertifiedKey>> {
        let current = self.current.load();
        if current.credential.is_expired(now) {
            None
        } else {
            current.credential.certificate.clone()
        }
    }

    /// Records the status code of the API server's response to a call of weir's own. The first 401
    /// is logged, and so is the first other code after it.
    pub(crate) fn record_response(&self, code: StatusCode) {
        let unauthorized = code == StatusCode::UNAUTHORIZED;
        if unauthorized {
            self.request_refresh();
        }
        if !self.is_configured() {
            return;
        }
        let was_unauthorized = self.unauthorized.swap(unauthorized, Ordering::AcqRel);
        let was_replaced = self.replaced_unauthorized.swap(false, Ordering::AcqRel);
        if unauthorized == was_unauthorized && (unauthorized || !was_replaced) {
            return;
        }
        if unauthorized {
            tracing::error!(
                "the API server responds with 401 to weir's own credentials (--kubeconfig): they have expired, were revoked, or are of \
                 another cluster. Until they are accepted again, tokens that weir cannot verify by their signature count as \
                 system:anonymous, and weir impersonates no user"
            );
        } else {
            tracing::info!("the API server accepts weir's own credential again");
        }
    }

    /// Whether there is a credential: without one, weir's calls are anonymous.
    #[must_use]
    pub(crate) fn is_configured(&self) -> bool {
        let credential = &self.current.load().credential;
        credential.authorization.is_some() || credential.certificate.is_some()
    }

    /// Why the credential does not work, because it has expired or the API server has rejected it
    /// with 401, or why it is not renewed. `None` if all is well.
    #[must_use]
    pub(crate) fn trouble(&self) -> Option<CredentialTrouble> {
        let broken = |why: String| CredentialTrouble {
            still_works: false,
            why,
        };
        if let Err(why) = self.authorization() {
            return Some(broken(why.to_string()));
        }
        if self.unauthorized.load(Ordering::Acquire) {
            let why = "the API server responds with 401 to weir's own credentials";
            return Some(broken(why.to_owned()));
        }
        let failure = self.current.load().failure.clone()?;
        Some(CredentialTrouble {
            still_works: true,
            why: format!("not renewed yet: {failure}"),
        })
    }

    /// When the credential ends, if its source says so. A certificate ends by itself.
    #[must_use]
    pub(crate) fn expires(&self) -> Option<Instant> {
        self.current.load().credential.expires
    }

    /// Requests a new credential, after the API server has answered 401 to a call of weir's own. It
    /// is fetched at once if the last attempt is a minute ago, and otherwise when it is.
    pub(crate) fn request_refresh(&self) {
        self.refresh_requested.notify_one();
    }

    /// Resolves to the current certificate when a connection is opened.
    #[must_use]
    pub(crate) fn certificate_resolver(self: &Arc<Self>) -> Arc<dyn ResolvesClientCert> {
        Arc::new(CurrentCertResolver(Arc::clone(self)))
    }

    /// A number that changes with the certificate. Earlier connections keep presenting the old
    /// certificate, which the API server rejects once it has expired: they have to be closed.
    #[must_use]
    pub(crate) fn certificate_changes(&self) -> watch::Receiver<u64> {
        self.certificate_changes.subscribe()
    }

    /// Uses `prepared` from now on, and its source for later credentials: the refresh task follows.
    pub(crate) fn replace_source(&self, prepared: PreparedCredentials) {
        let mut source = self.source.lock();
        source.number += 1;
        if self.unauthorized.swap(false, Ordering::AcqRel) {
            self.replaced_unauthorized.store(true, Ordering::Release);
        }
        self.replace(prepared.credential.clone(), None);
        source.replacement = Some(prepared);
        drop(source);
        self.source_replaced.notify_one();
    }

    /// The source that replaces the one with an earlier number, and its number.
    pub(super) fn take_replacement(&self) -> Option<(u64, PreparedCredentials)> {
        let mut source = self.source.lock();
        let prepared = source.replacement.take()?;
        Some((source.number, prepared))
    }

    /// Replaces the credential by one from the source with this number, unless that was replaced.
    /// `failure`: why a part of it is still the one before.
    pub(super) fn renew(
        &self,
        number: u64,
        credential: LoadedCredential,
        failure: Option<CredentialError>,
    ) {
        let source = self.source.lock();
        if source.number == number {
            self.replace(credential, failure);
        }
    }

    fn replace(&self, credential: LoadedCredential, failure: Option<CredentialError>) {
        let is_whole = failure.is_none();
        let previous = self.current.swap(Arc::new(CredentialState {
            credential,
            failure: failure.map(Arc::new),
        }));
        if is_whole && previous.failure.is_some() {
            tracing::info!("weir's own credential is renewed again");
        }
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

    /// Records that the source with this number has failed, unless it was replaced.
    pub(super) fn record_failure(&self, number: u64, mut error: CredentialError) {
        let source = self.source.lock();
        if source.number != number {
            return;
        }
        let credential = self.current.load().credential.clone();
        if credential.is_expired(self.clock.now()) {
            tracing::error!("weir's own credential has expired, and there is no new one: {error}");
        } else {
            tracing::warn!("weir's own credential is not renewed yet: {error}");
        }
        error.forget_stderr();
        self.current.store(Arc::new(CredentialState {
            credential,
            failure: Some(Arc::new(error)),
        }));
    }
}

impl fmt::Debug for PreparedCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedCredentials")
            .finish_non_exhaustive()
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
    /// Ignores the issuers that the server names, as client-go's callback does: the server verifies
    /// the certificate anyway.
    fn resolve(
        &self,
        _issuers: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.0.certificate_at(self.0.clock.now())
    }

    /// rustls asks before the handshake, during which a certificate may arrive.
    fn has_certs(&self) -> bool {
        true
    }
}
