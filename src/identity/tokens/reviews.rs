//! Reviews under way and those that wait for their turn.

use std::sync::Arc;
use std::time::Instant;

use http::StatusCode;
use prometheus::IntGauge;
use tracing::warn;

use crate::clock::Clock;
use crate::identity::jwt::Jwt;
use crate::identity::line::PendingReview;
use crate::identity::line::QueuedReview;
use crate::identity::line::ReviewQueue;
use crate::identity::proven::TokenHash;
use crate::identity::remote::ApiTransport;
use crate::identity::remote::ReviewError;
use crate::identity::tokens::TokenAuthenticator;
use crate::identity::tokens::TokenOutcome;
use crate::identity::tokens::cache::VerifiedBy;
use crate::identity::tokens::cache::VerifiedToken;
use crate::identity::tokens::judge;
use crate::identity::tokens::review;
use crate::identity::tokens::review::TokenReviewOutcome;
use crate::identity::tokens::turns::ClientSource;

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
            .map(judge::expiry_time);
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
        let call = review::request(token, &self.audiences)?;
        Some(match self.api_server.send(call).await {
            Ok(reply) => review::parse_response(&reply, &self.audiences),
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
