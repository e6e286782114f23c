//! Which tokens the upstream has taken, so that their requests may share connections.
//!
//! kube-apiserver closes an HTTP/2 connection after a 401, so a token that weir cannot verify goes by itself until the
//! upstream has answered it with anything else. Kept as keyed hashes, never as tokens, and bounded: the last
//! [`GENERATION`] to twice as many. This decides which connection a request takes, never who it is from.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use http::HeaderMap;
use http::header::AUTHORIZATION;

/// Tokens in one generation; the older of two is dropped when the younger is full. Above the 5,000 tokens a second that
/// Kubernetes names as its scalability threshold.
const GENERATION: usize = 8192;

/// A token, as far as it is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark(u64);

/// The tokens that were good.
#[derive(Default)]
pub struct ProvenTokens {
    key: RandomState,
    /// Held for a look-up or an insertion.
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashSet<Mark>,
    old: HashSet<Mark>,
}

impl ProvenTokens {
    /// The mark of the credential in `headers`; none if it is not in `Authorization`.
    #[must_use]
    pub fn mark(&self, headers: &HeaderMap) -> Option<Mark> {
        headers
            .get(AUTHORIZATION)
            .map(|value| Mark(self.key.hash_one(value.as_bytes())))
    }

    /// Whether the upstream has taken it.
    #[must_use]
    pub fn knows(&self, mark: Mark) -> bool {
        let mut generations = self.generations();
        if generations.young.contains(&mark) {
            return true;
        }
        let known = generations.old.contains(&mark);
        if known {
            generations.remember(mark);
        }
        known
    }

    /// The upstream has taken it, or has not.
    pub fn note(&self, mark: Mark, taken: bool) {
        let mut generations = self.generations();
        if taken {
            generations.remember(mark);
        } else {
            generations.young.remove(&mark);
            generations.old.remove(&mark);
        }
    }

    fn generations(&self) -> MutexGuard<'_, Generations> {
        self.generations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn remember(&mut self, mark: Mark) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(mark);
    }
}

impl fmt::Debug for ProvenTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProvenTokens({})", self.generations().young.len())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn mark(tokens: &ProvenTokens, token: usize) -> Mark {
        let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        tokens
            .mark(&HeaderMap::from_iter([(AUTHORIZATION, value)]))
            .unwrap()
    }

    #[test]
    fn a_token_is_known_from_when_it_was_taken_until_it_is_not() {
        let tokens = ProvenTokens::default();
        let one = mark(&tokens, 1);
        assert!(!tokens.knows(one));
        tokens.note(one, true);
        assert!(tokens.knows(one) && !tokens.knows(mark(&tokens, 2)));
        tokens.note(one, false);
        assert!(!tokens.knows(one));
    }

    #[test]
    fn what_is_used_is_kept_and_the_rest_is_bounded() {
        let tokens = ProvenTokens::default();
        let used = mark(&tokens, 0);
        tokens.note(used, true);
        for token in 1..10 * GENERATION {
            tokens.note(mark(&tokens, token), true);
            assert!(tokens.knows(used));
        }
        let generations = tokens.generations();
        assert!(generations.young.len() + generations.old.len() <= 2 * GENERATION);
    }
}
