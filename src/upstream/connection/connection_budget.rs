//! How many connections to the API server clients' requests may have: each is a descriptor, of which the system gives so many.
//!
//! What lasts as long as its client likes must not keep requests that end from the API server, nor requests without a proven
//! credential those of known users: requests that last have half of the connections, be it one of HTTP/1.1 each or those of HTTP/2
//! that watches share; unproven ones have a quarter for what lasts and half for what ends; the rest is kept free. Within each part
//! users and addresses share fairly ([`shares`](crate::upstream::connection::fair_shares)).

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use prometheus::IntGauge;
use prometheus::IntGaugeVec;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;

use crate::api::UserInfo;
use crate::metrics::Registry;
use crate::upstream::ForwardError;
use crate::upstream::connection::fair_shares::FairShares;
use crate::upstream::connection::fair_shares::ShareError;

/// Holders that are named of each kind.
const MAX_HOLDERS: usize = 20;

/// Watches on one HTTP/2 connection: what kube-apiserver allows of streams.
const WATCHES_PER_CONNECTION: usize = 100;

/// The kinds of places, as metrics and operators have them.
const LONG_RUNNING: &str = "long-running";
const WATCH: &str = "watch";
const UNVERIFIED_LONG_RUNNING: &str = "unproven-long-running";
const UNVERIFIED: &str = "unproven";

/// How many places there are and are taken.
#[derive(Debug)]
pub struct SlotMetrics {
    total: IntGaugeVec,
    used: IntGaugeVec,
}

impl SlotMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        Self {
            total: registry.gauges(
                "weir_upstream_places",
                "Places for requests by kind: long-running ones with a connection to the API server each (long-running; watches that share connections take one for each connection), watches that share connections (watch), and those without a proven credential (unproven, unproven-long-running).",
                &["kind"],
            ),
            used: registry.gauges(
                "weir_upstream_places_taken",
                "Places that are taken, by kind; /debug/places names the users and addresses that hold most of them.",
                &["kind"],
            ),
        }
    }

    fn gauge(&self, kind: &str, total: usize) -> IntGauge {
        let total = i64::try_from(total).unwrap_or(i64::MAX);
        self.total.with_label_values(&[kind]).set(total);
        self.used.with_label_values(&[kind])
    }
}

/// For whom a request takes a place.
#[derive(Clone, Debug, Default)]
pub struct Requester {
    /// The user that it counts for.
    pub user: Option<Arc<UserInfo>>,
    /// Its client's network; none behind a trusted proxy, where many clients have one address.
    pub network: Option<IpAddr>,
}

/// Something that has a share of the places.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SlotHolder {
    /// A user, by its name.
    User(String),
    /// The addresses of one network: of IPv6 the first 64 bits.
    Network(IpAddr),
}

impl fmt::Display for SlotHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) if name.is_empty() => write!(f, "connections that watches share"),
            Self::User(name) => write!(f, "user {name:?}"),
            Self::Network(address) => write!(f, "address {address}"),
        }
    }
}

/// Places for connections, shared by all workers.
#[derive(Clone, Debug)]
pub struct ConnectionBudget {
    max_connections: usize,
    connections: Arc<Semaphore>,
    long_running: SlotPool,
    /// What ends is bounded for unproven requests only, each of which has a connection to itself.
    short: Option<SlotPool>,
    watches: SlotPool,
    unverified: Arc<[SlotPool; 2]>,
}

/// The open places of one kind, for operators.
#[derive(Clone, Debug, Default)]
pub struct SlotUsage {
    /// How many there are.
    pub total: usize,
    /// How many are taken.
    pub used: usize,
    /// Those who hold most, most first.
    pub holders: Vec<(SlotHolder, usize)>,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(in crate::upstream) struct ConnectionPermit {
    _permit: OwnedSemaphorePermit,
}

/// A request's place among those of its kind, until it is dropped.
#[derive(Debug)]
pub(in crate::upstream) struct RequestSlot {
    slots: SlotPool,
    holders: Vec<SlotHolder>,
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        self.slots.shares().release(&self.holders);
        self.slots.used.dec();
    }
}

/// Places of one kind.
#[derive(Clone, Debug)]
struct SlotPool {
    /// Held for one step; nothing is awaited under it.
    shares: Arc<Mutex<FairShares<SlotHolder>>>,
    used: IntGauge,
}

impl SlotPool {
    fn new(total: usize, taken: IntGauge) -> Self {
        Self {
            shares: Arc::new(Mutex::new(FairShares::new(total))),
            used: taken,
        }
    }

    fn shares(&self) -> MutexGuard<'_, FairShares<SlotHolder>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn acquire(&self, holders: Vec<SlotHolder>) -> Result<RequestSlot, ShareError<SlotHolder>> {
        self.shares().acquire(&holders)?;
        self.used.inc();
        Ok(RequestSlot {
            slots: self.clone(),
            holders,
        })
    }

    fn usage(&self, number: usize) -> SlotUsage {
        let shares = self.shares();
        let (total, taken) = shares.counts();
        SlotUsage {
            total,
            used: taken,
            holders: shares.top_holders(number),
        }
    }
}

impl Requester {
    fn holders(&self) -> Vec<SlotHolder> {
        let user = self
            .user
            .as_ref()
            .map(|user| SlotHolder::User(user.name.clone()));
        let network = self.network.map(SlotHolder::Network);
        user.into_iter().chain(network).collect()
    }
}

impl ConnectionBudget {
    /// For this many connections.
    #[must_use]
    pub fn new(most: usize, metrics: &SlotMetrics) -> Self {
        let most = most.clamp(4, Semaphore::MAX_PERMITS); // one of each kind
        let places = |kind, total| SlotPool::new(total, metrics.gauge(kind, total));
        Self {
            max_connections: most,
            connections: Arc::new(Semaphore::new(most)),
            long_running: places(LONG_RUNNING, most / 2),
            short: None,
            watches: places(WATCH, (most / 2).saturating_mul(WATCHES_PER_CONNECTION)),
            unverified: Arc::new([
                places(UNVERIFIED_LONG_RUNNING, most / 4),
                places(UNVERIFIED, most / 2),
            ]),
        }
    }

    /// The same, for requests without a proven credential.
    #[must_use]
    pub fn for_unverified(&self) -> Self {
        let [lasting, ending] = &*self.unverified;
        Self {
            long_running: lasting.clone(),
            short: Some(ending.clone()),
            ..self.clone()
        }
    }

    /// A connection's place.
    pub(in crate::upstream) fn acquire_connection(&self) -> Result<ConnectionPermit, ForwardError> {
        let taken = Arc::clone(&self.connections).try_acquire_owned();
        taken
            .map(|one| ConnectionPermit { _permit: one })
            .map_err(|_| ForwardError::ConnectionLimit(self.max_connections))
    }

    /// The place of a request that lasts, while it has an HTTP/1.1 connection to itself.
    pub(in crate::upstream) fn acquire_long_running(
        &self,
        requester: &Requester,
    ) -> Result<RequestSlot, ForwardError> {
        self.acquire_slot(&self.long_running, requester.holders())
    }

    /// The place of a connection that watches share: they are one holder, which leaves half to other requests that last.
    pub(in crate::upstream) fn acquire_watch_connection(
        &self,
    ) -> Result<RequestSlot, ForwardError> {
        let watches = SlotHolder::User(String::new()); // no user has an empty name
        let place = self.long_running.acquire(vec![watches]);
        place.map_err(|_| ForwardError::ConnectionLimit(self.max_connections))
    }

    /// The place of a watch on a connection that it shares with others.
    pub(in crate::upstream) fn acquire_watch(
        &self,
        requester: &Requester,
    ) -> Result<RequestSlot, ForwardError> {
        self.acquire_slot(&self.watches, requester.holders())
    }

    /// The place of a request that ends, where such are bounded: its user is not known, so that its address counts.
    pub(in crate::upstream) fn acquire_short(
        &self,
        requester: &Requester,
    ) -> Result<Option<RequestSlot>, ForwardError> {
        let network = requester.network.map(SlotHolder::Network);
        let holders = || network.into_iter().collect();
        let ending = self.short.as_ref();
        ending
            .map(|places| self.acquire_slot(places, holders()))
            .transpose()
    }

    fn acquire_slot(
        &self,
        places: &SlotPool,
        holders: Vec<SlotHolder>,
    ) -> Result<RequestSlot, ForwardError> {
        places.acquire(holders).map_err(|denied| match denied {
            ShareError::Full => ForwardError::ConnectionLimit(self.max_connections),
            ShareError::HolderLimit(holder) => ForwardError::ShareExceeded(holder),
        })
    }

    /// The places of each kind and their holders, for operators: a line each, its parts apart by tabs.
    #[must_use]
    pub fn dump(&self) -> String {
        let mut lines = vec!["KIND\tTAKEN\tOF\tHOLDER".to_owned()];
        for (kind, places) in self.snapshot(MAX_HOLDERS) {
            lines.push(format!("{kind}\t{}\t{}\t", places.used, places.total));
            for (holder, taken) in places.holders {
                lines.push(format!("{kind}\t{taken}\t{}\t{holder}", places.total));
            }
        }
        lines.push(String::new());
        lines.join("\n")
    }

    /// The places as they are taken, for operators: of long-running requests with a connection each, and of watches that share
    /// them; with so many of their holders each.
    #[must_use]
    pub fn snapshot(&self, holders: usize) -> [(&'static str, SlotUsage); 4] {
        let [unproven_lasting, unproven_ending] = &*self.unverified;
        [
            (LONG_RUNNING, self.long_running.usage(holders)),
            (WATCH, self.watches.usage(holders)),
            (UNVERIFIED_LONG_RUNNING, unproven_lasting.usage(holders)),
            (UNVERIFIED, unproven_ending.usage(holders)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requester(last: u8) -> Requester {
        Requester {
            user: None,
            network: Some(IpAddr::from([192, 0, 2, last])),
        }
    }

    #[test]
    fn long_running_requests_get_half_and_unverified_ones_a_quarter() {
        let room = ConnectionBudget::new(8, &SlotMetrics::register(&Registry::new()));
        let unproven = room.for_unverified();
        let lasting: Vec<_> = (1..9)
            .map_while(|n| room.acquire_long_running(&requester(n)).ok())
            .collect();
        assert_eq!(lasting.len(), 4);
        assert!(matches!(
            room.acquire_long_running(&requester(9)),
            Err(ForwardError::ConnectionLimit(8))
        ));
        let theirs: Vec<_> = (1..9)
            .map_while(|n| unproven.acquire_long_running(&requester(n)).ok())
            .collect();
        assert_eq!(theirs.len(), 2);
        let ending: Vec<_> = (1..9)
            .map_while(|n| unproven.acquire_short(&requester(n)).ok())
            .collect();
        assert_eq!(ending.len(), 4);
        assert!(
            room.acquire_short(&requester(1)).unwrap().is_none(),
            "known ones share connections"
        );
        drop(lasting);
        assert!(room.acquire_long_running(&requester(9)).is_ok());
        let _all: Vec<_> = (0..8)
            .map(|_| unproven.acquire_connection().unwrap())
            .collect();
        assert!(matches!(
            room.acquire_connection(),
            Err(ForwardError::ConnectionLimit(8))
        ));
    }

    #[test]
    fn one_user_or_network_gets_half_of_a_kind() {
        let room = ConnectionBudget::new(16, &SlotMetrics::register(&Registry::new()));
        let user = |name: &str| Requester {
            user: Some(Arc::new(UserInfo {
                name: name.to_owned(),
                ..UserInfo::anonymous()
            })),
            network: None,
        };
        let _held: Vec<_> = (0..4)
            .map(|_| room.acquire_long_running(&user("alice")).unwrap())
            .collect();
        let denied = room.acquire_long_running(&user("alice"));
        let alice = SlotHolder::User("alice".to_owned());
        assert!(matches!(denied, Err(ForwardError::ShareExceeded(holder)) if holder == alice));
        assert!(
            room.acquire_long_running(&user("bob")).is_ok()
                && room.acquire_watch(&user("alice")).is_ok()
        );
        let [(_, lasting), ..] = room.snapshot(1);
        assert_eq!((lasting.total, lasting.used), (8, 4));
        assert_eq!(lasting.holders, [(alice, 4)]);
    }

    #[test]
    fn every_kind_has_at_least_one_slot() {
        let room = ConnectionBudget::new(0, &SlotMetrics::register(&Registry::new()));
        for room in [room.for_unverified(), room] {
            assert!(
                room.acquire_connection().is_ok()
                    && room.acquire_long_running(&requester(1)).is_ok()
            );
            assert!(
                room.acquire_watch(&requester(1)).is_ok()
                    && room.acquire_short(&requester(1)).is_ok()
            );
            assert!(room.acquire_watch_connection().is_ok());
        }
    }
}
