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

use super::DIMENSIONS;
use super::SharedState;
use super::TalkerName;
use super::lock;
use super::sliding_windows::SlidingWindows;
use super::weights::MEASURES;
use super::weights::Weights;
use crate::hash_keys::HashKey;
use crate::hash_keys::HashKeyMap;

/// With so many names a sheet is handed over; half of what a hash table of 256 places takes.
const FLUSH_ENTRIES: usize = 112;

/// Most names: if the common tables are never free in as many newcomers again, further ones are counted as nobody's.
const MAX_BATCH_ENTRIES: usize = 224;

/// One worker's counts since they were last carried together.
pub struct WorkerShard {
    shared: Arc<SharedState>,
    /// What a request takes that no priority level decided on, and that a limit let pass.
    pub(super) default_seats: u64,
    /// Contended only while they are taken, which is a move of a few words.
    pub(super) batches: Mutex<Batches>,
    /// What could not be written down because the sheets were just being taken. Relaxed: sums, and nothing else hangs on them.
    missed: [AtomicU64; MEASURES],
}

/// What lies on a desk.
#[derive(Default)]
pub(super) struct Batches {
    /// In the order of [`By::ALL`](super::By::ALL).
    pub(super) by_dimension: [Batch; DIMENSIONS],
    /// Requests like others before. Who storms asks for the same again and again.
    cached_keys: HashKeyMap<CachedKeys>,
}

/// Requests that count for the same names.
struct CachedKeys {
    /// The names' tallies, all of which are there.
    keys: [Option<HashKey>; DIMENSIONS],
    /// What is not in them yet.
    pending: Weights,
}

/// Names of one kind.
#[derive(Default)]
pub(super) struct Batch {
    entries: HashKeyMap<BatchEntry>,
    unattributed: Weights,
}

struct BatchEntry {
    name: Arc<str>,
    sum: Weights,
}

impl WorkerShard {
    pub(super) fn new(common: Arc<SharedState>, seats_without_decision: u64) -> Self {
        Self {
            shared: common,
            default_seats: seats_without_decision,
            batches: Mutex::default(),
            missed: Default::default(),
        }
    }

    /// A keyed hash of what a request's names follow from.
    pub(super) fn fingerprint(&self, marks: impl Hash) -> HashKey {
        HashKey::of(&self.shared.fingerprint_secret, marks)
    }

    /// Counts what a request took whose names are those of one before, if there is still such a one. Never waits.
    pub(super) fn count_cached(&self, likeness: HashKey, weights: Weights) -> bool {
        let Some(mut sheets) = self.try_lock_batches() else {
            self.record_missed(weights);
            return true;
        };
        sheets.add_cached(likeness, weights)
    }

    /// Counts what a request took for each of its names, which are in the order of [`By::ALL`](super::By::ALL); it need not
    /// have one of each kind. Others that are alike can be counted again then. Never waits.
    pub fn count(
        &self,
        likeness: Option<HashKey>,
        names: [Option<TalkerName<'_>>; DIMENSIONS],
        weights: Weights,
    ) {
        let keys = names.map(|name| name.map(|name| (name.key(&self.shared.name_hasher), name)));
        let Some(mut sheets) = self.try_lock_batches() else {
            return self.record_missed(weights);
        };
        let (mut many, mut all) = (false, true);
        for (sheet, named) in sheets.by_dimension.iter_mut().zip(keys) {
            if let Some((key, name)) = named {
                all &= sheet.add(key, name, weights);
                many |= sheet.entries.len() >= FLUSH_ENTRIES;
            }
        }
        if let Some(likeness) = likeness.filter(|_| all) {
            sheets.cache_keys(likeness, keys.map(|named| named.map(|(key, _)| key)));
        }
        if many {
            self.try_flush(&mut sheets);
        }
    }

    /// Everything that lies here.
    pub(super) fn drain(&self) -> [Batch; DIMENSIONS] {
        let mut sheets = std::mem::take(&mut *lock(&self.batches));
        sheets.apply_cached();
        let mut sheets = sheets.by_dimension;
        let mut missed = Weights::ZERO;
        for (sum, missed) in missed.0.iter_mut().zip(&self.missed) {
            *sum = missed.swap(0, Ordering::Relaxed);
        }
        for sheet in &mut sheets {
            sheet.unattributed.add(missed);
        }
        sheets
    }

    /// Nothing while they are taken.
    fn try_lock_batches(&self) -> Option<MutexGuard<'_, Batches>> {
        match self.batches.try_lock() {
            Ok(sheets) => Some(sheets),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn record_missed(&self, weights: Weights) {
        for (missed, more) in self.missed.iter().zip(weights.0) {
            missed.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// To the common tables, if they are free.
    fn try_flush(&self, sheets: &mut Batches) {
        let mut windows = match self.shared.windows.try_lock() {
            Ok(windows) => windows,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return,
        };
        sheets.apply_cached();
        for (sheet, windows) in sheets.by_dimension.iter_mut().zip(windows.iter_mut()) {
            sheet.flush_into(windows);
        }
    }
}

impl Batches {
    fn add_cached(&mut self, likeness: HashKey, weights: Weights) -> bool {
        let Some(alike) = self.cached_keys.get_mut(&likeness) else {
            return false;
        };
        alike.pending.add(weights);
        true
    }

    fn cache_keys(&mut self, likeness: HashKey, tallies: [Option<HashKey>; DIMENSIONS]) {
        if self.cached_keys.len() >= FLUSH_ENTRIES {
            self.apply_cached();
        }
        let sum = Weights::ZERO;
        let alike = self.cached_keys.entry(likeness);
        alike.or_insert(CachedKeys {
            keys: tallies,
            pending: sum,
        });
    }

    /// Carries what was counted again over to the tallies; none is remembered after that.
    fn apply_cached(&mut self) {
        for (
            _,
            CachedKeys {
                keys: tallies,
                pending: sum,
            },
        ) in self.cached_keys.drain()
        {
            if sum == Weights::ZERO {
                continue; // it was not met again
            }
            for (sheet, key) in self.by_dimension.iter_mut().zip(tallies) {
                if let Some(tally) = key.and_then(|key| sheet.entries.get_mut(&key)) {
                    tally.sum.add(sum);
                }
            }
        }
    }
}

impl Batch {
    /// Whether it has a tally now.
    fn add(&mut self, key: HashKey, name: TalkerName<'_>, weights: Weights) -> bool {
        if let Some(tally) = self.entries.get_mut(&key) {
            tally.sum.add(weights);
        } else if self.entries.len() < MAX_BATCH_ENTRIES {
            let tally = BatchEntry {
                name: name.to_display(),
                sum: weights,
            };
            self.entries.insert(key, tally);
        } else {
            self.unattributed.add(weights);
            return false;
        }
        true
    }

    /// Everything on it; it is empty then.
    pub(super) fn flush_into(&mut self, windows: &mut SlidingWindows) {
        for (key, BatchEntry { name, sum }) in self.entries.drain() {
            windows.add(key, name, sum);
        }
        if self.unattributed != Weights::ZERO {
            windows.add_unattributed(std::mem::take(&mut self.unattributed));
        }
    }
}

impl fmt::Debug for WorkerShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}
