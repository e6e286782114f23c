//! A bounded map with exact LRU eviction, like `k8s.io/utils/lru`.
//!
//! Keys are 128-bit keyed hashes ([`LruKey`]), so that an entry has the same size for any client
//! name, and collisions cannot be searched for. The entries form one list from the newest to the
//! oldest, linked by index.
//!
//! There is one LRU for each limit, without shards: a sharded LRU evicts other keys than the single
//! LRU of kube-apiserver's plugin. Keys are computed before the lock is taken.

use std::collections::HashMap;

use crate::rate::lru_key::LruKey;
use weir_base::hash_keys::BuildIdentityHasher;
use weir_kubernetes::numeric::saturating_usize;

/// The index at both ends of the list.
const NIL: u32 = u32::MAX;

/// At most `capacity` values by key.
#[derive(Debug)]
pub struct Lru<V> {
    capacity: usize,
    by_key: HashMap<LruKey, u32, BuildIdentityHasher>,
    /// All entries. A removed entry is replaced by the last one.
    entries: Vec<LruEntry<V>>,
    newest: u32,
    oldest: u32,
}

#[derive(Debug)]
struct LruEntry<V> {
    key: LruKey,
    newer: u32,
    older: u32,
    value: V,
}

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
    /// The memory of an entry in bytes, with its slot in the index, which is half empty at worst.
    #[cfg(test)]
    pub const ENTRY_BYTES: usize = size_of::<LruEntry<V>>() + 2 * (size_of::<(LruKey, u32)>() + 1);

    /// At most `capacity` values, at least one and at most 2³² - 1.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.clamp(1, saturating_usize(NIL)),
            by_key: HashMap::default(),
            entries: Vec::new(),
            newest: NIL,
            oldest: NIL,
        }
    }

    /// The number of values.
    #[must_use]
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// The value of the key, which becomes the newest. A missing value is inserted; in a full map
    /// the oldest is evicted.
    #[expect(
        clippy::expect_used,
        reason = "the entry that was just found or made is there"
    )]
    pub fn get_or_insert_with(
        &mut self,
        key: LruKey,
        make: impl FnOnce() -> V,
    ) -> (&mut V, LruOutcome) {
        let (at, outcome) = match self.by_key.get(&key) {
            Some(&at) => {
                if at != self.newest {
                    self.unlink(at);
                    self.link_newest(at);
                }
                (at, LruOutcome::Found)
            }
            None => self.insert_newest(key, make()),
        };
        let entry = self.entry(at).expect("an entry for each key");
        (&mut entry.value, outcome)
    }

    fn insert_newest(&mut self, key: LruKey, value: V) -> (u32, LruOutcome) {
        let outcome = if self.entries.len() >= self.capacity {
            self.pop_oldest();
            LruOutcome::InsertedWithEviction
        } else {
            LruOutcome::Inserted
        };
        let at = u32::try_from(self.entries.len()).unwrap_or(NIL);
        self.entries.push(LruEntry {
            key,
            newer: NIL,
            older: NIL,
            value,
        });
        self.by_key.insert(key, at);
        self.link_newest(at);
        (at, outcome)
    }

    /// The value of the key, whose age does not change.
    pub fn get_mut(&mut self, key: LruKey) -> Option<&mut V> {
        let at = *self.by_key.get(&key)?;
        self.entry(at).map(|entry| &mut entry.value)
    }

    /// The value that would be evicted next.
    #[must_use]
    pub fn oldest(&self) -> Option<&V> {
        let at = usize::try_from(self.oldest).ok()?;
        self.entries.get(at).map(|entry| &entry.value)
    }

    /// Removes the least recently used value.
    pub fn pop_oldest(&mut self) -> Option<V> {
        let key = self.entry(self.oldest)?.key;
        self.remove(key)
    }

    /// Removes the value of the key.
    pub fn remove(&mut self, key: LruKey) -> Option<V> {
        let at = self.by_key.remove(&key)?;
        self.unlink(at);
        let index = usize::try_from(at).ok()?;
        let removed = self.entries.swap_remove(index);
        if let Some(moved) = self.entries.get(index) {
            let LruEntry {
                key, newer, older, ..
            } = *moved;
            self.by_key.insert(key, at);
            self.set_older(newer, at);
            self.set_newer(older, at);
        }
        Some(removed.value)
    }

    fn entry(&mut self, at: u32) -> Option<&mut LruEntry<V>> {
        self.entries.get_mut(usize::try_from(at).ok()?)
    }

    /// Sets the older neighbour of `at`; sets the newest entry if `at` is [`NIL`].
    fn set_older(&mut self, at: u32, older: u32) {
        match self.entry(at) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
    }

    fn set_newer(&mut self, at: u32, newer: u32) {
        match self.entry(at) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn unlink(&mut self, at: u32) {
        let Some(&mut LruEntry { newer, older, .. }) = self.entry(at) else {
            return;
        };
        self.set_older(newer, older);
        self.set_newer(older, newer);
    }

    /// Links an entry as the newest.
    fn link_newest(&mut self, at: u32) {
        let second = self.newest;
        if let Some(entry) = self.entry(at) {
            (entry.newer, entry.older) = (NIL, second);
        }
        self.set_newer(second, at);
        self.newest = at;
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
        assert!(lru.entries.capacity() <= 128 && lru.by_key.capacity() <= 256);
    }
}
