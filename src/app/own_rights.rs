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
use crate::identity::remote::ApiServer;
use crate::identity::remote::Call;
use crate::identity::remote::Reply;

/// Where the API server says what who asks may do.
const PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// An API server that does not answer is asked again after this long.
const RETRY: Duration = Duration::from_secs(10);

const DELEGATOR: &str = "the ClusterRole system:auth-delegator";
const ISSUER_DISCOVERY: &str = "the ClusterRole system:service-account-issuer-discovery";
const IMPERSONATOR: &str = "a ClusterRole with the verb impersonate for users, groups and serviceaccounts, and for * of authentication.k8s.io (RBAC has no userextras/*)";

/// The extra that the user of every client certificate has (`x509.CommonNameUserConversion`). Each key is a right of its own.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// A right that weir needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Right {
    verb: &'static str,
    /// The API group; none where `what` is a path.
    group: Option<&'static str>,
    /// The resource or the path.
    what: &'static str,
    /// Empty as a rule.
    subresource: &'static str,
    /// What gives it.
    given_by: &'static str,
    /// What follows if it is missing.
    without: &'static str,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.what)?;
        if let Some(group) = self.group.filter(|group| !group.is_empty()) {
            write!(f, ".{group}")?;
        }
        if !self.subresource.is_empty() {
            write!(f, "/{}", self.subresource)?;
        }
        Ok(())
    }
}

impl Right {
    fn call(&self) -> Call {
        let Self {
            verb,
            what,
            subresource,
            ..
        } = self;
        review(&match self.group {
            None => json!({"nonResourceAttributes": {"verb": verb, "path": what}}),
            Some(group) => json!({"resourceAttributes": {
                "verb": verb, "group": group, "resource": what, "subresource": subresource,
            }}),
        })
    }
}

/// The question whether weir may do what `spec` says.
pub(super) fn review(spec: &Value) -> Call {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": spec,
    });
    Call {
        path: PATH,
        body: Some(Bytes::from(review.to_string())),
    }
}

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    Denied,
    /// Nothing, and asking again will not help.
    NotServed(StatusCode),
    /// Nothing yet.
    Unanswered,
}

/// What the answer to a review says.
pub(super) fn verdict(reply: &Reply) -> Verdict {
    match reply.status {
        StatusCode::OK | StatusCode::CREATED => {}
        code @ (StatusCode::FORBIDDEN | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) => {
            return Verdict::NotServed(code);
        }
        _ => return Verdict::Unanswered,
    }
    #[derive(Deserialize)]
    struct Review {
        status: Value,
    }
    let review = serde_json::from_slice::<Review>(&reply.body);
    let allowed = review
        .ok()
        .and_then(|review| review.status.get("allowed")?.as_bool());
    match allowed {
        Some(true) => Verdict::Allowed,
        Some(false) => Verdict::Denied,
        None => Verdict::Unanswered,
    }
}

/// The rights that a configuration needs, and whom to ask about them.
#[derive(Debug)]
pub(super) struct OwnRights {
    needed: Vec<Right>,
}

impl OwnRights {
    /// Those of `config`; none where weir does not ask about itself.
    pub(super) fn of(config: &Config) -> Self {
        let verification = &config.identity.verification;
        let mut needed = Vec::new();
        if config.admin.self_checks.is_none() {
            return Self { needed };
        }
        if verification.reviews_per_second > 0 {
            needed.push(Right {
                verb: "create",
                group: Some("authentication.k8s.io"),
                what: "tokenreviews",
                subresource: "",
                given_by: DELEGATOR,
                without: "tokens that weir cannot verify by their signature count as system:anonymous",
            });
        }
        if config.identity.impersonation.classify || config.impersonate {
            needed.push(Right {
                verb: "create",
                group: Some("authorization.k8s.io"),
                what: "subjectaccessreviews",
                subresource: "",
                given_by: DELEGATOR,
                without: "nobody may impersonate as far as weir is concerned",
            });
        }
        if verification.account_keys.is_none() {
            needed.extend(
                ["/.well-known/openid-configuration", "/openid/v1/jwks"].map(|what| Right {
                    verb: "get",
                    group: None,
                    what,
                    subresource: "",
                    given_by: ISSUER_DISCOVERY,
                    without: "every token is reviewed, also those of service accounts",
                }),
            );
        }
        if config.impersonate {
            let kinds = [
                ("", "users", ""),
                ("", "groups", ""),
                ("", "serviceaccounts", ""),
                ("authentication.k8s.io", "uids", ""),
                ("authentication.k8s.io", "userextras", CREDENTIAL_ID),
            ];
            needed.extend(kinds.map(|(group, what, subresource)| Right {
                verb: "impersonate",
                group: Some(group),
                what,
                subresource,
                given_by: IMPERSONATOR,
                without: "requests of clients with certificates are answered 403",
            }));
        }
        Self { needed }
    }

    /// Asks about each, until it is answered, and warns of those that are missing.
    pub(super) async fn check(self, server: Arc<dyn ApiServer>) {
        for right in self.needed {
            let verdict = loop {
                let verdict = match server.ask(right.call()).await {
                    Ok(reply) => verdict(&reply),
                    Err(_) => Verdict::Unanswered,
                };
                if verdict != Verdict::Unanswered {
                    break verdict;
                }
                tokio::time::sleep(RETRY).await;
            };
            match verdict {
                Verdict::Denied => warn!(
                    %right,
                    "weir's own credential lacks a right, which {} gives: until then {}",
                    right.given_by, right.without
                ),
                Verdict::NotServed(code) => {
                    debug!(%code, "the API server does not tell what weir's own credential may do");
                    return;
                }
                Verdict::Allowed | Verdict::Unanswered => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_word_is_one() {
        let told = |code: u16, body: &'static str| {
            verdict(&Reply {
                status: StatusCode::from_u16(code).unwrap(),
                body: Bytes::from_static(body.as_bytes()),
            })
        };
        assert_eq!(
            told(201, r#"{"status":{"allowed":true}}"#),
            Verdict::Allowed
        );
        assert_eq!(
            told(201, r#"{"status":{"allowed":false}}"#),
            Verdict::Denied
        );
        for (code, body) in [(201, "{}"), (201, ""), (401, "{}"), (429, "{}"), (503, "")] {
            assert_eq!(told(code, body), Verdict::Unanswered, "{code} {body}");
        }
        assert_eq!(told(404, ""), Verdict::NotServed(StatusCode::NOT_FOUND));
    }
}
