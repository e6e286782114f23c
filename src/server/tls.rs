//! TLS for clients: 1.2 and 1.3, with ALPN for h2 and http/1.1.
//!
//! The server always requests a client certificate, and never requires one. The handshake only
//! verifies that the client has the private key. `identity` verifies the certificate afterwards, as
//! in kube-apiserver (`tls.RequestClientCert`), so that a client with an invalid certificate and a
//! valid token is authenticated by its token. Without a client CA, too: a client whose certificate nothing could
//! verify gets a 401 that says so, and not the rights of `system:anonymous`.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::server::ServerSessionMemoryCache;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{DistinguishedName, Error, ServerConfig};
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::tls::verify_handshake_signatures;
use crate::x509::CertificatePool;

/// Cached sessions for TLS 1.2 clients that resume by session id. TLS 1.3 and session tickets need
/// no cache.
const MAX_CACHED_SESSIONS: usize = 4096;

/// The TLS configuration of the listener.
#[derive(Clone, Debug)]
pub struct ListenerTlsConfig {
    /// The serving certificate (`--tls-cert-file`, `--tls-private-key-file`).
    pub certificate: Arc<CertifiedKey>,
    /// The client CA (`--client-ca-file`). Clients receive its subject names with the request for a
    /// certificate; without a CA they receive none, and may send any.
    pub client_ca: Option<CertificatePool>,
    /// Whether only TLS 1.3 is accepted (`--tls-min-version=VersionTLS13`).
    pub tls13_only: bool,
}

/// The rustls configuration of the listener. With `resumable`, clients can resume the sessions of
/// that configuration; without it, they cannot resume any.
///
/// A session contains the client's certificate. After a change of the client CAs, it must not be
/// resumed.
///
/// # Errors
/// The provider has no cipher suite for one of the versions.
pub(crate) fn server_config(
    config: ListenerTlsConfig,
    provider: Arc<CryptoProvider>,
    resumable: Option<&ServerConfig>,
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
    let builder = builder.with_client_cert_verifier(Arc::new(PossessionVerifier {
        hints: client_ca.map_or_else(Vec::new, |roots| roots.subjects()),
        algorithms,
    }));
    let mut tls = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certificate)));
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    match resumable {
        Some(previous) => {
            tls.session_storage = Arc::clone(&previous.session_storage);
            tls.ticketer = Arc::clone(&previous.ticketer);
        }
        None => {
            tls.session_storage = ServerSessionMemoryCache::new(MAX_CACHED_SESSIONS);
            tls.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()?;
        }
    }
    Ok(tls)
}

/// Accepts any certificate if the client has its private key.
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

    verify_handshake_signatures!();
}
