//! The budget of connections to the API server for clients' requests. Each connection is a file
//! descriptor, whose number the system bounds.
//!
//! Long-running requests must not keep short ones from the API server, nor requests without a
//! verified credential those of known users. Long-running requests have half of the connections:
//! one HTTP/1.1 connection each, or the HTTP/2 connections that watches share. Unverified requests
//! have a quarter for long-running ones and half for short ones. The HTTP/1.1 connections that are
//! kept for reads are at most a quarter. The rest is kept free. Within each part, users and networks share fairly
//! ([`fair_shares`](crate::upstream::connection::fair_shares)).

use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

use prometheus::{IntGauge, IntGaugeVec};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::upstream::connection::error::ForwardError;
use crate::upstream::connection::fair_shares::{FairShares, ShareError};
use crate::upstream::requester::{Requester, SlotHolder};
use weir_base::metrics::Registry;
use weir_kubernetes::numeric::saturating_i64;

/// Most holders that are listed of each kind.
const MAX_HOLDERS: usize = 20;

/// Watches on one HTTP/2 connection: the number of streams that kube-apiserver allows.
const WATCHES_PER_CONNECTION: usize = 100;

/// The kinds of slots, as metrics (label `kind`) and operators name them.
const LONG_RUNNING: &str = "long-running";
const WATCH: &str = "watch";
const UNVERIFIED_LONG_RUNNING: &str = "unproven-long-running";
const UNVERIFIED: &str = "unproven";

/// The metrics `weir_upstream_places` and `weir_upstream_places_taken`: slots in total and in use.
#[derive(Debug)]
pub struct SlotMetrics {
    total: IntGaugeVec,
    used: IntGaugeVec,
}

impl SlotMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        Self {
            total: registry.gauges(
                "weir_upstream_places",
                "Slots for requests by kind: long-running requests with a connection to the API server each (long-running; watches that share connections take one for each connection), watches that share connections (watch), and requests without an accepted credential (unproven, unproven-long-running).",
                &["kind"],
            ),
            used: registry.gauges(
                "weir_upstream_places_taken",
                "Slots in use, by kind; /debug/places names the users and addresses that hold most of them.",
                &["kind"],
            ),
        }
    }

    fn gauge(&self, kind: &str, total: usize) -> IntGauge {
        let total = saturating_i64(total);
        self.total.with_label_values(&[kind]).set(total);
        self.used.with_label_values(&[kind])
    }
}

/// Slots for connections and requests, shared by all workers.
#[derive(Clone, Debug)]
pub struct ConnectionBudget {
    max_connections: usize,
    connections: Arc<Semaphore>,
    /// The connections that are kept for reads beside the shared ones.
    reads: Arc<Semaphore>,
    long_running: SlotPool,
    /// Short requests are bounded only if unverified: each of those has a connection to itself.
    short: Option<SlotPool>,
    watches: SlotPool,
    unverified: Arc<[SlotPool; 2]>,
}

/// The slots of one kind, for operators.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotUsage {
    /// The number of slots.
    pub(crate) total: usize,
    /// The number of slots in use.
    pub(crate) used: usize,
    /// The holders of most slots, most first.
    pub(crate) holders: Vec<(SlotHolder, usize)>,
}

/// A permit for one connection. Released on drop.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    _permit: OwnedSemaphorePermit,
}

/// A slot of one request. Released on drop.
#[derive(Debug)]
pub(crate) struct RequestSlot {
    slots: SlotPool,
    holders: Vec<SlotHolder>,
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        self.slots.shares().release(&self.holders);
        self.slots.used.dec();
    }
}

/// The slots of one kind.
#[derive(Clone, Debug)]
struct SlotPool {
    /// The lock is held for one operation, never across an await.
    shares: Arc<Mutex<FairShares<SlotHolder>>>,
    used: IntGauge,
}

impl SlotPool {
    fn new(total: usize, used: IntGauge) -> Self {
        Self {
            shares: Arc::new(Mutex::new(FairShares::new(total))),
            used,
        }
    }

    fn shares(&self) -> MutexGuard<'_, FairShares<SlotHolder>> {
        self.shares.lock()
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
        let (total, used) = shares.counts();
        SlotUsage {
            total,
            used,
            holders: shares.top_holders(number),
        }
    }
}

impl ConnectionBudget {
    /// A budget of this many connections.
    #[must_use]
    pub fn new(max_connections: usize, metrics: &SlotMetrics) -> Self {
        // At least one slot of each kind.
        let max_connections = max_connections.clamp(4, Semaphore::MAX_PERMITS);
        let slots = |kind, total| SlotPool::new(total, metrics.gauge(kind, total));
        Self {
            max_connections,
            connections: Arc::new(Semaphore::new(max_connections)),
            reads: Arc::new(Semaphore::new(max_connections / 4)),
            long_running: slots(LONG_RUNNING, max_connections / 2),
            short: None,
            watches: slots(
                WATCH,
                (max_connections / 2).saturating_mul(WATCHES_PER_CONNECTION),
            ),
            unverified: Arc::new([
                slots(UNVERIFIED_LONG_RUNNING, max_connections / 4),
                slots(UNVERIFIED, max_connections / 2),
            ]),
        }
    }

    /// The same budget, as requests without a verified credential use it.
    #[must_use]
    pub(crate) fn for_unverified(&self) -> Self {
        let [long_running, short] = &*self.unverified;
        Self {
            long_running: long_running.clone(),
            short: Some(short.clone()),
            ..self.clone()
        }
    }

    /// Acquires a permit for a connection.
    pub(crate) fn acquire_connection(&self) -> Result<ConnectionPermit, ForwardError> {
        let permit = Arc::clone(&self.connections).try_acquire_owned();
        permit
            .map(|permit| ConnectionPermit { _permit: permit })
            .map_err(|_| ForwardError::ConnectionLimit(self.max_connections))
    }

    /// Acquires a permit to keep an HTTP/1.1 connection for reads that could also share one.
    pub(crate) fn acquire_read_connection(&self) -> Option<ConnectionPermit> {
        let permit = Arc::clone(&self.reads).try_acquire_owned().ok()?;
        Some(ConnectionPermit { _permit: permit })
    }

    /// Acquires the slot of a long-running request with an HTTP/1.1 connection to itself.
    pub(crate) fn acquire_long_running(
        &self,
        requester: &Requester,
    ) -> Result<RequestSlot, ForwardError> {
        self.acquire_slot(&self.long_running, requester.holders())
    }

    /// Acquires the slot of a connection that watches share. Such connections are one holder, which
    /// leaves half to other long-running requests.
    pub(crate) fn acquire_watch_connection(&self) -> Result<RequestSlot, ForwardError> {
        let watches = SlotHolder::User(String::new()); // no user has an empty name
        let slot = self.long_running.acquire(vec![watches]);
        slot.map_err(|_| ForwardError::ConnectionLimit(self.max_connections))
    }

    /// Acquires the slot of a watch on a connection that watches share.
    pub(crate) fn acquire_watch(&self, requester: &Requester) -> Result<RequestSlot, ForwardError> {
        self.acquire_slot(&self.watches, requester.holders())
    }

    /// Acquires the slot of a short request, where short requests are bounded. Its user is not
    /// verified, so only its network counts.
    pub(crate) fn acquire_short(
        &self,
        requester: &Requester,
    ) -> Result<Option<RequestSlot>, ForwardError> {
        let network = requester.network.map(SlotHolder::Network);
        let holders = || network.into_iter().collect();
        let short = self.short.as_ref();
        short
            .map(|slots| self.acquire_slot(slots, holders()))
            .transpose()
    }

    fn acquire_slot(
        &self,
        slots: &SlotPool,
        holders: Vec<SlotHolder>,
    ) -> Result<RequestSlot, ForwardError> {
        slots.acquire(holders).map_err(|error| match error {
            ShareError::Full => ForwardError::ConnectionLimit(self.max_connections),
            ShareError::HolderLimit(holder) => ForwardError::ShareExceeded(holder),
        })
    }

    /// The slots of each kind and their holders, for operators: a line each, its columns separated
    /// by tabs.
    #[must_use]
    pub(crate) fn dump(&self) -> String {
        let mut lines = vec!["KIND\tTAKEN\tOF\tHOLDER".to_owned()];
        for (kind, usage) in self.snapshot(MAX_HOLDERS) {
            lines.push(format!("{kind}\t{}\t{}\t", usage.used, usage.total));
            for (holder, used) in usage.holders {
                lines.push(format!("{kind}\t{used}\t{}\t{holder}", usage.total));
            }
        }
        lines.push(String::new());
        lines.join("\n")
    }

    /// The slots in use, for operators: of long-running requests with a connection each, and of
    /// watches that share connections, each with at most `holders` holders.
    #[must_use]
    pub(crate) fn snapshot(&self, holders: usize) -> [(&'static str, SlotUsage); 4] {
        let [unverified_long_running, unverified_short] = &*self.unverified;
        [
            (LONG_RUNNING, self.long_running.usage(holders)),
            (WATCH, self.watches.usage(holders)),
            (
                UNVERIFIED_LONG_RUNNING,
                unverified_long_running.usage(holders),
            ),
            (UNVERIFIED, unverified_short.usage(holders)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use weir_kubernetes::api::UserInfo;

    fn requester(last: u8) -> Requester {
        Requester {
            user: None,
            network: Some(IpAddr::from([192, 0, 2, last])),
        }
    }

    #[test]
    fn long_running_requests_get_half_and_unverified_ones_a_quarter() {
        let budget = ConnectionBudget::new(8, &SlotMetrics::register(&Registry::new()));
        let unverified = budget.for_unverified();
        let long_running: Vec<_> = (1..9)
            .map_while(|n| budget.acquire_long_running(&requester(n)).ok())
            .collect();
        assert_eq!(long_running.len(), 4);
        assert!(matches!(
            budget.acquire_long_running(&requester(9)),
            Err(ForwardError::ConnectionLimit(8))
        ));
        let unverified_slots: Vec<_> = (1..9)
            .map_while(|n| unverified.acquire_long_running(&requester(n)).ok())
            .collect();
        assert_eq!(unverified_slots.len(), 2);
        let short: Vec<_> = (1..9)
            .map_while(|n| unverified.acquire_short(&requester(n)).ok())
            .collect();
        assert_eq!(short.len(), 4);
        assert!(
            budget.acquire_short(&requester(1)).unwrap().is_none(),
            "known ones share connections"
        );
        drop(long_running);
        assert!(budget.acquire_long_running(&requester(9)).is_ok());
        let _all: Vec<_> = (0..8)
            .map(|_| unverified.acquire_connection().unwrap())
            .collect();
        assert!(matches!(
            budget.acquire_connection(),
            Err(ForwardError::ConnectionLimit(8))
        ));
    }

    #[test]
    fn a_quarter_of_the_connections_is_kept_for_reads() {
        let budget = ConnectionBudget::new(8, &SlotMetrics::register(&Registry::new()));
        let other_worker = budget.clone();
        let first = budget.acquire_read_connection();
        let second = other_worker.acquire_read_connection();
        assert!(first.is_some() && second.is_some());
        assert!(budget.acquire_read_connection().is_none());
        drop(second);
        assert!(budget.acquire_read_connection().is_some());
    }

    #[test]
    fn one_user_or_network_gets_half_of_a_kind() {
        let budget = ConnectionBudget::new(16, &SlotMetrics::register(&Registry::new()));
        let user = |name: &str| Requester {
            user: Some(Arc::new(UserInfo {
                name: name.to_owned(),
                ..UserInfo::anonymous()
            })),
            network: None,
        };
        let _held: Vec<_> = (0..4)
            .map(|_| budget.acquire_long_running(&user("alice")).unwrap())
            .collect();
        let error = budget.acquire_long_running(&user("alice"));
        let alice = SlotHolder::User("alice".to_owned());
        assert!(matches!(error, Err(ForwardError::ShareExceeded(holder)) if holder == alice));
        assert!(
            budget.acquire_long_running(&user("bob")).is_ok()
                && budget.acquire_watch(&user("alice")).is_ok()
        );
        let [(_, long_running), ..] = budget.snapshot(1);
        assert_eq!((long_running.total, long_running.used), (8, 4));
        assert_eq!(long_running.holders, [(alice, 4)]);
    }

    #[test]
    fn every_kind_has_at_least_one_slot() {
        let budget = ConnectionBudget::new(0, &SlotMetrics::register(&Registry::new()));
        for budget in [budget.for_unverified(), budget] {
            assert!(
                budget.acquire_connection().is_ok()
                    && budget.acquire_long_running(&requester(1)).is_ok()
            );
            assert!(
                budget.acquire_watch(&requester(1)).is_ok()
                    && budget.acquire_short(&requester(1)).is_ok()
            );
            assert!(budget.acquire_watch_connection().is_ok());
        }
    }
}
