//! What the operator has chosen to see, and the keys that change it.

use ratatui::crossterm::event::KeyCode;

use weir_status::replica_view::ALL_REPLICAS;
use weir_talkers::{Dimension, UsageMeasure, Window};

/// Maximum length of the filter, in characters.
pub(crate) const MAX_FILTER_LENGTH: usize = 64;

/// Rows that `PgUp` and `PgDn` scroll.
const PAGE_ROWS: usize = 10;

/// The column that priority levels are sorted by, in the order of the columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LevelSort {
    /// By name.
    Name,
    /// By the ratio of executing seats to the current limit.
    Seats,
    /// By borrowed seats.
    Borrowed,
    /// By queued requests.
    Waiting,
    /// By the average wait in queue.
    Wait,
    /// By dispatched requests.
    Dispatched,
    /// By rejected requests, then by queued ones.
    #[default]
    Rejected,
}

impl LevelSort {
    /// All columns, in their order.
    pub const ALL: [Self; 7] = [
        Self::Name,
        Self::Seats,
        Self::Borrowed,
        Self::Waiting,
        Self::Wait,
        Self::Dispatched,
        Self::Rejected,
    ];
}

/// A part of the screen that is scrolled on its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Panel {
    /// Priority levels.
    #[default]
    Levels,
    /// Event and client limits.
    Limits,
    /// Top talkers.
    Talkers,
}

/// The number of rows above the first visible one, for each panel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrollOffsets {
    /// Of priority levels.
    pub levels: usize,
    /// Of event and client limits.
    pub limits: usize,
    /// Of top talkers.
    pub talkers: usize,
}

/// What the operator has chosen to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewOptions {
    /// The column that priority levels are sorted by.
    pub sort: LevelSort,
    /// Reverse the order.
    pub reversed: bool,
    /// Show only rows whose name contains this text. Case is ignored.
    pub filter: String,
    /// Keys edit the filter.
    pub editing_filter: bool,
    /// Updates are not displayed.
    pub frozen: bool,
    /// The help is displayed.
    pub help: bool,
    /// The grouping of top talkers.
    pub by: Dimension,
    /// The time window of top talkers.
    pub window: Window,
    /// The measure that top talkers are sorted by.
    pub talker_sort: UsageMeasure,
    /// The replica that is picked out. `None`: all of them together.
    pub replica: Option<String>,
    /// The panel that the arrow keys scroll.
    pub focus: Panel,
    /// How far each panel is scrolled.
    pub scroll_offsets: ScrollOffsets,
}

impl ViewOptions {
    /// Handles a key outside the filter. `panels` are those on the screen. Other keys are ignored.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other keys are ignored")]
    pub(crate) fn handle_key(&mut self, key: KeyCode, panels: &[Panel]) {
        match key {
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('/') => self.editing_filter = true,
            KeyCode::Char('s') => {
                (self.sort, self.reversed) = (next_after(&LevelSort::ALL, self.sort), false)
            }
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('b') => self.by = next_after(&Dimension::DISPLAY_ORDER, self.by),
            KeyCode::Char('w') => self.window = next_after(&Window::ALL, self.window),
            KeyCode::Char('t') => {
                self.talker_sort = next_after(&UsageMeasure::DISPLAY_ORDER, self.talker_sort)
            }
            KeyCode::Char(digit @ '1'..='9') => self.sort_by_column(digit),
            KeyCode::Tab => self.focus = next_after(panels, self.focus),
            KeyCode::Down | KeyCode::Char('j') => {
                *self.focused_offset() = self.focused_offset().saturating_add(1)
            }
            KeyCode::Up | KeyCode::Char('k') => {
                *self.focused_offset() = self.focused_offset().saturating_sub(1)
            }
            KeyCode::PageDown => {
                *self.focused_offset() = self.focused_offset().saturating_add(PAGE_ROWS)
            }
            KeyCode::PageUp => {
                *self.focused_offset() = self.focused_offset().saturating_sub(PAGE_ROWS)
            }
            KeyCode::Home => *self.focused_offset() = 0,
            KeyCode::End => *self.focused_offset() = usize::MAX, // limited to the last row by `clamp_scroll_offsets`
            _ => {}
        }
        if matches!(key, KeyCode::Char('b' | 'w' | 't')) {
            self.scroll_offsets.talkers = 0;
        }
    }

    /// Handles a key while the filter is edited.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other keys are ignored")]
    pub(crate) fn handle_filter_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.editing_filter = false,
            KeyCode::Esc => {
                self.editing_filter = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) if self.filter.chars().count() < MAX_FILTER_LENGTH => {
                self.filter.push(c)
            }
            _ => {}
        }
        self.scroll_offsets = ScrollOffsets::default();
    }

    /// The name of the replica that is picked out, or the word for all of them.
    #[must_use]
    pub fn chosen_replica(&self) -> &str {
        self.replica.as_deref().unwrap_or(ALL_REPLICAS)
    }

    /// Picks out the replica after the current one, and all of them after the last.
    pub(crate) fn pick_next_replica<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        let mut names =
            names.skip_while(|name| self.replica.as_deref().is_some_and(|is| is != *name));
        let next = match self.replica {
            Some(_) => names.nth(1),
            None => names.next(),
        };
        self.replica = next.map(str::to_owned);
        self.scroll_offsets = ScrollOffsets::default();
    }

    /// Limits the offsets to `max`, so that no panel is scrolled beyond its end.
    pub fn clamp_scroll_offsets(&mut self, max: ScrollOffsets) {
        let offsets = &mut self.scroll_offsets;
        offsets.levels = offsets.levels.min(max.levels);
        offsets.limits = offsets.limits.min(max.limits);
        offsets.talkers = offsets.talkers.min(max.talkers);
    }

    fn focused_offset(&mut self) -> &mut usize {
        match self.focus {
            Panel::Levels => &mut self.scroll_offsets.levels,
            Panel::Limits => &mut self.scroll_offsets.limits,
            Panel::Talkers => &mut self.scroll_offsets.talkers,
        }
    }

    /// Sorts by the column of that number. The same column again reverses the order.
    fn sort_by_column(&mut self, digit: char) {
        let column = digit.to_digit(10).and_then(|n| usize::try_from(n).ok());
        let sort = column.and_then(|n| LevelSort::ALL.get(n.checked_sub(1)?));
        if let Some(&sort) = sort {
            self.reversed = sort == self.sort && !self.reversed;
            self.sort = sort;
        }
    }

    /// Whether `name` passes the filter.
    #[must_use]
    pub fn matches_filter(&self, name: &str) -> bool {
        self.filter.is_empty() || name.to_lowercase().contains(&self.filter.to_lowercase())
    }
}

/// The value after `current`. The first one after the last, and if `current` is not in `all`.
fn next_after<T: Copy + Default + PartialEq>(all: &[T], current: T) -> T {
    let at = all.iter().position(|value| *value == current);
    let next = at.and_then(|at| all.get(at + 1)).or_else(|| all.first());
    next.copied().unwrap_or_default()
}
