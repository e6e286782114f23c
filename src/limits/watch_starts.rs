//! The watches of one user that start at a time. Beyond a few, its next ones wait for their turn
//! before they enter a queue.
//!
//! kube-apiserver spends about as much CPU on a watch before it queues it as on its start, so a
//! burst of watches never outruns their starts: of 3,000 of one user it rejects 14. weir spends a
//! tenth before the queue, and the start happens behind it. The queues of a flow (300 places with
//! the suggested levels) were full long before the first seats were free again: it rejected 480 to
//! 1,720 of the same burst. Here the rest of the burst waits for the starts, as it does in the API
//! server's run queue.
//!
//! Nothing is rejected here. A watch that has waited for long enough, or that finds too many
//! waiting, goes on to its queue.
//!
//! Nothing is awaited under the lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::upstream::requester::SlotHolder;
use weir_base::metrics::Registry;

/// The watches of one user that queue or hold seats at a time: fewer than the places of a flow in
/// the queues of the suggested levels (200, `leader-election`), and so many that starts of 5 ms let
/// 12,800 start in a second. More would start no faster, and hold seats that others need: of the
/// burst above, each held its own for 23 ms with 128 at a time, and for 17 ms with 64, on two cores
/// with nothing left.
pub const MAX_STARTING: usize = 64;

/// The most waiting watches of all users. A waiting watch takes memory.
pub const MAX_WAITING: usize = 8192;

/// The longest wait: a third of what a queue lets a request wait with the default
/// `--request-timeout`.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// The users whose watches start, and the watches that wait for their turn. Shared by all workers.
#[derive(Debug)]
pub struct WatchStarts {
    /// A user is here as long as a watch of it starts or waits.
    users: Mutex<HashMap<SlotHolder, Arc<Semaphore>>>,
    waiting: IntGauge,
}

/// A watch that starts, or waits for its turn, until dropped.
#[derive(Debug)]
pub(crate) struct WatchStart {
    starts: Arc<WatchStarts>,
    user: SlotHolder,
    permit: Option<OwnedSemaphorePermit>,
}

/// Counts a waiting watch, until dropped.
struct WaitingWatch<'a>(&'a IntGauge);

impl WatchStarts {
    /// No watch starts.
    #[must_use]
    pub fn new(registry: &Registry) -> Arc<Self> {
        Arc::new(Self {
            users: Mutex::default(),
            waiting: registry.gauge(
                "weir_watch_starts_waiting",
                "Watches that wait before they are queued because as many of their user (unauthenticated: their address) start already.",
            ),
        })
    }

    /// Begins the start of a watch of `user`. Returns it, and whether it waited.
    ///
    /// # Cancel safety
    /// A watch that is cancelled waits no longer.
    pub(crate) async fn begin(self: &Arc<Self>, user: SlotHolder) -> (WatchStart, bool) {
        let turns = {
            let mut users = self.users.lock();
            let turns = users
                .entry(user.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(MAX_STARTING)));
            Arc::clone(turns)
        };
        let mut start = WatchStart {
            starts: Arc::clone(self),
            user,
            permit: None,
        };
        if let Ok(permit) = Arc::clone(&turns).try_acquire_owned() {
            start.permit = Some(permit);
            return (start, false);
        }
        let Some(_waiting) = self.count_waiting() else {
            return (start, false);
        };
        let turn = timeout(MAX_WAIT, turns.acquire_owned()).await;
        start.permit = turn.ok().and_then(Result::ok); // it is never closed
        (start, true)
    }

    /// Counts a waiting watch. `None`: too many wait.
    fn count_waiting(&self) -> Option<WaitingWatch<'_>> {
        let _users = self.users.lock(); // one is counted at a time
        let most = i64::try_from(MAX_WAITING).unwrap_or(i64::MAX);
        (self.waiting.get() < most).then(|| {
            self.waiting.inc();
            WaitingWatch(&self.waiting)
        })
    }
}

impl Drop for WaitingWatch<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Drop for WatchStart {
    fn drop(&mut self) {
        drop(self.permit.take());
        let mut users = self.starts.users.lock();
        // Those that start and those that wait have a reference each, taken under the lock.
        if let Some(turns) = users.get(&self.user)
            && Arc::strong_count(turns) == 1
        {
            users.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use weir_base::clock::Clock;

    fn user(name: &str) -> SlotHolder {
        SlotHolder::User(name.to_owned())
    }

    fn starts() -> Arc<WatchStarts> {
        WatchStarts::new(&Registry::new())
    }

    /// As many starts of alice as there may be at a time.
    fn start_all(starts: &Arc<WatchStarts>) -> Vec<WatchStart> {
        let begin = || starts.begin(user("alice")).now_or_never().unwrap();
        let begun = std::iter::repeat_with(begin).take(MAX_STARTING);
        let begun: Vec<_> = begun.collect();
        assert!(begun.iter().all(|(_, waited)| !waited));
        begun.into_iter().map(|(start, _)| start).collect()
    }

    #[tokio::test]
    async fn the_next_watch_of_a_user_waits_until_one_has_started() {
        let starts = starts();
        let mut starting = start_all(&starts);
        let mut next = Box::pin(starts.begin(user("alice")));
        assert!(next.as_mut().now_or_never().is_none());
        assert!(starts.begin(user("bob")).now_or_never().is_some());
        assert_eq!(starts.waiting.get(), 1);
        drop(starting.pop());
        let (start, waited) = next.as_mut().now_or_never().unwrap();
        assert!(waited && start.permit.is_some());
        assert_eq!(starts.waiting.get(), 0);
        drop((starting, start, next));
        assert!(starts.users.lock().is_empty());
    }

    #[tokio::test]
    async fn a_watch_that_is_cancelled_waits_no_longer() {
        let starts = starts();
        let starting = start_all(&starts);
        let mut cancelled = Box::pin(starts.begin(user("alice")));
        assert!(cancelled.as_mut().now_or_never().is_none());
        drop(starting);
        assert_eq!(starts.users.lock().len(), 1);
        drop(cancelled);
        assert_eq!(starts.waiting.get(), 0);
        assert!(starts.users.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_has_waited_for_long_enough_goes_on() {
        let starts = starts();
        let _starting = start_all(&starts);
        let before = Clock.now();
        let (start, waited) = starts.begin(user("alice")).await;
        assert!(waited && start.permit.is_none());
        assert_eq!(Clock.now().saturating_duration_since(before), MAX_WAIT);
    }

    #[tokio::test]
    async fn a_watch_that_finds_too_many_waiting_goes_on() {
        let starts = starts();
        let _starting = start_all(&starts);
        let mut waiting: Vec<_> = (0..MAX_WAITING)
            .map(|_| Box::pin(starts.begin(user("alice"))))
            .collect();
        let waits = waiting
            .iter_mut()
            .all(|watch| watch.as_mut().now_or_never().is_none());
        assert!(waits);
        let (_, waited) = starts.begin(user("alice")).now_or_never().unwrap();
        assert!(!waited);
    }
}
