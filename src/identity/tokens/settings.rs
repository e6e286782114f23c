//! The settings of token authentication, which a reload replaces as a whole.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::identity::tokens::key_source::KeySource;
use crate::identity::tokens::signature::{ServiceAccountKeys, SignatureVerifier};
use crate::identity::tokens::token_cache::TokenCache;
use crate::identity::tokens::token_reviewer::TokenReviewer;
use crate::identity::tokens::token_store::TokenStore;
use crate::identity::transport::ApiTransport;
use weir_tokens::jwt::JwtIssuer;

/// The configuration of a [`TokenAuthenticator`](crate::identity::tokens::TokenAuthenticator).
#[derive(Debug)]
pub struct TokenConfig {
    /// The issuers of `--authentication-config`, and their keys.
    pub issuers: Vec<(JwtIssuer, Arc<KeySource>)>,
    /// The keys of service account tokens, if they can be obtained.
    pub service_accounts: Option<ServiceAccountKeys>,
    /// The API server that reviews tokens. `None` for no reviews.
    pub api_server: Option<Arc<dyn ApiTransport>>,
    /// `--token-reviews-per-second`.
    pub reviews_per_second: u32,
    /// `--api-audiences`.
    pub audiences: Vec<String>,
    /// `--authentication-token-webhook-cache-ttl`.
    pub cache_ttl: Duration,
}

/// The settings in use.
pub(super) struct TokenSettings {
    pub(super) signature_verifier: SignatureVerifier,
    /// `--authentication-token-webhook-cache-ttl`.
    pub(super) cache_ttl: Duration,
    pub(super) reviewer: Option<Arc<TokenReviewer>>,
}

impl TokenSettings {
    pub(super) fn new(config: TokenConfig, store: &TokenStore, now: Instant) -> Self {
        let reviewer = config
            .api_server
            .filter(|_| config.reviews_per_second > 0)
            .map(|api_server| {
                TokenReviewer::new(
                    api_server,
                    config.reviews_per_second,
                    config.audiences.clone(),
                    now,
                    store.metrics.waiting.clone(),
                )
            });
        Self {
            signature_verifier: SignatureVerifier {
                issuers: config.issuers,
                service_accounts: config.service_accounts,
                audiences: config.audiences,
            },
            cache_ttl: config.cache_ttl,
            reviewer,
        }
    }

    /// The settings of `config`, which replace these. The reviewer stays with its queue, and
    /// issuers stay with the keys that were fetched for them.
    pub(super) fn replaced_by(
        &self,
        config: TokenConfig,
        store: &TokenStore,
        now: Instant,
    ) -> Self {
        let api_server = config.api_server.clone();
        let (per_second, audiences) = (config.reviews_per_second, config.audiences.clone());
        let kept = self.reviewer.as_ref().filter(|_| per_second > 0);
        let kept = kept.zip(api_server).map(|(reviewer, api_server)| {
            if reviewer.replace(api_server, per_second, audiences, now) {
                store.for_each_shard(TokenCache::revalidate_reviewed);
            }
            Arc::clone(reviewer)
        });
        let Self {
            signature_verifier,
            cache_ttl,
            reviewer,
        } = Self::new(config, store, now);
        Self {
            signature_verifier: signature_verifier.replacing(&self.signature_verifier),
            cache_ttl,
            reviewer: kept.or(reviewer),
        }
    }
}
