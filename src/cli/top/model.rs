//! What `weir top` knows: what comes, and which keys are pressed. Nothing here reads, waits or draws.

use std::collections::VecDeque;

use ratatui::crossterm::event::KeyCode;
use ratatui::crossterm::event::KeyEvent;
use ratatui::crossterm::event::KeyEventKind;
use ratatui::crossterm::event::KeyModifiers;

use crate::cli::top::shown::Shown;
use crate::cli::top::ui::Ui;
use crate::observe::status::history::ROW_SECONDS;
use crate::observe::status::history::Ring;
use crate::observe::status::snapshot::History;
use crate::observe::status::snapshot::Snapshot;

/// Rates are over so long: calm enough to read, quick enough to show a flood. In milliseconds.
const RATE_OVER_MS: u64 = 2500;

/// Snapshots that are kept for rates: one a second comes, more than enough.
const MOST_SNAPSHOTS: usize = 8;

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

impl Model {
    /// Nothing has come yet.
    #[must_use]
    pub fn new(ui: Ui) -> Self {
        Self {
            ui,
            ..Self::default()
        }
    }

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
    pub fn key(&mut self, key: KeyEvent) -> Next {
        if key.kind == KeyEventKind::Release {
            return Next::Draw;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Next::Quit;
        }
        if self.ui.typing {
            self.ui.typed(key.code);
            return Next::Draw;
        }
        if std::mem::take(&mut self.ui.help) {
            return Next::Draw; // any key closes it
        }
        if key.code == KeyCode::Char('q') {
            return Next::Quit;
        }
        if key.code == KeyCode::Char(' ') {
            self.freeze();
            return Next::Draw;
        }
        let blocks = self.shown.blocks(&self.ui);
        self.ui.pressed(key.code, &blocks);
        Next::Draw
    }

    fn freeze(&mut self) {
        self.ui.frozen = !self.ui.frozen;
        if !self.ui.frozen {
            self.show();
        }
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
