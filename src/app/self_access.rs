//! What weir's own credential may do, asked once at the start (`SelfSubjectAccessReview`), so that a missing right is known before
//! the first token or impersonation needs it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use serde_json::json;
use tracing::debug;
use tracing::warn;

use crate::config::Config;
use crate::identity::transport::ApiTransport;
use crate::identity::transport::RemoteRequest;
use crate::identity::transport::RemoteResponse;

/// Where the API server says what who asks may do.
const SELF_ACCESS_REVIEWS_PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// An API server that does not answer is asked again after this long.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

const DELEGATOR: &str = "the ClusterRole system:auth-delegator";
const ISSUER_DISCOVERY: &str = "the ClusterRole system:service-account-issuer-discovery";
const IMPERSONATOR: &str = "a ClusterRole with the verb impersonate for users, groups and serviceaccounts, and for * of authentication.k8s.io (RBAC has no userextras/*)";

/// The extra that the user of every client certificate has (`x509.CommonNameUserConversion`). Each key is a right of its own.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// A right that weir needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Permission {
    verb: &'static str,
    /// The API group; none where `what` is a path.
    group: Option<&'static str>,
    /// The resource or the path.
    resource: &'static str,
    /// Empty as a rule.
    subresource: &'static str,
    /// What gives it.
    granted_by: &'static str,
    /// What follows if it is missing.
    consequence: &'static str,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if let Some(group) = self.group.filter(|group| !group.is_empty()) {
            write!(f, ".{group}")?;
        }
        if !self.subresource.is_empty() {
            write!(f, "/{}", self.subresource)?;
        }
        Ok(())
    }
}

impl Permission {
    fn review_request(&self) -> RemoteRequest {
        let Self {
            verb,
            resource: what,
            subresource,
            ..
        } = self;
        self_access_review(&match self.group {
            None => json!({"nonResourceAttributes": {"verb": verb, "path": what}}),
            Some(group) => json!({"resourceAttributes": {
                "verb": verb, "group": group, "resource": what, "subresource": subresource,
            }}),
        })
    }
}

/// The question whether weir may do what `spec` says.
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

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SelfAccessDecision {
    Allowed,
    Denied,
    /// Nothing, and asking again will not help.
    NotServed(StatusCode),
    /// Nothing yet.
    NoDecision,
}

/// What the answer to a review says.
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

/// The rights that a configuration needs, and whom to ask about them.
#[derive(Debug)]
pub(super) struct SelfAccess {
    required: Vec<Permission>,
}

impl SelfAccess {
    /// Those of `config`; none where weir does not ask about itself.
    pub(super) fn from_config(config: &Config) -> Self {
        let verification = &config.identity.verification;
        let mut needed = Vec::new();
        if config.admin.self_check_interval.is_none() {
            return Self { required: needed };
        }
        if verification.reviews_per_second > 0 {
            needed.push(Permission {
                verb: "create",
                group: Some("authentication.k8s.io"),
                resource: "tokenreviews",
                subresource: "",
                granted_by: DELEGATOR,
                consequence: "tokens that weir cannot verify by their signature count as system:anonymous",
            });
        }
        if config.identity.impersonation.classify || config.assert_by_impersonation {
            needed.push(Permission {
                verb: "create",
                group: Some("authorization.k8s.io"),
                resource: "subjectaccessreviews",
                subresource: "",
                granted_by: DELEGATOR,
                consequence: "nobody may impersonate as far as weir is concerned",
            });
        }
        if verification.service_account_keys.is_none() {
            needed.extend(
                ["/.well-known/openid-configuration", "/openid/v1/jwks"].map(|what| Permission {
                    verb: "get",
                    group: None,
                    resource: what,
                    subresource: "",
                    granted_by: ISSUER_DISCOVERY,
                    consequence: "every token is reviewed, also those of service accounts",
                }),
            );
        }
        if config.assert_by_impersonation {
            let kinds = [
                ("", "users", ""),
                ("", "groups", ""),
                ("", "serviceaccounts", ""),
                ("authentication.k8s.io", "uids", ""),
                ("authentication.k8s.io", "userextras", CREDENTIAL_ID),
            ];
            needed.extend(kinds.map(|(group, what, subresource)| Permission {
                verb: "impersonate",
                group: Some(group),
                resource: what,
                subresource,
                granted_by: IMPERSONATOR,
                consequence: "requests of clients with certificates are answered 403",
            }));
        }
        Self { required: needed }
    }

    /// Asks about each, until it is answered, and warns of those that are missing.
    pub(super) async fn check(self, server: Arc<dyn ApiTransport>) {
        for right in self.required {
            let verdict = loop {
                let verdict = match server.send(right.review_request()).await {
                    Ok(reply) => parse_decision(&reply),
                    Err(_) => SelfAccessDecision::NoDecision,
                };
                if verdict != SelfAccessDecision::NoDecision {
                    break verdict;
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            };
            match verdict {
                SelfAccessDecision::Denied => warn!(
                    %right,
                    "weir's own credential lacks a right, which {} gives: until then {}",
                    right.granted_by, right.consequence
                ),
                SelfAccessDecision::NotServed(code) => {
                    debug!(%code, "the API server does not tell what weir's own credential may do");
                    return;
                }
                SelfAccessDecision::Allowed | SelfAccessDecision::NoDecision => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_explicit_decision_counts() {
        let told = |code: u16, body: &'static str| {
            parse_decision(&RemoteResponse {
                status: StatusCode::from_u16(code).unwrap(),
                body: Bytes::from_static(body.as_bytes()),
            })
        };
        assert_eq!(
            told(201, r#"{"status":{"allowed":true}}"#),
            SelfAccessDecision::Allowed
        );
        assert_eq!(
            told(201, r#"{"status":{"allowed":false}}"#),
            SelfAccessDecision::Denied
        );
        for (code, body) in [(201, "{}"), (201, ""), (401, "{}"), (429, "{}"), (503, "")] {
            assert_eq!(
                told(code, body),
                SelfAccessDecision::NoDecision,
                "{code} {body}"
            );
        }
        assert_eq!(
            told(404, ""),
            SelfAccessDecision::NotServed(StatusCode::NOT_FOUND)
        );
    }
}
