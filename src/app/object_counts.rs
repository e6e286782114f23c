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

use crate::app::count_calls::CountCalls;
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
    /// They have no counts.
    Nothing,
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
        self.controller.ask_for_counts();
        let polled = self.poll().await;
        tell(polled);
        let calls = CountCalls::new(self.calls.clone(), Arc::clone(&self.controller));
        tokio::join!(self.poll_again(polled), calls.run());
    }

    async fn poll_again(&self, mut polled: Polled) {
        loop {
            let periods = match polled {
                Polled::Learned | Polled::Nothing | Polled::Failed => 1,
                Polled::Refused(_) => PERIODS_AFTER_REFUSAL,
            };
            // As kube-apiserver spreads its own.
            let time = self.period * periods;
            tokio::time::sleep(time + time.mul_f64(fastrand::f64() * 0.2)).await;
            let before = std::mem::replace(&mut polled, self.poll().await);
            if before != polled {
                tell(polled);
            }
        }
    }

    async fn poll(&self) -> Polled {
        let mut metrics = ResourceMetrics::default();
        let mut left = MOST_BYTES;
        let path = PathAndQuery::from_static(METRICS);
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
                self.controller.learn_counted(&metrics);
                if metrics.counted().next().is_some() {
                    Polled::Learned
                } else {
                    Polled::Nothing
                }
            }
            Ok((
                code @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND),
                _,
            )) => Polled::Refused(code),
            Ok((code, _)) => {
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
            "may not read the API server's metrics (nonResourceURLs /metrics, get): seats are estimated by the lists and watches that pass through, and by lists of one object where weir may list"
        ),
        Polled::Nothing => info!(
            "the API server's metrics have no object counts: seats are estimated by the lists and watches that pass through, and by lists of one object where weir may list"
        ),
        Polled::Failed => warn!(
            "cannot read the API server's metrics: seats are estimated by the lists and watches that pass through, and by lists of one object where weir may list"
        ),
    }
}
