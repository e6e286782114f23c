//! The idle timeout of a connection without requests in flight, unwritten bytes and new requests.
//!
//! The HTTP library has a timer for HTTP/1.1 that it resets for each request, which costs more than
//! authenticating the client. For HTTP/2 it has none. Here the requests are counted, and the counts
//! are checked from time to time.

use std::time::Duration;

use crate::pipeline::connection::request_count::RequestCount;

/// The interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// A connection without activity in this many consecutive checks has been idle for 90 to 120 s
/// (kube-apiserver's `IdleTimeout` is 90 s). An incomplete head has its own timeout
/// ([`head_monitor`](crate::server::connection::head_monitor)).
const IDLE_CHECKS: u32 = 3;

/// Completes when the connection has been idle for too long.
///
/// # Cancel safety
/// The time starts again.
pub(in crate::server) async fn wait_for_idle_timeout(requests: &RequestCount) {
    let (mut started_before, mut checks) = (0, 0);
    while checks < IDLE_CHECKS {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let started = requests.started();
        let is_idle =
            started == started_before && started == requests.ended() && !requests.write_pending();
        checks = if is_idle { checks + 1 } else { 0 };
        started_before = started;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_requests_times_out_after_ninety_seconds() {
        let began = Instant::now();
        wait_for_idle_timeout(&RequestCount::default()).await;
        assert_eq!(began.elapsed().as_secs(), 90);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_in_flight_unwritten_bytes_and_new_requests_prevent_the_idle_timeout() {
        let requests = Arc::new(RequestCount::default());
        let began = Instant::now();
        let waiting = async {
            wait_for_idle_timeout(&requests).await;
            began.elapsed()
        };
        let requesting = async {
            let long = requests.start();
            tokio::time::sleep(Duration::from_secs(600)).await; // a watch without events
            drop(long);
            requests.set_write_pending(true);
            tokio::time::sleep(Duration::from_secs(600)).await; // the client does not read the end
            requests.set_write_pending(false);
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(60)).await;
                drop(requests.start());
            }
        };
        let (idle_after, ()) = tokio::join!(waiting, requesting);
        let since_last = idle_after.as_secs() - 1800;
        assert!((90..=120).contains(&since_last), "{since_last}");
    }
}
