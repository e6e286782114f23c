//! Create, update, patch, delete.
//!
//! Each write reads, changes, checks and stores the object under one lock of the store.

use crate::endpoints::resource_request::{ResourceRequest, typed_json};
use crate::endpoints::response;
use crate::endpoints::response::HandlerResult;
use crate::objects::patch::{PatchError, PatchType};
use crate::objects::resources::{ApiResource, ObjectKind, to_core_v1};
use crate::objects::storage::object::{StoredObject, string_at};
use crate::objects::storage::selector::Selection;
use crate::objects::storage::store::{ListScope, Store};
use crate::objects::strategy::AssignedValues;
use crate::objects::{protobuf, seed, strategy, yaml};
use crate::request::BodyReadToEnd;
use crate::status::{StatusCause, StatusDetails, StatusError};
use crate::{status, time};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// kube-apiserver's limit on request bodies, in bytes.
const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Namespaces that cannot be deleted.
const IMMORTAL_NAMESPACES: [&str; 3] = ["default", "kube-public", "kube-system"];

/// Reads the whole body. Cancel safety: the bytes that were read are lost.
pub(crate) async fn read_body(request: &mut Request<Incoming>) -> Result<Bytes, StatusError> {
    let collected = Limited::new(request.body_mut(), MAX_BODY_BYTES)
        .collect()
        .await;
    let body = collected.map_err(|error| {
        if error.is::<LengthLimitError>() {
            StatusError::too_large(MAX_BODY_BYTES)
        } else {
            StatusError::bad_request(format!("unable to read the body: {error}"))
        }
    })?;
    request.extensions_mut().insert(BodyReadToEnd);
    Ok(body.to_bytes())
}

/// The media type without its parameters; JSON by default.
fn media_type(headers: &HeaderMap) -> String {
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let media = content_type
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default();
    match media.trim() {
        "" | "*/*" => "application/json".to_owned(),
        media => media.to_ascii_lowercase(),
    }
}

/// Reads the object in a body; an empty body is null. `kind` is the expected kind, for the error
/// message.
pub(crate) async fn read_object(
    request: &mut Request<Incoming>,
    kind: &str,
) -> Result<Value, StatusError> {
    let media = media_type(request.headers());
    let body = read_body(request).await?;
    let unrecognized = |why: &str| {
        const MAX_SHOWN: usize = 256;
        let excerpt: String = String::from_utf8_lossy(&body)
            .chars()
            .take(MAX_SHOWN)
            .collect();
        StatusError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get \
             version/kind; json parse error: {why} ({excerpt})"
        ))
    };
    if body.is_empty() {
        return Ok(Value::Null);
    }
    match media.as_str() {
        "application/json" => {
            serde_json::from_slice(&body).map_err(|error| unrecognized(&error.to_string()))
        }
        "application/yaml" => {
            let text = std::str::from_utf8(&body).map_err(|e| unrecognized(&e.to_string()))?;
            yaml::parse(text).map_err(|error| unrecognized(&error))
        }
        PROTOBUF => protobuf::decode(&body).map_err(|fault| match fault {
            protobuf::ProtobufBodyError::Malformed(why) => unrecognized(why),
            protobuf::ProtobufBodyError::UnknownKind => unsupported_media_type(),
        }),
        _ => Err(unsupported_media_type()),
    }
}

fn unsupported_media_type() -> StatusError {
    StatusError::unsupported_media_type("application/json, application/yaml")
}

/// The values that the server sets in a new object.
fn assign_values(resource_request: &ResourceRequest<'_>, store: &Store) -> AssignedValues {
    let mut rng = fastrand::Rng::new();
    let node = seed::node_name(rng.usize(..resource_request.state.settings.nodes.max(1)));
    let (third, fourth) = (rng.u8(..), rng.u8(1..255));
    AssignedValues {
        now: time::wall_time().to_string(),
        uid: seed::uuid(&mut rng),
        suffix: seed::name_suffix(&mut rng, 5),
        node: store
            .get(ObjectKind::Node, "", &node)
            .map(|_| node)
            .unwrap_or_default(),
        address: if resource_request.kind == ObjectKind::Service {
            format!("10.96.{third}.{fourth}")
        } else {
            format!("10.99.{third}.{fourth}")
        },
    }
}

/// Converts an object from the resource's form to the stored one.
fn to_stored_form(resource: &'static ApiResource, mut value: Value) -> Value {
    if let (true, Some(value)) = (resource.is_converted(), value.as_object_mut()) {
        to_core_v1(value);
    }
    value
}

pub(crate) async fn create(
    resource_request: &ResourceRequest<'_>,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let dry_run = resource_request.is_dry_run("CreateOptions")?;
    if resource_request.resource().namespaced && resource_request.target.namespace.is_empty() {
        return Err(StatusError::method_not_allowed());
    }
    let value = read_object(request, resource_request.resource().kind).await?;
    let object = resource_request
        .state
        .storage
        .write(resource_request.kind, |store| {
            create_in(resource_request, store, value, dry_run)
        })?;
    resource_request.record_write("create");
    resource_request.object_response(StatusCode::CREATED, &object)
}

/// Creates an object in the store, or for a dry run only computes it.
fn create_in(
    resource_request: &ResourceRequest<'_>,
    store: &mut Store,
    value: Value,
    dry_run: bool,
) -> Result<Arc<StoredObject>, StatusError> {
    let namespace = &resource_request.target.namespace;
    let mut value = value;
    let assigned = assign_values(resource_request, store);
    strategy::prepare_create(
        resource_request.resource(),
        resource_request.kind,
        &mut value,
        namespace,
        &assigned,
    )?;
    resource_request
        .state
        .check_flowcontrol(resource_request.kind, &mut value, None)?;
    let value = to_stored_form(resource_request.resource(), value);
    if !namespace.is_empty() && store.get(ObjectKind::Namespace, "", namespace).is_none() {
        let subject = ApiResource::find("", "v1", "namespaces").map(|r| r.resource_ref(namespace));
        return Err(subject.map_or_else(StatusError::no_such_resource, StatusError::not_found));
    }
    let name = string_at(&value, &["metadata", "name"]);
    if store.get(resource_request.kind, namespace, name).is_some() {
        return Err(StatusError::already_exists(
            resource_request.resource().resource_ref(name),
        ));
    }
    store_object(resource_request, store, value, dry_run)
}

/// Stores the result of a write, or for a dry run only returns it.
fn store_object(
    resource_request: &ResourceRequest<'_>,
    store: &mut Store,
    value: Value,
    dry_run: bool,
) -> Result<Arc<StoredObject>, StatusError> {
    let stored = if dry_run {
        let version = string_at(&value, &["metadata", "resourceVersion"]).parse();
        StoredObject::new(resource_request.kind, value, version.unwrap_or(0)).map(Arc::new)
    } else {
        store.put(resource_request.kind, value)
    };
    stored.ok_or_else(|| StatusError::bad_request("the object provided has no metadata"))
}

pub(crate) async fn update(
    resource_request: &ResourceRequest<'_>,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let dry_run = resource_request.is_dry_run("UpdateOptions")?;
    let value = read_object(request, resource_request.resource().kind).await?;
    let (object, code) =
        resource_request.state.storage.write(
            resource_request.kind,
            |store| match resource_request.stored_object(store) {
                Ok(old) => Ok((
                    replace_object(resource_request, store, &old, value, dry_run)?,
                    StatusCode::OK,
                )),
                Err(_) if resource_request.kind.allows_create_on_update() => Ok((
                    create_named(resource_request, store, value, dry_run)?,
                    StatusCode::CREATED,
                )),
                Err(status) => Err(status),
            },
        )?;
    resource_request.record_write("update");
    resource_request.object_response(code, &object)
}

/// Creates the object of the path from a body that need not contain its name.
fn create_named(
    resource_request: &ResourceRequest<'_>,
    store: &mut Store,
    mut value: Value,
    dry_run: bool,
) -> Result<Arc<StoredObject>, StatusError> {
    let name = &resource_request.target.name;
    let body_name = string_at(&value, &["metadata", "name"]);
    if !body_name.is_empty() && body_name != name {
        return Err(StatusError::bad_request(format!(
            "the name of the object ({body_name}) does not match the name on the URL ({name})"
        )));
    }
    if let Some(object) = value.as_object_mut() {
        let metadata = object.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("name".to_owned(), name.clone().into());
        }
    }
    create_in(resource_request, store, value, dry_run)
}

/// Replaces `old` by `value`; nothing is written if nothing changes.
fn replace_object(
    resource_request: &ResourceRequest<'_>,
    store: &mut Store,
    old: &Arc<StoredObject>,
    value: Value,
    dry_run: bool,
) -> Result<Arc<StoredObject>, StatusError> {
    let before = old.value();
    let status = resource_request.target.subresource == "status";
    let mut value = value;
    strategy::prepare_update(
        resource_request.resource(),
        resource_request.kind,
        &mut value,
        &before,
        status,
    )?;
    if !status {
        resource_request.state.check_flowcontrol(
            resource_request.kind,
            &mut value,
            Some(&before),
        )?;
    }
    let mut value = to_stored_form(resource_request.resource(), value);
    if let Some(object) = value.as_object_mut() {
        object.remove("apiVersion");
        object.remove("kind");
    }
    if value == before {
        return Ok(Arc::clone(old));
    }
    store_object(resource_request, store, value, dry_run)
}

pub(crate) async fn patch(
    resource_request: &ResourceRequest<'_>,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let dry_run = resource_request.is_dry_run("PatchOptions")?;
    let media = media_type(request.headers());
    let kind = PatchType::from_content_type(&media)
        .ok_or_else(|| StatusError::unsupported_media_type(PatchType::ACCEPTED))?;
    if kind == PatchType::Apply && resource_request.query.first("fieldManager").is_none() {
        let cause = StatusCause::required("fieldManager", "is required for apply patch");
        return Err(resource_request.invalid_option("PatchOptions", cause));
    }
    let body = read_body(request).await?;
    let patch = parse_patch(kind, &body)?;
    let (object, code) =
        resource_request.state.storage.write(
            resource_request.kind,
            |store| match resource_request.stored_object(store) {
                Ok(old) => {
                    let mut value = typed_json(resource_request, &old);
                    kind.apply(&mut value, &patch).map_err(patch_status)?;
                    Ok((
                        replace_object(resource_request, store, &old, value, dry_run)?,
                        StatusCode::OK,
                    ))
                }
                Err(_) if kind == PatchType::Apply => {
                    let mut value = Value::Object(Map::new());
                    kind.apply(&mut value, &patch).map_err(patch_status)?;
                    Ok((
                        create_named(resource_request, store, value, dry_run)?,
                        StatusCode::CREATED,
                    ))
                }
                Err(status) => Err(status),
            },
        )?;
    resource_request.record_write("patch");
    resource_request.object_response(code, &object)
}

fn parse_patch(kind: PatchType, body: &[u8]) -> Result<Value, StatusError> {
    let malformed = |why: String| StatusError::bad_request(format!("error decoding patch: {why}"));
    if kind == PatchType::Apply {
        let text = std::str::from_utf8(body).map_err(|error| malformed(error.to_string()))?;
        return yaml::parse(text).map_err(malformed);
    }
    serde_json::from_slice(body).map_err(|error| malformed(error.to_string()))
}

fn patch_status(error: PatchError) -> StatusError {
    match error {
        PatchError::Malformed(why) => StatusError::bad_request(why),
        PatchError::Unprocessable => StatusError::unprocessable(),
    }
}

/// The supported part of `metav1.DeleteOptions`.
#[derive(Debug, Default)]
struct DeleteOptions {
    dry_run: bool,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl DeleteOptions {
    async fn parse(
        resource_request: &ResourceRequest<'_>,
        request: &mut Request<Incoming>,
    ) -> Result<Self, StatusError> {
        let dry_run = resource_request.is_dry_run("DeleteOptions")?;
        if request.body().is_end_stream() {
            return Ok(Self {
                dry_run,
                ..Self::default()
            });
        }
        let options = read_object(request, "DeleteOptions").await?;
        let precondition = |key: &str| {
            let text = string_at(&options, &["preconditions", key]);
            (!text.is_empty()).then(|| text.to_owned())
        };
        Ok(Self {
            dry_run: dry_run || requests_dry_run(&options),
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
        })
    }

    fn check(
        &self,
        resource_request: &ResourceRequest<'_>,
        object: &StoredObject,
    ) -> Result<(), StatusError> {
        let value = object.value();
        for (wanted, key, what) in [
            (&self.uid, "uid", "UID"),
            (&self.resource_version, "resourceVersion", "ResourceVersion"),
        ] {
            let found = string_at(&value, &["metadata", key]);
            if let Some(wanted) = wanted
                && wanted != found
            {
                let why = format!(
                    "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: \
                     {found}"
                );
                return Err(StatusError::conflict_with_reason(
                    resource_request.resource_ref(),
                    &why,
                ));
            }
        }
        Ok(())
    }
}

/// Whether the delete options in a body request a dry run.
fn requests_dry_run(options: &Value) -> bool {
    let requested = options.get("dryRun").and_then(Value::as_array);
    requested.is_some_and(|requested| !requested.is_empty())
}

/// Deletes an object immediately; there is no graceful deletion.
pub(crate) async fn delete(
    resource_request: &ResourceRequest<'_>,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let options = DeleteOptions::parse(resource_request, request).await?;
    let name = &resource_request.target.name;
    if resource_request.kind == ObjectKind::Namespace
        && IMMORTAL_NAMESPACES.contains(&name.as_str())
    {
        let message =
            format!("namespaces {name:?} is forbidden: this namespace may not be deleted");
        return Err(StatusError::forbidden(
            message,
            deletion_details(resource_request, ""),
        ));
    }
    let object = resource_request
        .state
        .storage
        .write(resource_request.kind, |store| {
            let object = resource_request.stored_object(store)?;
            options.check(resource_request, &object)?;
            if !options.dry_run {
                if resource_request.kind == ObjectKind::Namespace {
                    delete_namespace_contents(store, name);
                }
                store.remove(
                    resource_request.kind,
                    &resource_request.target.namespace,
                    name,
                );
            }
            Ok(object)
        })?;
    if resource_request.kind == ObjectKind::Namespace {
        resource_request.state.storage.notify_all();
    }
    resource_request.record_write("delete");
    let uid = object.value();
    let details = deletion_details(resource_request, string_at(&uid, &["metadata", "uid"]));
    Ok(response::json(
        StatusCode::OK,
        status::success_json(&details),
    ))
}

fn deletion_details(resource_request: &ResourceRequest<'_>, uid: &str) -> StatusDetails {
    StatusDetails {
        name: resource_request.target.name.clone(),
        group: resource_request.resource().group,
        kind: resource_request.resource().plural,
        uid: uid.to_owned(),
        ..StatusDetails::default()
    }
}

/// Removes all objects in a namespace.
fn delete_namespace_contents(store: &mut Store, namespace: &str) {
    for kind in ObjectKind::ALL {
        let scope = ListScope {
            kind,
            namespace: Some(namespace.to_owned()),
            selection: Selection::default(),
        };
        for object in store
            .list(&scope, None, None, 0)
            .into_iter()
            .flat_map(|page| page.objects)
        {
            store.remove(kind, namespace, &object.name);
        }
    }
}

/// Deletes the selected objects and responds with their list.
pub(crate) async fn delete_collection(
    resource_request: &ResourceRequest<'_>,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let options = DeleteOptions::parse(resource_request, request).await?;
    let scope = resource_request.scope()?;
    let (objects, version) = resource_request
        .state
        .storage
        .write(resource_request.kind, |store| {
            let page = store.list(&scope, None, None, 0);
            let objects = page.map(|page| page.objects).unwrap_or_default();
            if !options.dry_run {
                for object in &objects {
                    store.remove(resource_request.kind, &object.namespace, &object.name);
                }
            }
            (objects, store.version())
        });
    resource_request.record_write("deletecollection");
    let representation = resource_request.representation();
    let head = representation.list_head(&json!({"resourceVersion": version.to_string()}));
    let items = objects
        .into_iter()
        .map(move |object| representation.item(&object));
    Ok(response::list(head, items, b"]}\n"))
}

/// An eviction always succeeds: there are no disruption budgets.
pub(crate) async fn evict(
    resource_request: &ResourceRequest<'_>,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let dry_run = resource_request.is_dry_run("CreateOptions")?;
    let eviction = read_object(request, "Eviction").await?;
    let dry_run = dry_run || eviction.get("deleteOptions").is_some_and(requests_dry_run);
    resource_request
        .state
        .storage
        .write(resource_request.kind, |store| {
            resource_request.stored_object(store)?;
            if !dry_run {
                store.remove(
                    resource_request.kind,
                    &resource_request.target.namespace,
                    &resource_request.target.name,
                );
            }
            Ok::<_, StatusError>(())
        })?;
    resource_request.record_write("create");
    Ok(response::json(
        StatusCode::CREATED,
        status::success_json(&StatusDetails::default()),
    ))
}
