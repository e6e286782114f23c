//! A bounded map with exact LRU eviction, like `k8s.io/utils/lru`.
//!
//! Keys are 128-bit keyed hashes ([`LruKey`]), so that an entry has the same size for any client
//! name, and collisions cannot be searched for.
//!
//! There is one LRU for each limit, without shards: a sharded LRU evicts other keys than the single
//! LRU of kube-apiserver's plugin. Keys are computed before the lock is taken.

use std::num::NonZeroUsize;

use lru::LruCache;

use crate::rate::lru_key::LruKey;
use weir_base::hash_keys::BuildIdentityHasher;

/// At most so many values by key.
#[derive(Debug)]
pub struct Lru<V>(LruCache<LruKey, V, BuildIdentityHasher>);

/// Whether a key was in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LruOutcome {
    /// It was not, and was inserted.
    Inserted,
    /// It was not, and was inserted in place of the oldest.
    InsertedWithEviction,
    /// It was.
    Found,
}

impl<V> Lru<V> {
    /// The memory of an entry in bytes: its node with two links, and its slot in the index, which is
    /// half empty at worst.
    #[cfg(test)]
    pub const ENTRY_BYTES: usize =
        size_of::<(LruKey, V, [usize; 2])>() + 2 * (size_of::<[usize; 2]>() + 1);

    /// At most `capacity` values, at least one. Memory is taken as they come.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let mut values = LruCache::unbounded_with_hasher(BuildIdentityHasher::default());
        values.resize(NonZeroUsize::new(capacity).unwrap_or(NonZeroUsize::MIN));
        Self(values)
    }

    /// The number of values.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The value of the key, which becomes the newest. A missing value is inserted; in a full map
    /// the oldest is evicted.
    pub fn get_or_insert_with(
        &mut self,
        key: LruKey,
        make: impl FnOnce() -> V,
    ) -> (&mut V, LruOutcome) {
        let outcome = if self.0.contains(&key) {
            LruOutcome::Found
        } else if self.0.len() == self.0.cap().get() {
            LruOutcome::InsertedWithEviction
        } else {
            LruOutcome::Inserted
        };
        (self.0.get_or_insert_mut(key, make), outcome)
    }

    /// The value of the key, whose age does not change.
    pub fn get_mut(&mut self, key: LruKey) -> Option<&mut V> {
        self.0.peek_mut(&key)
    }

    /// The value that would be evicted next.
    #[must_use]
    pub fn oldest(&self) -> Option<&V> {
        self.0.peek_lru().map(|(_, value)| value)
    }

    /// Removes the least recently used value.
    pub fn pop_oldest(&mut self) -> Option<V> {
        self.0.pop_lru().map(|(_, value)| value)
    }

    /// Removes the value of the key.
    pub fn remove(&mut self, key: LruKey) -> Option<V> {
        self.0.pop(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::lru_key::LruKeyHasher;

    /// A slow model: a list, oldest first.
    struct LruModel {
        capacity: usize,
        list: Vec<(LruKey, u64)>,
    }

    impl LruModel {
        fn get_or_insert(&mut self, key: LruKey, value: u64) -> (u64, LruOutcome) {
            if let Some(at) = self.list.iter().position(|(k, _)| *k == key) {
                let entry = self.list.remove(at);
                self.list.push(entry);
                return (entry.1, LruOutcome::Found);
            }
            let outcome = if self.list.len() == self.capacity {
                self.list.remove(0);
                LruOutcome::InsertedWithEviction
            } else {
                LruOutcome::Inserted
            };
            self.list.push((key, value));
            (value, outcome)
        }
    }

    #[test]
    fn the_lru_evicts_the_same_keys_as_a_plain_list() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let keys = LruKeyHasher::default();
        for round in 0..200 {
            let capacity = random.usize(1..20);
            let (mut lru, mut model) = (
                Lru::new(capacity),
                LruModel {
                    capacity,
                    list: Vec::new(),
                },
            );
            for step in 0..500_u64 {
                let key = keys.hash_separate([&random.u32(0..30).to_be_bytes()[..]]);
                match random.u8(0..10) {
                    0 => {
                        let removed = model.list.iter().position(|(k, _)| *k == key);
                        let removed = removed.map(|at| model.list.remove(at).1);
                        assert_eq!(
                            lru.remove(key),
                            removed,
                            "seed {seed} round {round} step {step}"
                        );
                    }
                    1 => {
                        let removed = (!model.list.is_empty()).then(|| model.list.remove(0).1);
                        assert_eq!(
                            lru.pop_oldest(),
                            removed,
                            "seed {seed} round {round} step {step}"
                        );
                    }
                    _ => {
                        let (value, outcome) = lru.get_or_insert_with(key, || step);
                        let got = (*value, outcome);
                        assert_eq!(
                            got,
                            model.get_or_insert(key, step),
                            "seed {seed} round {round} step {step}"
                        );
                    }
                }
                assert_eq!(lru.count(), model.list.len());
                assert_eq!(lru.oldest(), model.list.first().map(|(_, value)| value));
            }
        }
    }

    #[test]
    fn texts_are_hashed_joined_or_separately() {
        let keys = LruKeyHasher::default();
        let texts = |a: &'static str, b: &'static str| [a.as_bytes(), b.as_bytes()];
        assert_eq!(
            keys.hash_joined(texts("ab", "c")),
            keys.hash_joined(texts("a", "bc"))
        );
        assert_ne!(
            keys.hash_separate(texts("ab", "c")),
            keys.hash_separate(texts("a", "bc"))
        );
        assert_ne!(
            LruKeyHasher::default().hash_joined(texts("a", "b")),
            keys.hash_joined(texts("a", "b")),
            "each process has its own"
        );
    }

    #[test]
    fn the_lru_never_exceeds_its_capacity() {
        let keys = LruKeyHasher::default();
        let mut lru = Lru::new(100);
        for n in 0..100_000_u32 {
            lru.get_or_insert_with(keys.hash_joined([&n.to_be_bytes()[..]]), || n);
        }
        assert_eq!(lru.count(), 100);
    }
}
