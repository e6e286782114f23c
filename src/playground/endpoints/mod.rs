//! The answers: one file a kind of question. Here is which of them is asked.

mod compression;
mod connect;
mod discovery;
mod openapi;
mod read;
mod representation;
mod response;
mod reviews;
mod watch;
mod write;

pub(crate) use response::status_error;
pub(crate) use response::too_many_requests;

use crate::playground::auth::authentication;
use crate::playground::auth::authentication::ApiUser;
use crate::playground::auth::authorization;
use crate::playground::endpoints::response::StoredResource;
use crate::playground::objects::resources::ObjectKind;
use crate::playground::objects::resources::RESOURCES;
use crate::playground::objects::resources::ResourceBackend;
use crate::playground::objects::storage::store::Store;
use crate::playground::request::ApiRoute;
use crate::playground::request::QueryParameters;
use crate::playground::request::ResourceTarget;
use crate::playground::request::ResponseForm;
use crate::playground::serving::request_log::PlaygroundBody;
use crate::playground::state::ServerState;
use crate::playground::status::StatusDetails;
use crate::playground::status::StatusError;
use http::Method;
use http::Request;
use http::Response;
use http::StatusCode;
use http::header::ACCEPT;
use hyper::body::Incoming;
use std::sync::Arc;

/// What every question is answered with.
pub(crate) type HandlerResult = Result<Response<PlaygroundBody>, StatusError>;

/// One request about a stored kind, taken apart.
#[derive(Debug)]
pub(crate) struct ResourceRequest<'a> {
    pub(crate) state: &'a Arc<ServerState>,
    pub(crate) target: &'a ResourceTarget,
    pub(crate) kind: ObjectKind,
    pub(crate) query: &'a QueryParameters,
    pub(crate) form: ResponseForm,
}

/// Answers a request whose sender is known.
pub(crate) async fn handle(
    state: &Arc<ServerState>,
    user: &ApiUser,
    route: &ApiRoute,
    query: &QueryParameters,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let user = &effective_user(state, user, route, query, request)?;
    authorize(state, user, route, query, request)?;
    let accept = request
        .headers()
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok());
    match route {
        ApiRoute::OpenApiV2 => return openapi::v2(accept),
        ApiRoute::NotFound => {
            let accounts = state.authenticator.service_account_issuer();
            return Ok(match accounts.discovery_document(request.uri().path()) {
                Some(document) => response::json(StatusCode::OK, document.to_string().into_bytes()),
                None => response::page_not_found(),
            });
        }
        ApiRoute::UnknownResource => return Err(StatusError::no_such_resource()),
        ApiRoute::Health(check) => {
            require_read_method(request.method())?;
            return Ok(response::health(check, query));
        }
        ApiRoute::Metrics => {
            require_read_method(request.method())?;
            let stored = stored_resources(&state.storage.lock());
            return Ok(response::metrics(&state.request_log.counters(), &stored));
        }
        ApiRoute::Resource(target) => {
            return handle_resource(state, user, target, query, request).await;
        }
        ApiRoute::ApiGroups
        | ApiRoute::ApiVersions
        | ApiRoute::Group(_)
        | ApiRoute::GroupVersion(..)
        | ApiRoute::OpenApiV3
        | ApiRoute::OpenApiV3Document(..)
        | ApiRoute::Version => require_read_method(request.method())?,
    }
    let form = ResponseForm::negotiate(accept).ok_or_else(StatusError::not_acceptable)?;
    match route {
        ApiRoute::ApiGroups => discovery::groups(form),
        ApiRoute::ApiVersions => discovery::versions(form),
        ApiRoute::Group(group) => discovery::group(group),
        ApiRoute::GroupVersion(group, version) => discovery::resources(group, version),
        ApiRoute::OpenApiV3 => openapi::v3_index(),
        ApiRoute::OpenApiV3Document(group, version) => openapi::v3_document(group, version),
        ApiRoute::Version => Ok(response::version()),
        ApiRoute::Health(_)
        | ApiRoute::Metrics
        | ApiRoute::NotFound
        | ApiRoute::OpenApiV2
        | ApiRoute::Resource(_)
        | ApiRoute::UnknownResource => Err(StatusError::no_such_resource()),
    }
}

/// What is stored of each resource.
fn stored_resources(store: &Store) -> Vec<StoredResource> {
    let resources = RESOURCES.iter().filter(|resource| !resource.is_converted());
    resources
        .filter_map(|resource| match resource.backend {
            ResourceBackend::Objects(kind) => Some(StoredResource {
                group: resource.group,
                resource: resource.plural,
                objects: store.len(kind),
                // Events have no watch cache, where sizes are taken.
                bytes: (kind != ObjectKind::Event).then(|| store.bytes(kind)),
            }),
            ResourceBackend::Review(_) => None,
        })
        .collect()
}

fn require_read_method(method: &Method) -> Result<(), StatusError> {
    if matches!(*method, Method::GET | Method::HEAD) {
        Ok(())
    } else {
        Err(StatusError::method_not_allowed())
    }
}

/// Who the request is to be taken to come from: by the classic rules, a right for each thing that is impersonated.
fn effective_user(
    state: &ServerState,
    user: &ApiUser,
    route: &ApiRoute,
    query: &QueryParameters,
    request: &Request<Incoming>,
) -> Result<ApiUser, StatusError> {
    let Some((other, rights)) = authentication::impersonated_user(request.headers())? else {
        return Ok(user.clone());
    };
    if rights.iter().all(|right| state.allows(user, right)) {
        return Ok(other);
    }
    // kube-apiserver 1.36 names the constrained verb of the request itself.
    let attributes = route.attributes(request.method(), request.uri().path(), query);
    let attributes = attributes.with_verb_prefix("impersonate-on:user-info:");
    Err(authorization::forbidden_status(
        user,
        &attributes,
        status_details(route),
    ))
}

fn status_details(route: &ApiRoute) -> StatusDetails {
    if let ApiRoute::Resource(target) = route {
        return StatusDetails {
            name: target.name.clone(),
            group: target.resource.group,
            kind: target.resource.plural,
            ..StatusDetails::default()
        };
    }
    StatusDetails::default()
}

fn authorize(
    state: &ServerState,
    user: &ApiUser,
    route: &ApiRoute,
    query: &QueryParameters,
    request: &Request<Incoming>,
) -> Result<(), StatusError> {
    let attributes = route.attributes(request.method(), request.uri().path(), query);
    if state.allows(user, &attributes) {
        Ok(())
    } else {
        Err(authorization::forbidden_status(
            user,
            &attributes,
            status_details(route),
        ))
    }
}

/// A request about a resource.
async fn handle_resource(
    state: &Arc<ServerState>,
    user: &ApiUser,
    target: &ResourceTarget,
    query: &QueryParameters,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let kind = match target.resource.backend {
        ResourceBackend::Review(review) if request.method() == Method::POST => {
            return reviews::handle(state, user, target.resource, review, request).await;
        }
        ResourceBackend::Review(_) => return Err(StatusError::method_not_allowed()),
        ResourceBackend::Objects(kind) => kind,
    };
    match target.subresource.as_str() {
        "attach" | "exec" => {
            return connect::websocket::exec_or_attach(state, target, query, request);
        }
        "portforward" => return connect::websocket::port_forward(state, target, query, request),
        "log" => {
            require_read_method(request.method())?;
            return connect::logs::handle(state, target, query);
        }
        _ => {}
    }
    let accept = request
        .headers()
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok());
    let ask = ResourceRequest {
        state,
        target,
        kind,
        query,
        form: ResponseForm::negotiate(accept).ok_or_else(StatusError::not_acceptable)?,
    };
    let named = !target.name.is_empty();
    if target.subresource == "eviction" && request.method() != Method::POST {
        return Err(StatusError::method_not_allowed());
    }
    match target.verb(request.method(), query) {
        "get" => Ok(compression::compress_if_long(read::get(&ask)?, request.headers()).await),
        "list" => Ok(compression::compress_if_long(read::list(&ask)?, request.headers()).await),
        "watch" => watch::handle(&ask),
        "create" if target.subresource == "eviction" => write::evict(&ask, request).await,
        "create" if !named => write::create(&ask, request).await,
        "update" if named => write::update(&ask, request).await,
        "patch" if named => write::patch(&ask, request).await,
        "delete" if target.subresource.is_empty() => write::delete(&ask, request).await,
        "deletecollection" if kind != ObjectKind::Namespace => {
            write::delete_collection(&ask, request).await
        }
        _ => Err(StatusError::method_not_allowed()),
    }
}
