//! Paces the reads of one client connection: a [`PollBudget`], and a [`ReadSpacing`] on HTTP/2.
//!
//! The stream below the HTTP library asks before each read and records what it has read.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use crate::throttling::poll_budget::{PollBudget, WORK_PER_POLL};
use crate::throttling::read_spacing::ReadSpacing;
use weir_kubernetes::numeric::saturating_u32;

/// The pause for the work of each poll that a read exceeds its own by: twenty times what that work
/// takes. A connection with such reads takes a twentieth of a worker at most.
///
/// The HTTP library decodes a frame in one poll, and one may be the work of ten.
const PAUSE_PER_POLL: Duration = Duration::from_micros(1200);

/// The pace of one connection. The default has no spacing.
#[derive(Debug, Default)]
pub struct ReadPacing {
    budget: PollBudget,
    spacing: Option<ReadSpacing>,
    /// Until it completes, nothing is read.
    pause: Option<Pin<Box<Sleep>>>,
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt;

    use super::*;
    use crate::throttling::poll_budget::WORK_PER_POLL;
    use crate::throttling::read_spacing::READ_INTERVAL;
    use weir_base::clock::Clock;

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
}
