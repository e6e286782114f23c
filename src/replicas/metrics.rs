//! The metrics of the division among replicas.

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

use weir_agreement::agreement::{PoolInput, Standing};
use weir_agreement::message::{POOL_NAMES, POOLS};
use weir_agreement::peer::PeerStatus;
use weir_base::metrics::Registry;
use weir_kubernetes::numeric::saturating_i64;

/// The standings, as values of the label `state`.
const STANDINGS: [(&str, Option<Standing>); 6] = [
    ("off", None),
    ("joining", Some(Standing::Joining)),
    ("member", Some(Standing::Member)),
    ("waiting", Some(Standing::Waiting)),
    ("cut-off", Some(Standing::CutOff)),
    ("superseded", Some(Standing::Superseded)),
];

/// The word for a standing.
#[must_use]
pub(crate) fn standing_name(standing: Option<Standing>) -> &'static str {
    let known = STANDINGS.iter().find(|(_, known)| *known == standing);
    known.map_or("", |(name, _)| name)
}

const fn result_name(ok: bool) -> &'static str {
    if ok { "success" } else { "failure" }
}

/// The metrics of one replica.
#[derive(Clone, Debug)]
pub struct ReplicaMetrics {
    state: IntGaugeVec,
    replicas: IntGaugeVec,
    share: IntGaugeVec,
    total: IntGaugeVec,
    demand: IntGaugeVec,
    lease_failures: IntCounter,
    exchanges: IntCounterVec,
    snapshots: IntCounterVec,
}

impl ReplicaMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let metrics = Self {
            state: registry.gauges(
                "weir_replica_state",
                "1 for the state of this replica: member (all divide the totals), waiting (some are silent, shares do not grow), cut-off (it uses its floor), joining, superseded, off (it uses all).",
                &["state"],
            ),
            replicas: registry.gauges(
                "weir_replicas",
                "The replicas that this one knows, itself included: live, silent, expired (their floors are reserved), leaving.",
                &["state"],
            ),
            share: registry.gauges(
                "weir_replica_share_seats",
                "What this replica may use of each total: seats, or slots for read-only or mutating requests.",
                &["pool"],
            ),
            total: registry.gauges(
                "weir_replica_total_seats",
                "The totals that replicas divide, by this replica's configuration.",
                &["pool"],
            ),
            demand: registry.gauges(
                "weir_replica_demand_seats",
                "What this replica could use of each total.",
                &["pool"],
            ),
            lease_failures: registry.counter(
                "weir_replica_lease_failures_total",
                "Attempts to renew this replica's Lease or to read those of the others that failed.",
            ),
            exchanges: registry.counters(
                "weir_replica_exchanges_total",
                "Exchanges of messages that this replica began with another, by result.",
                &["result"],
            ),
            snapshots: registry.counters(
                "weir_replica_snapshots_total",
                "Snapshots that this replica requested of another for the status page, by result. failure: it did not come within 2 s, or the other one has a version that sends none.",
                &["result"],
            ),
        };
        // Both results are there from the start, so that their rates are.
        for counters in [&metrics.exchanges, &metrics.snapshots] {
            for ok in [true, false] {
                counters.with_label_values(&[result_name(ok)]);
            }
        }
        metrics
    }

    pub(super) fn show(
        &self,
        standing: Option<Standing>,
        peers: &[PeerStatus],
        limits: [u32; POOLS],
        inputs: [PoolInput; POOLS],
    ) {
        for (name, known) in STANDINGS {
            let gauge = self.state.with_label_values(&[name]);
            gauge.set((known == standing).into());
        }
        for state in ["live", "silent", "expired", "leaving"] {
            let others = peers.iter().filter(|peer| peer.state() == state).count();
            let own = usize::from(state == "live");
            let count = saturating_i64(others + own);
            self.replicas.with_label_values(&[state]).set(count);
        }
        for ((pool, limit), input) in POOL_NAMES.iter().zip(limits).zip(inputs) {
            if input.total == 0 {
                for gauges in [&self.share, &self.total, &self.demand] {
                    let _ = gauges.remove_label_values(&[pool]); // there may be none
                }
                continue;
            }
            let limit = match standing {
                Some(_) => limit,
                None => input.total,
            };
            self.share.with_label_values(&[pool]).set(limit.into());
            let total = self.total.with_label_values(&[pool]);
            total.set(input.total.into());
            let demand = self.demand.with_label_values(&[pool]);
            demand.set(input.demand.into());
        }
    }

    pub(super) fn lease_failed(&self) {
        self.lease_failures.inc();
    }

    /// Counts an exchange that this replica began.
    pub(super) fn exchanged(&self, ok: bool) {
        self.exchanges.with_label_values(&[result_name(ok)]).inc();
    }

    /// Counts a snapshot that this replica requested.
    pub(super) fn snapshot_requested(&self, ok: bool) {
        self.snapshots.with_label_values(&[result_name(ok)]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_results_are_counted_from_zero() {
        let registry = Registry::new();
        let metrics = ReplicaMetrics::register(&registry);
        metrics.exchanged(true);
        metrics.snapshot_requested(false);
        metrics.snapshot_requested(false);
        let rendered = registry.render();
        for line in [
            "weir_replica_exchanges_total{result=\"success\"} 1",
            "weir_replica_exchanges_total{result=\"failure\"} 0",
            "weir_replica_snapshots_total{result=\"success\"} 0",
            "weir_replica_snapshots_total{result=\"failure\"} 2",
        ] {
            assert!(rendered.lines().any(|l| l == line), "{line}:\n{rendered}");
        }
    }
}
