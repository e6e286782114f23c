//! The API server is asked what it has counted: how many objects there are and how large, from its metrics.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tracing::debug;
use tracing::info;
use tracing::warn;

use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::resource_metrics::ResourceMetrics;
use crate::upstream::own_calls::OwnCalls;

const METRICS: &str = "/metrics";

/// The largest clusters' metrics have a few tens of MB.
const MOST_BYTES: usize = 256 << 20;

/// So many periods pass until the next try where weir may not read metrics.
const PERIODS_AFTER_REFUSAL: u32 = 10;

/// Asks from time to time.
#[derive(Debug)]
pub(super) struct ObjectCountPolls {
    calls: OwnCalls,
    controller: Arc<Controller>,
    period: Duration,
}

/// What became of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polled {
    Learned,
    Failed,
    Refused(StatusCode),
}

impl ObjectCountPolls {
    pub(super) const fn new(
        calls: OwnCalls,
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
        let mut before = None;
        loop {
            let polled = self.poll().await;
            if before != Some(polled) {
                tell(polled);
            }
            before = Some(polled);
            let periods = match polled {
                Polled::Learned | Polled::Failed => 1,
                Polled::Refused(_) => PERIODS_AFTER_REFUSAL,
            };
            // As kube-apiserver spreads its own.
            let time = self.period * periods;
            tokio::time::sleep(time + time.mul_f64(fastrand::f64() * 0.2)).await;
        }
    }

    async fn poll(&self) -> Polled {
        let mut metrics = ResourceMetrics::default();
        let asked = self
            .calls
            .stream(METRICS, MOST_BYTES, |piece| metrics.feed(piece));
        match asked.await {
            Ok(StatusCode::OK) => {
                self.controller.learn_counted(&metrics);
                Polled::Learned
            }
            Ok(
                code @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND),
            ) => Polled::Refused(code),
            Ok(code) => {
                debug!(%code, "the API server's metrics cannot be read");
                Polled::Failed
            }
            Err(why) => {
                debug!(%why, "the API server's metrics cannot be read");
                Polled::Failed
            }
        }
    }
}

fn tell(polled: Polled) {
    match polled {
        Polled::Learned => info!("seats are estimated by the API server's own object counts"),
        Polled::Refused(code) => info!(
            %code,
            "may not read the API server's metrics (nonResourceURLs /metrics, get): seats are estimated by the lists and watches that pass through"
        ),
        Polled::Failed => warn!(
            "cannot read the API server's metrics: seats are estimated by the lists and watches that pass through"
        ),
    }
}
