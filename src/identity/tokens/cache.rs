//! What was found out about tokens: bounded, and by keyed hash only. Pure.
//!
//! Good tokens and others are kept apart, so that a flood of bad ones drives out no good one.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;

use crate::api::UserInfo;
use crate::identity::generations::Generations;
use crate::identity::proven::Mark;

/// How long the last good answer on a token counts while there is no newer one to be had.
pub const LAST_GOOD: Duration = Duration::from_secs(600);

/// How long a token is taken for bad before it is looked at again (kube-apiserver's webhook cache has 2 minutes; a service
/// account's token that is used a moment too early must not suffer so long).
pub const REFUSED_FOR: Duration = Duration::from_secs(10);

/// How long the API server is left alone about a token for which it had no answer.
pub const UNANSWERED_FOR: Duration = Duration::from_secs(2);

/// What part of its time a good answer serves before it is renewed, while it still does.
const RENEW_AFTER: f64 = 0.75;

/// Good tokens in a generation, and bytes of users in it. With 16 parts at two generations: 32,768 tokens, 128 MiB at the
/// most; a thousand service accounts take less than one.
const GOOD: usize = 1024;
const GOOD_BYTES: usize = 4 << 20;

/// Others in a generation.
const OTHERS: usize = 512;

/// Who vouches for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voucher {
    /// The API server, asked for it.
    ApiServer,
    /// Its signature.
    Signature,
}

/// A token that is good.
#[derive(Clone, Debug)]
pub struct Good {
    /// Whose it is.
    pub user: Arc<UserInfo>,
    /// When that was found out.
    pub since: Instant,
    /// When the token ends.
    pub expires: Option<SystemTime>,
    /// Who says so.
    pub voucher: Voucher,
    /// The API server has answered 401 to a request with it since then.
    pub doubted: bool,
}

/// A token that is not good, or not known to be.
#[derive(Clone, Debug)]
struct Other {
    stranger: Arc<UserInfo>,
    until: Instant,
}

/// What is known about a token.
#[derive(Clone, Debug)]
pub enum Found {
    /// It is good; if `renew`, it is time to ask again without waiting for it.
    Good {
        /// Whose it is, and how that is known.
        good: Good,
        /// Whether it is time.
        renew: bool,
    },
    /// It was good, and must be asked for; if that fails, it still is.
    Stale(Good),
    /// It is not good, or could not be verified a moment ago.
    Stranger(Arc<UserInfo>),
    /// Nothing.
    Unknown,
}

/// A part of what is known.
#[derive(Debug)]
pub struct Cache {
    good: Generations<Good>,
    others: Generations<Other>,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            good: Generations::new(GOOD, GOOD_BYTES),
            others: Generations::new(OTHERS, usize::MAX),
        }
    }
}

impl Cache {
    /// What is known about a token now; good answers serve for `ttl`.
    pub fn find(&mut self, mark: Mark, ttl: Duration, now: Instant, wall: SystemTime) -> Found {
        let other = self
            .others
            .get(mark)
            .filter(|other| now < other.until)
            .cloned();
        let good = self
            .good
            .get(mark)
            .filter(|good| good.expires.is_none_or(|expires| wall < expires))
            .cloned();
        let Some(good) = good else {
            return other.map_or(Found::Unknown, |other| Found::Stranger(other.stranger));
        };
        let age = now.saturating_duration_since(good.since);
        if age < ttl && !good.doubted {
            let renew = good.voucher == Voucher::ApiServer
                && age >= ttl.mul_f64(RENEW_AFTER)
                && other.is_none();
            return Found::Good { good, renew };
        }
        if age >= LAST_GOOD.max(ttl) {
            return other.map_or(Found::Unknown, |other| Found::Stranger(other.stranger));
        }
        match other {
            // Nobody could say a moment ago: the last answer counts.
            Some(_) => Found::Good { good, renew: false },
            None => Found::Stale(good),
        }
    }

    /// It is good.
    pub fn good(&mut self, mark: Mark, good: Good) {
        self.others.remove(mark);
        let weight = weight(&good.user);
        self.good.insert(mark, good, weight);
    }

    /// It is not.
    pub fn refused(&mut self, mark: Mark, stranger: Arc<UserInfo>, now: Instant) {
        self.good.remove(mark);
        self.other(mark, stranger, now + REFUSED_FOR);
    }

    /// Nobody could say; what was known before stays.
    pub fn unanswered(&mut self, mark: Mark, stranger: Arc<UserInfo>, now: Instant) {
        self.other(mark, stranger, now + UNANSWERED_FOR);
    }

    fn other(&mut self, mark: Mark, stranger: Arc<UserInfo>, until: Instant) {
        let other = Other { stranger, until };
        self.others.insert(mark, other, 0);
    }

    /// The API server has refused a request with a token that was good: it is asked anew, but not all the time, since the 401
    /// may be that of a program behind the API server.
    pub fn doubt(&mut self, mark: Mark, now: Instant) {
        if let Some(good) = self.good.get_mut(mark)
            && now.saturating_duration_since(good.since) >= REFUSED_FOR
        {
            good.doubted = true;
        }
    }

    /// How many tokens are known: good ones and others.
    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        (self.good.len(), self.others.len())
    }
}

/// About how many bytes a user takes.
fn weight(user: &UserInfo) -> usize {
    let list = |texts: &[String]| texts.iter().map(|text| text.len() + 24).sum::<usize>();
    let extra = |(key, values): &(String, Vec<String>)| key.len() + 48 + list(values);
    256 + user.name.len() + list(&user.groups) + user.extra.iter().map(extra).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(120);

    fn mark(n: u64) -> Mark {
        Mark::of(u128::from(n))
    }

    fn user(name: &str) -> Arc<UserInfo> {
        Arc::new(UserInfo {
            name: name.to_owned(),
            ..UserInfo::default()
        })
    }

    struct Clock(Instant, SystemTime);

    impl Clock {
        fn new() -> Self {
            Self(Instant::now(), SystemTime::now())
        }

        fn good(&self, lasts: Option<u64>) -> Good {
            Good {
                user: user("alice"),
                since: self.0,
                expires: lasts.map(|seconds| self.1 + Duration::from_secs(seconds)),
                voucher: Voucher::ApiServer,
                doubted: false,
            }
        }

        fn find(&self, cache: &mut Cache, n: u64, after: u64) -> &'static str {
            let after = Duration::from_secs(after);
            match cache.find(mark(n), TTL, self.0 + after, self.1 + after) {
                Found::Good { renew: false, .. } => "good",
                Found::Good { renew: true, .. } => "renew",
                Found::Stale(_) => "stale",
                Found::Stranger(_) => "stranger",
                Found::Unknown => "unknown",
            }
        }
    }

    #[test]
    fn a_good_answer_serves_two_minutes_is_renewed_before_and_counts_ten_when_nobody_answers() {
        let (clock, mut cache) = (Clock::new(), Cache::default());
        cache.good(mark(1), clock.good(None));
        assert_eq!(clock.find(&mut cache, 1, 0), "good");
        assert_eq!(clock.find(&mut cache, 1, 89), "good");
        assert_eq!(clock.find(&mut cache, 1, 90), "renew");
        assert_eq!(clock.find(&mut cache, 1, 119), "renew");
        assert_eq!(clock.find(&mut cache, 1, 120), "stale");
        let at = |seconds| clock.0 + Duration::from_secs(seconds);
        cache.unanswered(mark(1), user("stranger"), at(120));
        assert_eq!(clock.find(&mut cache, 1, 121), "good");
        assert_eq!(clock.find(&mut cache, 1, 122), "stale");
        cache.unanswered(mark(1), user("stranger"), at(598));
        assert_eq!(clock.find(&mut cache, 1, 599), "good");
        cache.unanswered(mark(1), user("stranger"), at(599));
        assert_eq!(clock.find(&mut cache, 1, 600), "stranger");
        assert_eq!(clock.find(&mut cache, 1, 602), "unknown");
    }

    #[test]
    fn nothing_is_believed_past_the_token_s_own_end() {
        let (clock, mut cache) = (Clock::new(), Cache::default());
        cache.good(mark(1), clock.good(Some(30)));
        assert_eq!(clock.find(&mut cache, 1, 29), "good");
        assert_eq!(clock.find(&mut cache, 1, 30), "unknown");
        cache.unanswered(mark(1), user("stranger"), clock.0);
        assert_eq!(clock.find(&mut cache, 1, 1), "good");
        cache.unanswered(mark(1), user("stranger"), clock.0 + Duration::from_secs(30));
        assert_eq!(clock.find(&mut cache, 1, 31), "stranger");
    }

    #[test]
    fn a_bad_answer_serves_ten_seconds_and_ends_a_good_one() {
        let (clock, mut cache) = (Clock::new(), Cache::default());
        cache.good(mark(1), clock.good(None));
        cache.refused(mark(1), user("stranger"), clock.0);
        assert_eq!(clock.find(&mut cache, 1, 9), "stranger");
        assert_eq!(clock.find(&mut cache, 1, 10), "unknown");
        cache.good(mark(1), clock.good(None));
        assert_eq!(clock.find(&mut cache, 1, 1), "good");
    }

    #[test]
    fn a_token_that_the_api_server_refused_is_asked_for_anew_but_not_all_the_time() {
        let (clock, mut cache) = (Clock::new(), Cache::default());
        cache.good(mark(1), clock.good(None));
        cache.doubt(mark(1), clock.0 + Duration::from_secs(9));
        assert_eq!(clock.find(&mut cache, 1, 9), "good");
        cache.doubt(mark(1), clock.0 + Duration::from_secs(10));
        assert_eq!(clock.find(&mut cache, 1, 10), "stale");
    }

    #[test]
    fn it_is_bounded_and_a_flood_of_bad_tokens_drives_out_no_good_one() {
        let (clock, mut cache) = (Clock::new(), Cache::default());
        cache.good(mark(0), clock.good(None));
        for n in 1..20_000 {
            cache.refused(mark(n), user("stranger"), clock.0);
        }
        assert_eq!(clock.find(&mut cache, 0, 1), "good");
        assert!(cache.len().1 <= 2 * OTHERS);
        for n in 1..20_000 {
            cache.good(mark(n), clock.good(None));
            assert_eq!(clock.find(&mut cache, 0, 1), "good", "what is used is kept");
        }
        assert!(cache.len().0 <= 2 * GOOD);
    }

    #[test]
    fn large_users_are_bounded_by_what_they_weigh() {
        let (clock, mut cache) = (Clock::new(), Cache::default());
        let large = UserInfo {
            groups: vec!["g".repeat(1 << 20)],
            ..UserInfo::default()
        };
        for n in 0..100 {
            let mut good = clock.good(None);
            good.user = Arc::new(large.clone());
            cache.good(mark(n), good);
        }
        assert!(cache.len().0 <= 8, "{:?}", cache.len());
    }
}
