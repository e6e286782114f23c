//! CAs and certificates, generated once for the whole run.

use std::sync::{Arc, OnceLock};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use weir_x509::CertificatePool;

/// All certificates of the tests.
pub(crate) struct Pki {
    /// Signs the server certificates of weir and of the upstream.
    pub(crate) server_ca: TestCa,
    /// `--client-ca-file`.
    pub(crate) client_ca: TestCa,
    /// The upstream's `--requestheader-client-ca-file`.
    pub(crate) front_proxy_ca: TestCa,
    /// A CA that is trusted nowhere.
    pub(crate) untrusted_ca: TestCa,
    /// The server certificate of weir and of the upstream.
    pub(crate) server: IssuedCertificate,
    /// `--proxy-client-cert-file`.
    pub(crate) front_proxy_client: IssuedCertificate,
    /// A user: alice of dev and ops.
    pub(crate) alice: IssuedCertificate,
    /// A user of system:masters.
    pub(crate) admin: IssuedCertificate,
}

/// The certificates of this run.
pub(crate) fn pki() -> &'static Pki {
    static PKI: OnceLock<Pki> = OnceLock::new();
    PKI.get_or_init(|| {
        let servers = TestCa::new("servers");
        let clients = TestCa::new("clients");
        let front_proxy = TestCa::new("front-proxy");
        Pki {
            server: servers.issue_server(),
            front_proxy_client: front_proxy.issue_client("front-proxy-client", &[]),
            alice: clients.issue_client("alice", &["dev", "ops"]),
            admin: clients.issue_client("admin", &["system:masters"]),
            untrusted_ca: TestCa::new("nobody"),
            server_ca: servers,
            client_ca: clients,
            front_proxy_ca: front_proxy,
        }
    })
}

/// The cryptography.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(aws_lc_rs::default_provider())))
}

/// A CA.
pub(crate) struct TestCa {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate.
    pub(crate) certificate: CertificateDer<'static>,
    /// Its certificate.
    pub(crate) pem: String,
}

/// A certificate and its key.
#[derive(Debug)]
pub(crate) struct IssuedCertificate {
    /// The certificate.
    pub(crate) certificate: CertificateDer<'static>,
    /// The certificate.
    pub(crate) pem: String,
    /// The key.
    pub(crate) key_pem: String,
    key: PrivateKeyDer<'static>,
}

impl IssuedCertificate {
    /// The key.
    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }

    /// Both, ready for use.
    pub(crate) fn certified_key(&self) -> Arc<CertifiedKey> {
        let chain = vec![self.certificate.clone()];
        Arc::new(CertifiedKey::from_der(chain, self.key(), &provider()).unwrap())
    }
}

impl TestCa {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self {
            certificate: certificate.der().clone(),
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    fn issue(&self, params: &CertificateParams) -> IssuedCertificate {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        IssuedCertificate {
            certificate: certificate.der().clone(),
            pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        }
    }

    /// A CA below this one, whose key has these usages.
    pub(crate) fn issue_ca(&self, name: &str, usages: &[KeyUsagePurpose]) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = client_params(name, &[]);
        params.extended_key_usages.clear();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = usages.to_vec();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Self {
            certificate: certificate.der().clone(),
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// As [`Self::issue_client`], a certificate that is a CA.
    pub(crate) fn issue_client_that_is_a_ca(&self, name: &str) -> IssuedCertificate {
        let mut params = client_params(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        self.issue(&params)
    }

    /// A server certificate for 127.0.0.1.
    pub(crate) fn issue_server(&self) -> IssuedCertificate {
        self.issue_server_named("127.0.0.1")
    }

    /// A front proxy's certificate with the common name `name`.
    pub(crate) fn issue_server_named(&self, name: &str) -> IssuedCertificate {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(&params)
    }

    /// The certificate of a replica, which is a server and a client.
    pub(crate) fn issue_peer(&self, name: &str) -> IssuedCertificate {
        self.issue(&CertificateParams::new(vec![name.to_owned()]).unwrap())
    }

    /// A client certificate for the user `name` of `groups`.
    pub(crate) fn issue_client(&self, name: &str, groups: &[&str]) -> IssuedCertificate {
        self.issue(&client_params(name, groups))
    }

    /// As [`Authority::client`], with a uid (Kubernetes' own attribute of a subject).
    pub(crate) fn issue_client_with_uid(&self, name: &str, uid: &str) -> IssuedCertificate {
        let mut params = client_params(name, &[]);
        let kind = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        params.distinguished_name.push(kind, uid);
        self.issue(&params)
    }

    /// As [`Authority::client`], with one more attribute at the end of its subject.
    pub(crate) fn issue_client_with_attribute(
        &self,
        name: &str,
        kind: &[u64],
        value: DnValue,
    ) -> IssuedCertificate {
        let mut params = client_params(name, &[]);
        let kind = DnType::CustomDnType(kind.to_vec());
        params.distinguished_name.push(kind, value);
        self.issue(&params)
    }

    /// As [`Authority::client`], but long expired.
    pub(crate) fn issue_expired_client(&self, name: &str) -> IssuedCertificate {
        let mut params = client_params(name, &[]);
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        self.issue(&params)
    }

    /// A pool that trusts this CA.
    pub(crate) fn roots(&self) -> CertificatePool {
        CertificatePool::of_parsable([&self.certificate])
    }

    /// A store that trusts this CA.
    pub(crate) fn root_store(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        roots
    }
}

fn client_params(name: &str, groups: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut subject = rcgen::DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    params.distinguished_name = subject;
    // The library keeps one value of each attribute. A second organization is added by its OID.
    let kinds = [
        DnType::OrganizationName,
        DnType::CustomDnType(vec![2, 5, 4, 10]),
    ];
    assert!(groups.len() <= kinds.len());
    for (kind, group) in kinds.into_iter().zip(groups) {
        params.distinguished_name.push(kind, *group);
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// TLS towards a server with a certificate of `pki().servers`.
pub(crate) fn client_tls_config(
    alpn: &[&[u8]],
    certificate: Option<&IssuedCertificate>,
) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(pki().server_ca.root_store());
    let mut config = match certificate {
        Some(issued) => builder
            .with_client_auth_cert(vec![issued.certificate.clone()], issued.key())
            .unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config
}

/// TLS as kube-apiserver serves it: a front proxy's certificate is optional.
pub(crate) fn upstream_tls_config(alpn: &[&[u8]], own: &IssuedCertificate) -> ServerConfig {
    let front_proxies = Arc::new(pki().front_proxy_ca.root_store());
    let verifier = WebPkiClientVerifier::builder_with_provider(front_proxies, provider())
        .allow_unauthenticated()
        .build()
        .unwrap();
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![own.certificate.clone()], own.key())
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config
}
