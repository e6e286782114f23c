//! How the operator wants to see it, and what a key changes of that.

use ratatui::crossterm::event::KeyCode;

use crate::observe::talkers;
use crate::observe::talkers::By;
use crate::observe::talkers::Window;

/// The longest filter that is taken, in characters.
pub(super) const LONGEST_FILTER: usize = 64;

/// What PgUp and PgDn scroll.
const PAGE: usize = 10;

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
}

/// What is scrolled on its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Block {
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
pub struct Scrolled {
    /// Of the levels.
    pub levels: usize,
    /// Of the limits.
    pub limits: usize,
    /// Of the talkers.
    pub talkers: usize,
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
    /// What talkers are told apart by.
    pub by: By,
    /// Over how long.
    pub window: Window,
    /// Which of them are the first.
    pub talkers_by: talkers::Sort,
    /// What arrows scroll.
    pub focus: Block,
    /// How far.
    pub scrolled: Scrolled,
}

impl Ui {
    /// Takes a key that changes how things are shown; one that means nothing does nothing.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a key that means nothing does nothing"
    )]
    pub(super) fn pressed(&mut self, key: KeyCode, blocks: &[Block]) {
        match key {
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('s') => {
                (self.sort, self.reversed) = (after(&Sort::ALL, self.sort), false)
            }
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('b') => self.by = after(&By::SHOWN, self.by),
            KeyCode::Char('w') => self.window = after(&Window::ALL, self.window),
            KeyCode::Char('t') => self.talkers_by = after(&talkers::Sort::SHOWN, self.talkers_by),
            KeyCode::Char(digit @ '1'..='9') => self.choose(digit),
            KeyCode::Tab => self.focus = after(blocks, self.focus),
            KeyCode::Down | KeyCode::Char('j') => *self.at() = self.at().saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => *self.at() = self.at().saturating_sub(1),
            KeyCode::PageDown => *self.at() = self.at().saturating_add(PAGE),
            KeyCode::PageUp => *self.at() = self.at().saturating_sub(PAGE),
            KeyCode::Home => *self.at() = 0,
            KeyCode::End => *self.at() = usize::MAX, // as far as there are rows
            _ => {}
        }
        if matches!(key, KeyCode::Char('b' | 'w' | 't')) {
            self.scrolled.talkers = 0;
        }
    }

    /// Takes a key while the filter is typed.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a key that means nothing does nothing"
    )]
    pub(super) fn typed(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) if self.filter.chars().count() < LONGEST_FILTER => self.filter.push(c),
            _ => {}
        }
        self.scrolled = Scrolled::default();
    }

    /// So far each block can be scrolled: beyond its end there is nothing to come back from.
    pub fn bound(&mut self, most: Scrolled) {
        let at = &mut self.scrolled;
        at.levels = at.levels.min(most.levels);
        at.limits = at.limits.min(most.limits);
        at.talkers = at.talkers.min(most.talkers);
    }

    fn at(&mut self) -> &mut usize {
        match self.focus {
            Block::Levels => &mut self.scrolled.levels,
            Block::Limits => &mut self.scrolled.limits,
            Block::Talkers => &mut self.scrolled.talkers,
        }
    }

    /// The column of that number; the same again turns it round.
    fn choose(&mut self, digit: char) {
        let column = digit.to_digit(10).and_then(|n| usize::try_from(n).ok());
        let sort = column.and_then(|n| Sort::ALL.get(n.checked_sub(1)?));
        if let Some(&sort) = sort {
            self.reversed = sort == self.sort && !self.reversed;
            self.sort = sort;
        }
    }

    /// Whether the filter lets that name through.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        self.filter.is_empty() || name.to_lowercase().contains(&self.filter.to_lowercase())
    }
}

/// The next of them, and after the last the first; the first as well if this is none of them.
fn after<T: Copy + Default + PartialEq>(all: &[T], one: T) -> T {
    let at = all.iter().position(|known| *known == one);
    let next = at.and_then(|at| all.get(at + 1)).or_else(|| all.first());
    next.copied().unwrap_or_default()
}
