//! The settings of the listener that a reload replaces.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use rustls::ServerConfig;

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
}

impl ListenerSettings {
    /// Whether `address` is one of `--trusted-proxies`.
    pub(in crate::server) fn is_trusted_proxy(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.trusted_proxies.iter().any(|net| net.contains(&ip))
    }
}
