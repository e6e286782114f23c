//! The serving certificate for the name that a client asks for (SNI).

use std::collections::HashMap;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// A certificate for clients that ask for one of its names (`--tls-sni-cert-key`).
#[derive(Clone, Debug)]
pub struct NamedCertificate {
    /// Names, or patterns as `*.example.com`, whose first label stands for any one label.
    pub names: Vec<String>,
    /// Whether the names were given, and not read from the certificate.
    pub are_given: bool,
    /// The certificate with its key.
    pub certificate: Arc<CertifiedKey>,
}

/// Chooses by the name: one that was given before one of a certificate, the first flag before later
/// ones, and a name before a pattern, as kube-apiserver does (`getNamedCertificateMap`).
#[derive(Debug)]
pub(super) struct SniResolver {
    by_name: HashMap<String, Arc<CertifiedKey>>,
    default: Arc<CertifiedKey>,
}

impl SniResolver {
    /// `default` is for clients that ask for no name, or for another one.
    pub(super) fn new(default: Arc<CertifiedKey>, named: &[NamedCertificate]) -> Self {
        let mut by_name = HashMap::new();
        let given = named.iter().filter(|one| one.are_given);
        let read = named.iter().filter(|one| !one.are_given);
        for one in given.chain(read) {
            for name in &one.names {
                let name = name.to_ascii_lowercase();
                by_name
                    .entry(name)
                    .or_insert_with(|| Arc::clone(&one.certificate));
            }
        }
        Self { by_name, default }
    }

    fn find(&self, name: &str) -> &Arc<CertifiedKey> {
        let name = name.to_ascii_lowercase();
        let exact = self.by_name.get(&name);
        let pattern = || {
            let (_, rest) = name.split_once('.')?;
            self.by_name.get(&format!("*.{rest}"))
        };
        exact.or_else(pattern).unwrap_or(&self.default)
    }
}

impl ResolvesServerCert for SniResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(
            self.find(hello.server_name().unwrap_or_default()),
        ))
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::PrivateKeyDer;
    use rustls_pki_types::CertificateDer;

    use super::*;

    /// A certificate that its only byte tells apart.
    fn certificate(number: u8) -> Arc<CertifiedKey> {
        let key = rcgen::KeyPair::generate().unwrap();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
        Arc::new(CertifiedKey::new(
            vec![CertificateDer::from(vec![number])],
            key,
        ))
    }

    #[test]
    fn the_name_chooses_the_certificate() {
        let named = |number, are_given, names: &[&str]| NamedCertificate {
            names: names.iter().map(|&name| name.to_owned()).collect(),
            are_given,
            certificate: certificate(number),
        };
        let resolver = SniResolver::new(
            certificate(0),
            &[
                named(1, false, &["a.example.com", "*.example.com"]),
                named(2, true, &["A.example.com", "*.example.org"]),
                named(3, true, &["a.example.com", "b.example.org"]),
            ],
        );
        for (name, expected) in [
            ("a.example.com", 2),
            ("A.EXAMPLE.com", 2),
            ("c.example.com", 1),
            ("x.y.example.com", 0),
            ("b.example.org", 3),
            ("c.example.org", 2),
            ("example.com", 0),
            ("other", 0),
            ("", 0),
        ] {
            assert_eq!(*resolver.find(name).cert[0], [expected], "{name}");
        }
    }
}
