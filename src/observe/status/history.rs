//! The history of the last 15 minutes in bounded memory: one row every five seconds, computed from
//! the totals of the snapshots.
//!
//! A bastion may have no Prometheus. A row takes 32 bytes a level: 300 KiB with 50 levels.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::observe::status::snapshot::{LevelStatus, StatusHistory, StatusSnapshot};
use weir_kubernetes::numeric::saturating_u32;

/// Seconds between rows. 15 minutes are then 180 points, as many as a small plot has pixels.
pub(crate) const ROW_SECONDS: u64 = 5;

/// Rows kept: 15 minutes. A row takes 32 bytes per level; all rows of 50 levels take less than 320
/// KiB.
pub(crate) const MAX_ROWS: usize = 180;

/// The classes of status codes that rows count.
const CODE_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The rows, and the totals from which the next row is computed.
#[derive(Debug, Default)]
pub(crate) struct HistoryRing {
    rows: VecDeque<HistoryRow>,
    last: Option<CounterTotals>,
}

#[derive(Debug)]
struct HistoryRow {
    unix_ms: u64,
    codes: [f32; CODE_CLASSES.len()],
    rejected: f32,
    total: u32,
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
    levels: Vec<(Arc<str>, u64)>,
}

impl HistoryRing {
    /// Adds a row with the rates since the last row. The first call only stores the totals.
    pub(crate) fn add(&mut self, now: &StatusSnapshot) {
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

    /// The totals that come next are those of other replicas: the next call of [`add`](Self::add)
    /// only stores them.
    pub(crate) fn forget_totals(&mut self) {
        self.last = None;
    }

    /// Creates a ring with the rows of another process's history. The next snapshot only stores the
    /// totals.
    #[must_use]
    pub(crate) fn from_history(history: &StatusHistory) -> Self {
        let at = |column: &Vec<u32>, n| column.get(n).copied().unwrap_or_default();
        let rate = |column: &Vec<f32>, n| column.get(n).copied().unwrap_or_default();
        let names = history.levels.keys();
        let names: Vec<Arc<str>> = names.map(|name| name.as_str().into()).collect();
        let row = |(n, unix_ms): (usize, &u64)| HistoryRow {
            unix_ms: *unix_ms,
            codes: CODE_CLASSES.map(|class| history.codes.get(class).map_or(0.0, |c| rate(c, n))),
            rejected: rate(&history.rejected, n),
            total: at(&history.total, n),
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
        }
    }

    /// Returns all rows as columns.
    #[must_use]
    pub(crate) fn history(&self) -> StatusHistory {
        let mut history = StatusHistory {
            every_seconds: ROW_SECONDS,
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
            levels: levels
                .map(|level| (name(level), level.rejected_total()))
                .collect(),
        }
    }

    fn level(&self, name: &str) -> Option<&(Arc<str>, u64)> {
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
        let point = |level: &LevelStatus, rejected: u64| LevelPoint {
            limit: level.current_limit.unwrap_or_default(),
            seats: saturating_u32(level.seats_in_use),
            waiting: saturating_u32(level.waiting),
            rejected: rate(
                rejected,
                before.level(&level.name).map_or(0, |(_, count)| *count),
            ),
        };
        Self {
            unix_ms: totals.unix_ms,
            codes,
            rejected: rate(totals.rejected, before.rejected),
            total: now.total.as_ref().map_or(0, |total| total.seats),
            levels: levels
                .map(|(level, (name, rejected))| (Arc::clone(name), point(level, *rejected)))
                .collect(),
        }
    }
}

/// Returns the rate per second of `count` events in `millis` milliseconds.
#[expect(clippy::as_conversions, reason = "a plot needs no more than this")]
fn per_second(count: u64, millis: u64) -> f32 {
    (count as f64 * 1000.0 / millis as f64) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::status::snapshot::TotalStatus;

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
