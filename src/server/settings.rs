//! The settings of the listener that a reload replaces.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use rustls::ServerConfig;

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

/// The settings of new connections. They are one value, so that a reload replaces all of them at
/// once. An open connection keeps those that it started with.
#[derive(Debug)]
pub(crate) struct ListenerSettings {
    /// The certificate, and what TLS accepts. Loaded for each handshake.
    pub(crate) tls: Arc<ServerConfig>,
    /// `--http2-max-streams-per-connection`.
    pub max_streams: u32,
    /// `--trusted-proxies`.
    pub trusted_proxies: Vec<IpNet>,
    /// `--proxy-protocol`.
    pub proxy_protocol: bool,
    /// `--goaway-chance`, 0 to 0.02.
    pub goaway_chance: f64,
    /// `--request-header-timeout`; zero is no timeout.
    pub header_timeout: Duration,
    /// `--http2-max-resets-per-second`; 0 is no limit.
    pub(crate) max_resets_per_second: u32,
    /// The most open connections (`--max-connections`).
    pub max_connections: usize,
    /// The most open connections of one address (`--max-connections-per-address`).
    pub(crate) address_limit: AddressLimit,
}

impl ListenerSettings {
    /// How many more connections `--max-connections` allows besides `open` ones.
    pub(crate) const fn free_connections(&self, open: usize) -> usize {
        self.max_connections.saturating_sub(open)
    }

    /// Whether `address` is one of `--trusted-proxies`.
    pub(crate) fn is_trusted_proxy(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.trusted_proxies.iter().any(|net| net.contains(&ip))
    }
}
