//! Sends `TokenReview`s for queued tokens and caches their results.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use prometheus::IntGauge;

use crate::identity::review_queue::fair_queue::ClientSource;
use crate::identity::review_queue::{MissingPermission, PendingReview, QueuedReview, ReviewQueue};
use crate::identity::tokens::token_cache::{VerifiedBy, VerifiedToken};
use crate::identity::tokens::token_review::TokenReviewOutcome;
use crate::identity::tokens::token_store::{TokenOutcome, TokenStore};
use crate::identity::tokens::{signature, token_review};
use crate::identity::transport::{ApiTransport, ReviewError};
use weir_base::clock::Clock;
use weir_tokens::hash::TokenHash;
use weir_tokens::jwt::{Jwt, MAX_TOKEN_BYTES};

const MISSING_PERMISSION: MissingPermission = MissingPermission {
    reviews: "TokenReviews",
    consequence: "such tokens count as system:anonymous",
};

/// The result of a review.
#[derive(Clone, Debug)]
pub(super) enum TokenReviewResult {
    Completed(TokenOutcome),
    Unanswered,
}

pub(super) struct TokenReviewer {
    settings: ArcSwap<ReviewSettings>,
    /// Holds the tokens until their reviews are complete: at most 128 MiB, in two classes of 1,024
    /// tokens of at most [`MAX_TOKEN_BYTES`].
    queue: ReviewQueue<Box<[u8]>, TokenReviewResult>,
}

struct ReviewSettings {
    api_server: Arc<dyn ApiTransport>,
    audiences: Vec<String>,
}

impl ReviewSettings {
    async fn send_review(&self, token: &[u8]) -> Option<Result<TokenReviewOutcome, ReviewError>> {
        let request = token_review::request(token, &self.audiences)?;
        Some(match self.api_server.send(request).await {
            Ok(response) => token_review::parse_response(&response, &self.audiences),
            Err(error) => Err(error.into()),
        })
    }
}

impl TokenReviewer {
    pub(super) fn new(
        api_server: Arc<dyn ApiTransport>,
        per_second: u32,
        audiences: Vec<String>,
        now: Instant,
        waiting_gauge: IntGauge,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings: ArcSwap::from_pointee(ReviewSettings {
                api_server,
                audiences,
            }),
            queue: ReviewQueue::new(per_second, now, waiting_gauge),
        })
    }

    /// Sends reviews, those that are queued as well, by new settings from `now` on. Returns whether
    /// the audiences have changed.
    pub(super) fn replace(
        &self,
        api_server: Arc<dyn ApiTransport>,
        per_second: u32,
        audiences: Vec<String>,
        now: Instant,
    ) -> bool {
        let earlier = self.settings.load();
        let other_audiences = earlier.audiences != audiences;
        if other_audiences || !Arc::ptr_eq(&earlier.api_server, &api_server) {
            self.settings.store(Arc::new(ReviewSettings {
                api_server,
                audiences,
            }));
        }
        self.queue.end_backoff();
        self.queue.set_rate(per_second, now);
        other_audiences
    }

    /// Queues a review of the token, or joins the pending one. `None` if the queue is full or
    /// reviews are not permitted.
    pub(super) fn submit(
        &self,
        token_hash: TokenHash,
        token: &[u8],
        source: ClientSource,
        verified_before: bool,
        now: Instant,
    ) -> Option<PendingReview<TokenReviewResult>> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        self.queue
            .submit(token_hash, source, verified_before, now, || token.into())
    }

    /// Sends reviews, each when the queue allows it.
    pub(super) async fn run(self: Arc<Self>, store: &Arc<TokenStore>) {
        while let Some((review, permit)) = self.queue.next_review().await {
            let (reviewer, store) = (Arc::clone(&self), Arc::clone(store));
            tokio::spawn(async move {
                reviewer.review(&store, review).await;
                drop(permit);
            });
        }
    }

    async fn review(&self, store: &TokenStore, review: QueuedReview<Box<[u8]>, TokenReviewResult>) {
        let (token_hash, token) = (review.key, &review.request);
        let count = |result| store.metrics.reviews.with_label_values(&[result]).inc();
        let expiry = Jwt::parse(token)
            .and_then(|jwt| jwt.expiry())
            .map(signature::expiry_time);
        let settings = self.settings.load_full();
        let result = match settings.send_review(token).await {
            // Within the leeway that the API server allows, but expired by its own claim: not
            // cached as valid.
            Some(Ok(TokenReviewOutcome::Authenticated(_)))
                if expiry.is_some_and(|end| end <= Clock.wall()) =>
            {
                count("refused");
                TokenReviewResult::Completed(store.record_rejection(token_hash))
            }
            Some(Ok(TokenReviewOutcome::Authenticated(user))) => {
                count("authenticated");
                let verified = VerifiedToken {
                    user: Arc::new(user),
                    verified_at: Clock.now(),
                    expires_at: expiry,
                    verified_by: VerifiedBy::ApiServer,
                    must_revalidate: !Arc::ptr_eq(&settings, &self.settings.load()),
                };
                store
                    .shard(token_hash)
                    .insert_verified(token_hash, verified.clone());
                store.accepted.record(token_hash, true);
                TokenReviewResult::Completed(verified.into())
            }
            // `None`: a token that is not UTF-8 is not a token.
            None | Some(Ok(TokenReviewOutcome::Rejected)) => {
                count("refused");
                TokenReviewResult::Completed(store.record_rejection(token_hash))
            }
            Some(Err(error)) => {
                count("unanswered");
                self.queue
                    .handle_failure(&error, &MISSING_PERMISSION, Clock.now());
                TokenReviewResult::Unanswered
            }
        };
        self.queue.complete(review, result);
    }
}
