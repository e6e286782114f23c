//! The abandoned requests of exempt levels, by requester. Beyond a few, the requester's next exempt
//! requests wait.
//!
//! An abandoned request keeps its seat while the API server may still execute it, so a client that
//! opens and cancels requests delays its own next ones. An exempt request has no seat. `/readyz`
//! and `/livez` are exempt for every user: a client that opened and cancelled thousands of them a
//! second had as many of them executing as all connections have streams, and the requests of others
//! waited for the API server behind them. A client that lets its requests finish never waits here.
//!
//! Requesters take no turns, since each waits for its own abandoned requests only. Nothing is awaited
//! under the lock.
//!
//! Measured with a client that resets ten thousand requests a second, and an API server that takes
//! 150 µs for each: 1,000 to 1,400 abandoned requests were executing, and another user's median was
//! 416 and 588 ms. With this bound it was 23 and 20 ms; without the attack 3 ms (one run each, test
//! builds, two cores shared with other work).

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::limits::rejection::Rejection;
use crate::upstream::requester::SlotHolder;
use weir_base::metrics::Registry;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::user::GROUP_MASTERS;

/// The abandoned exempt requests of one requester that may execute before its next one waits: more
/// than a person or a probe abandons, and so few that a request of another user waits for no more
/// than a few milliseconds behind them.
pub const MAX_EXECUTING: usize = 16;

/// The most waiting requests of one requester. A waiting request takes memory.
pub const MAX_WAITING_PER_REQUESTER: usize = 256;

/// The most waiting requests of all requesters.
pub const MAX_WAITING: usize = 4096;

/// The longest wait. Then the request is rejected.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The abandoned exempt requests and the requests that wait for them. Shared by all workers.
#[derive(Debug)]
pub struct AbandonedBacklog {
    /// The abandoned requests of all requesters. Read without the lock by every request.
    executing: AtomicUsize,
    state: Mutex<BacklogState>,
    waiting: IntGauge,
    rejected: IntCounter,
}

#[derive(Debug, Default)]
struct BacklogState {
    requesters: HashMap<SlotHolder, RequesterBacklog>,
    waiting: usize,
    next_id: u64,
}

#[derive(Debug, Default)]
struct RequesterBacklog {
    executing: usize,
    /// In the order of their arrival.
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

/// An abandoned request that the API server may still execute, until dropped.
#[derive(Debug)]
pub(crate) struct BacklogCharge {
    backlog: Arc<AbandonedBacklog>,
    requester: SlotHolder,
}

/// The requester that an exempt request counts for. None for `system:masters`, so that nothing
/// delays an administrator, and for anonymous requests behind a trusted proxy, which cannot be
/// distinguished.
#[must_use]
pub(crate) fn backlog_holder(user: &UserInfo, network: Option<IpAddr>) -> Option<SlotHolder> {
    SlotHolder::from_client(user, network).filter(|_| !user.in_group(GROUP_MASTERS))
}

impl AbandonedBacklog {
    /// No abandoned requests.
    #[must_use]
    pub fn new(registry: &Registry) -> Arc<Self> {
        Arc::new(Self {
            executing: AtomicUsize::new(0),
            state: Mutex::default(),
            waiting: registry.gauge(
                "weir_abandoned_backlog_waiting",
                "Exempt requests that wait because the API server still executes too many that their user (unauthenticated: their address) abandoned.",
            ),
            rejected: registry.counter(
                "weir_abandoned_backlog_rejected_total",
                "Exempt requests that were rejected because too many of their user (unauthenticated: their address) waited for its abandoned ones, or for too long.",
            ),
        })
    }

    /// Whether any abandoned exempt request may still execute.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.executing.load(Ordering::Acquire) == 0
    }

    /// Charges `requester` for a request that it abandoned.
    #[must_use]
    pub(crate) fn charge(self: &Arc<Self>, requester: SlotHolder) -> BacklogCharge {
        let mut state = self.state.lock();
        self.executing.fetch_add(1, Ordering::AcqRel);
        state
            .requesters
            .entry(requester.clone())
            .or_default()
            .executing += 1;
        drop(state);
        BacklogCharge {
            backlog: Arc::clone(self),
            requester,
        }
    }

    /// Waits while the API server executes too many requests that `requester` abandoned. Returns
    /// whether it waited.
    ///
    /// # Errors
    /// [`Rejection::AbandonedBacklog`]: too many wait already, or for too long.
    ///
    /// # Cancel safety
    /// A request that is cancelled leaves the queue.
    pub(crate) async fn wait(&self, requester: &SlotHolder) -> Result<bool, Rejection> {
        let Some((waiting, woken)) = self.enter(requester).inspect_err(|_| self.rejected.inc())?
        else {
            return Ok(false);
        };
        // An error means that no abandoned request is left.
        let waited = timeout(MAX_WAIT, woken).await;
        let Ok(_) = waited else {
            self.rejected.inc();
            return Err(Rejection::AbandonedBacklog);
        };
        waiting.complete();
        Ok(true)
    }

    /// Queues a request of `requester`. `None`: it does not have to wait.
    fn enter<'a>(
        &'a self,
        requester: &'a SlotHolder,
    ) -> Result<Option<(WaitingRequest<'a>, oneshot::Receiver<()>)>, Rejection> {
        let mut state = self.state.lock();
        let BacklogState {
            requesters,
            waiting,
            next_id,
        } = &mut *state;
        let Some(own) = requesters.get_mut(requester) else {
            return Ok(None);
        };
        if own.executing < MAX_EXECUTING && own.waiting.is_empty() {
            return Ok(None);
        }
        if own.waiting.len() >= MAX_WAITING_PER_REQUESTER || *waiting >= MAX_WAITING {
            return Err(Rejection::AbandonedBacklog);
        }
        let (wake, woken) = oneshot::channel();
        let id = *next_id;
        *next_id += 1;
        *waiting += 1;
        own.waiting.insert(id, wake);
        self.waiting.inc();
        let waiting = WaitingRequest {
            backlog: self,
            requester,
            id,
            completed: false,
        };
        Ok(Some((waiting, woken)))
    }

    /// Removes from the queue what may go on: one request, or all once none of the abandoned ones
    /// is left.
    fn take_next(
        &self,
        state: &mut BacklogState,
        requester: &SlotHolder,
    ) -> Vec<oneshot::Sender<()>> {
        let Some(own) = state.requesters.get_mut(requester) else {
            return Vec::new();
        };
        let woken: Vec<_> = if own.executing == 0 {
            let all = std::mem::take(&mut own.waiting).into_values().collect();
            state.requesters.remove(requester);
            all
        } else if own.executing < MAX_EXECUTING {
            own.waiting
                .pop_first()
                .map(|(_, wake)| wake)
                .into_iter()
                .collect()
        } else {
            Vec::new()
        };
        state.waiting = state.waiting.saturating_sub(woken.len());
        self.waiting
            .sub(i64::try_from(woken.len()).unwrap_or(i64::MAX));
        woken
    }
}

/// Wakes requests, after the lock was released.
fn wake(woken: Vec<oneshot::Sender<()>>) {
    for wake in woken {
        let _ = wake.send(()); // it may be gone at this moment
    }
}

impl Drop for BacklogCharge {
    fn drop(&mut self) {
        let mut state = self.backlog.state.lock();
        self.backlog.executing.fetch_sub(1, Ordering::AcqRel);
        if let Some(own) = state.requesters.get_mut(&self.requester) {
            own.executing = own.executing.saturating_sub(1);
        }
        let woken = self.backlog.take_next(&mut state, &self.requester);
        drop(state);
        wake(woken);
    }
}

/// A waiting request. Dropping it leaves the queue, or lets the next one go on in its place.
struct WaitingRequest<'a> {
    backlog: &'a AbandonedBacklog,
    requester: &'a SlotHolder,
    id: u64,
    completed: bool,
}

impl WaitingRequest<'_> {
    fn complete(mut self) {
        self.completed = true;
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        if self.completed {
            return;
        }
        let mut state = self.backlog.state.lock();
        let own = state.requesters.get_mut(self.requester);
        let queued = own.and_then(|own| own.waiting.remove(&self.id));
        let woken = if queued.is_some() {
            state.waiting = state.waiting.saturating_sub(1);
            self.backlog.waiting.dec();
            Vec::new()
        } else {
            self.backlog.take_next(&mut state, self.requester)
        };
        drop(state);
        wake(woken);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};

    use futures_util::FutureExt;

    use super::*;

    fn user(name: &str) -> SlotHolder {
        SlotHolder::User(name.to_owned())
    }

    fn backlog() -> Arc<AbandonedBacklog> {
        AbandonedBacklog::new(&Registry::new())
    }

    fn charge(backlog: &Arc<AbandonedBacklog>, name: &str, number: usize) -> Vec<BacklogCharge> {
        (0..number).map(|_| backlog.charge(user(name))).collect()
    }

    type Waiting<'a> = Pin<Box<dyn Future<Output = Result<bool, Rejection>> + 'a>>;

    fn wait<'a>(backlog: &'a AbandonedBacklog, requester: &'a SlotHolder) -> Waiting<'a> {
        Box::pin(backlog.wait(requester))
    }

    fn may_go_on(waiting: &mut Waiting<'_>) -> bool {
        waiting.now_or_never().is_some_and(|waited| waited.is_ok())
    }

    #[tokio::test]
    async fn a_requester_waits_for_its_own_abandoned_requests_only() {
        let (backlog, alice, bob) = (backlog(), user("alice"), user("bob"));
        assert!(backlog.is_empty());
        let mut abandoned = charge(&backlog, "bob", MAX_EXECUTING - 1);
        assert!(may_go_on(&mut wait(&backlog, &bob)));
        abandoned.extend(charge(&backlog, "bob", 1));
        let mut waiting = wait(&backlog, &bob);
        assert!(!may_go_on(&mut waiting));
        assert!(may_go_on(&mut wait(&backlog, &alice)));
        drop(abandoned.pop());
        assert!(may_go_on(&mut waiting));
        drop((waiting, abandoned));
        assert!(backlog.is_empty());
        assert!(backlog.state.lock().requesters.is_empty());
    }

    #[tokio::test]
    async fn each_end_lets_one_go_on_and_the_last_end_lets_all() {
        let (backlog, bob) = (backlog(), user("bob"));
        let mut abandoned = charge(&backlog, "bob", MAX_EXECUTING);
        let mut waiting: Vec<_> = (0..40).map(|_| wait(&backlog, &bob)).collect();
        waiting.retain_mut(|waiting| !may_go_on(waiting));
        assert_eq!(waiting.len(), 40);
        for left in (24..40).rev() {
            let last = abandoned.len() == 1;
            drop(abandoned.pop());
            waiting.retain_mut(|waiting| !may_go_on(waiting));
            assert_eq!(waiting.len(), if last { 0 } else { left });
        }
        assert_eq!(backlog.waiting.get(), 0);
    }

    #[tokio::test]
    async fn a_request_that_leaves_lets_the_next_one_go_on_in_its_place() {
        let (backlog, bob) = (backlog(), user("bob"));
        let mut abandoned = charge(&backlog, "bob", MAX_EXECUTING);
        let mut waiting: Vec<_> = (0..3).map(|_| wait(&backlog, &bob)).collect();
        assert!(!waiting.iter_mut().any(may_go_on));
        drop(waiting.remove(0)); // still queued
        drop(abandoned.pop());
        drop(waiting.remove(0)); // woken
        assert!(may_go_on(&mut waiting[0]));
        assert_eq!(backlog.waiting.get(), 0);
    }

    #[tokio::test]
    async fn the_queue_of_a_requester_is_bounded() {
        let (backlog, bob) = (backlog(), user("bob"));
        let _abandoned = charge(&backlog, "bob", MAX_EXECUTING);
        let mut waiting: Vec<_> = (0..MAX_WAITING_PER_REQUESTER)
            .map(|_| wait(&backlog, &bob))
            .collect();
        assert!(!waiting.iter_mut().any(may_go_on));
        let rejected = wait(&backlog, &bob).now_or_never();
        assert!(matches!(rejected, Some(Err(Rejection::AbandonedBacklog))));
        assert_eq!(backlog.rejected.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_for_too_long_is_rejected() {
        let (backlog, bob) = (backlog(), user("bob"));
        let _abandoned = charge(&backlog, "bob", MAX_EXECUTING);
        let waited = pin!(backlog.wait(&bob)).await;
        assert!(matches!(waited, Err(Rejection::AbandonedBacklog)));
        assert_eq!(backlog.waiting.get(), 0);
    }
}
