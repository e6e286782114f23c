//! Delegated authentication and authorization: the API server decides which user a token belongs to
//! (`TokenReview`), and whether that user may get a path (`SubjectAccessReview` with
//! `nonResourceAttributes`). weir asks with its own credentials.
//!
//! It is what `DelegatingAuthenticationOptions` and `DelegatingAuthorizationOptions` are in
//! Kubernetes' components (`apiserver/pkg/server/options`, 1.36), with the same times:
//!
//! - An answer is used for [`TOKEN_TTL`] and
//!   [`DECISION_TTL`](crate::identity::impersonation::decision_cache::DECISION_TTL), whatever it is.
//! - Without an answer nothing is allowed.
//! - Members of `system:masters` may do everything, without a review.
//!
//! A review is sent once, however many requests wait for its result; reviews are sent at a bounded
//! rate, fair between clients. What is cached is bounded, and stored by keyed hash.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGaugeVec};
use tokio::time::timeout_at;

use crate::identity::impersonation::authorizer::{encode_user, write_bytes};
use crate::identity::impersonation::decision_cache::{CachedDecision, DecisionCache};
use crate::identity::impersonation::subject_access_review;
use crate::identity::impersonation::subject_access_review::AccessReviewDecision;
use crate::identity::review_queue::fair_queue::ClientSource;
use crate::identity::review_queue::{MissingPermission, QueuedReview, ReviewQueue};
use crate::identity::tokens::token_review;
use crate::identity::tokens::token_review::TokenReviewOutcome;
use crate::identity::transport::{ApiTransport, ReviewError};
use weir_base::clock::Clock;
use weir_base::generational_map::GenerationalMap;
use weir_base::metrics::Registry;
use weir_kubernetes::api::UserInfo;
use weir_tokens::hash::{TokenHash, TokenHasher};

/// How long the result of a `TokenReview` is used, good or bad
/// (`DelegatingAuthenticationOptions.CacheTTL`).
pub(crate) const TOKEN_TTL: Duration = Duration::from_secs(10);

/// How long a request waits for all of its reviews. A scrape of Prometheus takes 10 s at most.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// Reviews of each kind a second: some Prometheus with many tokens each need one in ten seconds.
const REVIEWS_PER_SECOND: u32 = 20;

/// The most tokens in a generation of the cache, and the most bytes of their users.
const MAX_TOKENS: usize = 1024;
const MAX_USER_BYTES: usize = 1 << 20;

/// The longest token that is reviewed, in bytes: ten times that of a service account. Tokens that
/// wait for their review are kept.
const MAX_TOKEN_BYTES: usize = 16 << 10;

/// The longest path that is reviewed, in bytes: many times that of a page.
const MAX_PATH_BYTES: usize = 1024;

/// The group that may do everything (`DelegatingAuthorizationOptions.AlwaysAllowGroups`).
const PRIVILEGED_GROUP: &str = "system:masters";

/// The kinds of reviews, as metrics name them.
const TOKEN_REVIEW: &str = "TokenReview";
const ACCESS_REVIEW: &str = "SubjectAccessReview";

const TOKENS_NOT_REVIEWED: MissingPermission = MissingPermission {
    reviews: "TokenReviews",
    consequence: "bearer tokens that are in no file get 503 on the admin address",
};

const ACCESS_NOT_REVIEWED: MissingPermission = MissingPermission {
    reviews: "SubjectAccessReviews",
    consequence: "users get 503 on the admin address",
};

/// The result of a `TokenReview`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenAuthentication {
    /// The token is valid and belongs to this user.
    Authenticated(Arc<UserInfo>),
    /// The token is not valid.
    Rejected,
    /// The API server has not answered in time, or weir may not ask.
    Unanswered,
}

/// Whether a user may do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathDecision {
    /// The user may.
    Allowed,
    /// The user may not, with the API server's reason.
    Denied(Arc<str>),
    /// The API server has not answered in time, or weir may not ask.
    Unanswered,
}

/// A verb, as the method in lower case, and the path of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathAttributes<'a> {
    pub(crate) verb: &'a str,
    pub(crate) path: &'a str,
}

/// The time until which a request waits, as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReviewDeadline(Instant);

impl ReviewDeadline {
    /// The deadline of a request that arrives at `now`.
    pub(crate) fn from_arrival(now: Instant) -> Self {
        Self(now + REVIEW_TIMEOUT)
    }
}

struct AccessRequest {
    user: Arc<UserInfo>,
    verb: String,
    path: String,
}

/// The metrics of delegated reviews.
#[derive(Clone, Debug)]
pub struct DelegatedMetrics {
    reviews: IntCounterVec,
    waiting: IntGaugeVec,
}

impl DelegatedMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        Self {
            reviews: registry.counters(
                "weir_admin_reviews_total",
                "Reviews about requests to the admin address (--admin-authorization-mode=Webhook), by kind (TokenReview, SubjectAccessReview) and result (allowed, denied, unanswered).",
                &["kind", "result"],
            ),
            waiting: registry.gauges(
                "weir_admin_reviews_waiting",
                "Reviews about requests to the admin address that wait to be sent.",
                &["kind"],
            ),
        }
    }

    fn count(&self, kind: &str, result: &str) {
        self.reviews.with_label_values(&[kind, result]).inc();
    }
}

/// The users of tokens, and when each is forgotten. `None` for a token that is not valid.
type TokenUsers = GenerationalMap<TokenHash, (Option<Arc<UserInfo>>, Instant)>;

/// Has requests authenticated and authorized by the API server.
pub(crate) struct DelegatedAuth {
    api_server: Arc<dyn ApiTransport>,
    hasher: TokenHasher,
    /// Nothing is awaited under these locks.
    users: Mutex<TokenUsers>,
    decisions: Mutex<DecisionCache>,
    token_queue: ReviewQueue<Box<[u8]>, TokenAuthentication>,
    access_queue: ReviewQueue<AccessRequest, PathDecision>,
    metrics: DelegatedMetrics,
}

impl DelegatedAuth {
    /// Nothing is known yet. [`run`](Self::run) sends the reviews.
    ///
    /// # Errors
    /// The system's random generator fails, which the key of the hashes needs.
    pub(crate) fn new(
        api_server: Arc<dyn ApiTransport>,
        registry: &Registry,
    ) -> Result<Arc<Self>, String> {
        let (now, metrics) = (Clock.now(), DelegatedMetrics::register(registry));
        let waiting = |kind| metrics.waiting.with_label_values(&[kind]);
        Ok(Arc::new(Self {
            api_server,
            hasher: TokenHasher::new()?,
            users: Mutex::new(GenerationalMap::new(MAX_TOKENS, MAX_USER_BYTES)),
            decisions: Mutex::default(),
            token_queue: ReviewQueue::new(REVIEWS_PER_SECOND, now, waiting(TOKEN_REVIEW)),
            access_queue: ReviewQueue::new(REVIEWS_PER_SECOND, now, waiting(ACCESS_REVIEW)),
            metrics,
        }))
    }

    /// Asks again at once after weir's rights or credentials may have changed.
    pub(crate) fn end_backoff(&self) {
        self.token_queue.end_backoff();
        self.access_queue.end_backoff();
    }

    /// The user of `token`.
    ///
    /// # Cancel safety
    /// Cancel safe: a review that other requests may share continues.
    pub(crate) async fn authenticate(
        &self,
        token: &[u8],
        source: ClientSource,
        deadline: ReviewDeadline,
    ) -> TokenAuthentication {
        if token.len() > MAX_TOKEN_BYTES {
            return TokenAuthentication::Rejected;
        }
        let (key, now) = (self.hasher.hash(token), Clock.now());
        let known = self.users.lock().get(key).cloned();
        let was_good = matches!(known, Some((Some(_), _)));
        if let Some((user, expires_at)) = known
            && now < expires_at
        {
            return user.map_or(
                TokenAuthentication::Rejected,
                TokenAuthentication::Authenticated,
            );
        }
        let pending = self
            .token_queue
            .submit(key, source, was_good, now, || token.into());
        let Some(pending) = pending else {
            return TokenAuthentication::Unanswered;
        };
        let result = timeout_at(deadline.0.into(), pending.wait()).await;
        result
            .ok()
            .flatten()
            .unwrap_or(TokenAuthentication::Unanswered)
    }

    /// Whether `user` may do what `attributes` say.
    ///
    /// # Cancel safety
    /// Cancel safe: a review that other requests may share continues.
    pub(crate) async fn authorize(
        &self,
        user: &Arc<UserInfo>,
        attributes: PathAttributes<'_>,
        source: ClientSource,
        deadline: ReviewDeadline,
    ) -> PathDecision {
        if user.groups.iter().any(|group| group == PRIVILEGED_GROUP) {
            return PathDecision::Allowed;
        }
        let PathAttributes { verb, path } = attributes;
        if path.len() > MAX_PATH_BYTES {
            return PathDecision::Denied("the path is too long".into());
        }
        let mut bytes = encode_user(user);
        write_bytes(&mut bytes, verb.as_bytes());
        write_bytes(&mut bytes, path.as_bytes());
        let (key, now) = (self.hasher.hash(&bytes), Clock.now());
        let cached = self.decisions.lock().find(key, now);
        let allowed_before = match cached {
            CachedDecision::Allowed => return PathDecision::Allowed,
            CachedDecision::Denied(reason) => return PathDecision::Denied(reason),
            CachedDecision::Unanswered => return PathDecision::Unanswered,
            CachedDecision::Unknown { allowed_before } => allowed_before,
        };
        let request = || AccessRequest {
            user: Arc::clone(user),
            verb: verb.to_owned(),
            path: path.to_owned(),
        };
        let pending = self
            .access_queue
            .submit(key, source, allowed_before, now, request);
        let Some(pending) = pending else {
            return PathDecision::Unanswered;
        };
        let result = timeout_at(deadline.0.into(), pending.wait()).await;
        result.ok().flatten().unwrap_or(PathDecision::Unanswered)
    }

    /// Sends the queued reviews until cancelled.
    ///
    /// # Cancel safety
    /// Cancel safe: reviews that are still queued are not sent.
    pub(crate) async fn run(self: Arc<Self>) {
        tokio::join!(self.send_token_reviews(), self.send_access_reviews());
    }

    async fn send_token_reviews(self: &Arc<Self>) {
        while let Some((review, permit)) = self.token_queue.next_review().await {
            let auth = Arc::clone(self);
            tokio::spawn(async move {
                auth.review_token(review).await;
                drop(permit);
            });
        }
    }

    async fn send_access_reviews(self: &Arc<Self>) {
        while let Some((review, permit)) = self.access_queue.next_review().await {
            let auth = Arc::clone(self);
            tokio::spawn(async move {
                auth.review_access(review).await;
                drop(permit);
            });
        }
    }

    async fn review_token(&self, review: QueuedReview<Box<[u8]>, TokenAuthentication>) {
        let outcome = match token_review::request(&review.request, &[]) {
            None => Ok(TokenReviewOutcome::Rejected), // a token that is not UTF-8 is not a token
            Some(request) => match self.api_server.send(request).await {
                Ok(response) => token_review::parse_response(&response, &[]),
                Err(error) => Err(ReviewError::from(error)),
            },
        };
        let (key, now) = (review.key, Clock.now());
        let (result, owner) = match outcome {
            Ok(TokenReviewOutcome::Authenticated(user)) => {
                let user = Arc::new(user);
                self.remember(key, Some(Arc::clone(&user)), now);
                ("allowed", TokenAuthentication::Authenticated(user))
            }
            Ok(TokenReviewOutcome::Rejected) => {
                self.remember(key, None, now);
                ("denied", TokenAuthentication::Rejected)
            }
            Err(error) => {
                let queue = &self.token_queue;
                queue.handle_failure(&error, &TOKENS_NOT_REVIEWED, now);
                ("unanswered", TokenAuthentication::Unanswered)
            }
        };
        self.metrics.count(TOKEN_REVIEW, result);
        self.token_queue.complete(review, owner);
    }

    fn remember(&self, key: TokenHash, user: Option<Arc<UserInfo>>, now: Instant) {
        let weight = user.as_ref().map_or(0, |user| encode_user(user).len());
        let entry = (user, now + TOKEN_TTL);
        self.users.lock().insert(key, entry, weight);
    }

    async fn review_access(&self, review: QueuedReview<AccessRequest, PathDecision>) {
        let AccessRequest { user, verb, path } = &review.request;
        let request = subject_access_review::path_request(user, verb, path);
        let decision = match self.api_server.send(request).await {
            Ok(response) => subject_access_review::parse_response(&response),
            Err(error) => Err(error.into()),
        };
        let (key, now) = (review.key, Clock.now());
        let (result, access) = match decision {
            Ok(AccessReviewDecision::Allowed) => {
                self.decisions.lock().insert_allowed(key, now);
                ("allowed", PathDecision::Allowed)
            }
            Ok(AccessReviewDecision::Denied(reason)) => {
                let reason: Arc<str> = reason.into();
                let denied = Arc::clone(&reason);
                self.decisions.lock().insert_denied(key, denied, now);
                ("denied", PathDecision::Denied(reason))
            }
            Err(error) => {
                self.decisions.lock().insert_unanswered(key, now);
                let queue = &self.access_queue;
                queue.handle_failure(&error, &ACCESS_NOT_REVIEWED, now);
                ("unanswered", PathDecision::Unanswered)
            }
        };
        self.metrics.count(ACCESS_REVIEW, result);
        self.access_queue.complete(review, access);
    }
}

impl fmt::Debug for DelegatedAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelegatedAuth").finish_non_exhaustive()
    }
}
