//! The listener for clients.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rustls::{CipherSuite, NamedGroup};

use crate::cli::config_resolver::certificates;
use crate::cli::config_resolver::certificates::CertificateUse;
use crate::cli::config_resolver::flag_resolver::{FlagFile, FlagResolver};
use crate::cli::flags::{IdentityArgs, ServingArgs, SniCertKey, TlsVersion};
use crate::server::settings::ServingConfig;
use crate::server::sni::NamedCertificate;
use crate::server::tls;
use weir_kubernetes::numeric::saturating_usize;
use weir_x509::CertificatePool;

/// kube-apiserver's default.
const UNSPECIFIED_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl FlagResolver {
    /// The client listener's configuration. `client_ca` verifies client certificates. The default
    /// of `--max-connections` is `connection_budget`.
    pub(super) fn resolve_serving(
        &mut self,
        args: ServingArgs,
        client_ca: Option<CertificatePool>,
        identity: &IdentityArgs,
        connection_budget: usize,
    ) -> Option<ServingConfig> {
        let (certificate, key) = (&args.tls_cert_file, &args.tls_private_key_file);
        if certificate.is_none() {
            self.add(
                "tls-cert-file",
                "needed: the certificate that clients see (PEM)",
            );
        }
        if key.is_none() {
            self.add(
                "tls-private-key-file",
                "needed: the key of --tls-cert-file (PEM)",
            );
        }
        let certificate = self.read_certified_key(
            FlagFile {
                flag: "tls-cert-file",
                path: certificate.as_deref()?,
            },
            FlagFile {
                flag: "tls-private-key-file",
                path: key.as_deref()?,
            },
            CertificateUse::Serving,
        );
        let named_certificates = self.read_named_certificates(&args.tls_sni_cert_key);
        let cipher_suites = self.choose_cipher_suites(&args.tls_cipher_suites);
        let curves = self.choose_curves(&args.tls_curve_preferences);
        let max_connections = self.most_connections(args.max_connections, connection_budget);
        Some(ServingConfig {
            address: SocketAddr::new(
                args.bind_address.unwrap_or(UNSPECIFIED_ADDRESS),
                args.secure_port,
            ),
            tls: tls::ListenerTlsConfig {
                certificate: certificate?,
                client_ca,
                named_certificates,
                cipher_suites,
                curves,
                tls13_only: args.tls_min_version == TlsVersion::VersionTLS13,
            },
            max_connections,
            connections: args.connections,
            proxies: identity.proxies.clone(),
        })
    }

    /// `--max-connections`, but no more than the open files allow: beyond, weir itself could open none,
    /// and would answer neither operators nor probes.
    fn most_connections(&mut self, given: Option<u32>, allowed: usize) -> usize {
        let most = given.map_or(allowed, saturating_usize);
        if most > allowed {
            self.warn(
                "max-connections",
                format!("the limit of open files allows {allowed} (ulimit -n, LimitNOFILE=): that many are taken"),
            );
        }
        most.min(allowed)
    }

    fn read_named_certificates(&mut self, given: &[SniCertKey]) -> Vec<NamedCertificate> {
        const FLAG: &str = "tls-sni-cert-key";
        let file = |path| FlagFile { flag: FLAG, path };
        let mut named = Vec::new();
        for one in given {
            let pair = self.read_certified_key(
                file(&one.certificate),
                file(&one.key),
                CertificateUse::Serving,
            );
            let Some(certificate) = pair else {
                continue;
            };
            let summary = || certificates::summarize(&certificate.cert);
            let names = match one.names.as_slice() {
                [] => summary().map_or_else(Vec::new, |summary| summary.names),
                names => names.to_vec(),
            };
            named.push(NamedCertificate {
                names,
                are_given: !one.names.is_empty(),
                certificate,
            });
        }
        named
    }

    fn choose_cipher_suites(&mut self, names: &[String]) -> Vec<CipherSuite> {
        let all = tls::cipher_suites(&rustls::crypto::aws_lc_rs::default_provider());
        let mut chosen = Vec::new();
        for name in names {
            match all.iter().find(|(known, _)| known == name) {
                Some((_, suite)) => chosen.push(*suite),
                None => {
                    let known: Vec<_> = all.iter().map(|(known, _)| known.as_str()).collect();
                    let known = known.join(", ");
                    self.add("tls-cipher-suites", format!("there is no {name}: {known}"));
                }
            }
        }
        chosen
    }

    fn choose_curves(&mut self, numbers: &[u16]) -> Vec<NamedGroup> {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let all = provider.kx_groups.iter().map(|group| group.name());
        let all: Vec<_> = all.collect();
        for number in numbers {
            if !all.contains(&NamedGroup::from(*number)) {
                let known: Vec<_> = all
                    .iter()
                    .map(|group| u16::from(*group).to_string())
                    .collect();
                let known = known.join(", ");
                self.add(
                    "tls-curve-preferences",
                    format!("there is no {number}: {known}"),
                );
            }
        }
        numbers.iter().copied().map(NamedGroup::from).collect()
    }
}
