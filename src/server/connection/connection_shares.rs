//! How many connections each address has, from their acceptance to their end, and how many it may
//! have.
//!
//! `--max-connections` bounds all connections. Without a share, the address that opens the most
//! connections would leave none to others. By default an address may open one more while it has less
//! than three times as many as are free (a dynamic threshold): one alone gets three quarters, two get
//! three sevenths each, and at least a third of what any other has stays free for a new address. A
//! fixed number would be too many for a weir with
//! few file descriptors and too few for one whose clients are behind one address.
//!
//! One alone gets three quarters and not half, as users get of places, since often one address
//! stands for most clients (a NAT gateway). The share is checked when a connection is accepted,
//! before it costs a handshake.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::IntCounter;

use crate::server::handshake_limiter::ConnectionSource;
use crate::server::settings::AddressLimit;
use weir_base::metrics::Registry;

/// The open connections of each source, shared by all workers.
#[derive(Debug)]
pub struct ConnectionShares {
    /// Locked for one step of a connection.
    held: Mutex<HashMap<ConnectionSource, usize>>,
    rejected: IntCounter,
}

/// An open connection of a source, until dropped.
#[derive(Debug)]
pub(crate) struct ConnectionShare {
    source: ConnectionSource,
    shares: Arc<ConnectionShares>,
}

/// The address has its share already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the client's address has as many connections as it may have (--max-connections-per-address)"
)]
pub(crate) struct ShareExceeded;

impl ConnectionShares {
    /// No connections.
    #[must_use]
    pub fn new(registry: &Registry) -> Arc<Self> {
        let shares = Arc::new(Self {
            held: Mutex::default(),
            rejected: registry.counter(
                "weir_client_connections_share_refused_total",
                "Connections closed at once because their address has as many as it may have (--max-connections-per-address).",
            ),
        });
        let shown = Arc::clone(&shares);
        registry.gauge_fn(
            "weir_client_connections_largest_address",
            "Most open connections of one address, of IPv6 of one /64. Addresses of --trusted-proxies are left out.",
            move || shown.largest(),
        );
        shares
    }

    /// Counts a new connection of `source`, unless `limit` does not allow it while `free`
    /// connections are left. A trusted proxy has no limit of its own.
    ///
    /// # Errors
    /// The source has its share.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        source: ConnectionSource,
        limit: AddressLimit,
        free: usize,
    ) -> Result<ConnectionShare, ShareExceeded> {
        let mut held = self.held.lock();
        let count = held.get(&source).copied().unwrap_or_default();
        let is_address = matches!(source, ConnectionSource::Address(_));
        if is_address && !limit.allows(count, free) {
            self.rejected.inc();
            return Err(ShareExceeded);
        }
        held.insert(source, count + 1);
        Ok(ConnectionShare {
            source,
            shares: Arc::clone(self),
        })
    }

    /// The most connections of one address.
    fn largest(&self) -> usize {
        let held = self.held.lock();
        let of_address = |(source, count): (&ConnectionSource, &usize)| {
            matches!(source, ConnectionSource::Address(_)).then_some(*count)
        };
        held.iter().filter_map(of_address).max().unwrap_or_default()
    }
}

impl ConnectionShare {
    /// Counts the connection for its real source, which a trusted proxy has reported.
    ///
    /// # Errors
    /// That source has its share. The connection still counts for the proxy.
    pub(crate) fn set_source(
        &mut self,
        source: ConnectionSource,
        limit: AddressLimit,
        free: usize,
    ) -> Result<(), ShareExceeded> {
        *self = self.shares.acquire(source, limit, free)?;
        Ok(())
    }
}

impl Drop for ConnectionShare {
    fn drop(&mut self) {
        let mut held = self.shares.held.lock();
        match held.get(&self.source).copied() {
            Some(count) if count > 1 => drop(held.insert(self.source, count - 1)),
            Some(_) | None => drop(held.remove(&self.source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn address(last: u8) -> ConnectionSource {
        ConnectionSource::from_address(IpAddr::from([10, 0, 0, last]))
    }

    /// How many of `total` connections the source gets besides those that are open.
    fn acquire_all(
        open: &mut Vec<ConnectionShare>,
        shares: &Arc<ConnectionShares>,
        source: ConnectionSource,
        limit: AddressLimit,
        total: usize,
    ) -> usize {
        let before = open.len();
        while open.len() < total
            && let Ok(share) = shares.acquire(source, limit, total - open.len())
        {
            open.push(share);
        }
        open.len() - before
    }

    #[test]
    fn an_address_gets_three_times_as_many_connections_as_stay_free_by_default() {
        let (shares, mut open) = (ConnectionShares::new(&Registry::new()), Vec::new());
        let mut all = |n| acquire_all(&mut open, &shares, address(n), AddressLimit::default(), 100);
        assert_eq!([all(1), all(2), all(3), all(1)], [75, 19, 5, 0]);
        assert_eq!(shares.largest(), 75);
    }

    #[test]
    fn a_fixed_number_of_connections_applies_to_each_address_and_not_to_proxies() {
        let (shares, mut open) = (ConnectionShares::new(&Registry::new()), Vec::new());
        let mut all = |source, limit| acquire_all(&mut open, &shares, source, limit, 100);
        let fixed = AddressLimit::Fixed(7);
        assert_eq!([all(address(1), fixed), all(address(2), fixed)], [7, 7]);
        let proxy = ConnectionSource::TrustedProxy(IpAddr::from([10, 0, 0, 9]));
        assert_eq!(all(proxy, fixed), 86);
        assert_eq!(shares.largest(), 7);
        open.clear();
        let mut all = |source, limit| acquire_all(&mut open, &shares, source, limit, 100);
        assert_eq!(all(address(1), AddressLimit::Unlimited), 100);
    }

    #[test]
    fn a_connection_behind_a_proxy_counts_for_its_client_address() {
        let shares = ConnectionShares::new(&Registry::new());
        let proxy = ConnectionSource::TrustedProxy(IpAddr::from([10, 0, 0, 9]));
        let limit = AddressLimit::Fixed(1);
        let mut first = shares.acquire(proxy, limit, 100).unwrap();
        let mut second = shares.acquire(proxy, limit, 100).unwrap();
        assert_eq!(first.set_source(address(1), limit, 100), Ok(()));
        assert_eq!(
            second.set_source(address(1), limit, 100),
            Err(ShareExceeded)
        );
        assert_eq!(second.set_source(address(2), limit, 100), Ok(()));
        drop(first);
        assert!(shares.acquire(address(1), limit, 100).is_ok());
        drop(second);
        assert!(shares.held.lock().is_empty());
    }
}
