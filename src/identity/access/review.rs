//! `SubjectAccessReview` (`authorization.k8s.io/v1`): what is asked, and what the answer says. Pure.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use crate::api::UserInfo;
use crate::identity::impersonation::Right;
use crate::identity::remote::Call;
use crate::identity::remote::NoVerdict;
use crate::identity::remote::Reply;

/// Where reviews are created.
pub const PATH: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// The longest reason that is kept, in bytes: it is told to the client, and authorizers write a sentence.
const LONGEST_REASON: usize = 256;

/// What the API server says about a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The user has it.
    Allowed,
    /// The user has it not, and why, if that is told.
    Denied(Box<str>),
}

#[derive(Deserialize)]
struct Review {
    status: Status,
}

#[derive(Deserialize)]
struct Status {
    allowed: bool,
    #[serde(default)]
    denied: bool,
    #[serde(default)]
    reason: String,
}

/// The call that asks whether `who` may impersonate.
#[must_use]
pub fn call(who: &UserInfo, right: &Right) -> Call {
    let Right {
        group,
        resource,
        subresource,
        namespace,
        name,
    } = right;
    let extra: Map<String, Value> = who
        .extra
        .iter()
        .map(|(key, values)| (key.clone(), json!(values)))
        .collect();
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "resourceAttributes": {
                "verb": "impersonate",
                "group": group,
                "version": "v1",
                "resource": resource,
                "subresource": subresource,
                "namespace": namespace,
                "name": name,
            },
            "user": who.name,
            "uid": who.uid,
            "groups": who.groups,
            "extra": extra,
        },
    });
    Call {
        path: PATH,
        body: Some(Bytes::from(review.to_string())),
    }
}

/// What the answer to [`call`] says (`webhook.WebhookAuthorizer`, Kubernetes 1.36): only what is allowed and not denied is a yes.
///
/// # Errors
/// It says nothing about the right.
pub fn verdict(reply: &Reply) -> Result<Verdict, NoVerdict> {
    reply.reviewed()?;
    let Review { status } = serde_json::from_slice(&reply.body)
        .map_err(|why| NoVerdict::Failed(format!("its answer is no SubjectAccessReview: {why}")))?;
    let Status {
        allowed,
        denied,
        mut reason,
    } = status;
    if allowed && !denied {
        return Ok(Verdict::Allowed);
    }
    reason.truncate(reason.floor_char_boundary(LONGEST_REASON));
    Ok(Verdict::Denied(reason.into()))
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn told(status: u16, body: &str) -> Result<Verdict, NoVerdict> {
        verdict(&Reply {
            status: StatusCode::from_u16(status).unwrap(),
            body: Bytes::copy_from_slice(body.as_bytes()),
        })
    }

    #[test]
    fn what_is_asked_is_what_the_api_takes() {
        let who = UserInfo {
            name: "alice".to_owned(),
            uid: "u".to_owned(),
            groups: vec!["dev".to_owned()],
            extra: vec![("k".to_owned(), vec!["v".to_owned()])],
        };
        let right = Right {
            group: "authentication.k8s.io",
            resource: "userextras",
            subresource: "scopes".to_owned(),
            namespace: String::new(),
            name: "all".to_owned(),
        };
        let body: Value = serde_json::from_slice(&call(&who, &right).body.unwrap()).unwrap();
        assert_eq!(
            body,
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
                "resourceAttributes": {"verb": "impersonate", "group": "authentication.k8s.io", "version": "v1",
                    "resource": "userextras", "subresource": "scopes", "namespace": "", "name": "all"},
                "user": "alice", "uid": "u", "groups": ["dev"], "extra": {"k": ["v"]}}})
        );
    }

    #[test]
    fn whatever_is_not_a_clear_yes_is_no() {
        assert_eq!(
            told(201, r#"{"status":{"allowed":true}}"#),
            Ok(Verdict::Allowed)
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
                told(201, body),
                Ok(Verdict::Denied(reason.into())),
                "{body}"
            );
        }
        let long = format!(
            r#"{{"status":{{"allowed":false,"reason":"{}"}}}}"#,
            "ä".repeat(1000)
        );
        let Ok(Verdict::Denied(reason)) = told(201, &long) else {
            panic!("denied")
        };
        assert_eq!(reason.len(), LONGEST_REASON);
    }

    #[test]
    fn an_answer_that_is_none_says_nothing() {
        for code in [409, 429, 500, 503] {
            let told = told(code, r#"{"status":{"allowed":true}}"#);
            assert!(matches!(told, Err(NoVerdict::Failed(_))), "{code}");
        }
        for code in [401, 403, 404, 405] {
            let told = told(code, r#"{"status":{"allowed":true}}"#);
            assert!(matches!(told, Err(NoVerdict::MayNotAsk(_))), "{code}");
        }
        for body in [
            "",
            "{}",
            r#"{"status":{}}"#,
            r#"{"status":{"allowed":"true"}}"#,
        ] {
            let told = told(200, body);
            assert!(matches!(told, Err(NoVerdict::Failed(_))), "{body}");
        }
    }
}
