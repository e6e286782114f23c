//! The API server is asked what it has counted: how many objects there are and how large, from its metrics; and, once these were
//! tried, by lists of one object where they tell nothing.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::uri::PathAndQuery;
use tracing::debug;
use tracing::info;
use tracing::warn;

use crate::app::list_counter::ListCounter;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::work_estimator::resource_metrics::ResourceMetrics;
use crate::upstream::forward::api_server_client::ApiServerClient;

const METRICS_PATH: &str = "/metrics";

/// The largest clusters' metrics have a few tens of MB.
const MAX_BYTES: usize = 256 << 20;

/// So many periods pass until the next try where weir may not read metrics.
const PERIODS_AFTER_DENIAL: u32 = 10;

/// Asks from time to time.
#[derive(Debug)]
pub(super) struct ObjectCountPolls {
    calls: ApiServerClient,
    controller: Arc<Controller>,
    period: Duration,
}

/// What became of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollOutcome {
    Counted,
    /// They have no counts.
    NoCounts,
    Failed,
    Denied(StatusCode),
}

impl ObjectCountPolls {
    pub(super) const fn new(
        calls: ApiServerClient,
        controller: Arc<Controller>,
        period: Duration,
    ) -> Self {
        Self {
            calls,
            controller,
            period,
        }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(self) {
        self.controller.enable_object_counting();
        let polled = self.poll().await;
        log_outcome(polled);
        let calls = ListCounter::new(self.calls.clone(), Arc::clone(&self.controller));
        tokio::join!(self.poll_periodically(polled), calls.run());
    }

    async fn poll_periodically(&self, mut polled: PollOutcome) {
        loop {
            let periods = match polled {
                PollOutcome::Counted | PollOutcome::NoCounts | PollOutcome::Failed => 1,
                PollOutcome::Denied(_) => PERIODS_AFTER_DENIAL,
            };
            // As kube-apiserver spreads its own.
            let time = self.period * periods;
            tokio::time::sleep(time + time.mul_f64(fastrand::f64() * 0.2)).await;
            let before = std::mem::replace(&mut polled, self.poll().await);
            if before != polled {
                log_outcome(polled);
            }
        }
    }

    async fn poll(&self) -> PollOutcome {
        let mut metrics = ResourceMetrics::default();
        let mut left = MAX_BYTES;
        let path = PathAndQuery::from_static(METRICS_PATH);
        let asked = self.calls.stream(path, None, |piece| {
            metrics.feed(piece);
            left = left.saturating_sub(piece.len());
            match left {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        match asked.await {
            Ok((StatusCode::OK, ControlFlow::Continue(()))) => {
                self.controller.record_server_counts(&metrics);
                if metrics.counts().next().is_some() {
                    PollOutcome::Counted
                } else {
                    PollOutcome::NoCounts
                }
            }
            Ok((
                code @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND),
                _,
            )) => PollOutcome::Denied(code),
            Ok((code, _)) => {
                debug!(%code, "the API server's metrics cannot be read");
                PollOutcome::Failed
            }
            Err(why) => {
                debug!(%why, "the API server's metrics cannot be read");
                PollOutcome::Failed
            }
        }
    }
}

fn log_outcome(polled: PollOutcome) {
    match polled {
        PollOutcome::Counted => info!("seats are estimated by the API server's own object counts"),
        PollOutcome::Denied(code) => info!(
            %code,
            "may not read the API server's metrics (nonResourceURLs /metrics, get): seats are estimated by the lists and watches that pass through, and by lists of one object where weir may list"
        ),
        PollOutcome::NoCounts => info!(
            "the API server's metrics have no object counts: seats are estimated by the lists and watches that pass through, and by lists of one object where weir may list"
        ),
        PollOutcome::Failed => warn!(
            "cannot read the API server's metrics: seats are estimated by the lists and watches that pass through, and by lists of one object where weir may list"
        ),
    }
}
