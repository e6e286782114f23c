//! TLS towards the API server: roots, certificate and key from PEM, and the client configuration.
//!
//! Promises: no error and no `Debug` output contains the content of a key or certificate file. The
//! crypto provider is named explicitly, so that no process-wide default is needed. Deliberately not
//! here: ALPN and connections (`connection::connector`), and which certificate is presented when
//! (`credentials`).

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{CertificateError, ClientConfig, OtherError};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem};
use x509_parser::prelude::{FromDer, X509Certificate};

use weir_kubernetes::document::SourceLocation;
use weir_x509::verify_handshake_signatures;
use weir_x509::{CertificatePool, PathVerifier, Purpose, Reason, VerifyError};

/// PEM, inline or in a file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Pem {
    /// Inline.
    Data {
        /// Where it was given.
        location: SourceLocation,
        /// The path of the field.
        field: String,
        /// The PEM text.
        bytes: Vec<u8>,
    },
    /// In a file, whose content may change.
    File(PathBuf),
}

impl Pem {
    /// The name that errors use for it.
    #[must_use]
    pub(crate) fn origin(&self) -> Cow<'_, str> {
        match self {
            Self::Data {
                location, field, ..
            } => Cow::Owned(format!("{location}: {field}")),
            Self::File(path) => path.to_string_lossy(),
        }
    }

    /// Returns the PEM; a file is read again each time.
    ///
    /// # Errors
    /// The file cannot be read.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn read(&self) -> Result<Cow<'_, [u8]>, PemError> {
        match self {
            Self::Data { bytes, .. } => Ok(Cow::Borrowed(bytes)),
            Self::File(path) => match tokio::fs::read(path).await {
                Ok(bytes) => Ok(Cow::Owned(bytes)),
                Err(why) => Err(PemError::new(&self.origin(), why.to_string())),
            },
        }
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pem({})", self.origin())
    }
}

/// The message of a key that belongs to another certificate, before the certificate's name.
pub(crate) const KEY_MISMATCH: &str = "the key does not belong to the certificate in";

/// PEM that cannot be used: which, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {message}")]
pub struct PemError {
    /// The file, or the field of a file.
    pub(crate) origin: String,
    /// What is wrong with it.
    pub(crate) message: String,
}

impl PemError {
    fn new(origin: &str, message: impl Into<String>) -> Self {
        Self {
            origin: origin.to_owned(),
            message: message.into(),
        }
    }
}

impl PemError {
    /// Whether both files are usable and do not belong together: one of them may be new already
    /// and the other not yet.
    #[must_use]
    pub(crate) fn is_key_mismatch(&self) -> bool {
        self.message.starts_with(KEY_MISMATCH)
    }
}

/// The name that errors use for the system's roots.
const SYSTEM_ROOTS: &str = "the system's root certificates";

/// The roots that this machine trusts (`SSL_CERT_FILE` and `SSL_CERT_DIR` included). Reads files
/// and blocks.
///
/// # Errors
/// There are none.
pub(crate) fn load_system_roots() -> Result<CertificatePool, PemError> {
    let found = rustls_native_certs::load_native_certs();
    // Like in Go, roots that cannot be parsed are skipped.
    let roots = CertificatePool::of_parsable(found.certs);
    if !roots.is_empty() {
        return Ok(roots);
    }
    let why = found.errors.first().map_or_else(
        || "there are none; give the API server's CA".to_owned(),
        |why| format!("{why}; give the API server's CA instead"),
    );
    Err(PemError::new(SYSTEM_ROOTS, why))
}

/// The roots in a PEM text, all of which must be usable. Errors call the text `origin`.
///
/// # Errors
/// The text has no certificate, or one that cannot be a root.
pub fn parse_roots(origin: &str, text: &[u8]) -> Result<CertificatePool, PemError> {
    CertificatePool::new(parse_certificates(origin, text)?).map_err(|(n, why)| {
        let message = format!("certificate {} cannot be a root: {why}", n + 1);
        PemError::new(origin, message)
    })
}

/// The roots in a PEM text as client-go reads the API server's CA: those that cannot be parsed are
/// left out.
///
/// # Errors
/// The text has no certificate, or none that can be a root.
pub(crate) fn parse_upstream_roots(origin: &str, text: &[u8]) -> Result<CertificatePool, PemError> {
    let roots = CertificatePool::of_parsable(parse_certificates(origin, text)?);
    if roots.is_empty() {
        // Its error says why.
        return parse_roots(origin, text);
    }
    Ok(roots)
}

/// PEM text, and what it is called in errors.
#[derive(Clone, Copy, Debug)]
pub struct PemInput<'a> {
    origin: &'a str,
    text: &'a [u8],
}

impl<'a> PemInput<'a> {
    /// The text of a file or field that is called `origin`.
    #[must_use]
    pub const fn new(origin: &'a str, text: &'a [u8]) -> Self {
        Self { origin, text }
    }
}

/// A certificate with its chain, and its key. Of several keys the first counts, as in Go's
/// `X509KeyPair`.
///
/// # Errors
/// Either cannot be read, or the key does not belong to the certificate.
pub fn parse_certified_key(
    certificate: PemInput<'_>,
    key: PemInput<'_>,
) -> Result<Arc<CertifiedKey>, PemError> {
    let (certificate_origin, key_origin) = (certificate.origin, key.origin);
    let chain = parse_certificates(certificate_origin, certificate.text)?;
    let key = parse_private_key(key)?;
    match CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()) {
        Ok(pair) => Ok(Arc::new(pair)),
        Err(rustls::Error::InconsistentKeys(_)) => Err(PemError::new(
            key_origin,
            format!("{KEY_MISMATCH} {certificate_origin}"),
        )),
        Err(rustls::Error::InvalidCertificate(why)) => Err(PemError::new(
            certificate_origin,
            format!("not a usable certificate: {why:?}"),
        )),
        Err(why) => Err(unusable_key(key_origin, &why)),
    }
}

/// Whether a private key can be used, whatever certificate it belongs to.
///
/// # Errors
/// There is none, or it is damaged or of a kind that is not supported.
pub(crate) fn check_private_key(key: PemInput<'_>) -> Result<(), PemError> {
    let origin = key.origin;
    let provider = aws_lc_rs::default_provider().key_provider;
    let loaded = provider.load_private_key(parse_private_key(key)?);
    loaded.map(drop).map_err(|why| unusable_key(origin, &why))
}

fn unusable_key(origin: &str, why: &rustls::Error) -> PemError {
    PemError::new(origin, format!("not a usable key: {why}"))
}

/// The first private key in a PEM text.
fn parse_private_key(key: PemInput<'_>) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_slice(key.text).map_err(|why| {
        let none = "no private key in it (PEM, not encrypted: PKCS#8, PKCS#1 or SEC1)";
        let nothing = matches!(why, pem::Error::NoItemsFound);
        PemError::new(
            key.origin,
            if nothing { none } else { pem_error_text(&why) },
        )
    })
}

/// When the certificate expires: the earliest expiry in its chain.
#[must_use]
pub(crate) fn expiry(key: &CertifiedKey) -> Option<SystemTime> {
    let ends = key.cert.iter().filter_map(|der| {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
        Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    });
    ends.min()
}

/// The begin and the end of the certificate that ends first in a chain, in seconds since 1970.
#[must_use]
pub(crate) fn lifetime(chain: &[CertificateDer<'_>]) -> Option<(i64, i64)> {
    let lifetimes = chain.iter().filter_map(|der| {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let validity = certificate.validity();
        Some((
            validity.not_before.timestamp(),
            validity.not_after.timestamp(),
        ))
    });
    lifetimes.min_by_key(|(_, not_after)| *not_after)
}

/// A client configuration that trusts `roots` and presents what `certificate` resolves to, if
/// given. TLS 1.3 and 1.2.
#[must_use]
pub(crate) fn client_config(
    roots: CertificatePool,
    certificate: Option<Arc<dyn ResolvesClientCert>>,
) -> ClientConfig {
    let verifier = Arc::new(ServerVerifier::new(roots));
    let builder = client_builder().dangerous();
    let builder = builder.with_custom_certificate_verifier(verifier);
    match certificate {
        None => builder.with_no_client_auth(),
        Some(resolver) => {
            let mut config = builder.with_client_cert_resolver(resolver);
            // A resumed session presents the certificate that it began with, even after a new one
            // was loaded.
            config.resumption = Resumption::disabled();
            config
        }
    }
}

#[expect(
    clippy::expect_used,
    reason = "fails only for a provider without cipher suites for both"
)]
fn client_builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .expect("the provider has cipher suites for TLS 1.2 and 1.3")
}

/// Accepts the certificates that Go's clients accept, as kubectl is one: a server's own certificate
/// may be in the file of CAs, and may be a CA.
#[derive(Debug)]
pub struct ServerVerifier {
    roots: CertificatePool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerVerifier {
    /// Trusts certificates of `roots`, and those that they signed.
    #[must_use]
    pub fn new(roots: CertificatePool) -> Self {
        Self {
            roots,
            algorithms: aws_lc_rs::default_provider().signature_verification_algorithms,
        }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verifier = PathVerifier {
            roots: &self.roots,
            algorithms: self.algorithms.all,
            purpose: Purpose::ServerAuth,
            now: SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs()),
        };
        let verified = verifier.verify(leaf, intermediates).map_err(server_error)?;
        let is_for_server = match server {
            ServerName::DnsName(name) => verified.leaf.is_for_name(name.as_ref()),
            ServerName::IpAddress(address) => verified.leaf.is_for_address((*address).into()),
            _ => false,
        };
        if is_for_server {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::NotValidForName.into())
        }
    }

    verify_handshake_signatures!();
}

/// The TLS library's error, for which it has an alert and other modules have advice.
fn server_error(error: VerifyError) -> CertificateError {
    match error.reason {
        Reason::Expired => CertificateError::Expired,
        Reason::Malformed(_) => CertificateError::BadEncoding,
        Reason::NotValidYet => CertificateError::NotValidYet,
        Reason::Signature | Reason::UnknownAuthority => CertificateError::UnknownIssuer,
        Reason::WrongPurpose => CertificateError::InvalidPurpose,
        Reason::NameConstraint(_)
        | Reason::NotAuthorizedToSign
        | Reason::PolicyRequired
        | Reason::TooManySignatures
        | Reason::TooManyIntermediates
        | Reason::UnknownCriticalExtension => CertificateError::Other(OtherError(Arc::new(error))),
    }
}

/// The certificates in a PEM text.
///
/// # Errors
/// The text has no certificate, or one that is not PEM.
pub(crate) fn parse_certificates(
    origin: &str,
    text: &[u8],
) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Ok(found) if found.is_empty() => Err(PemError::new(origin, "no certificate in it (PEM)")),
        Ok(found) => Ok(found),
        Err(why) => Err(PemError::new(origin, pem_error_text(&why))),
    }
}

/// The library's error text quotes the input, which may be a key.
fn pem_error_text(why: &pem::Error) -> &'static str {
    if matches!(why, pem::Error::MissingSectionEnd { .. }) {
        "not PEM: a section does not end"
    } else if matches!(why, pem::Error::IllegalSectionStart { .. }) {
        "not PEM: the first line of a section is broken"
    } else {
        "not PEM: a section is not base64"
    }
}

#[cfg(test)]
#[path = "tls_tests.rs"]
pub(crate) mod tests;
