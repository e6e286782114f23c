//! The listener for clients.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::cli::config_resolver::certificates::CertificateUse;
use crate::cli::config_resolver::flag_resolver::{FlagFile, FlagResolver};
use crate::cli::flags::{IdentityArgs, ServingArgs, TlsVersion};
use crate::server::settings::ServingConfig;
use crate::server::tls;
use crate::x509::CertificatePool;
use weir_kubernetes::numeric::saturating_usize;

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
        Some(ServingConfig {
            address: SocketAddr::new(
                args.bind_address.unwrap_or(UNSPECIFIED_ADDRESS),
                args.secure_port,
            ),
            tls: tls::ListenerTlsConfig {
                certificate: certificate?,
                client_ca,
                tls13_only: args.tls_min_version == TlsVersion::VersionTLS13,
            },
            max_connections: args
                .max_connections
                .map_or(connection_budget, saturating_usize),
            connections: args.connections,
            proxies: identity.proxies.clone(),
        })
    }
}
