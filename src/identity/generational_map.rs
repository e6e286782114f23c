//! A bounded map of two generations. The older generation is dropped when the newer one is full,
//! and a lookup moves an entry from the older to the newer. Pure.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::identity::token_hash::TokenHash;

/// Values by token hash, each with a weight.
///
/// The maps need no random state of their own: no client can choose or predict a token's hash.
#[derive(Debug)]
pub(super) struct GenerationalMap<V> {
    max_entries: usize,
    max_weight: usize,
    newer: HashMap<TokenHash, WeightedEntry<V>, FixedState>,
    older: HashMap<TokenHash, WeightedEntry<V>, FixedState>,
    /// The total weight of the newer generation.
    newer_weight: usize,
}

#[derive(Debug)]
struct WeightedEntry<V> {
    value: V,
    weight: usize,
}

impl<V> GenerationalMap<V> {
    /// An empty map. Each generation holds at most `max_entries` values of a total weight of
    /// `max_weight`, or a single heavier one.
    pub(super) fn new(max_entries: usize, max_weight: usize) -> Self {
        Self {
            max_entries,
            max_weight,
            newer: HashMap::default(),
            older: HashMap::default(),
            newer_weight: 0,
        }
    }

    /// Returns the value and moves it to the newer generation.
    pub(super) fn get(&mut self, key: TokenHash) -> Option<&V> {
        if !self.newer.contains_key(&key)
            && let Some(entry) = self.older.remove(&key)
        {
            self.insert_entry(key, entry);
        }
        self.newer.get(&key).map(|entry| &entry.value)
    }

    /// Returns the value for modification. Does not move it.
    pub(super) fn get_mut(&mut self, key: TokenHash) -> Option<&mut V> {
        let entry = match self.newer.get_mut(&key) {
            Some(entry) => Some(entry),
            None => self.older.get_mut(&key),
        };
        entry.map(|entry| &mut entry.value)
    }

    /// Inserts a value and replaces the previous one.
    pub(super) fn insert(&mut self, key: TokenHash, value: V, weight: usize) {
        self.remove(key);
        self.insert_entry(key, WeightedEntry { value, weight });
    }

    fn insert_entry(&mut self, key: TokenHash, entry: WeightedEntry<V>) {
        if self.newer.len() >= self.max_entries
            || self.newer_weight.saturating_add(entry.weight) > self.max_weight
        {
            self.older = std::mem::take(&mut self.newer);
            self.newer_weight = 0;
        }
        self.newer_weight += entry.weight;
        self.newer.insert(key, entry);
    }

    /// Removes a value.
    pub(super) fn remove(&mut self, key: TokenHash) {
        if let Some(entry) = self.newer.remove(&key) {
            self.newer_weight -= entry.weight;
        }
        self.older.remove(&key);
    }

    /// All values, for modification.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        let all = self.newer.values_mut().chain(self.older.values_mut());
        all.map(|entry| &mut entry.value)
    }

    /// The number of values in both generations.
    pub(super) fn len(&self) -> usize {
        self.newer.len() + self.older.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u128) -> TokenHash {
        TokenHash::from_bits(n)
    }

    #[test]
    fn used_entries_stay_and_unused_ones_are_evicted() {
        let mut map = GenerationalMap::new(10, usize::MAX);
        map.insert(hash(0), 0, 0);
        for n in 1..1000 {
            map.insert(hash(n), n, 0);
            assert_eq!(map.get(hash(0)), Some(&0));
            assert!(map.len() <= 20);
        }
        assert_eq!(map.get(hash(1)), None);
    }

    #[test]
    fn moving_an_entry_to_the_newer_generation_keeps_its_weight() {
        let mut map = GenerationalMap::new(1000, 10);
        for n in 0..1000 {
            map.insert(hash(n), (), 1);
            for used in 0..=n {
                let _ = map.get(hash(used));
            }
            assert!(map.len() <= 20, "{}", map.len());
        }
        map.insert(hash(5), (), 1);
        map.remove(hash(5));
        assert!(map.get(hash(5)).is_none() && map.get_mut(hash(5)).is_none());
    }

    #[test]
    fn replacing_an_entry_subtracts_its_weight() {
        let mut map = GenerationalMap::new(1000, 10);
        map.insert(hash(1), 1, 1);
        for n in 0..100 {
            map.insert(hash(2), n, 5);
        }
        assert_eq!(map.get(hash(1)), Some(&1));
        assert_eq!(map.get(hash(2)), Some(&99));
        assert!(map.older.is_empty());
    }
}
