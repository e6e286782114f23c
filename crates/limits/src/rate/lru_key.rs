//! Keys of the LRU tables: 128-bit hashes with a secret of this process, or of all replicas.

use std::hash::{BuildHasher, Hasher, RandomState};

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::shared_limits::source::Sharing;

/// Hashes names to keys, with a secret.
#[derive(Clone, Copy, Debug)]
pub struct LruKeyHasher(SipHasher13);

/// The hash of a name.
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

impl LruKey {
    /// The hash.
    #[must_use]
    pub const fn to_u128(self) -> u128 {
        self.0
    }

    /// The key with this hash.
    #[must_use]
    pub const fn from_u128(hash: u128) -> Self {
        Self(hash)
    }
}

impl LruKeyHasher {
    /// Hashes with a secret that other processes have, too.
    #[must_use]
    fn with_secret(secret: [u64; 2]) -> Self {
        let [first, second] = secret;
        Self(SipHasher13::new_with_keys(first, second))
    }

    /// Hashes with the secret of all replicas, if buckets are shared.
    #[must_use]
    pub fn sharing(sharing: Option<&Sharing>) -> Self {
        sharing.map_or_else(Self::default, |sharing| Self::with_secret(sharing.secret()))
    }

    /// The key of these texts, concatenated without separators.
    #[must_use]
    pub fn hash_joined<'t>(&self, texts: impl IntoIterator<Item = &'t [u8]>) -> LruKey {
        let mut hasher = self.0;
        for text in texts {
            hasher.write(text);
        }
        LruKey(hasher.finish128().as_u128())
    }

    /// The key of these texts as a list: `["ab", "c"]` and `["a", "bc"]` differ.
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
