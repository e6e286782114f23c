//! The listener for clients.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::cli::config_resolver::certificates::CertificateUse;
use crate::cli::config_resolver::flag_resolver::{FlagFile, FlagResolver};
use crate::cli::flags::{IdentityArgs, ServingArgs, TlsVersion};
use crate::config;
use crate::server::settings::AddressLimit;
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
    ) -> Option<config::ServingConfig> {
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
        Some(config::ServingConfig {
            address: SocketAddr::new(
                args.bind_address.unwrap_or(UNSPECIFIED_ADDRESS),
                args.secure_port,
            ),
            tls: tls::ListenerTlsConfig {
                certificate: certificate?,
                client_ca,
                tls13_only: args.tls_min_version == TlsVersion::VersionTLS13,
            },
            max_streams: max_streams_or_default(args.http2_max_streams_per_connection),
            goaway_chance: args.goaway_chance,
            header_timeout: args.request_header_timeout,
            resets_per_second: args.http2_max_resets_per_second,
            max_connections: args
                .max_connections
                .map_or(connection_budget, saturating_usize),
            address_limit: match args.max_connections_per_address {
                None => AddressLimit::DynamicShare,
                Some(0) => AddressLimit::Unlimited,
                Some(limit) => AddressLimit::Fixed(saturating_usize(limit)),
            },
            trusted_proxies: identity.trusted_proxies.clone(),
            proxy_protocol: identity.proxy_protocol,
        })
    }
}

/// 0 means 100, as in kube-apiserver's flag (1.36).
const fn max_streams_or_default(max_streams: u32) -> u32 {
    if max_streams == 0 { 100 } else { max_streams }
}

#[cfg(test)]
mod tests {
    use super::max_streams_or_default;

    #[test]
    fn zero_max_streams_means_one_hundred() {
        assert_eq!([0, 1, 1000].map(max_streams_or_default), [100, 1, 1000]);
    }
}
