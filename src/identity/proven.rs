//! Which tokens the upstream has taken, so that their requests may share connections.
//!
//! kube-apiserver closes an HTTP/2 connection after a 401, so a token goes by itself until the upstream has answered it with
//! anything else, or has said in a review that it is good; those of the token file share from the start. After a 401 each of
//! them goes by itself again. Kept as keyed hashes, never as tokens, and bounded: the last [`GENERATION`] to twice as many. This
//! decides which connection a request takes, never who it is from.

use std::fmt;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;

use crate::api::UserInfo;
use crate::identity::generations::Generations;

/// Tokens in one generation; the older of two is dropped when the younger is full. Above the 5,000 tokens a second that
/// Kubernetes names as its scalability threshold.
const GENERATION: usize = 8192;

/// A token, as far as it is remembered: half of its HMAC-SHA256 under a key of this process, as kube-apiserver's token cache has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark(u128);

impl Mark {
    #[cfg(test)]
    pub(super) const fn of(mark: u128) -> Self {
        Self(mark)
    }

    /// It, to be hashed with something else.
    pub(super) const fn bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// Which of `parts` it belongs to.
    pub(super) fn part(self, parts: usize) -> usize {
        usize::try_from(self.0 % u128::try_from(parts.max(1)).unwrap_or(1)).unwrap_or(0)
    }

    /// The user of a request whose token says nothing: nobody, told apart from all others.
    #[must_use]
    pub fn stranger(self) -> UserInfo {
        UserInfo::stranger(format!("token:{:032x}", self.0))
    }
}

/// Makes marks.
pub struct Marks(hmac::Key);

impl Marks {
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
    pub fn of(&self, credential: &[u8]) -> Mark {
        let tag = hmac::sign(&self.0, credential);
        let half = tag.as_ref().first_chunk().copied().unwrap_or_default();
        Mark(u128::from_le_bytes(half))
    }
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Marks")
    }
}

/// The tokens that were good.
pub struct ProvenTokens {
    /// Held for a look-up or an insertion.
    generations: Mutex<Generations<()>>,
}

impl Default for ProvenTokens {
    fn default() -> Self {
        Self {
            generations: Mutex::new(Generations::new(GENERATION, usize::MAX)),
        }
    }
}

impl ProvenTokens {
    /// Whether the upstream has taken it.
    #[must_use]
    pub fn knows(&self, mark: Mark) -> bool {
        self.generations().get(mark).is_some()
    }

    /// The upstream has taken it, or has not.
    pub fn note(&self, mark: Mark, taken: bool) {
        let mut generations = self.generations();
        if !taken {
            generations.remove(mark);
        } else if generations.get(mark).is_none() {
            generations.insert(mark, (), 0);
        }
    }

    fn generations(&self) -> MutexGuard<'_, Generations<()>> {
        self.generations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ProvenTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProvenTokens({})", self.generations().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(token: usize) -> Mark {
        Mark(token.try_into().unwrap())
    }

    #[test]
    fn a_mark_is_of_a_token_and_of_one_process() {
        let (marks, others) = (Marks::new().unwrap(), Marks::new().unwrap());
        assert_eq!(marks.of(b"secret"), marks.of(b"secret"));
        assert_ne!(marks.of(b"secret"), marks.of(b"secret2"));
        assert_ne!(marks.of(b"secret"), others.of(b"secret"));
    }

    #[test]
    fn a_token_is_known_from_when_it_was_taken_until_it_is_not() {
        let tokens = ProvenTokens::default();
        let one = mark(1);
        assert!(!tokens.knows(one));
        tokens.note(one, true);
        assert!(tokens.knows(one) && !tokens.knows(mark(2)));
        tokens.note(one, false);
        assert!(!tokens.knows(one));
    }

    #[test]
    fn what_is_used_is_kept_and_the_rest_is_bounded() {
        let tokens = ProvenTokens::default();
        let used = mark(0);
        tokens.note(used, true);
        for token in 1..10 * GENERATION {
            tokens.note(mark(token), true);
            assert!(tokens.knows(used));
        }
        assert!(tokens.generations().len() <= 2 * GENERATION);
    }
}
