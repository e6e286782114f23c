//! What `weir top` knows, and what a key changes of it. Nothing here reads, waits or draws.

use std::cmp::Ordering;
use std::collections::VecDeque;

use ratatui::crossterm::event::KeyCode;
use ratatui::crossterm::event::KeyEvent;
use ratatui::crossterm::event::KeyEventKind;
use ratatui::crossterm::event::KeyModifiers;

use crate::observe::status::history::ROW_SECONDS;
use crate::observe::status::history::Ring;
use crate::observe::status::snapshot::History;
use crate::observe::status::snapshot::Level;
use crate::observe::status::snapshot::Snapshot;
use crate::observe::status::snapshot::Talkers;

/// Rates are over so long: calm enough to read, quick enough to show a flood. In milliseconds.
const RATE_OVER_MS: u64 = 2500;

/// Snapshots that are kept for rates: one a second comes, more than enough.
const MOST_SNAPSHOTS: usize = 8;

/// The longest filter that is taken, in characters.
const LONGEST_FILTER: usize = 64;

/// What comes from weir, or does not.
#[derive(Clone, Debug)]
pub enum Message {
    /// What was before.
    History(History),
    /// It is not reachable, and why.
    Lost(String),
    /// How it is now.
    Snapshot(Box<Snapshot>),
}

/// What to do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Go on.
    Draw,
    /// End.
    Quit,
}

/// By what levels are sorted. The order is that of the columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Its name.
    Name,
    /// Seats taken to seats there are.
    Seats,
    /// Seats of others.
    Borrowed,
    /// Requests that wait.
    Waiting,
    /// How long they do.
    Wait,
    /// Requests let through.
    Through,
    /// Requests rejected; where none are, those that wait.
    #[default]
    Rejected,
}

impl Sort {
    /// All, in the order of the columns.
    pub const ALL: [Self; 7] = [
        Self::Name,
        Self::Seats,
        Self::Borrowed,
        Self::Waiting,
        Self::Wait,
        Self::Through,
        Self::Rejected,
    ];

    fn next(self) -> Self {
        let mut all = Self::ALL.into_iter().cycle();
        all.find(|sort| *sort == self);
        all.next().unwrap_or_default()
    }
}

/// How the operator wants to see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ui {
    /// By what levels are sorted.
    pub sort: Sort,
    /// The least first.
    pub reversed: bool,
    /// Only what has this in its name.
    pub filter: String,
    /// The filter is being typed.
    pub typing: bool,
    /// Nothing moves.
    pub frozen: bool,
    /// The keys are shown.
    pub help: bool,
    /// Which list of talkers.
    pub by: usize,
    /// Over which of their windows.
    pub window: usize,
    /// Levels that are scrolled away.
    pub scrolled: usize,
}

/// Everything.
#[derive(Debug, Default)]
pub struct Model {
    /// How to show it.
    pub ui: Ui,
    /// What is shown.
    pub shown: Shown,
    /// Why nothing comes, if nothing comes.
    pub lost: Option<String>,
    snapshots: VecDeque<Snapshot>,
    ring: Ring,
    last_row_ms: u64,
}

/// What is shown: it stays while it is frozen.
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

impl Model {
    /// Takes what has come.
    pub fn heard(&mut self, message: Message) {
        match message {
            Message::History(history) => {
                self.last_row_ms = history.unix_ms.last().copied().unwrap_or_default();
                self.ring = Ring::of(&history);
                self.snapshots.clear();
            }
            Message::Lost(why) => self.lost = Some(why),
            Message::Snapshot(snapshot) => {
                self.lost = None;
                self.add(*snapshot);
                if !self.ui.frozen {
                    self.show();
                }
            }
        }
    }

    fn add(&mut self, snapshot: Snapshot) {
        let restarted = |last: &Snapshot| snapshot.uptime_seconds < last.uptime_seconds;
        if self.snapshots.back().is_some_and(restarted) {
            self.snapshots.clear();
        }
        // As weir itself makes them, give or take a tick; the first is what the next is counted from.
        let since = snapshot.unix_ms.saturating_sub(self.last_row_ms);
        if self.snapshots.is_empty() || since + 200 >= ROW_SECONDS * 1000 {
            self.ring.add(&snapshot);
            self.last_row_ms = snapshot.unix_ms;
        }
        if self.snapshots.len() >= MOST_SNAPSHOTS {
            self.snapshots.pop_front();
        }
        self.snapshots.push_back(snapshot);
    }

    fn show(&mut self) {
        let Some(now) = self.snapshots.back() else {
            return;
        };
        let old_enough =
            |then: &&Snapshot| now.unix_ms.saturating_sub(then.unix_ms) >= RATE_OVER_MS;
        let then = self.snapshots.iter().rev().find(old_enough);
        let then = then.or_else(|| self.snapshots.front().filter(|_| self.snapshots.len() > 1));
        self.shown = Shown {
            now: Some((now.clone(), then.cloned())),
            history: self.ring.history(),
        };
    }

    /// Takes a key.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a key that means nothing does nothing"
    )]
    pub fn key(&mut self, key: KeyEvent) -> Next {
        if key.kind == KeyEventKind::Release {
            return Next::Draw;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Next::Quit;
        }
        if self.ui.typing {
            self.typed(key.code);
            return Next::Draw;
        }
        if std::mem::take(&mut self.ui.help) {
            return Next::Draw; // any key closes it
        }
        let ui = &mut self.ui;
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Esc => ui.filter.clear(),
            KeyCode::Char('?' | 'h') => ui.help = true,
            KeyCode::Char('/') => ui.typing = true,
            KeyCode::Char('s') => (ui.sort, ui.reversed) = (ui.sort.next(), false),
            KeyCode::Char('r') => ui.reversed = !ui.reversed,
            KeyCode::Char('b') => ui.by += 1,
            KeyCode::Char('w') => ui.window += 1,
            KeyCode::Char(' ') => self.freeze(),
            KeyCode::Char(digit @ '1'..='9') => ui.choose(digit),
            KeyCode::Down | KeyCode::Char('j') => ui.scrolled += 1,
            KeyCode::Up | KeyCode::Char('k') => ui.scrolled = ui.scrolled.saturating_sub(1),
            KeyCode::PageDown => ui.scrolled += 10,
            KeyCode::PageUp => ui.scrolled = ui.scrolled.saturating_sub(10),
            KeyCode::Home => ui.scrolled = 0,
            _ => {}
        }
        Next::Draw
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a key that means nothing does nothing"
    )]
    fn typed(&mut self, code: KeyCode) {
        let ui = &mut self.ui;
        match code {
            KeyCode::Enter => ui.typing = false,
            KeyCode::Esc => {
                ui.typing = false;
                ui.filter.clear();
            }
            KeyCode::Backspace => {
                ui.filter.pop();
            }
            KeyCode::Char(c) if ui.filter.chars().count() < LONGEST_FILTER => ui.filter.push(c),
            _ => {}
        }
        ui.scrolled = 0;
    }

    fn freeze(&mut self) {
        self.ui.frozen = !self.ui.frozen;
        if !self.ui.frozen {
            self.show();
        }
    }
}

impl Ui {
    /// The column of that number; the same again turns it round.
    fn choose(&mut self, digit: char) {
        let column = digit.to_digit(10).and_then(|n| usize::try_from(n).ok());
        let sort = column.and_then(|n| Sort::ALL.get(n.checked_sub(1)?));
        if let Some(&sort) = sort {
            self.reversed = sort == self.sort && !self.reversed;
            self.sort = sort;
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.filter.is_empty() || name.to_lowercase().contains(&self.filter.to_lowercase())
    }
}

impl Shown {
    /// A second's part of what grew from `then` to `now`.
    #[must_use]
    pub fn rate(&self, of: impl Fn(&Snapshot) -> u64) -> f64 {
        let Some((now, Some(then))) = &self.now else {
            return 0.0;
        };
        rate(
            of(now).saturating_sub(of(then)),
            now.unix_ms.saturating_sub(then.unix_ms),
        )
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
        let millis = then
            .as_ref()
            .map_or(0, |then| now.unix_ms.saturating_sub(then.unix_ms));
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

    /// The list of talkers that is chosen, if there are any.
    #[must_use]
    pub fn talkers(&self, ui: &Ui) -> Option<&Talkers> {
        let (now, _) = self.now.as_ref()?;
        let mut names: Vec<&str> = Vec::new();
        for list in &now.talkers {
            if !names.contains(&list.by.as_str()) {
                names.push(&list.by);
            }
        }
        let by = *names.get(ui.by.checked_rem(names.len())?)?;
        let lists: Vec<_> = now.talkers.iter().filter(|list| list.by == by).collect();
        lists.get(ui.window.checked_rem(lists.len())?).copied()
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

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn snapshot(second: u64, levels: &[(&str, u64, u64)]) -> Snapshot {
        let level = |&(name, waiting, rejected): &(&str, u64, u64)| Level {
            name: name.to_owned(),
            waiting,
            current_limit: Some(10),
            nominal_limit: Some(10),
            rejected: [("queue-full".to_owned(), rejected)].into(),
            ..Level::default()
        };
        Snapshot {
            unix_ms: 1_000_000 + second * 1000,
            uptime_seconds: float(second),
            levels: levels.iter().map(level).collect(),
            ..Snapshot::default()
        }
    }

    fn press(model: &mut Model, keys: &str) -> Next {
        let mut next = Next::Draw;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                key => KeyCode::Char(key),
            };
            next = model.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        next
    }

    fn names(model: &Model) -> Vec<&str> {
        let rows = model.shown.levels(&model.ui);
        rows.iter().map(|row| row.level.name.as_str()).collect()
    }

    fn model() -> Model {
        let mut model = Model::default();
        for second in 0..4 {
            let levels = [
                ("calm", 0, 0),
                ("flooded", 1, second * 30),
                ("queued", 9, 0),
            ];
            model.heard(Message::Snapshot(Box::new(snapshot(second, &levels))));
        }
        model
    }

    #[test]
    fn rates_are_of_the_last_seconds_and_the_worst_comes_first() {
        let model = model();
        assert_eq!(names(&model), ["flooded", "queued", "calm"]);
        assert_eq!(model.shown.levels(&model.ui)[0].rejected, 30.0);
    }

    #[test]
    fn keys_sort_filter_and_turn_round() {
        let mut model = model();
        press(&mut model, "1");
        assert_eq!(names(&model), ["calm", "flooded", "queued"]);
        press(&mut model, "1");
        assert_eq!(names(&model), ["queued", "flooded", "calm"]);
        press(&mut model, "s");
        assert_eq!(model.ui.sort, Sort::Seats);
        press(&mut model, "/UE\n");
        assert_eq!(names(&model), ["queued"]);
        assert_eq!(press(&mut model, "/q"), Next::Draw, "typed, not pressed");
        model.key(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE));
        assert_eq!(names(&model).len(), 3);
        assert_eq!(press(&mut model, "q"), Next::Quit);
    }

    #[test]
    fn what_is_frozen_stays_and_goes_on_where_weir_is() {
        let mut model = model();
        press(&mut model, " ");
        let later = snapshot(9, &[("new", 0, 0)]);
        model.heard(Message::Snapshot(Box::new(later)));
        assert_eq!(names(&model).len(), 3);
        press(&mut model, " ");
        assert_eq!(names(&model), ["new"]);
    }

    #[test]
    fn a_weir_that_began_anew_has_no_rates_from_before() {
        let mut model = model();
        model.heard(Message::Lost("connection refused".to_owned()));
        assert!(model.lost.is_some());
        let mut anew = snapshot(10, &[("flooded", 0, 5)]);
        anew.uptime_seconds = 0.5;
        model.heard(Message::Snapshot(Box::new(anew)));
        assert!(model.lost.is_none());
        assert_eq!(model.shown.levels(&model.ui)[0].rejected, 0.0);
    }

    #[test]
    fn what_is_kept_does_not_grow() {
        let mut model = Model::default();
        for second in 0..5000 {
            model.heard(Message::Snapshot(Box::new(snapshot(
                second,
                &[("a", 0, 0)],
            ))));
        }
        assert!(model.snapshots.len() <= MOST_SNAPSHOTS);
        assert_eq!(model.shown.history.unix_ms.len(), 180);
        press(&mut model, "/");
        press(&mut model, &"x".repeat(1000));
        assert_eq!(model.ui.filter.len(), LONGEST_FILTER);
    }
}
