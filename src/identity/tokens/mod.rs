//! Whose a bearer token is: what is known already, what its signature says, and what the API server says of it.
//!
//! Promises: a token is kept by keyed hash only; what is known costs a hash and a look-up; many who come with the same new token
//! cause one `TokenReview`, and a flood of different ones a set rate of them; while nobody answers, the last good answer counts
//! ([`cache::LAST_GOOD`]), never past the token's end; whatever could not be verified is `system:anonymous` (which flow that is,
//! [`Identity`](crate::identity::Identity) decides).
//! For a request that goes on with its token the API server judges again: what is found out here decides about limits only.

pub mod cache;
mod judge;
pub mod review;
mod reviews;
pub mod source;
pub mod turns;

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;

use prometheus::IntCounter;
use prometheus::IntCounterVec;
use prometheus::IntGauge;
use tokio::runtime::Handle;
use tracing::info;
use tracing::warn;

use crate::api::UserInfo;
use crate::clock::Clock;
use crate::identity::jwt::Issuer;
use crate::identity::jwt::Jwt;
use crate::identity::proven::Mark;
use crate::identity::proven::ProvenTokens;
use crate::identity::remote::ApiServer;
use crate::identity::tokens::cache::Cache;
use crate::identity::tokens::cache::Found;
use crate::identity::tokens::cache::Good;
use crate::identity::tokens::cache::Voucher;
use crate::identity::tokens::judge::Judgement;
use crate::identity::tokens::reviews::Reviews;
use crate::identity::tokens::reviews::Settled;
use crate::identity::tokens::source::KeySource;
use crate::identity::tokens::turns::Asker;
use crate::metrics::Registry;

/// Locks that the cache is spread over.
const PARTS: usize = 16;

/// How long a request waits for word about its token: with a last good answer to go by, and without. Kubernetes gives a
/// `TokenReview` 10 s; a request has 60 in all, and loses nothing but its class by not knowing.
const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_WITH_LAST: Duration = Duration::from_secs(1);

/// How tokens are verified.
#[derive(Debug)]
pub struct Config {
    /// The issuers of `--authentication-config`, and their keys.
    pub issuers: Vec<(Issuer, Arc<KeySource>)>,
    /// The service accounts' keys, if there is a way to have them.
    pub accounts: Option<Accounts>,
    /// Whom to ask for a review, if anybody.
    pub reviewer: Option<Arc<dyn ApiServer>>,
    /// `--token-reviews-per-second`.
    pub reviews_per_second: u32,
    /// `--api-audiences`.
    pub audiences: Vec<String>,
    /// `--authentication-token-webhook-cache-ttl`.
    pub ttl: Duration,
}

/// What is known of the API server's service accounts.
#[derive(Debug)]
pub struct Accounts {
    /// Their keys.
    pub keys: Arc<KeySource>,
    /// `--service-account-issuer`; what the API server says where there is none.
    pub issuers: Vec<String>,
}

/// Verifies tokens.
pub struct Tokens {
    parts: [Mutex<Cache>; PARTS],
    config: Config,
    /// Those whose requests may share connections: what is found out here and what the API server answers say so.
    proven: ProvenTokens,
    reviews: Option<Arc<Reviews>>,
    /// Where fetches run on: whoever waits for them may go away.
    runtime: Handle,
    metrics: Metrics,
}

/// What became of a token.
#[derive(Clone, Debug)]
pub struct Verified {
    /// Whom the limits see.
    pub user: Arc<UserInfo>,
    /// Who vouches for it; nobody for a stranger.
    pub voucher: Option<Voucher>,
}

impl From<Good> for Verified {
    fn from(good: Good) -> Self {
        Self {
            user: good.user,
            voucher: Some(good.voucher),
        }
    }
}

/// What is known of a token at once.
#[derive(Debug)]
pub enum LookUp {
    /// This.
    Known(Verified),
    /// It has to be verified; this was the last good answer.
    Verify(Option<Good>),
}

/// What is counted here.
#[derive(Debug)]
pub struct Metrics {
    reviews: IntCounterVec,
    passed_over: IntCounter,
    waiting: IntGauge,
    fetches: IntCounterVec,
    hits: IntCounter,
    misses: IntCounter,
}

impl Metrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let looked_up = registry.counters(
            "authentication_token_cache_request_total",
            "[ALPHA] Tokens that were looked up among those known, by whether they were (hit, miss).",
            &["status"],
        );
        let reviews = registry.counters(
            "weir_token_reviews_total",
            "TokenReviews that the API server was asked for, by result (authenticated, refused, unanswered).",
            &["result"],
        );
        // An alert goes by how it grows: it is there before it does.
        reviews.with_label_values(&["unanswered"]);
        Self {
            hits: looked_up.with_label_values(&["hit"]),
            misses: looked_up.with_label_values(&["miss"]),
            reviews,
            passed_over: registry.counter(
                "weir_token_reviews_passed_over_total",
                "Tokens that were not reviewed because too many waited for it or weir may not ask: their requests count as system:anonymous.",
            ),
            waiting: registry.gauge(
                "weir_token_reviews_waiting",
                "TokenReviews that wait for their turn to be asked.",
            ),
            fetches: registry.counters(
                "weir_token_key_fetches_total",
                "Fetches of the keys that tokens are signed with, by result (fetched, failed).",
                &["result"],
            ),
        }
    }
}

impl Tokens {
    /// A verifier without knowledge; its calls run on the runtime that this is called in.
    #[must_use]
    pub fn new(config: Config, registry: &Registry) -> Arc<Self> {
        let metrics = Metrics::register(registry);
        let reviews = config
            .reviewer
            .as_ref()
            .filter(|_| config.reviews_per_second > 0)
            .map(|reviewer| {
                Reviews::new(
                    Arc::clone(reviewer),
                    config.reviews_per_second,
                    config.audiences.clone(),
                    Clock.now(),
                    metrics.waiting.clone(),
                )
            });
        Arc::new(Self {
            parts: Default::default(),
            config,
            proven: ProvenTokens::default(),
            reviews,
            runtime: Handle::current(),
            metrics,
        })
    }

    /// Reviews tokens from now on. Keys are fetched when the first token that takes them comes.
    ///
    /// # Cancel safety
    /// Tokens whose turn had not come are not reviewed.
    pub async fn run(self: Arc<Self>) {
        if let Some(reviews) = &self.reviews {
            Arc::clone(reviews).run(&self).await;
        }
    }

    /// Whether there is a way to verify tokens at all: a review, or keys that were given. Where there is none, a token that is not
    /// verified is as good as any other.
    #[must_use]
    pub fn verifies(&self) -> bool {
        let Config {
            issuers, accounts, ..
        } = &self.config;
        let given = accounts
            .as_ref()
            .is_some_and(|accounts| accounts.keys.is_given());
        !issuers.is_empty() || given || self.reviews.is_some()
    }

    /// The tokens that may share connections.
    #[must_use]
    pub const fn proven(&self) -> &ProvenTokens {
        &self.proven
    }

    fn part(&self, mark: Mark) -> MutexGuard<'_, Cache> {
        let [first, ..] = &self.parts;
        self.parts
            .get(mark.part(PARTS))
            .unwrap_or(first)
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the token of `mark`: without waiting, without making anything.
    #[must_use]
    pub fn look_up(
        self: &Arc<Self>,
        mark: Mark,
        token: &[u8],
        asker: Asker,
        now: Instant,
        wall: SystemTime,
    ) -> LookUp {
        let found = self.part(mark).find(mark, self.config.ttl, now, wall);
        match found {
            Found::Good { .. } | Found::Stranger(_) => self.metrics.hits.inc(),
            Found::Stale(_) | Found::Unknown => self.metrics.misses.inc(),
        }
        match found {
            Found::Good { good, renew } => {
                if renew && let Some(reviews) = &self.reviews {
                    // Whoever comes after it has ended finds the answer there.
                    drop(reviews.begin(mark, token, asker, true, now));
                }
                LookUp::Known(good.into())
            }
            Found::Stranger(user) => LookUp::Known(Verified {
                user,
                voucher: None,
            }),
            Found::Stale(good) => LookUp::Verify(Some(good)),
            Found::Unknown => LookUp::Verify(None),
        }
    }

    /// Verifies the token of `mark`: by its signature, or by asking.
    ///
    /// # Cancel safety
    /// What was begun for others too goes on.
    pub async fn verify(
        self: &Arc<Self>,
        mark: Mark,
        token: &[u8],
        asker: Asker,
        last: Option<Good>,
    ) -> Verified {
        let doubted = last.as_ref().is_some_and(|good| good.doubted) && self.reviews.is_some();
        if !doubted && let Some(verified) = self.by_signature(mark, token).await {
            return verified;
        }
        let patience = if last.is_some() {
            PATIENCE_WITH_LAST
        } else {
            PATIENCE
        };
        let settled = match &self.reviews {
            Some(reviews) => {
                let begun = reviews.begin(mark, token, asker, last.is_some(), Clock.now());
                match begun {
                    Some(begun) => tokio::time::timeout(patience, begun.answered())
                        .await
                        .ok()
                        .flatten()
                        .unwrap_or(Settled::Unanswered),
                    None => {
                        self.metrics.passed_over.inc();
                        Settled::Unanswered
                    }
                }
            }
            None => Settled::Unanswered,
        };
        match settled {
            Settled::Verified(verified) => verified,
            Settled::Unanswered => self.without_answer(mark, last),
        }
    }

    /// Judges by signature, fetching keys where that may help; `None` where it takes a review.
    async fn by_signature(self: &Arc<Self>, mark: Mark, token: &[u8]) -> Option<Verified> {
        let jwt = Jwt::parse(token)?;
        let mut judgement = self.judge(&jwt, Clock.wall());
        if let Judgement::Fetch(source) = judgement {
            if !source.may_fetch(Clock.now()) {
                return None;
            }
            let fetching = self.fetch_behind(source);
            let _ = tokio::time::timeout(PATIENCE, fetching).await;
            judgement = self.judge(&jwt, Clock.wall());
        }
        match judgement {
            Judgement::Valid(valid) => {
                let good = Good {
                    user: Arc::new(valid.user),
                    since: Clock.now(),
                    expires: Some(judge::end(valid.expires)),
                    voucher: Voucher::Signature,
                    doubted: false,
                };
                self.part(mark).good(mark, good.clone());
                Some(good.into())
            }
            Judgement::Refused => Some(self.refuse(mark)),
            Judgement::Fetch(_) | Judgement::Review => None,
        }
    }

    fn refuse(&self, mark: Mark) -> Verified {
        let stranger = Arc::new(mark.stranger());
        self.part(mark)
            .refused(mark, Arc::clone(&stranger), Clock.now());
        Verified {
            user: stranger,
            voucher: None,
        }
    }

    fn without_answer(&self, mark: Mark, last: Option<Good>) -> Verified {
        let stranger = Arc::new(mark.stranger());
        self.part(mark)
            .unanswered(mark, Arc::clone(&stranger), Clock.now());
        match last {
            Some(good) => good.into(),
            None => Verified {
                user: stranger,
                voucher: None,
            },
        }
    }

    /// The API server has answered 401 to a request with the token of `mark`.
    pub fn doubt(&self, mark: Mark, now: Instant) {
        self.part(mark).doubt(mark, now);
    }

    fn fetch_behind(self: &Arc<Self>, source: &Arc<KeySource>) -> tokio::task::JoinHandle<()> {
        let (tokens, source) = (Arc::clone(self), Arc::clone(source));
        self.runtime.spawn(async move {
            match source.fetch().await {
                None => {}
                Some(Ok(())) => {
                    tokens.metrics.fetches.with_label_values(&["fetched"]).inc();
                    info!("keys that tokens are signed with are here");
                }
                Some(Err(why)) => {
                    tokens.metrics.fetches.with_label_values(&["failed"]).inc();
                    warn!(%why, "no keys to verify tokens with; what was there serves, and reviews are asked for the rest. Where the API server's own \
                         keys are answered 403, weir's own credential needs the ClusterRole system:service-account-issuer-discovery");
                }
            }
        })
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("issuers", &self.config.issuers.len())
            .field("reviews", &self.reviews.is_some())
            .finish_non_exhaustive()
    }
}
