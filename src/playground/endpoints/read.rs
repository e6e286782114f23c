//! Get and list.

use crate::playground::endpoints::HandlerResult;
use crate::playground::endpoints::ResourceRequest;
use crate::playground::endpoints::representation::Representation;
use crate::playground::endpoints::response;
use crate::playground::objects::storage::selector::Selection;
use crate::playground::objects::storage::store::ListPage;
use crate::playground::objects::storage::store::ListScope;
use crate::playground::objects::storage::store::Store;
use crate::playground::objects::storage::store::StoredObject;
use crate::playground::objects::storage::store::VersionExpired;
use crate::playground::request::ResponseForm;
use crate::playground::status::ResourceRef;
use crate::playground::status::StatusCause;
use crate::playground::status::StatusError;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::StatusCode;
use serde::Deserialize;
use serde::Serialize;
use serde_json::Value;
use serde_json::json;
use std::sync::Arc;

/// What a list is continued with: the version of its first page and the key of the last object.
///
/// The form is kube-apiserver's, down to the `\0` that makes the start exclusive.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ContinueToken {
    v: String,
    rv: i64,
    start: String,
}

const CONTINUE_VERSION: &str = "meta.k8s.io/v1";
/// Stands for the newest version in a token that no longer promises one.
const INCONSISTENT_VERSION: i64 = -1;

impl ResourceRequest<'_> {
    /// Which objects a list, a watch or a collection's deletion is about.
    pub(crate) fn scope(&self) -> Result<ListScope, StatusError> {
        let selection = Selection::parse(
            self.kind,
            self.query.first("labelSelector"),
            self.query.first("fieldSelector"),
        )
        .map_err(StatusError::bad_request)?;
        Ok(ListScope {
            kind: self.kind,
            namespace: Some(self.target.namespace.clone()).filter(|n| !n.is_empty()),
            selection,
        })
    }

    pub(crate) fn representation(&self) -> Representation {
        Representation::new(self.target.resource, self.kind, self.form, self.query)
    }

    pub(crate) fn resource_ref(&self) -> ResourceRef<'_> {
        self.target.resource.resource_ref(&self.target.name)
    }

    /// The stored object that the path names.
    pub(crate) fn stored_object(&self, store: &Store) -> Result<Arc<StoredObject>, StatusError> {
        store
            .get(self.kind, &self.target.namespace, &self.target.name)
            .cloned()
            .ok_or_else(|| StatusError::not_found(self.resource_ref()))
    }

    pub(crate) fn object_response(&self, code: StatusCode, object: &StoredObject) -> HandlerResult {
        Ok(response::json(
            code,
            self.representation().object(object, true),
        ))
    }

    /// A refusal of the options in the query.
    pub(crate) fn invalid_option(&self, options: &'static str, cause: StatusCause) -> StatusError {
        let subject = ResourceRef {
            group: "meta.k8s.io",
            resource: "",
            kind: options,
            name: "",
        };
        StatusError::invalid(subject, cause)
    }
}

pub(crate) fn get(ask: &ResourceRequest<'_>) -> HandlerResult {
    let object = ask.stored_object(&ask.state.storage.lock())?;
    ask.object_response(StatusCode::OK, &object)
}

pub(crate) fn list(ask: &ResourceRequest<'_>) -> HandlerResult {
    let scope = ask.scope()?;
    let limit = ask.query.number("limit")?.unwrap_or(0);
    let limit = if ignores_limit(ask) { 0 } else { limit };
    let (page, version) = list_page(ask, &scope, limit)?;
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
    let view = ask.representation();
    let head = view.list_head(&metadata);
    let items = page
        .objects
        .into_iter()
        .map(move |object| view.item(&object));
    Ok(response::list(head, items, b"]}\n"))
}

/// kube-apiserver's watch cache takes no limit at version 0 (`computeListLimit`).
fn ignores_limit(ask: &ResourceRequest<'_>) -> bool {
    let is = |key, values: &[Option<&str>]| values.contains(&ask.query.first(key));
    is("resourceVersion", &[Some("0")])
        && is(
            "resourceVersionMatch",
            &[None, Some(""), Some("NotOlderThan")],
        )
        && is("continue", &[None, Some("")])
}

/// The objects that are asked for and the version at which they are shown.
fn list_page(
    ask: &ResourceRequest<'_>,
    scope: &ListScope,
    limit: usize,
) -> Result<(ListPage, u64), StatusError> {
    let store = ask.state.storage.lock();
    let asked: Option<u64> = ask.query.number("resourceVersion")?;
    let current = store.version();
    if let Some(token) = ask.query.first("continue") {
        let token = ContinueToken::decode(token)?;
        let at = u64::try_from(token.rv).ok();
        let after = token.start.trim_start_matches('/').trim_end_matches('\0');
        let page = store
            .list(scope, at, Some(after), limit)
            .map_err(|VersionExpired| token.expired_status())?;
        return Ok((page, at.unwrap_or(current)));
    }
    if let Some(asked) = asked.filter(|asked| *asked > current) {
        return Err(StatusError::too_large_version(asked, current));
    }
    let exact = match ask.query.first("resourceVersionMatch") {
        Some("Exact") => true,
        Some("NotOlderThan") | None => false,
        Some(other) => {
            let cause =
                StatusCause::unsupported("resourceVersionMatch", other, "Exact, NotOlderThan");
            return Err(ask.invalid_option("ListOptions", cause));
        }
    };
    let at = asked.filter(|_| exact);
    let page = store
        .list(scope, at, None, limit)
        .map_err(|VersionExpired| {
            let asked = at.unwrap_or_default();
            StatusError::expired(format!(
                "The resourceVersion for the provided list is too old: {asked}"
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

    /// The refusal of a token whose version is forgotten, with one that does without.
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

/// The JSON of an object as the resource spells it, type included, to be patched.
pub(crate) fn typed_json(ask: &ResourceRequest<'_>, object: &StoredObject) -> Value {
    let whole = Representation::new(
        ask.target.resource,
        ask.kind,
        ResponseForm::Object,
        ask.query,
    );
    serde_json::from_slice(&whole.object(object, false)).unwrap_or_default()
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
