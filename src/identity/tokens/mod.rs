//! Authenticates bearer tokens: from the cache, by signature, or by a `TokenReview`.
//!
//! - Tokens are stored as keyed hashes only.
//! - A cached token costs a hash and a lookup.
//! - Concurrent requests with the same new token cause one `TokenReview`. Reviews of different
//!   tokens are sent at a configured rate.
//! - While reviews fail, the last successful result is used ([`token_cache::STALE_IF_ERROR`]), but
//!   never past the token's expiry.
//! - The user of a token that cannot be verified is `system:anonymous`. `RequestAuthenticator`
//!   decides which flow that is.
//!
//! The API server authenticates a forwarded token again. The result here affects the limits only.

pub(crate) mod key_source;
mod settings;
mod signature;
pub(crate) mod token_cache;
pub(crate) mod token_file;
pub(crate) mod token_review;
mod token_reviewer;
mod token_store;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::identity::accepted_tokens::AcceptedTokens;
use crate::identity::review_queue::fair_queue::ClientSource;
use crate::identity::tokens::key_source::KeySource;
use crate::identity::tokens::settings::TokenSettings;
use crate::identity::tokens::signature::SignatureOutcome;
use crate::identity::tokens::token_cache::{TokenCache, TokenState, VerifiedBy, VerifiedToken};
use crate::identity::tokens::token_reviewer::TokenReviewResult;
use crate::identity::tokens::token_store::TokenStore;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_tokens::hash::TokenHash;
use weir_tokens::jwt::Jwt;

pub use settings::TokenConfig;
pub(crate) use signature::ServiceAccountKeys;
pub use token_store::TokenMetrics;
pub(crate) use token_store::TokenOutcome;

/// How long a request waits for a review: without and with a stale result to fall back on.
/// Kubernetes gives a `TokenReview` 10 s. A request has 60 s in all, and without a result it loses
/// only its flow schema.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);
const STALE_REVIEW_TIMEOUT: Duration = Duration::from_secs(1);

/// Authenticates bearer tokens.
pub struct TokenAuthenticator {
    store: Arc<TokenStore>,
    settings: ArcSwap<TokenSettings>,
    /// Announces that the reviewer may be another one.
    replaced: Notify,
    /// Runs key fetches, which outlive the requests that wait for them.
    runtime: Handle,
}

/// The result of a cache lookup.
#[derive(Debug)]
pub(crate) enum TokenLookup {
    /// The cached result is valid.
    Cached(TokenOutcome),
    /// The token has to be verified. Holds the stale result, if there is one.
    Verify(Option<VerifiedToken>),
}

impl TokenAuthenticator {
    /// An authenticator with an empty cache. Key fetches run on the current runtime.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    #[must_use]
    pub fn new(config: TokenConfig, registry: &Registry) -> Arc<Self> {
        let store = Arc::new(TokenStore::new(TokenMetrics::register(registry)));
        let settings = TokenSettings::new(config, &store, Clock.now());
        Arc::new(Self {
            store,
            settings: ArcSwap::from_pointee(settings),
            replaced: Notify::new(),
            runtime: Handle::current(),
        })
    }

    /// Replaces the settings. Results by signature are void at once if a key of theirs is gone or
    /// their issuer has changed; those of reviews stay, and are reviewed again if the audiences
    /// have changed. Rejections are forgotten. Issuers that are in both keep the keys that were
    /// fetched for them, and queued reviews stay queued.
    pub(crate) fn replace(&self, config: TokenConfig) {
        let earlier = self.settings.load();
        let settings = earlier.replaced_by(config, &self.store, Clock.now());
        self.settings.store(Arc::new(settings));
        self.store.for_each_shard(TokenCache::forget_unverified);
        self.replaced.notify_one();
    }

    /// Sends the queued reviews until cancelled. Keys are not fetched here, but when the first
    /// token needs them.
    ///
    /// # Cancel safety
    /// Cancel safe: reviews that are still queued are not sent.
    pub async fn run(self: Arc<Self>) {
        loop {
            let reviewer = self.settings.load().reviewer.clone();
            let sending = async {
                match reviewer {
                    Some(reviewer) => reviewer.run(&self.store).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.replaced.notified() => {}
                () = sending => return,
            }
        }
    }

    /// Whether tokens can be verified at all: by reviews or with configured keys. If not, an
    /// unverified token is treated like any other.
    #[must_use]
    pub(crate) fn can_verify(&self) -> bool {
        let settings = self.settings.load();
        settings.signature_verifier.can_verify() || settings.reviewer.is_some()
    }

    /// The tokens whose requests may share connections.
    #[must_use]
    pub(crate) fn accepted_tokens(&self) -> &AcceptedTokens {
        &self.store.accepted
    }

    /// Looks up a token in the cache. Does not wait. Queues a review without waiting for it if the
    /// cached result is due for renewal.
    #[must_use]
    pub(crate) fn look_up(
        self: &Arc<Self>,
        token_hash: TokenHash,
        token: &[u8],
        source: ClientSource,
        now: Instant,
        wall: SystemTime,
    ) -> TokenLookup {
        let settings = self.settings.load();
        let state = self.store.shard(token_hash).find(
            token_hash,
            settings.cache_ttl,
            (now, wall),
            |stamp| settings.signature_verifier.has_stamp(stamp),
        );
        match state {
            TokenState::Fresh { .. } | TokenState::Unverified(_) => {
                self.store.metrics.cache_hits.inc()
            }
            TokenState::Stale(_) | TokenState::Unknown => self.store.metrics.cache_misses.inc(),
        }
        match state {
            TokenState::Fresh { verified, renew } => {
                if renew && let Some(reviewer) = &settings.reviewer {
                    // Later requests find the result in the cache.
                    drop(reviewer.submit(token_hash, token, source, true, now));
                }
                TokenLookup::Cached(verified.into())
            }
            TokenState::Unverified(user) => TokenLookup::Cached(TokenOutcome {
                user,
                verified_by: None,
            }),
            TokenState::Stale(verified) => TokenLookup::Verify(Some(verified)),
            TokenState::Unknown => TokenLookup::Verify(None),
        }
    }

    /// Verifies a token by signature or by a review.
    ///
    /// # Cancel safety
    /// Cancel safe: key fetches and reviews that other requests may share continue.
    pub(crate) async fn verify(
        self: &Arc<Self>,
        token_hash: TokenHash,
        token: &[u8],
        source: ClientSource,
        stale: Option<VerifiedToken>,
    ) -> TokenOutcome {
        let settings = self.settings.load_full();
        let must_revalidate = stale
            .as_ref()
            .is_some_and(|verified| verified.must_revalidate)
            && settings.reviewer.is_some();
        if !must_revalidate
            && let Some(verified) = self.verify_by_signature(&settings, token_hash, token).await
        {
            return verified;
        }
        let timeout = if stale.is_some() {
            STALE_REVIEW_TIMEOUT
        } else {
            REVIEW_TIMEOUT
        };
        let result = match &settings.reviewer {
            Some(reviewer) => {
                let pending =
                    reviewer.submit(token_hash, token, source, stale.is_some(), Clock.now());
                match pending {
                    Some(pending) => tokio::time::timeout(timeout, pending.wait())
                        .await
                        .ok()
                        .flatten()
                        .unwrap_or(TokenReviewResult::Unanswered),
                    None => {
                        self.store.metrics.skipped.inc();
                        TokenReviewResult::Unanswered
                    }
                }
            }
            None => TokenReviewResult::Unanswered,
        };
        match result {
            TokenReviewResult::Completed(verified) => verified,
            TokenReviewResult::Unanswered => self.store.record_unanswered(token_hash, stale),
        }
    }

    /// Verifies a token by signature, and fetches keys if they are missing. `None` if a review is
    /// needed.
    async fn verify_by_signature(
        self: &Arc<Self>,
        settings: &Arc<TokenSettings>,
        token_hash: TokenHash,
        token: &[u8],
    ) -> Option<TokenOutcome> {
        let jwt = Jwt::parse(token)?;
        let mut outcome = self.check_signature(settings, &jwt);
        if let SignatureOutcome::FetchKeys(key_source) = outcome {
            if !key_source.may_fetch(Clock.now()) {
                return None;
            }
            let fetch = self.spawn_key_fetch(key_source);
            let _ = tokio::time::timeout(REVIEW_TIMEOUT, fetch).await;
            outcome = self.check_signature(settings, &jwt);
        }
        match outcome {
            SignatureOutcome::Valid(valid, stamp) => {
                let verified = VerifiedToken {
                    user: Arc::new(valid.user),
                    verified_at: Clock.now(),
                    expires_at: Some(signature::expiry_time(valid.expires_at)),
                    verified_by: VerifiedBy::Signature(stamp),
                    must_revalidate: false,
                };
                self.store
                    .shard(token_hash)
                    .insert_verified(token_hash, verified.clone());
                Some(verified.into())
            }
            // The keys of a reload during the verification may verify it.
            SignatureOutcome::Rejected if !Arc::ptr_eq(settings, &self.settings.load()) => None,
            SignatureOutcome::Rejected => Some(self.store.record_rejection(token_hash)),
            SignatureOutcome::FetchKeys(_) | SignatureOutcome::NeedsReview => None,
        }
    }

    fn check_signature<'s>(
        &self,
        settings: &'s TokenSettings,
        jwt: &Jwt<'_>,
    ) -> SignatureOutcome<'s> {
        settings
            .signature_verifier
            .verify(jwt, Clock.wall(), |key_source| {
                drop(self.spawn_key_fetch(key_source))
            })
    }

    /// Records that the API server answered 401 to a request with this token.
    pub(crate) fn record_unauthorized(&self, token_hash: TokenHash, now: Instant) {
        self.store
            .shard(token_hash)
            .record_unauthorized(token_hash, now);
    }

    fn spawn_key_fetch(&self, key_source: &Arc<KeySource>) -> tokio::task::JoinHandle<()> {
        let (store, key_source) = (Arc::clone(&self.store), Arc::clone(key_source));
        self.runtime.spawn(async move {
            match key_source.fetch().await {
                None => {}
                Some(Ok(())) => {
                    store.metrics.key_fetches.with_label_values(&["fetched"]).inc();
                    info!("keys that tokens are signed with are here");
                }
                Some(Err(why)) => {
                    store.metrics.key_fetches.with_label_values(&["failed"]).inc();
                    warn!(%why, "cannot fetch the keys that verify tokens; keys fetched before stay in use, other tokens are reviewed. Where the API server's own \
                         keys get 403, weir's own credentials need the ClusterRole system:service-account-issuer-discovery");
                }
            }
        })
    }
}

impl fmt::Debug for TokenAuthenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = self.settings.load();
        f.debug_struct("TokenAuthenticator")
            .field("issuers", &settings.signature_verifier.issuers.len())
            .field("reviews", &settings.reviewer.is_some())
            .finish_non_exhaustive()
    }
}
