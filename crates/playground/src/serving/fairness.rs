//! The interface to API Priority and Fairness of the server. The playground does not depend on the
//! proxy, so the caller that makes the server provides the engine.

use crate::auth::user::ApiUser;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use serde_json::Value;
use std::any::Any;
use std::fmt;
use std::pin::Pin;

const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// API Priority and Fairness, as kube-apiserver's `WithPriorityAndFairness` uses it.
pub trait Fairness: fmt::Debug + Send + Sync {
    /// Admits a request of `user`, possibly after waiting in a queue. `Ok(None)`: the request takes
    /// no seat.
    ///
    /// # Errors
    /// The request is rejected with 429.
    ///
    /// # Cancel safety
    /// A queued request leaves its queue.
    fn admit<'a>(
        &'a self,
        method: &'a Method,
        uri: &'a Uri,
        user: &'a ApiUser,
    ) -> BoxFuture<'a, Result<Option<SeatGuard>, TooManyRequests>>;

    /// The objects that the server creates at its start, as manifests.
    fn built_in_objects(&self) -> Vec<Value> {
        Vec::new()
    }

    /// Validates a FlowSchema or PriorityLevelConfiguration, and returns its spec with all defaults.
    ///
    /// # Errors
    /// The server would reject the object.
    fn check_object(&self, object: &Value) -> Result<Value, ObjectError> {
        Ok(object.get("spec").cloned().unwrap_or_default())
    }

    /// Replaces the objects by which requests are classified. Each is a manifest.
    fn configure(&self, _objects: &[Value]) {}

    /// Its metrics in Prometheus' text format, for the server's `/metrics`.
    fn metrics(&self) -> String {
        String::new()
    }

    /// Moves seats between priority levels periodically. Runs until it is dropped.
    ///
    /// # Cancel safety
    /// No adjustment is left incomplete.
    fn run(&self) -> BoxFuture<'_, ()>;
}

/// Why an object is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectError {
    /// It is not an object of its kind.
    Malformed(String),
    /// Its fields break rules.
    Invalid(Vec<InvalidField>),
}

/// A field of a rejected object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidField {
    /// The reason in a Status: `FieldValueInvalid`.
    pub reason: &'static str,
    /// The path of the field.
    pub field: String,
    /// What is wrong.
    pub message: String,
}

/// The seats of a request, until dropped.
pub struct SeatGuard {
    /// The objects that classified the request.
    pub classification: ClassificationUids,
    /// Releases the seats when it is dropped.
    pub permit: Box<dyn Any + Send>,
}

/// The rejection of a request.
#[derive(Clone, Debug)]
pub struct TooManyRequests {
    /// The objects that classified the request.
    pub classification: ClassificationUids,
    /// `Retry-After`, in seconds.
    pub retry_after: u32,
}

/// The UIDs of the objects that classified a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassificationUids {
    /// The UID of the FlowSchema.
    pub flow_schema: HeaderValue,
    /// The UID of the PriorityLevelConfiguration.
    pub priority_level: HeaderValue,
}

impl ClassificationUids {
    /// Fixed UIDs for a server without priority levels, so that clients receive the headers.
    /// Neither object can be read.
    pub const PLACEHOLDER: Self = Self {
        flow_schema: HeaderValue::from_static("9693e014-120a-40d7-a8e6-6c51818ac228"),
        priority_level: HeaderValue::from_static("2d2531ee-c7e8-4185-8f13-3fdaff98eba9"),
    };

    /// Sets both in the headers of a response.
    pub fn insert_headers(self, headers: &mut HeaderMap) {
        headers.insert(FLOW_SCHEMA, self.flow_schema);
        headers.insert(PRIORITY_LEVEL, self.priority_level);
    }
}

impl fmt::Debug for SeatGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeatGuard")
            .field("classified", &self.classification)
            .finish_non_exhaustive()
    }
}
