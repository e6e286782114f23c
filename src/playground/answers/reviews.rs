//! TokenReview, SubjectAccessReview and their relatives: what the server itself would decide.

use crate::playground::answers::Answer;
use crate::playground::answers::reply;
use crate::playground::answers::write;
use crate::playground::authentication::User;
use crate::playground::authorization::Attributes;
use crate::playground::objects::resources::Resource;
use crate::playground::objects::resources::Review;
use crate::playground::objects::store::text_at;
use crate::playground::state::State;
use crate::playground::status::Cause;
use crate::playground::status::Status;
use http::Request;
use http::StatusCode;
use hyper::body::Incoming;
use serde_json::Value;
use serde_json::json;

/// The audience that tokens are for.
const AUDIENCE: &str = crate::playground::service_accounts::ISSUER;

pub(crate) async fn answer(
    state: &State,
    user: &User,
    resource: &'static Resource,
    review: Review,
    request: &mut Request<Incoming>,
) -> Answer {
    let body = write::object(request, resource.kind).await?;
    let spec = body.get("spec").cloned().unwrap_or_default();
    state.journal.reviewed(resource.kind, spec.clone());
    let status = match review {
        Review::SelfSubject => json!({"userInfo": user_info(user)}),
        Review::SelfSubjectAccess => access(state, user, &spec, resource)?,
        Review::SubjectAccess => access(state, &subject(&spec), &spec, resource)?,
        Review::Token => token(state, &spec),
    };
    let mut review = json!({
        "kind": resource.kind,
        "apiVersion": resource.group_version(),
        "metadata": {},
        "status": status,
    });
    if let (false, Some(review)) = (spec.is_null(), review.as_object_mut()) {
        review.insert("spec".to_owned(), spec);
    }
    Ok(reply::json(
        StatusCode::CREATED,
        review.to_string().into_bytes(),
    ))
}

fn user_info(user: &User) -> Value {
    let User {
        name,
        uid,
        groups,
        extra,
    } = user;
    let mut info = json!({"username": name, "groups": groups});
    if let Some(info) = info.as_object_mut() {
        if !uid.is_empty() {
            info.insert("uid".to_owned(), uid.clone().into());
        }
        if !extra.is_empty() {
            info.insert("extra".to_owned(), json!(extra));
        }
    }
    info
}

fn texts(value: &Value, key: &str) -> Vec<String> {
    let list = value.get(key).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

fn token(state: &State, spec: &Value) -> Value {
    let audiences = texts(spec, "audiences");
    let known = state.authenticator.token(text_at(spec, &["token"]));
    let meant = audiences.is_empty() || audiences.iter().any(|audience| audience == AUDIENCE);
    match known.filter(|_| meant) {
        Some(user) => json!({
            "authenticated": true, "user": user_info(&user), "audiences": [AUDIENCE],
        }),
        None => json!({"user": {}, "error": "invalid bearer token"}),
    }
}

/// The user that a SubjectAccessReview is about.
fn subject(spec: &Value) -> User {
    User {
        name: text_at(spec, &["user"]).to_owned(),
        uid: text_at(spec, &["uid"]).to_owned(),
        groups: texts(spec, "groups"),
        ..User::default()
    }
}

fn access(
    state: &State,
    user: &User,
    spec: &Value,
    resource: &'static Resource,
) -> Result<Value, Status> {
    let text = |section: &str, key: &str| text_at(spec, &[section, key]).to_owned();
    let attributes = if spec.get("resourceAttributes").is_some() {
        let text = |key| text("resourceAttributes", key);
        let part = text("subresource");
        Attributes::Resource {
            verb: text("verb"),
            group: text("group"),
            resource: if part.is_empty() {
                text("resource")
            } else {
                format!("{}/{part}", text("resource"))
            },
            namespace: text("namespace"),
            name: text("name"),
        }
    } else if spec.get("nonResourceAttributes").is_some() {
        Attributes::Path {
            verb: text("nonResourceAttributes", "verb"),
            path: text("nonResourceAttributes", "path"),
        }
    } else {
        let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        let cause = Cause::invalid("spec.resourceAttributes", "null", why);
        return Err(Status::invalid(resource.subject(""), cause));
    };
    Ok(json!({"allowed": state.allows(user, &attributes)}))
}
