//! Create, update, patch, delete.
//!
//! Everything that decides happens in one go under the store's lock: read, change, check, write.

use crate::playground::endpoints::HandlerResult;
use crate::playground::endpoints::ResourceRequest;
use crate::playground::endpoints::read::typed_json;
use crate::playground::endpoints::response;
use crate::playground::objects::events;
use crate::playground::objects::patch::PatchError;
use crate::playground::objects::patch::PatchType;
use crate::playground::objects::protobuf;
use crate::playground::objects::resources::ApiResource;
use crate::playground::objects::resources::ObjectKind;
use crate::playground::objects::seed;
use crate::playground::objects::storage::selector::Selection;
use crate::playground::objects::storage::store::ListScope;
use crate::playground::objects::storage::store::Store;
use crate::playground::objects::storage::store::StoredObject;
use crate::playground::objects::storage::store::string_at;
use crate::playground::objects::strategy;
use crate::playground::objects::strategy::AssignedValues;
use crate::playground::objects::yaml;
use crate::playground::server::unread_body::BodyReadToEnd;
use crate::playground::status;
use crate::playground::status::StatusCause;
use crate::playground::status::StatusDetails;
use crate::playground::status::StatusError;
use crate::playground::time;
use bytes::Bytes;
use http::HeaderMap;
use http::Request;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use http_body::Body;
use http_body_util::BodyExt;
use http_body_util::LengthLimitError;
use http_body_util::Limited;
use hyper::body::Incoming;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;
use std::sync::Arc;

/// kube-apiserver's limit on request bodies, in bytes.
const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Namespaces that may not be deleted.
const IMMORTAL_NAMESPACES: [&str; 3] = ["default", "kube-public", "kube-system"];

/// The body, whole. Cancel safety: what was read is lost.
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

/// The media type without its parameters; JSON if nothing is said.
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

/// The object in a body; an empty body is null. `kind` is what it should be, for the refusal.
pub(crate) async fn read_object(
    request: &mut Request<Incoming>,
    kind: &str,
) -> Result<Value, StatusError> {
    let media = media_type(request.headers());
    let body = read_body(request).await?;
    let unrecognized = |why: &str| {
        const MAX_SHOWN: usize = 256;
        let shown: String = String::from_utf8_lossy(&body)
            .chars()
            .take(MAX_SHOWN)
            .collect();
        StatusError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get \
             version/kind; json parse error: {why} ({shown})"
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

impl ResourceRequest<'_> {
    /// Whether the write is only to be tried.
    fn is_dry_run(&self, options: &'static str) -> Result<bool, StatusError> {
        if let Some(other) = self.query.all("dryRun").find(|v| !matches!(*v, "" | "All")) {
            return Err(
                self.invalid_option(options, StatusCause::unsupported("dryRun", other, "All"))
            );
        }
        Ok(self.query.first("dryRun").is_some())
    }

    const fn resource(&self) -> &'static ApiResource {
        self.target.resource
    }

    fn record_write(&self, verb: &'static str) {
        self.state
            .request_log
            .record_write(verb, self.resource().plural);
    }
}

/// What the server adds to a new object.
fn assign_values(ask: &ResourceRequest<'_>, store: &Store) -> AssignedValues {
    let mut rng = fastrand::Rng::new();
    let node = seed::node_name(rng.usize(..ask.state.settings.nodes.max(1)));
    let (third, fourth) = (rng.u8(..), rng.u8(1..255));
    AssignedValues {
        now: time::wall_time().to_string(),
        uid: seed::uuid(&mut rng),
        suffix: seed::name_suffix(&mut rng, 5),
        node: store
            .get(ObjectKind::Node, "", &node)
            .map(|_| node)
            .unwrap_or_default(),
        address: if ask.kind == ObjectKind::Service {
            format!("10.96.{third}.{fourth}")
        } else {
            format!("10.99.{third}.{fourth}")
        },
    }
}

/// From the spelling of the path to the stored one.
fn to_stored_form(resource: &'static ApiResource, mut value: Value) -> Value {
    if let (true, Some(value)) = (resource.is_converted(), value.as_object_mut()) {
        events::to_core(value);
    }
    value
}

pub(crate) async fn create(
    ask: &ResourceRequest<'_>,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let dry = ask.is_dry_run("CreateOptions")?;
    if ask.resource().namespaced && ask.target.namespace.is_empty() {
        return Err(StatusError::method_not_allowed());
    }
    let value = read_object(request, ask.resource().kind).await?;
    let object = ask
        .state
        .storage
        .write(ask.kind, |store| create_in(ask, store, value, dry))?;
    ask.record_write("create");
    ask.object_response(StatusCode::CREATED, &object)
}

/// Creates an object in the store, or shows what it would be.
fn create_in(
    ask: &ResourceRequest<'_>,
    store: &mut Store,
    value: Value,
    dry: bool,
) -> Result<Arc<StoredObject>, StatusError> {
    let namespace = &ask.target.namespace;
    let mut value = value;
    let facts = assign_values(ask, store);
    strategy::prepare_create(ask.resource(), ask.kind, &mut value, namespace, &facts)?;
    let value = to_stored_form(ask.resource(), value);
    if !namespace.is_empty() && store.get(ObjectKind::Namespace, "", namespace).is_none() {
        let subject = ApiResource::find("", "v1", "namespaces").map(|r| r.resource_ref(namespace));
        return Err(subject.map_or_else(StatusError::no_such_resource, StatusError::not_found));
    }
    let name = string_at(&value, &["metadata", "name"]);
    if store.get(ask.kind, namespace, name).is_some() {
        return Err(StatusError::already_exists(
            ask.resource().resource_ref(name),
        ));
    }
    store_object(ask, store, value, dry)
}

/// Stores, or for a dry run only shows, what a write has made.
fn store_object(
    ask: &ResourceRequest<'_>,
    store: &mut Store,
    value: Value,
    dry: bool,
) -> Result<Arc<StoredObject>, StatusError> {
    let stored = if dry {
        let version = string_at(&value, &["metadata", "resourceVersion"]).parse();
        StoredObject::new(ask.kind, value, version.unwrap_or(0)).map(Arc::new)
    } else {
        store.put(ask.kind, value)
    };
    stored.ok_or_else(|| StatusError::bad_request("the object provided has no metadata"))
}

pub(crate) async fn update(
    ask: &ResourceRequest<'_>,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let dry = ask.is_dry_run("UpdateOptions")?;
    let value = read_object(request, ask.resource().kind).await?;
    let (object, code) =
        ask.state
            .storage
            .write(ask.kind, |store| match ask.stored_object(store) {
                Ok(old) => Ok((
                    replace_object(ask, store, &old, value, dry)?,
                    StatusCode::OK,
                )),
                Err(_) if ask.kind.allows_create_on_update() => {
                    Ok((create_named(ask, store, value, dry)?, StatusCode::CREATED))
                }
                Err(status) => Err(status),
            })?;
    ask.record_write("update");
    ask.object_response(code, &object)
}

/// Creates the object that the path names from a body that need not name it.
fn create_named(
    ask: &ResourceRequest<'_>,
    store: &mut Store,
    mut value: Value,
    dry: bool,
) -> Result<Arc<StoredObject>, StatusError> {
    let name = &ask.target.name;
    let said = string_at(&value, &["metadata", "name"]);
    if !said.is_empty() && said != name {
        return Err(StatusError::bad_request(format!(
            "the name of the object ({said}) does not match the name on the URL ({name})"
        )));
    }
    if let Some(object) = value.as_object_mut() {
        let metadata = object.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("name".to_owned(), name.clone().into());
        }
    }
    create_in(ask, store, value, dry)
}

/// Puts `value` in the place of `old`; nothing is written if nothing would change.
fn replace_object(
    ask: &ResourceRequest<'_>,
    store: &mut Store,
    old: &Arc<StoredObject>,
    value: Value,
    dry: bool,
) -> Result<Arc<StoredObject>, StatusError> {
    let before = old.value();
    let status = ask.target.subresource == "status";
    let mut value = value;
    strategy::prepare_update(ask.resource(), ask.kind, &mut value, &before, status)?;
    let mut value = to_stored_form(ask.resource(), value);
    if let Some(object) = value.as_object_mut() {
        object.remove("apiVersion");
        object.remove("kind");
    }
    if value == before {
        return Ok(Arc::clone(old));
    }
    store_object(ask, store, value, dry)
}

pub(crate) async fn patch(
    ask: &ResourceRequest<'_>,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let dry = ask.is_dry_run("PatchOptions")?;
    let media = media_type(request.headers());
    let kind = PatchType::from_content_type(&media)
        .ok_or_else(|| StatusError::unsupported_media_type(PatchType::ACCEPTED))?;
    if kind == PatchType::Apply && ask.query.first("fieldManager").is_none() {
        let cause = StatusCause::required("fieldManager", "is required for apply patch");
        return Err(ask.invalid_option("PatchOptions", cause));
    }
    let body = read_body(request).await?;
    let patch = parse_patch(kind, &body)?;
    let (object, code) =
        ask.state
            .storage
            .write(ask.kind, |store| match ask.stored_object(store) {
                Ok(old) => {
                    let mut value = typed_json(ask, &old);
                    kind.apply(&mut value, &patch).map_err(patch_status)?;
                    Ok((
                        replace_object(ask, store, &old, value, dry)?,
                        StatusCode::OK,
                    ))
                }
                Err(_) if kind == PatchType::Apply => {
                    let mut value = Value::Object(Map::new());
                    kind.apply(&mut value, &patch).map_err(patch_status)?;
                    Ok((create_named(ask, store, value, dry)?, StatusCode::CREATED))
                }
                Err(status) => Err(status),
            })?;
    ask.record_write("patch");
    ask.object_response(code, &object)
}

fn parse_patch(kind: PatchType, body: &[u8]) -> Result<Value, StatusError> {
    let malformed = |why: String| StatusError::bad_request(format!("error decoding patch: {why}"));
    if kind == PatchType::Apply {
        let text = std::str::from_utf8(body).map_err(|error| malformed(error.to_string()))?;
        return yaml::parse(text).map_err(malformed);
    }
    serde_json::from_slice(body).map_err(|error| malformed(error.to_string()))
}

fn patch_status(fault: PatchError) -> StatusError {
    match fault {
        PatchError::Malformed(why) => StatusError::bad_request(why),
        PatchError::Unprocessable => StatusError::unprocessable(),
    }
}

/// What `metav1.DeleteOptions` says, as far as it matters here.
#[derive(Debug, Default)]
struct DeleteOptions {
    dry_run: bool,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl DeleteOptions {
    async fn parse(
        ask: &ResourceRequest<'_>,
        request: &mut Request<Incoming>,
    ) -> Result<Self, StatusError> {
        let dry = ask.is_dry_run("DeleteOptions")?;
        if request.body().is_end_stream() {
            return Ok(Self {
                dry_run: dry,
                ..Self::default()
            });
        }
        let options = read_object(request, "DeleteOptions").await?;
        let precondition = |key: &str| {
            let text = string_at(&options, &["preconditions", key]);
            (!text.is_empty()).then(|| text.to_owned())
        };
        Ok(Self {
            dry_run: dry || requests_dry_run(&options),
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
        })
    }

    fn check(&self, ask: &ResourceRequest<'_>, object: &StoredObject) -> Result<(), StatusError> {
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
                return Err(StatusError::conflict_with_reason(ask.resource_ref(), &why));
            }
        }
        Ok(())
    }
}

/// Whether delete options in a body ask to try only.
fn requests_dry_run(options: &Value) -> bool {
    let asked = options.get("dryRun").and_then(Value::as_array);
    asked.is_some_and(|asked| !asked.is_empty())
}

/// Deletes at once: there is nobody to be graceful to.
pub(crate) async fn delete(
    ask: &ResourceRequest<'_>,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let options = DeleteOptions::parse(ask, request).await?;
    let name = &ask.target.name;
    if ask.kind == ObjectKind::Namespace && IMMORTAL_NAMESPACES.contains(&name.as_str()) {
        let message =
            format!("namespaces {name:?} is forbidden: this namespace may not be deleted");
        return Err(StatusError::forbidden(message, deletion_details(ask, "")));
    }
    let object = ask.state.storage.write(ask.kind, |store| {
        let object = ask.stored_object(store)?;
        options.check(ask, &object)?;
        if !options.dry_run {
            if ask.kind == ObjectKind::Namespace {
                delete_namespace_contents(store, name);
            }
            store.remove(ask.kind, &ask.target.namespace, name);
        }
        Ok(object)
    })?;
    if ask.kind == ObjectKind::Namespace {
        ask.state.storage.notify_all();
    }
    ask.record_write("delete");
    let uid = object.value();
    let details = deletion_details(ask, string_at(&uid, &["metadata", "uid"]));
    Ok(response::json(
        StatusCode::OK,
        status::success_json(&details),
    ))
}

fn deletion_details(ask: &ResourceRequest<'_>, uid: &str) -> StatusDetails {
    StatusDetails {
        name: ask.target.name.clone(),
        group: ask.resource().group,
        kind: ask.resource().plural,
        uid: uid.to_owned(),
        ..StatusDetails::default()
    }
}

/// Removes everything within a namespace.
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

/// Deletes what is selected and answers with the list of it.
pub(crate) async fn delete_collection(
    ask: &ResourceRequest<'_>,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let options = DeleteOptions::parse(ask, request).await?;
    let scope = ask.scope()?;
    let (objects, version) = ask.state.storage.write(ask.kind, |store| {
        let page = store.list(&scope, None, None, 0);
        let objects = page.map(|page| page.objects).unwrap_or_default();
        if !options.dry_run {
            for object in &objects {
                store.remove(ask.kind, &object.namespace, &object.name);
            }
        }
        (objects, store.version())
    });
    ask.record_write("deletecollection");
    let view = ask.representation();
    let head = view.list_head(&json!({"resourceVersion": version.to_string()}));
    let items = objects.into_iter().map(move |object| view.item(&object));
    Ok(response::list(head, items, b"]}\n"))
}

/// An eviction always succeeds: there are no disruption budgets.
pub(crate) async fn evict(
    ask: &ResourceRequest<'_>,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let dry = ask.is_dry_run("CreateOptions")?;
    let eviction = read_object(request, "Eviction").await?;
    let dry = dry || eviction.get("deleteOptions").is_some_and(requests_dry_run);
    ask.state.storage.write(ask.kind, |store| {
        ask.stored_object(store)?;
        if !dry {
            store.remove(ask.kind, &ask.target.namespace, &ask.target.name);
        }
        Ok::<_, StatusError>(())
    })?;
    ask.record_write("create");
    Ok(response::json(
        StatusCode::CREATED,
        status::success_json(&StatusDetails::default()),
    ))
}
