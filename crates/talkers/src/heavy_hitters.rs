//! Heavy hitters in bounded memory: a full table evicts the smallest entries of every measure.
//!
//! The algorithm is that of Misra and Gries (1982), for several measures at once, with evictions in
//! batches and kept counts. The table has a *cut-off* for each measure: a name that is not in the
//! table has used at most the cut-off. When the table is full, the cut-off rises to the upper bound
//! of the nth entry in the measure, and entries that exceed no cut-off are evicted. The number n is
//! the largest that leaves half of the table free, and at least [`MIN_KEPT_PER_MEASURE`]. A new
//! entry may have used as much as the cut-off before it was inserted: that is the entry's *error*.
//! An entry's count is therefore never too high, and too low by at most its error.
//!
//! **The bound.** A cut-off is at most the total usage divided by [`MIN_KEPT_PER_MEASURE`]. Proof:
//! call the distance of count plus error above the cut-off an entry's excess. Usage adds at most
//! itself to the sum of all excesses. A rise of the cut-off by `d` takes `d` from each of at least
//! [`MIN_KEPT_PER_MEASURE`] entries, and the sum does not fall below 0. Merging keeps the bound:
//! cut-offs add up, and so do totals.
//!
//! **Exact while possible.** Until a table is full for the first time, cut-offs and errors are 0.
//! Few clusters fill it.
//!
//! Each measure has its own cut-off. An entry stays if it exceeds one of them: a client that reads
//! many bytes with few requests is kept for its bytes.
//!
//! Space-Saving would count too high, which is worse when an operator looks for the cause. Sketches
//! of hashes alone have no names. The crates for such sketches keep one measure each, and are young
//! or wrap C++.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::weights::{MEASURES, SavedWeights, Weights};
use weir_base::hash_keys::{HashKey, HashKeyMap};

/// Least number of entries kept per measure in an eviction. It is more than a reader looks at, and
/// bounds the error to 2 % of the total.
pub(crate) const MIN_KEPT_PER_MEASURE: usize = 50;

/// Most entries: what a hash table of 1024 buckets holds. An eviction frees half of them, so that
/// at least 448 insertions share its cost.
pub(crate) const MAX_ENTRIES: usize = 896;

/// Most entries of a compacted table: [`MIN_KEPT_PER_MEASURE`] for each measure.
const COMPACT_ENTRIES: usize = MEASURES * MIN_KEPT_PER_MEASURE;

/// A name and its usage.
#[derive(Clone, Debug)]
pub(crate) struct HeavyHitter {
    /// The name as it is displayed.
    pub(crate) name: Arc<str>,
    /// Lower bound of the usage.
    pub(crate) count: Weights,
    /// The usage is at most `count + error`.
    pub(crate) error: Weights,
}

/// The usage by name in a period of time, as it is handed over to another process of weir.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedTable {
    pub(crate) cutoff: SavedWeights,
    pub(crate) total: SavedWeights,
    /// Name, count and error.
    pub(crate) entries: Vec<(String, SavedWeights, SavedWeights)>,
}

impl HeavyHitter {
    fn upper_bound(&self) -> Weights {
        self.count.saturating_add(self.error)
    }
}

/// The usage by name in a period of time.
#[derive(Clone, Debug)]
pub(crate) struct HeavyHitters {
    max_entries: usize,
    entries: HashKeyMap<HeavyHitter>,
    cutoff: Weights,
    total: Weights,
}

impl HeavyHitters {
    /// Creates an empty table of at most `max_entries` entries. Half of that must hold
    /// [`MIN_KEPT_PER_MEASURE`] entries of each measure.
    pub(crate) fn new(max_entries: usize) -> Self {
        Self {
            max_entries,
            entries: HashKeyMap::default(),
            cutoff: Weights::ZERO,
            total: Weights::ZERO,
        }
    }

    /// All entries, in no particular order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &HeavyHitter> {
        self.entries.values()
    }

    /// Upper bound of the usage of any name that is not in the table.
    pub(crate) const fn cutoff(&self) -> Weights {
        self.cutoff
    }

    /// Usage of all names together. Exact.
    pub(crate) const fn total(&self) -> Weights {
        self.total
    }

    /// Adds usage of a name.
    pub(crate) fn add(&mut self, key: HashKey, name: Arc<str>, weights: Weights) {
        self.total.add(weights);
        let new = HeavyHitter {
            name,
            count: weights,
            error: Weights::ZERO,
        };
        self.upsert(key, new, Weights::ZERO);
    }

    /// Adds usage whose name is not known.
    pub(crate) fn add_unattributed(&mut self, weights: Weights) {
        self.total.add(weights);
        self.raise_cutoff(weights);
    }

    /// Adds all usage of another table.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.total.add(other.total);
        // A name that is not in the other table has used at most the other's cut-off there. A name
        // that is in it has used what the entry says.
        self.raise_cutoff(other.cutoff);
        for (key, entry) in &other.entries {
            self.upsert(*key, entry.clone(), other.cutoff);
        }
    }

    /// The table for another process.
    pub(crate) fn save(&self) -> SavedTable {
        let entries = self.entries.values();
        SavedTable {
            cutoff: self.cutoff.0,
            total: self.total.0,
            entries: entries
                .map(|entry| (entry.name.to_string(), entry.count.0, entry.error.0))
                .collect(),
        }
    }

    /// The table of another process. `key` hashes a name. `None` if it is larger than a table can
    /// be.
    pub(crate) fn restore(saved: &SavedTable, key: impl Fn(&str) -> HashKey) -> Option<Self> {
        if saved.entries.len() > MAX_ENTRIES {
            return None;
        }
        let entry = |(name, count, error): &(String, SavedWeights, SavedWeights)| {
            let entry = HeavyHitter {
                name: name.as_str().into(),
                count: Weights(*count),
                error: Weights(*error),
            };
            (key(name), entry)
        };
        Some(Self {
            max_entries: MAX_ENTRIES,
            entries: saved.entries.iter().map(entry).collect(),
            cutoff: Weights(saved.cutoff),
            total: Weights(saved.total),
        })
    }

    /// Empties the table for reuse.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.cutoff = Weights::ZERO;
        self.total = Weights::ZERO;
    }

    /// Returns a smaller copy to keep: only entries that are large in some measure. A table with
    /// few entries is copied whole.
    pub(crate) fn compact(&self) -> Self {
        let is_small = self.entries.len() <= COMPACT_ENTRIES;
        let cutoff = if is_small {
            self.cutoff
        } else {
            self.next_cutoff(COMPACT_ENTRIES)
        };
        let kept = self
            .entries
            .iter()
            .filter(|(_, entry)| is_small || entry.upper_bound().exceeds_any(cutoff));
        Self {
            max_entries: self.max_entries,
            entries: kept.map(|(key, entry)| (*key, entry.clone())).collect(),
            cutoff,
            total: self.total,
        }
    }

    fn raise_cutoff(&mut self, by: Weights) {
        if by == Weights::ZERO {
            return;
        }
        self.cutoff.add(by);
        for entry in self.entries.values_mut() {
            entry.error.add(by);
        }
    }

    /// Adds usage to an entry, or inserts it. `raised` is the part of the cut-off and of all errors
    /// that stands for this name's usage and is replaced by `new`.
    fn upsert(&mut self, key: HashKey, new: HeavyHitter, raised: Weights) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.count.add(new.count);
            entry.error = entry.error.saturating_sub(raised).saturating_add(new.error);
            return;
        }
        if self.entries.len() >= self.max_entries {
            self.evict();
        }
        let error = self.cutoff.saturating_sub(raised).saturating_add(new.error);
        self.entries.insert(key, HeavyHitter { error, ..new });
    }

    fn evict(&mut self) {
        let cutoff = self.next_cutoff(self.max_entries / 2);
        self.cutoff = cutoff;
        self.entries
            .retain(|_, entry| entry.upper_bound().exceeds_any(cutoff));
    }

    /// Returns the lowest cut-offs found that at most `room` entries exceed. The largest entries of
    /// the measures are mostly the same, so that more of each measure fit than its share.
    fn next_cutoff(&self, room: usize) -> Weights {
        let share = room / MEASURES;
        let mut n = room;
        loop {
            let cutoff = self.nth_bounds(n);
            let exceeds = |entry: &&HeavyHitter| entry.upper_bound().exceeds_any(cutoff);
            if n <= share || self.entries.values().filter(exceeds).count() <= room {
                return cutoff;
            }
            n = (n / 2).max(share);
        }
    }

    /// Returns for each measure the upper bound of the `n`th largest entry.
    fn nth_bounds(&self, n: usize) -> Weights {
        let mut cutoff = self.cutoff;
        let mut bounds = Vec::with_capacity(self.entries.len());
        for (measure, cutoff) in cutoff.0.iter_mut().enumerate() {
            bounds.clear();
            let bound = |entry: &HeavyHitter| entry.upper_bound().get(measure);
            bounds.extend(self.entries.values().map(bound));
            if (1..=bounds.len()).contains(&n) {
                let (_, nth, _) = bounds.select_nth_unstable_by(n - 1, |a, b| b.cmp(a));
                *cutoff = (*cutoff).max(*nth);
            }
        }
        cutoff
    }
}
