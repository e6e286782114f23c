//! Where one worker counts, without waiting for anybody.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::TryLockError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use super::Common;
use super::KINDS;
use super::Name;
use super::locked;
use super::table::ByKey;
use super::table::Key;
use super::weights::MEASURES;
use super::weights::Weights;
use super::windows::Windows;

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
    pub(super) sheets: Mutex<[Sheet; KINDS]>,
    /// What could not be written down because the sheets were just being taken. Relaxed: sums, and nothing else hangs on them.
    missed: [AtomicU64; MEASURES],
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

    /// Counts what a request took for each of its names, which are in the order of [`By::ALL`](super::By::ALL); it need not
    /// have one of each kind. Never waits.
    pub fn count(&self, names: [Option<Name<'_>>; KINDS], weights: Weights) {
        let keys = names.map(|name| name.map(|name| (name.key(&self.common.secret), name)));
        let mut sheets = match self.sheets.try_lock() {
            Ok(sheets) => sheets,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return self.miss(weights),
        };
        let mut many = false;
        for (sheet, named) in sheets.iter_mut().zip(keys) {
            if let Some((key, name)) = named {
                sheet.add(key, name, weights);
                many |= sheet.tallies.len() >= MANY;
            }
        }
        if many {
            self.hand_over(&mut sheets);
        }
    }

    /// Everything that lies here.
    pub(super) fn take(&self) -> [Sheet; KINDS] {
        let mut sheets = std::mem::take(&mut *locked(&self.sheets));
        let mut missed = Weights::ZERO;
        for (sum, missed) in missed.0.iter_mut().zip(&self.missed) {
            *sum = missed.swap(0, Ordering::Relaxed);
        }
        for sheet in &mut sheets {
            sheet.unknown.add(missed);
        }
        sheets
    }

    fn miss(&self, weights: Weights) {
        for (missed, more) in self.missed.iter().zip(weights.0) {
            missed.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// To the common tables, if they are free.
    fn hand_over(&self, sheets: &mut [Sheet; KINDS]) {
        let mut windows = match self.common.windows.try_lock() {
            Ok(windows) => windows,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return,
        };
        for (sheet, windows) in sheets.iter_mut().zip(windows.iter_mut()) {
            sheet.give(windows);
        }
    }
}

impl Sheet {
    fn add(&mut self, key: Key, name: Name<'_>, weights: Weights) {
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
        }
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
