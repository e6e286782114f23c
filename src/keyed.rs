//! Tables by keyed hashes, for what would be long to compare and is looked up for each request.
//!
//! A [`Key`] has 64 bits of a hash whose secret nobody outside knows: among a million, two meet with a probability of 3 in 100
//! million, and nobody can look for such.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::hash::BuildHasherDefault;
use std::hash::Hash;
use std::hash::Hasher;
use std::hash::RandomState;

use dashmap::DashMap;

/// A keyed hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(u64);

impl Key {
    /// Of these marks.
    #[must_use]
    pub fn of(secret: &RandomState, marks: impl Hash) -> Self {
        Self(secret.hash_one(marks))
    }

    /// Of what was written to a hasher of the secret's.
    #[must_use]
    pub fn finish(hasher: &impl Hasher) -> Self {
        Self(hasher.finish())
    }
}

/// Takes a key for what it is: a hash already.
#[derive(Debug, Default)]
pub struct Itself(u64);

impl Hasher for Itself {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// A map by [`Key`].
pub type ByKey<V> = HashMap<Key, V, BuildHasherDefault<Itself>>;

/// The same, for all workers.
pub type SharedByKey<V> = DashMap<Key, V, BuildHasherDefault<Itself>>;
