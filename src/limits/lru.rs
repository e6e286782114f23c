//! A bounded map that forgets what was not used for longest: exactly, as `k8s.io/utils/lru` does.
//!
//! Keys are 128-bit keyed hashes ([`Keys`]), so that an entry has the same size whatever a client calls itself, and nobody
//! can look for two names that meet. All entries stand in one list from the newest to the oldest, linked by their numbers.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::hash::Hasher;
use std::hash::RandomState;

use siphasher::sip128::Hasher128;
use siphasher::sip128::SipHasher13;

use crate::keyed::AsTheyAre;

/// Makes keys, by a secret of this process.
#[derive(Clone, Copy, Debug)]
pub struct Keys(SipHasher13);

/// What stands for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(u128);

impl Default for Keys {
    fn default() -> Self {
        let secret = RandomState::new();
        Self(SipHasher13::new_with_keys(
            secret.hash_one(0),
            secret.hash_one(1),
        ))
    }
}

impl Keys {
    /// Of these texts, one behind the other, without anything between them.
    #[must_use]
    pub fn joined<'t>(&self, texts: impl IntoIterator<Item = &'t [u8]>) -> Key {
        let mut hasher = self.0;
        for text in texts {
            hasher.write(text);
        }
        Key(hasher.finish128().as_u128())
    }

    /// Of these texts, told apart.
    #[must_use]
    pub fn apart<'t>(&self, texts: impl IntoIterator<Item = &'t [u8]>) -> Key {
        let mut hasher = self.0;
        for text in texts {
            hasher.write_usize(text.len());
            hasher.write(text);
        }
        Key(hasher.finish128().as_u128())
    }
}

/// The end of the list.
const NONE: u32 = u32::MAX;

/// At most so many values by key.
#[derive(Debug)]
pub struct Lru<V> {
    most: usize,
    by_key: HashMap<Key, u32, AsTheyAre>,
    /// All that are in use; one that goes is replaced by the last.
    entries: Vec<Entry<V>>,
    newest: u32,
    oldest: u32,
}

#[derive(Debug)]
struct Entry<V> {
    key: Key,
    newer: u32,
    older: u32,
    value: V,
}

/// Whether a key was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Was {
    /// No, and now it is.
    Absent,
    /// No, and the oldest had to go for it.
    AbsentAndFull,
    /// Yes.
    There,
}

impl<V> Lru<V> {
    /// What an entry costs, in bytes: itself and its place in the map, which is at worst half empty.
    pub const ENTRY: usize = size_of::<Entry<V>>() + 2 * (size_of::<(Key, u32)>() + 1);

    /// At most `most` values (and no more than 2³² - 1), at least one.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most: most.clamp(1, usize::try_from(NONE).unwrap_or(usize::MAX)),
            by_key: HashMap::default(),
            entries: Vec::new(),
            newest: NONE,
            oldest: NONE,
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
    pub fn touch(&mut self, key: Key, make: impl FnOnce() -> V) -> (&mut V, Was) {
        let (at, was) = match self.by_key.get(&key) {
            Some(&at) => {
                if at != self.newest {
                    self.unlink(at);
                    self.link(at);
                }
                (at, Was::There)
            }
            None => self.add(key, make()),
        };
        let entry = self.entry(at).expect("an entry for each key");
        (&mut entry.value, was)
    }

    fn add(&mut self, key: Key, value: V) -> (u32, Was) {
        let was = if self.entries.len() >= self.most {
            self.pop_oldest();
            Was::AbsentAndFull
        } else {
            Was::Absent
        };
        let at = u32::try_from(self.entries.len()).unwrap_or(NONE);
        self.entries.push(Entry {
            key,
            newer: NONE,
            older: NONE,
            value,
        });
        self.by_key.insert(key, at);
        self.link(at);
        (at, was)
    }

    /// The value of the key, which stays as old as it is.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut V> {
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
    pub fn remove(&mut self, key: Key) -> Option<V> {
        let at = self.by_key.remove(&key)?;
        self.unlink(at);
        let index = usize::try_from(at).ok()?;
        let gone = self.entries.swap_remove(index);
        if let Some(moved) = self.entries.get(index) {
            let Entry {
                key, newer, older, ..
            } = *moved;
            self.by_key.insert(key, at);
            self.set_older(newer, at);
            self.set_newer(older, at);
        }
        Some(gone.value)
    }

    fn entry(&mut self, at: u32) -> Option<&mut Entry<V>> {
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
        let Some(&mut Entry { newer, older, .. }) = self.entry(at) else {
            return;
        };
        self.set_older(newer, older);
        self.set_newer(older, newer);
    }

    /// At the newest end.
    fn link(&mut self, at: u32) {
        let second = self.newest;
        if let Some(entry) = self.entry(at) {
            (entry.newer, entry.older) = (NONE, second);
        }
        self.set_newer(second, at);
        self.newest = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slow way: a list, oldest first.
    struct Model {
        most: usize,
        list: Vec<(Key, u64)>,
    }

    impl Model {
        fn touch(&mut self, key: Key, value: u64) -> (u64, Was) {
            if let Some(at) = self.list.iter().position(|(k, _)| *k == key) {
                let entry = self.list.remove(at);
                self.list.push(entry);
                return (entry.1, Was::There);
            }
            let was = if self.list.len() == self.most {
                self.list.remove(0);
                Was::AbsentAndFull
            } else {
                Was::Absent
            };
            self.list.push((key, value));
            (value, was)
        }
    }

    #[test]
    fn it_forgets_just_what_a_plain_list_would() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let keys = Keys::default();
        for round in 0..200 {
            let most = random.usize(1..20);
            let (mut lru, mut model) = (
                Lru::new(most),
                Model {
                    most,
                    list: Vec::new(),
                },
            );
            for step in 0..500_u64 {
                let key = keys.apart([&random.u32(0..30).to_be_bytes()[..]]);
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
                        let (value, was) = lru.touch(key, || step);
                        let got = (*value, was);
                        assert_eq!(
                            got,
                            model.touch(key, step),
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
    fn texts_are_joined_or_told_apart() {
        let keys = Keys::default();
        let texts = |a: &'static str, b: &'static str| [a.as_bytes(), b.as_bytes()];
        assert_eq!(keys.joined(texts("ab", "c")), keys.joined(texts("a", "bc")));
        assert_ne!(keys.apart(texts("ab", "c")), keys.apart(texts("a", "bc")));
        assert_ne!(
            Keys::default().joined(texts("a", "b")),
            keys.joined(texts("a", "b")),
            "each process has its own"
        );
    }

    #[test]
    fn it_never_holds_more_than_it_may() {
        let keys = Keys::default();
        let mut lru = Lru::new(100);
        for n in 0..100_000_u32 {
            lru.touch(keys.joined([&n.to_be_bytes()[..]]), || n);
        }
        assert_eq!(lru.len(), 100);
        assert!(lru.entries.capacity() <= 128 && lru.by_key.capacity() <= 256);
    }
}
