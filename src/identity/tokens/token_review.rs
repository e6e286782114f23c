//! Encodes `TokenReview` requests (`authentication.k8s.io/v1`) and parses the responses. Pure.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use crate::identity::transport::{RemoteRequest, RemoteResponse, ReviewError};
use weir_kubernetes::api::UserInfo;

/// The path at which reviews are created.
pub(crate) const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// The result of a review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenReviewOutcome {
    /// The token is valid and belongs to this user.
    Authenticated(UserInfo),
    /// The token is not valid.
    Rejected,
}

#[derive(Deserialize)]
struct TokenReview {
    status: TokenReviewStatus,
}

#[derive(Deserialize)]
struct TokenReviewStatus {
    #[serde(default)]
    authenticated: bool,
    #[serde(default)]
    user: TokenReviewUser,
    #[serde(default)]
    audiences: Vec<String>,
}

#[derive(Default, Deserialize)]
struct TokenReviewUser {
    #[serde(default)]
    username: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    extra: BTreeMap<String, Vec<String>>,
}

/// The request for a review of `token`, for one of `audiences` if there are any. `None` if the
/// token is not UTF-8.
#[must_use]
pub(crate) fn request(token: &[u8], audiences: &[String]) -> Option<RemoteRequest> {
    let token = str::from_utf8(token).ok()?;
    let mut spec = json!({ "token": token });
    if let (false, Some(spec)) = (audiences.is_empty(), spec.as_object_mut()) {
        spec.insert("audiences".to_owned(), audiences.into());
    }
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": spec,
    });
    Some(RemoteRequest {
        path: PATH,
        body: Some(Bytes::from(review.to_string())),
    })
}

/// Parses the response to [`request`] (`webhook.WebhookTokenAuthenticator`, Kubernetes 1.36). If
/// audiences were requested, the response has to name one of them.
///
/// # Errors
/// The response contains no result.
pub(crate) fn parse_response(
    response: &RemoteResponse,
    audiences: &[String],
) -> Result<TokenReviewOutcome, ReviewError> {
    response.check_review_status()?;
    let TokenReview { status } = serde_json::from_slice(&response.body).map_err(|error| {
        ReviewError::Failed(format!("its response is not a TokenReview: {error}"))
    })?;
    let TokenReviewStatus {
        authenticated,
        user,
        audiences: reviewed_audiences,
    } = status;
    let audience_matches = audiences.is_empty()
        || reviewed_audiences
            .iter()
            .any(|reviewed| audiences.iter().any(|a| a == reviewed));
    if !authenticated || !audience_matches || user.username.is_empty() {
        return Ok(TokenReviewOutcome::Rejected);
    }
    let user = UserInfo {
        name: user.username,
        uid: user.uid,
        groups: user.groups,
        extra: user.extra.into_iter().collect(),
    };
    Ok(TokenReviewOutcome::Authenticated(
        user.with_authenticated_group(),
    ))
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn response(status: u16, body: &str) -> RemoteResponse {
        RemoteResponse {
            status: StatusCode::from_u16(status).unwrap(),
            body: Bytes::copy_from_slice(body.as_bytes()),
        }
    }

    #[test]
    fn the_request_is_a_valid_token_review() {
        let call = request(b"secret", &["api".to_owned()]).unwrap();
        let body: serde_json::Value = serde_json::from_slice(&call.body.unwrap()).unwrap();
        assert_eq!(
            body,
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
                   "spec": {"token": "secret", "audiences": ["api"]}})
        );
        assert!(request(b"\xff", &[]).is_none());
    }

    #[test]
    fn the_user_is_taken_from_the_response() {
        let body = r#"{"status":{"authenticated":true,"audiences":["api"],"user":{"username":"alice","uid":"u",
            "groups":["dev","system:authenticated"],"extra":{"k":["v"]}}}}"#;
        let user = UserInfo {
            name: "alice".to_owned(),
            uid: "u".to_owned(),
            groups: vec!["dev".to_owned(), "system:authenticated".to_owned()],
            extra: vec![("k".to_owned(), vec!["v".to_owned()])],
        };
        let good = Ok(TokenReviewOutcome::Authenticated(user));
        assert_eq!(parse_response(&response(201, body), &[]), good);
        assert_eq!(
            parse_response(&response(201, body), &["api".to_owned()]),
            good
        );
        let other = parse_response(&response(201, body), &["other".to_owned()]);
        assert_eq!(other, Ok(TokenReviewOutcome::Rejected));
    }

    #[test]
    fn anything_but_authenticated_with_a_name_is_rejected() {
        for body in [
            r#"{"status":{"user":{"username":"alice"}}}"#,
            r#"{"status":{"authenticated":false,"user":{"username":"alice"}}}"#,
            r#"{"status":{"authenticated":true,"user":{}}}"#,
            r#"{"status":{"error":"invalid bearer token"}}"#,
        ] {
            let outcome = parse_response(&response(201, body), &[]);
            assert_eq!(outcome, Ok(TokenReviewOutcome::Rejected), "{body}");
        }
    }

    #[test]
    fn an_invalid_response_is_no_outcome() {
        for code in [429, 500, 503] {
            let outcome = parse_response(&response(code, "{}"), &[]);
            assert!(matches!(outcome, Err(ReviewError::Failed(_))), "{code}");
        }
        for code in [401, 403, 404] {
            let outcome = parse_response(&response(code, "{}"), &[]);
            assert!(
                matches!(outcome, Err(ReviewError::NotPermitted(_))),
                "{code}"
            );
        }
        for body in ["", "{}", r#"{"status":{"authenticated":"yes"}}"#] {
            let outcome = parse_response(&response(200, body), &[]);
            assert!(matches!(outcome, Err(ReviewError::Failed(_))), "{body}");
        }
    }
}
