//! TLS towards clients: 1.2 and 1.3, h2 and http/1.1.
//!
//! A client certificate is asked for where there is a client CA, and in the handshake it only has to prove possession:
//! whether it is trusted is `identity`'s to say, afterwards, as in kube-apiserver (`tls.RequestClientCert`), so that a
//! certificate that does not hold leaves a good token in force.

use std::sync::Arc;

use rustls::DigitallySignedStruct;
use rustls::DistinguishedName;
use rustls::Error;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::SignatureScheme;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::crypto::verify_tls12_signature;
use rustls::crypto::verify_tls13_signature;
use rustls::server::ServerSessionMemoryCache;
use rustls::server::danger::ClientCertVerified;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls::sign::SingleCertAndKey;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::UnixTime;

/// Sessions kept for TLS 1.2 clients that resume by an id; TLS 1.3 and tickets need none.
const MAX_CACHED_SESSIONS: usize = 4096;

/// What the listener presents.
#[derive(Debug)]
pub struct ListenerTlsConfig {
    /// `--tls-cert-file` and `--tls-private-key-file`.
    pub certificate: Arc<CertifiedKey>,
    /// `--client-ca-file`: clients are asked for a certificate, and told these names.
    pub client_ca: Option<RootCertStore>,
    /// `--tls-min-version=VersionTLS13`.
    pub tls13_only: bool,
}

/// The configuration for rustls.
///
/// # Errors
/// If the provider lacks a cipher suite for one of the versions.
pub fn server_config(
    config: ListenerTlsConfig,
    provider: Arc<CryptoProvider>,
) -> Result<ServerConfig, Error> {
    let ListenerTlsConfig {
        certificate,
        client_ca,
        tls13_only,
    } = config;
    let versions: &[_] = if tls13_only {
        &[&rustls::version::TLS13]
    } else {
        &[&rustls::version::TLS13, &rustls::version::TLS12]
    };
    let algorithms = provider.signature_verification_algorithms;
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(versions)?;
    let builder = match client_ca {
        Some(roots) => builder.with_client_cert_verifier(Arc::new(PossessionVerifier {
            hints: roots.subjects(),
            algorithms,
        })),
        None => builder.with_no_client_auth(),
    };
    let mut tls = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certificate)));
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    tls.session_storage = ServerSessionMemoryCache::new(MAX_CACHED_SESSIONS);
    tls.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()?;
    Ok(tls)
}

/// Takes any certificate whose key the client holds.
#[derive(Debug)]
struct PossessionVerifier {
    hints: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for PossessionVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _own: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
