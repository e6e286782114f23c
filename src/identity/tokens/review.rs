//! `TokenReview` (`authentication.k8s.io/v1`): what is asked, and what the answer says. Pure.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use crate::api::UserInfo;
use crate::identity::remote::Call;
use crate::identity::remote::NoVerdict;
use crate::identity::remote::Reply;

/// Where reviews are created.
pub const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// What the API server says about a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is this user's.
    Authenticated(UserInfo),
    /// It is nobody's.
    Refused,
}

#[derive(Deserialize)]
struct Review {
    status: Status,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    authenticated: bool,
    #[serde(default)]
    user: User,
    #[serde(default)]
    audiences: Vec<String>,
}

#[derive(Default, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    extra: BTreeMap<String, Vec<String>>,
}

/// The call that has `token` reviewed; for one of `audiences`, if there are any.
#[must_use]
pub fn call(token: &[u8], audiences: &[String]) -> Option<Call> {
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
    Some(Call {
        path: PATH,
        body: Some(Bytes::from(review.to_string())),
    })
}

/// What the answer to [`call`] says (`webhook.WebhookTokenAuthenticator`, Kubernetes 1.36): with audiences asked for, one of them
/// must be among those that the API server names.
///
/// # Errors
/// It says nothing about the token.
pub fn verdict(reply: &Reply, audiences: &[String]) -> Result<Verdict, NoVerdict> {
    reply.reviewed()?;
    let Review { status } = serde_json::from_slice(&reply.body)
        .map_err(|why| NoVerdict::Failed(format!("its answer is no TokenReview: {why}")))?;
    let Status {
        authenticated,
        user,
        audiences: told,
    } = status;
    let meant = audiences.is_empty() || told.iter().any(|told| audiences.iter().any(|a| a == told));
    if !authenticated || !meant || user.username.is_empty() {
        return Ok(Verdict::Refused);
    }
    let user = UserInfo {
        name: user.username,
        uid: user.uid,
        groups: user.groups,
        extra: user.extra.into_iter().collect(),
    };
    Ok(Verdict::Authenticated(user.authenticated()))
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn reply(status: u16, body: &str) -> Reply {
        Reply {
            status: StatusCode::from_u16(status).unwrap(),
            body: Bytes::copy_from_slice(body.as_bytes()),
        }
    }

    #[test]
    fn what_is_asked_is_what_the_api_takes() {
        let call = call(b"secret", &["api".to_owned()]).unwrap();
        let body: serde_json::Value = serde_json::from_slice(&call.body.unwrap()).unwrap();
        assert_eq!(
            body,
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
                   "spec": {"token": "secret", "audiences": ["api"]}})
        );
        assert!(super::call(b"\xff", &[]).is_none());
    }

    #[test]
    fn a_user_is_taken_as_it_is_told() {
        let body = r#"{"status":{"authenticated":true,"audiences":["api"],"user":{"username":"alice","uid":"u",
            "groups":["dev","system:authenticated"],"extra":{"k":["v"]}}}}"#;
        let user = UserInfo {
            name: "alice".to_owned(),
            uid: "u".to_owned(),
            groups: vec!["dev".to_owned(), "system:authenticated".to_owned()],
            extra: vec![("k".to_owned(), vec!["v".to_owned()])],
        };
        let good = Ok(Verdict::Authenticated(user));
        assert_eq!(verdict(&reply(201, body), &[]), good);
        assert_eq!(verdict(&reply(201, body), &["api".to_owned()]), good);
        let other = verdict(&reply(201, body), &["other".to_owned()]);
        assert_eq!(other, Ok(Verdict::Refused));
    }

    #[test]
    fn whatever_is_not_a_clear_yes_is_no() {
        for body in [
            r#"{"status":{"user":{"username":"alice"}}}"#,
            r#"{"status":{"authenticated":false,"user":{"username":"alice"}}}"#,
            r#"{"status":{"authenticated":true,"user":{}}}"#,
            r#"{"status":{"error":"invalid bearer token"}}"#,
        ] {
            let told = verdict(&reply(201, body), &[]);
            assert_eq!(told, Ok(Verdict::Refused), "{body}");
        }
    }

    #[test]
    fn an_answer_that_is_none_says_nothing_about_the_token() {
        for code in [429, 500, 503] {
            let told = verdict(&reply(code, "{}"), &[]);
            assert!(matches!(told, Err(NoVerdict::Failed(_))), "{code}");
        }
        for code in [401, 403, 404] {
            let told = verdict(&reply(code, "{}"), &[]);
            assert!(matches!(told, Err(NoVerdict::MayNotAsk(_))), "{code}");
        }
        for body in ["", "{}", r#"{"status":{"authenticated":"yes"}}"#] {
            let told = verdict(&reply(200, body), &[]);
            assert!(matches!(told, Err(NoVerdict::Failed(_))), "{body}");
        }
    }
}
