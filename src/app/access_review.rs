//! What weir asks the API server about its own credential: what it may do.

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::identity::transport::{RemoteRequest, RemoteResponse};

/// The path of the API server's SelfSubjectAccessReviews.
const SELF_ACCESS_REVIEWS_PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// The review of whether weir has the permission in `spec`.
pub(super) fn self_access_review(spec: &Value) -> RemoteRequest {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": spec,
    });
    RemoteRequest {
        path: SELF_ACCESS_REVIEWS_PATH,
        body: Some(Bytes::from(review.to_string())),
    }
}

/// The decision in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SelfAccessDecision {
    Allowed,
    Denied,
    /// There is no decision, and a retry would not change that.
    NotServed(StatusCode),
    /// There is no decision yet.
    NoDecision,
}

/// Parses the response to a review.
pub(super) fn parse_decision(reply: &RemoteResponse) -> SelfAccessDecision {
    match reply.status {
        StatusCode::OK | StatusCode::CREATED => {}
        code @ (StatusCode::FORBIDDEN | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) => {
            return SelfAccessDecision::NotServed(code);
        }
        _ => return SelfAccessDecision::NoDecision,
    }
    #[derive(Deserialize)]
    struct SelfAccessReview {
        status: Value,
    }
    let review = serde_json::from_slice::<SelfAccessReview>(&reply.body);
    let allowed = review
        .ok()
        .and_then(|review| review.status.get("allowed")?.as_bool());
    match allowed {
        Some(true) => SelfAccessDecision::Allowed,
        Some(false) => SelfAccessDecision::Denied,
        None => SelfAccessDecision::NoDecision,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_explicit_decision_counts() {
        let decision = |code: u16, body: &'static str| {
            parse_decision(&RemoteResponse {
                status: StatusCode::from_u16(code).unwrap(),
                body: Bytes::from_static(body.as_bytes()),
            })
        };
        assert_eq!(
            decision(201, r#"{"status":{"allowed":true}}"#),
            SelfAccessDecision::Allowed
        );
        assert_eq!(
            decision(201, r#"{"status":{"allowed":false}}"#),
            SelfAccessDecision::Denied
        );
        for (code, body) in [(201, "{}"), (201, ""), (401, "{}"), (429, "{}"), (503, "")] {
            assert_eq!(
                decision(code, body),
                SelfAccessDecision::NoDecision,
                "{code} {body}"
            );
        }
        assert_eq!(
            decision(404, ""),
            SelfAccessDecision::NotServed(StatusCode::NOT_FOUND)
        );
    }
}
