//! The state of `weir top`, changed by status updates and keys. No I/O, no waiting, no drawing.

use std::collections::VecDeque;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::lever_dialog::{DialogOutcome, LeverDialog, LeverDialogKind};
use crate::view_model::{ViewModel, talker_rows};
use crate::view_options::ViewOptions;
use weir_status::history::{HistoryRing, ROW_SECONDS};
use weir_status::snapshot::{StatusHistory, StatusSnapshot};

/// The interval of rates in milliseconds: long enough to read, short enough to show a flood.
const RATE_INTERVAL_MS: u64 = 2500;

/// Snapshots that are kept for rates. One a second arrives: these cover more than
/// [`RATE_INTERVAL_MS`].
const MAX_SNAPSHOTS: usize = 8;

/// An update from weir, or the loss of the connection.
#[derive(Clone, Debug)]
pub enum StatusUpdate {
    /// The history before the first snapshot.
    History(StatusHistory),
    /// weir is not reachable. Holds the reason.
    Disconnected(String),
    /// The current status.
    Snapshot(Box<StatusSnapshot>),
}

/// The action after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyOutcome {
    /// Continue.
    Redraw,
    /// End the program.
    Quit,
    /// Run `weir ctl` with these arguments.
    Send(Vec<String>),
}

/// The state of the program.
#[derive(Debug, Default)]
pub struct TopModel {
    /// What the operator has chosen to see.
    pub options: ViewOptions,
    /// The data that is displayed.
    pub view_model: ViewModel,
    /// The dialog that is open.
    pub dialog: Option<LeverDialog>,
    /// Why the connection is lost, if it is.
    pub disconnect_reason: Option<String>,
    snapshots: VecDeque<StatusSnapshot>,
    ring: HistoryRing,
    last_row_ms: u64,
}

impl TopModel {
    /// A model without any update.
    #[must_use]
    pub fn new(options: ViewOptions) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    /// Applies an update.
    pub fn handle_update(&mut self, update: StatusUpdate) {
        match update {
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
        // Totals of other replicas are no growth.
        let is_of_others = |last: &StatusSnapshot| !is_of_same_replicas(last, &snapshot);
        if self.snapshots.back().is_some_and(is_of_others) {
            self.snapshots.clear();
            self.ring.forget_totals();
        }
        // The interval of weir's own history rows, 200 ms tolerance. The first snapshot is the base
        // of the next one's differences.
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

    /// Handles a key.
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
        if let Some(dialog) = &mut self.dialog {
            return match dialog.handle_key(key.code) {
                DialogOutcome::Stay => KeyOutcome::Redraw,
                DialogOutcome::Send(arguments) => KeyOutcome::Send(arguments),
                DialogOutcome::Close => {
                    self.dialog = None;
                    KeyOutcome::Redraw
                }
            };
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
        if key.code == KeyCode::Char('p') {
            let view = self.view_model.now.iter().flat_map(|(now, _)| &now.view);
            let names = view.flat_map(|view| &view.replicas);
            let names = names.map(|replica| &*replica.name);
            self.options.pick_next_replica(names);
            return KeyOutcome::Redraw;
        }
        if let KeyCode::Char(key @ ('x' | 'l' | 'u')) = key.code {
            self.dialog = self.open_dialog(key);
            return KeyOutcome::Redraw;
        }
        let panels = self.view_model.panels(&self.options);
        self.options.handle_key(key.code, &panels);
        KeyOutcome::Redraw
    }

    /// The dialog of a key: about the talkers as they are shown, or about the levers in force.
    fn open_dialog(&self, key: char) -> Option<LeverDialog> {
        let (now, _) = self.view_model.now.as_ref()?;
        let kind = match key {
            'x' => LeverDialogKind::Block,
            'l' => LeverDialogKind::Limit,
            _ => return LeverDialog::of_levers(now),
        };
        let list = self.view_model.talker_list(&self.options)?;
        let rows = talker_rows(list, &self.options).into_iter();
        let visible = rows.skip(self.options.scroll_offsets.talkers);
        LeverDialog::of_talkers(kind, self.options.by, visible)
    }

    /// Shows what weir has answered to a command.
    pub fn handle_answer(&mut self, lines: Vec<String>) {
        if let Some(dialog) = &mut self.dialog {
            dialog.answer = Some(lines);
        }
    }

    fn toggle_frozen(&mut self) {
        self.options.frozen = !self.options.frozen;
        if !self.options.frozen {
            self.refresh_view();
        }
    }
}

/// Whether the totals of both are those of the same replicas.
fn is_of_same_replicas(a: &StatusSnapshot, b: &StatusSnapshot) -> bool {
    match (&a.view, &b.view) {
        (Some(a), Some(b)) => a.chosen == b.chosen && a.counted().eq(b.counted()),
        (a, b) => a.is_none() && b.is_none(),
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
