//! The pod and the container of a request for a stream.

use crate::objects::resources::ObjectKind;
use crate::objects::storage::object::{StoredObject, string_at};
use crate::request::{QueryParameters, ResourceTarget};
use crate::state::ServerState;
use crate::status::StatusError;
use serde_json::Value;
use std::sync::Arc;

/// The pod of the path.
pub(crate) fn find_pod(
    state: &ServerState,
    target: &ResourceTarget,
) -> Result<Arc<StoredObject>, StatusError> {
    let store = state.storage.lock();
    let pod = store.get(ObjectKind::Pod, &target.namespace, &target.name);
    pod.cloned()
        .ok_or_else(|| StatusError::not_found(target.resource.resource_ref(&target.name)))
}

/// The container that the query names, or the only one.
pub(crate) fn find_container(
    pod: &StoredObject,
    query: &QueryParameters,
) -> Result<String, StatusError> {
    let value = pod.value();
    let containers = value.pointer("/spec/containers").and_then(Value::as_array);
    let names: Vec<&str> = containers
        .into_iter()
        .flatten()
        .map(|container| string_at(container, &["name"]))
        .collect();
    let pod = &pod.name;
    match (query.first("container"), names.as_slice()) {
        (Some(requested), names) if names.contains(&requested) => Ok(requested.to_owned()),
        (Some(requested), _) => {
            let message = format!("container {requested} is not valid for pod {pod}");
            Err(StatusError::bad_request(message))
        }
        (None, [only]) => Ok((*only).to_owned()),
        (None, names) => Err(StatusError::bad_request(format!(
            "a container name must be specified for pod {pod}, choose one of: [{}]",
            names.join(" ")
        ))),
    }
}
