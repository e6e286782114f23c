//! A bounded map of two generations. The older generation is dropped when the newer one is full,
//! and a lookup moves an entry from the older to the newer. Pure.

use std::collections::HashMap;
use std::hash::Hash;

use crate::hash_keys::BuildIdentityHasher;

/// Values by keys that are hashes already, and that no client can choose. Each has a weight.
#[derive(Debug)]
pub struct GenerationalMap<K, V> {
    max_entries: usize,
    max_weight: usize,
    newer: HashMap<K, WeightedEntry<V>, BuildIdentityHasher>,
    older: HashMap<K, WeightedEntry<V>, BuildIdentityHasher>,
    /// The total weight of the newer generation.
    newer_weight: usize,
}

#[derive(Debug)]
struct WeightedEntry<V> {
    value: V,
    weight: usize,
}

impl<K: Copy + Eq + Hash, V> GenerationalMap<K, V> {
    /// An empty map. Each generation holds at most `max_entries` values of a total weight of
    /// `max_weight`, or a single heavier one.
    #[must_use]
    pub fn new(max_entries: usize, max_weight: usize) -> Self {
        Self {
            max_entries,
            max_weight,
            newer: HashMap::default(),
            older: HashMap::default(),
            newer_weight: 0,
        }
    }

    /// Returns the value and moves it to the newer generation.
    pub fn get(&mut self, key: K) -> Option<&V> {
        if !self.newer.contains_key(&key)
            && let Some(entry) = self.older.remove(&key)
        {
            self.insert_entry(key, entry);
        }
        self.newer.get(&key).map(|entry| &entry.value)
    }

    /// Returns the value for modification and moves it to the newer generation. A missing value is
    /// inserted, without a weight.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let earlier = self.older.remove(&key);
        if !self.newer.contains_key(&key) {
            self.make_room(earlier.as_ref().map_or(0, |entry| entry.weight));
        }
        let entry = self.newer.entry(key).or_insert_with(|| {
            earlier.unwrap_or_else(|| WeightedEntry {
                value: make(),
                weight: 0,
            })
        });
        &mut entry.value
    }

    /// Returns the value for modification. Does not move it.
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let entry = match self.newer.get_mut(&key) {
            Some(entry) => Some(entry),
            None => self.older.get_mut(&key),
        };
        entry.map(|entry| &mut entry.value)
    }

    /// Inserts a value and replaces the previous one.
    pub fn insert(&mut self, key: K, value: V, weight: usize) {
        self.remove(key);
        self.insert_entry(key, WeightedEntry { value, weight });
    }

    fn insert_entry(&mut self, key: K, entry: WeightedEntry<V>) {
        self.make_room(entry.weight);
        self.newer.insert(key, entry);
    }

    /// Makes room for an entry of this weight, and counts it.
    fn make_room(&mut self, weight: usize) {
        if self.newer.len() >= self.max_entries
            || self.newer_weight.saturating_add(weight) > self.max_weight
        {
            self.older = std::mem::take(&mut self.newer);
            self.newer_weight = 0;
        }
        self.newer_weight += weight;
    }

    /// Removes a value.
    pub fn remove(&mut self, key: K) {
        if let Some(entry) = self.newer.remove(&key) {
            self.newer_weight -= entry.weight;
        }
        self.older.remove(&key);
    }

    /// All values, for modification.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        let all = self.newer.values_mut().chain(self.older.values_mut());
        all.map(|entry| &mut entry.value)
    }

    /// The number of values in both generations.
    #[must_use]
    pub fn count(&self) -> usize {
        self.newer.len() + self.older.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_entries_stay_and_unused_ones_are_evicted() {
        let mut map = GenerationalMap::new(10, usize::MAX);
        map.insert(0, 0, 0);
        for n in 1..1000 {
            map.insert(n, n, 0);
            assert_eq!(map.get(0), Some(&0));
            assert!(map.count() <= 20);
        }
        assert_eq!(map.get(1), None);
        map.insert(0, 7, 0);
        for n in 1..1000 {
            assert_eq!(*map.get_or_insert_with(n, || 2 * n), 2 * n);
            *map.get_or_insert_with(0, || 0) += 1;
            assert!(map.count() <= 20);
        }
        assert_eq!(map.get(0), Some(&1006));
    }

    #[test]
    fn moving_an_entry_to_the_newer_generation_keeps_its_weight() {
        let mut map = GenerationalMap::new(1000, 10);
        for n in 0..1000 {
            map.insert(n, (), 1);
            for used in 0..=n {
                let _ = map.get(used);
            }
            assert!(map.count() <= 20, "{}", map.count());
        }
        map.insert(5, (), 1);
        map.remove(5);
        assert!(map.get(5).is_none() && map.get_mut(5).is_none());
    }

    #[test]
    fn replacing_an_entry_subtracts_its_weight() {
        let mut map = GenerationalMap::new(1000, 10);
        map.insert(1, 1, 1);
        for n in 0..100 {
            map.insert(2, n, 5);
        }
        assert_eq!(map.get(1), Some(&1));
        assert_eq!(map.get(2), Some(&99));
        assert!(map.older.is_empty());
    }
}
