//! Asks the API server whether a user may impersonate another one (`SubjectAccessReview`).
//!
//! - A permission is granted only if the API server granted it within the last
//!   [`DECISION_TTL`](crate::identity::impersonation::decision_cache::DECISION_TTL). A missing,
//!   late or unreadable response grants nothing.
//! - A review is sent once, however many requests wait for its result.
//! - Reviews are sent at a configured rate, fair between clients.
//! - Cached decisions are bounded, and stored by keyed hash.

use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use prometheus::{IntCounter, IntCounterVec, IntGauge};
use tokio::time::timeout_at;

use crate::identity::impersonation::decision_cache::{CachedDecision, DecisionCache};
use crate::identity::impersonation::subject_access_review;
use crate::identity::impersonation::subject_access_review::AccessReviewDecision;
use crate::identity::impersonation::target::ImpersonationPermission;
use crate::identity::review_queue::fair_queue::ClientSource;
use crate::identity::review_queue::{MissingPermission, PendingReview, QueuedReview, ReviewQueue};
use crate::identity::transport::{ApiTransport, ReviewError};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_kubernetes::api::UserInfo;
use weir_tokens::hash::{TokenHash, TokenHasher};

const MISSING_PERMISSION: MissingPermission = MissingPermission {
    reviews: "SubjectAccessReviews",
    consequence: "weir allows no impersonation",
};

/// Whether a user has all permissions that an impersonation requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AccessDecision {
    /// All permissions are granted.
    Allowed,
    /// This permission is denied, with the API server's reason.
    Denied(ImpersonationPermission, Arc<str>),
    /// A review could not be sent, or was not answered in time.
    Undecided,
}

/// Authorizes impersonation by reviews, and caches the decisions for a short time.
pub struct ImpersonationAuthorizer {
    api_server: ArcSwap<Arc<dyn ApiTransport>>,
    hasher: TokenHasher,
    cache: Mutex<DecisionCache>,
    queue: ReviewQueue<AccessReviewRequest, AccessReviewResult>,
    metrics: AccessReviewMetrics,
}

struct AccessReviewRequest {
    user: Arc<UserInfo>,
    permission: ImpersonationPermission,
}

/// The result of a review. `Err` if it was not answered.
type AccessReviewResult = Result<AccessReviewDecision, ()>;

/// The metrics of access reviews.
#[derive(Clone, Debug)]
pub struct AccessReviewMetrics {
    reviews: IntCounterVec,
    skipped: IntCounter,
    waiting: IntGauge,
}

impl AccessReviewMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        Self {
            reviews: registry.counters(
                "weir_access_reviews_total",
                "SubjectAccessReviews about impersonation, by result (allowed, denied, unanswered).",
                &["result"],
            ),
            skipped: registry.counter(
                "weir_access_reviews_passed_over_total",
                "Permissions to impersonate that were not reviewed because too many reviews waited or weir may not create them.",
            ),
            waiting: registry.gauge(
                "weir_access_reviews_waiting",
                "SubjectAccessReviews that wait to be sent.",
            ),
        }
    }
}

/// The decision about a permission: cached, or pending.
enum PermissionLookup {
    Allowed,
    Denied(Arc<str>),
    Undecided,
    Pending(PendingReview<AccessReviewResult>),
}

impl ImpersonationAuthorizer {
    /// An authorizer with an empty cache.
    ///
    /// # Errors
    /// The system's random generator fails, which the key of the hashes needs.
    pub(crate) fn new(
        api_server: Arc<dyn ApiTransport>,
        per_second: u32,
        metrics: AccessReviewMetrics,
    ) -> Result<Arc<Self>, String> {
        Ok(Arc::new(Self {
            api_server: ArcSwap::from_pointee(api_server),
            hasher: TokenHasher::new()?,
            cache: Mutex::default(),
            queue: ReviewQueue::new(per_second, Clock.now(), metrics.waiting.clone()),
            metrics,
        }))
    }

    /// Sends reviews, those that are queued as well, to `api_server` at this rate. Cached decisions
    /// stay if it is the same API server.
    pub(crate) fn replace(&self, api_server: Arc<dyn ApiTransport>, per_second: u32) {
        if !Arc::ptr_eq(&**self.api_server.load(), &api_server) {
            self.api_server.store(Arc::new(api_server));
            *self.lock_cache() = DecisionCache::default();
        }
        self.queue.end_backoff();
        self.queue.set_rate(per_second, Clock.now());
    }

    /// Whether `user` has all `permissions`, if that is decided within `timeout`. Cached decisions
    /// need no waiting. The first permission is reviewed alone: if it is denied, the others need no
    /// review. Then all others are reviewed at once.
    ///
    /// # Cancel safety
    /// Cancel safe: reviews that other requests may share continue.
    pub(crate) async fn authorize(
        &self,
        user: &Arc<UserInfo>,
        permissions: &[ImpersonationPermission],
        source: ClientSource,
        timeout: Duration,
    ) -> AccessDecision {
        let now = Clock.now();
        let until = (now + timeout).into();
        let user_hash = self.hasher.hash(&encode_user(user));
        let (first, remaining) = permissions.split_at(permissions.len().min(1));
        for batch in [first, remaining] {
            for (permission, lookup) in self.look_up(user, user_hash, batch, source, now) {
                let decision = match lookup {
                    PermissionLookup::Allowed => continue,
                    PermissionLookup::Denied(reason) => {
                        return AccessDecision::Denied(permission.clone(), reason);
                    }
                    PermissionLookup::Undecided => return AccessDecision::Undecided,
                    PermissionLookup::Pending(pending) => timeout_at(until, pending.wait()).await,
                };
                match decision {
                    Ok(Some(Ok(AccessReviewDecision::Allowed))) => {}
                    Ok(Some(Ok(AccessReviewDecision::Denied(reason)))) => {
                        return AccessDecision::Denied(permission.clone(), reason.into());
                    }
                    Ok(Some(Err(())) | None) | Err(_) => return AccessDecision::Undecided,
                }
            }
        }
        AccessDecision::Allowed
    }

    /// Looks up each permission, up to the first that is not granted. Queues reviews of those that
    /// are not cached.
    fn look_up<'r>(
        &self,
        user: &Arc<UserInfo>,
        user_hash: TokenHash,
        permissions: &'r [ImpersonationPermission],
        source: ClientSource,
        now: Instant,
    ) -> Vec<(&'r ImpersonationPermission, PermissionLookup)> {
        let mut lookups = Vec::with_capacity(permissions.len());
        for permission in permissions {
            let key = self.hasher.hash(&encode_permission(user_hash, permission));
            let cached = self.lock_cache().find(key, now);
            let lookup = match cached {
                CachedDecision::Allowed => PermissionLookup::Allowed,
                CachedDecision::Denied(reason) => PermissionLookup::Denied(reason),
                CachedDecision::Unanswered => PermissionLookup::Undecided,
                CachedDecision::Unknown { allowed_before } => {
                    let pending = self.queue.submit(key, source, allowed_before, now, || {
                        AccessReviewRequest {
                            user: Arc::clone(user),
                            permission: permission.clone(),
                        }
                    });
                    if pending.is_none() {
                        self.metrics.skipped.inc();
                    }
                    pending.map_or(PermissionLookup::Undecided, PermissionLookup::Pending)
                }
            };
            let last = matches!(
                lookup,
                PermissionLookup::Denied(_) | PermissionLookup::Undecided
            );
            lookups.push((permission, lookup));
            if last {
                break;
            }
        }
        lookups
    }

    /// Sends the queued reviews until cancelled.
    ///
    /// # Cancel safety
    /// Cancel safe: reviews that are still queued are not sent.
    pub(crate) async fn run(self: Arc<Self>) {
        while let Some((review, permit)) = self.queue.next_review().await {
            let authorizer = Arc::clone(&self);
            tokio::spawn(async move {
                authorizer.review(review).await;
                drop(permit);
            });
        }
    }

    async fn review(&self, review: QueuedReview<AccessReviewRequest, AccessReviewResult>) {
        let AccessReviewRequest { user, permission } = &review.request;
        let api_server = self.api_server.load_full();
        let sent = api_server.send(subject_access_review::request(user, permission));
        let decision = match sent.await {
            // The decision is not that of the API server whose clients these are now.
            Ok(_) if !Arc::ptr_eq(&api_server, &self.api_server.load()) => Err(
                ReviewError::Failed("the API server was replaced".to_owned()),
            ),
            Ok(response) => subject_access_review::parse_response(&response),
            Err(error) => Err(error.into()),
        };
        let (key, now) = (review.key, Clock.now());
        let (result, outcome) = match decision {
            Ok(AccessReviewDecision::Allowed) => {
                self.lock_cache().insert_allowed(key, now);
                ("allowed", Ok(AccessReviewDecision::Allowed))
            }
            Ok(AccessReviewDecision::Denied(reason)) => {
                self.lock_cache()
                    .insert_denied(key, Arc::from(&*reason), now);
                ("denied", Ok(AccessReviewDecision::Denied(reason)))
            }
            Err(error) => {
                self.lock_cache().insert_unanswered(key, now);
                self.queue.handle_failure(&error, &MISSING_PERMISSION, now);
                ("unanswered", Err(()))
            }
        };
        self.metrics.reviews.with_label_values(&[result]).inc();
        self.queue.complete(review, outcome);
    }

    fn lock_cache(&self) -> MutexGuard<'_, DecisionCache> {
        self.cache.lock()
    }
}

impl fmt::Debug for ImpersonationAuthorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImpersonationAuthorizer")
            .finish_non_exhaustive()
    }
}

/// Encodes everything that an authorizer may depend on. Each part is prefixed with its length, so
/// that two different users have different encodings.
pub(in crate::identity) fn encode_user(user: &UserInfo) -> Vec<u8> {
    let UserInfo {
        name,
        uid,
        groups,
        extra,
    } = user;
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

fn encode_permission(user_hash: TokenHash, permission: &ImpersonationPermission) -> Vec<u8> {
    let ImpersonationPermission {
        group,
        resource,
        subresource,
        namespace,
        name,
    } = permission;
    let mut bytes = user_hash.to_bytes().to_vec();
    for text in [group, resource, subresource.as_str(), namespace, name] {
        write_bytes(&mut bytes, text.as_bytes());
    }
    bytes
}

/// Writes a text after its length.
pub(in crate::identity) fn write_bytes(bytes: &mut Vec<u8>, text: &[u8]) {
    write_length(bytes, text.len());
    bytes.extend_from_slice(text);
}

fn write_length(bytes: &mut Vec<u8>, n: usize) {
    bytes.extend_from_slice(&n.to_le_bytes());
}

#[cfg(test)]
#[path = "authorizer_tests.rs"]
mod tests;
