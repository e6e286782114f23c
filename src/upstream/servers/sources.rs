//! Which addresses are API servers: what is configured, what its names resolve to, and what the
//! EndpointSlices of the Service `kubernetes` list. Pure.
//!
//! Known servers stay until others have passed a probe: an empty list, a name that does not
//! resolve, and addresses that no probe has reached never replace a working set.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustls::sign::CertifiedKey;

use crate::upstream::connection::address::ServerAddress;
use crate::upstream::servers::api_server::ServerOrigin;
use weir_x509::CertificatePool;

/// The roots that certificates of API servers are verified against, and the front-proxy
/// certificate. Pools compare both by pointer.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamTls {
    pub(crate) roots: Arc<CertificatePool>,
    pub(crate) front_proxy: Option<Arc<CertifiedKey>>,
}

impl UpstreamTls {
    /// Takes over what has changed. The rest keeps its pointers.
    pub(crate) fn update(
        &mut self,
        roots: &CertificatePool,
        front_proxy: Option<&Arc<CertifiedKey>>,
    ) {
        if *self.roots != *roots {
            self.roots = Arc::new(roots.clone());
        }
        let chain = |key: &Arc<CertifiedKey>| key.cert.clone();
        if self.front_proxy.as_ref().map(chain) != front_proxy.map(chain) {
            self.front_proxy = front_proxy.cloned();
        }
    }
}

/// Most addresses of a source. Each is probed and has connections. A control plane has a few API
/// servers, but a name or EndpointSlices can have thousands of addresses.
pub(super) const MAX_ADDRESSES: usize = 64;

/// Most former addresses of a source: a load balancer with many addresses names a few at a time.
const MAX_FORMER: usize = 16;

/// The sources of addresses.
#[derive(Debug)]
pub(crate) struct Sources {
    configured: Vec<ConfiguredServer>,
    /// Whether the EndpointSlices are followed.
    follows_slices: bool,
    /// The addresses in the EndpointSlices; none while they are not known.
    discovered: Vec<SocketAddr>,
    /// Addresses that the EndpointSlices listed before.
    former: Vec<SocketAddr>,
}

#[derive(Debug)]
struct ConfiguredServer {
    address: ServerAddress,
    /// What its name resolves to; none while that is not known, and for an address.
    resolved: Vec<SocketAddr>,
    /// What its name resolved to before.
    former: Vec<SocketAddr>,
}

/// The source that a former address vanished from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FormerSource {
    EndpointSlices,
    Name,
}

/// The addresses that are API servers.
#[derive(Debug, PartialEq)]
pub(crate) struct Targets {
    pub(crate) servers: Vec<(ServerAddress, ServerOrigin)>,
    /// Whether a server gets no request before a probe has shown that it is no weir. Not for a
    /// single configured server, which can be another weir on purpose.
    pub(crate) verify: bool,
    /// Whether one of them has vanished from its source.
    pub(crate) has_former: bool,
}

impl Sources {
    pub(crate) fn new(configured: &[ServerAddress], follows_slices: bool) -> Self {
        let mut sources = Self {
            configured: Vec::new(),
            follows_slices,
            discovered: Vec::new(),
            former: Vec::new(),
        };
        sources.reconfigure(configured, follows_slices);
        sources
    }

    /// Takes over a changed configuration. What is known about names that stay is kept. Servers
    /// without a common address are another cluster's: its EndpointSlices are not known yet.
    pub(crate) fn reconfigure(&mut self, configured: &[ServerAddress], follows_slices: bool) {
        let mut before = std::mem::take(&mut self.configured);
        let is_kept = |address| before.iter().any(|known| is_same(&known.address, address));
        let has_common = configured.iter().any(is_kept);
        self.configured = configured
            .iter()
            .map(|address| {
                let known = before.iter_mut().find(|known| known.address == *address);
                let (resolved, former) = known.map_or_else(Default::default, |known| {
                    (
                        std::mem::take(&mut known.resolved),
                        std::mem::take(&mut known.former),
                    )
                });
                ConfiguredServer {
                    address: address.clone(),
                    resolved,
                    former,
                }
            })
            .collect();
        self.follows_slices = follows_slices;
        if !follows_slices || !has_common {
            self.discovered.clear();
            self.former.clear();
        }
    }

    /// The first configured server, as HOST:PORT.
    pub(crate) fn authority(&self) -> String {
        let first = self.configured.first();
        first.map_or_else(String::new, |first| first.address.authority.to_string())
    }

    /// The servers whose names are to be resolved. A proxy resolves names itself.
    pub(crate) fn names(&self) -> impl Iterator<Item = &ServerAddress> {
        let addresses = self.configured.iter().map(|server| &server.address);
        addresses.filter(|address| address.proxy.is_none() && ip_of(address).is_none())
    }

    /// Records what the name of `address` resolves to. Returns whether it is something else than
    /// before.
    pub(crate) fn record_resolved(
        &mut self,
        address: &ServerAddress,
        resolved: Vec<SocketAddr>,
    ) -> bool {
        if resolved.is_empty() {
            return false; // what is known is better than nothing
        }
        let mut changed = false;
        for server in &mut self.configured {
            if server.address != *address {
                continue;
            }
            let resolved = bounded(resolved.clone(), &server.resolved);
            if server.resolved != resolved {
                changed = true;
                let before = std::mem::replace(&mut server.resolved, resolved);
                record_former(&mut server.former, before, &server.resolved);
            }
        }
        changed
    }

    /// Records the addresses in the EndpointSlices. None are no reason to give up those that are
    /// known.
    pub(crate) fn record_discovered(&mut self, addresses: Vec<SocketAddr>) {
        let addresses = bounded(addresses, &self.discovered);
        if self.follows_slices && !addresses.is_empty() {
            let before = std::mem::replace(&mut self.discovered, addresses);
            record_former(&mut self.former, before, &self.discovered);
        }
    }

    /// Whether the EndpointSlices list the address now.
    pub(crate) fn is_discovered(&self, address: &SocketAddr) -> bool {
        self.discovered.contains(address)
    }

    /// Gives up the addresses that have vanished from their source, but those that `keep` names.
    /// Returns whether there were any.
    pub(crate) fn prune_former(&mut self, keep: impl Fn(SocketAddr, FormerSource) -> bool) -> bool {
        let mut pruned = false;
        let mut prune = |former: &mut Vec<SocketAddr>, source| {
            let before = former.len();
            former.retain(|address| keep(*address, source));
            pruned |= former.len() < before;
        };
        prune(&mut self.former, FormerSource::EndpointSlices);
        for server in &mut self.configured {
            prune(&mut server.former, FormerSource::Name);
        }
        pruned
    }

    /// All addresses, each once. An address in the EndpointSlices counts as such, even if it is
    /// configured or was in an earlier list.
    pub(crate) fn targets(&self) -> Targets {
        let mut servers: Vec<(ServerAddress, ServerOrigin)> = Vec::new();
        let mut add = |address: ServerAddress, origin| {
            if !servers.iter().any(|(known, _)| is_same(known, &address)) {
                servers.push((address, origin));
            }
        };
        if let Some(first) = self.configured.first() {
            for socket in self.discovered.iter().chain(&self.former) {
                add(first.address.at(*socket), ServerOrigin::EndpointSlice);
            }
        }
        for server in &self.configured {
            for address in server.targets() {
                add(address, ServerOrigin::Configured);
            }
        }
        for server in &self.configured {
            for socket in &server.former {
                add(server.address.at(*socket), ServerOrigin::FormerAddress);
            }
        }
        let mut configured = self.configured.iter();
        Targets {
            verify: self.configured.len() > 1 || self.follows_slices || servers.len() > 1,
            has_former: !self.former.is_empty()
                || configured.any(|server| !server.former.is_empty()),
            servers,
        }
    }
}

/// The addresses in order, each once. Of too many, those that are known stay.
fn bounded(mut addresses: Vec<SocketAddr>, known: &[SocketAddr]) -> Vec<SocketAddr> {
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.len() > MAX_ADDRESSES {
        addresses.sort_by_key(|address| !known.contains(address));
        addresses.truncate(MAX_ADDRESSES);
        addresses.sort_unstable();
    }
    addresses
}

/// Adds the addresses of `before` that are not in `now` to those that have vanished.
fn record_former(former: &mut Vec<SocketAddr>, before: Vec<SocketAddr>, now: &[SocketAddr]) {
    let earlier = std::mem::take(former);
    for address in before.into_iter().chain(earlier) {
        if former.len() < MAX_FORMER && !now.contains(&address) && !former.contains(&address) {
            former.push(address);
        }
    }
}

impl ConfiguredServer {
    /// A server for each address of its name. A name with one address that had no other one, and one
    /// for this machine (`localhost`), stays a name.
    fn targets(&self) -> Vec<ServerAddress> {
        let local = self.resolved.iter().all(|socket| socket.ip().is_loopback());
        let single = self.resolved.len() < 2 && self.former.is_empty();
        if single || local {
            return vec![self.address.clone()];
        }
        let resolved = self.resolved.iter();
        resolved.map(|socket| self.address.at(*socket)).collect()
    }
}

/// The address of a server, if it is known without a resolver.
pub(crate) fn socket_of(address: &ServerAddress) -> Option<SocketAddr> {
    let given = || {
        let port = ServerAddress::port(&address.authority);
        ip_of(address).map(|ip| SocketAddr::new(ip, port))
    };
    address.socket.or_else(given)
}

fn ip_of(address: &ServerAddress) -> Option<IpAddr> {
    let host = address.authority.host();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.parse().ok()
}

/// Whether both are the same server: requests for it differ in nothing but the name in `Host`.
pub(crate) fn is_same(one: &ServerAddress, other: &ServerAddress) -> bool {
    if one.proxy != other.proxy {
        return false;
    }
    match (socket_of(one), socket_of(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::connection::address;

    fn server(host: &str) -> ServerAddress {
        let (authority, name) = address::parse_server(&format!("https://{host}")).unwrap();
        ServerAddress::new(authority, name)
    }

    fn sockets(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|socket| socket.parse().unwrap()).collect()
    }

    fn labels(targets: &Targets) -> Vec<String> {
        let servers = targets.servers.iter();
        servers
            .map(|(address, origin)| {
                let host = address.socket.map_or_else(
                    || address.authority.to_string(),
                    |socket| socket.to_string(),
                );
                format!("{host} {origin:?}")
            })
            .collect()
    }

    #[test]
    fn a_single_server_is_itself_and_is_not_verified() {
        for host in ["10.0.0.1:6443", "api.example", "[fd00::1]:6443"] {
            let targets = Sources::new(&[server(host)], false).targets();
            assert_eq!(labels(&targets), [format!("{host} Configured")]);
            assert!(!targets.verify);
        }
    }

    #[test]
    fn a_name_with_several_addresses_is_as_many_servers() {
        let name = server("api.example:6443");
        let mut sources = Sources::new(&[name.clone(), server("10.0.0.9:6443")], false);
        assert_eq!(sources.names().collect::<Vec<_>>(), [&name]);
        sources.record_resolved(
            &name,
            sockets(&["10.0.0.2:6443", "10.0.0.1:6443", "10.0.0.2:6443"]),
        );
        let expected = [
            "10.0.0.1:6443 Configured",
            "10.0.0.2:6443 Configured",
            "10.0.0.9:6443 Configured",
        ];
        let targets = sources.targets();
        assert_eq!(labels(&targets), expected);
        assert!(targets.verify);
        assert_eq!(targets.servers[0].0.authority, "api.example:6443");
        sources.record_resolved(&name, Vec::new());
        assert_eq!(labels(&sources.targets()), expected, "what is known stays");
        sources.reconfigure(std::slice::from_ref(&name), false);
        assert_eq!(labels(&sources.targets()), expected[..2]);
        sources.record_resolved(&name, sockets(&["10.0.0.1:6443"]));
        sources.prune_former(|_, _| false);
        assert_eq!(labels(&sources.targets()), ["api.example:6443 Configured"]);
    }

    #[test]
    fn addresses_that_vanish_from_a_name_stay_until_they_are_pruned() {
        let name = server("api.example:6443");
        let mut sources = Sources::new(std::slice::from_ref(&name), false);
        sources.record_resolved(&name, sockets(&["10.0.0.1:6443", "10.0.0.2:6443"]));
        sources.record_resolved(&name, sockets(&["10.0.0.3:6443"]));
        let expected = [
            "10.0.0.3:6443 Configured",
            "10.0.0.1:6443 FormerAddress",
            "10.0.0.2:6443 FormerAddress",
        ];
        assert_eq!(labels(&sources.targets()), expected);
        assert!(sources.targets().has_former && sources.targets().verify);
        assert!(!sources.prune_former(|_, source| source == FormerSource::Name));
        assert!(sources.prune_former(|address, _| address.ip().to_string() == "10.0.0.2"));
        assert_eq!(labels(&sources.targets()), [expected[0], expected[2]]);
        sources.record_resolved(&name, sockets(&["10.0.0.2:6443", "10.0.0.3:6443"]));
        assert!(!sources.targets().has_former);
        let expected = ["10.0.0.2:6443 Configured", "10.0.0.3:6443 Configured"];
        assert_eq!(labels(&sources.targets()), expected);
    }

    #[test]
    fn of_thousands_of_addresses_some_are_used_and_those_that_are_known_stay() {
        let name = server("api.example:6443");
        let mut sources = Sources::new(&[name.clone(), server("10.9.0.1:6443")], true);
        let known = sockets(&["10.1.0.1:6443", "10.1.0.2:6443"]);
        let many = (0..3000_u16).map(|port| SocketAddr::from(([10, 0, 0, 1], port)));
        let many: Vec<_> = many.chain(known.clone()).collect();
        sources.record_discovered(known.clone());
        sources.record_discovered(many.clone());
        assert_eq!(sources.discovered.len(), MAX_ADDRESSES);
        assert!(known.iter().all(|address| sources.is_discovered(address)));
        sources.record_resolved(&name, known);
        sources.record_resolved(&name, many.clone());
        assert_eq!(sources.targets().servers.len(), MAX_ADDRESSES + 1);
        assert!(!sources.record_resolved(&name, many), "the same ones");
    }

    #[test]
    fn servers_without_a_common_address_have_other_endpoint_slices() {
        let mut sources = Sources::new(&[server("10.0.0.1:6443")], true);
        sources.record_discovered(sockets(&["10.0.0.2:6443"]));
        sources.record_discovered(sockets(&["10.0.0.3:6443"]));
        sources.reconfigure(&[server("10.0.0.1:6443"), server("10.1.0.1:6443")], true);
        assert_eq!(sources.targets().servers.len(), 4);
        sources.reconfigure(&[server("10.2.0.1:6443")], true);
        assert_eq!(labels(&sources.targets()), ["10.2.0.1:6443 Configured"]);
    }

    #[test]
    fn localhost_is_one_server() {
        let name = server("localhost:6443");
        let mut sources = Sources::new(std::slice::from_ref(&name), false);
        sources.record_resolved(&name, sockets(&["127.0.0.1:6443", "[::1]:6443"]));
        assert_eq!(labels(&sources.targets()), ["localhost:6443 Configured"]);
    }

    #[test]
    fn endpoint_slices_come_first_and_the_configured_server_is_kept() {
        let mut sources = Sources::new(&[server("10.0.0.1:6443")], true);
        assert!(sources.targets().verify, "the slices may list a weir");
        sources.record_discovered(sockets(&["10.0.0.2:6443", "10.0.0.3:6443"]));
        let expected = [
            "10.0.0.2:6443 EndpointSlice",
            "10.0.0.3:6443 EndpointSlice",
            "10.0.0.1:6443 Configured",
        ];
        assert_eq!(labels(&sources.targets()), expected);
        sources.record_discovered(Vec::new());
        assert_eq!(
            labels(&sources.targets()),
            expected,
            "an empty list changes nothing"
        );
        sources.record_discovered(sockets(&["10.0.0.1:6443"]));
        assert_eq!(sources.targets().servers.len(), 3, "former ones are kept");
        assert!(sources.prune_former(|_, source| source != FormerSource::EndpointSlices));
        assert_eq!(labels(&sources.targets()), ["10.0.0.1:6443 EndpointSlice"]);
        sources.reconfigure(&[server("10.0.0.1:6443")], false);
        assert_eq!(labels(&sources.targets()), ["10.0.0.1:6443 Configured"]);
    }

    #[test]
    fn a_server_that_is_configured_twice_counts_once() {
        let sources = Sources::new(&[server("10.0.0.1"), server("10.0.0.1:443")], false);
        assert_eq!(labels(&sources.targets()), ["10.0.0.1 Configured"]);
    }
}
