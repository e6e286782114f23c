//! How the operator wants to see it, and what a key changes of that.

use ratatui::crossterm::event::KeyCode;

use crate::observe::top_talkers;
use crate::observe::top_talkers::Dimension;
use crate::observe::top_talkers::Window;

/// The longest filter that is taken, in characters.
pub(super) const MAX_FILTER_LENGTH: usize = 64;

/// What PgUp and PgDn scroll.
const PAGE_ROWS: usize = 10;

/// By what levels are sorted. The order is that of the columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LevelSort {
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
    Dispatched,
    /// Requests rejected; where none are, those that wait.
    #[default]
    Rejected,
}

impl LevelSort {
    /// All, in the order of the columns.
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

/// What is scrolled on its own.
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

/// Rows that are scrolled away, by block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrollOffsets {
    /// Of the levels.
    pub levels: usize,
    /// Of the limits.
    pub limits: usize,
    /// Of the talkers.
    pub talkers: usize,
}

/// How the operator wants to see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewOptions {
    /// By what levels are sorted.
    pub sort: LevelSort,
    /// The least first.
    pub reversed: bool,
    /// Only what has this in its name.
    pub filter: String,
    /// The filter is being typed.
    pub editing_filter: bool,
    /// Nothing moves.
    pub frozen: bool,
    /// The keys are shown.
    pub help: bool,
    /// What talkers are told apart by.
    pub by: Dimension,
    /// Over how long.
    pub window: Window,
    /// Which of them are the first.
    pub talker_sort: top_talkers::UsageMeasure,
    /// What arrows scroll.
    pub focus: Panel,
    /// How far.
    pub scroll_offsets: ScrollOffsets,
}

impl ViewOptions {
    /// Takes a key that changes how things are shown; one that means nothing does nothing.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a key that means nothing does nothing"
    )]
    pub(super) fn handle_key(&mut self, key: KeyCode, blocks: &[Panel]) {
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
                self.talker_sort =
                    next_after(&top_talkers::UsageMeasure::DISPLAY_ORDER, self.talker_sort)
            }
            KeyCode::Char(digit @ '1'..='9') => self.sort_by_column(digit),
            KeyCode::Tab => self.focus = next_after(blocks, self.focus),
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
            KeyCode::End => *self.focused_offset() = usize::MAX, // as far as there are rows
            _ => {}
        }
        if matches!(key, KeyCode::Char('b' | 'w' | 't')) {
            self.scroll_offsets.talkers = 0;
        }
    }

    /// Takes a key while the filter is typed.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a key that means nothing does nothing"
    )]
    pub(super) fn handle_filter_key(&mut self, code: KeyCode) {
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

    /// So far each block can be scrolled: beyond its end there is nothing to come back from.
    pub fn clamp_scroll_offsets(&mut self, most: ScrollOffsets) {
        let at = &mut self.scroll_offsets;
        at.levels = at.levels.min(most.levels);
        at.limits = at.limits.min(most.limits);
        at.talkers = at.talkers.min(most.talkers);
    }

    fn focused_offset(&mut self) -> &mut usize {
        match self.focus {
            Panel::Levels => &mut self.scroll_offsets.levels,
            Panel::Limits => &mut self.scroll_offsets.limits,
            Panel::Talkers => &mut self.scroll_offsets.talkers,
        }
    }

    /// The column of that number; the same again turns it round.
    fn sort_by_column(&mut self, digit: char) {
        let column = digit.to_digit(10).and_then(|n| usize::try_from(n).ok());
        let sort = column.and_then(|n| LevelSort::ALL.get(n.checked_sub(1)?));
        if let Some(&sort) = sort {
            self.reversed = sort == self.sort && !self.reversed;
            self.sort = sort;
        }
    }

    /// Whether the filter lets that name through.
    #[must_use]
    pub fn matches_filter(&self, name: &str) -> bool {
        self.filter.is_empty() || name.to_lowercase().contains(&self.filter.to_lowercase())
    }
}

/// The next of them, and after the last the first; the first as well if this is none of them.
fn next_after<T: Copy + Default + PartialEq>(all: &[T], one: T) -> T {
    let at = all.iter().position(|known| *known == one);
    let next = at.and_then(|at| all.get(at + 1)).or_else(|| all.first());
    next.copied().unwrap_or_default()
}
