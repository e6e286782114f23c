//! Authenticates requests by TLS client certificates.
//!
//! The handshake proves possession only. Whether the certificate is trusted is checked here, per
//! request, so that an invalid certificate with a valid token works. Name, groups and uid are read
//! like `x509.CommonNameUserConversion` (Kubernetes 1.36) reads them. A connection's chain is
//! verified once, and again when one of its certificates expires. A certificate that has expired or
//! is not valid yet is verified again every ten seconds at most. After a reload that changes the CA,
//! every chain is verified again with its next request.

pub(crate) mod trust;

use parking_lot::Mutex;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::server::VerifierBuilderError;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};

use crate::identity::client_certificate::trust::TrustedCertificate;
use weir_kubernetes::api::UserInfo;
use weir_x509::{
    Certificate, CertificatePool, CertificateSubject, PathVerifier, Purpose, Reason, SubjectError,
    VerifiedCertificate,
};

/// The extra key under which Kubernetes records the certificate.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// How long a certificate that has expired or is not valid yet is not verified again. A
/// verification takes a tenth of a millisecond, or a tenth of a second if the client's chain is made
/// for it (100 signatures of RSA keys of 8192 bits), and clients send thousands of requests.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Why a certificate does not authenticate a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateError {
    /// The certificate cannot be parsed.
    Malformed(String),
    /// Nothing verifies certificates.
    NoClientCa,
    /// The subject has no common name.
    NoCommonName,
    /// The certificate is a front proxy's, and its name is not in `--requestheader-allowed-names`.
    NotAllowed(String),
    /// The certificate is a front proxy's, and its identity headers are not UTF-8.
    InvalidProxyHeaders,
    /// The client CA did not sign the certificate, or it is not valid at this time or for this use.
    Untrusted(String),
    /// The uid in the subject is not valid.
    InvalidUid(String),
    /// This part of the subject cannot be read as kube-apiserver reads it.
    UnreadableSubject(&'static str),
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(reason) => write!(f, "the client certificate cannot be read: {reason}"),
            Self::NoClientCa => write!(
                f,
                "weir accepts no client certificates: it has no --client-ca-file"
            ),
            Self::NoCommonName => write!(f, "the client certificate's subject has no common name"),
            Self::NotAllowed(name) => write!(
                f,
                "x509: subject with cn={name} is not in the allowed list (--requestheader-allowed-names)"
            ),
            Self::InvalidProxyHeaders => write!(
                f,
                "the front proxy's headers that name a user are not UTF-8"
            ),
            Self::Untrusted(reason) => write!(f, "the client certificate is not trusted: {reason}"),
            Self::InvalidUid(reason) => write!(f, "the client certificate's uid: {reason}"),
            Self::UnreadableSubject(part) => write!(
                f,
                "the client certificate's subject: its {part} is of a string type or an encoding that cannot be read"
            ),
        }
    }
}

/// Verifies certificates against the client CA (`--client-ca-file`), or that of front proxies
/// (`--requestheader-client-ca-file`).
pub struct CertificateVerifier {
    /// Cached results carry the id of the verifier that they are from.
    id: VerifierId,
    roots: CertificatePool,
    provider: Arc<CryptoProvider>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct VerifierId(u64);

impl VerifierId {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Debug for CertificateVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CertificateVerifier({} roots)", self.roots.len())
    }
}

impl CertificateVerifier {
    /// Trusts certificates that `roots` signed.
    ///
    /// # Errors
    /// `roots` is empty.
    pub fn new(
        roots: CertificatePool,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, VerifierBuilderError> {
        if roots.is_empty() {
            return Err(VerifierBuilderError::NoRootAnchors);
        }
        Ok(Self {
            id: VerifierId::new(),
            roots,
            provider,
        })
    }

    /// Whether both trust the same CAs.
    fn trusts_same(&self, other: &Self) -> bool {
        self.roots == other.roots
    }

    fn verify(
        &self,
        chain: &[CertificateDer<'static>],
        wall: SystemTime,
    ) -> Result<AuthenticatedCertificate, CachedCertificateError> {
        let verified = self.verify_chain(chain, wall)?;
        Ok(AuthenticatedCertificate {
            user: Arc::new(user_from_certificate(&verified.leaf)?),
            chain_not_after: verified.not_after,
            not_after: verified.leaf.not_after(),
        })
    }

    /// Verifies the chain like the x509 authenticator of kube-apiserver: for client authentication,
    /// with the certificates after the first as intermediates.
    fn verify_chain(
        &self,
        chain: &[CertificateDer<'static>],
        wall: SystemTime,
    ) -> Result<VerifiedCertificate, CachedCertificateError> {
        let (leaf, intermediates) = chain
            .split_first()
            .ok_or_else(|| CertificateError::Malformed("there is none".to_owned()))?;
        let verifier = PathVerifier {
            roots: &self.roots,
            algorithms: self.provider.signature_verification_algorithms.all,
            purpose: Purpose::ClientAuth,
            now: wall,
        };
        let verified = verifier.verify(leaf, intermediates).map_err(|why| {
            let is_malformed = matches!(why.reason, Reason::Malformed(_));
            let as_error: fn(String) -> CertificateError = if is_malformed {
                CertificateError::Malformed
            } else {
                CertificateError::Untrusted
            };
            CachedCertificateError {
                found_at: why.depends_on_time.then_some(wall),
                error: as_error(why.to_string()),
            }
        })?;
        // Go's TLS does not accept other keys of clients.
        if !verified.leaf.can_sign() {
            return Err(
                CertificateError::Malformed("its key makes no signatures".to_owned()).into(),
            );
        }
        Ok(verified)
    }
}

/// Verifies that a certificate is that of a front proxy.
#[derive(Debug)]
pub(crate) struct FrontProxyVerifier {
    verifier: CertificateVerifier,
    /// `--requestheader-allowed-names`. Empty for any name.
    allowed_names: Vec<String>,
}

impl FrontProxyVerifier {
    /// Trusts certificates that `verifier` accepts, with a common name of `allowed_names` (any, if
    /// empty).
    #[must_use]
    pub(crate) const fn new(verifier: CertificateVerifier, allowed_names: Vec<String>) -> Self {
        Self {
            verifier,
            allowed_names,
        }
    }

    fn allows(&self, name: &str) -> bool {
        self.allowed_names.is_empty() || self.allowed_names.iter().any(|allowed| allowed == name)
    }
}

/// Which client certificates are trusted.
#[derive(Debug, Default)]
pub struct ClientTrust {
    /// `--client-ca-file`.
    pub(crate) certificates: Option<Arc<CertificateVerifier>>,
    /// `--requestheader-client-ca-file` and `--requestheader-allowed-names`.
    pub(crate) front_proxies: Option<Arc<FrontProxyVerifier>>,
}

impl ClientTrust {
    /// This trust, which replaces `earlier`: with the verifiers of `earlier` that trust the same,
    /// so that what is cached of their results stays valid.
    #[must_use]
    pub(crate) fn replacing(self, earlier: &Arc<Self>) -> Arc<Self> {
        let certificates = match (&self.certificates, &earlier.certificates) {
            (Some(new), Some(old)) if new.trusts_same(old) => Some(Arc::clone(old)),
            _ => self.certificates,
        };
        let front_proxies = match (&self.front_proxies, &earlier.front_proxies) {
            (Some(new), Some(old))
                if new.verifier.trusts_same(&old.verifier)
                    && new.allowed_names == old.allowed_names =>
            {
                Some(Arc::clone(old))
            }
            _ => self.front_proxies,
        };
        let certificates_id =
            |trust: &Option<Arc<CertificateVerifier>>| trust.as_ref().map(|v| v.id);
        let proxies_id =
            |trust: &Option<Arc<FrontProxyVerifier>>| trust.as_ref().map(|v| v.verifier.id);
        if certificates_id(&certificates) == certificates_id(&earlier.certificates)
            && proxies_id(&front_proxies) == proxies_id(&earlier.front_proxies)
        {
            return Arc::clone(earlier);
        }
        Arc::new(Self {
            certificates,
            front_proxies,
        })
    }
}

/// The certificate chain that the client of a connection presented.
pub struct PeerCertificate {
    chain: Vec<CertificateDer<'static>>,
    /// The last result, shared by the requests of the connection. The lock is not held across an
    /// await.
    user_outcome: Mutex<CachedOutcome<AuthenticatedCertificate>>,
    /// The last result for a front proxy certificate, and the time until which it holds.
    front_proxy_outcome: Mutex<CachedOutcome<SystemTime>>,
}

/// The last result of a verification.
#[derive(Clone)]
struct CachedOutcome<T> {
    last: Option<(VerifierId, Result<T, CachedCertificateError>)>,
    /// Whether any verification has succeeded.
    has_succeeded: bool,
}

impl<T> Default for CachedOutcome<T> {
    fn default() -> Self {
        Self {
            last: None,
            has_succeeded: false,
        }
    }
}

impl<T: Clone> CachedOutcome<T> {
    /// The last result, if it is from the verifier with this id.
    fn get(&self, verifier: VerifierId) -> Option<&Result<T, CachedCertificateError>> {
        let (from, result) = self.last.as_ref()?;
        (*from == verifier).then_some(result)
    }

    fn set(&mut self, verifier: VerifierId, result: &Result<T, CachedCertificateError>) {
        self.has_succeeded |= result.is_ok();
        self.last = Some((verifier, result.clone()));
    }
}

/// An error, and when it was found if a later verification may succeed.
#[derive(Clone, Debug)]
struct CachedCertificateError {
    error: CertificateError,
    found_at: Option<SystemTime>,
}

impl From<CertificateError> for CachedCertificateError {
    fn from(error: CertificateError) -> Self {
        Self {
            error,
            found_at: None,
        }
    }
}

impl CachedCertificateError {
    /// Whether the error still counts at `wall`. If the clock was set back, the certificate is
    /// verified again.
    fn is_current(&self, wall: SystemTime) -> bool {
        self.found_at.is_none_or(|found| {
            wall.duration_since(found)
                .is_ok_and(|since| since < RECHECK_INTERVAL)
        })
    }
}

#[derive(Clone)]
struct AuthenticatedCertificate {
    user: Arc<UserInfo>,
    /// The earliest expiry in the path to the CA, which is included.
    chain_not_after: SystemTime,
    /// The expiry of the client's own certificate.
    not_after: SystemTime,
}

impl PeerCertificate {
    /// The chain of the handshake, with the client's own certificate first. `None` if the client
    /// presented none.
    #[must_use]
    pub fn new(chain: Option<&[CertificateDer<'_>]>) -> Option<Self> {
        let chain: Vec<_> = chain?.iter().map(|c| c.clone().into_owned()).collect();
        (!chain.is_empty()).then_some(Self {
            chain,
            user_outcome: Mutex::default(),
            front_proxy_outcome: Mutex::default(),
        })
    }

    /// Checks that the certificate is that of a front proxy.
    pub(super) fn verify_front_proxy(
        &self,
        proxies: &FrontProxyVerifier,
        wall: SystemTime,
    ) -> Result<(), CertificateError> {
        let verifier = &proxies.verifier;
        let mut outcome = self.front_proxy_outcome.lock();
        match outcome.get(verifier.id) {
            Some(Ok(chain_not_after)) if wall <= *chain_not_after => return Ok(()),
            Some(Err(error)) if error.is_current(wall) => return Err(error.error.clone()),
            Some(_) | None => {}
        }
        let result = verifier
            .verify_chain(&self.chain, wall)
            .and_then(|verified| {
                let name = parse_subject(&verified.leaf)?.common_name;
                if proxies.allows(&name) {
                    Ok(verified.not_after)
                } else {
                    Err(CertificateError::NotAllowed(name.into_owned()).into())
                }
            });
        outcome.set(verifier.id, &result);
        result.map(|_| ()).map_err(|error| error.error)
    }

    /// When the client's own certificate expires, if it authenticated a user.
    #[must_use]
    pub(crate) fn not_after(&self) -> Option<SystemTime> {
        let outcome = self.user_outcome.lock();
        let (_, verified) = outcome.last.as_ref()?;
        Some(verified.as_ref().ok()?.not_after)
    }

    /// The user of the certificate, if `verifier` accepts it at `wall`. The last result is kept.
    ///
    /// # Errors
    /// The certificate is not accepted, or its subject names no user.
    pub fn user(
        &self,
        verifier: &CertificateVerifier,
        wall: SystemTime,
    ) -> Result<Arc<UserInfo>, CertificateError> {
        let mut outcome = self.user_outcome.lock();
        match outcome.get(verifier.id) {
            Some(Ok(verified)) if wall <= verified.chain_not_after => {
                return Ok(Arc::clone(&verified.user));
            }
            Some(Err(error)) if error.is_current(wall) => return Err(error.error.clone()),
            Some(_) | None => {}
        }
        let result = verifier.verify(&self.chain, wall);
        outcome.set(verifier.id, &result);
        result
            .map(|verified| verified.user)
            .map_err(|error| error.error)
    }
}

impl TrustedCertificate for PeerCertificate {
    type Trust = ClientTrust;

    fn has_lost_trust(&self, trust: &ClientTrust, wall: SystemTime) -> bool {
        let gave_user = self.user_outcome.lock().has_succeeded;
        let gave_proxy = self.front_proxy_outcome.lock().has_succeeded;
        let gives_user = |verifier: &Arc<CertificateVerifier>| self.user(verifier, wall).is_ok();
        let gives_proxy =
            |verifier: &Arc<FrontProxyVerifier>| self.verify_front_proxy(verifier, wall).is_ok();
        (gave_user && !trust.certificates.as_ref().is_some_and(gives_user))
            || (gave_proxy && !trust.front_proxies.as_ref().is_some_and(gives_proxy))
    }
}

impl fmt::Debug for PeerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerCertificate({} in the chain)", self.chain.len())
    }
}

fn parse_subject(certificate: &Certificate) -> Result<CertificateSubject<'_>, CertificateError> {
    CertificateSubject::parse(certificate.subject())
        .map_err(|SubjectError(part)| CertificateError::UnreadableSubject(part))
}

fn user_from_certificate(certificate: &Certificate) -> Result<UserInfo, CertificateError> {
    let subject = parse_subject(certificate)?;
    if subject.common_name.is_empty() {
        return Err(CertificateError::NoCommonName);
    }
    let fingerprint = Sha256::digest(certificate.der());
    let hex: String = fingerprint
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let user = UserInfo {
        uid: uid_from_subject(&subject)?,
        name: subject.common_name.into_owned(),
        groups: subject
            .organizations
            .into_iter()
            .map(Cow::into_owned)
            .collect(),
        extra: vec![(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={hex}")])],
    };
    Ok(user.with_authenticated_group())
}

fn uid_from_subject(subject: &CertificateSubject<'_>) -> Result<String, CertificateError> {
    match &*subject.uids {
        [] => Ok(String::new()),
        [Some(text)] if !text.is_empty() => Ok(text.clone().into_owned()),
        [_] => Err(CertificateError::InvalidUid(
            "it is empty or no string".to_owned(),
        )),
        [_, _, ..] => Err(CertificateError::InvalidUid(
            "expected one, found several".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests;
