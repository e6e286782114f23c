//! Reviews under way and those that wait for their turn.

use std::sync::Arc;
use std::time::Instant;

use http::StatusCode;
use prometheus::IntGauge;
use tracing::warn;

use crate::clock::Clock;
use crate::identity::accepted_tokens::TokenHash;
use crate::identity::jwt::Jwt;
use crate::identity::review_queue::PendingReview;
use crate::identity::review_queue::QueuedReview;
use crate::identity::review_queue::ReviewQueue;
use crate::identity::review_queue::fair_queue::ClientSource;
use crate::identity::tokens::TokenAuthenticator;
use crate::identity::tokens::TokenOutcome;
use crate::identity::tokens::signature;
use crate::identity::tokens::token_cache::VerifiedBy;
use crate::identity::tokens::token_cache::VerifiedToken;
use crate::identity::tokens::token_review;
use crate::identity::tokens::token_review::TokenReviewOutcome;
use crate::identity::transport::ApiTransport;
use crate::identity::transport::ReviewError;

/// The longest token that is reviewed. What waits in line is kept until its turn: at most 128 MiB with this.
const MAX_TOKEN_BYTES: usize = 128 << 10;

/// What a review has come to.
#[derive(Clone, Debug)]
pub(super) enum TokenReviewResult {
    Completed(TokenOutcome),
    Unanswered,
}

pub(super) struct TokenReviewer {
    api_server: Arc<dyn ApiTransport>,
    audiences: Vec<String>,
    /// Tokens are kept in it until their reviews are over.
    queue: ReviewQueue<Box<[u8]>, TokenReviewResult>,
}

impl TokenReviewer {
    pub(super) fn new(
        server: Arc<dyn ApiTransport>,
        per_second: u32,
        audiences: Vec<String>,
        now: Instant,
        waiting: IntGauge,
    ) -> Arc<Self> {
        Arc::new(Self {
            api_server: server,
            audiences,
            queue: ReviewQueue::new(per_second, now, waiting),
        })
    }

    /// Gets in line for a review of the token, or joins who did; `None` where the line is too long or weir may not ask.
    pub(super) fn submit(
        &self,
        mark: TokenHash,
        token: &[u8],
        asker: ClientSource,
        good_before: bool,
        now: Instant,
    ) -> Option<PendingReview<TokenReviewResult>> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        self.queue
            .submit(mark, (asker, good_before), now, || token.into())
    }

    /// Has tokens reviewed, each in its turn.
    pub(super) async fn run(self: Arc<Self>, tokens: &Arc<TokenAuthenticator>) {
        while let Some((asked, place)) = self.queue.next_review().await {
            let (reviews, tokens) = (Arc::clone(&self), Arc::clone(tokens));
            tokio::spawn(async move {
                reviews.review(&tokens, asked).await;
                drop(place);
            });
        }
    }

    async fn review(
        &self,
        tokens: &TokenAuthenticator,
        asked: QueuedReview<Box<[u8]>, TokenReviewResult>,
    ) {
        let (mark, token) = (asked.key, &asked.request);
        let count = |result| tokens.metrics.reviews.with_label_values(&[result]).inc();
        let expiry = Jwt::parse(token)
            .and_then(|jwt| jwt.expiry())
            .map(signature::expiry_time);
        let settled = match self.send_review(token).await {
            // It says itself that it is over: within the leeway that the API server gives, and no longer worth remembering.
            Some(Ok(TokenReviewOutcome::Authenticated(_)))
                if expiry.is_some_and(|end| end <= Clock.wall()) =>
            {
                count("refused");
                TokenReviewResult::Completed(tokens.record_rejection(mark))
            }
            Some(Ok(TokenReviewOutcome::Authenticated(user))) => {
                count("authenticated");
                let good = VerifiedToken {
                    user: Arc::new(user),
                    verified_at: Clock.now(),
                    expires_at: expiry,
                    verified_by: VerifiedBy::ApiServer,
                    must_revalidate: false,
                };
                tokens.shard(mark).insert_verified(mark, good.clone());
                tokens.accepted.record(mark, true);
                TokenReviewResult::Completed(good.into())
            }
            // What is no text is no token.
            None | Some(Ok(TokenReviewOutcome::Rejected)) => {
                count("refused");
                TokenReviewResult::Completed(tokens.record_rejection(mark))
            }
            Some(Err(why)) => {
                count("unanswered");
                self.handle_failure(&why);
                TokenReviewResult::Unanswered
            }
        };
        self.queue.complete(asked, settled);
    }

    async fn send_review(&self, token: &[u8]) -> Option<Result<TokenReviewOutcome, ReviewError>> {
        let call = token_review::request(token, &self.audiences)?;
        Some(match self.api_server.send(call).await {
            Ok(reply) => token_review::parse_response(&reply, &self.audiences),
            Err(why) => Err(ReviewError::Failed(why.to_string())),
        })
    }

    fn handle_failure(&self, why: &ReviewError) {
        let ReviewError::NotPermitted(code) = why else {
            return; // the API server is away: its clients' requests say so
        };
        self.queue.back_off(*code, Clock.now());
        if *code == StatusCode::UNAUTHORIZED {
            return; // no right is missing: weir's own credential is not accepted, which is logged as such
        }
        warn!(
            %code,
            "the API server does not let weir ask whose a token is (TokenReview): weir's own credentials need the \
             ClusterRole system:auth-delegator; until then such tokens count as system:anonymous"
        );
    }
}
