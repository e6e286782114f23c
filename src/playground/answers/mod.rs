//! The answers: one file a kind of question. Here is which of them is asked.

mod compress;
mod discovery;
mod logs;
mod openapi;
mod read;
mod reply;
mod reviews;
mod tunnels;
mod view;
mod watch;
mod write;

pub(crate) use reply::refused;
pub(crate) use reply::too_many_requests;

use crate::playground::answers::reply::Stored;
use crate::playground::authentication;
use crate::playground::authentication::User;
use crate::playground::authorization;
use crate::playground::journal::PlainBody;
use crate::playground::objects::resources::Kind;
use crate::playground::objects::resources::RESOURCES;
use crate::playground::objects::resources::Served;
use crate::playground::objects::store::Store;
use crate::playground::request::Form;
use crate::playground::request::Query;
use crate::playground::request::Route;
use crate::playground::request::Target;
use crate::playground::state::State;
use crate::playground::status::Details;
use crate::playground::status::Status;
use http::Method;
use http::Request;
use http::Response;
use http::StatusCode;
use http::header::ACCEPT;
use hyper::body::Incoming;
use std::sync::Arc;

/// What every question is answered with.
pub(crate) type Answer = Result<Response<PlainBody>, Status>;

/// One request about a stored kind, taken apart.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) state: &'a Arc<State>,
    pub(crate) target: &'a Target,
    pub(crate) kind: Kind,
    pub(crate) query: &'a Query,
    pub(crate) form: Form,
}

/// Answers a request whose sender is known.
pub(crate) async fn answer(
    state: &Arc<State>,
    user: &User,
    route: &Route,
    query: &Query,
    request: &mut Request<Incoming>,
) -> Answer {
    let user = &effective_user(state, user, route, query, request)?;
    authorize(state, user, route, query, request)?;
    let accept = request
        .headers()
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok());
    match route {
        Route::OpenApiV2 => return openapi::v2(accept),
        Route::NotFound => {
            let accounts = state.authenticator.service_accounts();
            return Ok(match accounts.published(request.uri().path()) {
                Some(document) => reply::json(StatusCode::OK, document.to_string().into_bytes()),
                None => reply::page_not_found(),
            });
        }
        Route::UnknownResource => return Err(Status::no_such_resource()),
        Route::Health(check) => {
            read_only(request.method())?;
            return Ok(reply::health(check, query));
        }
        Route::Metrics => {
            read_only(request.method())?;
            let stored = stored(&state.storage.read());
            return Ok(reply::metrics(&state.journal.counters(), &stored));
        }
        Route::Resource(target) => return about(state, user, target, query, request).await,
        Route::ApiGroups
        | Route::ApiVersions
        | Route::Group(_)
        | Route::GroupVersion(..)
        | Route::OpenApiV3
        | Route::OpenApiV3Document(..)
        | Route::Version => read_only(request.method())?,
    }
    let form = Form::negotiate(accept).ok_or_else(Status::not_acceptable)?;
    match route {
        Route::ApiGroups => discovery::groups(form),
        Route::ApiVersions => discovery::versions(form),
        Route::Group(group) => discovery::group(group),
        Route::GroupVersion(group, version) => discovery::resources(group, version),
        Route::OpenApiV3 => openapi::v3_index(),
        Route::OpenApiV3Document(group, version) => openapi::v3_document(group, version),
        Route::Version => Ok(reply::version()),
        Route::Health(_)
        | Route::Metrics
        | Route::NotFound
        | Route::OpenApiV2
        | Route::Resource(_)
        | Route::UnknownResource => Err(Status::no_such_resource()),
    }
}

/// What is stored of each resource.
fn stored(store: &Store) -> Vec<Stored> {
    let resources = RESOURCES.iter().filter(|resource| !resource.converts());
    resources
        .filter_map(|resource| match resource.served {
            Served::Objects(kind) => Some(Stored {
                group: resource.group,
                resource: resource.plural,
                objects: store.len(kind),
                // Events have no watch cache, where sizes are taken.
                bytes: (kind != Kind::Event).then(|| store.bytes(kind)),
            }),
            Served::Review(_) => None,
        })
        .collect()
}

fn read_only(method: &Method) -> Result<(), Status> {
    if matches!(*method, Method::GET | Method::HEAD) {
        Ok(())
    } else {
        Err(Status::method_not_allowed())
    }
}

/// Who the request is to be taken to come from: by the classic rules, a right for each thing that is impersonated.
fn effective_user(
    state: &State,
    user: &User,
    route: &Route,
    query: &Query,
    request: &Request<Incoming>,
) -> Result<User, Status> {
    let Some((other, rights)) = authentication::impersonated(request.headers())? else {
        return Ok(user.clone());
    };
    if rights.iter().all(|right| state.allows(user, right)) {
        return Ok(other);
    }
    // kube-apiserver 1.36 names the constrained verb of the request itself.
    let attributes = route.attributes(request.method(), request.uri().path(), query);
    let attributes = attributes.with_verb_prefix("impersonate-on:user-info:");
    Err(authorization::refusal(user, &attributes, details(route)))
}

fn details(route: &Route) -> Details {
    if let Route::Resource(target) = route {
        return Details {
            name: target.name.clone(),
            group: target.resource.group,
            kind: target.resource.plural,
            ..Details::default()
        };
    }
    Details::default()
}

fn authorize(
    state: &State,
    user: &User,
    route: &Route,
    query: &Query,
    request: &Request<Incoming>,
) -> Result<(), Status> {
    let attributes = route.attributes(request.method(), request.uri().path(), query);
    if state.allows(user, &attributes) {
        Ok(())
    } else {
        Err(authorization::refusal(user, &attributes, details(route)))
    }
}

/// A request about a resource.
async fn about(
    state: &Arc<State>,
    user: &User,
    target: &Target,
    query: &Query,
    request: &mut Request<Incoming>,
) -> Answer {
    let kind = match target.resource.served {
        Served::Review(review) if request.method() == Method::POST => {
            return reviews::answer(state, user, target.resource, review, request).await;
        }
        Served::Review(_) => return Err(Status::method_not_allowed()),
        Served::Objects(kind) => kind,
    };
    match target.subresource.as_str() {
        "attach" | "exec" => return tunnels::run(state, target, query, request),
        "portforward" => return tunnels::port_forward(state, target, query, request),
        "log" => {
            read_only(request.method())?;
            return logs::answer(state, target, query);
        }
        _ => {}
    }
    let accept = request
        .headers()
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok());
    let ask = Ask {
        state,
        target,
        kind,
        query,
        form: Form::negotiate(accept).ok_or_else(Status::not_acceptable)?,
    };
    let named = !target.name.is_empty();
    if target.subresource == "eviction" && request.method() != Method::POST {
        return Err(Status::method_not_allowed());
    }
    match target.verb(request.method(), query) {
        "get" => Ok(compress::if_long(read::get(&ask)?, request.headers()).await),
        "list" => Ok(compress::if_long(read::list(&ask)?, request.headers()).await),
        "watch" => watch::answer(&ask),
        "create" if target.subresource == "eviction" => write::evict(&ask, request).await,
        "create" if !named => write::create(&ask, request).await,
        "update" if named => write::update(&ask, request).await,
        "patch" if named => write::patch(&ask, request).await,
        "delete" if target.subresource.is_empty() => write::delete(&ask, request).await,
        "deletecollection" if kind != Kind::Namespace => {
            write::delete_collection(&ask, request).await
        }
        _ => Err(Status::method_not_allowed()),
    }
}
