//! The displayed data: rows, their rates and their order, computed from two snapshots.

use std::cmp::Ordering;

use crate::view_options::{LevelSort, Panel, ViewOptions};
use weir_kubernetes::numeric::to_f64;
use weir_limits::rate::top_keys::RateLimitSnapshot;
use weir_status::snapshot::{
    LevelStatus, StatusHistory, StatusSnapshot, TalkerStatus, TopTalkersStatus,
};
use weir_talkers::UsageMeasure;

/// The displayed data. It does not change while the view is frozen.
#[derive(Clone, Debug, Default)]
pub struct ViewModel {
    /// The newest snapshot, and the earlier one that rates are computed from.
    pub now: Option<(StatusSnapshot, Option<StatusSnapshot>)>,
    /// The history of the last minutes.
    pub history: StatusHistory,
}

/// A priority level and its rates.
#[derive(Clone, Debug)]
pub struct LevelRow<'s> {
    /// Its current status.
    pub level: &'s LevelStatus,
    /// Dispatched requests a second. `None` before there is a rate.
    pub dispatched: Option<f64>,
    /// Rejected requests a second. `None` before there is a rate.
    pub rejected: Option<f64>,
    /// Average wait in queue between the two snapshots, in seconds. `None` if no request waited.
    pub wait: Option<f64>,
}

/// An event or client limit and its rates.
#[derive(Clone, Debug)]
pub struct LimitRow<'s> {
    /// Its current status.
    pub limit: &'s RateLimitSnapshot,
    /// Passed requests a second. `None` before there is a rate.
    pub passed: Option<f64>,
    /// Delayed requests a second. `None` before there is a rate.
    pub delayed: Option<f64>,
    /// Rejected requests a second. `None` before there is a rate.
    pub rejected: Option<f64>,
}

impl ViewModel {
    /// The growth of a counter between the two snapshots, a second. `None` without two snapshots.
    #[must_use]
    pub fn rate(&self, of: impl Fn(&StatusSnapshot) -> u64) -> Option<f64> {
        let Some((now, Some(then))) = &self.now else {
            return None;
        };
        let grown = of(now).saturating_sub(of(then));
        Some(per_second(grown, self.interval_millis()))
    }

    /// The time until this part of the API server's responses between the two snapshots began, in
    /// seconds. `None` without responses.
    #[must_use]
    pub fn upstream_latency(&self, quantile: f64) -> Option<f64> {
        let Some((now, Some(then))) = &self.now else {
            return None;
        };
        let (now, then) = (&now.upstream.latency, &then.upstream.latency);
        now.quantile_since(then, quantile)
    }

    /// The processors that weir has used between the two snapshots. `None` without two snapshots.
    #[must_use]
    pub fn cpus_in_use(&self) -> Option<f64> {
        let Some((now, Some(then))) = &self.now else {
            return None;
        };
        let used = now.process.cpu_seconds - then.process.cpu_seconds;
        let seconds = to_f64(self.interval_millis()) / 1000.0;
        (seconds > 0.0).then(|| used.max(0.0) / seconds)
    }

    /// The priority levels that pass the filter, in the chosen order.
    #[must_use]
    pub fn level_rows(&self, options: &ViewOptions) -> Vec<LevelRow<'_>> {
        let Some((now, then)) = &self.now else {
            return Vec::new();
        };
        let before = |name: &str| {
            let mut levels = then.iter().flat_map(|then| &then.levels);
            levels.find(|level| level.name == name)
        };
        let millis = self.interval_millis();
        let visible = now
            .levels
            .iter()
            .filter(|level| options.matches_filter(&level.name));
        let mut rows: Vec<_> = visible
            .map(|level| LevelRow::new(level, before(&level.name), millis))
            .collect();
        rows.sort_by(|a, b| {
            let order = a.compare(b, options.sort);
            let order = if options.reversed {
                order.reverse()
            } else {
                order
            };
            order.then_with(|| a.level.name.cmp(&b.level.name))
        });
        rows
    }

    /// The limits that pass the filter: by rejected requests, limits with a dry run last, then in
    /// the order of the configuration.
    #[must_use]
    pub fn limit_rows(&self, options: &ViewOptions) -> Vec<LimitRow<'_>> {
        let Some((now, then)) = &self.now else {
            return Vec::new();
        };
        let millis = self.interval_millis();
        let before = |name: &str| {
            let mut limits = then.iter().flat_map(|then| &then.rate_limits);
            limits.find(|limit| limit.name == name)
        };
        let visible = now
            .rate_limits
            .iter()
            .filter(|limit| options.matches_filter(&limit.name));
        let mut rows: Vec<_> = visible
            .map(|limit| LimitRow::new(limit, before(&limit.name), millis))
            .collect();
        let rejected = |row: &LimitRow<'_>| row.rejected.unwrap_or_default();
        let enforced_rejections = |row: &LimitRow<'_>| {
            if row.limit.dry_run {
                0.0
            } else {
                rejected(row)
            }
        };
        rows.sort_by(|a, b| {
            let order = enforced_rejections(b).total_cmp(&enforced_rejections(a));
            order.then_with(|| rejected(b).total_cmp(&rejected(a)))
        });
        rows
    }

    /// The chosen list of top talkers, if weir has it.
    #[must_use]
    pub fn talker_list(&self, options: &ViewOptions) -> Option<&TopTalkersStatus> {
        let (now, _) = self.now.as_ref()?;
        let chosen = |list: &&TopTalkersStatus| {
            list.by == options.by.name()
                && list.window_seconds == options.window.duration().as_secs()
        };
        now.talkers.iter().find(chosen)
    }

    /// The panels on the screen, from top to bottom.
    #[must_use]
    pub fn panels(&self, options: &ViewOptions) -> Vec<Panel> {
        let limits = self.now.iter().any(|(now, _)| !now.rate_limits.is_empty());
        let talkers = self.talker_list(options).is_some();
        let all = [
            (Panel::Levels, true),
            (Panel::Limits, limits),
            (Panel::Talkers, talkers),
        ];
        let present = all.into_iter().filter(|(_, present)| *present);
        present.map(|(panel, _)| panel).collect()
    }

    /// Milliseconds between the two snapshots. 0 without two snapshots.
    fn interval_millis(&self) -> u64 {
        match &self.now {
            Some((now, Some(then))) => now.unix_ms.saturating_sub(then.unix_ms),
            _ => 0,
        }
    }
}

/// The top talkers that pass the filter, in the chosen order.
#[must_use]
pub fn talker_rows<'s>(list: &'s TopTalkersStatus, options: &ViewOptions) -> Vec<&'s TalkerStatus> {
    let mut rows: Vec<_> = list
        .rows
        .iter()
        .filter(|row| options.matches_filter(&row.name))
        .collect();
    rows.sort_by(|a, b| compare_talkers(options.talker_sort, a, b));
    rows
}

/// Compares by a measure, descending, then by name.
pub fn compare_talkers(sort: UsageMeasure, a: &TalkerStatus, b: &TalkerStatus) -> Ordering {
    let order = match sort {
        UsageMeasure::Bytes => b.bytes.cmp(&a.bytes),
        UsageMeasure::QueueWait => b.queue_wait_seconds.total_cmp(&a.queue_wait_seconds),
        UsageMeasure::Rejections => b.rejections.cmp(&a.rejections),
        UsageMeasure::Requests => b.requests.cmp(&a.requests),
        UsageMeasure::SeatSeconds => b.seat_seconds.total_cmp(&a.seat_seconds),
        UsageMeasure::WouldBeRejections => b.would_be_rejections.cmp(&a.would_be_rejections),
    };
    order.then_with(|| a.name.cmp(&b.name))
}

impl<'s> LimitRow<'s> {
    fn new(limit: &'s RateLimitSnapshot, before: Option<&RateLimitSnapshot>, millis: u64) -> Self {
        let grew = |of: fn(&RateLimitSnapshot) -> u64| {
            before.map(|before| per_second(of(limit).saturating_sub(of(before)), millis))
        };
        Self {
            limit,
            passed: grew(|limit| limit.passed),
            delayed: grew(|limit| limit.delayed),
            rejected: grew(|limit| limit.rejected),
        }
    }
}

impl<'s> LevelRow<'s> {
    fn new(level: &'s LevelStatus, before: Option<&LevelStatus>, millis: u64) -> Self {
        let none = LevelStatus::default();
        let then = before.unwrap_or(&none);
        let grew =
            |now: u64, then: u64| before.map(|_| per_second(now.saturating_sub(then), millis));
        let waited = level.waits.count.saturating_sub(then.waits.count);
        let seconds = (level.waits.seconds - then.waits.seconds).max(0.0);
        let some = before.is_some() && waited > 0;
        Self {
            level,
            dispatched: grew(level.dispatched, then.dispatched),
            rejected: grew(level.rejected_total(), then.rejected_total()),
            wait: some.then(|| seconds / to_f64(waited)),
        }
    }

    /// The ratio of executing seats to the current limit. 0 without a limit.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        match self.level.current_limit {
            Some(limit) if limit > 0 => to_f64(self.level.seats_in_use) / f64::from(limit),
            _ => 0.0,
        }
    }

    /// Names in ascending, numbers in descending order.
    fn compare(&self, other: &Self, sort: LevelSort) -> Ordering {
        let waiting = || other.level.waiting.cmp(&self.level.waiting);
        let utilization = || other.utilization().total_cmp(&self.utilization());
        match sort {
            LevelSort::Name => self.level.name.cmp(&other.level.name),
            LevelSort::Seats => utilization(),
            LevelSort::Borrowed => other
                .level
                .borrowed_seats()
                .cmp(&self.level.borrowed_seats()),
            LevelSort::Waiting => waiting(),
            LevelSort::Wait => {
                let wait = |row: &Self| row.wait.unwrap_or_default();
                wait(other).total_cmp(&wait(self))
            }
            LevelSort::Dispatched => {
                let dispatched = |row: &Self| row.dispatched.unwrap_or_default();
                dispatched(other).total_cmp(&dispatched(self))
            }
            LevelSort::Rejected => (other.rejects().total_cmp(&self.rejects()))
                .then_with(waiting)
                .then_with(utilization),
        }
    }

    /// Rejected requests a second; 0 before there is a rate.
    #[must_use]
    pub fn rejects(&self) -> f64 {
        self.rejected.unwrap_or_default()
    }
}

fn per_second(count: u64, millis: u64) -> f64 {
    if millis == 0 {
        return 0.0;
    }
    to_f64(count) * 1000.0 / to_f64(millis)
}
