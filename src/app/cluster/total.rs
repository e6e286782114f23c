//! The task that finds the total: it probes the API servers while they have load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::uri::PathAndQuery;
use http::{Method, StatusCode};
use jiff::Timestamp;
use prometheus::IntCounter;
use serde::Deserialize;
use tokio::time::{MissedTickBehavior, interval};
use tracing::info;

use crate::limits::limiters::{Limiters, PoolUse};
use crate::limits::total_finder::TotalFinder;
use crate::upstream::UpstreamMetrics;
use crate::upstream::forward::api_server_client::ApiServerClient;
use crate::upstream::forward::latency_probe::{LatencyProbe, ProbeTime};
use crate::upstream::servers::api_server::ApiServer;
use weir_base::clock::Clock;
use weir_kubernetes::numeric::saturating_u64;
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

/// The interval at which the API servers are counted.
const COUNT_INTERVAL: Duration = Duration::from_secs(60);

/// The Leases that each kube-apiserver of a cluster keeps.
const IDENTITY_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver";

/// Finds the total.
pub(crate) struct TotalTask {
    pub(crate) finder: Arc<TotalFinder>,
    pub(crate) limiters: Arc<Limiters>,
    pub(crate) probe: LatencyProbe,
    pub(crate) calls: ApiServerClient,
    /// Counts what the API server's own limits have rejected.
    pub(crate) rejections: IntCounter,
    pub(crate) upstream: Arc<UpstreamMetrics>,
}

/// What the limiter in force has and needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LimiterLoad {
    total: u64,
    in_use: u64,
    waiting: u64,
    rejected: u64,
}

impl LimiterLoad {
    fn of(pools: &[PoolUse]) -> Self {
        let sum = |value: fn(&PoolUse) -> u64| pools.iter().map(value).sum();
        Self {
            total: sum(|pool| pool.total.into()),
            in_use: sum(|pool| pool.in_use.into()),
            waiting: sum(|pool| pool.waiting.into()),
            rejected: sum(|pool| pool.rejected),
        }
    }

    /// More than half of the total is in use.
    const fn is_loaded(self) -> bool {
        self.in_use * 2 > self.total
    }

    /// Hardly anything is in use.
    const fn is_unloaded(self) -> bool {
        self.in_use * 20 <= self.total
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
        let counting = self.count_servers();
        tokio::join!(self.probe_periodically(), counting);
    }

    async fn probe_periodically(&self) {
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

    /// Counts the API servers behind one address.
    async fn count_servers(&self) {
        let mut is_denied = false;
        loop {
            let known = saturating_u64(self.probe.servers().len());
            if known > 1 {
                self.finder.record_servers(known);
                tokio::time::sleep(COUNT_INTERVAL).await;
                continue;
            }
            let path = PathAndQuery::from_static(IDENTITY_LEASES);
            let listed = self.calls.send_json(Method::GET, path, None).await;
            match listed {
                Ok(leases) if leases.status == StatusCode::OK => {
                    if let Ok(now) = Timestamp::try_from(Clock.wall()) {
                        self.finder.record_servers(live_leases(&leases.body, now));
                    }
                }
                Ok(leases) if leases.status == StatusCode::FORBIDDEN && !is_denied => {
                    is_denied = true;
                    info!(
                        "may not list Leases in kube-system (coordination.k8s.io leases, list): an address of the API server counts as one server"
                    );
                }
                _ => {}
            }
            tokio::time::sleep(COUNT_INTERVAL).await;
        }
    }
}

#[derive(Deserialize)]
struct IdentityLeases {
    #[serde(default)]
    items: Vec<IdentityLease>,
}

#[derive(Deserialize)]
struct IdentityLease {
    spec: IdentityLeaseSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdentityLeaseSpec {
    renew_time: Option<String>,
    lease_duration_seconds: Option<i64>,
}

/// The Leases of a list that have not expired, at least one.
fn live_leases(list: &[u8], now: Timestamp) -> u64 {
    let list: IdentityLeases =
        serde_json::from_slice(list).unwrap_or(IdentityLeases { items: Vec::new() });
    let is_live = |lease: &&IdentityLease| {
        let IdentityLeaseSpec {
            renew_time: renewed,
            lease_duration_seconds: seconds,
        } = &lease.spec;
        let renewed: Option<Timestamp> = renewed.as_ref().and_then(|time| time.parse().ok());
        renewed
            .zip(*seconds)
            .is_some_and(|(renewed, seconds)| now.duration_since(renewed).as_secs() <= seconds)
    };
    saturating_u64(list.items.iter().filter(is_live).count()).max(1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expired_leases_of_api_servers_do_not_count() {
        let lease =
            |renewed: &str| json!({"spec": {"renewTime": renewed, "leaseDurationSeconds": 3600}});
        let now: Timestamp = "2026-11-27T12:00:00Z".parse().unwrap();
        let list = json!({"items": [
            lease("2026-11-27T11:59:55.123456Z"),
            lease("2026-11-27T11:00:01Z"),
            lease("2026-11-27T10:59:58Z"),
            {"spec": {}},
        ]});
        assert_eq!(live_leases(list.to_string().as_bytes(), now), 2);
        assert_eq!(live_leases(b"{}", now), 1);
        assert_eq!(live_leases(b"no JSON", now), 1);
    }

    #[test]
    fn more_than_half_of_the_total_in_use_is_load() {
        let load = |in_use| LimiterLoad {
            total: 40,
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
