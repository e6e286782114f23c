//! The shutdown sequence, after kube-apiserver's (`genericapiserver.go`, 1.36).
//!
//! First `/readyz` fails. After the delay weir accepts no new connections and closes the open ones
//! as their requests end. Requests end, then watches, spread over the grace period. What is left is
//! cut off.
//!
//! After a hand-over another process serves. Readiness does not fail, and requests and watches end
//! at the same time.

use std::time::{Duration, Instant};

use tokio::time::{timeout, timeout_at};
use tracing::info;

use crate::config::{Config, ShutdownConfig};
use weir_base::clock::Clock;
use weir_base::drain::{Drain, DrainStage};

/// How long connections may take to close once they have no requests: a GOAWAY and a few round
/// trips.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long HTTP/1.1 connections without a request stay open after a hand-over. A client that sends
/// a request within this time receives `Connection: close` with the response. A connection that is
/// closed while a request is on its way to it loses that request.
const KEEP_ALIVE_GRACE: Duration = Duration::from_secs(10);

/// Why the proxy ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// SIGTERM, SIGINT or `weir ctl drain`.
    Signal,
    /// Another process has taken over the listeners.
    HandedOver,
}

/// How the shutdown ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownOutcome {
    /// Every request and watch ended. (Tunnels, which have no end, are cut off.)
    Drained,
    /// Some requests or watches were cut off at the end of their time.
    CutOff,
    /// A second signal forced the shutdown.
    Forced,
}

/// The times of a shutdown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShutdownTimes {
    pub(crate) config: ShutdownConfig,
    /// `--request-timeout`.
    pub(crate) request_timeout: Duration,
}

impl ShutdownTimes {
    pub(crate) const fn from_config(config: &Config) -> Self {
        Self {
            config: config.shutdown,
            request_timeout: config.request_timeout,
        }
    }
}

pub(crate) async fn shut_down(drain: &Drain, times: ShutdownTimes) -> ShutdownOutcome {
    let ShutdownTimes {
        config:
            ShutdownConfig {
                shutdown_delay_duration: delay,
                shutdown_watch_termination_grace_period: watch_grace,
            },
        request_timeout,
    } = times;
    info!(
        delay_seconds = delay.as_secs_f64(),
        "shutting down: /readyz fails from now on"
    );
    drain.advance(DrainStage::NotReady);
    // By then load balancers have seen the failing `/readyz`. Clients with kept-alive connections
    // move elsewhere in the second half.
    tokio::time::sleep(delay / 2).await;
    drain.advance(DrainStage::Draining);
    tokio::time::sleep(delay / 2).await;
    info!(
        connections = drain.open_connections(),
        "no new connections; requests under way finish"
    );
    drain.advance(DrainStage::ListenerClosed);
    drain.advance(DrainStage::Closing);
    let last_deadline = Clock.now() + request_timeout;
    // No request outlives its deadline, so this wait ends. The timeout covers the requests that
    // arrived last.
    let _ = timeout(request_timeout, drain.requests_done()).await;
    info!(
        watches = drain.open_watches(),
        grace_seconds = watch_grace.as_secs_f64(),
        "watches end"
    );
    drain.end_watches(watch_grace);
    let _ = timeout(watch_grace + CLOSE_TIMEOUT, drain.watches_done()).await;
    finish(drain, last_deadline).await
}

/// Ends a process whose listeners another process has taken over.
pub(crate) async fn finish_after_handover(drain: &Drain, times: ShutdownTimes) -> ShutdownOutcome {
    let ShutdownTimes {
        config:
            ShutdownConfig {
                shutdown_watch_termination_grace_period: watch_grace,
                ..
            },
        request_timeout,
    } = times;
    info!(
        connections = drain.open_connections(),
        watches = drain.open_watches(),
        grace_seconds = watch_grace.as_secs_f64(),
        "handed over: no new connections; requests under way finish, watches end"
    );
    drain.hand_over();
    drain.end_watches(watch_grace);
    // Tunnels and followed logs, which do not end by themselves, may use this time, too.
    let idle_grace = KEEP_ALIVE_GRACE.max(watch_grace);
    let _ = tokio::join!(
        timeout(request_timeout, drain.requests_done()),
        timeout(watch_grace + CLOSE_TIMEOUT, drain.watches_done()),
        timeout(idle_grace, drain.connections_done()),
    );
    drain.advance(DrainStage::Closing);
    finish(drain, Clock.now() + request_timeout).await
}

/// Waits for the requests that arrived last, until `last_deadline`, and for the connections.
async fn finish(drain: &Drain, last_deadline: Instant) -> ShutdownOutcome {
    let closed = async {
        loop {
            drain.requests_done().await;
            let closed = timeout(CLOSE_TIMEOUT, drain.connections_done()).await;
            if closed.is_ok() || drain.open_requests() == 0 {
                return;
            }
        }
    };
    let end = last_deadline.max(Clock.now() + CLOSE_TIMEOUT);
    let _ = timeout_at(end.into(), closed).await;
    let (requests, watches) = (drain.open_requests(), drain.open_watches());
    info!(
        requests,
        watches,
        connections = drain.open_connections(),
        "shut down: remaining connections are closed"
    );
    if requests == 0 && watches == 0 {
        ShutdownOutcome::Drained
    } else {
        ShutdownOutcome::CutOff
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    fn times() -> ShutdownTimes {
        ShutdownTimes {
            config: ShutdownConfig {
                shutdown_delay_duration: Duration::ZERO,
                shutdown_watch_termination_grace_period: Duration::ZERO,
            },
            request_timeout: Duration::from_secs(60),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_begins_in_the_grace_of_a_hand_over_is_not_cut_off() {
        let drain = Drain::new();
        let connection = drain.track_connection();
        let client = async {
            sleep(Duration::from_secs(9)).await;
            let request = drain.track_request();
            sleep(Duration::from_secs(40)).await;
            drop((request, connection));
        };
        let begun = Clock.now();
        let (outcome, ()) = tokio::join!(finish_after_handover(&drain, times()), client);
        assert_eq!(outcome, ShutdownOutcome::Drained);
        assert_eq!((Clock.now() - begun).as_secs(), 49);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_that_stays_open_does_not_delay_the_end() {
        let drain = Drain::new();
        let _connection = drain.track_connection();
        let begun = Clock.now();
        let outcome = finish_after_handover(&drain, times()).await;
        assert_eq!(outcome, ShutdownOutcome::Drained);
        let end = KEEP_ALIVE_GRACE + CLOSE_TIMEOUT;
        assert_eq!((Clock.now() - begun).as_secs(), end.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_outlives_its_time_is_cut_off() {
        let drain = Drain::new();
        let _request = drain.track_request();
        let begun = Clock.now();
        let outcome = shut_down(&drain, times()).await;
        assert_eq!(outcome, ShutdownOutcome::CutOff);
        assert!((Clock.now() - begun) >= times().request_timeout);
    }
}
