//! The task that finds the total: it probes the API servers while they have load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use prometheus::IntCounter;
use tokio::time::{MissedTickBehavior, interval};

use crate::limits::limiters::{Limiters, PoolUse};
use crate::limits::total_finder::TotalFinder;
use crate::upstream::UpstreamMetrics;
use crate::upstream::forward::latency_probe::{LatencyProbe, ProbeTime};
use crate::upstream::servers::api_server::ApiServer;
use weir_base::clock::Clock;
use weir_limits::auto_total::{Overload, TotalSignal};
use weir_limits::total_probes::{
    PROBE_PERIOD, PROBE_TIMEOUT, ProbeMeaning, ProbeSchedule, SeatLoad,
};

/// Most probes of one server at a time: one each interval, until the timeout.
const MAX_PROBES: usize = 10;

/// How late a timer of the runtime is without any load.
const TIMER_GRANULARITY: Duration = Duration::from_millis(2);

/// Finds the total.
pub(crate) struct TotalTask {
    pub(crate) finder: Arc<TotalFinder>,
    pub(crate) limiters: Arc<Limiters>,
    pub(crate) probe: LatencyProbe,
    /// Counts what the API server's own limits have rejected.
    pub(crate) rejections: IntCounter,
    pub(crate) upstream: Arc<UpstreamMetrics>,
}

/// What the limiter in force has and needs.
#[derive(Clone, Copy, Debug, Default)]
struct LimiterLoad {
    /// Of what this replica may use.
    seats: SeatLoad,
    rejected: u64,
}

impl LimiterLoad {
    fn of(pools: &[PoolUse]) -> Self {
        let sum = |value: fn(&PoolUse) -> u64| pools.iter().map(value).sum();
        Self {
            seats: SeatLoad {
                seats: sum(|pool| pool.share.into()),
                in_use: sum(|pool| pool.in_use.into()),
                waiting: sum(|pool| pool.waiting.into()),
            },
            rejected: sum(|pool| pool.rejected),
        }
    }
}

/// The counters of signs of overload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OverloadCounts {
    rejected: u64,
    refused: u64,
}

impl TotalTask {
    /// Runs until it is dropped, while the finder is switched on.
    ///
    /// # Cancel safety
    /// Probes in progress are not counted.
    pub(crate) async fn run(self) {
        let mut is_on = self.finder.subscribe(); // its sender is a part of self
        while is_on.wait_for(|is_on| *is_on).await.is_ok() {
            tokio::select! {
                () = self.find() => {}
                _ = is_on.wait_for(|is_on| !is_on) => {}
            }
        }
    }

    /// Likewise, in any case.
    async fn find(&self) {
        let mut ticks = interval(PROBE_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut probes = FuturesUnordered::new();
        let (mut load, mut overloads) = (LimiterLoad::default(), self.overloads());
        let mut schedule = ProbeSchedule::new(Clock.now());
        let mut lag = Duration::ZERO;
        loop {
            tokio::select! {
                due = ticks.tick() => {
                    let now = Clock.now();
                    lag = now.saturating_duration_since(due.into_std());
                    lag = lag.saturating_sub(TIMER_GRANULARITY);
                    self.finder.follow_bounds(now);
                    self.record_overloads(now, &mut overloads);
                    let before = std::mem::replace(&mut load, LimiterLoad::of(&self.limiters.pools()));
                    if load.seats.waiting > 0 || load.rejected > before.rejected {
                        self.finder.record_limiting();
                    }
                    let Some(meaning) = schedule.next(now, load.seats) else {
                        continue;
                    };
                    let servers = self.probe.pools.servers().others();
                    if probes.len() < MAX_PROBES * servers.len() {
                        let times = servers.into_iter();
                        probes.extend(times.map(|server| self.time(server, meaning)));
                    }
                }
                Some((time, meaning)) = probes.next(), if !probes.is_empty() => {
                    self.record(time, meaning, lag);
                }
            }
        }
    }

    async fn time(
        &self,
        server: Arc<ApiServer>,
        meaning: ProbeMeaning,
    ) -> (ProbeTime, ProbeMeaning) {
        (self.probe.time(&server, PROBE_TIMEOUT).await, meaning)
    }

    /// `lag` is how late this task runs: the answer came that much earlier.
    fn record(&self, time: ProbeTime, meaning: ProbeMeaning, lag: Duration) {
        let signal = match time {
            ProbeTime::Answered(time) => meaning(time.saturating_sub(lag)),
            ProbeTime::Rejected => TotalSignal::Overload(Overload::Rejected),
            ProbeTime::Refused => TotalSignal::Overload(Overload::Refused),
            ProbeTime::NoAnswer => TotalSignal::Overload(Overload::NoAnswer),
            ProbeTime::Unknown => return,
        };
        self.finder.record(Clock.now(), signal);
    }

    fn overloads(&self) -> OverloadCounts {
        let failures = self.upstream.failures.snapshot().by_cause;
        let refused = failures.get("weir/upstream-connect").copied();
        OverloadCounts {
            rejected: self.rejections.get(),
            refused: refused.unwrap_or_default(),
        }
    }

    fn record_overloads(&self, now: Instant, before: &mut OverloadCounts) {
        let overloads = self.overloads();
        let earlier = std::mem::replace(before, overloads);
        for (grown, overload) in [
            (overloads.rejected > earlier.rejected, Overload::Rejected),
            (overloads.refused > earlier.refused, Overload::Refused),
        ] {
            if grown {
                self.finder.record(now, TotalSignal::Overload(overload));
            }
        }
    }
}
