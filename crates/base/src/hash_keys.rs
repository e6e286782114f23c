//! Tables by keyed hashes, for values that would be slow to compare and are looked up for each
//! request.
//!
//! A [`HashKey`] has 64 bits of a hash with a secret. Among a million keys, two collide with a
//! probability of 3 in 100 million. The hash of [`HashSecret`] is fast and no cipher: it is for
//! tables where a client would gain nothing from a collision. Decisions about requests, and
//! anything that identifies a user, use SipHash (`RandomState`).

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

use dashmap::DashMap;
use foldhash::SharedSeed;
use foldhash::quality::{FoldHasher, SeedableRandomState};

/// The secret of fast keys.
#[derive(Clone)]
pub struct HashSecret(SeedableRandomState);

impl Default for HashSecret {
    /// Random from the system; the hash's own secret is an address and the time.
    fn default() -> Self {
        let seed = RandomState::new().hash_one(0);
        Self(SeedableRandomState::with_seed(
            seed,
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
        f.write_str("HashSecret")
    }
}

/// A keyed hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HashKey(u64);

impl HashKey {
    /// The key of these values.
    #[must_use]
    pub fn of(secret: &impl BuildHasher, values: impl Hash) -> Self {
        Self(secret.hash_one(values))
    }
}

/// A hasher whose input is a hash already, of 64 or 128 bits.
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
        reason = "both halves of a good hash are one, and so is what differs between them"
    )]
    fn write_u128(&mut self, hash: u128) {
        // Not one half, by which the keys of a shard may be chosen.
        self.0 = hash as u64 ^ (hash >> 64) as u64;
    }
}

/// Builds the hasher of a map whose keys are hashes.
pub type BuildIdentityHasher = BuildHasherDefault<IdentityHasher>;

/// A map by [`HashKey`].
pub type HashKeyMap<V> = HashMap<HashKey, V, BuildIdentityHasher>;

/// The same map, shared by all workers.
pub type SharedHashKeyMap<V> = DashMap<HashKey, V, BuildIdentityHasher>;
