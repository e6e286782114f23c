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
//! Levers stay at a reload. Other processes, the replicas and the successor in a hand-over, learn of
//! them by [records](LeverRecord). While a successor takes over, nothing changes here: it would be
//! lost.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
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
    Lever, LeverAction, LeverPermit, LeverRecord, LeverSet, LeverSetting, LeverSettings, LeverSpec,
    LimitShare, MAX_LEVERS, Merged, TooManyLevers, format_seconds,
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
    /// Locked while the set changes. Nothing is awaited under it.
    changes: Mutex<Changes>,
    /// Changes with the set.
    revisions: watch::Sender<u64>,
    /// Writes changes to the audit log.
    recorder: OnceLock<Box<dyn LeverRecorder>>,
    /// `None` where requests alone are checked.
    limits: Option<OverriddenLimits>,
    enforcement: Arc<EnforcementSwitch>,
    metrics: LeverMetrics,
}

/// How the set changes.
#[derive(Debug, Default)]
struct Changes {
    /// What requests that wait have to know.
    announcements: watch::Sender<Announcement>,
    /// Whether a successor has the levers: what is changed here would be lost.
    is_handed_over: bool,
}

/// Writes changes of levers to the audit log.
pub(crate) trait LeverRecorder: fmt::Debug + Send + Sync {
    /// Writes a change.
    fn record(&self, change: &LeverChange<'_>);
}

/// A change of a lever, for the logs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeverChange<'a> {
    pub(crate) kind: LeverChangeKind,
    pub(crate) lever: &'a Lever,
    /// Who changed it. `None`: it ended by itself.
    pub(crate) by: &'a Operator,
}

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeverChangeKind {
    /// It has ended in time.
    Ended,
    /// It is in force.
    Pulled,
    /// Another lever has taken its place.
    Replaced,
    /// It has ended before its time.
    Undone,
}

/// Why a lever is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LeverFailure {
    /// A successor has the levers.
    #[error(
        "a new process takes over, with the levers in force: nothing was changed; try again in a moment"
    )]
    HandedOver,
    /// There are as many as there may be.
    #[error("there are {MAX_LEVERS} levers already; undo one first")]
    TooMany,
}

impl From<TooManyLevers> for LeverFailure {
    fn from(_: TooManyLevers) -> Self {
        Self::TooMany
    }
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
    /// The replica that has sent the change.
    pub(crate) replica: Option<String>,
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
        Self::build(registry, String::new(), None)
    }

    /// No lever, of requests or of these limits, in the process of this name.
    #[must_use]
    pub(crate) fn of_limits(
        registry: &Registry,
        process: String,
        limits: OverriddenLimits,
    ) -> Arc<Self> {
        Self::build(registry, process, Some(limits))
    }

    fn build(registry: &Registry, process: String, limits: Option<OverriddenLimits>) -> Arc<Self> {
        let enforcement = limits.as_ref().map(|limits| limits.limiters.enforcement());
        Arc::new(Self {
            enforcement: enforcement.map(Arc::clone).unwrap_or_default(),
            limits,
            in_force: ArcSwap::from_pointee(LeverSet::of_process(process)),
            summary: AtomicU64::new(0),
            changes: Mutex::default(),
            revisions: watch::Sender::default(),
            recorder: OnceLock::new(),
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

    /// The number of the latest lever.
    #[must_use]
    pub(crate) fn latest(&self) -> u64 {
        SetSummary::from_bits(self.summary.load(Ordering::Acquire)).latest
    }

    /// The levers that are newer than `after` and may end requests in flight, and the number of the
    /// latest lever.
    #[must_use]
    pub(crate) fn ending(&self, after: u64) -> (Vec<Arc<Lever>>, u64) {
        let levers = self.in_force.load();
        let ending = levers.ending(after).map(Arc::clone);
        (ending.collect(), levers.latest())
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
        self.changes.lock().announcements.subscribe()
    }

    /// The number of changes of the set.
    #[must_use]
    pub(crate) fn revisions(&self) -> watch::Receiver<u64> {
        self.revisions.subscribe()
    }

    /// Sets what else is written of changes. Only the first call counts.
    pub(crate) fn set_recorder(&self, recorder: Box<dyn LeverRecorder>) {
        let _ = self.recorder.set(recorder); // there is one audit log
    }

    /// Puts a lever in force, in place of one of the same setting.
    ///
    /// # Errors
    /// There are too many, or a successor has them.
    pub(crate) fn pull(
        &self,
        now: Instant,
        spec: LeverSpec,
        by: &Operator,
    ) -> Result<Arc<Lever>, LeverFailure> {
        let (removed, lever) = self.change_here(|set| {
            let removed = set.remove_overridden(spec.action);
            (removed, set.pull(now, spec))
        })?;
        let added = lever?;
        let merged = Merged {
            added: Some(Arc::clone(&added)),
            removed,
        };
        self.log_merged(&merged, by);
        Ok(added)
    }

    /// Takes in what another process knows, `by` a replica.
    ///
    /// # Errors
    /// As [`pull`](Self::pull).
    pub(crate) fn merge(
        &self,
        now: Instant,
        record: LeverRecord,
        by: &Operator,
    ) -> Result<(), LeverFailure> {
        if self.in_force.load().knows(&record) {
            return Ok(());
        }
        let merged = self.change_here(|set| set.merge(now, record))??;
        self.log_merged(&merged, by);
        Ok(())
    }

    /// Ends levers: those of an id.
    ///
    /// # Errors
    /// A successor has them.
    pub(crate) fn undo(&self, id: u64, by: &Operator) -> Result<Vec<Arc<Lever>>, LeverFailure> {
        let levers = self.change_here(|set| set.undo(id))?;
        for lever in &levers {
            self.log(LeverChangeKind::Undone, lever, by);
        }
        Ok(levers)
    }

    /// Ends the bypass of all limits, if there is one.
    ///
    /// # Errors
    /// A successor has the levers.
    pub(crate) fn end_bypass(&self, by: &Operator) -> Result<Vec<Arc<Lever>>, LeverFailure> {
        let levers = self.in_force();
        let is_bypass =
            |lever: &&Arc<Lever>| lever.spec.action.setting() == Some(LeverSetting::Bypass);
        let bypass = levers.iter().find(is_bypass);
        bypass.map_or(Ok(Vec::new()), |lever| self.undo(lever.id, by))
    }

    /// What other processes have to know of the levers.
    #[must_use]
    pub(crate) fn records(&self, now: Instant) -> Vec<LeverRecord> {
        self.in_force.load().records(now)
    }

    /// What a successor has to know. From now on nothing changes here.
    #[must_use]
    pub(crate) fn hand_over(&self, now: Instant) -> Vec<LeverRecord> {
        self.changes.lock().is_handed_over = true;
        self.records(now)
    }

    /// The successor has not taken over.
    pub(crate) fn keep(&self) {
        self.changes.lock().is_handed_over = false;
    }

    /// Takes the levers of the process before over.
    pub(crate) fn take_over(&self, now: Instant, records: Vec<LeverRecord>) {
        let added = self.change(|set| {
            let merged = records.into_iter().map(|record| set.merge(now, record));
            merged.flatten().filter_map(|merged| merged.added).count()
        });
        if added > 0 {
            info!(levers = added, "levers of the old process are in force");
        }
    }

    /// Divides what limits admit.
    pub(crate) fn set_share(&self, share: LimitShare) {
        if self.share() != share {
            self.change(|set| set.set_share(Clock.now(), share));
        }
    }

    /// How limits are divided.
    #[must_use]
    pub(crate) fn share(&self) -> LimitShare {
        self.in_force.load().share()
    }

    fn log_merged(&self, merged: &Merged, by: &Operator) {
        let Merged { added, removed } = merged;
        if let Some(removed) = removed {
            let kind = match added {
                Some(_) => LeverChangeKind::Replaced,
                None => LeverChangeKind::Undone,
            };
            self.log(kind, removed, by);
        }
        if let Some(added) = added {
            self.log(LeverChangeKind::Pulled, added, by);
        }
    }

    /// Writes a change to the log and to the audit log.
    fn log(&self, kind: LeverChangeKind, lever: &Lever, by: &Operator) {
        let setting = lever.spec.action.setting();
        let value = setting.map(|setting| setting.to_string());
        let action = lever.spec.action.label();
        if kind == LeverChangeKind::Pulled {
            let (qps, in_flight) = lever.spec.action.limits();
            info!(
                id = lever.id,
                action,
                value,
                qps,
                in_flight,
                target = %lever.spec.target,
                r#for = %format_seconds(lever.spec.duration),
                reason = %lever.spec.reason,
                forced = lever.spec.spared.is_none(),
                uid = by.uid,
                pid = by.pid,
                claimed_name = by.claimed_name,
                replica = by.replica,
                "a lever is in force"
            );
        } else {
            info!(
                id = lever.id,
                action,
                value,
                target = %lever.spec.target,
                rejected = lever.counts().rejected,
                uid = by.uid,
                pid = by.pid,
                claimed_name = by.claimed_name,
                replica = by.replica,
                "{}",
                match kind {
                    LeverChangeKind::Ended | LeverChangeKind::Pulled => "a lever has ended",
                    LeverChangeKind::Replaced => "a lever was replaced",
                    LeverChangeKind::Undone => "a lever was undone",
                }
            );
        }
        if let Some(recorder) = self.recorder.get() {
            recorder.record(&LeverChange { kind, lever, by });
        }
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
            self.log(LeverChangeKind::Ended, &lever, &Operator::default());
        }
    }

    /// Changes the set, unless a successor has it.
    fn change_here<T>(&self, change: impl FnOnce(&mut LeverSet) -> T) -> Result<T, LeverFailure> {
        let mut changes = self.changes.lock();
        match changes.is_handed_over {
            true => Err(LeverFailure::HandedOver),
            false => Ok(self.change_locked(&mut changes, change)),
        }
    }

    /// Changes the set, and announces what requests that wait have to know.
    fn change<T>(&self, change: impl FnOnce(&mut LeverSet) -> T) -> T {
        self.change_locked(&mut self.changes.lock(), change)
    }

    fn change_locked<T>(
        &self,
        changes: &mut Changes,
        change: impl FnOnce(&mut LeverSet) -> T,
    ) -> T {
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
        let announcements = &changes.announcements;
        announcements.send_if_modified(|announced| std::mem::replace(announced, new) != new);
        self.revisions.send_modify(|revision| *revision += 1);
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
            ends_in_flight: false,
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

    #[test]
    fn while_a_successor_takes_over_no_lever_changes() {
        let (levers, by) = (Levers::new(&Registry::new()), Operator::default());
        let first = levers.pull(Clock.now(), limit(1), &by).unwrap();
        let records = levers.hand_over(Clock.now());
        let refused = levers.pull(Clock.now(), limit(1), &by).unwrap_err();
        assert_eq!(refused, LeverFailure::HandedOver);
        assert!(refused.to_string().contains("nothing was changed"));
        assert!(levers.undo(first.id, &by).is_err());
        let merged = levers.merge(Clock.now(), records[0].clone(), &by);
        assert_eq!(merged, Ok(()), "it says nothing new");
        let next = Levers::new(&Registry::new());
        next.take_over(Clock.now(), records);
        assert_eq!(next.in_force()[0].key(), first.key());
        levers.keep();
        assert_eq!(levers.undo(first.id, &by).unwrap().len(), 1);
    }

    /// On a paused clock: a request that waited for a timer would be rejected later than now.
    #[tokio::test(start_paused = true)]
    async fn what_waits_is_rejected_at_the_moment_of_the_lever() {
        let levers = Levers::new(&Registry::new());
        let (waiting, begun) = (Arc::clone(&levers), Clock.now());
        let mut announcements = levers.announcements();
        let request = tokio::spawn(async move {
            let mut checked = LeverCheck::default();
            check(&waiting, &mut checked, false).unwrap();
            announcements.changed().await.unwrap();
            let rejected = check(&waiting, &mut checked, true).is_err();
            (rejected, Clock.now())
        });
        tokio::task::yield_now().await;
        let block = LeverSpec {
            action: LeverAction::Block,
            ..limit(1)
        };
        levers
            .pull(Clock.now(), block, &Operator::default())
            .unwrap();
        assert_eq!(request.await.unwrap(), (true, begun));
    }
}
