//! Create, update, patch, delete.
//!
//! Everything that decides happens in one go under the store's lock: read, change, check, write.

use crate::playground::answers::Answer;
use crate::playground::answers::Ask;
use crate::playground::answers::read::typed_value;
use crate::playground::answers::reply;
use crate::playground::fill;
use crate::playground::objects::events;
use crate::playground::objects::patch::Fault;
use crate::playground::objects::patch::PatchType;
use crate::playground::objects::protobuf;
use crate::playground::objects::resources::Kind;
use crate::playground::objects::resources::Resource;
use crate::playground::objects::selectors::Selection;
use crate::playground::objects::store::Object;
use crate::playground::objects::store::Scope;
use crate::playground::objects::store::Store;
use crate::playground::objects::store::text_at;
use crate::playground::objects::strategy;
use crate::playground::objects::strategy::Facts;
use crate::playground::objects::yaml;
use crate::playground::status;
use crate::playground::status::Cause;
use crate::playground::status::Details;
use crate::playground::status::Status;
use crate::playground::time;
use crate::playground::unread::ReadToEnd;
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
const LARGEST_BODY: usize = 3 * 1024 * 1024;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Namespaces that may not be deleted.
const ETERNAL: [&str; 3] = ["default", "kube-public", "kube-system"];

/// The body, whole. Cancel safety: what was read is lost.
pub(crate) async fn body(request: &mut Request<Incoming>) -> Result<Bytes, Status> {
    let collected = Limited::new(request.body_mut(), LARGEST_BODY)
        .collect()
        .await;
    let body = collected.map_err(|error| {
        if error.is::<LengthLimitError>() {
            Status::too_large(LARGEST_BODY)
        } else {
            Status::bad_request(format!("unable to read the body: {error}"))
        }
    })?;
    request.extensions_mut().insert(ReadToEnd);
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
pub(crate) async fn object(request: &mut Request<Incoming>, kind: &str) -> Result<Value, Status> {
    let media = media_type(request.headers());
    let body = body(request).await?;
    let unrecognized = |why: &str| {
        const SHOWN: usize = 256;
        let shown: String = String::from_utf8_lossy(&body).chars().take(SHOWN).collect();
        Status::bad_request(format!(
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
            protobuf::Fault::Malformed(why) => unrecognized(why),
            protobuf::Fault::UnknownKind => unsupported(),
        }),
        _ => Err(unsupported()),
    }
}

fn unsupported() -> Status {
    Status::unsupported_media_type("application/json, application/yaml")
}

impl Ask<'_> {
    /// Whether the write is only to be tried.
    fn is_dry_run(&self, options: &'static str) -> Result<bool, Status> {
        if let Some(other) = self.query.all("dryRun").find(|v| !matches!(*v, "" | "All")) {
            return Err(self.bad_option(options, Cause::unsupported("dryRun", other, "All")));
        }
        Ok(self.query.first("dryRun").is_some())
    }

    const fn resource(&self) -> &'static Resource {
        self.target.resource
    }

    fn accepted(&self, verb: &'static str) {
        self.state.journal.accepted(verb, self.resource().plural);
    }
}

/// What the server adds to a new object.
fn facts(ask: &Ask<'_>, store: &Store) -> Facts {
    let mut rng = fastrand::Rng::new();
    let node = fill::node_name(rng.usize(..ask.state.settings.nodes.max(1)));
    let (third, fourth) = (rng.u8(..), rng.u8(1..255));
    Facts {
        now: time::wall().to_string(),
        uid: fill::uuid(&mut rng),
        suffix: fill::suffix(&mut rng, 5),
        node: store
            .get(Kind::Node, "", &node)
            .map(|_| node)
            .unwrap_or_default(),
        address: if ask.kind == Kind::Service {
            format!("10.96.{third}.{fourth}")
        } else {
            format!("10.99.{third}.{fourth}")
        },
    }
}

/// From the spelling of the path to the stored one.
fn to_stored(resource: &'static Resource, mut value: Value) -> Value {
    if let (true, Some(value)) = (resource.converts(), value.as_object_mut()) {
        events::to_core(value);
    }
    value
}

pub(crate) async fn create(ask: &Ask<'_>, request: &mut Request<Incoming>) -> Answer {
    let dry = ask.is_dry_run("CreateOptions")?;
    if ask.resource().namespaced && ask.target.namespace.is_empty() {
        return Err(Status::method_not_allowed());
    }
    let value = object(request, ask.resource().kind).await?;
    let object = ask
        .state
        .storage
        .write(ask.kind, |store| create_in(ask, store, value, dry))?;
    ask.accepted("create");
    ask.shown(StatusCode::CREATED, &object)
}

/// Creates an object in the store, or shows what it would be.
fn create_in(
    ask: &Ask<'_>,
    store: &mut Store,
    value: Value,
    dry: bool,
) -> Result<Arc<Object>, Status> {
    let namespace = &ask.target.namespace;
    let mut value = value;
    let facts = facts(ask, store);
    strategy::prepare_create(ask.resource(), ask.kind, &mut value, namespace, &facts)?;
    let value = to_stored(ask.resource(), value);
    if !namespace.is_empty() && store.get(Kind::Namespace, "", namespace).is_none() {
        let subject = Resource::find("", "v1", "namespaces").map(|r| r.subject(namespace));
        return Err(subject.map_or_else(Status::no_such_resource, Status::not_found));
    }
    let name = text_at(&value, &["metadata", "name"]);
    if store.get(ask.kind, namespace, name).is_some() {
        return Err(Status::already_exists(ask.resource().subject(name)));
    }
    put(ask, store, value, dry)
}

/// Stores, or for a dry run only shows, what a write has made.
fn put(ask: &Ask<'_>, store: &mut Store, value: Value, dry: bool) -> Result<Arc<Object>, Status> {
    let stored = if dry {
        let version = text_at(&value, &["metadata", "resourceVersion"]).parse();
        Object::new(ask.kind, value, version.unwrap_or(0)).map(Arc::new)
    } else {
        store.put(ask.kind, value)
    };
    stored.ok_or_else(|| Status::bad_request("the object provided has no metadata"))
}

pub(crate) async fn update(ask: &Ask<'_>, request: &mut Request<Incoming>) -> Answer {
    let dry = ask.is_dry_run("UpdateOptions")?;
    let value = object(request, ask.resource().kind).await?;
    let (object, code) = ask
        .state
        .storage
        .write(ask.kind, |store| match ask.stored(store) {
            Ok(old) => Ok((replace(ask, store, &old, value, dry)?, StatusCode::OK)),
            Err(_) if ask.kind.created_by_update() => {
                Ok((create_named(ask, store, value, dry)?, StatusCode::CREATED))
            }
            Err(status) => Err(status),
        })?;
    ask.accepted("update");
    ask.shown(code, &object)
}

/// Creates the object that the path names from a body that need not name it.
fn create_named(
    ask: &Ask<'_>,
    store: &mut Store,
    mut value: Value,
    dry: bool,
) -> Result<Arc<Object>, Status> {
    let name = &ask.target.name;
    let said = text_at(&value, &["metadata", "name"]);
    if !said.is_empty() && said != name {
        return Err(Status::bad_request(format!(
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
fn replace(
    ask: &Ask<'_>,
    store: &mut Store,
    old: &Arc<Object>,
    value: Value,
    dry: bool,
) -> Result<Arc<Object>, Status> {
    let before = old.value();
    let status = ask.target.subresource == "status";
    let mut value = value;
    strategy::prepare_update(ask.resource(), ask.kind, &mut value, &before, status)?;
    let mut value = to_stored(ask.resource(), value);
    if let Some(object) = value.as_object_mut() {
        object.remove("apiVersion");
        object.remove("kind");
    }
    if value == before {
        return Ok(Arc::clone(old));
    }
    put(ask, store, value, dry)
}

pub(crate) async fn patch(ask: &Ask<'_>, request: &mut Request<Incoming>) -> Answer {
    let dry = ask.is_dry_run("PatchOptions")?;
    let media = media_type(request.headers());
    let kind = PatchType::named(&media)
        .ok_or_else(|| Status::unsupported_media_type(PatchType::ACCEPTED))?;
    if kind == PatchType::Apply && ask.query.first("fieldManager").is_none() {
        let cause = Cause::required("fieldManager", "is required for apply patch");
        return Err(ask.bad_option("PatchOptions", cause));
    }
    let body = body(request).await?;
    let patch = parse_patch(kind, &body)?;
    let (object, code) = ask
        .state
        .storage
        .write(ask.kind, |store| match ask.stored(store) {
            Ok(old) => {
                let mut value = typed_value(ask, &old);
                kind.apply(&mut value, &patch).map_err(refused)?;
                Ok((replace(ask, store, &old, value, dry)?, StatusCode::OK))
            }
            Err(_) if kind == PatchType::Apply => {
                let mut value = Value::Object(Map::new());
                kind.apply(&mut value, &patch).map_err(refused)?;
                Ok((create_named(ask, store, value, dry)?, StatusCode::CREATED))
            }
            Err(status) => Err(status),
        })?;
    ask.accepted("patch");
    ask.shown(code, &object)
}

fn parse_patch(kind: PatchType, body: &[u8]) -> Result<Value, Status> {
    let malformed = |why: String| Status::bad_request(format!("error decoding patch: {why}"));
    if kind == PatchType::Apply {
        let text = std::str::from_utf8(body).map_err(|error| malformed(error.to_string()))?;
        return yaml::parse(text).map_err(malformed);
    }
    serde_json::from_slice(body).map_err(|error| malformed(error.to_string()))
}

fn refused(fault: Fault) -> Status {
    match fault {
        Fault::Malformed(why) => Status::bad_request(why),
        Fault::Unprocessable => Status::unprocessable(),
    }
}

/// What `metav1.DeleteOptions` says, as far as it matters here.
#[derive(Debug, Default)]
struct DeleteOptions {
    dry: bool,
    uid: Option<String>,
    version: Option<String>,
}

impl DeleteOptions {
    async fn parse(ask: &Ask<'_>, request: &mut Request<Incoming>) -> Result<Self, Status> {
        let dry = ask.is_dry_run("DeleteOptions")?;
        if request.body().is_end_stream() {
            return Ok(Self {
                dry,
                ..Self::default()
            });
        }
        let options = object(request, "DeleteOptions").await?;
        let precondition = |key: &str| {
            let text = text_at(&options, &["preconditions", key]);
            (!text.is_empty()).then(|| text.to_owned())
        };
        Ok(Self {
            dry: dry || asks_dry_run(&options),
            uid: precondition("uid"),
            version: precondition("resourceVersion"),
        })
    }

    fn check(&self, ask: &Ask<'_>, object: &Object) -> Result<(), Status> {
        let value = object.value();
        for (wanted, key, what) in [
            (&self.uid, "uid", "UID"),
            (&self.version, "resourceVersion", "ResourceVersion"),
        ] {
            let found = text_at(&value, &["metadata", key]);
            if let Some(wanted) = wanted
                && wanted != found
            {
                let why = format!(
                    "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: \
                     {found}"
                );
                return Err(Status::conflict_because(ask.subject(), &why));
            }
        }
        Ok(())
    }
}

/// Whether delete options in a body ask to try only.
fn asks_dry_run(options: &Value) -> bool {
    let asked = options.get("dryRun").and_then(Value::as_array);
    asked.is_some_and(|asked| !asked.is_empty())
}

/// Deletes at once: there is nobody to be graceful to.
pub(crate) async fn delete(ask: &Ask<'_>, request: &mut Request<Incoming>) -> Answer {
    let options = DeleteOptions::parse(ask, request).await?;
    let name = &ask.target.name;
    if ask.kind == Kind::Namespace && ETERNAL.contains(&name.as_str()) {
        let message =
            format!("namespaces {name:?} is forbidden: this namespace may not be deleted");
        return Err(Status::forbidden(message, deleted(ask, "")));
    }
    let object = ask.state.storage.write(ask.kind, |store| {
        let object = ask.stored(store)?;
        options.check(ask, &object)?;
        if !options.dry {
            if ask.kind == Kind::Namespace {
                empty_namespace(store, name);
            }
            store.remove(ask.kind, &ask.target.namespace, name);
        }
        Ok(object)
    })?;
    if ask.kind == Kind::Namespace {
        ask.state.storage.ring_all();
    }
    ask.accepted("delete");
    let uid = object.value();
    let details = deleted(ask, text_at(&uid, &["metadata", "uid"]));
    Ok(reply::json(StatusCode::OK, status::success(&details)))
}

fn deleted(ask: &Ask<'_>, uid: &str) -> Details {
    Details {
        name: ask.target.name.clone(),
        group: ask.resource().group,
        kind: ask.resource().plural,
        uid: uid.to_owned(),
        ..Details::default()
    }
}

/// Removes everything within a namespace.
fn empty_namespace(store: &mut Store, namespace: &str) {
    for kind in Kind::ALL {
        let scope = Scope {
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
pub(crate) async fn delete_collection(ask: &Ask<'_>, request: &mut Request<Incoming>) -> Answer {
    let options = DeleteOptions::parse(ask, request).await?;
    let scope = ask.scope()?;
    let (objects, version) = ask.state.storage.write(ask.kind, |store| {
        let page = store.list(&scope, None, None, 0);
        let objects = page.map(|page| page.objects).unwrap_or_default();
        if !options.dry {
            for object in &objects {
                store.remove(ask.kind, &object.namespace, &object.name);
            }
        }
        (objects, store.version())
    });
    ask.accepted("deletecollection");
    let view = ask.view();
    let head = view.list_head(&json!({"resourceVersion": version.to_string()}));
    let items = objects.into_iter().map(move |object| view.item(&object));
    Ok(reply::list(head, items, b"]}\n"))
}

/// An eviction always succeeds: there are no disruption budgets.
pub(crate) async fn evict(ask: &Ask<'_>, request: &mut Request<Incoming>) -> Answer {
    let dry = ask.is_dry_run("CreateOptions")?;
    let eviction = object(request, "Eviction").await?;
    let dry = dry || eviction.get("deleteOptions").is_some_and(asks_dry_run);
    ask.state.storage.write(ask.kind, |store| {
        ask.stored(store)?;
        if !dry {
            store.remove(ask.kind, &ask.target.namespace, &ask.target.name);
        }
        Ok::<_, Status>(())
    })?;
    ask.accepted("create");
    Ok(reply::json(
        StatusCode::CREATED,
        status::success(&Details::default()),
    ))
}
