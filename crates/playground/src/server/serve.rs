//! A request on a connection: authentication, admission, execution, and the headers that every
//! response has.

use crate::auth::authentication::{ClientCertificateResult, Unauthorized};
use crate::auth::user::ApiUser;
use crate::objects::seed;
use crate::request::{ApiRoute, QueryParameters};
use crate::server::{faulty, unread_body};
use crate::serving::fairness::{ClassificationUids, TooManyRequests};
use crate::serving::handler_scheduler::HandlerSlot;
use crate::serving::request_log::{RequestGuard, RequestRecord, ServingClass};
use crate::serving::response_body::{PlaygroundBody, TrackedBody};
use crate::state::ServerState;
use crate::status::StatusError;
use crate::{endpoints, time};
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_LENGTH};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use std::sync::Arc;
use tokio::sync::Notify;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// What a request asks of its connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionControl {
    /// To end gracefully.
    pub(super) close: Notify,
    /// To end at once.
    pub(super) reset: Notify,
}

/// Serves one request: authentication, then its admission and execution, then the headers that
/// every response has.
pub(super) async fn serve_request(
    state: Arc<ServerState>,
    peer: Arc<ClientCertificateResult>,
    control: Arc<ConnectionControl>,
    mut request: Request<Incoming>,
    handler_slot: Option<HandlerSlot>,
) -> Response<TrackedBody> {
    let h2 = request.version() == Version::HTTP_2;
    let head = *request.method() == Method::HEAD;
    let audit_id = request.headers().get(AUDIT_ID).cloned();
    let user = state.authenticator.authenticate(&peer, request.headers());
    state.request_log.record_request(RequestRecord {
        method: request.method().clone(),
        uri: request.uri().clone(),
        version: request.version(),
        user: user.clone().ok(),
        headers: request.headers().clone(),
    });
    if h2 && user.as_ref().map_or(true, ApiUser::is_anonymous) {
        control.close.notify_one();
    }
    let effect = faulty::effect(&state, &request);
    let in_its_place = faulty::before_request(&state, effect, &control.reset).await;
    let mut response = match (in_its_place, user) {
        (Some(response), _) => response,
        (None, Err(Unauthorized)) => {
            // An unknown token takes a look-up too; other servers call a webhook for it.
            if let Some(capacity) = &state.capacity {
                capacity.serve().await;
            }
            untracked(endpoints::status_error(&StatusError::unauthorized()))
        }
        (None, Ok(user)) => admit(&state, &user, &mut request).await,
    };
    state
        .request_log
        .record_response(response.status().as_u16());
    if !h2 {
        drain_request_body(&mut request, &mut response).await;
    }
    let headers = response.headers_mut();
    headers.insert(AUDIT_ID, audit_id.unwrap_or_else(new_audit_id));
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-cache, private"));
    if head && h2 {
        return without_body(response);
    }
    let response = faulty::hold_body(&state, effect, response);
    response.map(|body| body.with_handler_slot(handler_slot))
}

/// On HTTP/1.1: applies the effect of an unread request body to the response.
async fn drain_request_body(request: &mut Request<Incoming>, response: &mut Response<TrackedBody>) {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return; // the connection is upgraded
    }
    let length = response.body().size_hint().exact();
    if length.is_some_and(|length| length <= unread_body::BUFFERED_RESPONSE_LENGTH) {
        response.body_mut().release(); // the handler has returned
    }
    if let Some(connection) = unread_body::drain(request).await {
        response.headers_mut().insert(CONNECTION, connection);
    }
}

/// The response to HEAD on HTTP/2: that to GET, with the length of its body, but without the body.
fn without_body(mut response: Response<TrackedBody>) -> Response<TrackedBody> {
    if let Some(length) = response.body().size_hint().exact() {
        response
            .headers_mut()
            .entry(CONTENT_LENGTH)
            .or_insert_with(|| HeaderValue::from(length));
    }
    response.map(TrackedBody::into_headers_only)
}

fn new_audit_id() -> HeaderValue {
    let uuid = seed::uuid(&mut fastrand::Rng::new());
    HeaderValue::try_from(uuid).unwrap_or(HeaderValue::from_static("0"))
}

fn untracked(response: Response<PlaygroundBody>) -> Response<TrackedBody> {
    response.map(|body| TrackedBody::new(body, None))
}

/// Decides whether and when a request is executed, and executes it.
async fn admit(
    state: &Arc<ServerState>,
    user: &ApiUser,
    request: &mut Request<Incoming>,
) -> Response<TrackedBody> {
    let query = QueryParameters::parse(request.uri().query());
    let route = ApiRoute::parse(request.uri().path());
    let class = if matches!(route, ApiRoute::Health(_) | ApiRoute::Metrics) {
        ServingClass::Exempt
    } else if route.is_long_running(request.method(), &query) {
        ServingClass::LongRunning
    } else {
        ServingClass::InFlight
    };
    let mut seat = match &state.fairness {
        Some(fairness) if class != ServingClass::Exempt => {
            let admitted = fairness.admit(request.method(), request.uri(), user);
            match admitted.await {
                Ok(seat) => seat,
                Err(rejected) => return reject_request(state, Some(rejected)),
            }
        }
        Some(_) | None => None,
    };
    let limit = state.settings.max_in_flight;
    let Some(mut guard) = state.request_log.begin_request(class, limit) else {
        return reject_request(state, None);
    };
    guard.held = endpoints::listed_bytes(state, &route, request.method(), &query)
        .map(|bytes| state.list_memory.hold(bytes));
    // Health checks wait for nothing that other requests hold, as in kube-apiserver.
    if let Some(capacity) = &state.capacity
        && class != ServingClass::Exempt
    {
        capacity.serve().await;
    }
    time::burn_cpu_in_slices(state.settings.service_cpu).await;
    let result = endpoints::handle(state, user, &route, &query, request).await;
    let mut response = result.unwrap_or_else(|status| endpoints::status_error(&status));
    let classified = match (&seat, &state.fairness) {
        (Some(seat), _) => Some(seat.classification.clone()),
        (None, Some(_)) => None,
        (None, None) => Some(ClassificationUids::PLACEHOLDER),
    };
    if let Some(classified) = classified {
        classified.insert_headers(response.headers_mut());
    }
    // A watch that has begun occupies no seat; other long-running requests never do.
    guard.seat = seat.take_if(|_| class == ServingClass::InFlight);
    tracked(response, guard)
}

/// The response to a request that the server's own limit, or its priority and fairness, rejects.
fn reject_request(state: &ServerState, rejected: Option<TooManyRequests>) -> Response<TrackedBody> {
    state.request_log.record_rejection();
    time::burn_cpu(state.settings.rejection_cpu);
    let retry_after = rejected.as_ref().map_or(1, |rejected| rejected.retry_after);
    let mut response = endpoints::too_many_requests(retry_after);
    if let Some(rejected) = rejected {
        rejected
            .classification
            .insert_headers(response.headers_mut());
    }
    untracked(response)
}

fn tracked(response: Response<PlaygroundBody>, guard: RequestGuard) -> Response<TrackedBody> {
    response.map(|body| TrackedBody::new(body, Some(guard)))
}
