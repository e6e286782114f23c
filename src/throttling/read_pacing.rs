//! Paces the reads of one client connection: a [`PollBudget`], and a [`ReadSpacing`] on HTTP/2.
//!
//! The stream below the HTTP library asks before each read and records what it has read.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::task::Poll;
use std::task::ready;
use std::time::Instant;

use tokio::time::Sleep;

use crate::throttling::poll_budget::PollBudget;
use crate::throttling::read_spacing::ReadSpacing;

/// The pace of one connection. The default has no spacing.
#[derive(Debug, Default)]
pub(crate) struct ReadPacing {
    budget: PollBudget,
    spacing: Option<ReadSpacing>,
    /// Until it completes, nothing is read.
    pause: Option<Pin<Box<Sleep>>>,
}

impl ReadPacing {
    /// The pace of an HTTP/2 connection that may reset so many requests; 0 is no limit.
    #[must_use]
    pub(crate) fn with_reset_limit(max_resets_per_second: u32, now: Instant) -> Self {
        Self {
            spacing: ReadSpacing::new(max_resets_per_second, now),
            ..Self::default()
        }
    }

    /// Whether the connection may be read now. If not, its task is woken when it may.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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
    pub(crate) const fn record_read(&mut self, work: u64) {
        self.budget.spend(work);
    }

    /// Records frames without effect.
    pub(crate) fn record_ineffective(&mut self, frames: u64, now: Instant) {
        if let Some(spacing) = &mut self.spacing
            && let Some(pause) = spacing.record(frames, now)
        {
            self.pause = Some(Box::pin(tokio::time::sleep(pause)));
        }
    }

    /// Records that there is nothing to read.
    pub(crate) const fn record_pending(&mut self) {
        self.budget.reset();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt;

    use super::*;
    use crate::clock::Clock;
    use crate::throttling::poll_budget::WORK_PER_POLL;
    use crate::throttling::read_spacing::READ_INTERVAL;

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
