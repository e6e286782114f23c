//! The rate limit of upgrade requests without a proven credential.
//!
//! Each upgrade request has its own connection to the API server. It costs the API server a TLS
//! handshake before it knows the user: about a millisecond, a hundred times as much as it costs the
//! client. A token bucket for each source network limits that. A request whose credential the API
//! server has accepted before is not counted, so a user of `kubectl exec` is limited with new
//! tokens only.
//!
//! Neither seats nor places for long-running requests bound this rate, since a rejected upgrade is
//! over at once. Ordinary unproven requests reuse connections.

use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use prometheus::IntCounter;

use crate::limits::rejection::Rejection;
use weir_base::metrics::Registry;
use weir_limits::rate::lru::Lru;
use weir_limits::rate::lru_key::{LruKey, LruKeyHasher};
use weir_limits::rate::spin_lock::spin_lock;
use weir_limits::throttling::token_bucket::{Rate, TokenBucket, retry_after_seconds};

/// The default of `--unproven-upgrades-per-second`: more than the users and CI jobs behind one
/// address start with new tokens, and about a hundredth of one core of the API server for
/// handshakes.
pub const DEFAULT_UPGRADES_PER_SECOND: u32 = 10;

/// The burst in seconds of the rate: a dashboard page opens several streams at once.
pub const UPGRADE_BURST_SECONDS: u32 = 5;

/// The most networks with a bucket. The least recently used is evicted.
const MAX_NETWORKS: usize = 4096;

/// The token buckets, shared by all workers.
#[derive(Debug)]
pub struct UpgradeRateLimit {
    /// `None` if there is no limit.
    rate: Option<Rate>,
    keys: LruKeyHasher,
    /// Locked for one step. No await happens under the lock.
    buckets: Mutex<Lru<TokenBucket>>,
    rejected: IntCounter,
}

impl UpgradeRateLimit {
    /// Allows `per_second` requests for each network, and a burst of [`UPGRADE_BURST_SECONDS`]
    /// times as many; 0 is no limit.
    #[must_use]
    pub fn new(per_second: u32, registry: &Registry) -> Arc<Self> {
        let burst = per_second.saturating_mul(UPGRADE_BURST_SECONDS);
        Arc::new(Self {
            rate: (per_second > 0).then(|| Rate::new(per_second, burst)),
            keys: LruKeyHasher::default(),
            buckets: Mutex::new(Lru::new(MAX_NETWORKS)),
            rejected: registry.counter(
                "weir_unproven_upgrades_rejected_total",
                "Requests for another protocol (Upgrade) without a credential that the API server has accepted that were rejected because their network sent more than --unproven-upgrades-per-second.",
            ),
        })
    }

    /// The limit of `per_second` requests, which replaces this one: the same if the rate is the
    /// same. With another rate, all buckets are full.
    #[must_use]
    pub(crate) fn replaced_by(self: &Arc<Self>, per_second: u32, registry: &Registry) -> Arc<Self> {
        let new = Self::new(per_second, registry);
        if new.rate == self.rate {
            Arc::clone(self)
        } else {
            new
        }
    }

    /// Admits a request from this network. `None` is the address of a trusted proxy, which many
    /// clients share: it has no limit.
    ///
    /// # Errors
    /// [`Rejection::UnprovenUpgrade`] if the bucket of the network is empty.
    pub(crate) fn admit(&self, network: Option<IpAddr>, now: Instant) -> Result<(), Rejection> {
        let Some((rate, network)) = self.rate.as_ref().zip(network) else {
            return Ok(());
        };
        let key = self.network_key(network);
        let token = {
            let mut buckets = spin_lock(&self.buckets);
            let (bucket, _) = buckets.get_or_insert_with(key, || TokenBucket::full(rate, now));
            bucket.take(rate, now)
        };
        token.map_err(|wait| {
            self.rejected.inc();
            Rejection::UnprovenUpgrade {
                retry_after: retry_after_seconds(wait),
            }
        })
    }

    fn network_key(&self, network: IpAddr) -> LruKey {
        match network {
            IpAddr::V4(address) => self.keys.hash_separate([&address.octets()[..]]),
            IpAddr::V6(address) => self.keys.hash_separate([&address.octets()[..]]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn network(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn each_network_has_its_own_burst_and_rate() {
        let registry = Registry::new();
        let (upgrades, now) = (UpgradeRateLimit::new(2, &registry), Instant::now());
        for _ in 0..2 * UPGRADE_BURST_SECONDS {
            upgrades.admit(network(1), now).unwrap();
        }
        let rejected = upgrades.admit(network(1), now);
        assert!(
            matches!(rejected, Err(Rejection::UnprovenUpgrade { retry_after: 1 })),
            "{rejected:?}"
        );
        upgrades.admit(network(2), now).unwrap();
        let later = now + Duration::from_secs(1);
        assert!(
            upgrades.admit(network(1), later).is_ok() && upgrades.admit(network(1), later).is_ok()
        );
        assert!(upgrades.admit(network(1), later).is_err());
        let count = "weir_unproven_upgrades_rejected_total 2";
        assert!(registry.render().contains(count));
    }

    #[test]
    fn the_buckets_stay_unless_the_rate_changes() {
        let registry = Registry::new();
        let (first, now) = (UpgradeRateLimit::new(1, &registry), Instant::now());
        for _ in 0..UPGRADE_BURST_SECONDS {
            first.admit(network(1), now).unwrap();
        }
        let same = first.replaced_by(1, &registry);
        same.admit(network(1), now).unwrap_err();
        let faster = same.replaced_by(2, &registry);
        faster.admit(network(1), now).unwrap();
    }

    #[test]
    fn requests_pass_without_a_rate_or_a_network() {
        let now = Instant::now();
        let unlimited = UpgradeRateLimit::new(0, &Registry::new());
        let limited = UpgradeRateLimit::new(1, &Registry::new());
        for _ in 0..1000 {
            unlimited.admit(network(1), now).unwrap();
            limited.admit(None, now).unwrap();
        }
    }
}
