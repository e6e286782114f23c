//! State that the authenticator and the reviewer share: cached tokens, accepted tokens and metrics.

use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

use prometheus::{IntCounter, IntCounterVec, IntGauge};

use crate::identity::accepted_tokens::AcceptedTokens;
use crate::identity::tokens::token_cache::{TokenCache, VerifiedBy, VerifiedToken};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_kubernetes::api::UserInfo;
use weir_tokens::hash::TokenHash;

/// The number of shards of the cache, each with a lock of its own.
const SHARDS: usize = 16;

/// The result of verifying a token.
#[derive(Clone, Debug)]
pub(crate) struct TokenOutcome {
    /// The user that the limits apply to.
    pub(crate) user: Arc<UserInfo>,
    /// How the token was verified. `None` if it was not.
    pub(crate) verified_by: Option<VerifiedBy>,
}

impl From<VerifiedToken> for TokenOutcome {
    fn from(verified: VerifiedToken) -> Self {
        Self {
            user: verified.user,
            verified_by: Some(verified.verified_by),
        }
    }
}

/// The metrics of token authentication.
#[derive(Debug)]
pub struct TokenMetrics {
    pub(super) reviews: IntCounterVec,
    pub(super) skipped: IntCounter,
    pub(super) waiting: IntGauge,
    pub(super) key_fetches: IntCounterVec,
    pub(super) cache_hits: IntCounter,
    pub(super) cache_misses: IntCounter,
}

impl TokenMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let lookups = registry.counters(
            "authentication_token_cache_request_total",
            "[ALPHA] Lookups in the token cache, by result (hit, miss).",
            &["status"],
        );
        let reviews = registry.counters(
            "weir_token_reviews_total",
            "TokenReviews sent to the API server, by result (authenticated, refused, unanswered).",
            &["result"],
        );
        // An alert watches the increase, so the series has to exist before the first failure.
        reviews.with_label_values(&["unanswered"]);
        Self {
            cache_hits: lookups.with_label_values(&["hit"]),
            cache_misses: lookups.with_label_values(&["miss"]),
            reviews,
            skipped: registry.counter(
                "weir_token_reviews_passed_over_total",
                "Tokens that were not reviewed because too many reviews waited or weir may not create them: their requests count as system:anonymous.",
            ),
            waiting: registry.gauge(
                "weir_token_reviews_waiting",
                "TokenReviews that wait to be sent.",
            ),
            key_fetches: registry.counters(
                "weir_token_key_fetches_total",
                "Fetches of the keys that tokens are signed with, by result (fetched, failed).",
                &["result"],
            ),
        }
    }
}

/// What is cached about tokens, and which of them the API server has accepted.
pub(super) struct TokenStore {
    shards: [Mutex<TokenCache>; SHARDS],
    /// Tokens whose requests may share connections. Reviews and the API server's responses to
    /// requests update it.
    pub(super) accepted: AcceptedTokens,
    pub(super) metrics: TokenMetrics,
}

impl TokenStore {
    pub(super) fn new(metrics: TokenMetrics) -> Self {
        Self {
            shards: Default::default(),
            accepted: AcceptedTokens::default(),
            metrics,
        }
    }

    pub(super) fn shard(&self, token_hash: TokenHash) -> MutexGuard<'_, TokenCache> {
        let [first, ..] = &self.shards;
        self.shards
            .get(token_hash.shard(SHARDS))
            .unwrap_or(first)
            .lock()
    }

    /// Applies `change` to each shard of the cache.
    pub(super) fn for_each_shard(&self, change: impl Fn(&mut TokenCache)) {
        self.shards
            .iter()
            .for_each(|shard| change(&mut shard.lock()));
    }

    pub(super) fn record_rejection(&self, token_hash: TokenHash) -> TokenOutcome {
        let user = Arc::new(token_hash.unverified_user());
        self.shard(token_hash)
            .insert_rejected(token_hash, Arc::clone(&user), Clock.now());
        TokenOutcome {
            user,
            verified_by: None,
        }
    }

    pub(super) fn record_unanswered(
        &self,
        token_hash: TokenHash,
        stale: Option<VerifiedToken>,
    ) -> TokenOutcome {
        let user = Arc::new(token_hash.unverified_user());
        self.shard(token_hash)
            .insert_unanswered(token_hash, Arc::clone(&user), Clock.now());
        match stale {
            Some(verified) => verified.into(),
            None => TokenOutcome {
                user,
                verified_by: None,
            },
        }
    }
}
