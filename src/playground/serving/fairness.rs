//! API Priority and Fairness of the server, where it has one. The playground knows nothing of the proxy, so the engine comes from
//! whoever makes the server: here is only what the server asks of it, and what it answers then.

use crate::playground::auth::authentication::ApiUser;
use http::HeaderMap;
use http::HeaderName;
use http::HeaderValue;
use http::Method;
use http::Uri;
use std::any::Any;
use std::fmt;
use std::pin::Pin;

const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// What comes later.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// API Priority and Fairness, as `WithPriorityAndFairness` of kube-apiserver asks it.
pub trait Fairness: fmt::Debug + Send + Sync {
    /// Admits a request of `user`, perhaps after a while in a queue. `Ok(None)`: it takes no seat.
    ///
    /// # Errors
    /// The request is to be answered 429.
    ///
    /// # Cancel safety
    /// A request that waits leaves its queue.
    fn admit<'a>(
        &'a self,
        method: &'a Method,
        uri: &'a Uri,
        user: &'a ApiUser,
    ) -> BoxFuture<'a, Result<Option<SeatGuard>, TooManyRequests>>;

    /// Moves seats between priority levels from time to time. Runs until it is dropped.
    ///
    /// # Cancel safety
    /// Nothing is left half done.
    fn run(&self) -> BoxFuture<'_, ()>;
}

/// A request's seats, until dropped.
pub struct SeatGuard {
    /// What classified the request.
    pub classification: ClassificationUids,
    /// What gives the seats back when it is dropped.
    pub permit: Box<dyn Any + Send>,
}

/// A request that is rejected.
#[derive(Clone, Debug)]
pub struct TooManyRequests {
    /// What classified the request.
    pub classification: ClassificationUids,
    /// `Retry-After`, in seconds.
    pub retry_after: u32,
}

/// What classified a request, by UID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassificationUids {
    /// The FlowSchema.
    pub flow_schema: HeaderValue,
    /// The PriorityLevelConfiguration.
    pub priority_level: HeaderValue,
}

impl ClassificationUids {
    /// In a server without priority levels: fixed, so that clients get such headers all the same. Neither object can be read.
    pub(crate) const PLACEHOLDER: Self = Self {
        flow_schema: HeaderValue::from_static("9693e014-120a-40d7-a8e6-6c51818ac228"),
        priority_level: HeaderValue::from_static("2d2531ee-c7e8-4185-8f13-3fdaff98eba9"),
    };

    /// Names both in an answer's headers.
    pub(crate) fn insert_headers(self, headers: &mut HeaderMap) {
        headers.insert(FLOW_SCHEMA, self.flow_schema);
        headers.insert(PRIORITY_LEVEL, self.priority_level);
    }
}

impl fmt::Debug for SeatGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat")
            .field("classified", &self.classification)
            .finish_non_exhaustive()
    }
}
