//! Get and list.

use crate::endpoints::resource_request::ResourceRequest;
use crate::endpoints::response;
use crate::endpoints::response::HandlerResult;
use crate::objects::storage::store::{ListPage, ListScope, Store, VersionExpired};
use crate::status::{StatusCause, StatusError};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The continue token of a list: the version of its first page and the key of the last object.
///
/// The format is kube-apiserver's, including the `\0` that makes the start exclusive.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ContinueToken {
    v: String,
    rv: i64,
    start: String,
}

const CONTINUE_VERSION: &str = "meta.k8s.io/v1";
/// The version in a token that continues at the newest version, without consistency.
const INCONSISTENT_VERSION: i64 = -1;

pub(crate) fn get(resource_request: &ResourceRequest<'_>) -> HandlerResult {
    let object = resource_request.stored_object(&resource_request.state.storage.lock())?;
    resource_request.object_response(StatusCode::OK, &object)
}

pub(crate) fn list(resource_request: &ResourceRequest<'_>) -> HandlerResult {
    let scope = resource_request.scope()?;
    let limit = resource_request.query.number("limit")?.unwrap_or(0);
    let limit = if ignores_limit(resource_request) {
        0
    } else {
        limit
    };
    let (page, version) = list_page(resource_request, &scope, limit)?;
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if let (true, Some(last)) = (page.has_more, page.objects.last()) {
        let token = ContinueToken {
            v: CONTINUE_VERSION.to_owned(),
            rv: i64::try_from(version).unwrap_or(i64::MAX),
            start: format!("/{}\0", Store::continue_key(last)),
        };
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("continue".to_owned(), token.encode().into());
            if scope.selection.is_everything() {
                metadata.insert("remainingItemCount".to_owned(), page.remaining.into());
            }
        }
    }
    let representation = resource_request.representation();
    let head = representation.list_head(&metadata);
    let items = page
        .objects
        .into_iter()
        .map(move |object| representation.item(&object));
    Ok(response::list(head, items, b"]}\n"))
}

/// kube-apiserver's watch cache ignores the limit at version 0 (`computeListLimit`).
fn ignores_limit(resource_request: &ResourceRequest<'_>) -> bool {
    let is = |key, values: &[Option<&str>]| values.contains(&resource_request.query.first(key));
    is("resourceVersion", &[Some("0")])
        && is(
            "resourceVersionMatch",
            &[None, Some(""), Some("NotOlderThan")],
        )
        && is("continue", &[None, Some("")])
}

/// The requested page of objects and the version of the list.
fn list_page(
    resource_request: &ResourceRequest<'_>,
    scope: &ListScope,
    limit: usize,
) -> Result<(ListPage, u64), StatusError> {
    let store = resource_request.state.storage.lock();
    let requested: Option<u64> = resource_request.query.number("resourceVersion")?;
    let current = store.version();
    if let Some(token) = resource_request.query.first("continue") {
        let token = ContinueToken::decode(token)?;
        let at = u64::try_from(token.rv).ok();
        let after = token.start.trim_start_matches('/').trim_end_matches('\0');
        let page = store
            .list(scope, at, Some(after), limit)
            .map_err(|VersionExpired| token.expired_status())?;
        return Ok((page, at.unwrap_or(current)));
    }
    if let Some(requested) = requested.filter(|requested| *requested > current) {
        return Err(StatusError::too_large_version(requested, current));
    }
    let exact = match resource_request.query.first("resourceVersionMatch") {
        Some("Exact") => true,
        Some("NotOlderThan") | None => false,
        Some(other) => {
            let cause =
                StatusCause::unsupported("resourceVersionMatch", other, "Exact, NotOlderThan");
            return Err(resource_request.invalid_option("ListOptions", cause));
        }
    };
    let at = requested.filter(|_| exact);
    let page = store
        .list(scope, at, None, limit)
        .map_err(|VersionExpired| {
            let requested = at.unwrap_or_default();
            StatusError::expired(format!(
                "The resourceVersion for the provided list is too old: {requested}"
            ))
        })?;
    Ok((page, at.unwrap_or(current)))
}

impl ContinueToken {
    fn encode(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    fn decode(token: &str) -> Result<Self, StatusError> {
        let invalid = |why: &dyn std::fmt::Display| {
            let message = format!("invalid continue token: continue key is not valid: {why}");
            StatusError::bad_request(message)
        };
        let json = BASE64_URL_SAFE_NO_PAD
            .decode(token)
            .map_err(|error| invalid(&error))?;
        let token: Self = serde_json::from_slice(&json).map_err(|error| invalid(&error))?;
        if token.v != CONTINUE_VERSION {
            return Err(invalid(&format!(
                "server does not recognize version {:?}",
                token.v
            )));
        }
        Ok(token)
    }

    /// The error for a token whose version is no longer in the log, with a token for an
    /// inconsistent continuation.
    fn expired_status(&self) -> StatusError {
        let resume = Self {
            v: CONTINUE_VERSION.to_owned(),
            rv: INCONSISTENT_VERSION,
            start: self.start.clone(),
        };
        StatusError {
            continue_token: Some(resume.encode()),
            ..StatusError::expired(
                "The provided continue parameter is too old to display a consistent list result. \
                 Start a new list without it, or go on inconsistently with the token in this \
                 response.",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ContinueToken;

    #[test]
    fn a_continue_token_of_kube_apiserver_is_decoded() {
        let token = ContinueToken::decode(
            "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MTQ1MCwic3RhcnQiOiIvdGVhbS1hL3dlYi0wMS0yYzdkNTQ5\
             MGUtNjA1MDhcdTAwMDAifQ",
        )
        .unwrap();
        assert_eq!(token.rv, 1450);
        assert_eq!(token.start, "/team-a/web-01-2c7d5490e-60508\0");
        assert_eq!(ContinueToken::decode(&token.encode()), Ok(token));
        assert_eq!(ContinueToken::decode("garbage").unwrap_err().code, 400);
    }
}
