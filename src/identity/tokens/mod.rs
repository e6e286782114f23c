//! Whose a bearer token is: what is known already, what its signature says, and what the API server says of it.
//!
//! Promises: a token is kept by keyed hash only; what is known costs a hash and a look-up; many who come with the same new token
//! cause one `TokenReview`, and a flood of different ones a set rate of them; while nobody answers, the last good answer counts
//! ([`token_cache::STALE_IF_ERROR`]), never past the token's end; whatever could not be verified is `system:anonymous` (which flow that is,
//! [`Identity`](crate::identity::Identity) decides).
//! For a request that goes on with its token the API server judges again: what is found out here decides about limits only.

pub mod key_source;
mod signature;
pub mod token_cache;
pub mod token_file;
pub mod token_review;
mod token_reviewer;

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
use crate::identity::accepted_tokens::AcceptedTokens;
use crate::identity::accepted_tokens::TokenHash;
use crate::identity::jwt::Jwt;
use crate::identity::jwt::JwtIssuer;
use crate::identity::review_queue::fair_queue::ClientSource;
use crate::identity::tokens::key_source::KeySource;
use crate::identity::tokens::signature::SignatureOutcome;
use crate::identity::tokens::token_cache::TokenCache;
use crate::identity::tokens::token_cache::TokenState;
use crate::identity::tokens::token_cache::VerifiedBy;
use crate::identity::tokens::token_cache::VerifiedToken;
use crate::identity::tokens::token_reviewer::TokenReviewResult;
use crate::identity::tokens::token_reviewer::TokenReviewer;
use crate::identity::transport::ApiTransport;
use crate::metrics::Registry;

/// Locks that the cache is spread over.
const SHARDS: usize = 16;

/// How long a request waits for word about its token: with a last good answer to go by, and without. Kubernetes gives a
/// `TokenReview` 10 s; a request has 60 in all, and loses nothing but its class by not knowing.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);
const STALE_REVIEW_TIMEOUT: Duration = Duration::from_secs(1);

/// How tokens are verified.
#[derive(Debug)]
pub struct TokenConfig {
    /// The issuers of `--authentication-config`, and their keys.
    pub issuers: Vec<(JwtIssuer, Arc<KeySource>)>,
    /// The service accounts' keys, if there is a way to have them.
    pub service_accounts: Option<ServiceAccountKeys>,
    /// Whom to ask for a review, if anybody.
    pub api_server: Option<Arc<dyn ApiTransport>>,
    /// `--token-reviews-per-second`.
    pub reviews_per_second: u32,
    /// `--api-audiences`.
    pub audiences: Vec<String>,
    /// `--authentication-token-webhook-cache-ttl`.
    pub cache_ttl: Duration,
}

/// What is known of the API server's service accounts.
#[derive(Debug)]
pub struct ServiceAccountKeys {
    /// Their keys.
    pub keys: Arc<KeySource>,
    /// `--service-account-issuer`; what the API server says where there is none.
    pub issuers: Vec<String>,
}

/// Verifies tokens.
pub struct TokenAuthenticator {
    shards: [Mutex<TokenCache>; SHARDS],
    config: TokenConfig,
    /// Those whose requests may share connections: what is found out here and what the API server answers say so.
    accepted: AcceptedTokens,
    reviewer: Option<Arc<TokenReviewer>>,
    /// Where fetches run on: whoever waits for them may go away.
    runtime: Handle,
    metrics: TokenMetrics,
}

/// What became of a token.
#[derive(Clone, Debug)]
pub struct TokenOutcome {
    /// Whom the limits see.
    pub user: Arc<UserInfo>,
    /// Who vouches for it; nobody for a stranger.
    pub verified_by: Option<VerifiedBy>,
}

impl From<VerifiedToken> for TokenOutcome {
    fn from(good: VerifiedToken) -> Self {
        Self {
            user: good.user,
            verified_by: Some(good.verified_by),
        }
    }
}

/// What is known of a token at once.
#[derive(Debug)]
pub enum TokenLookup {
    /// This.
    Cached(TokenOutcome),
    /// It has to be verified; this was the last good answer.
    Verify(Option<VerifiedToken>),
}

/// What is counted here.
#[derive(Debug)]
pub struct TokenMetrics {
    reviews: IntCounterVec,
    skipped: IntCounter,
    waiting: IntGauge,
    key_fetches: IntCounterVec,
    cache_hits: IntCounter,
    cache_misses: IntCounter,
}

impl TokenMetrics {
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
            cache_hits: looked_up.with_label_values(&["hit"]),
            cache_misses: looked_up.with_label_values(&["miss"]),
            reviews,
            skipped: registry.counter(
                "weir_token_reviews_passed_over_total",
                "Tokens that were not reviewed because too many waited for it or weir may not ask: their requests count as system:anonymous.",
            ),
            waiting: registry.gauge(
                "weir_token_reviews_waiting",
                "TokenReviews that wait for their turn to be asked.",
            ),
            key_fetches: registry.counters(
                "weir_token_key_fetches_total",
                "Fetches of the keys that tokens are signed with, by result (fetched, failed).",
                &["result"],
            ),
        }
    }
}

impl TokenAuthenticator {
    /// A verifier without knowledge; its calls run on the runtime that this is called in.
    #[must_use]
    pub fn new(config: TokenConfig, registry: &Registry) -> Arc<Self> {
        let metrics = TokenMetrics::register(registry);
        let reviews = config
            .api_server
            .as_ref()
            .filter(|_| config.reviews_per_second > 0)
            .map(|reviewer| {
                TokenReviewer::new(
                    Arc::clone(reviewer),
                    config.reviews_per_second,
                    config.audiences.clone(),
                    Clock.now(),
                    metrics.waiting.clone(),
                )
            });
        Arc::new(Self {
            shards: Default::default(),
            config,
            accepted: AcceptedTokens::default(),
            reviewer: reviews,
            runtime: Handle::current(),
            metrics,
        })
    }

    /// Reviews tokens from now on. Keys are fetched when the first token that takes them comes.
    ///
    /// # Cancel safety
    /// Tokens whose turn had not come are not reviewed.
    pub async fn run(self: Arc<Self>) {
        if let Some(reviews) = &self.reviewer {
            Arc::clone(reviews).run(&self).await;
        }
    }

    /// Whether there is a way to verify tokens at all: a review, or keys that were given. Where there is none, a token that is not
    /// verified is as good as any other.
    #[must_use]
    pub fn can_verify(&self) -> bool {
        let TokenConfig {
            issuers,
            service_accounts: accounts,
            ..
        } = &self.config;
        let given = accounts
            .as_ref()
            .is_some_and(|accounts| accounts.keys.is_static());
        !issuers.is_empty() || given || self.reviewer.is_some()
    }

    /// The tokens that may share connections.
    #[must_use]
    pub const fn accepted_tokens(&self) -> &AcceptedTokens {
        &self.accepted
    }

    fn shard(&self, mark: TokenHash) -> MutexGuard<'_, TokenCache> {
        let [first, ..] = &self.shards;
        self.shards
            .get(mark.shard(SHARDS))
            .unwrap_or(first)
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the token of `mark`: without waiting, without making anything.
    #[must_use]
    pub fn look_up(
        self: &Arc<Self>,
        mark: TokenHash,
        token: &[u8],
        asker: ClientSource,
        now: Instant,
        wall: SystemTime,
    ) -> TokenLookup {
        let found = self
            .shard(mark)
            .find(mark, self.config.cache_ttl, now, wall);
        match found {
            TokenState::Fresh { .. } | TokenState::Unverified(_) => self.metrics.cache_hits.inc(),
            TokenState::Stale(_) | TokenState::Unknown => self.metrics.cache_misses.inc(),
        }
        match found {
            TokenState::Fresh { good, renew } => {
                if renew && let Some(reviews) = &self.reviewer {
                    // Whoever comes after it has ended finds the answer there.
                    drop(reviews.submit(mark, token, asker, true, now));
                }
                TokenLookup::Cached(good.into())
            }
            TokenState::Unverified(user) => TokenLookup::Cached(TokenOutcome {
                user,
                verified_by: None,
            }),
            TokenState::Stale(good) => TokenLookup::Verify(Some(good)),
            TokenState::Unknown => TokenLookup::Verify(None),
        }
    }

    /// Verifies the token of `mark`: by its signature, or by asking.
    ///
    /// # Cancel safety
    /// What was begun for others too goes on.
    pub async fn verify(
        self: &Arc<Self>,
        mark: TokenHash,
        token: &[u8],
        asker: ClientSource,
        last: Option<VerifiedToken>,
    ) -> TokenOutcome {
        let doubted =
            last.as_ref().is_some_and(|good| good.must_revalidate) && self.reviewer.is_some();
        if !doubted && let Some(verified) = self.verify_by_signature(mark, token).await {
            return verified;
        }
        let patience = if last.is_some() {
            STALE_REVIEW_TIMEOUT
        } else {
            REVIEW_TIMEOUT
        };
        let settled = match &self.reviewer {
            Some(reviews) => {
                let begun = reviews.submit(mark, token, asker, last.is_some(), Clock.now());
                match begun {
                    Some(begun) => tokio::time::timeout(patience, begun.wait())
                        .await
                        .ok()
                        .flatten()
                        .unwrap_or(TokenReviewResult::Unanswered),
                    None => {
                        self.metrics.skipped.inc();
                        TokenReviewResult::Unanswered
                    }
                }
            }
            None => TokenReviewResult::Unanswered,
        };
        match settled {
            TokenReviewResult::Completed(verified) => verified,
            TokenReviewResult::Unanswered => self.record_unanswered(mark, last),
        }
    }

    /// Judges by signature, fetching keys where that may help; `None` where it takes a review.
    async fn verify_by_signature(
        self: &Arc<Self>,
        mark: TokenHash,
        token: &[u8],
    ) -> Option<TokenOutcome> {
        let jwt = Jwt::parse(token)?;
        let mut judgement = self.verify_signature(&jwt, Clock.wall());
        if let SignatureOutcome::FetchKeys(source) = judgement {
            if !source.may_fetch(Clock.now()) {
                return None;
            }
            let fetching = self.spawn_key_fetch(source);
            let _ = tokio::time::timeout(REVIEW_TIMEOUT, fetching).await;
            judgement = self.verify_signature(&jwt, Clock.wall());
        }
        match judgement {
            SignatureOutcome::Valid(valid) => {
                let good = VerifiedToken {
                    user: Arc::new(valid.user),
                    verified_at: Clock.now(),
                    expires_at: Some(signature::expiry_time(valid.expires_at)),
                    verified_by: VerifiedBy::Signature,
                    must_revalidate: false,
                };
                self.shard(mark).insert_verified(mark, good.clone());
                Some(good.into())
            }
            SignatureOutcome::Rejected => Some(self.record_rejection(mark)),
            SignatureOutcome::FetchKeys(_) | SignatureOutcome::NeedsReview => None,
        }
    }

    fn record_rejection(&self, mark: TokenHash) -> TokenOutcome {
        let stranger = Arc::new(mark.unverified_user());
        self.shard(mark)
            .insert_rejected(mark, Arc::clone(&stranger), Clock.now());
        TokenOutcome {
            user: stranger,
            verified_by: None,
        }
    }

    fn record_unanswered(&self, mark: TokenHash, last: Option<VerifiedToken>) -> TokenOutcome {
        let stranger = Arc::new(mark.unverified_user());
        self.shard(mark)
            .insert_unanswered(mark, Arc::clone(&stranger), Clock.now());
        match last {
            Some(good) => good.into(),
            None => TokenOutcome {
                user: stranger,
                verified_by: None,
            },
        }
    }

    /// The API server has answered 401 to a request with the token of `mark`.
    pub fn record_unauthorized(&self, mark: TokenHash, now: Instant) {
        self.shard(mark).record_unauthorized(mark, now);
    }

    fn spawn_key_fetch(self: &Arc<Self>, source: &Arc<KeySource>) -> tokio::task::JoinHandle<()> {
        let (tokens, source) = (Arc::clone(self), Arc::clone(source));
        self.runtime.spawn(async move {
            match source.fetch().await {
                None => {}
                Some(Ok(())) => {
                    tokens.metrics.key_fetches.with_label_values(&["fetched"]).inc();
                    info!("keys that tokens are signed with are here");
                }
                Some(Err(why)) => {
                    tokens.metrics.key_fetches.with_label_values(&["failed"]).inc();
                    warn!(%why, "no keys to verify tokens with; what was there serves, and reviews are asked for the rest. Where the API server's own \
                         keys are answered 403, weir's own credential needs the ClusterRole system:service-account-issuer-discovery");
                }
            }
        })
    }
}

impl fmt::Debug for TokenAuthenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("issuers", &self.config.issuers.len())
            .field("reviews", &self.reviewer.is_some())
            .finish_non_exhaustive()
    }
}
