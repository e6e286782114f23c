//! Keyed hashes of tokens.

use std::fmt;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;

use weir_kubernetes::api::UserInfo;

/// A keyed hash of a token: half of its HMAC-SHA256 under a key of this process, as in
/// kube-apiserver's token cache.
///
/// Impersonation uses it for users and permissions, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenHash(u128);

impl TokenHash {
    /// The hash with these bits, for tests that choose where it is kept.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The hash as bytes, to be hashed together with something else.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// The index of the shard, of `parts` shards, that the hash belongs to.
    pub fn shard(self, parts: usize) -> usize {
        usize::try_from(self.0 % u128::try_from(parts.max(1)).unwrap_or(1)).unwrap_or(0)
    }

    /// The user of a request with this token if the token is not verified: anonymous, with a flow
    /// of its own for each token.
    #[must_use]
    pub fn unverified_user(self) -> UserInfo {
        UserInfo::unverified(format!("token:{:032x}", self.0))
    }
}

/// Hashes tokens with a random key.
pub struct TokenHasher(hmac::Key);

impl TokenHasher {
    /// A hasher with a new random key.
    ///
    /// # Errors
    /// The system's random generator fails.
    pub fn new() -> Result<Self, String> {
        hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map(Self)
            .map_err(|_| "the system has no randomness to give".to_owned())
    }

    /// The hash of a credential.
    #[must_use]
    pub fn hash(&self, credential: &[u8]) -> TokenHash {
        let tag = hmac::sign(&self.0, credential);
        let half = tag.as_ref().first_chunk().copied().unwrap_or_default();
        TokenHash(u128::from_le_bytes(half))
    }
}

impl fmt::Debug for TokenHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHasher")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_hash_depends_on_the_token_and_on_the_process() {
        let (hasher, other_hasher) = (TokenHasher::new().unwrap(), TokenHasher::new().unwrap());
        assert_eq!(hasher.hash(b"secret"), hasher.hash(b"secret"));
        assert_ne!(hasher.hash(b"secret"), hasher.hash(b"secret2"));
        assert_ne!(hasher.hash(b"secret"), other_hasher.hash(b"secret"));
    }
}
