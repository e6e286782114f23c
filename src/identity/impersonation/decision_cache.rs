//! Caches decisions about impersonation permissions for a short time, by keyed hash and bounded.
//! Pure.
//!
//! Granted permissions and others are stored separately, so that a flood of denied requests evicts
//! no granted permission.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_base::generational_map::GenerationalMap;
use weir_tokens::hash::TokenHash;

/// How long a decision is cached, granted or denied. A revoked permission must not stay in effect
/// for long. kube-apiserver's own impersonation caches for the same time.
pub(crate) const DECISION_TTL: Duration = Duration::from_secs(10);

/// How long no review is sent for a permission whose last review was not answered.
pub(crate) const UNANSWERED_TTL: Duration = Duration::from_secs(2);

/// The numbers of granted and of other permissions in a generation. A granted entry takes about a
/// hundred bytes at most, a denied one with its reason 350.
const MAX_ALLOWED: usize = 8192;
const MAX_NOT_ALLOWED: usize = 2048;

/// The cached decision about a permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CachedDecision {
    /// It was granted.
    Allowed,
    /// It was denied, with the API server's reason.
    Denied(Arc<str>),
    /// A review was not answered a moment ago.
    Unanswered,
    /// There is no current decision.
    Unknown {
        /// Whether the last decision granted the permission.
        allowed_before: bool,
    },
}

#[derive(Clone, Debug)]
enum NotAllowed {
    Denied(Arc<str>),
    Unanswered,
}

/// The cached decisions.
#[derive(Debug)]
pub(crate) struct DecisionCache {
    /// By the time at which each entry expires.
    allowed: GenerationalMap<TokenHash, Instant>,
    not_allowed: GenerationalMap<TokenHash, (NotAllowed, Instant)>,
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
    /// The decision about a permission at `now`.
    pub(crate) fn find(&mut self, key: TokenHash, now: Instant) -> CachedDecision {
        let allowed = self.allowed.get(key).copied();
        if allowed.is_some_and(|expires_at| now < expires_at) {
            return CachedDecision::Allowed;
        }
        let not_allowed = self
            .not_allowed
            .get(key)
            .filter(|(_, expires_at)| now < *expires_at);
        match not_allowed {
            Some((NotAllowed::Denied(reason), _)) => CachedDecision::Denied(Arc::clone(reason)),
            Some((NotAllowed::Unanswered, _)) => CachedDecision::Unanswered,
            None => CachedDecision::Unknown {
                allowed_before: allowed.is_some(),
            },
        }
    }

    /// Records that a permission was granted.
    pub(crate) fn insert_allowed(&mut self, key: TokenHash, now: Instant) {
        self.not_allowed.remove(key);
        self.allowed.insert(key, now + DECISION_TTL, 0);
    }

    /// Records that a permission was denied, and why.
    pub(crate) fn insert_denied(&mut self, key: TokenHash, reason: Arc<str>, now: Instant) {
        self.allowed.remove(key);
        let denied = (NotAllowed::Denied(reason), now + DECISION_TTL);
        self.not_allowed.insert(key, denied, 0);
    }

    /// Records that a review was not answered. A granted permission stays in effect until it
    /// expires.
    pub(crate) fn insert_unanswered(&mut self, key: TokenHash, now: Instant) {
        let unanswered = (NotAllowed::Unanswered, now + UNANSWERED_TTL);
        self.not_allowed.insert(key, unanswered, 0);
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
        let key = TokenHash::from_bits(1);
        assert_eq!(cache.find(key, at(0)), UNKNOWN);
        cache.insert_allowed(key, at(0));
        assert_eq!(cache.find(key, at(9)), CachedDecision::Allowed);
        assert_eq!(cache.find(key, at(10)), UNKNOWN_ALLOWED_BEFORE);
        cache.insert_denied(key, "no".into(), at(10));
        assert_eq!(cache.find(key, at(19)), CachedDecision::Denied("no".into()));
        assert_eq!(cache.find(key, at(20)), UNKNOWN);
        cache.insert_denied(key, "no".into(), at(20));
        cache.insert_allowed(key, at(21));
        assert_eq!(cache.find(key, at(22)), CachedDecision::Allowed);
    }

    #[test]
    fn an_unanswered_review_allows_nothing_and_is_cached_for_two_seconds() {
        let (start, mut cache) = (Instant::now(), DecisionCache::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        let key = TokenHash::from_bits(1);
        cache.insert_unanswered(key, at(0));
        assert_eq!(cache.find(key, at(1)), CachedDecision::Unanswered);
        assert_eq!(cache.find(key, at(2)), UNKNOWN);
        cache.insert_allowed(key, at(2));
        cache.insert_unanswered(key, at(12));
        assert_eq!(cache.find(key, at(13)), CachedDecision::Unanswered);
        assert_eq!(cache.find(key, at(14)), UNKNOWN_ALLOWED_BEFORE);
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
        assert!(cache.not_allowed.count() <= 2 * MAX_NOT_ALLOWED);
        for n in 1..100_000 {
            cache.insert_allowed(TokenHash::from_bits(n), now);
        }
        assert!(cache.allowed.count() <= 2 * MAX_ALLOWED);
    }
}
