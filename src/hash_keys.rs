//! Tables by keyed hashes, for what would be long to compare and is looked up for each request.
//!
//! A [`Key`] has 64 bits of a hash whose secret nobody outside knows: among a million, two meet with a probability of 3 in 100
//! million. [`Secret`]'s hash is quick and no cipher: it is for where a client that got two to meet would gain nothing. What
//! decides about requests, and who is named, goes by SipHash (`RandomState`).

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::hash::BuildHasherDefault;
use std::hash::Hash;
use std::hash::Hasher;
use std::hash::RandomState;

use dashmap::DashMap;
use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;
use foldhash::quality::SeedableRandomState;

/// What keys are made with that have to be quick.
#[derive(Clone)]
pub struct HashSecret(SeedableRandomState);

impl Default for HashSecret {
    /// By the system's chance; the hash's own is an address and the time.
    fn default() -> Self {
        let chance = RandomState::new().hash_one(0);
        Self(SeedableRandomState::with_seed(
            chance,
            SharedSeed::global_random(),
        ))
    }
}

impl BuildHasher for HashSecret {
    type Hasher = FoldHasher<'static>;

    fn build_hasher(&self) -> Self::Hasher {
        self.0.build_hasher()
    }
}

impl fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A keyed hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HashKey(u64);

impl HashKey {
    /// Of these marks.
    #[must_use]
    pub fn of(secret: &impl BuildHasher, marks: impl Hash) -> Self {
        Self(secret.hash_one(marks))
    }
}

/// Takes a key for what it is: a hash already, of 64 or 128 bits.
#[derive(Debug, Default)]
pub struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
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

    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        reason = "any half of a good hash is one"
    )]
    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
}

/// What a map is made with whose keys are hashes.
pub type BuildIdentityHasher = BuildHasherDefault<IdentityHasher>;

/// A map by [`Key`].
pub type HashKeyMap<V> = HashMap<HashKey, V, BuildIdentityHasher>;

/// The same, for all workers.
pub type SharedHashKeyMap<V> = DashMap<HashKey, V, BuildIdentityHasher>;
