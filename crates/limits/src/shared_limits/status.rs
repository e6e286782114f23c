//! Whether the shared buckets can be reached, for operators.

use std::sync::Arc;

use arc_swap::ArcSwap;
use prometheus::{IntCounter, IntCounterVec, IntGauge};

use weir_base::metrics::Registry;

/// The connection to the server of the shared buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedServerState {
    /// No connection has been made or failed yet.
    Starting,
    /// Calls are answered.
    Connected,
    /// Each replica admits its share of the rates; this is why.
    Away(String),
}

/// The state, and the metrics.
#[derive(Debug)]
pub struct SharedLimitsStatus {
    server: String,
    state: ArcSwap<SharedServerState>,
    connected: IntGauge,
    replicas: IntGauge,
    refills: IntCounter,
    failures: IntCounter,
}

impl SharedLimitsStatus {
    /// Registers the metrics. `server` is the name for operators.
    #[must_use]
    pub fn register(server: String, replicas: u32, registry: &Registry) -> Arc<Self> {
        let calls: IntCounterVec = registry.counters(
            "weir_shared_limits_calls_total",
            "Calls for shared buckets, by result. Calls that failed are those of a whole batch.",
            &["result"],
        );
        let status = Self {
            server,
            state: ArcSwap::from_pointee(SharedServerState::Starting),
            connected: registry.gauge(
                "weir_shared_limits_connected",
                "Whether the server of --shared-limits answers. While it does not, each replica \
                 admits its share of every rate.",
            ),
            replicas: registry.gauge(
                "weir_shared_limits_replicas",
                "The last known number of replicas that share the rates.",
            ),
            refills: calls.with_label_values(&["answered"]),
            failures: calls.with_label_values(&["failed"]),
        };
        status.set_replicas(replicas);
        Arc::new(status)
    }

    /// The last known number of replicas.
    fn replicas(&self) -> u32 {
        u32::try_from(self.replicas.get()).unwrap_or(1)
    }

    /// Why each replica admits its share only; `None` while the rates are shared.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        match &*self.state.load_full() {
            SharedServerState::Connected => None,
            SharedServerState::Starting => Some(self.with_share("not connected yet")),
            SharedServerState::Away(why) => Some(self.with_share(why)),
        }
    }

    fn with_share(&self, why: &str) -> String {
        let (server, replicas) = (&self.server, self.replicas());
        format!("each replica admits 1/{replicas} of every rate: {server}: {why}")
    }

    pub(super) fn set_replicas(&self, replicas: u32) {
        self.replicas.set(replicas.into());
    }

    pub(super) fn add_calls(&self, calls: usize, failed: bool) {
        let counter = if failed {
            &self.failures
        } else {
            &self.refills
        };
        counter.inc_by(u64::try_from(calls).unwrap_or(u64::MAX));
    }

    /// Sets the state, and logs a line if it is another one.
    pub(super) fn set(&self, state: SharedServerState) {
        let earlier = self.state.load_full();
        if *earlier == state {
            return;
        }
        self.connected
            .set((state == SharedServerState::Connected).into());
        let (server, replicas) = (&self.server, self.replicas());
        match &state {
            SharedServerState::Starting => {}
            SharedServerState::Connected => {
                tracing::info!(%server, replicas, "rate limits are shared with the other replicas");
            }
            // Each attempt to connect may fail in another way.
            SharedServerState::Away(why) if matches!(*earlier, SharedServerState::Away(_)) => {
                tracing::debug!(%server, error = %why, "rate limits are still not shared");
            }
            SharedServerState::Away(why) => tracing::warn!(
                %server,
                replicas,
                error = %why,
                "rate limits are not shared: each replica admits its share of every rate"
            ),
        }
        self.state.store(Arc::new(state));
    }
}
