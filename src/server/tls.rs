//! TLS for clients: 1.2 and 1.3, with ALPN for h2 and http/1.1.
//!
//! Versions, cipher suites and key exchanges are chosen by kube-apiserver's flags.
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
use rustls::sign::CertifiedKey;
use rustls::{
    CipherSuite, DistinguishedName, Error, NamedGroup, ServerConfig, SupportedCipherSuite,
};
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::server::sni::{NamedCertificate, SniResolver};
use weir_x509::CertificatePool;
use weir_x509::verify_handshake_signatures;

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
    /// Certificates for clients that ask for a name (`--tls-sni-cert-key`).
    pub named_certificates: Vec<NamedCertificate>,
    /// Whether only TLS 1.3 is accepted (`--tls-min-version=VersionTLS13`).
    pub tls13_only: bool,
    /// The cipher suites of TLS 1.2 (`--tls-cipher-suites`); all, if empty. Those of TLS 1.3 cannot be chosen, as in Go.
    pub cipher_suites: Vec<CipherSuite>,
    /// The key exchanges (`--tls-curve-preferences`); all, if empty. Their order does not count, as in Go.
    pub curves: Vec<NamedGroup>,
}

/// The cipher suites that there are, by their names in Go.
#[must_use]
pub fn cipher_suites(provider: &CryptoProvider) -> Vec<(String, CipherSuite)> {
    let suites = provider.cipher_suites.iter().map(|suite| suite.suite());
    let name = |suite: CipherSuite| suite.as_str().unwrap_or_default().replace("TLS13_", "TLS_");
    suites.map(|suite| (name(suite), suite)).collect()
}

impl ListenerTlsConfig {
    /// The part of the provider that is used. The post-quantum key exchange comes first: a recording of the
    /// connection stays unreadable.
    fn crypto(&self, provider: &CryptoProvider) -> CryptoProvider {
        let mut provider = provider.clone();
        let is_tls13 =
            |suite: &SupportedCipherSuite| matches!(suite, SupportedCipherSuite::Tls13(_));
        if !self.cipher_suites.is_empty() {
            let chosen = |suite: &SupportedCipherSuite| self.cipher_suites.contains(&suite.suite());
            provider
                .cipher_suites
                .retain(|suite| is_tls13(suite) || chosen(suite));
        }
        if !self.curves.is_empty() {
            provider
                .kx_groups
                .retain(|group| self.curves.contains(&group.name()));
        }
        provider
            .kx_groups
            .sort_by_key(|group| group.name() != NamedGroup::X25519MLKEM768);
        provider
    }
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
    let provider = Arc::new(config.crypto(&provider));
    let ListenerTlsConfig {
        certificate,
        client_ca,
        named_certificates,
        tls13_only,
        ..
    } = config;
    let has_tls12 = provider
        .cipher_suites
        .iter()
        .any(|suite| matches!(suite, SupportedCipherSuite::Tls12(_)));
    let versions: &[_] = if tls13_only || !has_tls12 {
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
    let mut tls =
        builder.with_cert_resolver(Arc::new(SniResolver::new(certificate, &named_certificates)));
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
