//! What was found out about tokens: bounded, and by keyed hash only. Pure.
//!
//! Good tokens and others are kept apart, so that a flood of bad ones drives out no good one.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;

use crate::api::UserInfo;
use crate::identity::accepted_tokens::TokenHash;
use crate::identity::generational_map::GenerationalMap;

/// How long the last good answer on a token counts while there is no newer one to be had.
pub const STALE_IF_ERROR: Duration = Duration::from_secs(600);

/// How long a token is taken for bad before it is looked at again (kube-apiserver's webhook cache has 2 minutes; a service
/// account's token that is used a moment too early must not suffer so long).
pub const REJECTED_TTL: Duration = Duration::from_secs(10);

/// How long the API server is left alone about a token for which it had no answer.
pub const UNANSWERED_TTL: Duration = Duration::from_secs(2);

/// What part of its time a good answer serves before it is renewed, while it still does.
const REFRESH_FRACTION: f64 = 0.75;

/// Good tokens in a generation, and bytes of users in it. With 16 parts at two generations: 32,768 tokens, 128 MiB at the
/// most; a thousand service accounts take less than one.
const MAX_VERIFIED: usize = 1024;
const MAX_VERIFIED_BYTES: usize = 4 << 20;

/// Others in a generation.
const MAX_UNVERIFIED: usize = 512;

/// Who vouches for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifiedBy {
    /// The API server, asked for it.
    ApiServer,
    /// Its signature.
    Signature,
}

/// A token that is good.
#[derive(Clone, Debug)]
pub struct VerifiedToken {
    /// Whose it is.
    pub user: Arc<UserInfo>,
    /// When that was found out.
    pub verified_at: Instant,
    /// When the token ends.
    pub expires_at: Option<SystemTime>,
    /// Who says so.
    pub verified_by: VerifiedBy,
    /// The API server has answered 401 to a request with it since then.
    pub must_revalidate: bool,
}

/// A token that is not good, or not known to be.
#[derive(Clone, Debug)]
struct UnverifiedToken {
    user: Arc<UserInfo>,
    expires_at: Instant,
}

/// What is known about a token.
#[derive(Clone, Debug)]
pub enum TokenState {
    /// It is good; if `renew`, it is time to ask again without waiting for it.
    Fresh {
        /// Whose it is, and how that is known.
        good: VerifiedToken,
        /// Whether it is time.
        renew: bool,
    },
    /// It was good, and must be asked for; if that fails, it still is.
    Stale(VerifiedToken),
    /// It is not good, or could not be verified a moment ago.
    Unverified(Arc<UserInfo>),
    /// Nothing.
    Unknown,
}

/// A part of what is known.
#[derive(Debug)]
pub struct TokenCache {
    verified: GenerationalMap<VerifiedToken>,
    unverified: GenerationalMap<UnverifiedToken>,
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
    /// What is known about a token now; good answers serve for `ttl`.
    pub fn find(
        &mut self,
        mark: TokenHash,
        ttl: Duration,
        now: Instant,
        wall: SystemTime,
    ) -> TokenState {
        let other = self
            .unverified
            .get(mark)
            .filter(|other| now < other.expires_at)
            .cloned();
        let good = self
            .verified
            .get(mark)
            .filter(|good| good.expires_at.is_none_or(|expires| wall < expires))
            .cloned();
        let Some(good) = good else {
            return other.map_or(TokenState::Unknown, |other| {
                TokenState::Unverified(other.user)
            });
        };
        let age = now.saturating_duration_since(good.verified_at);
        if age < ttl && !good.must_revalidate {
            let renew = good.verified_by == VerifiedBy::ApiServer
                && age >= ttl.mul_f64(REFRESH_FRACTION)
                && other.is_none();
            return TokenState::Fresh { good, renew };
        }
        if age >= STALE_IF_ERROR.max(ttl) {
            return other.map_or(TokenState::Unknown, |other| {
                TokenState::Unverified(other.user)
            });
        }
        match other {
            // Nobody could say a moment ago: the last answer counts.
            Some(_) => TokenState::Fresh { good, renew: false },
            None => TokenState::Stale(good),
        }
    }

    /// It is good.
    pub fn insert_verified(&mut self, mark: TokenHash, good: VerifiedToken) {
        self.unverified.remove(mark);
        let weight = approximate_bytes(&good.user);
        self.verified.insert(mark, good, weight);
    }

    /// It is not.
    pub fn insert_rejected(&mut self, mark: TokenHash, stranger: Arc<UserInfo>, now: Instant) {
        self.verified.remove(mark);
        self.insert_unverified(mark, stranger, now + REJECTED_TTL);
    }

    /// Nobody could say; what was known before stays.
    pub fn insert_unanswered(&mut self, mark: TokenHash, stranger: Arc<UserInfo>, now: Instant) {
        self.insert_unverified(mark, stranger, now + UNANSWERED_TTL);
    }

    fn insert_unverified(&mut self, mark: TokenHash, stranger: Arc<UserInfo>, until: Instant) {
        let other = UnverifiedToken {
            user: stranger,
            expires_at: until,
        };
        self.unverified.insert(mark, other, 0);
    }

    /// The API server has refused a request with a token that was good: it is asked anew, but not all the time, since the 401
    /// may be that of a program behind the API server.
    pub fn record_unauthorized(&mut self, mark: TokenHash, now: Instant) {
        if let Some(good) = self.verified.get_mut(mark)
            && now.saturating_duration_since(good.verified_at) >= REJECTED_TTL
        {
            good.must_revalidate = true;
        }
    }

    /// How many tokens are known: good ones and others.
    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        (self.verified.len(), self.unverified.len())
    }
}

/// About how many bytes a user takes.
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
            match cache.find(hash(n), TTL, self.0 + after, self.1 + after) {
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
            let mut good = clock.verified(None);
            good.user = Arc::new(large.clone());
            cache.insert_verified(hash(n), good);
        }
        assert!(cache.len().0 <= 8, "{:?}", cache.len());
    }
}
