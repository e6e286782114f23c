//! The settings of the listener for clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;
use rustls::ServerConfig;

use crate::flag_values;
use crate::flag_values::{parse_duration, parse_goaway_chance, parse_max_streams};
use crate::server::tls::ListenerTlsConfig;

/// By default an address may have fewer than this many times the connections that are free: three
/// quarters of all if it is alone. It is not one, which leaves half, since often one address stands
/// for most clients (a NAT gateway, a load balancer without the PROXY protocol): half of the file
/// descriptors would never be used. A quarter is still more than other addresses need, and the share
/// of one that keeps its connections shrinks as others come.
const FREE_MULTIPLE: usize = 3;

/// The most open connections of one address (`--max-connections-per-address`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressLimit {
    /// Less than three times as many as are free.
    #[default]
    DynamicShare,
    /// This many.
    Fixed(usize),
    /// As many as there are.
    Unlimited,
}

impl AddressLimit {
    fn parse(text: &str) -> Result<Self, String> {
        let limit = text.parse().map_err(|why| format!("{why}"))?;
        Ok(match limit {
            0 => Self::Unlimited,
            limit => Self::Fixed(limit),
        })
    }

    /// Whether an address with `held` connections may have another one, while `free` connections
    /// are left of all.
    pub(crate) const fn allows(self, held: usize, free: usize) -> bool {
        match self {
            Self::DynamicShare => held < free.saturating_mul(FREE_MULTIPLE),
            Self::Fixed(limit) => held < limit,
            Self::Unlimited => true,
        }
    }
}

/// Limits of each client connection, and of the connections of an address.
#[derive(Args, Clone, Debug)]
pub struct ConnectionConfig {
    /// Most streams at a time on an HTTP/2 connection of a client; 0 is 100, as for kube-apiserver.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = parse_max_streams)]
    pub http2_max_streams_per_connection: u32,
    /// Probability (0 to 0.02) that an HTTP/2 request gets its client a GOAWAY, so that it reconnects, perhaps to another weir.
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = parse_goaway_chance)]
    pub goaway_chance: f64,
    /// How long the head of a request may take from its first byte (408; on HTTP/2 the connection ends). It does not limit idle
    /// connections. 0 is no limit.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub request_header_timeout: Duration,
    /// Most requests a second that a client may cancel on an HTTP/2 connection, and four times as many at once; more, and the
    /// connection ends with GOAWAY (ENHANCE_YOUR_CALM). 0 is no limit.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub http2_max_resets_per_second: u32,
    /// Most open connections of one address (of IPv6 a /64); more are closed at once. By default an address may open one more while it
    /// has less than three times as many as are free of --max-connections, so that one alone gets three quarters. 0 is no limit. --trusted-proxies have none.
    #[arg(long, value_name = "N", value_parser = AddressLimit::parse)]
    pub max_connections_per_address: Option<AddressLimit>,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        flag_values::defaults()
    }
}

/// Proxies before weir that pass the addresses of clients on.
#[derive(Args, Clone, Debug)]
pub struct TrustedProxyConfig {
    /// Networks whose X-Forwarded-For is accepted: it is forwarded to the API server and written to the audit log. weir's own limits
    /// by address use the address of the connection, or that of --proxy-protocol. May be given several times, or as a list.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub trusted_proxies: Vec<IpNet>,
    /// Read the address of the client from the PROXY protocol (version 2) on connections from --trusted-proxies; a connection without
    /// its header is the proxy's own. Only for proxies that always send it: otherwise a client could send the header itself.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = false,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        action = clap::ArgAction::Set
    )]
    pub proxy_protocol: bool,
}

impl Default for TrustedProxyConfig {
    fn default() -> Self {
        flag_values::defaults()
    }
}

/// The listener for clients.
#[derive(Clone, Debug)]
pub struct ServingConfig {
    /// `--bind-address` and `--secure-port`.
    pub address: SocketAddr,
    /// The certificate and TLS settings of the listener.
    pub tls: ListenerTlsConfig,
    /// `--max-connections`, or the default that the open-file limit allows.
    pub max_connections: usize,
    /// Limits of each connection, and of the connections of an address.
    pub connections: ConnectionConfig,
    /// Proxies before weir that pass the addresses of clients on.
    pub proxies: TrustedProxyConfig,
}

/// The settings of new connections. They are one value, so that a reload replaces all of them at
/// once. An open connection keeps those that it started with.
#[derive(Debug)]
pub(crate) struct ListenerSettings {
    /// The certificate, and what TLS accepts. Loaded for each handshake.
    pub(crate) tls: Arc<ServerConfig>,
    pub(crate) serving: ServingConfig,
}

impl ListenerSettings {
    /// How many more connections `--max-connections` allows besides `open` ones.
    pub(crate) const fn free_connections(&self, open: usize) -> usize {
        self.serving.max_connections.saturating_sub(open)
    }

    /// Whether `address` is one of `--trusted-proxies`.
    pub(crate) fn is_trusted_proxy(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        let mut trusted = self.serving.proxies.trusted_proxies.iter();
        trusted.any(|net| net.contains(&ip))
    }

    /// The most open connections of one address.
    pub(crate) fn address_limit(&self) -> AddressLimit {
        let limit = self.serving.connections.max_connections_per_address;
        limit.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_flags() {
        let connections = ConnectionConfig::default();
        assert_eq!(connections.http2_max_streams_per_connection, 100);
        assert_eq!(connections.request_header_timeout, Duration::from_secs(10));
        assert_eq!(connections.max_connections_per_address, None);
        let proxies = TrustedProxyConfig::default();
        assert!(proxies.trusted_proxies.is_empty() && !proxies.proxy_protocol);
    }

    #[test]
    fn no_connections_of_an_address_mean_any_number() {
        let parsed = ["0", "7"].map(AddressLimit::parse);
        assert_eq!(
            parsed,
            [Ok(AddressLimit::Unlimited), Ok(AddressLimit::Fixed(7))]
        );
        assert!(AddressLimit::parse("-1").is_err());
    }
}
