//! Delays rejections of clients that retry too early;
//! [`rejection_hold`](weir_limits::rejection_hold) decides until when.
//!
//! # Cancel safety
//! A client that disconnects is removed at once: dropping the future removes its entry.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge};

use crate::flag_values;
use crate::flag_values::parse_rejection_hold;
use crate::pipeline::connection::peer::HoldState;
use weir_base::clock::Clock;
use weir_base::drain::{Drain, DrainStage};
use weir_base::metrics::Registry;
use weir_base::sync::atomic::{AtomicBool, Ordering};
use weir_base::sync::{Mutex, oneshot};
use weir_kubernetes::numeric::saturating_i64;
use weir_limits::rejection_hold::{
    HoldDecision, HoldFlow, HoldId, HoldKey, HoldOwner, HoldPolicy, RejectionHolds,
};
use weir_limits::throttling::memory_budget::MemoryBudget;
use weir_limits::throttling::retry_pacing::{RejectionCost, RetryPacing};

/// Maximum number of delayed rejections. Each takes less than 2 KiB
/// (`tests/memory/held_rejections.rs`), and the records of long requests together no more than
/// `LONG_REQUESTS_BUDGET`. One user (if unauthenticated, one source network) may use half.
pub const MAX_HELD_REJECTIONS: usize = 10_000;

/// Memory for the long targets and user agents of delayed requests, in bytes: half of what all
/// others may use.
const LONG_REQUESTS_BUDGET: usize = 16 << 20;

/// Upper bounds in seconds; the default of `--rejection-hold` is 1 s.
const BUCKETS: [f64; 8] = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Upper bounds in seconds. Upstream's longest is 32 s, pacing's 16 s.
const RETRY_AFTER_BUCKETS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];

/// Delays of rejections.
#[derive(Args, Clone, Copy, Debug)]
pub struct RejectionDelayConfig {
    /// Maximum delay of the 429 or 503 of a client that retries before its Retry-After has passed: it is sent when that time has
    /// passed. 0 delays none. At most 1m.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_rejection_hold)]
    pub rejection_hold: Duration,
    /// CPU time for 429s for lack of a seat, in thousandths of a core. Beyond it their Retry-After and their delay rise above
    /// kube-apiserver's, to 16s at most. 0 turns this off, as does --rejection-hold=0. At most 1000.
    #[arg(long, value_name = "MILLICORES", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub max_rejection_millicores: u32,
}

impl Default for RejectionDelayConfig {
    fn default() -> Self {
        flag_values::defaults()
    }
}

/// All delayed rejections, of whatever limit.
pub struct RejectionDelay {
    /// Whether delays are enabled. Relaxed: the time is in `holds`.
    enabled: AtomicBool,
    hasher: RandomState,
    /// Locked for one decision; nothing is awaited under it. Locked after a connection's.
    holds: Mutex<RejectionHolds<oneshot::Sender<()>>>,
    /// Locked as `holds` is, and never together with it.
    pacing: Mutex<RetryPacing>,
    long_requests: Arc<MemoryBudget>,
    retry_after_seconds: Histogram,
    held_now: IntGauge,
    flows: IntGauge,
    ended: IntCounterVec,
    over_share: IntCounter,
    hold_seconds: Histogram,
}

impl RejectionDelay {
    /// Delays rejections as `config` says.
    #[must_use]
    pub fn new(config: RejectionDelayConfig, registry: &Registry) -> Self {
        let RejectionDelayConfig {
            rejection_hold: max_hold,
            max_rejection_millicores: max_millicores,
        } = config;
        Self {
            enabled: AtomicBool::new(!max_hold.is_zero()),
            hasher: RandomState::new(),
            holds: Mutex::new(RejectionHolds::new(max_hold, MAX_HELD_REJECTIONS)),
            pacing: Mutex::new(RetryPacing::new(max_millicores)),
            long_requests: MemoryBudget::new(LONG_REQUESTS_BUDGET),
            retry_after_seconds: registry
                .histograms(
                    "weir_rejection_retry_after_seconds",
                    "The Retry-After of rejections for lack of a seat whose early retries are delayed, in seconds; raised while they cost more than --max-rejection-millicores.",
                    &[],
                    &RETRY_AFTER_BUCKETS,
                )
                .with_label_values::<&str>(&[]),
            held_now: registry.gauge(
                "weir_rejection_holds",
                "Rejections that are delayed at the moment, because their clients did not wait for Retry-After.",
            ),
            flows: registry.gauge(
                "weir_rejection_hold_flows",
                "Flows that have delayed rejections at the moment.",
            ),
            ended: registry.counters(
                "weir_rejection_holds_total",
                "Rejections that were delayed, by how the delay ended: its time passed (elapsed), the client disconnected (gone), a limit was reached (let_go), or weir shut down (closing).",
                &["end"],
            ),
            over_share: registry.counter(
                "weir_rejection_holds_refused_total",
                "Rejections that were sent at once because their user (if it is not authenticated, its address) has half of all that may be held.",
            ),
            hold_seconds: registry
                .histograms(
                    "weir_rejection_hold_seconds",
                    "How long rejections were delayed, in seconds.",
                    &[],
                    &BUCKETS,
                )
                .with_label_values::<&str>(&[]),
        }
    }

    /// Changes the settings. Rejections that are delayed keep their times.
    pub(crate) fn set_config(&self, config: RejectionDelayConfig) {
        let hold = config.rejection_hold;
        self.holds.lock().set_max_hold(hold);
        self.enabled.store(!hold.is_zero(), Ordering::Relaxed);
        let millicores = config.max_rejection_millicores;
        self.pacing.lock().set_limit(millicores);
    }

    /// The `Retry-After` in seconds of a rejection for lack of a seat that is sent now: its own, or
    /// longer while such rejections cost too much. Its client's next retry is held accordingly.
    pub(crate) fn pace(
        &self,
        connection: &HoldState,
        key: HoldKey,
        retry_after: u32,
        cost: RejectionCost,
    ) -> u32 {
        let now = Clock.now();
        let paced =
            self.pacing
                .lock()
                .reserve(now, key.owner.map(|owner| owner.0), retry_after, cost);
        let wait = Duration::from_secs(retry_after.into());
        if paced.wait > wait {
            let mut retry_times = connection.retry_times.lock();
            let mut holds = self.holds.lock();
            holds.postpone_retry(&mut retry_times, key.flow, now, wait, paced.wait);
        }
        self.retry_after_seconds.observe(paced.retry_after.into());
        paced.retry_after
    }

    /// How long a rejection for lack of a seat may be held for its pacing.
    #[must_use]
    pub(crate) fn pacing_backlog(&self) -> Duration {
        self.pacing.lock().backlog(Clock.now())
    }

    /// The key of requests of the same user and classification (`values`), and the owner to which
    /// their slots are charged, if any. `None` if delays are disabled.
    #[must_use]
    pub(crate) fn hold_key(&self, values: impl Hash, owner: Option<impl Hash>) -> Option<HoldKey> {
        self.enabled.load(Ordering::Relaxed).then(|| HoldKey {
            flow: HoldFlow(self.hasher.hash_one(values)),
            owner: owner.map(|owner| HoldOwner(self.hasher.hash_one(owner))),
        })
    }

    /// Waits until a rejection of `flow` may be sent, or until shutdown closes connections; `None`
    /// if it may be sent at once. `fits` reserves the memory that must be kept of the request and
    /// returns whether there was enough.
    ///
    /// # Cancel safety
    /// See the module's.
    pub(crate) fn hold<'h>(
        &'h self,
        connection: &'h HoldState,
        flow: HoldKey,
        policy: HoldPolicy,
        drain: &'h Drain,
        fits: &mut dyn FnMut(&Arc<MemoryBudget>) -> bool,
    ) -> Option<impl Future<Output = ()> + use<'h>> {
        let (deadline, held_rejection, evicted) = self.register(connection, flow, policy)?;
        if !fits(&self.long_requests) {
            held_rejection.finish(HoldEnd::Evicted);
            return None;
        }
        // Boxed, since a value that is moved into a future takes its size twice.
        let mut closing = Box::pin(drain.reached(DrainStage::Closing));
        Some(async move {
            let end = tokio::select! {
                biased; // any order will do, and a model needs one
                _ = evicted => HoldEnd::Evicted,
                () = closing.as_mut() => HoldEnd::Closing,
                () = tokio::time::sleep_until(deadline.into()) => HoldEnd::Elapsed,
            };
            held_rejection.finish(end);
        })
    }

    /// Delayed rejections, their flows, and the number of rejections that were delayed before.
    #[must_use]
    pub fn snapshot(&self) -> (usize, usize, u64) {
        let (held, flows) = self.holds.lock().held_counts();
        (held, flows, self.hold_seconds.get_sample_count())
    }

    fn register<'h>(
        &'h self,
        connection: &'h HoldState,
        key: HoldKey,
        policy: HoldPolicy,
    ) -> Option<(Instant, DelayedRejection<'h>, oneshot::Receiver<()>)> {
        let HoldKey { flow, owner } = key;
        let since = Clock.now();
        let mut retry_times = connection.retry_times.lock();
        let mut holds = self.holds.lock();
        let has_slot = holds.has_slot(owner);
        let at_a_time = if has_slot { connection.max_held } else { 0 };
        let decision = holds.schedule_rejection(&mut retry_times, flow, since, policy, at_a_time);
        let HoldDecision::Until(until) = decision else {
            self.over_share.inc_by(u64::from(!has_slot));
            return None;
        };
        let (evict, evicted) = oneshot::channel();
        let (hold_id, longest_held) = holds.hold(&mut retry_times, key, evict);
        self.update_gauges(&holds);
        drop((holds, retry_times));
        if let Some(longest_held) = longest_held {
            let _ = longest_held.send(()); // it may end by itself at this moment
        }
        let held = DelayedRejection {
            delay: self,
            connection,
            hold_id,
            flow,
            since,
            until,
            policy,
            end: HoldEnd::ClientGone,
        };
        Some((until, held, evicted))
    }

    fn update_gauges(&self, holds: &RejectionHolds<oneshot::Sender<()>>) {
        let (held, flows) = holds.held_counts();
        self.held_now.set(saturating_i64(held));
        self.flows.set(saturating_i64(flows));
    }
}

impl fmt::Debug for RejectionDelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (held, flows) = self.holds.lock().held_counts();
        write!(f, "RejectionDelay({held} of {flows} flows)")
    }
}

/// How a delay ended.
#[derive(Clone, Copy)]
enum HoldEnd {
    Elapsed,
    ClientGone,
    Evicted,
    Closing,
}

/// A delayed rejection; removes its entry on drop.
struct DelayedRejection<'h> {
    delay: &'h RejectionDelay,
    connection: &'h HoldState,
    hold_id: HoldId,
    flow: HoldFlow,
    since: Instant,
    until: Instant,
    policy: HoldPolicy,
    end: HoldEnd,
}

impl DelayedRejection<'_> {
    fn finish(mut self, end: HoldEnd) {
        self.end = end;
    }
}

impl Drop for DelayedRejection<'_> {
    fn drop(&mut self) {
        let Self {
            delay,
            connection,
            hold_id,
            flow,
            since,
            until,
            policy,
            end,
        } = self;
        let now = Clock.now();
        let mut retry_times = connection.retry_times.lock();
        let mut holds = delay.holds.lock();
        holds.release(&mut retry_times, *hold_id);
        if matches!(end, HoldEnd::Evicted) {
            RejectionHolds::<oneshot::Sender<()>>::record_early_response(
                &mut retry_times,
                *flow,
                *until,
                now,
                policy.wait,
            );
        }
        delay.update_gauges(&holds);
        drop((holds, retry_times));
        let end = match end {
            HoldEnd::Elapsed => "elapsed",
            HoldEnd::ClientGone => "gone",
            HoldEnd::Evicted => "let_go",
            HoldEnd::Closing => "closing",
        };
        delay.ended.with_label_values(&[end]).inc();
        let held = now.saturating_duration_since(*since);
        delay.hold_seconds.observe(held.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn config(seconds: u64, max_rejection_millicores: u32) -> RejectionDelayConfig {
        RejectionDelayConfig {
            rejection_hold: Duration::from_secs(seconds),
            max_rejection_millicores,
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_flags() {
        let RejectionDelayConfig {
            rejection_hold,
            max_rejection_millicores,
        } = RejectionDelayConfig::default();
        assert_eq!(rejection_hold, Duration::from_secs(1));
        assert_eq!(max_rejection_millicores, 20);
    }

    /// How the delay of the next rejection ends after `happens`, and how long it took.
    async fn hold_end(happens: impl FnOnce(&Drain)) -> (String, Duration) {
        let registry = Registry::new();
        let delay = RejectionDelay::new(config(30, 0), &registry);
        let (connection, drain) = (HoldState::new(2), Drain::new());
        let flow = delay.hold_key("alice", None::<()>).unwrap();
        let wait = HoldPolicy {
            wait: Duration::from_secs(1),
            sequential: false,
            max_hold: None,
            pacing_backlog: Duration::ZERO,
        };
        let reject = || delay.hold(&connection, flow, wait, &drain, &mut |_| true);
        assert!(reject().is_none(), "the first is said at once");
        let began = Clock.now();
        let held = reject().unwrap();
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

    #[tokio::test(start_paused = true)]
    async fn the_longest_hold_changes_for_later_rejections() {
        let delay = RejectionDelay::new(config(30, 0), &Registry::new());
        let (connection, drain) = (HoldState::new(4), Drain::new());
        let flow = delay.hold_key("alice", None::<()>).unwrap();
        let wait = HoldPolicy {
            wait: Duration::from_secs(20),
            sequential: false,
            max_hold: None,
            pacing_backlog: Duration::ZERO,
        };
        let reject = || delay.hold(&connection, flow, wait, &drain, &mut |_| true);
        assert!(reject().is_none());
        let began = Clock.now();
        let before = reject().unwrap();
        delay.set_config(config(3, 0));
        reject().unwrap().await;
        let took = Clock.now().duration_since(began);
        assert!(took < Duration::from_secs(4), "{took:?}");
        before.await;
        let took = Clock.now().duration_since(began);
        assert!(took >= Duration::from_secs(20), "{took:?}");
        delay.set_config(config(0, 0));
        assert!(delay.hold_key("alice", None::<()>).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_early_retry_is_held_until_its_paced_time_beyond_the_longest_hold() {
        let registry = Registry::new();
        let delay = RejectionDelay::new(config(1, 1), &registry);
        let (connection, drain) = (HoldState::new(2), Drain::new());
        let flow = delay.hold_key("alice", None::<()>).unwrap();
        let mut policy = HoldPolicy::for_seats(Duration::from_secs(1));
        let reject = |policy| delay.hold(&connection, flow, policy, &drain, &mut |_| true);
        assert!(reject(policy).is_none());
        // 30 ms of the schedule for each.
        for _ in 0..99 {
            let other = HoldState::new(2);
            delay.pace(&other, flow, 1, RejectionCost::Http1);
        }
        let paced = delay.pace(&connection, flow, 1, RejectionCost::Http1);
        assert_eq!(paced, 3);
        let began = Clock.now();
        policy.pacing_backlog = delay.pacing_backlog();
        reject(policy).unwrap().await;
        let took = Clock.now().duration_since(began);
        assert!(took >= Duration::from_secs(3), "{took:?}");
        assert!(took < Duration::from_secs(4), "{took:?}");
        let sent = "weir_rejection_retry_after_seconds_bucket{le=\"1\"} 33";
        assert!(registry.render().contains(sent), "{}", registry.render());
        delay.set_config(config(1, 0));
        let paced = delay.pace(&connection, flow, 1, RejectionCost::Http1);
        assert_eq!(paced, 1);
    }

    #[cfg(weir_loom)]
    mod loom_tests {
        use futures_util::FutureExt;

        use super::*;
        use weir_base::sync::{block_on, model, thread};

        #[test]
        fn each_delay_ends_once_whatever_ends_it() {
            model(|| {
                let registry = Registry::new();
                let delay = Arc::new(RejectionDelay::new(config(60, 0), &registry));
                // Its second delayed rejection lets the first go.
                let (connection, drain) = (Arc::new(HoldState::new(2)), Drain::new());
                let reject = {
                    let (delay, drain) = (Arc::clone(&delay), Arc::clone(&drain));
                    move |waits: bool| {
                        let flow = delay.hold_key("alice", Some("alice")).unwrap();
                        let policy = HoldPolicy::for_seats(Duration::from_secs(60));
                        let held = delay.hold(&connection, flow, policy, &drain, &mut |_| true);
                        let Some(held) = held else { return 0 };
                        if waits {
                            block_on(held);
                        } else {
                            let _ = held.now_or_never(); // its client disconnects
                        }
                        1
                    }
                };
                assert_eq!(reject(true), 0, "the first is sent at once");
                let rejects = [true, true, false].map(|waits| {
                    let reject = reject.clone();
                    thread::spawn(move || reject(waits))
                });
                drain.advance(DrainStage::Closing);
                let mut delayed = 0;
                for reject in rejects {
                    delayed += reject.join().unwrap();
                }
                assert!(delayed > 0);
                assert_eq!(delay.snapshot(), (0, 0, delayed));
                assert_eq!((delay.held_now.get(), delay.flows.get()), (0, 0));
            });
        }
    }
}
