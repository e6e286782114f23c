//! What `weir top` knows: what comes, and which keys are pressed. Nothing here reads, waits or draws.

use std::collections::VecDeque;

use ratatui::crossterm::event::KeyCode;
use ratatui::crossterm::event::KeyEvent;
use ratatui::crossterm::event::KeyEventKind;
use ratatui::crossterm::event::KeyModifiers;

use crate::cli::top::view_model::ViewModel;
use crate::cli::top::view_options::ViewOptions;
use crate::observe::status::history::HistoryRing;
use crate::observe::status::history::ROW_SECONDS;
use crate::observe::status::snapshot::StatusHistory;
use crate::observe::status::snapshot::StatusSnapshot;

/// Rates are over so long: calm enough to read, quick enough to show a flood. In milliseconds.
const RATE_INTERVAL_MS: u64 = 2500;

/// Snapshots that are kept for rates: one a second comes, more than enough.
const MAX_SNAPSHOTS: usize = 8;

/// What comes from weir, or does not.
#[derive(Clone, Debug)]
pub enum StatusUpdate {
    /// What was before.
    History(StatusHistory),
    /// It is not reachable, and why.
    Disconnected(String),
    /// How it is now.
    Snapshot(Box<StatusSnapshot>),
}

/// What to do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOutcome {
    /// Go on.
    Redraw,
    /// End.
    Quit,
}

/// Everything.
#[derive(Debug, Default)]
pub struct TopModel {
    /// How to show it.
    pub options: ViewOptions,
    /// What is shown.
    pub view_model: ViewModel,
    /// Why nothing comes, if nothing comes.
    pub disconnect_reason: Option<String>,
    snapshots: VecDeque<StatusSnapshot>,
    ring: HistoryRing,
    last_row_ms: u64,
}

impl TopModel {
    /// Nothing has come yet.
    #[must_use]
    pub fn new(ui: ViewOptions) -> Self {
        Self {
            options: ui,
            ..Self::default()
        }
    }

    /// Takes what has come.
    pub fn handle_update(&mut self, message: StatusUpdate) {
        match message {
            StatusUpdate::History(history) => {
                self.last_row_ms = history.unix_ms.last().copied().unwrap_or_default();
                self.ring = HistoryRing::from_history(&history);
                self.snapshots.clear();
            }
            StatusUpdate::Disconnected(why) => self.disconnect_reason = Some(why),
            StatusUpdate::Snapshot(snapshot) => {
                self.disconnect_reason = None;
                self.add_snapshot(*snapshot);
                if !self.options.frozen {
                    self.refresh_view();
                }
            }
        }
    }

    fn add_snapshot(&mut self, snapshot: StatusSnapshot) {
        let restarted = |last: &StatusSnapshot| snapshot.uptime_seconds < last.uptime_seconds;
        if self.snapshots.back().is_some_and(restarted) {
            self.snapshots.clear();
        }
        // As weir itself makes them, give or take a tick; the first is what the next is counted from.
        let since = snapshot.unix_ms.saturating_sub(self.last_row_ms);
        if self.snapshots.is_empty() || since + 200 >= ROW_SECONDS * 1000 {
            self.ring.add(&snapshot);
            self.last_row_ms = snapshot.unix_ms;
        }
        if self.snapshots.len() >= MAX_SNAPSHOTS {
            self.snapshots.pop_front();
        }
        self.snapshots.push_back(snapshot);
    }

    fn refresh_view(&mut self) {
        let Some(now) = self.snapshots.back() else {
            return;
        };
        let old_enough =
            |then: &&StatusSnapshot| now.unix_ms.saturating_sub(then.unix_ms) >= RATE_INTERVAL_MS;
        let then = self.snapshots.iter().rev().find(old_enough);
        let then = then.or_else(|| self.snapshots.front().filter(|_| self.snapshots.len() > 1));
        self.view_model = ViewModel {
            now: Some((now.clone(), then.cloned())),
            history: self.ring.history(),
        };
    }

    /// Takes a key.
    pub fn handle_key(&mut self, key: KeyEvent) -> KeyOutcome {
        if key.kind == KeyEventKind::Release {
            return KeyOutcome::Redraw;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return KeyOutcome::Quit;
        }
        if self.options.editing_filter {
            self.options.handle_filter_key(key.code);
            return KeyOutcome::Redraw;
        }
        if std::mem::take(&mut self.options.help) {
            return KeyOutcome::Redraw; // any key closes it
        }
        if key.code == KeyCode::Char('q') {
            return KeyOutcome::Quit;
        }
        if key.code == KeyCode::Char(' ') {
            self.toggle_frozen();
            return KeyOutcome::Redraw;
        }
        let blocks = self.view_model.panels(&self.options);
        self.options.handle_key(key.code, &blocks);
        KeyOutcome::Redraw
    }

    fn toggle_frozen(&mut self) {
        self.options.frozen = !self.options.frozen;
        if !self.options.frozen {
            self.refresh_view();
        }
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
