//! Whether an HTTP/1.1 connection has been quiet for too long: nothing under way on it, and no whole request for a while.
//!
//! The HTTP library has a timer for that, which it sets anew for each request; that costs more than telling who asks. Here
//! requests are counted, and the counts are looked at from time to time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use http_body::SizeHint;

use crate::pipeline::body::Body;

/// How often the counts are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// A connection that showed nothing new at so many looks in a row has idled for 90 to 120 s (kube-apiserver's `IdleTimeout` is
/// 90 s). A head that takes as long is treated alike, for which kube-apiserver allows 32 s; connections are bounded in number.
const LOOKS: u32 = 3;

/// What was counted on a connection. One task writes; relaxed, as the counts stand for nothing but themselves.
#[derive(Debug, Default)]
pub(super) struct Requests {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Requests {
    /// A request has come.
    pub(super) fn begin(self: &Arc<Self>) -> Begun {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Begun(Arc::clone(self))
    }

    /// Comes when the connection has been quiet for too long.
    ///
    /// # Cancel safety
    /// The time begins anew.
    pub(super) async fn quiet_for_too_long(&self) {
        let (mut before, mut looks) = (0, 0);
        while looks < LOOKS {
            tokio::time::sleep(LOOK_EVERY).await;
            let begun = self.begun.load(Ordering::Relaxed);
            let quiet = begun == before && begun == self.ended.load(Ordering::Relaxed);
            looks = if quiet { looks + 1 } else { 0 };
            before = begun;
        }
    }
}

/// A request that is under way until this is dropped.
#[derive(Debug)]
pub(super) struct Begun(Arc<Requests>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// The body of an answer; its request is under way until it ends.
pub(super) struct Answering {
    pub(super) body: Body,
    pub(super) _begun: Option<Begun>,
}

impl http_body::Body for Answering {
    type Data = Bytes;
    type Error = <Body as http_body::Body>::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_requests_is_quiet_after_ninety_seconds() {
        let began = Instant::now();
        Requests::default().quiet_for_too_long().await;
        assert_eq!(began.elapsed().as_secs(), 90);
    }

    #[tokio::test(start_paused = true)]
    async fn neither_one_under_way_nor_those_that_come_and_go_are_quiet() {
        let requests = Arc::new(Requests::default());
        let began = Instant::now();
        let looking = async {
            requests.quiet_for_too_long().await;
            began.elapsed()
        };
        let asking = async {
            let long = requests.begin();
            tokio::time::sleep(Duration::from_secs(600)).await; // a watch, without an event
            drop(long);
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(60)).await;
                drop(requests.begin());
            }
        };
        let (quiet_after, ()) = tokio::join!(looking, asking);
        let since_last = quiet_after.as_secs() - 1200;
        assert!((90..=120).contains(&since_last), "{since_last}");
    }
}
