//! Waits until a refusal may be said; [`hold`](crate::limits::hold) decides until when.
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
use crate::drain::Stage;
use crate::limits::hold::Flow;
use crate::limits::hold::Holds;
use crate::limits::hold::OwnedFlow;
use crate::limits::hold::Owner;
use crate::limits::hold::Ticket;
use crate::limits::hold::Told;
use crate::limits::hold::Wait;
use crate::limits::hold::When;
use crate::metrics::Registry;
use crate::upstream::read_body::Budget;

/// Most refusals that are held at a time: each takes less than 2 KiB (`tests/memory/held.rs`), and what is written down of long
/// requests no more than [`LONG_ONES`] in all. One user (if it is not authenticated, one source network) has half.
pub const MOST: usize = 10_000;

/// What held requests with long targets and user agents may keep of them, in bytes: half of what all others may.
const LONG_ONES: usize = 16 << 20;

/// Upper bounds in seconds; the default of `--rejection-hold` is 1 s.
const BUCKETS: [f64; 8] = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// All refusals that are held, by whatever limit they were made.
pub struct Holding {
    longest: Duration,
    hasher: RandomState,
    /// Held for one decision; nothing is awaited under it. Taken after a connection's.
    holds: Mutex<Holds<oneshot::Sender<()>>>,
    long: Arc<Budget>,
    now: IntGauge,
    flows: IntGauge,
    ended: IntCounterVec,
    no_place: IntCounter,
    time: Histogram,
}

/// What is remembered of a connection.
#[derive(Debug)]
pub struct Patience {
    told: Mutex<Told>,
    /// Most refusals that are held on it.
    most: usize,
}

impl Patience {
    /// Of a new connection, on which so many requests can be at a time: at most half of them may be held, but one of one.
    #[must_use]
    pub fn new(requests_at_a_time: usize) -> Self {
        Self {
            told: Mutex::default(),
            most: (requests_at_a_time / 2).max(1),
        }
    }
}

impl Holding {
    /// Holds for `longest` at most; never, where that is zero.
    #[must_use]
    pub fn new(longest: Duration, registry: &Registry) -> Self {
        Self {
            longest,
            hasher: RandomState::new(),
            holds: Mutex::new(Holds::new(longest, MOST)),
            long: Budget::new(LONG_ONES),
            now: registry.gauge(
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
            no_place: registry.counter(
                "weir_rejection_holds_refused_total",
                "Rejections that were sent at once because their user (if it is not authenticated, its address) has half of all that may be held.",
            ),
            time: registry
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
    pub fn flow(&self, marks: impl Hash, owner: Option<impl Hash>) -> Option<OwnedFlow> {
        (!self.longest.is_zero()).then(|| OwnedFlow {
            flow: Flow(self.hasher.hash_one(marks)),
            owner: owner.map(|owner| Owner(self.hasher.hash_one(owner))),
        })
    }

    /// What waits until a refusal of `flow` may be said whose client is to wait, but not once weir closes; `None` where it may be
    /// said at once. It `fits` if what must be kept of the request does, for which there is a budget.
    ///
    /// # Cancel safety
    /// See the module's.
    pub fn hold<'h>(
        &'h self,
        patience: &'h Patience,
        flow: OwnedFlow,
        wait: Wait,
        drain: &'h Drain,
        fits: &mut dyn FnMut(&Arc<Budget>) -> bool,
    ) -> Option<impl Future<Output = ()> + use<'h>> {
        let (until, held, let_go) = self.enter(patience, flow, wait)?;
        if !fits(&self.long) {
            held.end(End::LetGo);
            return None;
        }
        // In a box, since what is moved into a future takes its room twice.
        let mut closing = Box::pin(drain.reached(Stage::Closing));
        Some(async move {
            let end = tokio::select! {
                () = tokio::time::sleep_until(until.into()) => End::Elapsed,
                _ = let_go => End::LetGo,
                () = closing.as_mut() => End::Closing,
            };
            held.end(end);
        })
    }

    /// How many refusals are held now, of how many flows, and how many were held before.
    #[must_use]
    pub fn shown(&self) -> (usize, usize, u64) {
        let (held, flows) = lock(&self.holds).held();
        (held, flows, self.time.get_sample_count())
    }

    fn enter<'h>(
        &'h self,
        patience: &'h Patience,
        OwnedFlow { flow, owner }: OwnedFlow,
        wait: Wait,
    ) -> Option<(Instant, Held<'h>, oneshot::Receiver<()>)> {
        let since = Clock.now();
        let mut told = lock(&patience.told);
        let mut holds = lock(&self.holds);
        let has_place = holds.has_place(owner);
        let at_a_time = if has_place { patience.most } else { 0 };
        let when = holds.refuse(&mut told, flow, since, wait, at_a_time);
        let When::At(until) = when else {
            self.no_place.inc_by(u64::from(!has_place));
            return None;
        };
        let (wakes, let_go) = oneshot::channel();
        let (ticket, longest_held) = holds.enter(&mut told, (flow, owner), wakes);
        self.publish(&holds);
        drop((holds, told));
        if let Some(longest_held) = longest_held {
            let _ = longest_held.send(()); // it may be going by itself at this moment
        }
        let held = Held {
            holding: self,
            patience,
            ticket,
            flow,
            since,
            until,
            wait,
            end: End::Gone,
        };
        Some((until, held, let_go))
    }

    fn publish(&self, holds: &Holds<oneshot::Sender<()>>) {
        let (held, flows) = holds.held();
        self.now.set(i64::try_from(held).unwrap_or(i64::MAX));
        self.flows.set(i64::try_from(flows).unwrap_or(i64::MAX));
    }
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (held, flows) = lock(&self.holds).held();
        write!(f, "Holding({held} of {flows} flows)")
    }
}

/// How holding ended.
#[derive(Clone, Copy)]
enum End {
    Elapsed,
    Gone,
    LetGo,
    Closing,
}

/// One that is held; leaves the table when it is dropped.
struct Held<'h> {
    holding: &'h Holding,
    patience: &'h Patience,
    ticket: Ticket,
    flow: Flow,
    since: Instant,
    until: Instant,
    wait: Wait,
    end: End,
}

impl Held<'_> {
    fn end(mut self, end: End) {
        self.end = end;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let Self {
            holding,
            patience,
            ticket,
            flow,
            since,
            until,
            wait,
            end,
        } = self;
        let now = Clock.now();
        let mut told = lock(&patience.told);
        let mut holds = lock(&holding.holds);
        holds.leave(&mut told, *ticket);
        if matches!(end, End::LetGo) {
            Holds::<oneshot::Sender<()>>::told_early(&mut told, *flow, *until, now, wait.time);
        }
        holding.publish(&holds);
        drop((holds, told));
        let end = match end {
            End::Elapsed => "elapsed",
            End::Gone => "gone",
            End::LetGo => "let_go",
            End::Closing => "closing",
        };
        holding.ended.with_label_values(&[end]).inc();
        let held = now.saturating_duration_since(*since);
        holding.time.observe(held.as_secs_f64());
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
    async fn ends(happens: impl FnOnce(&Drain)) -> (String, Duration) {
        let registry = Registry::new();
        let holding = Holding::new(Duration::from_secs(30), &registry);
        let (patience, drain) = (Patience::new(2), Drain::new());
        let flow = holding.flow("alice", None::<()>).unwrap();
        let wait = Wait {
            time: Duration::from_secs(1),
            in_turn: false,
            most: None,
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
        let (elapsed, took) = ends(|_| {}).await;
        assert_eq!(elapsed, end("elapsed"));
        assert!(took >= Duration::from_secs(1), "{took:?}");
        let closed = ends(|drain| drain.enter(Stage::Closing)).await;
        assert_eq!(closed, (end("closing"), Duration::ZERO));
    }
}
