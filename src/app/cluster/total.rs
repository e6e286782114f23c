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

/// The interval of probes under load: five for each step of the total.
const LOADED_INTERVAL: Duration = Duration::from_millis(200);

/// The interval of probes without load, and how long there must have been none before such a probe: what a server still works on when
/// a storm has just ended slows a probe down.
const UNLOADED_INTERVAL: Duration = Duration::from_secs(10);

/// Longest time of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

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

/// What the time of a probe says, by the load when it was sent.
type Signal = fn(Duration) -> TotalSignal;

/// What the limiter in force has and needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LimiterLoad {
    /// What this replica may use.
    share: u64,
    in_use: u64,
    waiting: u64,
    rejected: u64,
}

impl LimiterLoad {
    fn of(pools: &[PoolUse]) -> Self {
        let sum = |value: fn(&PoolUse) -> u64| pools.iter().map(value).sum();
        Self {
            share: sum(|pool| pool.share.into()),
            in_use: sum(|pool| pool.in_use.into()),
            waiting: sum(|pool| pool.waiting.into()),
            rejected: sum(|pool| pool.rejected),
        }
    }

    /// More than half of the share is in use, or requests wait: a level whose queues are long may have less than half, as much as it
    /// may borrow.
    const fn is_loaded(self) -> bool {
        self.in_use * 2 > self.share || self.waiting > 0
    }

    /// Hardly anything is in use.
    const fn is_unloaded(self) -> bool {
        self.in_use * 20 <= self.share && self.waiting == 0
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
        let mut ticks = interval(LOADED_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut probes = FuturesUnordered::new();
        let (mut load, mut overloads) = (LimiterLoad::default(), self.overloads());
        let mut unloaded_from = Clock.now();
        let mut unloaded: Signal = TotalSignal::First;
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
                    if load.waiting > 0 || load.rejected > before.rejected {
                        self.finder.record_limiting();
                    }
                    let signal = if load.is_loaded() {
                        TotalSignal::Loaded
                    } else if load.is_unloaded() && now >= unloaded_from {
                        std::mem::replace(&mut unloaded, TotalSignal::Unloaded)
                    } else {
                        continue;
                    };
                    unloaded_from = now + UNLOADED_INTERVAL;
                    let servers = self.probe.servers();
                    if probes.len() < MAX_PROBES * servers.len() {
                        let times = servers.into_iter();
                        probes.extend(times.map(|server| self.time(server, signal)));
                    }
                }
                Some((time, signal)) = probes.next(), if !probes.is_empty() => {
                    self.record(time, signal, lag);
                }
            }
        }
    }

    async fn time(&self, server: Arc<ApiServer>, signal: Signal) -> (ProbeTime, Signal) {
        (self.probe.time(&server, PROBE_TIMEOUT).await, signal)
    }

    /// `lag` is how late this task runs: the answer came that much earlier.
    fn record(&self, time: ProbeTime, signal: Signal, lag: Duration) {
        let signal = match time {
            ProbeTime::Answered(time) => signal(time.saturating_sub(lag)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_half_of_the_share_in_use_or_a_queue_is_load() {
        let load = |in_use, waiting| LimiterLoad {
            share: 40,
            in_use,
            waiting,
            rejected: 0,
        };
        let loads = [(20, 0), (21, 0), (2, 1)].map(|(in_use, waiting)| load(in_use, waiting));
        assert_eq!(loads.map(LimiterLoad::is_loaded), [false, true, true]);
        let loads = [(2, 0), (3, 0), (2, 1)].map(|(in_use, waiting)| load(in_use, waiting));
        assert_eq!(loads.map(LimiterLoad::is_unloaded), [true, false, false]);
    }
}
