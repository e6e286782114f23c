//! Whose a credential is: the API server answers a SelfSubjectReview for the user that sends it
//! (`authentication.k8s.io/v1`, Kubernetes 1.28).

use bytes::Bytes;
use serde_json::Value;

use crate::identity::transport::{RemoteRequest, RemoteResponse};

/// The path on which a review is created.
pub(crate) const PATH: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// A review.
pub(crate) const BODY: &str =
    r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

/// The request for a review.
pub(crate) fn request() -> RemoteRequest {
    RemoteRequest {
        path: PATH,
        body: Some(Bytes::from_static(BODY.as_bytes())),
    }
}

/// The name of the user in the response, if it has one.
pub(crate) fn user_name(reply: &RemoteResponse) -> Option<String> {
    let review: Value = serde_json::from_slice(&reply.body).ok()?;
    let name = review.pointer("/status/userInfo/username")?;
    name.as_str().map(str::to_owned)
}
