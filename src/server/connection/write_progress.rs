//! The minimum rate of a client that does not read what is left of ended responses.
//!
//! The last bytes of a response, up to 64 KiB, are handed to the HTTP library, and the request ends.
//! Nothing else bounds how long they stay in memory: a hundred such responses on each connection are
//! gigabytes. So a connection whose bytes the kernel does not accept must keep to the [minimum
//! rate](weir_limits::throttling::minimum_rate), whatever the requests are that the bytes belong to.
//!
//! A connection with a response whose client may pause (a followed log) may pause as long.
//!
//! The grace is twice that of a request, so that a response that is not read ends before its
//! connection does. A connection is registered only while it has such bytes: until a flush is complete.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use tokio::sync::Notify;

use crate::limits::memory_limit::unread_responses::UnreadConnection;
use crate::pipeline::response::deadlines::{
    DeadlineGuard, Deadlines, Expire, SlowTransfer, Transfer, TransferPhase,
};

/// Reports that the client of a connection has stalled. Relaxed ordering: no other memory depends
/// on the counts.
#[derive(Debug, Default)]
pub(crate) struct WriteStall {
    /// Accepted by the kernel, or by the buffer of TLS before it, while bytes waited.
    bytes: AtomicU64,
    /// Whether the connection is still HTTP: a tunnel has a limit of its own.
    is_awaited: AtomicBool,
    /// Whether the client may pause, at the last write that did not pass.
    may_pause: AtomicBool,
    stalled: Notify,
}

impl Expire for WriteStall {
    fn expire(&self, _: Option<SlowTransfer>) {
        self.stalled.notify_one();
    }

    fn transfer(&self) -> Option<Transfer> {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let transfer = Transfer {
            may_pause: self.may_pause.load(Ordering::Relaxed),
            ..Transfer::new(TransferPhase::EndedResponse, bytes, true)
        };
        self.is_awaited.load(Ordering::Relaxed).then_some(transfer)
    }
}

impl WriteStall {
    /// Completes when the client has accepted too little for too long.
    ///
    /// # Cancel safety
    /// Nothing is lost. Dropping the future ends the observation.
    pub(crate) async fn stalled(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
        let _end = EndOfObservation(self);
        self.stalled.notified().await;
    }
}

struct EndOfObservation<'a>(&'a WriteStall);

impl Drop for EndOfObservation<'_> {
    fn drop(&mut self) {
        self.0.is_awaited.store(false, Ordering::Relaxed);
    }
}

/// Follows the writes of one connection.
#[derive(Debug)]
pub(crate) struct WriteProgress {
    stall: Arc<WriteStall>,
    deadlines: Arc<Deadlines>,
    /// Present while bytes wait for the client.
    waiting: Option<DeadlineGuard>,
    /// What counts until it is flushed.
    unread: Option<Arc<UnreadConnection>>,
    /// Whether a client that may stop has taken nothing.
    pause: Pause,
}

/// Whether a client that may stop has taken nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    None,
    Begun,
    Reported,
}

impl WriteProgress {
    /// Of a connection without unwritten bytes.
    pub(crate) fn new(stall: &Arc<WriteStall>, deadlines: &Arc<Deadlines>) -> Self {
        Self {
            stall: Arc::clone(stall),
            deadlines: Arc::clone(deadlines),
            waiting: None,
            unread: None,
            pause: Pause::None,
        }
    }

    /// Records each complete flush for `unread`, too.
    pub(crate) fn with_unread(mut self, unread: &Arc<UnreadConnection>) -> Self {
        self.unread = Some(Arc::clone(unread));
        self
    }

    /// For tests of the streams.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn unobserved() -> Self {
        use crate::pipeline::response::deadlines::SlowTransfers;
        use weir_base::metrics::Registry;
        use weir_limits::throttling::minimum_rate::MinimumRate;

        let slow = SlowTransfers::register(&Registry::new());
        let deadlines = Deadlines::new(MinimumRate::default(), slow);
        Self::new(&Arc::default(), &deadlines)
    }

    /// Records the result of a write.
    pub(crate) fn record_write(&mut self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Pending => self.wait(),
            Poll::Ready(Ok(bytes)) if self.waiting.is_some() => {
                let bytes = u64::try_from(*bytes).unwrap_or(u64::MAX);
                self.stall.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Poll::Ready(_) => {}
        }
    }

    /// Records the result of a flush.
    pub(crate) fn record_flush(&mut self, flushed: &Poll<io::Result<()>>) {
        match flushed {
            Poll::Pending => self.wait(),
            Poll::Ready(_) => {
                self.waiting = None;
                if let Some(unread) = &self.unread {
                    unread.record_flush();
                }
            }
        }
    }

    /// Whether a client that may stop takes nothing for the first time.
    pub(crate) fn begins_pause(&mut self) -> bool {
        let begins = self.pause == Pause::Begun;
        if begins {
            self.pause = Pause::Reported;
        }
        begins
    }

    fn wait(&mut self) {
        if let Some(unread) = &self.unread {
            let may_pause = unread.may_pause();
            self.stall.may_pause.store(may_pause, Ordering::Relaxed);
            if may_pause && self.pause == Pause::None && unread.may_stop() {
                self.pause = Pause::Begun;
            }
        }
        if self.waiting.is_none() {
            let stall: Arc<dyn Expire> = Arc::<WriteStall>::clone(&self.stall);
            self.waiting = Some(self.deadlines.register(None, stall));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::pipeline::response::deadlines::SlowTransfers;
    use weir_base::clock::Clock;
    use weir_base::metrics::Registry;
    use weir_limits::throttling::minimum_rate::MinimumRate;

    struct Fixture {
        stall: Arc<WriteStall>,
        deadlines: Arc<Deadlines>,
        progress: WriteProgress,
        seconds: u64,
        began: std::time::Instant,
    }

    impl Fixture {
        fn new() -> Self {
            let slow = SlowTransfers::register(&Registry::new());
            let deadlines = Deadlines::new(MinimumRate::default(), slow);
            let stall = Arc::<WriteStall>::default();
            Self {
                progress: WriteProgress::new(&stall, &deadlines),
                stall,
                deadlines,
                seconds: 0,
                began: Clock.now(),
            }
        }

        /// Whether the connection stalls within so many seconds, in each of which this many bytes
        /// are written.
        fn stalls_within(&mut self, seconds: u64, bytes: usize) -> bool {
            let stall = Arc::clone(&self.stall);
            let mut stalled = std::pin::pin!(stall.stalled());
            assert_eq!(stalled.as_mut().now_or_never(), None);
            (0..seconds).any(|_| {
                self.seconds += 1;
                if bytes > 0 {
                    self.progress.record_write(&Poll::Ready(Ok(bytes)));
                }
                let now = self.began + Duration::from_secs(self.seconds);
                self.deadlines.expire(now);
                stalled.as_mut().now_or_never().is_some()
            })
        }
    }

    #[test]
    fn a_client_that_accepts_less_than_the_minimum_rate_stalls_its_connection() {
        let mut connection = Fixture::new();
        assert!(!connection.stalls_within(100, 0), "nothing waits");
        connection.progress.record_write(&Poll::Pending);
        assert!(!connection.stalls_within(100, 1024), "the rate is enough");
        connection.progress.record_flush(&Poll::Pending);
        assert!(!connection.stalls_within(19, 1), "twice the grace");
        assert!(connection.stalls_within(3, 1), "a byte a second is not");
    }

    #[test]
    fn a_flush_ends_the_wait() {
        let mut connection = Fixture::new();
        connection.progress.record_flush(&Poll::Pending);
        assert!(!connection.stalls_within(18, 0));
        connection.progress.record_flush(&Poll::Ready(Ok(())));
        assert!(!connection.stalls_within(100, 0));
    }

    #[test]
    fn a_connection_with_a_response_that_may_pause_may_pause_until_its_end_is_flushed() {
        let mut connection = Fixture::new();
        let unread = Arc::<UnreadConnection>::default();
        connection.progress = connection.progress.with_unread(&unread);
        let watch = unread.begin_pausable(false);
        connection.progress.record_write(&Poll::Pending);
        assert!(!connection.progress.begins_pause(), "it restarts");
        drop(watch);
        let log = unread.begin_pausable(true);
        connection.progress.record_write(&Poll::Pending);
        assert!(connection.progress.begins_pause());
        connection.progress.record_write(&Poll::Pending);
        assert!(!connection.progress.begins_pause(), "once");
        assert!(!connection.stalls_within(1000, 0));
        drop(log);
        connection.progress.record_flush(&Poll::Pending);
        assert!(!connection.stalls_within(700, 0), "its end is not read");
        connection.progress.record_flush(&Poll::Ready(Ok(())));
        connection.progress.record_flush(&Poll::Pending);
        assert!(connection.stalls_within(22, 0));
    }

    #[test]
    fn a_tunnel_is_not_observed() {
        let mut tunnel = Fixture::new();
        tunnel.progress.record_write(&Poll::Pending);
        let late = tunnel.began + Duration::from_secs(1000);
        tunnel.deadlines.expire(late);
        tunnel.deadlines.expire(late + Duration::from_secs(1000));
        assert!(!tunnel.stalls_within(1, 0));
    }
}
