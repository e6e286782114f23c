//! The history of the last 15 minutes in bounded memory: one row every five seconds, computed from
//! the totals of the snapshots.
//!
//! A bastion may have no Prometheus. A row takes 32 bytes a level: 300 KiB with 50 levels. What is
//! one number for the whole process is a [`Column`].

use std::collections::VecDeque;
use std::sync::Arc;

use crate::marks::{MarkKind, MarkRing, MarkStatus};
use crate::snapshot::{DurationHistogram, LevelStatus, StatusHistory, StatusSnapshot};
use weir_kubernetes::numeric::{saturating_u32, to_f64};

/// Seconds between rows. 15 minutes are then 180 points, as many as a small plot has pixels.
pub const ROW_SECONDS: u64 = 5;

/// Rows kept: 15 minutes. A row takes 32 bytes per level; all rows of 50 levels take less than 320
/// KiB.
pub const MAX_ROWS: usize = 180;

/// The classes of status codes that rows count.
const CODE_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// A value of a row that is one for the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Processors in use.
    Cpu,
    /// Resident memory in bytes.
    Memory,
    /// The API server's own seats; 0 where they are not known.
    ServerSeats,
    /// Requests a second that get no response of the API server, or 5xx.
    UpstreamErrors,
    /// The time until half of the responses of the API server begin, in seconds; 0 without responses.
    UpstreamHalf,
    /// The same for 99 of 100 of them.
    UpstreamMost,
    /// The time that 99 of 100 requests waited in the level in which they waited longest, in seconds.
    Wait,
    /// Requests in the queues of all levels.
    Waiting,
}

impl Column {
    /// All columns, by name.
    pub const ALL: [Self; 8] = [
        Self::Cpu,
        Self::Memory,
        Self::ServerSeats,
        Self::UpstreamErrors,
        Self::UpstreamHalf,
        Self::UpstreamMost,
        Self::Wait,
        Self::Waiting,
    ];

    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::ServerSeats => "serverSeats",
            Self::UpstreamErrors => "upstreamErrors",
            Self::UpstreamHalf => "upstreamHalf",
            Self::UpstreamMost => "upstreamMost",
            Self::Wait => "wait",
            Self::Waiting => "waiting",
        }
    }

    /// Whether all replicas together have the sum. Otherwise they have the greatest value.
    #[must_use]
    pub const fn is_sum(self) -> bool {
        match self {
            Self::Cpu | Self::Memory | Self::UpstreamErrors | Self::Waiting => true,
            Self::ServerSeats | Self::UpstreamHalf | Self::UpstreamMost | Self::Wait => false,
        }
    }
}

/// The rows, the totals from which the next row is computed, and what has changed in that time.
#[derive(Debug, Default)]
pub struct HistoryRing {
    rows: VecDeque<HistoryRow>,
    last: Option<CounterTotals>,
    marks: MarkRing,
}

#[derive(Debug)]
struct HistoryRow {
    unix_ms: u64,
    codes: [f32; CODE_CLASSES.len()],
    rejected: f32,
    total: u32,
    /// In the order of [`Column::ALL`].
    values: [f32; Column::ALL.len()],
    levels: Vec<(Arc<str>, LevelPoint)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LevelPoint {
    limit: u32,
    seats: u32,
    waiting: u32,
    rejected: f32,
}

/// The totals at the time of the last row.
#[derive(Debug)]
struct CounterTotals {
    unix_ms: u64,
    codes: [u64; CODE_CLASSES.len()],
    rejected: u64,
    cpu_seconds: f64,
    upstream_errors: u64,
    latency: DurationHistogram,
    levels: Vec<(Arc<str>, LevelTotals)>,
}

#[derive(Clone, Debug, Default)]
struct LevelTotals {
    rejected: u64,
    waits: DurationHistogram,
}

impl HistoryRing {
    /// Adds a row with the rates since the last row. The first call only stores the totals.
    pub fn add(&mut self, now: &StatusSnapshot) {
        let before = self.last.take();
        let totals = CounterTotals::from_snapshot(now, before.as_ref());
        if let Some(before) = before {
            if self.rows.len() >= MAX_ROWS {
                self.rows.pop_front();
            }
            self.rows
                .push_back(HistoryRow::from_totals(now, &totals, &before));
        }
        self.last = Some(totals);
    }

    /// Adds what has changed, and drops marks that are too old.
    pub fn mark(&mut self, unix_ms: u64, changes: Vec<(MarkKind, String)>) {
        self.marks.add(unix_ms, changes);
    }

    /// What has changed in the last 15 minutes, oldest first.
    #[must_use]
    pub fn marks(&self) -> Vec<MarkStatus> {
        self.marks.marks()
    }

    /// The totals that come next are those of other replicas: the next call of [`add`](Self::add)
    /// only stores them.
    pub fn forget_totals(&mut self) {
        self.last = None;
    }

    /// Creates a ring with the rows of another process's history. The next snapshot only stores the
    /// totals.
    #[must_use]
    pub fn from_history(history: &StatusHistory) -> Self {
        let at = |column: &Vec<u32>, n| column.get(n).copied().unwrap_or_default();
        let rate = |column: &Vec<f32>, n| column.get(n).copied().unwrap_or_default();
        let names = history.levels.keys();
        let names: Vec<Arc<str>> = names.map(|name| name.as_str().into()).collect();
        let row = |(n, unix_ms): (usize, &u64)| HistoryRow {
            unix_ms: *unix_ms,
            codes: CODE_CLASSES.map(|class| history.codes.get(class).map_or(0.0, |c| rate(c, n))),
            rejected: rate(&history.rejected, n),
            total: at(&history.total, n),
            values: Column::ALL.map(|column| {
                history
                    .values
                    .get(column.name())
                    .map_or(0.0, |c| rate(c, n))
            }),
            levels: names
                .iter()
                .zip(history.levels.values())
                .map(|(name, level)| {
                    let point = LevelPoint {
                        limit: at(&level.limit, n),
                        seats: at(&level.seats, n),
                        waiting: at(&level.waiting, n),
                        rejected: rate(&level.rejected, n),
                    };
                    (Arc::clone(name), point)
                })
                .collect(),
        };
        let rows = history.unix_ms.iter().enumerate();
        let beyond = rows.len().saturating_sub(MAX_ROWS);
        Self {
            rows: rows.skip(beyond).map(row).collect(),
            last: None,
            marks: MarkRing::from(&*history.marks),
        }
    }

    /// Returns all rows as columns.
    #[must_use]
    pub fn history(&self) -> StatusHistory {
        let mut history = StatusHistory {
            every_seconds: ROW_SECONDS,
            marks: self.marks(),
            ..StatusHistory::default()
        };
        for (at, row) in self.rows.iter().enumerate() {
            history.unix_ms.push(row.unix_ms);
            history.rejected.push(row.rejected);
            history.total.push(row.total);
            for (class, rate) in CODE_CLASSES.into_iter().zip(row.codes) {
                let column = history.codes.entry(class.to_owned()).or_default();
                column.push(rate);
            }
            for (column, value) in Column::ALL.into_iter().zip(row.values) {
                let values = history.values.entry(column.name().to_owned());
                values.or_default().push(value);
            }
            for (name, point) in &row.levels {
                let level = history.levels.entry(name.to_string()).or_default();
                // A level that was added later has empty values before.
                level.limit.resize(at, 0);
                level.seats.resize(at, 0);
                level.waiting.resize(at, 0);
                level.rejected.resize(at, 0.0);
                level.limit.push(point.limit);
                level.seats.push(point.seats);
                level.waiting.push(point.waiting);
                level.rejected.push(point.rejected);
            }
        }
        for level in history.levels.values_mut() {
            level.limit.resize(self.rows.len(), 0);
            level.seats.resize(self.rows.len(), 0);
            level.waiting.resize(self.rows.len(), 0);
            level.rejected.resize(self.rows.len(), 0.0);
        }
        history
    }
}

impl CounterTotals {
    /// Shares the names with the totals before, so that a row allocates none.
    fn from_snapshot(now: &StatusSnapshot, before: Option<&Self>) -> Self {
        let mut codes = [0_u64; CODE_CLASSES.len()];
        for (code, count) in &now.requests.by_code {
            let class = usize::from(code / 100).checked_sub(1);
            if let Some(sum) = class.and_then(|class| codes.get_mut(class)) {
                *sum += count;
            }
        }
        let name = |level: &LevelStatus| {
            let known = before.and_then(|before| before.level(&level.name));
            known.map_or_else(|| level.name.as_str().into(), |(name, _)| Arc::clone(name))
        };
        let levels = now.levels.iter();
        Self {
            unix_ms: now.unix_ms,
            codes,
            rejected: now.rejections.values().sum(),
            cpu_seconds: now.process.cpu_seconds,
            upstream_errors: now
                .upstream
                .failures
                .values()
                .fold(now.upstream.errors, |sum, count| sum.saturating_add(*count)),
            latency: now.upstream.latency.clone(),
            levels: levels
                .map(|level| {
                    let totals = LevelTotals {
                        rejected: level.rejected_total(),
                        waits: level.waits.clone(),
                    };
                    (name(level), totals)
                })
                .collect(),
        }
    }

    fn level(&self, name: &str) -> Option<&(Arc<str>, LevelTotals)> {
        self.levels.iter().find(|(level, _)| **level == *name)
    }
}

impl HistoryRow {
    fn from_totals(now: &StatusSnapshot, totals: &CounterTotals, before: &CounterTotals) -> Self {
        let millis = totals.unix_ms.saturating_sub(before.unix_ms).max(1);
        let rate = |now: u64, before: u64| per_second(now.saturating_sub(before), millis);
        let mut codes = [0.0; CODE_CLASSES.len()];
        for ((code, now), before) in codes.iter_mut().zip(totals.codes).zip(before.codes) {
            *code = rate(now, before);
        }
        let levels = now.levels.iter().zip(&totals.levels);
        let point = |level: &LevelStatus, totals: &LevelTotals| LevelPoint {
            limit: level.current_limit.unwrap_or_default(),
            seats: saturating_u32(level.seats_in_use),
            waiting: saturating_u32(level.waiting),
            rejected: rate(
                totals.rejected,
                before
                    .level(&level.name)
                    .map_or(0, |(_, totals)| totals.rejected),
            ),
        };
        let value = |column| match column {
            Column::Cpu => {
                let used = (totals.cpu_seconds - before.cpu_seconds).max(0.0);
                to_f32(used * 1000.0 / to_f64(millis))
            }
            Column::Memory => to_f32(to_f64(now.process.memory_bytes)),
            Column::ServerSeats => to_f32(to_f64(now.seats.server.unwrap_or_default())),
            Column::UpstreamErrors => rate(totals.upstream_errors, before.upstream_errors),
            Column::UpstreamHalf => upstream_quantile(totals, before, 0.5),
            Column::UpstreamMost => upstream_quantile(totals, before, 0.99),
            Column::Wait => longest_wait(now, totals, before),
            Column::Waiting => {
                let waiting = now.levels.iter().map(|level| level.waiting);
                to_f32(to_f64(waiting.fold(0, u64::saturating_add)))
            }
        };
        Self {
            unix_ms: totals.unix_ms,
            codes,
            rejected: rate(totals.rejected, before.rejected),
            total: now.total.as_ref().map_or(0, |total| total.seats),
            values: Column::ALL.map(value),
            levels: levels
                .map(|(level, (name, totals))| (Arc::clone(name), point(level, totals)))
                .collect(),
        }
    }
}

fn upstream_quantile(now: &CounterTotals, before: &CounterTotals, quantile: f64) -> f32 {
    let found = now.latency.quantile_since(&before.latency, quantile);
    to_f32(found.unwrap_or_default())
}

/// The longest wait of a level: of requests that left its queue, or of those that are in it.
fn longest_wait(now: &StatusSnapshot, totals: &CounterTotals, before: &CounterTotals) -> f32 {
    let left = totals.levels.iter().filter_map(|(name, totals)| {
        let (_, before) = before.level(name)?;
        totals.waits.quantile_since(&before.waits, 0.99)
    });
    let waiting = now.levels.iter().map(|level| level.queue.waited_seconds);
    to_f32(left.chain(waiting).fold(0.0, f64::max))
}

#[expect(clippy::as_conversions, reason = "a plot needs no more than this")]
const fn to_f32(value: f64) -> f32 {
    value as f32
}

/// Returns the rate per second of `count` events in `millis` milliseconds.
#[expect(clippy::as_conversions, reason = "a plot needs no more than this")]
fn per_second(count: u64, millis: u64) -> f32 {
    (count as f64 * 1000.0 / millis as f64) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::TotalStatus;

    fn snapshot(seconds: u64, ok: u64, refused: u64, levels: &[(&str, u64)]) -> StatusSnapshot {
        let mut snapshot = StatusSnapshot {
            unix_ms: seconds * 1000,
            total: Some(TotalStatus {
                seats: 40,
                ..TotalStatus::default()
            }),
            ..StatusSnapshot::default()
        };
        snapshot.requests.by_code = [(200, ok), (201, ok), (429, refused)].into();
        snapshot.rejections = [("queue-full".to_owned(), refused)].into();
        let level = |&(name, refused): &(&str, u64)| LevelStatus {
            name: name.to_owned(),
            seats_in_use: refused + 1,
            current_limit: Some(7),
            rejected: [("queue-full".to_owned(), refused)].into(),
            ..LevelStatus::default()
        };
        snapshot.levels = levels.iter().map(level).collect();
        snapshot
    }

    #[test]
    fn a_row_holds_the_rates_since_the_last_row() {
        let mut ring = HistoryRing::default();
        ring.add(&snapshot(100, 1000, 50, &[("a", 50)]));
        assert_eq!(
            ring.history().unix_ms,
            [0_u64; 0],
            "nothing to compare with"
        );
        ring.add(&snapshot(105, 1010, 60, &[("a", 60)]));
        ring.add(&snapshot(115, 1010, 60, &[("a", 60)]));
        let history = ring.history();
        assert_eq!(history.unix_ms, [105_000, 115_000]);
        assert_eq!(history.codes["2xx"], [4.0, 0.0]);
        assert_eq!(history.codes["4xx"], [2.0, 0.0]);
        assert_eq!(history.rejected, [2.0, 0.0]);
        assert_eq!(history.total, [40, 40]);
        let level = &history.levels["a"];
        assert_eq!(level.rejected, [2.0, 0.0]);
        assert_eq!(level.seats, [61, 61]);
        assert_eq!(level.limit, [7, 7]);
    }

    #[test]
    fn a_row_holds_the_values_of_the_process() {
        let waits = |upto_one: u64, all: u64| DurationHistogram {
            count: all,
            seconds: 0.0,
            buckets: vec![(1.0, upto_one), (3.0, all)],
        };
        let at = |second: u64, count: u64, cpu_seconds: f64| {
            let mut now = snapshot(second, 0, 0, &[("a", 0), ("b", 0)]);
            now.process.cpu_seconds = cpu_seconds;
            now.process.memory_bytes = 1 << 20;
            now.seats.server = Some(600);
            now.upstream.errors = count;
            now.upstream.failures = [("weir/upstream-connect".to_owned(), count)].into();
            now.upstream.latency = waits(count, 2 * count);
            now.levels[0].waits = waits(count, count);
            now.levels[0].waiting = 3;
            now.levels[1].waiting = 4;
            now.levels[1].queue.waited_seconds = to_f64(count);
            now
        };
        let mut ring = HistoryRing::default();
        ring.add(&at(100, 0, 7.0));
        ring.add(&at(110, 10, 12.0));
        ring.add(&at(120, 10, 12.0));
        let history = ring.history();
        let column = |column: Column| &*history.values[column.name()];
        assert_eq!(column(Column::Cpu), [0.5, 0.0]);
        assert_eq!(column(Column::Memory), [1_048_576.0; 2]);
        assert_eq!(column(Column::ServerSeats), [600.0; 2]);
        assert_eq!(column(Column::UpstreamErrors), [2.0, 0.0]);
        assert_eq!(column(Column::UpstreamHalf), [1.0, 0.0], "no response");
        assert_eq!(column(Column::UpstreamMost), [2.96, 0.0]);
        assert_eq!(column(Column::Wait), [10.0, 10.0], "of those that wait");
        assert_eq!(column(Column::Waiting), [7.0, 7.0]);
    }

    #[test]
    fn levels_that_come_and_go_have_columns_as_long_as_the_others() {
        let mut ring = HistoryRing::default();
        ring.add(&snapshot(0, 0, 0, &[]));
        ring.add(&snapshot(5, 0, 0, &[("a", 5)]));
        ring.add(&snapshot(10, 0, 0, &[("a", 5), ("b", 10)]));
        ring.add(&snapshot(15, 0, 0, &[("b", 10)]));
        let history = ring.history();
        assert_eq!(history.levels["a"].rejected, [1.0, 0.0, 0.0]);
        assert_eq!(history.levels["b"].rejected, [0.0, 2.0, 0.0]);
        assert_eq!(history.levels["b"].seats, [0, 11, 11]);
        assert_eq!(history.levels["a"].limit, [7, 7, 0]);
    }

    #[test]
    fn a_ring_continues_from_a_history() {
        let mut ring = HistoryRing::default();
        for n in 0..4 {
            ring.add(&snapshot(n * 5, n * 10, n, &[("a", n), ("b", 0)]));
        }
        ring.mark(7, vec![(MarkKind::Reload, "configuration 2".to_owned())]);
        assert_eq!(ring.marks().len(), 1);
        assert_eq!(
            HistoryRing::from_history(&ring.history()).history(),
            ring.history()
        );
    }

    #[test]
    fn a_ring_holds_fifteen_minutes_and_no_more() {
        let mut ring = HistoryRing::default();
        for n in 0..1000 {
            ring.add(&snapshot(n * ROW_SECONDS, n, 0, &[("a", 0)]));
        }
        let history = ring.history();
        assert_eq!(history.unix_ms.len(), 180);
        assert_eq!(history.levels["a"].seats.len(), 180);
        assert_eq!(history.unix_ms.last(), Some(&(999 * 5000)));
        assert!(ring.rows.capacity() <= 256);
    }
}
