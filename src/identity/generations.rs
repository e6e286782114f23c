//! A bounded map of two generations: the older is dropped when the younger is full, and what is looked up in the older moves to the
//! younger. Pure.

use std::collections::HashMap;

use crate::identity::proven::Mark;

/// Values by marks, each of some weight.
#[derive(Debug)]
pub(super) struct Generations<V> {
    most: usize,
    most_weight: usize,
    young: HashMap<Mark, Kept<V>>,
    old: HashMap<Mark, Kept<V>>,
    /// What the younger weighs.
    weight: usize,
}

#[derive(Debug)]
struct Kept<V> {
    value: V,
    weight: usize,
}

impl<V> Generations<V> {
    /// Nothing yet; each of the two holds so many values, and so much weight (or a single one that weighs more).
    pub(super) fn new(most: usize, most_weight: usize) -> Self {
        Self {
            most,
            most_weight,
            young: HashMap::new(),
            old: HashMap::new(),
            weight: 0,
        }
    }

    /// What is there.
    pub(super) fn get(&mut self, mark: Mark) -> Option<&V> {
        if !self.young.contains_key(&mark)
            && let Some(kept) = self.old.remove(&mark)
        {
            self.put(mark, kept);
        }
        self.young.get(&mark).map(|kept| &kept.value)
    }

    /// Likewise, to be changed in its place.
    pub(super) fn get_mut(&mut self, mark: Mark) -> Option<&mut V> {
        let kept = match self.young.get_mut(&mark) {
            Some(young) => Some(young),
            None => self.old.get_mut(&mark),
        };
        kept.map(|kept| &mut kept.value)
    }

    /// Puts it in, in the place of what was there.
    pub(super) fn insert(&mut self, mark: Mark, value: V, weight: usize) {
        self.remove(mark);
        self.put(mark, Kept { value, weight });
    }

    fn put(&mut self, mark: Mark, kept: Kept<V>) {
        if self.young.len() >= self.most
            || self.weight.saturating_add(kept.weight) > self.most_weight
        {
            self.old = std::mem::take(&mut self.young);
            self.weight = 0;
        }
        self.weight += kept.weight;
        self.young.insert(mark, kept);
    }

    /// Takes it out.
    pub(super) fn remove(&mut self, mark: Mark) {
        if let Some(kept) = self.young.remove(&mark) {
            self.weight -= kept.weight;
        }
        self.old.remove(&mark);
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(n: u128) -> Mark {
        Mark::of(n)
    }

    #[test]
    fn what_is_used_stays_and_the_rest_goes() {
        let mut map = Generations::new(10, usize::MAX);
        map.insert(mark(0), 0, 0);
        for n in 1..1000 {
            map.insert(mark(n), n, 0);
            assert_eq!(map.get(mark(0)), Some(&0));
            assert!(map.len() <= 20);
        }
        assert_eq!(map.get(mark(1)), None);
    }

    #[test]
    fn what_is_used_all_the_time_weighs_no_less_for_that() {
        let mut map = Generations::new(1000, 10);
        for n in 0..1000 {
            map.insert(mark(n), (), 1);
            for used in 0..=n {
                let _ = map.get(mark(used));
            }
            assert!(map.len() <= 20, "{}", map.len());
        }
        map.insert(mark(5), (), 1);
        map.remove(mark(5));
        assert!(map.get(mark(5)).is_none() && map.get_mut(mark(5)).is_none());
    }

    #[test]
    fn what_takes_another_s_place_takes_its_weight_off() {
        let mut map = Generations::new(1000, 10);
        map.insert(mark(1), 1, 1);
        for n in 0..100 {
            map.insert(mark(2), n, 5);
        }
        assert_eq!(map.get(mark(1)), Some(&1));
        assert_eq!(map.get(mark(2)), Some(&99));
        assert!(map.old.is_empty());
    }
}
