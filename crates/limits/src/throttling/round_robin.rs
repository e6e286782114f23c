//! Queues that take turns: one queue for each key, so that a key with many items delays the item of
//! another by one item. Pure.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;

/// The queue of one key.
pub trait TurnQueue: Default {
    /// The number of its items.
    fn len(&self) -> usize;

    /// Whether it has none.
    fn is_empty(&self) -> bool;
}

impl<T> TurnQueue for VecDeque<T> {
    fn len(&self) -> usize {
        self.len()
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl<K: Ord, T> TurnQueue for BTreeMap<K, T> {
    fn len(&self) -> usize {
        self.len()
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

/// Turns within a turn: the connections of an address.
impl<K: Clone + Eq + Hash, Q: TurnQueue> TurnQueue for RoundRobin<K, Q> {
    fn len(&self) -> usize {
        self.queues.values().map(TurnQueue::len).sum()
    }

    fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

/// The queues by their keys. A queue without items is removed.
#[derive(Debug)]
pub struct RoundRobin<K, Q> {
    /// The keys of all queues, the next first.
    turns: VecDeque<K>,
    queues: HashMap<K, Q>,
}

impl<K, Q> Default for RoundRobin<K, Q> {
    fn default() -> Self {
        Self {
            turns: VecDeque::new(),
            queues: HashMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash, Q: TurnQueue> RoundRobin<K, Q> {
    /// The number of items of this key.
    pub fn len_of(&self, key: &K) -> usize {
        self.queues.get(key).map_or(0, TurnQueue::len)
    }

    /// The queue of this key, for an item that the caller adds. A new key has the last turn.
    pub fn queue_of(&mut self, key: K) -> &mut Q {
        match self.queues.entry(key) {
            Entry::Occupied(queue) => queue.into_mut(),
            Entry::Vacant(vacant) => {
                self.turns.push_back(vacant.key().clone());
                vacant.insert(Q::default())
            }
        }
    }

    /// Takes an item from the queue whose turn it is. Its next turn is the last.
    pub fn take_next<T>(&mut self, take: impl FnOnce(&mut Q) -> Option<T>) -> Option<T> {
        let key = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&key)?;
        let item = take(queue);
        if queue.is_empty() {
            self.queues.remove(&key);
        } else {
            self.turns.push_back(key);
        }
        item
    }

    /// Takes an item out of turn.
    pub fn take_of<T>(&mut self, key: &K, take: impl FnOnce(&mut Q) -> Option<T>) -> Option<T> {
        let queue = self.queues.get_mut(key)?;
        let item = take(queue);
        if queue.is_empty() {
            self.queues.remove(key);
            self.turns.retain(|other| other != key);
        }
        item
    }

    /// The key with the most items, and their number.
    pub fn longest(&self) -> Option<(&K, usize)> {
        self.queues
            .iter()
            .map(|(key, queue)| (key, queue.len()))
            .max_by_key(|(_, length)| *length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Queues = RoundRobin<&'static str, VecDeque<u32>>;

    fn queues(items: &[(&'static str, u32)]) -> Queues {
        let mut queues = Queues::default();
        for (key, item) in items {
            queues.queue_of(key).push_back(*item);
        }
        queues
    }

    #[test]
    fn keys_take_turns_and_the_items_of_a_key_stay_in_order() {
        let mut queues = queues(&[("a", 1), ("a", 2), ("b", 3), ("a", 4), ("b", 5)]);
        let mut next = || queues.take_next(VecDeque::pop_front);
        let taken: Vec<_> = std::iter::from_fn(&mut next).collect();
        assert_eq!(taken, [1, 3, 2, 5, 4]);
        assert!(queues.is_empty() && queues.queues.is_empty());
    }

    #[test]
    fn a_key_whose_last_item_is_taken_out_of_turn_has_no_turn() {
        let mut queues = queues(&[("a", 1), ("b", 2), ("b", 3)]);
        assert_eq!(queues.longest(), Some((&"b", 2)));
        assert_eq!(queues.take_of(&"a", VecDeque::pop_back), Some(1));
        assert_eq!(queues.take_of(&"a", VecDeque::pop_back), None);
        assert_eq!(queues.take_of(&"b", VecDeque::pop_back), Some(3));
        assert_eq!((queues.len(), queues.len_of(&"b")), (1, 1));
        assert_eq!(queues.take_next(VecDeque::pop_front), Some(2));
        assert!(queues.is_empty() && queues.queues.is_empty());
    }
}
