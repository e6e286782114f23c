//! Which tokens the upstream has taken, so that their requests may share connections.
//!
//! kube-apiserver closes an HTTP/2 connection after a 401, so a token goes by itself until the upstream has answered it with
//! anything else, or has said in a review that it is good; those of the token file share from the start. After a 401 each of
//! them goes by itself again. Kept as keyed hashes, never as tokens, and bounded: the last [`GENERATION_SIZE`] to twice as many. This
//! decides which connection a request takes, never who it is from.

use std::fmt;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;

use crate::api::UserInfo;
use crate::identity::generational_map::GenerationalMap;

/// Tokens in one generation; the older of two is dropped when the younger is full. Above the 5,000 tokens a second that
/// Kubernetes names as its scalability threshold.
const GENERATION_SIZE: usize = 8192;

/// A token, as far as it is remembered: half of its HMAC-SHA256 under a key of this process, as kube-apiserver's token cache has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenHash(u128);

impl TokenHash {
    #[cfg(test)]
    pub(super) const fn from_bits(mark: u128) -> Self {
        Self(mark)
    }

    /// It, to be hashed with something else.
    pub(super) const fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// Which of `parts` it belongs to.
    pub(super) fn shard(self, parts: usize) -> usize {
        usize::try_from(self.0 % u128::try_from(parts.max(1)).unwrap_or(1)).unwrap_or(0)
    }

    /// The user of a request whose token says nothing: nobody, told apart from all others.
    #[must_use]
    pub fn unverified_user(self) -> UserInfo {
        UserInfo::unverified(format!("token:{:032x}", self.0))
    }
}

/// Makes marks.
pub struct TokenHasher(hmac::Key);

impl TokenHasher {
    /// With a key of its own.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn new() -> Result<Self, String> {
        hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map(Self)
            .map_err(|_| "the system has no randomness to give".to_owned())
    }

    /// The mark of a credential.
    #[must_use]
    pub fn hash(&self, credential: &[u8]) -> TokenHash {
        let tag = hmac::sign(&self.0, credential);
        let half = tag.as_ref().first_chunk().copied().unwrap_or_default();
        TokenHash(u128::from_le_bytes(half))
    }
}

impl fmt::Debug for TokenHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Marks")
    }
}

/// The tokens that were good.
pub struct AcceptedTokens {
    /// Held for a look-up or an insertion.
    hashes: Mutex<GenerationalMap<()>>,
}

impl Default for AcceptedTokens {
    fn default() -> Self {
        Self {
            hashes: Mutex::new(GenerationalMap::new(GENERATION_SIZE, usize::MAX)),
        }
    }
}

impl AcceptedTokens {
    /// Whether the upstream has taken it.
    #[must_use]
    pub fn contains(&self, mark: TokenHash) -> bool {
        self.lock_hashes().get(mark).is_some()
    }

    /// The upstream has taken it, or has not.
    pub fn record(&self, mark: TokenHash, taken: bool) {
        let mut generations = self.lock_hashes();
        if !taken {
            generations.remove(mark);
        } else if generations.get(mark).is_none() {
            generations.insert(mark, (), 0);
        }
    }

    fn lock_hashes(&self) -> MutexGuard<'_, GenerationalMap<()>> {
        self.hashes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AcceptedTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProvenTokens({})", self.lock_hashes().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(token: usize) -> TokenHash {
        TokenHash(token.try_into().unwrap())
    }

    #[test]
    fn a_token_hash_depends_on_the_token_and_on_the_process() {
        let (marks, others) = (TokenHasher::new().unwrap(), TokenHasher::new().unwrap());
        assert_eq!(marks.hash(b"secret"), marks.hash(b"secret"));
        assert_ne!(marks.hash(b"secret"), marks.hash(b"secret2"));
        assert_ne!(marks.hash(b"secret"), others.hash(b"secret"));
    }

    #[test]
    fn a_token_is_contained_from_its_acceptance_to_its_rejection() {
        let tokens = AcceptedTokens::default();
        let one = hash(1);
        assert!(!tokens.contains(one));
        tokens.record(one, true);
        assert!(tokens.contains(one) && !tokens.contains(hash(2)));
        tokens.record(one, false);
        assert!(!tokens.contains(one));
    }

    #[test]
    fn used_tokens_are_kept_and_the_number_of_tokens_is_bounded() {
        let tokens = AcceptedTokens::default();
        let used = hash(0);
        tokens.record(used, true);
        for token in 1..10 * GENERATION_SIZE {
            tokens.record(hash(token), true);
            assert!(tokens.contains(used));
        }
        assert!(tokens.lock_hashes().len() <= 2 * GENERATION_SIZE);
    }
}
