//! A total that is found as the proxy finds it, and what became of it. Pure.

use std::time::{Duration, Instant};

use super::agenda::SimTime;
use super::statistics::groups::rounded;
use crate::histogram::DurationHistogram;
use crate::report::model::{AutoTotalReport, TotalChangeReport};
use weir_kubernetes::request_info::{RequestInfo, Verb};
use weir_limits::auto_total::{AutoTotal, TotalChange, TotalSignal};
use weir_limits::total_probes::ProbeSchedule;

/// The recorded reads of which one in ten is quicker than this, per mille: most may have been
/// recorded under load.
const FULL_SPEED_PER_MILLE: u64 = 100;

/// A change by less than this factor is neither logged by the proxy nor reported.
const REPORTED_CHANGE: f64 = 1.2;

const MAX_REPORTED_CHANGES: usize = 1000;

/// The total of a simulation, and what it is found from.
#[derive(Debug)]
pub(super) struct SimTotal {
    controller: AutoTotal,
    pub(super) next_probe: SimTime,
    pub(super) schedule: ProbeSchedule,
    /// Recorded times of reads of one object.
    reads: DurationHistogram,
    /// The least and the greatest total so far.
    extremes: (u32, u32),
    changes: u64,
    /// The total of the last change that is reported.
    reported: u32,
    report: Vec<TotalChangeReport>,
}

impl SimTotal {
    /// Begins with the greatest total. `bounds` are the least and the greatest, in seats.
    pub(super) fn new(now: Instant, target: Duration, bounds: (u32, u32)) -> Self {
        let controller = AutoTotal::new(target, bounds, now);
        let total = controller.total();
        Self {
            controller,
            next_probe: SimTime(0),
            schedule: ProbeSchedule::new(now),
            reads: DurationHistogram::default(),
            extremes: (total, total),
            changes: 0,
            reported: total,
            report: Vec::new(),
        }
    }

    /// In seats.
    pub(super) fn seats(&self) -> u32 {
        self.controller.total()
    }

    /// Records that requests wait for seats.
    pub(super) const fn record_limiting(&mut self) {
        self.controller.record_limiting();
    }

    /// Takes a signal in. Returns the total in seats, if it changes. `now` is the same time as `at`.
    pub(super) fn record(&mut self, at: SimTime, now: Instant, signal: TotalSignal) -> Option<u32> {
        let change = self.controller.record(now, signal)?;
        self.record_change(at, change);
        Some(change.to)
    }

    /// Records the recorded time of a request, in nanoseconds.
    pub(super) fn observe(&mut self, info: &RequestInfo<'_>, nanoseconds: u64) {
        if *info.verb() == Verb::Get && !info.name().is_empty() && info.subresource().is_empty() {
            self.reads.record(nanoseconds);
        }
    }

    /// The time of a probe that takes so many times as long as at full speed. `None` if nothing like
    /// it has been recorded.
    pub(super) fn probe_time(&self, factor: f64) -> Option<Duration> {
        let recorded = self.reads.quantile(FULL_SPEED_PER_MILLE).as_secs_f64();
        let time = Duration::try_from_secs_f64(recorded * factor).unwrap_or(Duration::MAX);
        (self.reads.count() > 0).then_some(time)
    }

    fn record_change(&mut self, at: SimTime, change: TotalChange) {
        let TotalChange { to, reason, .. } = change;
        self.changes += 1;
        self.extremes = (self.extremes.0.min(to), self.extremes.1.max(to));
        let (from, now) = (f64::from(self.reported), f64::from(to));
        let is_small = now < from * REPORTED_CHANGE && from < now * REPORTED_CHANGE;
        if !is_small && self.report.len() < MAX_REPORTED_CHANGES {
            self.reported = to;
            self.report.push(TotalChangeReport {
                at_s: rounded(Duration::from_nanos(at.0).as_secs_f64()),
                seats: to,
                reason,
            });
        }
    }

    pub(super) fn report(&self) -> AutoTotalReport {
        AutoTotalReport {
            least: self.extremes.0,
            greatest: self.extremes.1,
            last: self.controller.total(),
            changes: self.changes,
            target_ms: rounded(self.controller.target().as_secs_f64() * 1e3),
            large_changes: self.report.clone(),
        }
    }
}
