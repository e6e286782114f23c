//! The levers in force: limits that an operator sets through the control socket. They are in force
//! at once, on requests that wait in admission as well as on those that arrive.
//!
//! [`LeverSet`] decides. Here is what changes it, ends levers in time, logs and counts. A change
//! stores a new set and then announces it. Each worker passes the announcement on to its waiting
//! requests, so that a request that does not wait never registers anywhere, and the control runtime
//! wakes one task of each worker instead of every request.
//!
//! A lever that overrides a setting is handed on to what it sets, in the same step: a reload does not
//! lift it, and what is configured is in force again with its end.
//!
//! Levers stay at a reload, and end with the process.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGaugeVec};
use tokio::sync::watch;
use tracing::info;

use crate::limits::limiters::Limiters;
use crate::limits::rejection::Rejection;
use crate::limits::total_finder::TotalFinder;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_kubernetes::numeric::{saturating_i64, saturating_u64};
use weir_limits::enforcement::{EnforcementOverride, EnforcementSwitch};
use weir_limits::levers::{
    Lever, LeverAction, LeverPermit, LeverSet, LeverSetting, LeverSettings, LeverSpec, MAX_LEVERS,
    TooManyLevers, format_seconds,
};
use weir_limits::{AdmissionAttributes, RequestSource};

/// The bits of a [`SetSummary`] for the number of levers.
const COUNT_BITS: u32 = 8;

/// The levers in force, shared by all workers.
#[derive(Debug)]
pub struct Levers {
    in_force: ArcSwap<LeverSet>,
    /// What is in `in_force`, in one number, for requests. Written after `in_force` (release, read
    /// by acquire), so that a request that sees a lever here finds it there.
    summary: AtomicU64,
    /// What requests that wait have to know. Also held while the set changes. Nothing is awaited under it.
    changes: Mutex<watch::Sender<Announcement>>,
    /// `None` where requests alone are checked.
    limits: Option<OverriddenLimits>,
    enforcement: Arc<EnforcementSwitch>,
    metrics: LeverMetrics,
}

/// The limits whose settings levers override.
#[derive(Debug)]
pub(crate) struct OverriddenLimits {
    pub(crate) total: Arc<TotalFinder>,
    pub(crate) limiters: Arc<Limiters>,
}

/// What requests that wait have to know of the levers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// The id of the latest lever.
    latest: u64,
    enforcement: EnforcementOverride,
}

#[derive(Debug)]
struct LeverMetrics {
    in_force: IntGaugeVec,
    rejections: IntCounterVec,
}

/// The id of the latest lever, and the number of levers that requests are checked against.
#[derive(Clone, Copy)]
struct SetSummary {
    latest: u64,
    count: u64,
}

impl SetSummary {
    fn of(set: &LeverSet) -> u64 {
        const { assert!(MAX_LEVERS < 1 << COUNT_BITS) }
        set.latest() << COUNT_BITS | saturating_u64(set.checked_count())
    }

    const fn from_bits(bits: u64) -> Self {
        Self {
            latest: bits >> COUNT_BITS,
            count: bits & ((1 << COUNT_BITS) - 1),
        }
    }
}

/// How far a request has been checked, and what it holds of levers.
#[derive(Debug, Default)]
pub(crate) struct LeverCheck {
    /// The id of the latest lever that it was checked against.
    latest: u64,
    permit: LeverPermit,
}

impl LeverCheck {
    /// What the request holds until its end.
    pub(crate) fn into_permit(self) -> LeverPermit {
        self.permit
    }
}

/// Who changed a lever, for the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operator {
    /// Of the control socket's peer.
    pub(crate) uid: Option<u32>,
    /// Likewise.
    pub(crate) pid: Option<i32>,
    /// The name that it claims.
    pub(crate) claimed_name: Option<String>,
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.uid, self.pid) {
            (Some(uid), Some(pid)) => write!(f, "uid {uid}, pid {pid}")?,
            (Some(uid), None) => write!(f, "uid {uid}")?,
            (None, _) => f.write_str("unknown")?,
        }
        match &self.claimed_name {
            Some(name) => write!(f, ", as {name}"),
            None => Ok(()),
        }
    }
}

impl Levers {
    /// No lever, of requests only.
    #[must_use]
    pub fn new(registry: &Registry) -> Arc<Self> {
        Self::build(registry, None)
    }

    /// No lever, of requests or of these limits.
    #[must_use]
    pub(crate) fn of_limits(registry: &Registry, limits: OverriddenLimits) -> Arc<Self> {
        Self::build(registry, Some(limits))
    }

    fn build(registry: &Registry, limits: Option<OverriddenLimits>) -> Arc<Self> {
        let enforcement = limits.as_ref().map(|limits| limits.limiters.enforcement());
        Arc::new(Self {
            enforcement: enforcement.map(Arc::clone).unwrap_or_default(),
            limits,
            in_force: ArcSwap::default(),
            summary: AtomicU64::new(0),
            changes: Mutex::default(),
            metrics: LeverMetrics {
                in_force: registry.gauges(
                    "weir_levers",
                    "Levers in force, which an operator has set by weir ctl.",
                    &["action"],
                ),
                rejections: registry.counters(
                    "weir_lever_rejections_total",
                    "Requests that a lever rejected.",
                    &["action"],
                ),
            },
        })
    }

    /// Checks a request against the levers that it was not checked against. `waited`: it has waited
    /// since the last check.
    ///
    /// # Errors
    /// The rejection by a lever.
    pub(crate) fn check<'s>(
        &self,
        check: &mut LeverCheck,
        attributes: &AdmissionAttributes<'_>,
        source: impl FnOnce() -> RequestSource<'s>,
        waited: bool,
    ) -> Result<(), Rejection> {
        let summary = SetSummary::from_bits(self.summary.load(Ordering::Acquire));
        if summary.count == 0 || summary.latest == check.latest {
            check.latest = summary.latest;
            return Ok(());
        }
        let levers = self.in_force.load();
        let checked = levers.check(Clock.now(), attributes, source(), check.latest);
        check.latest = levers.latest();
        let permit = checked.map_err(|lever| {
            let label = lever.action.label();
            self.metrics.rejections.with_label_values(&[label]).inc();
            Rejection::Lever { lever, waited }
        })?;
        check.permit.extend(permit);
        Ok(())
    }

    /// The levers in force, oldest first.
    #[must_use]
    pub(crate) fn in_force(&self) -> Vec<Arc<Lever>> {
        self.in_force.load().by_age()
    }

    /// Whether requests pass without limits, except those of levers.
    #[must_use]
    pub(crate) fn lift_limits(&self) -> bool {
        self.enforcement.get() == EnforcementOverride::Lifted
    }

    /// Whether a limit only counts now that is configured to do so (`configured`) or not to.
    #[must_use]
    pub(crate) fn is_dry_run(&self, configured: bool) -> bool {
        self.enforcement.is_dry_run(configured)
    }

    /// Announces each new lever, and whether limits are enforced.
    #[must_use]
    pub(crate) fn announcements(&self) -> watch::Receiver<Announcement> {
        self.changes.lock().subscribe()
    }

    /// Puts a lever in force, in place of one of the same setting.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn pull(
        &self,
        now: Instant,
        spec: LeverSpec,
        by: &Operator,
    ) -> Result<Arc<Lever>, TooManyLevers> {
        let (overridden, lever) = self.change(|set| {
            let overridden = set.remove_overridden(spec.action);
            (overridden, set.pull(now, spec))
        });
        let lever = lever?;
        if let Some(overridden) = overridden {
            info!(id = overridden.id, by = lever.id, "a lever was replaced");
        }
        let (qps, in_flight) = match lever.spec.action {
            LeverAction::Block | LeverAction::Set(_) => (None, None),
            LeverAction::Limit { qps, in_flight } => (qps, in_flight),
        };
        let setting = lever.spec.action.setting();
        info!(
            id = lever.id,
            action = lever.spec.action.label(),
            value = setting.map(|setting| setting.to_string()),
            qps,
            in_flight,
            target = %lever.spec.target,
            r#for = %format_seconds(lever.spec.duration),
            reason = %lever.spec.reason,
            forced = lever.spec.spared.is_none(),
            uid = by.uid,
            pid = by.pid,
            claimed_name = by.claimed_name,
            "a lever is in force"
        );
        Ok(lever)
    }

    /// Ends a lever. `None` if there is none of this id.
    pub(crate) fn undo(&self, id: u64, by: &Operator) -> Option<Arc<Lever>> {
        let lever = self.change(|set| set.undo(id))?;
        info!(
            id,
            action = lever.spec.action.label(),
            target = %lever.spec.target,
            rejected = lever.counts().rejected,
            uid = by.uid,
            pid = by.pid,
            claimed_name = by.claimed_name,
            "a lever was undone"
        );
        Some(lever)
    }

    /// Ends the bypass of all limits. `None` if there is none.
    pub(crate) fn end_bypass(&self, by: &Operator) -> Option<Arc<Lever>> {
        let levers = self.in_force();
        let is_bypass =
            |lever: &&Arc<Lever>| lever.spec.action.setting() == Some(LeverSetting::Bypass);
        let id = levers.iter().find(is_bypass)?.id;
        self.undo(id, by)
    }

    /// Ends levers in time. Never returns.
    ///
    /// # Cancel safety
    /// A lever that has ended rejects nothing, whether it is removed or not.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut announcements = self.announcements();
        loop {
            let next_end = self.in_force.load().next_end();
            let ended = async {
                match next_end {
                    Some(end) => tokio::time::sleep_until(end.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ended => self.expire(Clock.now()),
                _ = announcements.changed() => {} // its sender is a part of self
            }
        }
    }

    fn expire(&self, now: Instant) {
        for lever in self.change(|set| set.expire(now)) {
            info!(
                id = lever.id,
                action = lever.spec.action.label(),
                target = %lever.spec.target,
                rejected = lever.counts().rejected,
                "a lever has ended"
            );
        }
    }

    /// Changes the set, and announces what requests that wait have to know.
    fn change<T>(&self, change: impl FnOnce(&mut LeverSet) -> T) -> T {
        let announcements = self.changes.lock();
        let mut set = LeverSet::clone(&self.in_force.load());
        let result = change(&mut set);
        for label in LeverAction::LABELS {
            let levers = set.by_age();
            let count = levers.iter().filter(|one| one.spec.action.label() == label);
            let gauge = self.metrics.in_force.with_label_values(&[label]);
            gauge.set(saturating_i64(count.count()));
        }
        let LeverSettings { enforcement, total } = set.settings();
        if let Some(limits) = &self.limits {
            limits.total.set_lever(Clock.now(), total);
            limits.limiters.set_enforcement(enforcement);
        }
        let (latest, summary) = (set.latest(), SetSummary::of(&set));
        let new = Announcement {
            latest,
            enforcement,
        };
        self.in_force.store(Arc::new(set));
        self.summary.store(summary, Ordering::Release);
        announcements.send_if_modified(|announced| std::mem::replace(announced, new) != new);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use weir_kubernetes::api::UserInfo;
    use weir_kubernetes::request_info::RequestInfo;

    const MINUTE: Duration = Duration::from_secs(60);

    fn limit(in_flight: u32) -> LeverSpec {
        let target = serde_json::from_str(r#"{"users": ["alice"]}"#);
        LeverSpec {
            action: LeverAction::Limit {
                qps: None,
                in_flight: Some(in_flight),
            },
            target: target.unwrap(),
            duration: MINUTE,
            reason: String::new(),
            pulled_by: String::new(),
            spared: None,
        }
    }

    fn check(levers: &Levers, check: &mut LeverCheck, waited: bool) -> Result<(), Rejection> {
        let info = RequestInfo::parse("GET", b"/api/v1/pods").unwrap();
        let user = UserInfo {
            name: "alice".to_owned(),
            ..UserInfo::default()
        };
        let attributes = AdmissionAttributes {
            info: &info,
            user: &user,
        };
        let source = || RequestSource {
            address: [10, 0, 0, 1].into(),
            user_agent: b"",
        };
        levers.check(check, &attributes, source, waited)
    }

    #[tokio::test(start_paused = true)]
    async fn levers_end_in_time_and_are_counted() {
        let levers = Levers::new(&Registry::new());
        let task = tokio::spawn(Arc::clone(&levers).run());
        let gauge = levers.metrics.in_force.with_label_values(&["limit"]);
        for minutes in [3, 1, 2] {
            let spec = LeverSpec {
                duration: minutes * MINUTE,
                ..limit(1)
            };
            levers
                .pull(Clock.now(), spec, &Operator::default())
                .unwrap();
        }
        for left in [3, 2, 1, 0] {
            assert_eq!(
                (levers.in_force().len(), gauge.get()),
                (left, saturating_i64(left))
            );
            tokio::time::sleep(MINUTE + Duration::from_millis(10)).await;
        }
        task.abort();
    }

    #[test]
    fn a_request_that_waits_is_checked_against_new_levers_only() {
        let levers = Levers::new(&Registry::new());
        let pull = |in_flight| {
            let by = Operator::default();
            levers.pull(Clock.now(), limit(in_flight), &by).unwrap()
        };
        let mut waiting = LeverCheck::default();
        check(&levers, &mut waiting, false).unwrap();
        let mut announcements = levers.announcements();
        let first = pull(1);
        assert!(announcements.has_changed().unwrap());
        announcements.mark_unchanged();
        check(&levers, &mut waiting, true).unwrap();
        check(&levers, &mut waiting, true).unwrap();
        assert_eq!(first.counts().in_flight, 1);
        let rejection = check(&levers, &mut LeverCheck::default(), false).unwrap_err();
        assert_eq!(rejection.limit_label(), "lever-limit");
        let second = pull(1);
        check(&levers, &mut waiting, true).unwrap();
        assert_eq!(
            (first.counts().in_flight, second.counts().in_flight),
            (1, 1)
        );
        drop(waiting.into_permit());
        assert_eq!(
            (first.counts().in_flight, second.counts().in_flight),
            (0, 0)
        );
        levers.undo(first.id, &Operator::default()).unwrap();
        levers.undo(second.id, &Operator::default()).unwrap();
        announcements.mark_unchanged();
        let mut late = LeverCheck::default();
        check(&levers, &mut late, false).unwrap();
        assert_eq!(late.latest, second.id, "also without a lever");
        assert!(!announcements.has_changed().unwrap());
    }
}
