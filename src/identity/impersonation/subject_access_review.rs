//! Encodes `SubjectAccessReview` requests (`authorization.k8s.io/v1`) and parses the responses.
//! Pure.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::identity::impersonation::target::ImpersonationPermission;
use crate::identity::transport::{RemoteRequest, RemoteResponse, ReviewError};
use weir_kubernetes::api::UserInfo;

/// The path at which reviews are created.
pub(crate) const PATH: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// The longest reason that is kept, in bytes. It is returned to the client, and authorizers write
/// one sentence.
const MAX_REASON_BYTES: usize = 256;

/// The decision about a permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AccessReviewDecision {
    /// The user has the permission.
    Allowed,
    /// The user does not have the permission. Holds the reason, which may be empty.
    Denied(Box<str>),
}

#[derive(Deserialize)]
struct SubjectAccessReview {
    status: SubjectAccessReviewStatus,
}

#[derive(Deserialize)]
struct SubjectAccessReviewStatus {
    allowed: bool,
    #[serde(default)]
    denied: bool,
    #[serde(default)]
    reason: String,
}

/// The request for a review of whether `user` may impersonate.
#[must_use]
pub(crate) fn request(user: &UserInfo, permission: &ImpersonationPermission) -> RemoteRequest {
    let ImpersonationPermission {
        group,
        resource,
        subresource,
        namespace,
        name,
    } = permission;
    let attributes = json!({
        "verb": "impersonate",
        "group": group,
        "version": "v1",
        "resource": resource,
        "subresource": subresource,
        "namespace": namespace,
        "name": name,
    });
    review_request(user, "resourceAttributes", attributes)
}

/// The request for a review of whether `user` may `verb` a path that is no resource.
#[must_use]
pub(crate) fn path_request(user: &UserInfo, verb: &str, path: &str) -> RemoteRequest {
    let attributes = json!({"verb": verb, "path": path});
    review_request(user, "nonResourceAttributes", attributes)
}

fn review_request(user: &UserInfo, kind: &str, attributes: Value) -> RemoteRequest {
    let extra: Map<String, Value> = user
        .extra
        .iter()
        .map(|(key, values)| (key.clone(), json!(values)))
        .collect();
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            kind: attributes,
            "user": user.name,
            "uid": user.uid,
            "groups": user.groups,
            "extra": extra,
        },
    });
    RemoteRequest {
        path: PATH,
        body: Some(Bytes::from(review.to_string())),
    }
}

/// Parses the response to [`request`] (`webhook.WebhookAuthorizer`, Kubernetes 1.36). A permission
/// is granted only if it is allowed and not denied.
///
/// # Errors
/// The response contains no decision.
pub(crate) fn parse_response(
    response: &RemoteResponse,
) -> Result<AccessReviewDecision, ReviewError> {
    response.check_review_status()?;
    let SubjectAccessReview { status } =
        serde_json::from_slice(&response.body).map_err(|error| {
            ReviewError::Failed(format!(
                "its response is not a SubjectAccessReview: {error}"
            ))
        })?;
    let SubjectAccessReviewStatus {
        allowed,
        denied,
        mut reason,
    } = status;
    if allowed && !denied {
        return Ok(AccessReviewDecision::Allowed);
    }
    reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
    Ok(AccessReviewDecision::Denied(reason.into()))
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn parse(status: u16, body: &str) -> Result<AccessReviewDecision, ReviewError> {
        parse_response(&RemoteResponse {
            status: StatusCode::from_u16(status).unwrap(),
            body: Bytes::copy_from_slice(body.as_bytes()),
        })
    }

    #[test]
    fn the_request_is_a_valid_subject_access_review() {
        let user = UserInfo {
            name: "alice".to_owned(),
            uid: "u".to_owned(),
            groups: vec!["dev".to_owned()],
            extra: vec![("k".to_owned(), vec!["v".to_owned()])],
        };
        let permission = ImpersonationPermission {
            group: "authentication.k8s.io",
            resource: "userextras",
            subresource: "scopes".to_owned(),
            namespace: String::new(),
            name: "all".to_owned(),
        };
        let body: Value =
            serde_json::from_slice(&request(&user, &permission).body.unwrap()).unwrap();
        assert_eq!(
            body,
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
                "resourceAttributes": {"verb": "impersonate", "group": "authentication.k8s.io", "version": "v1",
                    "resource": "userextras", "subresource": "scopes", "namespace": "", "name": "all"},
                "user": "alice", "uid": "u", "groups": ["dev"], "extra": {"k": ["v"]}}})
        );
    }

    #[test]
    fn a_path_is_reviewed_by_non_resource_attributes() {
        let user = UserInfo {
            name: "prometheus".to_owned(),
            ..UserInfo::default()
        };
        let body = path_request(&user, "get", "/metrics").body.unwrap();
        let spec = serde_json::from_slice::<Value>(&body).unwrap()["spec"].take();
        let expected = json!({"nonResourceAttributes": {"verb": "get", "path": "/metrics"},
            "user": "prometheus", "uid": "", "groups": [], "extra": {}});
        assert_eq!(spec, expected);
    }

    #[test]
    fn anything_but_allowed_and_not_denied_is_denied() {
        assert_eq!(
            parse(201, r#"{"status":{"allowed":true}}"#),
            Ok(AccessReviewDecision::Allowed)
        );
        for (body, reason) in [
            (r#"{"status":{"allowed":false}}"#, ""),
            (
                r#"{"status":{"allowed":true,"denied":true,"reason":"r"}}"#,
                "r",
            ),
            (r#"{"status":{"allowed":false,"evaluationError":"e"}}"#, ""),
        ] {
            assert_eq!(
                parse(201, body),
                Ok(AccessReviewDecision::Denied(reason.into())),
                "{body}"
            );
        }
        let long = format!(
            r#"{{"status":{{"allowed":false,"reason":"{}"}}}}"#,
            "ä".repeat(1000)
        );
        let Ok(AccessReviewDecision::Denied(reason)) = parse(201, &long) else {
            panic!("denied")
        };
        assert_eq!(reason.len(), MAX_REASON_BYTES);
    }

    #[test]
    fn an_invalid_response_is_no_decision() {
        for code in [409, 429, 500, 503] {
            let result = parse(code, r#"{"status":{"allowed":true}}"#);
            assert!(matches!(result, Err(ReviewError::Failed(_))), "{code}");
        }
        for code in [401, 403, 404, 405] {
            let result = parse(code, r#"{"status":{"allowed":true}}"#);
            assert!(
                matches!(result, Err(ReviewError::NotPermitted(_))),
                "{code}"
            );
        }
        for body in [
            "",
            "{}",
            r#"{"status":{}}"#,
            r#"{"status":{"allowed":"true"}}"#,
        ] {
            let result = parse(200, body);
            assert!(matches!(result, Err(ReviewError::Failed(_))), "{body}");
        }
    }
}
