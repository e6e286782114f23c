//! What was found out about rights: bounded, by keyed hash, and not for long. Pure.
//!
//! Rights that were given and others are kept apart, so that a flood of wishes that are refused drives out none that is granted.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use crate::identity::accepted_tokens::TokenHash;
use crate::identity::generational_map::GenerationalMap;

/// How long an answer serves, yes and no alike: a right that is taken away must not stay for long, and kube-apiserver's own
/// impersonation remembers for as long.
pub const DECISION_TTL: Duration = Duration::from_secs(10);

/// How long the API server is left alone about a right for which it had no answer.
pub const UNANSWERED_TTL: Duration = Duration::from_secs(2);

/// Rights in a generation, given ones and others. An entry takes some hundred bytes at most, a refused one with its reason 350.
const MAX_ALLOWED: usize = 8192;
const MAX_NOT_ALLOWED: usize = 2048;

/// What is known about a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CachedDecision {
    /// It was given a moment ago.
    Allowed,
    /// It was refused a moment ago, and why.
    Denied(Arc<str>),
    /// Nobody could say a moment ago.
    Unanswered,
    /// Nothing any more.
    Unknown {
        /// Whether it was given when it was asked about last.
        allowed_before: bool,
    },
}

#[derive(Clone, Debug)]
enum NotAllowed {
    Denied(Arc<str>),
    Unanswered,
}

/// What is known.
#[derive(Debug)]
pub struct DecisionCache {
    /// Until when they serve.
    allowed: GenerationalMap<Instant>,
    not_allowed: GenerationalMap<(NotAllowed, Instant)>,
}

impl Default for DecisionCache {
    fn default() -> Self {
        Self {
            allowed: GenerationalMap::new(MAX_ALLOWED, usize::MAX),
            not_allowed: GenerationalMap::new(MAX_NOT_ALLOWED, usize::MAX),
        }
    }
}

impl DecisionCache {
    /// What is known about a right now.
    pub fn find(&mut self, mark: TokenHash, now: Instant) -> CachedDecision {
        let allowed = self.allowed.get(mark).copied();
        if allowed.is_some_and(|until| now < until) {
            return CachedDecision::Allowed;
        }
        let other = self.not_allowed.get(mark).filter(|(_, until)| now < *until);
        match other {
            Some((NotAllowed::Denied(reason), _)) => CachedDecision::Denied(Arc::clone(reason)),
            Some((NotAllowed::Unanswered, _)) => CachedDecision::Unanswered,
            None => CachedDecision::Unknown {
                allowed_before: allowed.is_some(),
            },
        }
    }

    /// It is given.
    pub fn insert_allowed(&mut self, mark: TokenHash, now: Instant) {
        self.not_allowed.remove(mark);
        self.allowed.insert(mark, now + DECISION_TTL, 0);
    }

    /// It is refused.
    pub fn insert_denied(&mut self, mark: TokenHash, reason: Arc<str>, now: Instant) {
        self.allowed.remove(mark);
        let denied = (NotAllowed::Denied(reason), now + DECISION_TTL);
        self.not_allowed.insert(mark, denied, 0);
    }

    /// Nobody could say. What was given before and still serves goes on to serve.
    pub fn insert_unanswered(&mut self, mark: TokenHash, now: Instant) {
        let unanswered = (NotAllowed::Unanswered, now + UNANSWERED_TTL);
        self.not_allowed.insert(mark, unanswered, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNKNOWN: CachedDecision = CachedDecision::Unknown {
        allowed_before: false,
    };
    const UNKNOWN_ALLOWED_BEFORE: CachedDecision = CachedDecision::Unknown {
        allowed_before: true,
    };

    #[test]
    fn decisions_are_cached_for_ten_seconds_and_the_newer_one_counts() {
        let (start, mut cache) = (Instant::now(), DecisionCache::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mark = TokenHash::from_bits(1);
        assert_eq!(cache.find(mark, at(0)), UNKNOWN);
        cache.insert_allowed(mark, at(0));
        assert_eq!(cache.find(mark, at(9)), CachedDecision::Allowed);
        assert_eq!(cache.find(mark, at(10)), UNKNOWN_ALLOWED_BEFORE);
        cache.insert_denied(mark, "no".into(), at(10));
        assert_eq!(
            cache.find(mark, at(19)),
            CachedDecision::Denied("no".into())
        );
        assert_eq!(cache.find(mark, at(20)), UNKNOWN);
        cache.insert_denied(mark, "no".into(), at(20));
        cache.insert_allowed(mark, at(21));
        assert_eq!(cache.find(mark, at(22)), CachedDecision::Allowed);
    }

    #[test]
    fn an_unanswered_review_allows_nothing_and_is_cached_for_two_seconds() {
        let (start, mut cache) = (Instant::now(), DecisionCache::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mark = TokenHash::from_bits(1);
        cache.insert_unanswered(mark, at(0));
        assert_eq!(cache.find(mark, at(1)), CachedDecision::Unanswered);
        assert_eq!(cache.find(mark, at(2)), UNKNOWN);
        cache.insert_allowed(mark, at(2));
        cache.insert_unanswered(mark, at(12));
        assert_eq!(cache.find(mark, at(13)), CachedDecision::Unanswered);
        assert_eq!(cache.find(mark, at(14)), UNKNOWN_ALLOWED_BEFORE);
    }

    #[test]
    fn the_cache_is_bounded_and_denied_decisions_evict_no_allowed_one() {
        let (now, mut cache) = (Instant::now(), DecisionCache::default());
        cache.insert_allowed(TokenHash::from_bits(0), now);
        for n in 1..100_000 {
            cache.insert_denied(TokenHash::from_bits(n), "".into(), now);
        }
        assert_eq!(
            cache.find(TokenHash::from_bits(0), now),
            CachedDecision::Allowed
        );
        assert!(cache.not_allowed.len() <= 2 * MAX_NOT_ALLOWED);
        for n in 1..100_000 {
            cache.insert_allowed(TokenHash::from_bits(n), now);
        }
        assert!(cache.allowed.len() <= 2 * MAX_ALLOWED);
    }
}
