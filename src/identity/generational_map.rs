//! A bounded map of two generations: the older is dropped when the younger is full, and what is looked up in the older moves to the
//! younger. Pure.

use std::collections::HashMap;

use crate::identity::accepted_tokens::TokenHash;

/// Values by marks, each of some weight.
#[derive(Debug)]
pub(super) struct GenerationalMap<V> {
    max_entries: usize,
    max_weight: usize,
    newer: HashMap<TokenHash, WeightedEntry<V>>,
    older: HashMap<TokenHash, WeightedEntry<V>>,
    /// What the younger weighs.
    newer_weight: usize,
}

#[derive(Debug)]
struct WeightedEntry<V> {
    value: V,
    weight: usize,
}

impl<V> GenerationalMap<V> {
    /// Nothing yet; each of the two holds so many values, and so much weight (or a single one that weighs more).
    pub(super) fn new(most: usize, most_weight: usize) -> Self {
        Self {
            max_entries: most,
            max_weight: most_weight,
            newer: HashMap::new(),
            older: HashMap::new(),
            newer_weight: 0,
        }
    }

    /// What is there.
    pub(super) fn get(&mut self, mark: TokenHash) -> Option<&V> {
        if !self.newer.contains_key(&mark)
            && let Some(kept) = self.older.remove(&mark)
        {
            self.insert_entry(mark, kept);
        }
        self.newer.get(&mark).map(|kept| &kept.value)
    }

    /// Likewise, to be changed in its place.
    pub(super) fn get_mut(&mut self, mark: TokenHash) -> Option<&mut V> {
        let kept = match self.newer.get_mut(&mark) {
            Some(young) => Some(young),
            None => self.older.get_mut(&mark),
        };
        kept.map(|kept| &mut kept.value)
    }

    /// Puts it in, in the place of what was there.
    pub(super) fn insert(&mut self, mark: TokenHash, value: V, weight: usize) {
        self.remove(mark);
        self.insert_entry(mark, WeightedEntry { value, weight });
    }

    fn insert_entry(&mut self, mark: TokenHash, kept: WeightedEntry<V>) {
        if self.newer.len() >= self.max_entries
            || self.newer_weight.saturating_add(kept.weight) > self.max_weight
        {
            self.older = std::mem::take(&mut self.newer);
            self.newer_weight = 0;
        }
        self.newer_weight += kept.weight;
        self.newer.insert(mark, kept);
    }

    /// Takes it out.
    pub(super) fn remove(&mut self, mark: TokenHash) {
        if let Some(kept) = self.newer.remove(&mark) {
            self.newer_weight -= kept.weight;
        }
        self.older.remove(&mark);
    }

    /// How many there are.
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
