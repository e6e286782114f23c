//! Whether a connection has been quiet for too long: nothing under way on it, nothing left to write, and no whole request for a
//! while.
//!
//! The HTTP library has a timer for that on HTTP/1.1, which it sets anew for each request; that costs more than telling who asks. On
//! HTTP/2 it has none. Here requests are counted, and the counts are looked at from time to time.

use std::time::Duration;

use crate::pipeline::connection::request_count::RequestCount;

/// How often the counts are looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// A connection that showed nothing new at so many looks in a row has idled for 90 to 120 s (kube-apiserver's `IdleTimeout` is
/// 90 s). A head that has begun has a time of its own ([`heads`](crate::server::connection::head_monitor)).
const IDLE_CHECKS: u32 = 3;

/// Comes when the connection has been quiet for too long.
///
/// # Cancel safety
/// The time begins anew.
pub(in crate::server) async fn wait_for_idle_timeout(requests: &RequestCount) {
    let (mut before, mut looks) = (0, 0);
    while looks < IDLE_CHECKS {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let begun = requests.started();
        let quiet = begun == before && begun == requests.ended() && !requests.write_pending();
        looks = if quiet { looks + 1 } else { 0 };
        before = begun;
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
        let looking = async {
            wait_for_idle_timeout(&requests).await;
            began.elapsed()
        };
        let asking = async {
            let long = requests.start();
            tokio::time::sleep(Duration::from_secs(600)).await; // a watch, without an event
            drop(long);
            requests.set_write_pending(true);
            tokio::time::sleep(Duration::from_secs(600)).await; // the end of an answer that its client does not read
            requests.set_write_pending(false);
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(60)).await;
                drop(requests.start());
            }
        };
        let (quiet_after, ()) = tokio::join!(looking, asking);
        let since_last = quiet_after.as_secs() - 1800;
        assert!((90..=120).contains(&since_last), "{since_last}");
    }
}
