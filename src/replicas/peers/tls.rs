//! TLS between replicas. Both sides show a certificate that the peer CA has signed, with one of the
//! allowed names.
//!
//! The name is not that of an address: replicas come and go, and have one certificate or each its
//! own. Sessions are not resumed, since a resumed one would outlive a change of the CA or the names.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::Resumption;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, DistinguishedName, Error, ServerConfig};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::replicas::config::PeerTls;
use weir_x509::verify_handshake_signatures;
use weir_x509::{Certificate, CertificatePool, PathVerifier, Purpose};

/// What both sides of a connection use.
#[derive(Clone, Debug)]
pub(crate) struct PeerTlsConfigs {
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: Arc<ClientConfig>,
}

impl PeerTlsConfigs {
    /// The configurations of both sides.
    ///
    /// # Errors
    /// The provider has no cipher suite for TLS 1.3.
    pub(crate) fn new(tls: &PeerTls, provider: &Arc<CryptoProvider>) -> Result<Self, Error> {
        let verifier = Arc::new(PeerVerifier {
            hints: tls.roots.subjects(),
            roots: tls.roots.clone(),
            allowed_names: tls.allowed_names.clone(),
            algorithms: provider.signature_verification_algorithms,
        });
        let certificate = || Arc::new(SingleCertAndKey::from(Arc::clone(&tls.certificate)));
        // All replicas are weirs: none needs an older version.
        let versions = [&TLS13];
        let client_verifier: Arc<dyn ClientCertVerifier> = Arc::<PeerVerifier>::clone(&verifier);
        let mut server = ServerConfig::builder_with_provider(Arc::clone(provider))
            .with_protocol_versions(&versions)?
            .with_client_cert_verifier(client_verifier)
            .with_cert_resolver(certificate());
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(Arc::clone(provider))
            .with_protocol_versions(&versions)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(certificate());
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
        })
    }

    /// Connects to a replica, both sides authenticated.
    ///
    /// # Errors
    /// It cannot be reached, or its certificate or this one's is refused.
    ///
    /// # Cancel safety
    /// The connection ends with the future.
    pub(super) async fn connect(
        &self,
        address: SocketAddr,
    ) -> Result<TlsStream<TcpStream>, String> {
        let stream = TcpStream::connect(address).await;
        let stream = stream.map_err(|why| why.to_string())?;
        let _ = stream.set_nodelay(true); // an optimization
        let connector = TlsConnector::from(Arc::clone(&self.client));
        let name = ServerName::IpAddress(address.ip().into());
        let stream = connector.connect(name, stream).await;
        stream.map_err(|why| format!("TLS: {why}"))
    }
}

/// Accepts the other replicas.
#[derive(Debug)]
struct PeerVerifier {
    hints: Vec<DistinguishedName>,
    roots: CertificatePool,
    allowed_names: Vec<String>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PeerVerifier {
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        purpose: Purpose,
    ) -> Result<(), Error> {
        let refused = |why: String| Error::General(format!("the peer's certificate: {why}"));
        let verifier = PathVerifier {
            roots: &self.roots,
            algorithms: self.algorithms.all,
            purpose,
            now: SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs()),
        };
        let verified = verifier.verify(end_entity, intermediates);
        let names = names(&verified.map_err(|why| refused(why.to_string()))?.leaf);
        if names.iter().any(|name| self.allowed_names.contains(name)) {
            return Ok(());
        }
        Err(refused(format!(
            "none of its names ({}) is in --peer-allowed-names ({})",
            names.join(", "),
            self.allowed_names.join(", ")
        )))
    }
}

/// The common name and the DNS names of a certificate.
fn names(certificate: &Certificate) -> Vec<String> {
    let mut names = certificate.common_names();
    names.extend_from_slice(certificate.dns_names());
    names
}

impl ClientCertVerifier for PeerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(end_entity, intermediates, now, Purpose::ClientAuth)?;
        Ok(ClientCertVerified::assertion())
    }

    verify_handshake_signatures!();
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _address: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(end_entity, intermediates, now, Purpose::ServerAuth)?;
        Ok(ServerCertVerified::assertion())
    }

    verify_handshake_signatures!();
}
