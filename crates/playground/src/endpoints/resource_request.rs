//! A parsed request for a stored kind, with the operations that all verbs share.

use crate::endpoints::representation::Representation;
use crate::endpoints::response;
use crate::endpoints::response::HandlerResult;
use crate::objects::resources::{ApiResource, ObjectKind};
use crate::objects::storage::object::StoredObject;
use crate::objects::storage::selector::Selection;
use crate::objects::storage::store::{ListScope, Store};
use crate::request::{QueryParameters, ResourceTarget, ResponseForm};
use crate::state::ServerState;
use crate::status::{ResourceRef, StatusCause, StatusError};
use http::StatusCode;
use serde_json::Value;
use std::sync::Arc;

/// A parsed request for a stored kind.
#[derive(Debug)]
pub(crate) struct ResourceRequest<'a> {
    pub(crate) state: &'a Arc<ServerState>,
    pub(crate) target: &'a ResourceTarget,
    pub(crate) kind: ObjectKind,
    pub(crate) query: &'a QueryParameters,
    pub(crate) form: ResponseForm,
}

impl ResourceRequest<'_> {
    /// The objects that a list, a watch or the deletion of a collection selects.
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

    /// The stored object of the path.
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

    /// The error of an invalid option in the query.
    pub(crate) fn invalid_option(&self, options: &'static str, cause: StatusCause) -> StatusError {
        let subject = ResourceRef {
            group: "meta.k8s.io",
            resource: "",
            kind: options,
            name: "",
        };
        StatusError::invalid(subject, cause)
    }

    /// Whether the write is a dry run.
    pub(crate) fn is_dry_run(&self, options: &'static str) -> Result<bool, StatusError> {
        if let Some(other) = self.query.all("dryRun").find(|v| !matches!(*v, "" | "All")) {
            return Err(
                self.invalid_option(options, StatusCause::unsupported("dryRun", other, "All"))
            );
        }
        Ok(self.query.first("dryRun").is_some())
    }

    pub(crate) const fn resource(&self) -> &'static ApiResource {
        self.target.resource
    }

    pub(crate) fn record_write(&self, verb: &'static str) {
        self.state
            .request_log
            .record_write(verb, self.resource().plural);
    }
}

/// The JSON of an object in the resource's form, with its type, as the input of a patch.
pub(crate) fn typed_json(resource_request: &ResourceRequest<'_>, object: &StoredObject) -> Value {
    let whole = Representation::new(
        resource_request.target.resource,
        resource_request.kind,
        ResponseForm::Object,
        resource_request.query,
    );
    serde_json::from_slice(&whole.object(object, false)).unwrap_or_default()
}
