//! Who does most, in bounded memory: a table that forgets the least of each measure when it is full.
//!
//! It is Misra and Gries' algorithm of 1982 for several measures at once, made to keep what it has counted, in batches. The
//! table keeps a *floor* for each measure: whoever is not in the table has done no more than that. When the table is full, the
//! floor rises to what the nth of the measure may have done, and whoever is above no floor goes; n is as large as leaves half
//! of the table free, and never less than [`KEPT`]. Who comes anew may have done as much as the floor before: that is the new
//! entry's *error*. What is counted for an entry is so never too much, and too little by at most its error.
//!
//! **The bound.** No floor is higher than all that was done, divided by [`KEPT`]. For, call an entry's excess how far count
//! and error together are above the floor. Whatever is done adds at most itself to the sum of all excesses, and a rise of the
//! floor by `d` takes `d` from each of at least [`KEPT`] of them; a sum does not fall below 0. Tables that are added up
//! keep this: floors add up, and so do sums.
//!
//! **Exact where it can be**: until the table is full for the first time, floors and errors are 0. Few clusters fill it.
//!
//! Each measure has its own floor, and one is enough to stay: who reads much with few requests is kept for the bytes.

use std::sync::Arc;

use super::weights::MEASURES;
use super::weights::Weights;
use crate::hash_keys::HashKey;
use crate::hash_keys::HashKeyMap;

/// So many of each measure are kept at least when there are too many: more than anyone reads, and an error of at most 2 %.
pub(super) const MIN_KEPT_PER_MEASURE: usize = 50;

/// Most entries: what a hash table of 1024 places takes. Half of them are free again after each clearance, so that its cost is
/// shared by at least 448 newcomers.
pub(super) const MAX_ENTRIES: usize = 896;

/// So many are kept of a table that is closed: each measure's share is [`KEPT`].
const COMPACT_ENTRIES: usize = MEASURES * MIN_KEPT_PER_MEASURE;

/// Somebody, and what was done.
#[derive(Clone, Debug)]
pub(super) struct HeavyHitter {
    /// Who.
    pub(super) name: Arc<str>,
    /// At least.
    pub(super) count: Weights,
    /// So much more at most.
    pub(super) error: Weights,
}

impl HeavyHitter {
    fn upper_bound(&self) -> Weights {
        self.count.saturating_add(self.error)
    }
}

/// Some time's entries.
#[derive(Clone, Debug)]
pub(super) struct HeavyHitters {
    max_entries: usize,
    entries: HashKeyMap<HeavyHitter>,
    cutoff: Weights,
    total: Weights,
}

impl HeavyHitters {
    /// An empty one of at most `most` entries, which must have room for [`KEPT`] of each measure in its half.
    pub(super) fn new(most: usize) -> Self {
        Self {
            max_entries: most,
            entries: HashKeyMap::default(),
            cutoff: Weights::ZERO,
            total: Weights::ZERO,
        }
    }

    /// All entries, in no order.
    pub(super) fn entries(&self) -> impl Iterator<Item = &HeavyHitter> {
        self.entries.values()
    }

    /// What anybody else has done at most.
    pub(super) const fn cutoff(&self) -> Weights {
        self.cutoff
    }

    /// What all have done together; exact.
    pub(super) const fn total(&self) -> Weights {
        self.total
    }

    /// More was done, by the one of that name.
    pub(super) fn add(&mut self, key: HashKey, name: Arc<str>, more: Weights) {
        self.total.add(more);
        let new = HeavyHitter {
            name,
            count: more,
            error: Weights::ZERO,
        };
        self.upsert(key, new, Weights::ZERO);
    }

    /// More was done, and it is not known by whom.
    pub(super) fn add_unattributed(&mut self, more: Weights) {
        self.total.add(more);
        self.raise_cutoff(more);
    }

    /// Everything that another table has.
    pub(super) fn merge(&mut self, other: &Self) {
        self.total.add(other.total);
        // Whoever is not in the other may have done as much as its floor there; who is, as much as is said there.
        self.raise_cutoff(other.cutoff);
        for (key, entry) in &other.entries {
            self.upsert(*key, entry.clone(), other.cutoff);
        }
    }

    /// Empty again, for the next.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.cutoff = Weights::ZERO;
        self.total = Weights::ZERO;
    }

    /// To be kept: without those who matter in no measure, unless they are few.
    pub(super) fn compact(&self) -> Self {
        let few = self.entries.len() <= COMPACT_ENTRIES;
        let floor = if few {
            self.cutoff
        } else {
            self.next_cutoff(COMPACT_ENTRIES)
        };
        let staying = self
            .entries
            .iter()
            .filter(|(_, entry)| few || entry.upper_bound().exceeds_any(floor));
        Self {
            max_entries: self.max_entries,
            entries: staying.map(|(key, entry)| (*key, entry.clone())).collect(),
            cutoff: floor,
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

    /// `raised` of the floor and of all errors stands for what this very entry says.
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
        let floor = self.next_cutoff(self.max_entries / 2);
        self.cutoff = floor;
        self.entries
            .retain(|_, entry| entry.upper_bound().exceeds_any(floor));
    }

    /// The lowest floors found above which there are no more than `room` entries. The measures mostly have the same entries on
    /// top, so that there is room for more of each than its share.
    fn next_cutoff(&self, room: usize) -> Weights {
        let share = room / MEASURES;
        let mut each = room;
        loop {
            let floor = self.nth_bounds(each);
            let above = |entry: &&HeavyHitter| entry.upper_bound().exceeds_any(floor);
            if each <= share || self.entries.values().filter(above).count() <= room {
                return floor;
            }
            each = (each / 2).max(share);
        }
    }

    /// For each measure, what the `n`th may have done.
    fn nth_bounds(&self, n: usize) -> Weights {
        let mut floor = self.cutoff;
        let mut all = Vec::with_capacity(self.entries.len());
        for (measure, floor) in floor.0.iter_mut().enumerate() {
            all.clear();
            let of = |entry: &HeavyHitter| entry.upper_bound().get(measure);
            all.extend(self.entries.values().map(of));
            if (1..=all.len()).contains(&n) {
                let (_, nth, _) = all.select_nth_unstable_by(n - 1, |a, b| b.cmp(a));
                *floor = (*floor).max(*nth);
            }
        }
        floor
    }
}
