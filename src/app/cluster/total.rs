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

/// The interval of probes without load.
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

    /// More than half of the share is in use.
    const fn is_loaded(self) -> bool {
        self.in_use * 2 > self.share
    }

    /// Hardly anything is in use.
    const fn is_unloaded(self) -> bool {
        self.in_use * 20 <= self.share
    }
}

/// The counters of signs of overload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OverloadCounts {
    rejected: u64,
    refused: u64,
}

impl TotalTask {
    /// Runs until it is dropped.
    ///
    /// # Cancel safety
    /// Probes in progress are not counted.
    pub(crate) async fn run(self) {
        let mut ticks = interval(LOADED_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut probes = FuturesUnordered::new();
        let (mut load, mut overloads) = (LimiterLoad::default(), self.overloads());
        let mut unloaded_at: Option<Instant> = None;
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
                    let is_due = |at: Instant| now >= at + UNLOADED_INTERVAL;
                    let is_unloaded = load.is_unloaded() && unloaded_at.is_none_or(is_due);
                    if !load.is_loaded() && !is_unloaded {
                        continue;
                    }
                    if is_unloaded {
                        unloaded_at = Some(now);
                    }
                    let servers = self.probe.servers();
                    if probes.len() < MAX_PROBES * servers.len() {
                        let times = servers.into_iter();
                        probes.extend(times.map(|server| self.time(server, load.is_loaded())));
                    }
                }
                Some((time, is_loaded)) = probes.next(), if !probes.is_empty() => {
                    self.record(time, is_loaded, lag);
                }
            }
        }
    }

    async fn time(&self, server: Arc<ApiServer>, is_loaded: bool) -> (ProbeTime, bool) {
        (self.probe.time(&server, PROBE_TIMEOUT).await, is_loaded)
    }

    /// `lag` is how late this task runs: the answer came that much earlier.
    fn record(&self, time: ProbeTime, is_loaded: bool, lag: Duration) {
        let signal = match time {
            ProbeTime::Answered(time) if is_loaded => TotalSignal::Loaded(time.saturating_sub(lag)),
            ProbeTime::Answered(time) => TotalSignal::Unloaded(time.saturating_sub(lag)),
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
    fn more_than_half_of_the_share_in_use_is_load() {
        let load = |in_use| LimiterLoad {
            share: 40,
            in_use,
            ..LimiterLoad::default()
        };
        assert_eq!(
            [20, 21].map(|in_use| load(in_use).is_loaded()),
            [false, true]
        );
        assert_eq!(
            [2, 3].map(|in_use| load(in_use).is_unloaded()),
            [true, false]
        );
    }
}
