//! Waits until a refusal may be said; [`hold`](crate::limits::rejection_hold) decides until when.
//!
//! # Cancel safety
//! A client that goes away is forgotten at once: dropping the future leaves the table.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::future::Future;
use std::hash::BuildHasher;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use prometheus::Histogram;
use prometheus::IntCounter;
use prometheus::IntCounterVec;
use prometheus::IntGauge;
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::drain::Drain;
use crate::drain::DrainStage;
use crate::limits::rejection_hold::ConnectionRetryTimes;
use crate::limits::rejection_hold::HoldDecision;
use crate::limits::rejection_hold::HoldFlow;
use crate::limits::rejection_hold::HoldId;
use crate::limits::rejection_hold::HoldKey;
use crate::limits::rejection_hold::HoldOwner;
use crate::limits::rejection_hold::HoldPolicy;
use crate::limits::rejection_hold::RejectionHolds;
use crate::metrics::Registry;
use crate::upstream::body::memory_budget::MemoryBudget;

/// Most refusals that are held at a time: each takes less than 2 KiB (`tests/memory/held_rejections.rs`), and what is written down of long
/// requests no more than [`LONG_REQUESTS_BUDGET`] in all. One user (if it is not authenticated, one source network) has half.
pub const MAX_HELD_REJECTIONS: usize = 10_000;

/// What held requests with long targets and user agents may keep of them, in bytes: half of what all others may.
const LONG_REQUESTS_BUDGET: usize = 16 << 20;

/// Upper bounds in seconds; the default of `--rejection-hold` is 1 s.
const BUCKETS: [f64; 8] = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// All refusals that are held, by whatever limit they were made.
pub struct RejectionDelay {
    max_hold: Duration,
    hasher: RandomState,
    /// Held for one decision; nothing is awaited under it. Taken after a connection's.
    holds: Mutex<RejectionHolds<oneshot::Sender<()>>>,
    long_requests: Arc<MemoryBudget>,
    held_now: IntGauge,
    flows: IntGauge,
    ended: IntCounterVec,
    over_share: IntCounter,
    hold_seconds: Histogram,
}

/// What is remembered of a connection.
#[derive(Debug)]
pub struct HoldState {
    retry_times: Mutex<ConnectionRetryTimes>,
    /// Most refusals that are held on it.
    max_held: usize,
}

impl HoldState {
    /// Of a new connection, on which so many requests can be at a time: at most half of them may be held, but one of one.
    #[must_use]
    pub fn new(requests_at_a_time: usize) -> Self {
        Self {
            retry_times: Mutex::default(),
            max_held: (requests_at_a_time / 2).max(1),
        }
    }
}

impl RejectionDelay {
    /// Holds for `longest` at most; never, where that is zero.
    #[must_use]
    pub fn new(longest: Duration, registry: &Registry) -> Self {
        Self {
            max_hold: longest,
            hasher: RandomState::new(),
            holds: Mutex::new(RejectionHolds::new(longest, MAX_HELD_REJECTIONS)),
            long_requests: MemoryBudget::new(LONG_REQUESTS_BUDGET),
            held_now: registry.gauge(
                "weir_rejection_holds",
                "Refusals that are held back at the moment, because their clients did not wait as they were told.",
            ),
            flows: registry.gauge(
                "weir_rejection_hold_flows",
                "Flows that have refusals held back at the moment.",
            ),
            ended: registry.counters(
                "weir_rejection_holds_total",
                "Refusals that were held back, by how that ended: the time was over (elapsed), the client went away (gone), there was no room (let_go), or weir closed (closing).",
                &["end"],
            ),
            over_share: registry.counter(
                "weir_rejection_holds_refused_total",
                "Rejections that were sent at once because their user (if it is not authenticated, its address) has half of all that may be held.",
            ),
            hold_seconds: registry
                .histograms(
                    "weir_rejection_hold_seconds",
                    "How long refusals were held back, in seconds.",
                    &[],
                    &BUCKETS,
                )
                .with_label_values::<&str>(&[]),
        }
    }

    /// The flow of requests with these marks: whose they are, and what classified them; and whose share of the places they take,
    /// if anybody's. `None` where nothing is held.
    #[must_use]
    pub fn hold_key(&self, marks: impl Hash, owner: Option<impl Hash>) -> Option<HoldKey> {
        (!self.max_hold.is_zero()).then(|| HoldKey {
            flow: HoldFlow(self.hasher.hash_one(marks)),
            owner: owner.map(|owner| HoldOwner(self.hasher.hash_one(owner))),
        })
    }

    /// What waits until a refusal of `flow` may be said whose client is to wait, but not once weir closes; `None` where it may be
    /// said at once. It `fits` if what must be kept of the request does, for which there is a budget.
    ///
    /// # Cancel safety
    /// See the module's.
    pub fn hold<'h>(
        &'h self,
        patience: &'h HoldState,
        flow: HoldKey,
        wait: HoldPolicy,
        drain: &'h Drain,
        fits: &mut dyn FnMut(&Arc<MemoryBudget>) -> bool,
    ) -> Option<impl Future<Output = ()> + use<'h>> {
        let (until, held, let_go) = self.register(patience, flow, wait)?;
        if !fits(&self.long_requests) {
            held.finish(HoldEnd::Evicted);
            return None;
        }
        // In a box, since what is moved into a future takes its room twice.
        let mut closing = Box::pin(drain.reached(DrainStage::Closing));
        Some(async move {
            let end = tokio::select! {
                () = tokio::time::sleep_until(until.into()) => HoldEnd::Elapsed,
                _ = let_go => HoldEnd::Evicted,
                () = closing.as_mut() => HoldEnd::Closing,
            };
            held.finish(end);
        })
    }

    /// How many refusals are held now, of how many flows, and how many were held before.
    #[must_use]
    pub fn snapshot(&self) -> (usize, usize, u64) {
        let (held, flows) = lock(&self.holds).held_counts();
        (held, flows, self.hold_seconds.get_sample_count())
    }

    fn register<'h>(
        &'h self,
        patience: &'h HoldState,
        HoldKey { flow, owner }: HoldKey,
        wait: HoldPolicy,
    ) -> Option<(Instant, HeldRejection<'h>, oneshot::Receiver<()>)> {
        let since = Clock.now();
        let mut told = lock(&patience.retry_times);
        let mut holds = lock(&self.holds);
        let has_place = holds.has_slot(owner);
        let at_a_time = if has_place { patience.max_held } else { 0 };
        let when = holds.schedule_rejection(&mut told, flow, since, wait, at_a_time);
        let HoldDecision::Until(until) = when else {
            self.over_share.inc_by(u64::from(!has_place));
            return None;
        };
        let (wakes, let_go) = oneshot::channel();
        let (ticket, longest_held) = holds.hold(&mut told, (flow, owner), wakes);
        self.update_gauges(&holds);
        drop((holds, told));
        if let Some(longest_held) = longest_held {
            let _ = longest_held.send(()); // it may be going by itself at this moment
        }
        let held = HeldRejection {
            delay: self,
            connection: patience,
            hold_id: ticket,
            flow,
            since,
            until,
            policy: wait,
            end: HoldEnd::ClientGone,
        };
        Some((until, held, let_go))
    }

    fn update_gauges(&self, holds: &RejectionHolds<oneshot::Sender<()>>) {
        let (held, flows) = holds.held_counts();
        self.held_now.set(i64::try_from(held).unwrap_or(i64::MAX));
        self.flows.set(i64::try_from(flows).unwrap_or(i64::MAX));
    }
}

impl fmt::Debug for RejectionDelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (held, flows) = lock(&self.holds).held_counts();
        write!(f, "Holding({held} of {flows} flows)")
    }
}

/// How holding ended.
#[derive(Clone, Copy)]
enum HoldEnd {
    Elapsed,
    ClientGone,
    Evicted,
    Closing,
}

/// One that is held; leaves the table when it is dropped.
struct HeldRejection<'h> {
    delay: &'h RejectionDelay,
    connection: &'h HoldState,
    hold_id: HoldId,
    flow: HoldFlow,
    since: Instant,
    until: Instant,
    policy: HoldPolicy,
    end: HoldEnd,
}

impl HeldRejection<'_> {
    fn finish(mut self, end: HoldEnd) {
        self.end = end;
    }
}

impl Drop for HeldRejection<'_> {
    fn drop(&mut self) {
        let Self {
            delay: holding,
            connection: patience,
            hold_id: ticket,
            flow,
            since,
            until,
            policy: wait,
            end,
        } = self;
        let now = Clock.now();
        let mut told = lock(&patience.retry_times);
        let mut holds = lock(&holding.holds);
        holds.release(&mut told, *ticket);
        if matches!(end, HoldEnd::Evicted) {
            RejectionHolds::<oneshot::Sender<()>>::record_early_response(
                &mut told, *flow, *until, now, wait.wait,
            );
        }
        holding.update_gauges(&holds);
        drop((holds, told));
        let end = match end {
            HoldEnd::Elapsed => "elapsed",
            HoldEnd::ClientGone => "gone",
            HoldEnd::Evicted => "let_go",
            HoldEnd::Closing => "closing",
        };
        holding.ended.with_label_values(&[end]).inc();
        let held = now.saturating_duration_since(*since);
        holding.hold_seconds.observe(held.as_secs_f64());
    }
}

/// What these locks guard is whole between any two calls.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the next refusal's hold ends that `happens` is done about, and after how long.
    async fn hold_end(happens: impl FnOnce(&Drain)) -> (String, Duration) {
        let registry = Registry::new();
        let holding = RejectionDelay::new(Duration::from_secs(30), &registry);
        let (patience, drain) = (HoldState::new(2), Drain::new());
        let flow = holding.hold_key("alice", None::<()>).unwrap();
        let wait = HoldPolicy {
            wait: Duration::from_secs(1),
            sequential: false,
            max_hold: None,
        };
        let refuse = || holding.hold(&patience, flow, wait, &drain, &mut |_| true);
        assert!(refuse().is_none(), "the first is said at once");
        let began = Clock.now();
        let held = refuse().unwrap();
        happens(&drain);
        held.await;
        let took = Clock.now().duration_since(began);
        let text = registry.render();
        let lines = text.lines();
        let mut ended = lines.filter(|line| line.starts_with("weir_rejection_holds_total{"));
        let end = ended.next().unwrap().to_owned();
        assert_eq!(ended.next(), None);
        (end, took)
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_ends_with_its_time_or_when_weir_closes() {
        let end = |end| format!("weir_rejection_holds_total{{end=\"{end}\"}} 1");
        let (elapsed, took) = hold_end(|_| {}).await;
        assert_eq!(elapsed, end("elapsed"));
        assert!(took >= Duration::from_secs(1), "{took:?}");
        let closed = hold_end(|drain| drain.advance(DrainStage::Closing)).await;
        assert_eq!(closed, (end("closing"), Duration::ZERO));
    }
}
