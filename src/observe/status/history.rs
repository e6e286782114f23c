//! The last 15 minutes, in bounded memory: a row every five seconds, made from the snapshots' totals.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::observe::status::snapshot::History;
use crate::observe::status::snapshot::Level;
use crate::observe::status::snapshot::Snapshot;

/// How far rows are apart: 15 minutes of plot are 180 points then, as many as a small plot has pixels.
pub const ROW_SECONDS: u64 = 5;

/// Rows that are kept: 15 minutes. One takes 32 bytes a level, all of 50 levels less than 320 KiB.
const MOST_ROWS: usize = 180;

/// The classes of codes, and what is summed up in each.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The rows, and what the next one is counted from.
#[derive(Debug, Default)]
pub struct Ring {
    rows: VecDeque<Row>,
    last: Option<Totals>,
}

#[derive(Debug)]
struct Row {
    unix_ms: u64,
    codes: [f32; CLASSES.len()],
    rejected: f32,
    levels: Vec<(Arc<str>, Point)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Point {
    limit: u32,
    seats: u32,
    waiting: u32,
    rejected: f32,
}

/// What was counted when the last row was made.
#[derive(Debug)]
struct Totals {
    unix_ms: u64,
    codes: [u64; CLASSES.len()],
    rejected: u64,
    levels: Vec<(Arc<str>, u64)>,
}

impl Ring {
    /// Adds a row: what happened since the last one. The first call only begins to count.
    pub fn add(&mut self, now: &Snapshot) {
        let before = self.last.take();
        let totals = Totals::of(now, before.as_ref());
        if let Some(before) = before {
            if self.rows.len() >= MOST_ROWS {
                self.rows.pop_front();
            }
            self.rows.push_back(Row::of(now, &totals, &before));
        }
        self.last = Some(totals);
    }

    /// The rows that somebody else has kept, to go on from; counting begins with the next snapshot.
    #[must_use]
    pub fn of(history: &History) -> Self {
        let at = |column: &Vec<u32>, n| column.get(n).copied().unwrap_or_default();
        let rate = |column: &Vec<f32>, n| column.get(n).copied().unwrap_or_default();
        let names = history.levels.keys();
        let names: Vec<Arc<str>> = names.map(|name| name.as_str().into()).collect();
        let row = |(n, unix_ms): (usize, &u64)| Row {
            unix_ms: *unix_ms,
            codes: CLASSES.map(|class| history.codes.get(class).map_or(0.0, |c| rate(c, n))),
            rejected: rate(&history.rejected, n),
            levels: names
                .iter()
                .zip(history.levels.values())
                .map(|(name, level)| {
                    let point = Point {
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
        let beyond = rows.len().saturating_sub(MOST_ROWS);
        Self {
            rows: rows.skip(beyond).map(row).collect(),
            last: None,
        }
    }

    /// All rows, as columns.
    #[must_use]
    pub fn history(&self) -> History {
        let mut history = History {
            every_seconds: ROW_SECONDS,
            ..History::default()
        };
        for (at, row) in self.rows.iter().enumerate() {
            history.unix_ms.push(row.unix_ms);
            history.rejected.push(row.rejected);
            for (class, rate) in CLASSES.into_iter().zip(row.codes) {
                let column = history.codes.entry(class.to_owned()).or_default();
                column.push(rate);
            }
            for (name, point) in &row.levels {
                let level = history.levels.entry(name.to_string()).or_default();
                // One that came later was empty before.
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

impl Totals {
    /// Names are shared with the totals before, so that a row costs none.
    fn of(now: &Snapshot, before: Option<&Self>) -> Self {
        let mut codes = [0_u64; CLASSES.len()];
        for (code, count) in &now.requests.by_code {
            let class = usize::from(code / 100).checked_sub(1);
            if let Some(sum) = class.and_then(|class| codes.get_mut(class)) {
                *sum += count;
            }
        }
        let name = |level: &Level| {
            let known = before.and_then(|before| before.level(&level.name));
            known.map_or_else(|| level.name.as_str().into(), |(name, _)| Arc::clone(name))
        };
        let levels = now.levels.iter();
        Self {
            unix_ms: now.unix_ms,
            codes,
            rejected: now.rejections.values().sum(),
            levels: levels
                .map(|level| (name(level), level.rejections()))
                .collect(),
        }
    }

    fn level(&self, name: &str) -> Option<&(Arc<str>, u64)> {
        self.levels.iter().find(|(known, _)| **known == *name)
    }
}

impl Row {
    fn of(now: &Snapshot, totals: &Totals, before: &Totals) -> Self {
        let millis = totals.unix_ms.saturating_sub(before.unix_ms).max(1);
        let rate = |now: u64, before: u64| rate(now.saturating_sub(before), millis);
        let mut codes = [0.0; CLASSES.len()];
        for ((code, now), before) in codes.iter_mut().zip(totals.codes).zip(before.codes) {
            *code = rate(now, before);
        }
        let levels = now.levels.iter().zip(&totals.levels);
        let point = |level: &Level, rejected: u64| Point {
            limit: level.current_limit.unwrap_or_default(),
            seats: small(level.seats_in_use),
            waiting: small(level.waiting),
            rejected: rate(
                rejected,
                before.level(&level.name).map_or(0, |(_, count)| *count),
            ),
        };
        Self {
            unix_ms: totals.unix_ms,
            codes,
            rejected: rate(totals.rejected, before.rejected),
            levels: levels
                .map(|(level, (name, rejected))| (Arc::clone(name), point(level, *rejected)))
                .collect(),
        }
    }
}

/// So many in so many milliseconds, a second.
#[expect(clippy::as_conversions, reason = "a plot needs no more than this")]
fn rate(count: u64, millis: u64) -> f32 {
    (count as f64 * 1000.0 / millis as f64) as f32
}

fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(seconds: u64, ok: u64, refused: u64, levels: &[(&str, u64)]) -> Snapshot {
        let mut snapshot = Snapshot {
            unix_ms: seconds * 1000,
            ..Snapshot::default()
        };
        snapshot.requests.by_code = [(200, ok), (201, ok), (429, refused)].into();
        snapshot.rejections = [("queue-full".to_owned(), refused)].into();
        let level = |&(name, refused): &(&str, u64)| Level {
            name: name.to_owned(),
            seats_in_use: refused + 1,
            current_limit: Some(7),
            rejected: [("queue-full".to_owned(), refused)].into(),
            ..Level::default()
        };
        snapshot.levels = levels.iter().map(level).collect();
        snapshot
    }

    #[test]
    fn a_row_is_what_happened_since_the_last_one_a_second() {
        let mut ring = Ring::default();
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
        let level = &history.levels["a"];
        assert_eq!(level.rejected, [2.0, 0.0]);
        assert_eq!(level.seats, [61, 61]);
        assert_eq!(level.limit, [7, 7]);
    }

    #[test]
    fn levels_that_come_and_go_have_columns_as_long_as_the_others() {
        let mut ring = Ring::default();
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
    fn another_goes_on_from_the_same_rows() {
        let mut ring = Ring::default();
        for n in 0..4 {
            ring.add(&snapshot(n * 5, n * 10, n, &[("a", n), ("b", 0)]));
        }
        assert_eq!(Ring::of(&ring.history()).history(), ring.history());
    }

    #[test]
    fn it_holds_fifteen_minutes_and_no_more() {
        let mut ring = Ring::default();
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
