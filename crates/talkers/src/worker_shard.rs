//! The counts of one worker, and what the workers share. Counting never waits for a lock.

use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::hash::{Hash, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::name::TalkerName;
use super::query::Dimension;
use super::sliding_windows::SlidingWindows;
use super::weights::{MEASURES, Weights};
use weir_base::hash_keys::{HashKey, HashKeyMap, HashSecret};

/// The number of dimensions.
pub(crate) const DIMENSIONS: usize = Dimension::ALL.len();

/// A batch is flushed when it has this many entries: half of what a hash table of 256 buckets
/// holds.
const FLUSH_ENTRIES: usize = 112;

/// Most entries of a batch. If the shared tables stay locked while another [`FLUSH_ENTRIES`] names
/// are added, the usage of further names is counted as unattributed.
const MAX_BATCH_ENTRIES: usize = 224;

/// The tables that shards are flushed into, and the hash secrets.
pub(crate) struct SharedState {
    /// Random per process, so that clients cannot search for names with equal hashes.
    pub(crate) name_hasher: RandomState,
    /// Key of the fingerprints by which a shard recognises requests with equal names.
    pub(crate) fingerprint_secret: HashSecret,
    /// All counts, in the order of [`Dimension::ALL`]. Locked while a shard is flushed, a bucket is
    /// closed, or a window is read.
    pub(crate) windows: Mutex<[SlidingWindows; DIMENSIONS]>,
}

impl SharedState {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            name_hasher: RandomState::new(),
            fingerprint_secret: HashSecret::default(),
            windows: Mutex::new(Dimension::ALL.map(|_| SlidingWindows::new(now))),
        }
    }
}

/// The counts of one worker since the last flush.
pub struct WorkerShard {
    shared: Arc<SharedState>,
    /// Seats of an admitted request that no priority level decided on.
    default_seats: Arc<AtomicU64>,
    /// A flush locks one half at a time, so the worker always finds one that is free, unless two
    /// flushes meet.
    pub(crate) halves: [Mutex<Batches>; 2],
    /// Usage that was not counted because both halves were locked. Relaxed: sums that order
    /// nothing.
    missed: [AtomicU64; MEASURES],
}

/// What a shard has counted since the last flush.
#[derive(Default)]
pub(crate) struct Batches {
    /// In the order of [`Dimension::ALL`].
    pub(crate) by_dimension: [Batch; DIMENSIONS],
    /// The entries of earlier requests by fingerprint. A client that floods repeats the same
    /// request many times.
    cached_keys: HashKeyMap<CachedKeys>,
}

/// The entries that requests with one fingerprint count for.
struct CachedKeys {
    /// Keys of the names' entries. All these entries exist.
    keys: [Option<HashKey>; DIMENSIONS],
    /// Usage that is not added to the entries yet.
    pending: Weights,
}

/// The names of one dimension.
#[derive(Default)]
pub(crate) struct Batch {
    entries: HashKeyMap<BatchEntry>,
    unattributed: Weights,
}

struct BatchEntry {
    name: Arc<str>,
    sum: Weights,
}

impl WorkerShard {
    pub(crate) fn new(shared: Arc<SharedState>, default_seats: Arc<AtomicU64>) -> Self {
        Self {
            shared,
            default_seats,
            halves: Default::default(),
            missed: Default::default(),
        }
    }

    /// The number of seats that a request is counted with if no priority level decided on it.
    #[must_use]
    pub fn seats_without_decision(&self) -> u64 {
        self.default_seats.load(Ordering::Relaxed)
    }

    /// Returns a keyed hash of the inputs that determine a request's names.
    #[must_use]
    pub fn fingerprint(&self, inputs: impl Hash) -> HashKey {
        HashKey::of(&self.shared.fingerprint_secret, inputs)
    }

    /// Counts the usage of a request whose names are those of an earlier request. Returns `false`
    /// if no such request is cached. Never waits.
    #[must_use]
    pub fn count_cached(&self, fingerprint: HashKey, weights: Weights) -> bool {
        let Some(mut batches) = self.try_lock_half() else {
            self.record_missed(weights);
            return true;
        };
        batches.add_cached(fingerprint, weights)
    }

    /// Counts the usage of a request for each of its names, in the order of
    /// [`Dimension::ALL`]. A request may lack a name in some
    /// dimensions. With a fingerprint, later requests can be counted by `count_cached`.
    /// Never waits.
    pub fn count(
        &self,
        fingerprint: Option<HashKey>,
        names: [Option<TalkerName<'_>>; DIMENSIONS],
        weights: Weights,
    ) {
        let keys = names.map(|name| name.map(|name| (name.key(&self.shared.name_hasher), name)));
        let Some(mut batches) = self.try_lock_half() else {
            return self.record_missed(weights);
        };
        let (mut is_full, mut all_have_entries) = (false, true);
        for (batch, keyed) in batches.by_dimension.iter_mut().zip(keys) {
            if let Some((key, name)) = keyed {
                all_have_entries &= batch.add(key, name, weights);
                is_full |= batch.entries.len() >= FLUSH_ENTRIES;
            }
        }
        if let Some(fingerprint) = fingerprint.filter(|_| all_have_entries) {
            batches.cache_keys(fingerprint, keys.map(|keyed| keyed.map(|(key, _)| key)));
        }
        if is_full {
            self.try_flush(&mut batches);
        }
    }

    /// Removes all counts of each half and passes them to `flush`. Missed usage is unattributed.
    pub(crate) fn drain(&self, mut flush: impl FnMut([Batch; DIMENSIONS])) {
        for half in &self.halves {
            let mut batches = std::mem::take(&mut *half.lock());
            batches.apply_cached();
            let mut batches = batches.by_dimension;
            let mut missed = Weights::ZERO;
            for (sum, missed) in missed.0.iter_mut().zip(&self.missed) {
                *sum = missed.swap(0, Ordering::Relaxed);
            }
            for batch in &mut batches {
                batch.unattributed.add(missed);
            }
            flush(batches);
        }
    }

    /// Returns `None` while other threads hold both locks.
    fn try_lock_half(&self) -> Option<MutexGuard<'_, Batches>> {
        self.halves.iter().find_map(Mutex::try_lock)
    }

    fn record_missed(&self, weights: Weights) {
        for (missed, more) in self.missed.iter().zip(weights.0) {
            missed.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Flushes into the shared tables unless they are locked.
    fn try_flush(&self, batches: &mut Batches) {
        let Some(mut windows) = self.shared.windows.try_lock() else {
            return;
        };
        batches.apply_cached();
        for (batch, windows) in batches.by_dimension.iter_mut().zip(windows.iter_mut()) {
            batch.flush_into(windows);
        }
    }
}

impl Batches {
    fn add_cached(&mut self, fingerprint: HashKey, weights: Weights) -> bool {
        let Some(cached) = self.cached_keys.get_mut(&fingerprint) else {
            return false;
        };
        cached.pending.add(weights);
        true
    }

    fn cache_keys(&mut self, fingerprint: HashKey, keys: [Option<HashKey>; DIMENSIONS]) {
        if self.cached_keys.len() >= FLUSH_ENTRIES {
            self.apply_cached();
        }
        let cached = self.cached_keys.entry(fingerprint);
        cached.or_insert(CachedKeys {
            keys,
            pending: Weights::ZERO,
        });
    }

    /// Adds pending usage to the entries and clears the cache.
    fn apply_cached(&mut self) {
        for (_, CachedKeys { keys, pending }) in self.cached_keys.drain() {
            if pending == Weights::ZERO {
                continue; // the request was not repeated
            }
            for (batch, key) in self.by_dimension.iter_mut().zip(keys) {
                if let Some(entry) = key.and_then(|key| batch.entries.get_mut(&key)) {
                    entry.sum.add(pending);
                }
            }
        }
    }
}

impl Batch {
    /// Returns whether the name has an entry afterwards.
    fn add(&mut self, key: HashKey, name: TalkerName<'_>, weights: Weights) -> bool {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.sum.add(weights);
        } else if self.entries.len() < MAX_BATCH_ENTRIES {
            let entry = BatchEntry {
                name: name.to_display(),
                sum: weights,
            };
            self.entries.insert(key, entry);
        } else {
            self.unattributed.add(weights);
            return false;
        }
        true
    }

    /// Moves all counts into `windows` and leaves the batch empty.
    pub(crate) fn flush_into(&mut self, windows: &mut SlidingWindows) {
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
        f.debug_struct("WorkerShard").finish_non_exhaustive()
    }
}
