//! A bounded map that forgets what was not used for longest: exactly, as `k8s.io/utils/lru` does.
//!
//! Keys are 128-bit keyed hashes ([`LruKeyHasher`]), so that an entry has the same size whatever a client calls itself, and nobody
//! can look for two names that meet. All entries stand in one list from the newest to the oldest, linked by their numbers.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::hash::Hasher;
use std::hash::RandomState;

use siphasher::sip128::Hasher128;
use siphasher::sip128::SipHasher13;

use crate::hash_keys::BuildIdentityHasher;

/// Makes keys, by a secret of this process.
#[derive(Clone, Copy, Debug)]
pub struct LruKeyHasher(SipHasher13);

/// What stands for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LruKey(u128);

impl Default for LruKeyHasher {
    fn default() -> Self {
        let secret = RandomState::new();
        Self(SipHasher13::new_with_keys(
            secret.hash_one(0),
            secret.hash_one(1),
        ))
    }
}

impl LruKeyHasher {
    /// Of these texts, one behind the other, without anything between them.
    #[must_use]
    pub fn hash_joined<'t>(&self, texts: impl IntoIterator<Item = &'t [u8]>) -> LruKey {
        let mut hasher = self.0;
        for text in texts {
            hasher.write(text);
        }
        LruKey(hasher.finish128().as_u128())
    }

    /// Of these texts, told apart.
    #[must_use]
    pub fn hash_separate<'t>(&self, texts: impl IntoIterator<Item = &'t [u8]>) -> LruKey {
        let mut hasher = self.0;
        for text in texts {
            hasher.write_usize(text.len());
            hasher.write(text);
        }
        LruKey(hasher.finish128().as_u128())
    }
}

/// The end of the list.
const NIL: u32 = u32::MAX;

/// At most so many values by key.
#[derive(Debug)]
pub struct Lru<V> {
    capacity: usize,
    by_key: HashMap<LruKey, u32, BuildIdentityHasher>,
    /// All that are in use; one that goes is replaced by the last.
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

/// Whether a key was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LruOutcome {
    /// No, and now it is.
    Inserted,
    /// No, and the oldest had to go for it.
    InsertedWithEviction,
    /// Yes.
    Found,
}

impl<V> Lru<V> {
    /// What an entry costs, in bytes: itself and its place in the map, which is at worst half empty.
    pub const ENTRY_BYTES: usize = size_of::<LruEntry<V>>() + 2 * (size_of::<(LruKey, u32)>() + 1);

    /// At most `most` values (and no more than 2³² - 1), at least one.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            capacity: most.clamp(1, usize::try_from(NIL).unwrap_or(usize::MAX)),
            by_key: HashMap::default(),
            entries: Vec::new(),
            newest: NIL,
            oldest: NIL,
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of the key, now the newest; made if it is not there, in the place of the oldest if all are taken.
    #[expect(
        clippy::expect_used,
        reason = "the entry that was just found or made is there"
    )]
    pub fn get_or_insert_with(
        &mut self,
        key: LruKey,
        make: impl FnOnce() -> V,
    ) -> (&mut V, LruOutcome) {
        let (at, was) = match self.by_key.get(&key) {
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
        (&mut entry.value, was)
    }

    fn insert_newest(&mut self, key: LruKey, value: V) -> (u32, LruOutcome) {
        let was = if self.entries.len() >= self.capacity {
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
        (at, was)
    }

    /// The value of the key, which stays as old as it is.
    pub fn get_mut(&mut self, key: LruKey) -> Option<&mut V> {
        let at = *self.by_key.get(&key)?;
        self.entry(at).map(|entry| &mut entry.value)
    }

    /// The one that would go next.
    #[must_use]
    pub fn oldest(&self) -> Option<&V> {
        let at = usize::try_from(self.oldest).ok()?;
        self.entries.get(at).map(|entry| &entry.value)
    }

    /// Forgets the one that was not used for longest.
    pub fn pop_oldest(&mut self) -> Option<V> {
        let key = self.entry(self.oldest)?.key;
        self.remove(key)
    }

    /// Forgets this one.
    pub fn remove(&mut self, key: LruKey) -> Option<V> {
        let at = self.by_key.remove(&key)?;
        self.unlink(at);
        let index = usize::try_from(at).ok()?;
        let gone = self.entries.swap_remove(index);
        if let Some(moved) = self.entries.get(index) {
            let LruEntry {
                key, newer, older, ..
            } = *moved;
            self.by_key.insert(key, at);
            self.set_older(newer, at);
            self.set_newer(older, at);
        }
        Some(gone.value)
    }

    fn entry(&mut self, at: u32) -> Option<&mut LruEntry<V>> {
        self.entries.get_mut(usize::try_from(at).ok()?)
    }

    /// What is older than `at`; the newest of all if `at` is none.
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

    /// At the newest end.
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

    /// The slow way: a list, oldest first.
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
            let was = if self.list.len() == self.capacity {
                self.list.remove(0);
                LruOutcome::InsertedWithEviction
            } else {
                LruOutcome::Inserted
            };
            self.list.push((key, value));
            (value, was)
        }
    }

    #[test]
    fn the_lru_evicts_the_same_keys_as_a_plain_list() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let keys = LruKeyHasher::default();
        for round in 0..200 {
            let most = random.usize(1..20);
            let (mut lru, mut model) = (
                Lru::new(most),
                LruModel {
                    capacity: most,
                    list: Vec::new(),
                },
            );
            for step in 0..500_u64 {
                let key = keys.hash_separate([&random.u32(0..30).to_be_bytes()[..]]);
                match random.u8(0..10) {
                    0 => {
                        let gone = model.list.iter().position(|(k, _)| *k == key);
                        let gone = gone.map(|at| model.list.remove(at).1);
                        assert_eq!(
                            lru.remove(key),
                            gone,
                            "seed {seed} round {round} step {step}"
                        );
                    }
                    1 => {
                        let gone = (!model.list.is_empty()).then(|| model.list.remove(0).1);
                        assert_eq!(
                            lru.pop_oldest(),
                            gone,
                            "seed {seed} round {round} step {step}"
                        );
                    }
                    _ => {
                        let (value, was) = lru.get_or_insert_with(key, || step);
                        let got = (*value, was);
                        assert_eq!(
                            got,
                            model.get_or_insert(key, step),
                            "seed {seed} round {round} step {step}"
                        );
                    }
                }
                assert_eq!(lru.len(), model.list.len());
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
        assert_eq!(lru.len(), 100);
        assert!(lru.entries.capacity() <= 128 && lru.by_key.capacity() <= 256);
    }
}
