//! What a hand-over needs of a running proxy, on both sides: its listening sockets and its state.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tracing::warn;

use crate::app::lifecycle::state::LearnedState;
use crate::flowcontrol::sources::ClusterStatus;
use crate::handover::channel::HandoverChannel;
use crate::handover::listeners::ListenerId;
use crate::handover::message::{HeldSeats, Message};
use crate::observe::readiness::Readiness;
use weir_base::process_metrics::HandoverMetrics;

/// How long a new process waits for the API server before it serves in any case. The old process
/// serves meanwhile.
const READINESS_TIMEOUT: Duration = Duration::from_secs(10);

/// How often it looks.
const READINESS_RETRY: Duration = Duration::from_millis(100);

/// What a hand-over needs of a running proxy.
#[derive(Clone, Debug)]
pub(crate) struct HandoverParts {
    /// Weak, so that a port closes when its listener ends.
    pub(crate) listeners: Vec<(ListenerId, Weak<TcpListener>)>,
    pub(crate) readiness: Arc<Readiness>,
    /// Counts the turns of each worker's maintenance.
    pub(crate) heartbeats: Vec<Arc<AtomicU64>>,
    pub(crate) state: LearnedState,
    /// Counts hand-overs from and to this process.
    pub(crate) metrics: HandoverMetrics,
}

impl HandoverParts {
    /// Offers the listening sockets to a process that will be started with the second value as its
    /// standard input.
    ///
    /// # Errors
    /// The system provides no socket.
    pub(crate) fn offer(&self) -> io::Result<(HandoverChannel, UnixStream)> {
        let open = self.listeners.iter();
        let open: Vec<_> = open
            .filter_map(|(id, listener)| Some((*id, listener.upgrade()?)))
            .collect();
        let listeners: Vec<_> = open
            .iter()
            .map(|(id, listener)| (*id, listener.as_fd()))
            .collect();
        HandoverChannel::offer(&listeners)
    }

    /// Waits until the proxy is ready and has read the cluster's flow schemas and priority levels, or
    /// for a limited time.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn wait_until_ready(&self) {
        let ready = async {
            loop {
                self.readiness.refreshed().await;
                if self.readiness.is_ready() && !self.is_cluster_pending() {
                    return;
                }
                tokio::time::sleep(READINESS_RETRY).await;
            }
        };
        if timeout(READINESS_TIMEOUT, ready).await.is_err() {
            warn!(
                seconds = READINESS_TIMEOUT.as_secs(),
                "not ready in time: this process takes over nevertheless"
            );
        }
    }

    /// Whether the cluster's flow schemas and priority levels are about to be read.
    fn is_cluster_pending(&self) -> bool {
        let live = self.state.limiters.flowcontrol();
        live.is_some_and(|live| live.cluster_status() == ClusterStatus::Pending)
    }

    /// What this process has learned, for the next one. Until [`keep`](Self::keep), levers do not
    /// change in this one.
    pub(crate) fn save_state(&self) -> Message {
        self.state.save()
    }

    /// The next process has not taken over.
    pub(crate) fn keep(&self) {
        self.state.keep();
    }

    /// Takes over what the process before has learned.
    pub(crate) fn restore_state(&self, version: u32, state: Value) {
        self.state.restore(version, state);
    }

    /// What requests of this process, and of those before it, hold of the limits of concurrency.
    #[must_use]
    pub(crate) fn held(&self) -> HeldSeats {
        self.state.held()
    }

    /// Leaves to the processes before this one what they hold.
    pub(crate) fn reserve(&self, held: HeldSeats) {
        self.state.reserve(held);
    }

    /// The turns of each worker's maintenance since the start. A worker that serves takes several a
    /// second.
    #[must_use]
    pub(crate) fn heartbeats(&self) -> Vec<u64> {
        let beats = self.heartbeats.iter();
        beats.map(|beats| beats.load(Ordering::Relaxed)).collect()
    }
}
