//! Tokens that the upstream has accepted, whose requests may share connections.
//!
//! kube-apiserver closes an HTTP/2 connection after a 401. Therefore the requests of a token use a
//! connection of their own until the upstream has answered one with anything but 401, or has
//! confirmed the token in a review. Tokens of the token file share connections from the start.
//! After a 401, requests of that token use their own connection again. Only keyed hashes are
//! stored, never tokens. The number is bounded: the last `GENERATION_SIZE` to twice as many
//! tokens. This decides which connection a request uses, never which user it is from.

use parking_lot::Mutex;
use std::fmt;

use weir_base::generational_map::GenerationalMap;
use weir_tokens::hash::TokenHash;

/// The number of tokens in a generation. The older generation is dropped when the newer one is
/// full. The value is above the 5,000 tokens a second that Kubernetes names as its scalability
/// threshold.
const GENERATION_SIZE: usize = 8192;

/// Tokens that the upstream has accepted.
pub(crate) struct AcceptedTokens {
    /// Locked for a lookup or an insertion only.
    hashes: Mutex<GenerationalMap<TokenHash, ()>>,
}

impl Default for AcceptedTokens {
    fn default() -> Self {
        Self {
            hashes: Mutex::new(GenerationalMap::new(GENERATION_SIZE, usize::MAX)),
        }
    }
}

impl AcceptedTokens {
    /// Whether the upstream has accepted the token.
    #[must_use]
    pub(crate) fn contains(&self, token_hash: TokenHash) -> bool {
        self.hashes.lock().get(token_hash).is_some()
    }

    /// Records whether the upstream accepted the token.
    pub(crate) fn record(&self, token_hash: TokenHash, accepted: bool) {
        let mut hashes = self.hashes.lock();
        if !accepted {
            hashes.remove(token_hash);
        } else if hashes.get(token_hash).is_none() {
            hashes.insert(token_hash, (), 0);
        }
    }
}

impl fmt::Debug for AcceptedTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AcceptedTokens({})", self.hashes.lock().count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(token: usize) -> TokenHash {
        TokenHash::from_bits(token.try_into().unwrap())
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
        assert!(tokens.hashes.lock().count() <= 2 * GENERATION_SIZE);
    }
}
