//! A user from a TLS client certificate.
//!
//! The handshake proves possession only; whether the certificate is trusted is decided here, afterwards, so that a bad
//! certificate with a good token still works. Name, groups and uid are read as `x509.CommonNameUserConversion`
//! (Kubernetes 1.36) reads them. A connection's chain is verified once and again only when a certificate in it expires; one that is
//! not valid yet, or not any more, every ten seconds at most.

pub(in crate::identity) mod subject;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::SystemTime;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::server::VerifierBuilderError;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::UnixTime;
use sha2::Digest;
use sha2::Sha256;
use webpki::EndEntityCert;
use webpki::ExtendedKeyUsageValidator;
use webpki::KeyPurposeId;
use webpki::KeyPurposeIdIter;
use webpki::KeyUsage;
use webpki::RequiredEkuNotFoundContext;
use x509_parser::prelude::FromDer;
use x509_parser::prelude::X509Certificate;

use crate::api::UserInfo;
use crate::identity::client_certificate::subject::CertificateSubject;
use crate::identity::client_certificate::subject::SubjectError;

/// The extra key under which upstream notes which certificate it was.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// `id-kp-clientAuth` and `anyExtendedKeyUsage` as DER has them (RFC 5280, 4.2.1.12).
const CLIENT_AUTH: KeyPurposeId<'static> = KeyPurposeId::new(&[0x2b, 6, 1, 5, 5, 7, 3, 2]);
const ANY_PURPOSE: KeyPurposeId<'static> = KeyPurposeId::new(&[0x55, 0x1d, 0x25, 0]);

/// How long a certificate that is not of its time is not looked at again: verifying takes a tenth of a millisecond, and clients
/// ask by the thousand.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Why a certificate names nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateError {
    /// It could not be read.
    Malformed(String),
    /// Its subject has no common name.
    NoCommonName,
    /// It is a front proxy's of a name that is not in `--requestheader-allowed-names`.
    NotAllowed(String),
    /// It is a front proxy's, and what that says of a user is no UTF-8.
    InvalidProxyHeaders,
    /// The client CA does not vouch for it, or not now, or not for this use.
    Untrusted(String),
    /// Its subject has no uid that can be told.
    InvalidUid(String),
    /// This part of its subject cannot be read as kube-apiserver reads it.
    UnreadableSubject(&'static str),
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => write!(f, "the client certificate cannot be read: {why}"),
            Self::NoCommonName => write!(f, "the client certificate's subject has no common name"),
            Self::NotAllowed(name) => write!(
                f,
                "x509: subject with cn={name} is not in the allowed list (--requestheader-allowed-names)"
            ),
            Self::InvalidProxyHeaders => write!(
                f,
                "the front proxy's headers that name a user are not UTF-8"
            ),
            Self::Untrusted(why) => write!(f, "the client certificate is not trusted: {why}"),
            Self::InvalidUid(why) => write!(f, "the client certificate's uid: {why}"),
            Self::UnreadableSubject(part) => write!(
                f,
                "the client certificate's subject: its {part} is of a string type or an encoding that cannot be read"
            ),
        }
    }
}

/// An authority that vouches for certificates of clients: the client CA (`--client-ca-file`), or that of front proxies
/// (`--requestheader-client-ca-file`).
pub struct CertificateVerifier {
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for CertificateVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientCertificates({} roots)", self.roots.len())
    }
}

impl CertificateVerifier {
    /// Trusts what `roots` vouch for.
    ///
    /// # Errors
    /// If `roots` is empty.
    pub fn new(
        roots: RootCertStore,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, VerifierBuilderError> {
        if roots.is_empty() {
            return Err(VerifierBuilderError::NoRootAnchors);
        }
        Ok(Self { roots, provider })
    }

    fn verify(
        &self,
        chain: &[CertificateDer<'static>],
        wall: SystemTime,
    ) -> Result<VerifiedCertificate, CachedCertificateError> {
        let (own, parsed, expires) = self.verify_chain(chain, wall)?;
        Ok(VerifiedCertificate {
            user: Arc::new(user_from_certificate(&parsed, own)?),
            chain_not_after: expires,
            not_after: not_after(&parsed),
        })
    }

    /// The certificate of the client itself and the end of its chain, if this authority vouches for it.
    fn verify_chain<'c>(
        &self,
        chain: &'c [CertificateDer<'static>],
        wall: SystemTime,
    ) -> Result<
        (&'c CertificateDer<'static>, X509Certificate<'c>, SystemTime),
        CachedCertificateError,
    > {
        let (own, intermediates) = chain
            .split_first()
            .ok_or_else(|| CertificateError::Malformed("there is none".to_owned()))?;
        let since_epoch = wall
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        EndEntityCert::try_from(own)
            .and_then(|certificate| {
                let path = certificate.verify_for_usage(
                    self.provider.signature_verification_algorithms.all,
                    &self.roots.roots,
                    intermediates,
                    UnixTime::since_unix_epoch(since_epoch),
                    ClientAuthUsage,
                    None,
                    None,
                );
                path.map(|_| ())
            })
            .map_err(|why| CachedCertificateError {
                found_at: is_validity_period_error(&why).then_some(wall),
                error: CertificateError::Untrusted(why.to_string()),
            })?;
        let parsed = parse_certificate(own)?;
        let mut expires = not_after(&parsed);
        for certificate in intermediates {
            let end = not_after(&parse_certificate(certificate)?);
            // It holds without one that is over already.
            if end >= wall {
                expires = expires.min(end);
            }
        }
        Ok((own, parsed, expires))
    }
}

/// What the client of one connection presented.
pub struct PeerCertificate {
    chain: Vec<CertificateDer<'static>>,
    /// The last verdict. Guarded so that a connection's requests share it; nothing is awaited under the lock.
    user_outcome: Mutex<Option<Result<VerifiedCertificate, CachedCertificateError>>>,
    /// Likewise, on whether it is a front proxy's: until when it is.
    front_proxy_outcome: Mutex<Option<Result<SystemTime, CachedCertificateError>>>,
}

/// A fault, and when it was found if time may mend it.
#[derive(Clone, Debug)]
struct CachedCertificateError {
    error: CertificateError,
    found_at: Option<SystemTime>,
}

impl From<CertificateError> for CachedCertificateError {
    fn from(fault: CertificateError) -> Self {
        Self {
            error: fault,
            found_at: None,
        }
    }
}

impl CachedCertificateError {
    /// Whether it is still believed at `wall`. A calendar that is set back is a reason to look again.
    fn is_current(&self, wall: SystemTime) -> bool {
        self.found_at.is_none_or(|found| {
            wall.duration_since(found)
                .is_ok_and(|since| since < RECHECK_INTERVAL)
        })
    }
}

#[derive(Clone)]
struct VerifiedCertificate {
    user: Arc<UserInfo>,
    /// With the first of the chain.
    chain_not_after: SystemTime,
    /// By itself.
    not_after: SystemTime,
}

impl PeerCertificate {
    /// The chain as the handshake left it: the client's own certificate first. `None` if it presented none.
    #[must_use]
    pub fn new(chain: Option<&[CertificateDer<'_>]>) -> Option<Self> {
        let chain: Vec<_> = chain?.iter().map(|c| c.clone().into_owned()).collect();
        (!chain.is_empty()).then_some(Self {
            chain,
            user_outcome: Mutex::new(None),
            front_proxy_outcome: Mutex::new(None),
        })
    }

    /// Whether it is that of a front proxy whom `authority` vouches for and whose common name is `allowed`.
    pub(super) fn verify_front_proxy(
        &self,
        authority: &CertificateVerifier,
        wall: SystemTime,
        allowed: impl Fn(&str) -> bool,
    ) -> Result<(), CertificateError> {
        let mut verdict = self
            .front_proxy_outcome
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match &*verdict {
            Some(Ok(expires)) if wall <= *expires => return Ok(()),
            Some(Err(fault)) if fault.is_current(wall) => return Err(fault.error.clone()),
            Some(_) | None => {}
        }
        let fresh = authority
            .verify_chain(&self.chain, wall)
            .and_then(|(_, parsed, expires)| {
                let name = parse_subject(&parsed)?.common_name;
                if allowed(&name) {
                    Ok(expires)
                } else {
                    Err(CertificateError::NotAllowed(name.into_owned()).into())
                }
            });
        *verdict = Some(fresh.clone());
        fresh.map(|_| ()).map_err(|fault| fault.error)
    }

    /// When the client's own certificate ends, if it named a user.
    #[must_use]
    pub fn not_after(&self) -> Option<SystemTime> {
        let verdict = self
            .user_outcome
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let verified = verdict.as_ref()?.as_ref().ok()?;
        Some(verified.not_after)
    }

    pub(super) fn user(
        &self,
        authority: &CertificateVerifier,
        wall: SystemTime,
    ) -> Result<Arc<UserInfo>, CertificateError> {
        let mut verdict = self
            .user_outcome
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match &*verdict {
            Some(Ok(verified)) if wall <= verified.chain_not_after => {
                return Ok(Arc::clone(&verified.user));
            }
            Some(Err(fault)) if fault.is_current(wall) => return Err(fault.error.clone()),
            Some(_) | None => {}
        }
        let fresh = authority.verify(&self.chain, wall);
        *verdict = Some(fresh.clone());
        fresh
            .map(|verified| verified.user)
            .map_err(|fault| fault.error)
    }
}

impl fmt::Debug for PeerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerCertificate({} in the chain)", self.chain.len())
    }
}

/// Whether a certificate was met before its time or after it.
const fn is_validity_period_error(why: &webpki::Error) -> bool {
    matches!(
        why,
        webpki::Error::CertExpired { .. } | webpki::Error::CertNotValidYet { .. }
    )
}

/// What a certificate may be for: clients, anything, or it does not say (`ExtKeyUsageClientAuth` of Go's `crypto/x509`).
struct ClientAuthUsage;

impl ExtendedKeyUsageValidator for ClientAuthUsage {
    fn validate(&self, purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        let mut present = Vec::new();
        for purpose in purposes {
            let purpose = purpose?;
            if purpose == CLIENT_AUTH || purpose == ANY_PURPOSE {
                return Ok(());
            }
            present.push(purpose.to_decoded_oid());
        }
        if present.is_empty() {
            return Ok(());
        }
        let required = KeyUsage::client_auth();
        let context = RequiredEkuNotFoundContext { required, present };
        Err(webpki::Error::RequiredEkuNotFoundContext(context))
    }
}

fn parse_certificate<'a>(
    der: &'a CertificateDer<'_>,
) -> Result<X509Certificate<'a>, CertificateError> {
    X509Certificate::from_der(der)
        .map(|(_, certificate)| certificate)
        .map_err(|why| CertificateError::Malformed(why.to_string()))
}

fn not_after(certificate: &X509Certificate<'_>) -> SystemTime {
    let seconds = certificate.validity().not_after.timestamp();
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn parse_subject<'c>(
    certificate: &'c X509Certificate<'_>,
) -> Result<CertificateSubject<'c>, CertificateError> {
    CertificateSubject::parse(certificate.subject().as_raw())
        .map_err(|SubjectError(part)| CertificateError::UnreadableSubject(part))
}

fn user_from_certificate(
    certificate: &X509Certificate<'_>,
    der: &CertificateDer<'_>,
) -> Result<UserInfo, CertificateError> {
    let subject = parse_subject(certificate)?;
    if subject.common_name.is_empty() {
        return Err(CertificateError::NoCommonName);
    }
    let fingerprint = Sha256::digest(der.as_ref());
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
#[path = "tests.rs"]
mod tests;
