//! What is shown: rows, their rates and their order, from two snapshots.

use std::cmp::Ordering;

use crate::cli::top::ui::Block;
use crate::cli::top::ui::Sort;
use crate::cli::top::ui::Ui;
use crate::limits::rates::RateLimit;
use crate::observe::status::snapshot::History;
use crate::observe::status::snapshot::Level;
use crate::observe::status::snapshot::Snapshot;
use crate::observe::status::snapshot::Talker;
use crate::observe::status::snapshot::Talkers;
use crate::observe::talkers;

/// It stays while it is frozen.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// The newest, and the one that rates are from.
    pub now: Option<(Snapshot, Option<Snapshot>)>,
    /// What was before.
    pub history: History,
}

/// A level, and how fast what grows does.
#[derive(Clone, Debug)]
pub struct LevelRow<'s> {
    /// As it is.
    pub level: &'s Level,
    /// Requests let through, a second.
    pub through: f64,
    /// Requests rejected, a second.
    pub rejected: f64,
    /// How long requests waited lately, on average; none where none did.
    pub wait: Option<f64>,
}

/// A limit, and how fast what grows does.
#[derive(Clone, Debug)]
pub struct LimitRow<'s> {
    /// As it is.
    pub limit: &'s RateLimit,
    /// Requests that passed, a second.
    pub passed: f64,
    /// Requests delayed, a second.
    pub delayed: f64,
    /// Requests refused, a second.
    pub rejected: f64,
}

impl Shown {
    /// A second's part of what grew from `then` to `now`.
    #[must_use]
    pub fn rate(&self, of: impl Fn(&Snapshot) -> u64) -> f64 {
        let Some((now, Some(then))) = &self.now else {
            return 0.0;
        };
        rate(of(now).saturating_sub(of(then)), self.millis())
    }

    /// The levels that are wanted, in the order that is wanted.
    #[must_use]
    pub fn levels(&self, ui: &Ui) -> Vec<LevelRow<'_>> {
        let Some((now, then)) = &self.now else {
            return Vec::new();
        };
        let before = |name: &str| {
            let mut levels = then.iter().flat_map(|then| &then.levels);
            levels.find(|level| level.name == name)
        };
        let millis = self.millis();
        let wanted = now.levels.iter().filter(|level| ui.wants(&level.name));
        let mut rows: Vec<_> = wanted
            .map(|level| LevelRow::of(level, before(&level.name), millis))
            .collect();
        rows.sort_by(|a, b| {
            let order = a.compare(b, ui.sort);
            let order = if ui.reversed { order.reverse() } else { order };
            order.then_with(|| a.level.name.cmp(&b.level.name))
        });
        rows
    }

    /// The limits that are wanted: who refuses most first, those that only count after the others, then in the order of the
    /// configuration.
    #[must_use]
    pub fn limits(&self, ui: &Ui) -> Vec<LimitRow<'_>> {
        let Some((now, then)) = &self.now else {
            return Vec::new();
        };
        let millis = self.millis();
        let before = |name: &str| {
            let mut limits = then.iter().flat_map(|then| &then.rate_limits);
            limits.find(|limit| limit.name == name)
        };
        let wanted = now.rate_limits.iter().filter(|limit| ui.wants(&limit.name));
        let mut rows: Vec<_> = wanted
            .map(|limit| LimitRow::of(limit, before(&limit.name), millis))
            .collect();
        let refused = |row: &LimitRow<'_>| if row.limit.dry_run { 0.0 } else { row.rejected };
        rows.sort_by(|a, b| {
            let order = refused(b).total_cmp(&refused(a));
            order.then_with(|| b.rejected.total_cmp(&a.rejected))
        });
        rows
    }

    /// The list of talkers that is chosen, if there is one.
    #[must_use]
    pub fn talkers(&self, ui: &Ui) -> Option<&Talkers> {
        let (now, _) = self.now.as_ref()?;
        let chosen = |list: &&Talkers| {
            list.by == ui.by.name() && list.window_seconds == ui.window.length().as_secs()
        };
        now.talkers.iter().find(chosen)
    }

    /// What there is to scroll, from above.
    #[must_use]
    pub fn blocks(&self, ui: &Ui) -> Vec<Block> {
        let limits = self.now.iter().any(|(now, _)| !now.rate_limits.is_empty());
        let talkers = self.talkers(ui).is_some();
        let all = [
            (Block::Levels, true),
            (Block::Limits, limits),
            (Block::Talkers, talkers),
        ];
        let there = all.into_iter().filter(|(_, there)| *there);
        there.map(|(block, _)| block).collect()
    }

    /// How far the two snapshots are apart; 0 if there are none.
    fn millis(&self) -> u64 {
        match &self.now {
            Some((now, Some(then))) => now.unix_ms.saturating_sub(then.unix_ms),
            _ => 0,
        }
    }
}

/// Who is wanted of them, in the order that is wanted.
#[must_use]
pub fn talking<'s>(list: &'s Talkers, ui: &Ui) -> Vec<&'s Talker> {
    let mut rows: Vec<_> = list.rows.iter().filter(|row| ui.wants(&row.name)).collect();
    rows.sort_by(|a, b| most_first(ui.talkers_by, a, b));
    rows
}

/// The order by what one has done; of those who have done as much, by name.
pub(super) fn most_first(sort: talkers::Sort, a: &Talker, b: &Talker) -> Ordering {
    let order = match sort {
        talkers::Sort::Bytes => b.bytes.cmp(&a.bytes),
        talkers::Sort::QueueWait => b.queue_wait_seconds.total_cmp(&a.queue_wait_seconds),
        talkers::Sort::Rejections => b.rejections.cmp(&a.rejections),
        talkers::Sort::Requests => b.requests.cmp(&a.requests),
        talkers::Sort::SeatSeconds => b.seat_seconds.total_cmp(&a.seat_seconds),
    };
    order.then_with(|| a.name.cmp(&b.name))
}

impl<'s> LimitRow<'s> {
    fn of(limit: &'s RateLimit, before: Option<&RateLimit>, millis: u64) -> Self {
        let grew = |of: fn(&RateLimit) -> u64| {
            let then = before.map_or_else(|| of(limit), of);
            rate(of(limit).saturating_sub(then), millis)
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
    fn of(level: &'s Level, before: Option<&Level>, millis: u64) -> Self {
        let none = Level::default();
        let then = before.unwrap_or(&none);
        let grew = |now: u64, then: u64| match before {
            Some(_) => rate(now.saturating_sub(then), millis),
            None => 0.0,
        };
        let waited = level.waits.count.saturating_sub(then.waits.count);
        let seconds = (level.waits.seconds - then.waits.seconds).max(0.0);
        let some = before.is_some() && waited > 0;
        Self {
            level,
            through: grew(level.dispatched, then.dispatched),
            rejected: grew(level.rejections(), then.rejections()),
            wait: some.then(|| seconds / float(waited)),
        }
    }

    /// Seats taken to seats there are.
    #[must_use]
    pub fn fullness(&self) -> f64 {
        match self.level.current_limit {
            Some(limit) if limit > 0 => float(self.level.seats_in_use) / f64::from(limit),
            _ => 0.0,
        }
    }

    /// Names ascend, numbers descend.
    fn compare(&self, other: &Self, sort: Sort) -> Ordering {
        let waiting = || other.level.waiting.cmp(&self.level.waiting);
        let fullness = || other.fullness().total_cmp(&self.fullness());
        match sort {
            Sort::Name => self.level.name.cmp(&other.level.name),
            Sort::Seats => fullness(),
            Sort::Borrowed => other.level.borrowed().cmp(&self.level.borrowed()),
            Sort::Waiting => waiting(),
            Sort::Wait => {
                let wait = |row: &Self| row.wait.unwrap_or_default();
                wait(other).total_cmp(&wait(self))
            }
            Sort::Through => other.through.total_cmp(&self.through),
            Sort::Rejected => (other.rejected.total_cmp(&self.rejected))
                .then_with(waiting)
                .then_with(fullness),
        }
    }
}

fn rate(count: u64, millis: u64) -> f64 {
    if millis == 0 {
        return 0.0;
    }
    float(count) * 1000.0 / float(millis)
}

/// Counts as they are shown: to a few digits.
#[expect(clippy::as_conversions, reason = "shown to a few digits")]
pub const fn float(count: u64) -> f64 {
    count as f64
}
