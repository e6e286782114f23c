//! Caches the results of token authentication, by keyed hash and bounded. Pure.
//!
//! Verified and unverified tokens are stored separately, so that a flood of invalid tokens evicts
//! no valid one.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::identity::tokens::key_source::KeyStamp;
use weir_base::generational_map::GenerationalMap;
use weir_kubernetes::api::UserInfo;
use weir_tokens::hash::TokenHash;

/// How long the last successful result stays in use while reviews fail.
pub(crate) const STALE_IF_ERROR: Duration = Duration::from_secs(600);

/// How long a rejection is cached. kube-apiserver's webhook cache has 2 minutes. A service account
/// token that is used a moment too early must not be rejected for that long.
pub(crate) const REJECTED_TTL: Duration = Duration::from_secs(10);

/// How long no review is sent for a token whose last review was not answered.
pub(crate) const UNANSWERED_TTL: Duration = Duration::from_secs(2);

/// The fraction of its TTL after which a result is renewed in the background.
const REFRESH_FRACTION: f64 = 0.75;

/// The limits of a generation: verified tokens, and bytes of users. 16 shards of two generations
/// hold 32,768 tokens and 128 MiB at most. A thousand service accounts take less than 1 MiB.
const MAX_VERIFIED: usize = 1024;
const MAX_VERIFIED_BYTES: usize = 4 << 20;

/// The number of unverified tokens in a generation.
const MAX_UNVERIFIED: usize = 512;

/// How a token was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerifiedBy {
    /// By a review of the API server.
    ApiServer,
    /// By its signature, under the keys of this stamp.
    Signature(KeyStamp),
}

/// A token that was verified.
#[derive(Clone, Debug)]
pub(crate) struct VerifiedToken {
    /// The user of the token.
    pub(crate) user: Arc<UserInfo>,
    /// When the token was verified.
    pub(crate) verified_at: Instant,
    /// When the token expires.
    pub(crate) expires_at: Option<SystemTime>,
    /// How the token was verified.
    pub(crate) verified_by: VerifiedBy,
    /// Whether the API server has answered 401 to a request with the token since it was verified.
    pub(crate) must_revalidate: bool,
}

/// A token that was rejected, or whose review was not answered.
#[derive(Clone, Debug)]
struct UnverifiedToken {
    user: Arc<UserInfo>,
    expires_at: Instant,
}

/// The cached state of a token.
#[derive(Clone, Debug)]
pub(crate) enum TokenState {
    /// The token is valid.
    Fresh {
        /// The verified token.
        verified: VerifiedToken,
        /// Whether the token is due to be reviewed again, without waiting for the result.
        renew: bool,
    },
    /// The token was valid and has to be verified again. If that fails, the result stays in use.
    Stale(VerifiedToken),
    /// The token was rejected, or could not be verified, a moment ago.
    Unverified(Arc<UserInfo>),
    /// The token is not in the cache.
    Unknown,
}

/// One shard of the cache.
#[derive(Debug)]
pub(crate) struct TokenCache {
    verified: GenerationalMap<TokenHash, VerifiedToken>,
    unverified: GenerationalMap<TokenHash, UnverifiedToken>,
}

impl Default for TokenCache {
    fn default() -> Self {
        Self {
            verified: GenerationalMap::new(MAX_VERIFIED, MAX_VERIFIED_BYTES),
            unverified: GenerationalMap::new(MAX_UNVERIFIED, usize::MAX),
        }
    }
}

impl TokenCache {
    /// The state of a token at `now`. A successful result is fresh for `ttl`. A result by signature
    /// counts only while its keys are in use.
    pub(crate) fn find(
        &mut self,
        token_hash: TokenHash,
        ttl: Duration,
        (now, wall): (Instant, SystemTime),
        in_use: impl FnOnce(KeyStamp) -> bool,
    ) -> TokenState {
        let unverified = self
            .unverified
            .get(token_hash)
            .filter(|unverified| now < unverified.expires_at)
            .cloned();
        let verified = self
            .verified
            .get(token_hash)
            .filter(|verified| verified.expires_at.is_none_or(|expires| wall < expires))
            .filter(|verified| match verified.verified_by {
                VerifiedBy::ApiServer => true,
                VerifiedBy::Signature(stamp) => in_use(stamp),
            })
            .cloned();
        let Some(verified) = verified else {
            return unverified.map_or(TokenState::Unknown, |unverified| {
                TokenState::Unverified(unverified.user)
            });
        };
        let age = now.saturating_duration_since(verified.verified_at);
        if age < ttl && !verified.must_revalidate {
            let renew = verified.verified_by == VerifiedBy::ApiServer
                && age >= ttl.mul_f64(REFRESH_FRACTION)
                && unverified.is_none();
            return TokenState::Fresh { verified, renew };
        }
        if age >= STALE_IF_ERROR.max(ttl) {
            return unverified.map_or(TokenState::Unknown, |unverified| {
                TokenState::Unverified(unverified.user)
            });
        }
        match unverified {
            // A review was not answered a moment ago: the last result stays in use.
            Some(_) => TokenState::Fresh {
                verified,
                renew: false,
            },
            None => TokenState::Stale(verified),
        }
    }

    /// Records that a token was verified.
    pub(crate) fn insert_verified(&mut self, token_hash: TokenHash, verified: VerifiedToken) {
        self.unverified.remove(token_hash);
        let weight = approximate_bytes(&verified.user);
        self.verified.insert(token_hash, verified, weight);
    }

    /// Records that a token was rejected, and removes an earlier successful result.
    pub(crate) fn insert_rejected(
        &mut self,
        token_hash: TokenHash,
        user: Arc<UserInfo>,
        now: Instant,
    ) {
        self.verified.remove(token_hash);
        self.insert_unverified(token_hash, user, now + REJECTED_TTL);
    }

    /// Records that a review was not answered. An earlier result stays.
    pub(crate) fn insert_unanswered(
        &mut self,
        token_hash: TokenHash,
        user: Arc<UserInfo>,
        now: Instant,
    ) {
        self.insert_unverified(token_hash, user, now + UNANSWERED_TTL);
    }

    fn insert_unverified(
        &mut self,
        token_hash: TokenHash,
        user: Arc<UserInfo>,
        expires_at: Instant,
    ) {
        let unverified = UnverifiedToken { user, expires_at };
        self.unverified.insert(token_hash, unverified, 0);
    }

    /// Records that the API server answered 401 to a request with the token. A verified token is
    /// revalidated, but at most every [`REJECTED_TTL`]: the 401 may come from a server behind the
    /// API server.
    pub(crate) fn record_unauthorized(&mut self, token_hash: TokenHash, now: Instant) {
        if let Some(verified) = self.verified.get_mut(token_hash)
            && now.saturating_duration_since(verified.verified_at) >= REJECTED_TTL
        {
            verified.must_revalidate = true;
        }
    }

    /// Forgets the rejected and unanswered tokens, which new keys may verify.
    pub(crate) fn forget_unverified(&mut self) {
        self.unverified = GenerationalMap::new(MAX_UNVERIFIED, usize::MAX);
    }

    /// Has every reviewed token reviewed again when it is next used. If that fails, the result
    /// stays in use.
    pub(crate) fn revalidate_reviewed(&mut self) {
        for verified in self.verified.values_mut() {
            verified.must_revalidate |= verified.verified_by == VerifiedBy::ApiServer;
        }
    }

    /// The numbers of verified and of unverified tokens.
    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        (self.verified.count(), self.unverified.count())
    }
}

/// The approximate size of a user, in bytes.
fn approximate_bytes(user: &UserInfo) -> usize {
    let list = |texts: &[String]| texts.iter().map(|text| text.len() + 24).sum::<usize>();
    let extra = |(key, values): &(String, Vec<String>)| key.len() + 48 + list(values);
    256 + user.name.len() + list(&user.groups) + user.extra.iter().map(extra).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(120);

    fn hash(n: u64) -> TokenHash {
        TokenHash::from_bits(u128::from(n))
    }

    fn user(name: &str) -> Arc<UserInfo> {
        Arc::new(UserInfo {
            name: name.to_owned(),
            ..UserInfo::default()
        })
    }

    struct TestClock(Instant, SystemTime);

    impl TestClock {
        fn new() -> Self {
            Self(Instant::now(), SystemTime::now())
        }

        fn verified(&self, lasts: Option<u64>) -> VerifiedToken {
            VerifiedToken {
                user: user("alice"),
                verified_at: self.0,
                expires_at: lasts.map(|seconds| self.1 + Duration::from_secs(seconds)),
                verified_by: VerifiedBy::ApiServer,
                must_revalidate: false,
            }
        }

        fn find(&self, cache: &mut TokenCache, n: u64, after: u64) -> &'static str {
            let after = Duration::from_secs(after);
            match cache.find(hash(n), TTL, (self.0 + after, self.1 + after), |_| true) {
                TokenState::Fresh { renew: false, .. } => "good",
                TokenState::Fresh { renew: true, .. } => "renew",
                TokenState::Stale(_) => "stale",
                TokenState::Unverified(_) => "stranger",
                TokenState::Unknown => "unknown",
            }
        }
    }

    #[test]
    fn a_verified_token_is_fresh_for_two_minutes_and_stale_for_ten() {
        let (clock, mut cache) = (TestClock::new(), TokenCache::default());
        cache.insert_verified(hash(1), clock.verified(None));
        assert_eq!(clock.find(&mut cache, 1, 0), "good");
        assert_eq!(clock.find(&mut cache, 1, 89), "good");
        assert_eq!(clock.find(&mut cache, 1, 90), "renew");
        assert_eq!(clock.find(&mut cache, 1, 119), "renew");
        assert_eq!(clock.find(&mut cache, 1, 120), "stale");
        let at = |seconds| clock.0 + Duration::from_secs(seconds);
        cache.insert_unanswered(hash(1), user("stranger"), at(120));
        assert_eq!(clock.find(&mut cache, 1, 121), "good");
        assert_eq!(clock.find(&mut cache, 1, 122), "stale");
        cache.insert_unanswered(hash(1), user("stranger"), at(598));
        assert_eq!(clock.find(&mut cache, 1, 599), "good");
        cache.insert_unanswered(hash(1), user("stranger"), at(599));
        assert_eq!(clock.find(&mut cache, 1, 600), "stranger");
        assert_eq!(clock.find(&mut cache, 1, 602), "unknown");
    }

    #[test]
    fn no_token_is_verified_past_its_expiry() {
        let (clock, mut cache) = (TestClock::new(), TokenCache::default());
        cache.insert_verified(hash(1), clock.verified(Some(30)));
        assert_eq!(clock.find(&mut cache, 1, 29), "good");
        assert_eq!(clock.find(&mut cache, 1, 30), "unknown");
        cache.insert_unanswered(hash(1), user("stranger"), clock.0);
        assert_eq!(clock.find(&mut cache, 1, 1), "good");
        cache.insert_unanswered(hash(1), user("stranger"), clock.0 + Duration::from_secs(30));
        assert_eq!(clock.find(&mut cache, 1, 31), "stranger");
    }

    #[test]
    fn a_rejection_is_cached_for_ten_seconds_and_replaces_a_verified_token() {
        let (clock, mut cache) = (TestClock::new(), TokenCache::default());
        cache.insert_verified(hash(1), clock.verified(None));
        cache.insert_rejected(hash(1), user("stranger"), clock.0);
        assert_eq!(clock.find(&mut cache, 1, 9), "stranger");
        assert_eq!(clock.find(&mut cache, 1, 10), "unknown");
        cache.insert_verified(hash(1), clock.verified(None));
        assert_eq!(clock.find(&mut cache, 1, 1), "good");
    }

    #[test]
    fn a_401_makes_a_token_stale_at_most_every_ten_seconds() {
        let (clock, mut cache) = (TestClock::new(), TokenCache::default());
        cache.insert_verified(hash(1), clock.verified(None));
        cache.record_unauthorized(hash(1), clock.0 + Duration::from_secs(9));
        assert_eq!(clock.find(&mut cache, 1, 9), "good");
        cache.record_unauthorized(hash(1), clock.0 + Duration::from_secs(10));
        assert_eq!(clock.find(&mut cache, 1, 10), "stale");
    }

    #[test]
    fn the_cache_is_bounded_and_rejected_tokens_evict_no_verified_one() {
        let (clock, mut cache) = (TestClock::new(), TokenCache::default());
        cache.insert_verified(hash(0), clock.verified(None));
        for n in 1..20_000 {
            cache.insert_rejected(hash(n), user("stranger"), clock.0);
        }
        assert_eq!(clock.find(&mut cache, 0, 1), "good");
        assert!(cache.len().1 <= 2 * MAX_UNVERIFIED);
        for n in 1..20_000 {
            cache.insert_verified(hash(n), clock.verified(None));
            assert_eq!(clock.find(&mut cache, 0, 1), "good", "what is used is kept");
        }
        assert!(cache.len().0 <= 2 * MAX_VERIFIED);
    }

    #[test]
    fn large_users_are_bounded_by_their_size() {
        let (clock, mut cache) = (TestClock::new(), TokenCache::default());
        let large = UserInfo {
            groups: vec!["g".repeat(1 << 20)],
            ..UserInfo::default()
        };
        for n in 0..100 {
            let mut verified = clock.verified(None);
            verified.user = Arc::new(large.clone());
            cache.insert_verified(hash(n), verified);
        }
        assert!(cache.len().0 <= 8, "{:?}", cache.len());
    }
}
