//! TokenReview, SubjectAccessReview and the other reviews: the decisions of the server itself.

use crate::auth::authorization::AccessAttributes;
use crate::auth::user::ApiUser;
use crate::endpoints::response::HandlerResult;
use crate::endpoints::{response, write};
use crate::objects::resources::{ApiResource, ReviewKind};
use crate::objects::storage::object::string_at;
use crate::state::ServerState;
use crate::status::{StatusCause, StatusError};
use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};

/// The audience of all tokens.
const AUDIENCE: &str = crate::auth::service_account_tokens::ISSUER;

pub(crate) async fn handle(
    state: &ServerState,
    user: &ApiUser,
    resource: &'static ApiResource,
    review: ReviewKind,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let body = write::read_object(request, resource.kind).await?;
    let spec = body.get("spec").cloned().unwrap_or_default();
    state.request_log.record_review(resource.kind, spec.clone());
    let status = match review {
        ReviewKind::SelfSubject => json!({"userInfo": user_info(user)}),
        ReviewKind::SelfSubjectAccess => review_access(state, user, &spec, resource)?,
        ReviewKind::SubjectAccess => review_access(state, &reviewed_user(&spec), &spec, resource)?,
        ReviewKind::Token => review_token(state, &spec),
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
    Ok(response::json(
        StatusCode::CREATED,
        review.to_string().into_bytes(),
    ))
}

fn user_info(user: &ApiUser) -> Value {
    let ApiUser {
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

fn string_list(value: &Value, key: &str) -> Vec<String> {
    let list = value.get(key).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

fn review_token(state: &ServerState, spec: &Value) -> Value {
    let audiences = string_list(spec, "audiences");
    let known = state
        .authenticator
        .verify_token(string_at(spec, &["token"]));
    let meant = audiences.is_empty() || audiences.iter().any(|audience| audience == AUDIENCE);
    match known.filter(|_| meant) {
        Some(user) => json!({
            "authenticated": true, "user": user_info(&user), "audiences": [AUDIENCE],
        }),
        None => json!({"user": {}, "error": "invalid bearer token"}),
    }
}

/// The user of a SubjectAccessReview.
fn reviewed_user(spec: &Value) -> ApiUser {
    ApiUser {
        name: string_at(spec, &["user"]).to_owned(),
        uid: string_at(spec, &["uid"]).to_owned(),
        groups: string_list(spec, "groups"),
        ..ApiUser::default()
    }
}

fn review_access(
    state: &ServerState,
    user: &ApiUser,
    spec: &Value,
    resource: &'static ApiResource,
) -> Result<Value, StatusError> {
    let text = |section: &str, key: &str| string_at(spec, &[section, key]).to_owned();
    let attributes = if spec.get("resourceAttributes").is_some() {
        let text = |key| text("resourceAttributes", key);
        let part = text("subresource");
        AccessAttributes::Resource {
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
        AccessAttributes::Path {
            verb: text("nonResourceAttributes", "verb"),
            path: text("nonResourceAttributes", "path"),
        }
    } else {
        let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        let cause = StatusCause::invalid("spec.resourceAttributes", "null", why);
        return Err(StatusError::invalid(resource.resource_ref(""), cause));
    };
    Ok(json!({"allowed": state.allows(user, &attributes)}))
}
