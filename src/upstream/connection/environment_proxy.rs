//! The proxy that the environment names for a server: `HTTPS_PROXY` and `NO_PROXY`. Pure.
//!
//! Follows Go (`golang.org/x/net/http/httpproxy`), and so client-go: localhost and loopback addresses
//! are always connected to directly. A proxy that weir cannot use is an error: a direct connection
//! could bypass what the proxy is there for.

use std::net::IpAddr;

use http::uri::Authority;
use ipnet::IpNet;

use crate::upstream::connection::address;
use crate::upstream::connection::address::{ProxyAddress, ServerAddress};

/// The variables, as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProxyEnvironment {
    /// `HTTPS_PROXY`, or `https_proxy`.
    pub(crate) https_proxy: Option<String>,
    /// `NO_PROXY`, or `no_proxy`.
    pub(crate) no_proxy: Option<String>,
}

impl ProxyEnvironment {
    /// The proxy for connections to `server`, if there is one.
    ///
    /// # Errors
    /// weir cannot use the proxy. The error does not quote it.
    pub(crate) fn proxy_for(&self, server: &Authority) -> Result<Option<ProxyAddress>, String> {
        let Some(proxy) = self.https_proxy.as_deref().filter(|url| !url.is_empty()) else {
            return Ok(None);
        };
        let host = server.host();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = host.to_ascii_lowercase();
        if self.excludes(&host, ServerAddress::port(server)) {
            return Ok(None);
        }
        let url = if proxy.contains("://") {
            proxy.to_owned()
        } else {
            format!("http://{proxy}") // HOST[:PORT] alone
        };
        address::parse_proxy(&url).map(Some)
    }

    /// Whether connections to `host` go past the proxy.
    fn excludes(&self, host: &str, port: u16) -> bool {
        let ip = host.parse::<IpAddr>().ok();
        if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
            return true;
        }
        let entries = self.no_proxy.as_deref().unwrap_or_default();
        entries
            .split(',')
            .filter_map(|entry| Exclusion::parse(&entry.trim().to_ascii_lowercase()))
            .any(|entry| entry.covers(host, ip, port))
    }
}

/// An entry of `NO_PROXY`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Exclusion {
    /// `*`.
    Everything,
    /// `10.0.0.0/8`.
    Network(IpNet),
    /// `10.0.0.1`, `10.0.0.1:6443`.
    Address(IpAddr, Option<u16>),
    /// `example.com` (and the names below it), `.example.com` and `*.example.com` (only these).
    Domain {
        /// With a dot before it.
        suffix: String,
        /// Whether the domain itself is covered.
        includes_itself: bool,
        port: Option<u16>,
    },
}

impl Exclusion {
    /// `None` for an entry that covers nothing.
    fn parse(entry: &str) -> Option<Self> {
        if entry == "*" {
            return Some(Self::Everything);
        }
        if let Ok(network) = entry.parse::<IpNet>() {
            return Some(Self::Network(network));
        }
        if let Ok(ip) = entry.parse::<IpAddr>() {
            return Some(Self::Address(ip, None));
        }
        let (host, port) = split_port(entry)?;
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Some(Self::Address(ip, port));
        }
        let host = host
            .strip_prefix('*')
            .filter(|rest| rest.starts_with('.'))
            .unwrap_or(host);
        let includes_itself = !host.starts_with('.');
        let dot = if includes_itself { "." } else { "" };
        (!host.is_empty()).then(|| Self::Domain {
            suffix: format!("{dot}{host}"),
            includes_itself,
            port,
        })
    }

    fn covers(&self, host: &str, ip: Option<IpAddr>, port: u16) -> bool {
        let is_port = |only: &Option<u16>| only.is_none_or(|only| only == port);
        match self {
            Self::Everything => true,
            Self::Network(network) => ip.is_some_and(|ip| network.contains(&ip)),
            Self::Address(address, only) => ip == Some(*address) && is_port(only),
            Self::Domain {
                suffix,
                includes_itself,
                port: only,
            } => {
                let is_domain = || suffix.strip_prefix('.') == Some(host);
                (host.ends_with(suffix.as_str()) || (*includes_itself && is_domain()))
                    && is_port(only)
            }
        }
    }
}

/// `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`. `None` if the port is none.
fn split_port(entry: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match entry.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, rest.strip_prefix(':'))
        }
        None => entry
            .rsplit_once(':')
            .map_or((entry, None), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        Some(port) => Some(port.parse().ok()?),
        None => None,
    };
    (!host.is_empty()).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(https_proxy: &str, no_proxy: &str) -> ProxyEnvironment {
        ProxyEnvironment {
            https_proxy: Some(https_proxy.to_owned()),
            no_proxy: Some(no_proxy.to_owned()),
        }
    }

    fn is_proxied(no_proxy: &str, server: &str) -> bool {
        let proxy = environment("http://proxy:3128", no_proxy).proxy_for(&server.parse().unwrap());
        proxy.unwrap().is_some()
    }

    #[test]
    fn the_proxy_is_a_url_or_a_host_with_a_port() {
        let server = "api.example.com:6443".parse().unwrap();
        for (variable, expected) in [
            ("http://proxy:3128", Some("proxy:3128")),
            ("http://user:secret@proxy", Some("proxy:80")),
            ("proxy:3128", Some("proxy:3128")),
            ("", None),
        ] {
            let proxy = environment(variable, "").proxy_for(&server).unwrap();
            let authority = proxy.as_ref().map(|proxy| proxy.authority.as_str());
            assert_eq!(authority, expected, "{variable}");
        }
        let unset = ProxyEnvironment::default();
        assert_eq!(unset.proxy_for(&server), Ok(None));
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_an_error_and_not_bypassed() {
        for variable in ["socks5://proxy:1080", "https://hidden@proxy", "http://a b"] {
            let server = "api.example.com".parse().unwrap();
            let error = environment(variable, "").proxy_for(&server).unwrap_err();
            assert!(!error.contains("hidden"), "{error}");
            let local = "127.0.0.1:6443".parse().unwrap();
            assert_eq!(environment(variable, "").proxy_for(&local), Ok(None));
        }
    }

    #[test]
    fn loopback_addresses_are_never_proxied() {
        for server in [
            "localhost:6443",
            "LOCALHOST",
            "127.0.0.1:6443",
            "127.8.9.1",
            "[::1]:6443",
        ] {
            assert!(!is_proxied("", server), "{server}");
        }
        assert!(is_proxied("", "localhost.example.com"));
        assert!(is_proxied("", "10.0.0.1:6443"));
    }

    #[test]
    fn no_proxy_means_what_it_means_for_go_programs() {
        let cases = [
            // NO_PROXY, server, whether it is proxied
            ("*", "api.example.com", false),
            ("example.com", "example.com", false),
            ("example.com", "api.example.com:6443", false),
            ("example.com", "notexample.com", true),
            (".example.com", "example.com", true),
            (".example.com", "api.example.com", false),
            ("*.example.com", "example.com", true),
            ("*.example.com", "API.Example.com", false),
            ("example.com:6443", "example.com:6443", false),
            ("example.com:6443", "example.com", true),
            ("example.com:443", "example.com", false),
            ("10.0.0.0/8", "10.1.2.3:6443", false),
            ("10.0.0.0/8", "11.1.2.3:6443", true),
            ("10.0.0.0/8", "api.example.com", true),
            ("10.0.0.1", "10.0.0.1:6443", false),
            ("10.0.0.1:443", "10.0.0.1:6443", true),
            ("fd00::/8", "[fd00::1]:6443", false),
            ("fd00::1", "[fd00::1]:6443", false),
            ("[fd00::1]:6443", "[fd00::1]:6443", false),
            ("[fd00::1]:443", "[fd00::1]:6443", true),
            (" a.example , 10.0.0.1 ,", "10.0.0.1", false),
            (":6443", "api.example.com:6443", true),
            ("example.com:x", "example.com", true),
            ("", "api.example.com", true),
        ];
        for (no_proxy, server, expected) in cases {
            assert_eq!(
                is_proxied(no_proxy, server),
                expected,
                "{no_proxy:?} {server}"
            );
        }
    }
}
