//! Whether a user may impersonate somebody, as the API server says (`SubjectAccessReview`).
//!
//! Promises: an allowance is what the API server has said within the last [`crate::identity::impersonation::decision_cache::DECISION_TTL`], and nothing else: no answer, a late one
//! or one that cannot be read is none. The same question is asked once, however many wait for it; different ones go at a set rate,
//! those who ask taking turns; what is known is bounded, and kept by keyed hash.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use http::StatusCode;
use prometheus::IntCounter;
use prometheus::IntCounterVec;
use prometheus::IntGauge;
use tokio::time::timeout_at;
use tracing::warn;

use crate::api::UserInfo;
use crate::clock::Clock;
use crate::identity::accepted_tokens::TokenHash;
use crate::identity::accepted_tokens::TokenHasher;
use crate::identity::impersonation::decision_cache::CachedDecision;
use crate::identity::impersonation::decision_cache::DecisionCache;
use crate::identity::impersonation::subject_access_review::AccessReviewDecision;
use crate::identity::impersonation::target::ImpersonationPermission;
use crate::identity::review_queue::PendingReview;
use crate::identity::review_queue::QueuedReview;
use crate::identity::review_queue::ReviewQueue;
use crate::identity::review_queue::fair_queue::ClientSource;
use crate::identity::transport::ApiTransport;
use crate::identity::transport::ReviewError;
use crate::metrics::Registry;

/// Whether all of a wish may come true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessDecision {
    /// All of it.
    Allowed,
    /// This right is missing, and why.
    Denied(ImpersonationPermission, Arc<str>),
    /// The API server could not be asked, or has not answered in time.
    Undecided,
}

/// Asks the API server, and remembers for a moment.
pub struct ImpersonationAuthorizer {
    api_server: Arc<dyn ApiTransport>,
    hasher: TokenHasher,
    cache: Mutex<DecisionCache>,
    queue: ReviewQueue<AccessReviewRequest, AccessReviewResult>,
    metrics: AccessReviewMetrics,
}

struct AccessReviewRequest {
    user: Arc<UserInfo>,
    permission: ImpersonationPermission,
}

/// What a review has come to; `Err` is no answer.
type AccessReviewResult = Result<AccessReviewDecision, ()>;

/// What is counted here.
#[derive(Clone, Debug)]
pub struct AccessReviewMetrics {
    reviews: IntCounterVec,
    skipped: IntCounter,
    waiting: IntGauge,
}

impl AccessReviewMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        Self {
            reviews: registry.counters(
                "weir_access_reviews_total",
                "SubjectAccessReviews that the API server was asked for about who impersonates, by result (allowed, denied, unanswered).",
                &["result"],
            ),
            skipped: registry.counter(
                "weir_access_reviews_passed_over_total",
                "Rights to impersonate that were not asked about because too many waited for it or weir may not ask.",
            ),
            waiting: registry.gauge(
                "weir_access_reviews_waiting",
                "SubjectAccessReviews that wait for their turn to be asked.",
            ),
        }
    }
}

/// A right that is looked at.
enum PermissionLookup {
    Allowed,
    Denied(Arc<str>),
    Undecided,
    Pending(PendingReview<AccessReviewResult>),
}

impl ImpersonationAuthorizer {
    /// Nothing is known yet.
    ///
    /// # Errors
    /// The system has no randomness for the key of the hashes.
    pub fn new(
        server: Arc<dyn ApiTransport>,
        per_second: u32,
        metrics: AccessReviewMetrics,
    ) -> Result<Arc<Self>, String> {
        Ok(Arc::new(Self {
            api_server: server,
            hasher: TokenHasher::new()?,
            cache: Mutex::default(),
            queue: ReviewQueue::new(per_second, Clock.now(), metrics.waiting.clone()),
            metrics,
        }))
    }

    /// Whether `who` has all of `rights`, if that can be told within `patience`. What is known costs no waiting. The first is asked
    /// about alone, since whoever may not have that need not have more; then all others at once.
    ///
    /// # Cancel safety
    /// What was begun goes on for others.
    pub async fn authorize(
        &self,
        who: &Arc<UserInfo>,
        rights: &[ImpersonationPermission],
        asker: ClientSource,
        patience: Duration,
    ) -> AccessDecision {
        let now = Clock.now();
        let until = (now + patience).into();
        let identity = self.hasher.hash(&encode_user(who));
        let (first, others) = rights.split_at(rights.len().min(1));
        for part in [first, others] {
            for (right, look) in self.look_up(who, identity, part, asker, now) {
                let verdict = match look {
                    PermissionLookup::Allowed => continue,
                    PermissionLookup::Denied(reason) => {
                        return AccessDecision::Denied(right.clone(), reason);
                    }
                    PermissionLookup::Undecided => return AccessDecision::Undecided,
                    PermissionLookup::Pending(begun) => timeout_at(until, begun.wait()).await,
                };
                match verdict {
                    Ok(Some(Ok(AccessReviewDecision::Allowed))) => {}
                    Ok(Some(Ok(AccessReviewDecision::Denied(reason)))) => {
                        return AccessDecision::Denied(right.clone(), reason.into());
                    }
                    Ok(Some(Err(())) | None) | Err(_) => return AccessDecision::Undecided,
                }
            }
        }
        AccessDecision::Allowed
    }

    /// What is known of each right, up to the first that is missing; what is not is begun.
    fn look_up<'r>(
        &self,
        who: &Arc<UserInfo>,
        identity: TokenHash,
        rights: &'r [ImpersonationPermission],
        asker: ClientSource,
        now: Instant,
    ) -> Vec<(&'r ImpersonationPermission, PermissionLookup)> {
        let mut looks = Vec::with_capacity(rights.len());
        for right in rights {
            let mark = self.hasher.hash(&encode_permission(identity, right));
            let found = self.lock_cache().find(mark, now);
            let look = match found {
                CachedDecision::Allowed => PermissionLookup::Allowed,
                CachedDecision::Denied(reason) => PermissionLookup::Denied(reason),
                CachedDecision::Unanswered => PermissionLookup::Undecided,
                CachedDecision::Unknown { allowed_before } => {
                    let begun = self.queue.submit(mark, (asker, allowed_before), now, || {
                        AccessReviewRequest {
                            user: Arc::clone(who),
                            permission: right.clone(),
                        }
                    });
                    if begun.is_none() {
                        self.metrics.skipped.inc();
                    }
                    begun.map_or(PermissionLookup::Undecided, PermissionLookup::Pending)
                }
            };
            let last = matches!(
                look,
                PermissionLookup::Denied(_) | PermissionLookup::Undecided
            );
            looks.push((right, look));
            if last {
                break;
            }
        }
        looks
    }

    /// Asks from now on, each question in its turn.
    ///
    /// # Cancel safety
    /// Questions whose turn had not come are not asked.
    pub async fn run(self: Arc<Self>) {
        while let Some((asked, place)) = self.queue.next_review().await {
            let access = Arc::clone(&self);
            tokio::spawn(async move {
                access.review(asked).await;
                drop(place);
            });
        }
    }

    async fn review(&self, asked: QueuedReview<AccessReviewRequest, AccessReviewResult>) {
        let AccessReviewRequest {
            user: who,
            permission: right,
        } = &asked.request;
        let verdict = match self
            .api_server
            .send(crate::identity::impersonation::subject_access_review::request(who, right))
            .await
        {
            Ok(reply) => {
                crate::identity::impersonation::subject_access_review::parse_response(&reply)
            }
            Err(why) => Err(ReviewError::Failed(why.to_string())),
        };
        let (mark, now) = (asked.key, Clock.now());
        let (result, settled) = match verdict {
            Ok(AccessReviewDecision::Allowed) => {
                self.lock_cache().insert_allowed(mark, now);
                ("allowed", Ok(AccessReviewDecision::Allowed))
            }
            Ok(AccessReviewDecision::Denied(reason)) => {
                self.lock_cache()
                    .insert_denied(mark, Arc::from(&*reason), now);
                ("denied", Ok(AccessReviewDecision::Denied(reason)))
            }
            Err(why) => {
                self.lock_cache().insert_unanswered(mark, now);
                self.handle_failure(&why);
                ("unanswered", Err(()))
            }
        };
        self.metrics.reviews.with_label_values(&[result]).inc();
        self.queue.complete(asked, settled);
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
            "the API server does not let weir ask who may impersonate (SubjectAccessReview): weir's own credentials need the \
             ClusterRole system:auth-delegator; until then nobody may as far as weir is concerned"
        );
    }

    fn lock_cache(&self) -> MutexGuard<'_, DecisionCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ImpersonationAuthorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

/// All that an authorizer may go by, each part with its length before it, so that no two users are written alike.
fn encode_user(who: &UserInfo) -> Vec<u8> {
    let UserInfo {
        name,
        uid,
        groups,
        extra,
    } = who;
    let mut bytes = Vec::new();
    write_bytes(&mut bytes, name.as_bytes());
    write_bytes(&mut bytes, uid.as_bytes());
    write_length(&mut bytes, groups.len());
    for group in groups {
        write_bytes(&mut bytes, group.as_bytes());
    }
    write_length(&mut bytes, extra.len());
    for (key, values) in extra {
        write_bytes(&mut bytes, key.as_bytes());
        write_length(&mut bytes, values.len());
        for value in values {
            write_bytes(&mut bytes, value.as_bytes());
        }
    }
    bytes
}

fn encode_permission(who: TokenHash, right: &ImpersonationPermission) -> Vec<u8> {
    let ImpersonationPermission {
        group,
        resource,
        subresource,
        namespace,
        name,
    } = right;
    let mut bytes = who.to_bytes().to_vec();
    for text in [group, resource, subresource.as_str(), namespace, name] {
        write_bytes(&mut bytes, text.as_bytes());
    }
    bytes
}

fn write_bytes(bytes: &mut Vec<u8>, text: &[u8]) {
    write_length(bytes, text.len());
    bytes.extend_from_slice(text);
}

fn write_length(bytes: &mut Vec<u8>, n: usize) {
    bytes.extend_from_slice(&n.to_le_bytes());
}

#[cfg(test)]
#[path = "authorizer_tests.rs"]
mod tests;
