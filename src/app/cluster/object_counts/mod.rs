//! Polls the API server's metrics for the number and size of its objects, and for its own seats.
//! Once the metrics were tried, lists of one object count what they lack.

mod list_counter;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::uri::PathAndQuery;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::app::cluster::denials;
use crate::app::cluster::denials::Denials;
use crate::app::cluster::object_counts::list_counter::ListCounter;
use crate::flowcontrol::controller::Controller;
use crate::identity::transport::RemoteError;
use crate::limits::total_finder::{PublishedSeats, TotalFinder};
use crate::upstream::forward::api_server_client::ApiServerClient;
use crate::upstream::servers::api_server::ApiServer;
use weir_base::clock::Clock;
use weir_flowcontrol::work_estimator::resource_metrics::ResourceMetrics;

const METRICS_PATH: &str = "/metrics";

/// Maximum response in bytes: the metrics of the largest clusters have a few tens of MB.
const MAX_BYTES: usize = 256 << 20;

/// The number of periods until the next try if weir may not read metrics.
const PERIODS_AFTER_DENIAL: u32 = 10;

/// The time until the next try after a 403 that does not show that a right is missing.
const DENIAL_RETRY: Duration = Duration::from_secs(2);

/// What the metrics of an API server say, and how the answer ended: at its end, or at the most that
/// is read. Without `server`, of any.
pub(crate) async fn read_metrics(
    calls: &ApiServerClient,
    server: Option<&Arc<ApiServer>>,
) -> (
    ResourceMetrics,
    Result<(StatusCode, ControlFlow<()>), RemoteError>,
) {
    let mut metrics = ResourceMetrics::default();
    let mut remaining = MAX_BYTES;
    let path = PathAndQuery::from_static(METRICS_PATH);
    let sink = |piece: &[u8]| {
        metrics.feed(piece);
        remaining = remaining.saturating_sub(piece.len());
        match remaining {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    };
    let response = match server {
        None => calls.stream(path, None, sink).await,
        Some(server) => calls.stream_of(server, path, sink).await,
    };
    (metrics, response)
}

/// Polls periodically.
#[derive(Debug)]
pub(crate) struct ObjectCountPolls {
    calls: ApiServerClient,
    /// Estimates seats by the counts. `None` with max-in-flight.
    controller: Option<Arc<Controller>>,
    finder: Arc<TotalFinder>,
    /// Zero pauses the polls.
    period: watch::Receiver<Duration>,
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollOutcome {
    Counted,
    /// The metrics have no counts.
    NoCounts,
    Failed,
    Denied(StatusCode),
    /// A 403 that does not show yet that a right is missing.
    Forbidden,
}

impl PollOutcome {
    const fn is_read(self) -> bool {
        matches!(self, Self::Counted | Self::NoCounts)
    }
}

impl ObjectCountPolls {
    pub(crate) const fn new(
        calls: ApiServerClient,
        controller: Option<Arc<Controller>>,
        finder: Arc<TotalFinder>,
        period: watch::Receiver<Duration>,
    ) -> Self {
        Self {
            calls,
            controller,
            finder,
            period,
        }
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        if self
            .period
            .wait_for(|period| !period.is_zero())
            .await
            .is_err()
        {
            return; // nothing enables the polls any more
        }
        if let Some(controller) = &self.controller {
            controller.enable_object_counting();
        }
        let mut denials = Denials::default();
        let polled = self.poll(&mut denials).await;
        self.log_outcome(polled);
        let period = self.period.clone();
        let polls = self.poll_periodically(period, polled, denials);
        match &self.controller {
            Some(controller) => {
                let lists = ListCounter::new(self.calls.clone(), Arc::clone(controller));
                tokio::join!(polls, lists.run());
            }
            None => polls.await,
        }
    }

    async fn poll_periodically(
        &self,
        mut period: watch::Receiver<Duration>,
        mut polled: PollOutcome,
        mut denials: Denials,
    ) {
        let mut ready = self.calls.ready_events();
        loop {
            // Jitter, as kube-apiserver's own polls have.
            let every = *period.borrow_and_update();
            let time = match polled {
                PollOutcome::Counted | PollOutcome::NoCounts | PollOutcome::Failed => every,
                PollOutcome::Denied(_) => every * PERIODS_AFTER_DENIAL,
                PollOutcome::Forbidden => every.min(DENIAL_RETRY),
            };
            let has_counts = polled.is_read();
            let elapsed = async {
                if every.is_zero() {
                    std::future::pending().await
                } else {
                    tokio::time::sleep(time + time.mul_f64(fastrand::f64() * 0.2)).await;
                }
            };
            tokio::select! {
                () = elapsed => {}
                Ok(()) = period.changed() => {} // the first poll of the new period is now
                Ok(()) = ready.changed(), if !has_counts => {}
                else => return,
            }
            if period.borrow().is_zero() {
                continue;
            }
            ready.mark_unchanged();
            let before = std::mem::replace(&mut polled, self.poll(&mut denials).await);
            if before != polled {
                self.log_outcome(polled);
            }
        }
    }

    /// Reads the metrics of each server: their seats may differ, their objects do not. Several are
    /// read by their own addresses.
    async fn poll(&self, denials: &mut Denials) -> PollOutcome {
        let servers = self.calls.servers();
        let mut published = PublishedSeats::default();
        let mut polled = None;
        if servers.len() < 2 {
            polled = Some(self.poll_server(None, denials, &mut published).await);
        } else {
            for server in &servers {
                let outcome = self
                    .poll_server(Some(server), denials, &mut published)
                    .await;
                // What one server says of the objects is enough.
                let is_counted = polled.is_some_and(PollOutcome::is_read);
                polled = polled.filter(|_| is_counted).or(Some(outcome));
            }
        }
        let polled = polled.unwrap_or(PollOutcome::Failed);
        if polled.is_read() {
            self.finder.record_seats(published);
        }
        polled
    }

    async fn poll_server(
        &self,
        server: Option<&Arc<ApiServer>>,
        denials: &mut Denials,
        published: &mut PublishedSeats,
    ) -> PollOutcome {
        let (metrics, response) = read_metrics(&self.calls, server).await;
        match response {
            Ok((StatusCode::OK, ControlFlow::Continue(()))) => {
                denials.reset();
                if let Some(controller) = &self.controller {
                    controller.record_server_counts(&metrics);
                }
                published.add(&metrics);
                if metrics.counts().next().is_some() {
                    PollOutcome::Counted
                } else {
                    PollOutcome::NoCounts
                }
            }
            Ok((StatusCode::FORBIDDEN, _))
                if !denials.record(
                    Clock.now(),
                    self.calls.is_server_ready(),
                    denials::GRACE.min(*self.period.borrow()),
                ) =>
            {
                PollOutcome::Forbidden
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

    fn log_outcome(&self, polled: PollOutcome) {
        if self.controller.is_none() {
            return; // nothing is estimated
        }
        match polled {
            PollOutcome::Counted => {
                info!("seats are estimated by the API server's own object counts")
            }
            PollOutcome::Denied(code) => info!(
                %code,
                "may not read the API server's metrics (nonResourceURLs /metrics, get): seats are estimated by the lists and watches that pass through, and by lists of one object where weir may list"
            ),
            PollOutcome::NoCounts => info!(
                "the API server's metrics have no object counts: seats are estimated by the lists and watches that pass through, and by lists of one object where weir may list"
            ),
            PollOutcome::Forbidden => {
                debug!("the API server's metrics are forbidden: they are tried again in seconds")
            }
            PollOutcome::Failed => warn!(
                "cannot read the API server's metrics: seats are estimated by the lists and watches that pass through, and by lists of one object where weir may list"
            ),
        }
    }
}
