use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::frames::{read_frame, write_frame};
use super::tls::PeerTlsConfigs;
use crate::replicas::config::PeerTls;
use weir_x509::CertificatePool;

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    roots: CertificatePool,
}

impl Authority {
    fn new() -> Self {
        Self::with_usages(&[])
    }

    fn with_usages(usages: &[KeyUsagePurpose]) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = usages.to_vec();
        let certificate = ca.self_signed(&key).unwrap();
        let roots = CertificatePool::new([certificate.der()]).unwrap();
        Self {
            issuer: Issuer::new(ca, key),
            roots,
        }
    }

    /// A certificate with this common name and this DNS name, and what its holder accepts.
    fn issue(&self, common: &str, dns: &str, usages: &[ExtendedKeyUsagePurpose]) -> PeerTls {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![dns.to_owned()]).unwrap();
        let mut subject = rcgen::DistinguishedName::new();
        subject.push(DnType::CommonName, common);
        params.distinguished_name = subject;
        params.extended_key_usages = usages.to_vec();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let chain = vec![certificate.der().clone()];
        PeerTls {
            certificate: Arc::new(CertifiedKey::from_der(chain, private, &provider()).unwrap()),
            roots: self.roots.clone(),
            allowed_names: vec!["weir-peer".to_owned()],
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

const BOTH: [ExtendedKeyUsagePurpose; 2] = [
    ExtendedKeyUsagePurpose::ServerAuth,
    ExtendedKeyUsagePurpose::ClientAuth,
];

/// Connects `client` to `server`, and sends a frame there and back. The errors of both.
async fn exchange(client: &PeerTls, server: &PeerTls) -> (Result<(), String>, Result<(), String>) {
    let [client, server] =
        [client, server].map(|tls| PeerTlsConfigs::new(tls, &provider()).unwrap());
    let (here, there) = tokio::io::duplex(1 << 16);
    let connect = async {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = TlsConnector::from(client.client).connect(name, here).await;
        let mut stream = stream.map_err(|why| why.to_string())?;
        let text = |why: std::io::Error| why.to_string();
        write_frame(&mut stream, b"ping", 9).await.map_err(text)?;
        let reply = read_frame(&mut stream, 9).await.map_err(text)?;
        assert_eq!(reply, b"pong");
        Ok(())
    };
    let accept = async {
        let stream = TlsAcceptor::from(server.server).accept(there).await;
        let mut stream = stream.map_err(|why| why.to_string())?;
        let text = |why: std::io::Error| why.to_string();
        assert_eq!(read_frame(&mut stream, 9).await.map_err(text)?, b"ping");
        write_frame(&mut stream, b"pong", 9).await.map_err(text)
    };
    tokio::join!(connect, accept)
}

#[tokio::test]
async fn replicas_with_an_allowed_name_of_either_kind_reach_each_other() {
    let authority = Authority::new();
    let by_dns = authority.issue("someone", "weir-peer", &BOTH);
    let by_common_name = authority.issue("weir-peer", "someone", &[]);
    assert_eq!(exchange(&by_dns, &by_common_name).await, (Ok(()), Ok(())));
    assert_eq!(exchange(&by_common_name, &by_dns).await, (Ok(()), Ok(())));
}

#[tokio::test]
async fn a_certificate_of_the_same_ca_with_another_name_is_refused_on_both_sides() {
    let authority = Authority::new();
    let replica = authority.issue("weir-peer", "weir-peer", &BOTH);
    for name in ["kubelet", "weir-peer.example", "weir"] {
        let other = authority.issue("system:node:a", name, &BOTH);
        let (_, accepted) = exchange(&other, &replica).await;
        let why = accepted.unwrap_err();
        assert!(why.contains("--peer-allowed-names (weir-peer)"), "{why}");
        let (connected, _) = exchange(&replica, &other).await;
        let why = connected.unwrap_err();
        assert!(
            why.contains(&format!("none of its names (system:node:a, {name})")),
            "{why}"
        );
    }
}

#[tokio::test]
async fn a_certificate_of_another_ca_or_for_the_other_side_only_is_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let replica = authority.issue("weir-peer", "weir-peer", &BOTH);
    let stranger = other.issue("weir-peer", "weir-peer", &BOTH);
    let (_, accepted) = exchange(&stranger, &replica).await;
    assert!(accepted.is_err());
    let [server, client] = BOTH.map(|usage| authority.issue("weir-peer", "weir-peer", &[usage]));
    let (_, accepted) = exchange(&server, &replica).await;
    assert!(accepted.is_err(), "a server's certificate");
    let (connected, _) = exchange(&replica, &client).await;
    assert!(connected.is_err(), "a client's certificate");
}

#[tokio::test]
async fn a_peer_ca_that_may_not_sign_certificates_connects_no_replicas() {
    let authority = Authority::with_usages(&[KeyUsagePurpose::KeyCertSign]);
    let replica = authority.issue("weir-peer", "weir-peer", &BOTH);
    assert_eq!(exchange(&replica, &replica).await, (Ok(()), Ok(())));
    let authority = Authority::with_usages(&[KeyUsagePurpose::CrlSign]);
    let replica = authority.issue("weir-peer", "weir-peer", &BOTH);
    let (connected, accepted) = exchange(&replica, &replica).await;
    assert!(connected.is_err() && accepted.is_err());
}
