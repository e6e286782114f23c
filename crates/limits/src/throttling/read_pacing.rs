//! Paces the reads of one client connection: by the work of a poll, and on HTTP/2 by the frames
//! without effect.
//!
//! The stream below the HTTP library asks before each read and records what it has read.
//!
//! # The work of a poll
//!
//! A task keeps its thread until it returns. The HTTP libraries process everything that can be read
//! in one poll, and a client can send more than weir processes. Other connections of the worker
//! would wait for the end of that poll, and then behind the tasks of all the requests that it
//! started.
//!
//! Tokio's own budget does not help: it counts 128 reads, each of which may be hundreds of frames.
//! This one counts work: bytes, bytes of heads and header blocks eightfold, some 660 bytes for each
//! field of a header block, and 4 KiB for each frame. The stream hands out 256 bytes beyond the
//! current frame at a time, so that a poll ends after some 30 frames. (8 KiB in place of 256 bytes
//! gave 15.4 µs a request against 15.6, which is within the noise.)
//!
//! Only a single frame can exceed the budget, since the library decodes it in one poll: 8,000
//! fields of two bytes each (their name is in the connection's HPACK table) took 2.5 ms. So a frame
//! has 2,048 fields at most; different fields are so long that a frame has room for fewer. A bound
//! on the fields of a whole head would reject users with many groups. A connection with more than a
//! poll's fields pauses instead, twenty times as long as the excess took. Below TLS, a poll reads
//! 64 KiB at most: records without data are work that nothing above TLS sees.
//!
//! # Frames without effect
//!
//! A PING, an empty DATA frame or the reset of a request costs its sender nothing and weir some
//! processor time. A connection may send them at a rate, with a burst. Beyond it, the connection
//! stays open and is read in intervals, so that its client waits and not the other clients.
//!
//! The connection is not closed: a wrong guess about a new client's habits costs latency and no
//! requests.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use crate::throttling::token_bucket::{Rate, TokenBucket};
use weir_kubernetes::numeric::saturating_u32;

/// The work of one poll, in bytes of request bodies. Some 60 µs of decryption and copying; a body
/// is still read in full TLS records.
pub const WORK_PER_POLL: u64 = 128 << 10;

/// The work of a byte of a head or header block: a poll reads 16 KiB of them, which is a hundred
/// usual heads.
///
/// Heads cost more than bodies: they are parsed, and they may grow buffers.
pub const HEADER_BYTE_WORK: u64 = WORK_PER_POLL / (16 << 10);

/// The work of a field of a header block: a poll decodes 200 of them.
///
/// A field takes some 300 ns to decode and to drop again, however short it is: a frame of 8,000
/// fields of two bytes took 2.5 ms.
pub const HEADER_FIELD_WORK: u64 = WORK_PER_POLL / 200;

/// The pause for the work of each poll that a read exceeds its own by: twenty times what that work
/// takes. A connection with such reads takes a twentieth of a worker at most.
///
/// The HTTP library decodes a frame in one poll, and one may be the work of ten.
const PAUSE_PER_POLL: Duration = Duration::from_micros(1200);

/// The interval between two reads of a connection beyond its rate. With the frames of one poll it
/// still allows some 6,000 frames a second, at a few per cent of a core.
pub const READ_INTERVAL: Duration = Duration::from_millis(5);

/// The frames without effect for each reset that a connection may send: Go's HTTP/2 client sends a
/// PING behind a reset.
pub const INEFFECTIVE_FRAMES_PER_RESET: u32 = 2;

/// The pace of one connection. The default has no spacing.
#[derive(Debug, Default)]
pub struct ReadPacing {
    budget: PollBudget,
    spacing: Option<ReadSpacing>,
    /// Until it completes, nothing is read.
    pause: Option<Pin<Box<Sleep>>>,
}

/// The work that has been done since the last poll ended.
#[derive(Debug, Default)]
struct PollBudget {
    used: u64,
}

/// The rate of one connection's frames without effect.
#[derive(Debug)]
struct ReadSpacing {
    rate: Rate,
    bucket: TokenBucket,
}

impl ReadPacing {
    /// The pace of an HTTP/2 connection that may reset so many requests; 0 is no limit.
    #[must_use]
    pub fn with_reset_limit(max_resets_per_second: u32, now: Instant) -> Self {
        Self {
            spacing: ReadSpacing::new(max_resets_per_second, now),
            ..Self::default()
        }
    }

    /// Whether the connection may be read now. If not, its task is woken when it may.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        if self.budget.end_if_exhausted() {
            cx.waker().wake_by_ref(); // behind the other tasks that are ready
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Records the work of a read, in bytes of request bodies.
    pub fn record_read(&mut self, work: u64) {
        self.budget.spend(work);
        let excess = work.saturating_sub(WORK_PER_POLL) / WORK_PER_POLL;
        if excess > 0 {
            self.pause_for(PAUSE_PER_POLL.saturating_mul(saturating_u32(excess)));
        }
    }

    /// Records frames without effect.
    pub fn record_ineffective(&mut self, frames: u64, now: Instant) {
        if let Some(spacing) = &mut self.spacing
            && let Some(pause) = spacing.record(frames, now)
        {
            self.pause_for(pause);
        }
    }

    /// Of two pauses that begin at the same time, the longer one counts.
    fn pause_for(&mut self, pause: Duration) {
        let pause = tokio::time::sleep(pause);
        let is_longer = |current: &Pin<Box<Sleep>>| current.deadline() < pause.deadline();
        if self.pause.as_ref().is_none_or(is_longer) {
            self.pause = Some(Box::pin(pause));
        }
    }

    /// Records that there is nothing to read.
    pub const fn record_pending(&mut self) {
        self.budget.reset();
    }
}

impl PollBudget {
    /// Adds `work`, in bytes of request bodies.
    const fn spend(&mut self, work: u64) {
        self.used = self.used.saturating_add(work);
    }

    /// Whether the poll has to end. The next poll then has the whole budget again.
    const fn end_if_exhausted(&mut self) -> bool {
        let exhausted = self.used >= WORK_PER_POLL;
        if exhausted {
            self.used = 0;
        }
        exhausted
    }

    /// Records that there is nothing to read: the poll ends by itself.
    const fn reset(&mut self) {
        self.used = 0;
    }
}

impl ReadSpacing {
    /// A connection that may reset `max_resets_per_second` requests. `None` if this is 0: no limit.
    fn new(max_resets_per_second: u32, now: Instant) -> Option<Self> {
        let per_second = max_resets_per_second.saturating_mul(INEFFECTIVE_FRAMES_PER_RESET);
        let rate = Rate::new(per_second, per_second);
        (per_second > 0).then(|| Self {
            bucket: TokenBucket::full(&rate, now),
            rate,
        })
    }

    /// Records frames without effect, and returns how long the connection is not read now.
    fn record(&mut self, frames: u64, now: Instant) -> Option<Duration> {
        let within = (0..frames).all(|_| self.bucket.take(&self.rate, now).is_ok());
        (!within).then_some(READ_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt;

    use super::*;
    use weir_base::clock::Clock;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn another_task_runs_when_the_budget_is_exhausted() {
        let mut pacing = ReadPacing::default();
        let other = tokio::spawn(async {});
        pacing.record_read(WORK_PER_POLL);
        poll_fn(|cx| pacing.poll_ready(cx)).await;
        assert!(other.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_beyond_its_rate_is_read_in_intervals() {
        let mut pacing = ReadPacing::with_reset_limit(1, Clock.now());
        let start = Clock.now();
        for n in 0..10 {
            poll_fn(|cx| pacing.poll_ready(cx)).await;
            assert!(Clock.now() - start >= n * READ_INTERVAL, "{n}");
            pacing.record_ineffective(100, Clock.now());
        }
        assert!(Clock.now() - start <= 20 * READ_INTERVAL);
        tokio::time::advance(10 * READ_INTERVAL).await;
        let ready = poll_fn(|cx| pacing.poll_ready(cx)).now_or_never();
        assert_eq!(ready, Some(()), "the pause is over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_is_the_work_of_many_polls_is_followed_by_a_pause() {
        let mut pacing = ReadPacing::default();
        for (polls, pause) in [(1, 0), (2, 1), (41, 40), (2, 1)] {
            let start = Clock.now();
            pacing.record_read(polls * WORK_PER_POLL + WORK_PER_POLL / 2);
            poll_fn(|cx| pacing.poll_ready(cx)).await;
            let paused = Clock.now() - start;
            let expected = pause * PAUSE_PER_POLL;
            assert!(paused >= expected, "{polls}: {paused:?}");
            assert!(
                paused <= expected + Duration::from_millis(1),
                "{polls}: {paused:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_pauses_the_longer_one_counts() {
        for work_first in [false, true] {
            let mut pacing = ReadPacing::with_reset_limit(1, Clock.now());
            let start = Clock.now();
            if work_first {
                pacing.record_read(41 * WORK_PER_POLL);
            }
            pacing.record_ineffective(100, Clock.now());
            if !work_first {
                pacing.record_read(41 * WORK_PER_POLL);
            }
            poll_fn(|cx| pacing.poll_ready(cx)).await;
            assert!(Clock.now() - start >= 40 * PAUSE_PER_POLL, "{work_first}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn frames_with_an_effect_and_http1_are_never_spaced() {
        for http1 in [false, true] {
            let mut pacing = ReadPacing::with_reset_limit(u32::from(!http1), Clock.now());
            for _ in 0..1000 {
                pacing.record_read(1);
                if http1 {
                    pacing.record_ineffective(100, Clock.now());
                }
                let ready = poll_fn(|cx| pacing.poll_ready(cx)).now_or_never();
                assert_eq!(ready, Some(()));
            }
        }
    }

    #[test]
    fn a_poll_ends_when_its_work_is_done_and_the_next_begins_anew() {
        let mut budget = PollBudget::default();
        for poll in 0..3 {
            for part in 0..4 {
                assert!(!budget.end_if_exhausted(), "poll {poll}, part {part}");
                budget.spend(WORK_PER_POLL / 4);
            }
            assert!(budget.end_if_exhausted(), "poll {poll}");
        }
    }

    #[test]
    fn polls_that_end_by_themselves_never_exhaust_it() {
        let mut budget = PollBudget::default();
        for _ in 0..100 {
            budget.spend(WORK_PER_POLL / 2);
            assert!(!budget.end_if_exhausted());
            budget.reset();
        }
    }

    #[test]
    fn work_beyond_all_numbers_is_work() {
        let mut budget = PollBudget::default();
        budget.spend(u64::MAX);
        budget.spend(u64::MAX);
        assert!(budget.end_if_exhausted());
        assert!(!budget.end_if_exhausted());
    }

    #[test]
    fn the_burst_is_free_and_then_the_rate_holds() {
        let start = Instant::now();
        let mut spacing = ReadSpacing::new(50, start).unwrap();
        for n in 0..100 {
            assert_eq!(spacing.record(1, start), None, "{n}");
        }
        assert_eq!(spacing.record(1, start), Some(READ_INTERVAL));
        for n in 1..1000 {
            let now = start + n * SECOND / 100;
            assert_eq!(spacing.record(1, now), None, "{n}");
            assert_eq!(spacing.record(1, now), Some(READ_INTERVAL), "{n}");
        }
    }

    #[test]
    fn a_client_that_stops_is_read_at_once_again() {
        let start = Instant::now();
        let mut spacing = ReadSpacing::new(50, start).unwrap();
        assert_eq!(spacing.record(100_000, start), Some(READ_INTERVAL));
        assert_eq!(spacing.record(100, start + SECOND), None);
    }

    #[test]
    fn without_a_limit_of_resets_there_is_no_spacing() {
        assert!(ReadSpacing::new(0, Instant::now()).is_none());
        let mut most = ReadSpacing::new(u32::MAX, Instant::now()).unwrap();
        assert_eq!(most.record(1000, Instant::now()), None);
    }
}
