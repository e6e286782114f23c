//! Where one worker counts, without waiting for anybody.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::TryLockError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use super::Common;
use super::KINDS;
use super::Name;
use super::locked;
use super::weights::MEASURES;
use super::weights::Weights;
use super::windows::Windows;
use crate::keyed::ByKey;
use crate::keyed::Key;

/// With so many names a sheet is handed over; half of what a hash table of 256 places takes.
const MANY: usize = 112;

/// Most names: if the common tables are never free in as many newcomers again, further ones are counted as nobody's.
const MOST: usize = 224;

/// One worker's counts since they were last carried together.
pub struct Desk {
    common: Arc<Common>,
    /// What a request takes that no priority level decided on, and that a limit let pass.
    pub(super) seats_without_decision: u64,
    /// Contended only while they are taken, which is a move of a few words.
    pub(super) sheets: Mutex<Sheets>,
    /// What could not be written down because the sheets were just being taken. Relaxed: sums, and nothing else hangs on them.
    missed: [AtomicU64; MEASURES],
}

/// What lies on a desk.
#[derive(Default)]
pub(super) struct Sheets {
    /// In the order of [`By::ALL`](super::By::ALL).
    pub(super) by: [Sheet; KINDS],
    /// Requests like others before. Who storms asks for the same again and again.
    alike: ByKey<Alike>,
}

/// Requests that count for the same names.
struct Alike {
    /// The names' tallies, all of which are there.
    tallies: [Option<Key>; KINDS],
    /// What is not in them yet.
    sum: Weights,
}

/// Names of one kind.
#[derive(Default)]
pub(super) struct Sheet {
    tallies: ByKey<Tally>,
    unknown: Weights,
}

struct Tally {
    name: Arc<str>,
    sum: Weights,
}

impl Desk {
    pub(super) fn new(common: Arc<Common>, seats_without_decision: u64) -> Self {
        Self {
            common,
            seats_without_decision,
            sheets: Mutex::default(),
            missed: Default::default(),
        }
    }

    /// A keyed hash of what a request's names follow from.
    pub(super) fn likeness(&self, marks: impl Hash) -> Key {
        Key::of(&self.common.quick, marks)
    }

    /// Counts what a request took whose names are those of one before, if there is still such a one. Never waits.
    pub(super) fn count_again(&self, likeness: Key, weights: Weights) -> bool {
        let Some(mut sheets) = self.sheets() else {
            self.miss(weights);
            return true;
        };
        sheets.add_again(likeness, weights)
    }

    /// Counts what a request took for each of its names, which are in the order of [`By::ALL`](super::By::ALL); it need not
    /// have one of each kind. Others that are alike can be counted again then. Never waits.
    pub fn count(&self, likeness: Option<Key>, names: [Option<Name<'_>>; KINDS], weights: Weights) {
        let keys = names.map(|name| name.map(|name| (name.key(&self.common.secret), name)));
        let Some(mut sheets) = self.sheets() else {
            return self.miss(weights);
        };
        let (mut many, mut all) = (false, true);
        for (sheet, named) in sheets.by.iter_mut().zip(keys) {
            if let Some((key, name)) = named {
                all &= sheet.add(key, name, weights);
                many |= sheet.tallies.len() >= MANY;
            }
        }
        if let Some(likeness) = likeness.filter(|_| all) {
            sheets.remember(likeness, keys.map(|named| named.map(|(key, _)| key)));
        }
        if many {
            self.hand_over(&mut sheets);
        }
    }

    /// Everything that lies here.
    pub(super) fn take(&self) -> [Sheet; KINDS] {
        let mut sheets = std::mem::take(&mut *locked(&self.sheets));
        sheets.settle();
        let mut sheets = sheets.by;
        let mut missed = Weights::ZERO;
        for (sum, missed) in missed.0.iter_mut().zip(&self.missed) {
            *sum = missed.swap(0, Ordering::Relaxed);
        }
        for sheet in &mut sheets {
            sheet.unknown.add(missed);
        }
        sheets
    }

    /// Nothing while they are taken.
    fn sheets(&self) -> Option<MutexGuard<'_, Sheets>> {
        match self.sheets.try_lock() {
            Ok(sheets) => Some(sheets),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn miss(&self, weights: Weights) {
        for (missed, more) in self.missed.iter().zip(weights.0) {
            missed.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// To the common tables, if they are free.
    fn hand_over(&self, sheets: &mut Sheets) {
        let mut windows = match self.common.windows.try_lock() {
            Ok(windows) => windows,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return,
        };
        sheets.settle();
        for (sheet, windows) in sheets.by.iter_mut().zip(windows.iter_mut()) {
            sheet.give(windows);
        }
    }
}

impl Sheets {
    fn add_again(&mut self, likeness: Key, weights: Weights) -> bool {
        let Some(alike) = self.alike.get_mut(&likeness) else {
            return false;
        };
        alike.sum.add(weights);
        true
    }

    fn remember(&mut self, likeness: Key, tallies: [Option<Key>; KINDS]) {
        if self.alike.len() >= MANY {
            self.settle();
        }
        let sum = Weights::ZERO;
        let alike = self.alike.entry(likeness);
        alike.or_insert(Alike { tallies, sum });
    }

    /// Carries what was counted again over to the tallies; none is remembered after that.
    fn settle(&mut self) {
        for (_, Alike { tallies, sum }) in self.alike.drain() {
            if sum == Weights::ZERO {
                continue; // it was not met again
            }
            for (sheet, key) in self.by.iter_mut().zip(tallies) {
                if let Some(tally) = key.and_then(|key| sheet.tallies.get_mut(&key)) {
                    tally.sum.add(sum);
                }
            }
        }
    }
}

impl Sheet {
    /// Whether it has a tally now.
    fn add(&mut self, key: Key, name: Name<'_>, weights: Weights) -> bool {
        if let Some(tally) = self.tallies.get_mut(&key) {
            tally.sum.add(weights);
        } else if self.tallies.len() < MOST {
            let tally = Tally {
                name: name.shown(),
                sum: weights,
            };
            self.tallies.insert(key, tally);
        } else {
            self.unknown.add(weights);
            return false;
        }
        true
    }

    /// Everything on it; it is empty then.
    pub(super) fn give(&mut self, windows: &mut Windows) {
        for (key, Tally { name, sum }) in self.tallies.drain() {
            windows.add(key, name, sum);
        }
        if self.unknown != Weights::ZERO {
            windows.add_unknown(std::mem::take(&mut self.unknown));
        }
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}
