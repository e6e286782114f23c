//! Get and list.

use crate::playground::answers::Answer;
use crate::playground::answers::Ask;
use crate::playground::answers::reply;
use crate::playground::answers::view::View;
use crate::playground::objects::selectors::Selection;
use crate::playground::objects::store::Expired;
use crate::playground::objects::store::Object;
use crate::playground::objects::store::Page;
use crate::playground::objects::store::Scope;
use crate::playground::objects::store::Store;
use crate::playground::request::Form;
use crate::playground::status::Cause;
use crate::playground::status::Status;
use crate::playground::status::Subject;
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
struct Continue {
    v: String,
    rv: i64,
    start: String,
}

const CONTINUE_VERSION: &str = "meta.k8s.io/v1";
/// Stands for the newest version in a token that no longer promises one.
const INCONSISTENT: i64 = -1;

impl Ask<'_> {
    /// Which objects a list, a watch or a collection's deletion is about.
    pub(crate) fn scope(&self) -> Result<Scope, Status> {
        let selection = Selection::parse(
            self.kind,
            self.query.first("labelSelector"),
            self.query.first("fieldSelector"),
        )
        .map_err(Status::bad_request)?;
        Ok(Scope {
            kind: self.kind,
            namespace: Some(self.target.namespace.clone()).filter(|n| !n.is_empty()),
            selection,
        })
    }

    pub(crate) fn view(&self) -> View {
        View::new(self.target.resource, self.kind, self.form, self.query)
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        self.target.resource.subject(&self.target.name)
    }

    /// The stored object that the path names.
    pub(crate) fn stored(&self, store: &Store) -> Result<Arc<Object>, Status> {
        store
            .get(self.kind, &self.target.namespace, &self.target.name)
            .cloned()
            .ok_or_else(|| Status::not_found(self.subject()))
    }

    pub(crate) fn shown(&self, code: StatusCode, object: &Object) -> Answer {
        Ok(reply::json(code, self.view().object(object, true)))
    }

    /// A refusal of the options in the query.
    pub(crate) fn bad_option(&self, options: &'static str, cause: Cause) -> Status {
        let subject = Subject {
            group: "meta.k8s.io",
            resource: "",
            kind: options,
            name: "",
        };
        Status::invalid(subject, cause)
    }
}

pub(crate) fn get(ask: &Ask<'_>) -> Answer {
    let object = ask.stored(&ask.state.storage.read())?;
    ask.shown(StatusCode::OK, &object)
}

pub(crate) fn list(ask: &Ask<'_>) -> Answer {
    let scope = ask.scope()?;
    let limit = ask.query.number("limit")?.unwrap_or(0);
    let limit = if ignores_limit(ask) { 0 } else { limit };
    let (page, version) = page(ask, &scope, limit)?;
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if let (true, Some(last)) = (page.more, page.objects.last()) {
        let token = Continue {
            v: CONTINUE_VERSION.to_owned(),
            rv: i64::try_from(version).unwrap_or(i64::MAX),
            start: format!("/{}\0", Store::key_of(last)),
        };
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("continue".to_owned(), token.encode().into());
            if scope.selection.is_everything() {
                metadata.insert("remainingItemCount".to_owned(), page.remaining.into());
            }
        }
    }
    let view = ask.view();
    let head = view.list_head(&metadata);
    let items = page
        .objects
        .into_iter()
        .map(move |object| view.item(&object));
    Ok(reply::list(head, items, b"]}\n"))
}

/// kube-apiserver's watch cache takes no limit at version 0 (`computeListLimit`).
fn ignores_limit(ask: &Ask<'_>) -> bool {
    let is = |key, values: &[Option<&str>]| values.contains(&ask.query.first(key));
    is("resourceVersion", &[Some("0")])
        && is(
            "resourceVersionMatch",
            &[None, Some(""), Some("NotOlderThan")],
        )
        && is("continue", &[None, Some("")])
}

/// The objects that are asked for and the version at which they are shown.
fn page(ask: &Ask<'_>, scope: &Scope, limit: usize) -> Result<(Page, u64), Status> {
    let store = ask.state.storage.read();
    let asked: Option<u64> = ask.query.number("resourceVersion")?;
    let current = store.version();
    if let Some(token) = ask.query.first("continue") {
        let token = Continue::decode(token)?;
        let at = u64::try_from(token.rv).ok();
        let after = token.start.trim_start_matches('/').trim_end_matches('\0');
        let page = store
            .list(scope, at, Some(after), limit)
            .map_err(|Expired| token.expired())?;
        return Ok((page, at.unwrap_or(current)));
    }
    if let Some(asked) = asked.filter(|asked| *asked > current) {
        return Err(Status::too_large_version(asked, current));
    }
    let exact = match ask.query.first("resourceVersionMatch") {
        Some("Exact") => true,
        Some("NotOlderThan") | None => false,
        Some(other) => {
            let cause = Cause::unsupported("resourceVersionMatch", other, "Exact, NotOlderThan");
            return Err(ask.bad_option("ListOptions", cause));
        }
    };
    let at = asked.filter(|_| exact);
    let page = store.list(scope, at, None, limit).map_err(|Expired| {
        let asked = at.unwrap_or_default();
        Status::expired(format!(
            "The resourceVersion for the provided list is too old: {asked}"
        ))
    })?;
    Ok((page, at.unwrap_or(current)))
}

impl Continue {
    fn encode(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    fn decode(token: &str) -> Result<Self, Status> {
        let invalid = |why: &dyn std::fmt::Display| {
            let message = format!("invalid continue token: continue key is not valid: {why}");
            Status::bad_request(message)
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
    fn expired(&self) -> Status {
        let resume = Self {
            v: CONTINUE_VERSION.to_owned(),
            rv: INCONSISTENT,
            start: self.start.clone(),
        };
        Status {
            resume: Some(resume.encode()),
            ..Status::expired(
                "The provided continue parameter is too old to display a consistent list result. \
                 Start a new list without it, or go on inconsistently with the token in this \
                 response.",
            )
        }
    }
}

/// The JSON of an object as the resource spells it, type included, to be patched.
pub(crate) fn typed_value(ask: &Ask<'_>, object: &Object) -> Value {
    let whole = View::new(ask.target.resource, ask.kind, Form::Object, ask.query);
    serde_json::from_slice(&whole.object(object, false)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::Continue;

    #[test]
    fn a_continue_token_reads_as_kube_apiserver_writes_it() {
        let token = Continue::decode(
            "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MTQ1MCwic3RhcnQiOiIvdGVhbS1hL3dlYi0wMS0yYzdkNTQ5\
             MGUtNjA1MDhcdTAwMDAifQ",
        )
        .unwrap();
        assert_eq!(token.rv, 1450);
        assert_eq!(token.start, "/team-a/web-01-2c7d5490e-60508\0");
        assert_eq!(Continue::decode(&token.encode()), Ok(token));
        assert_eq!(Continue::decode("garbage").unwrap_err().code, 400);
    }
}
