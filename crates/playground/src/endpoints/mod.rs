//! The endpoints: authorizes a request and dispatches it to its handler.

mod compression;
mod connect;
mod discovery;
mod openapi;
mod read;
mod representation;
mod resource_request;
mod response;
mod reviews;
mod watch;
mod write;

pub(crate) use response::{failed_health_check, status_error, too_many_requests};

use crate::auth::user::ApiUser;
use crate::auth::{authorization, impersonation};
use crate::endpoints::resource_request::ResourceRequest;
use crate::endpoints::response::{HandlerResult, StoredResource};
use crate::objects::resources::{ObjectKind, RESOURCES, ResourceBackend};
use crate::objects::storage::store::Store;
use crate::request::{ApiRoute, QueryParameters, ResourceTarget, ResponseForm};
use crate::serving::response_body::PlaygroundBody;
use crate::state::ServerState;
use crate::status::{StatusDetails, StatusError};
use http::header::ACCEPT;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use std::sync::Arc;

/// Handles the request of an authenticated or anonymous user.
pub(crate) async fn handle(
    state: &Arc<ServerState>,
    user: &ApiUser,
    route: &ApiRoute,
    query: &QueryParameters,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let user = &effective_user(state, user, route, query, request)?;
    authorize(state, user, route, query, request)?;
    let accept = request.headers().get(ACCEPT);
    let accept = accept.and_then(|value| value.to_str().ok());
    match route {
        ApiRoute::OpenApiV2 => return openapi::v2(accept),
        ApiRoute::NotFound => {
            let issuer = state.authenticator.service_account_issuer();
            return Ok(match issuer.discovery_document(request.uri().path()) {
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
            let fairness = state.fairness.as_ref().map(|fairness| fairness.metrics());
            return Ok(response::metrics(
                &state.request_log.counters(),
                &stored,
                state.list_memory.resident(),
                &fairness.unwrap_or_default(),
            ));
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

/// The bytes of the objects of a list. `None` if the request is none.
pub(crate) fn listed_bytes(
    state: &ServerState,
    route: &ApiRoute,
    method: &Method,
    query: &QueryParameters,
) -> Option<u64> {
    let ApiRoute::Resource(target) = route else {
        return None;
    };
    let ResourceBackend::Objects(kind) = target.resource.backend else {
        return None;
    };
    if target.verb(method, query) != "list" {
        return None;
    }
    let limit = query.number("limit").ok().flatten();
    let limit = limit.filter(|limit: &usize| *limit > 0);
    let bytes = state
        .storage
        .lock()
        .listed_bytes(kind, &target.namespace, limit);
    u64::try_from(bytes).ok()
}

/// The number and size of the stored objects of each resource.
fn stored_resources(store: &Store) -> Vec<StoredResource> {
    let resources = RESOURCES.iter().filter(|resource| !resource.is_converted());
    resources
        .filter_map(|resource| match resource.backend {
            ResourceBackend::Objects(kind) => Some(StoredResource {
                group: resource.group,
                resource: resource.plural,
                objects: store.len(kind),
                // Events have no watch cache, in which sizes are measured.
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

/// The user after impersonation. By the classic rules, each impersonated attribute requires a
/// permission.
fn effective_user(
    state: &ServerState,
    user: &ApiUser,
    route: &ApiRoute,
    query: &QueryParameters,
    request: &Request<Incoming>,
) -> Result<ApiUser, StatusError> {
    let Some((impersonated, required)) = impersonation::impersonated_user(request.headers())?
    else {
        return Ok(user.clone());
    };
    if required.iter().all(|access| state.allows(user, access)) {
        return Ok(impersonated);
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

async fn compress(
    response: Response<PlaygroundBody>,
    request: &Request<Incoming>,
) -> HandlerResult {
    Ok(compression::compress_if_long(response, request.headers()).await)
}

/// Handles a request for a resource.
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
    let resource_request = ResourceRequest {
        state,
        target,
        kind,
        query,
        form: ResponseForm::negotiate(accept).ok_or_else(StatusError::not_acceptable)?,
    };
    let has_name = !target.name.is_empty();
    if target.subresource == "eviction" && request.method() != Method::POST {
        return Err(StatusError::method_not_allowed());
    }
    let verb = target.verb(request.method(), query);
    let changes_fairness = kind.is_flowcontrol() && !matches!(verb, "get" | "list" | "watch");
    let result = match verb {
        "get" => compress(read::get(&resource_request)?, request).await,
        "list" => compress(read::list(&resource_request)?, request).await,
        "watch" => watch::handle(&resource_request),
        "create" if target.subresource == "eviction" => {
            write::evict(&resource_request, request).await
        }
        "create" if !has_name => write::create(&resource_request, request).await,
        "update" if has_name => write::update(&resource_request, request).await,
        "patch" if has_name => write::patch(&resource_request, request).await,
        "delete" if target.subresource.is_empty() => {
            write::delete(&resource_request, request).await
        }
        "deletecollection" if kind != ObjectKind::Namespace => {
            write::delete_collection(&resource_request, request).await
        }
        _ => Err(StatusError::method_not_allowed()),
    };
    if changes_fairness && result.is_ok() {
        state.apply_flowcontrol();
    }
    result
}
