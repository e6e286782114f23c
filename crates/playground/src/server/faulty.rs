//! Lets the fault in force happen: to the listener, to a connection, and to a request.

use crate::endpoints;
use crate::request::{ApiRoute, QueryParameters};
use crate::serving::fault::{Fault, FaultState, RequestEffect};
use crate::serving::response_body::{PlaygroundBody, TrackedBody};
use crate::state::ServerState;
use crate::status::StatusError;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

/// How long a server that shuts down serves on, as by kube-apiserver's `--shutdown-delay-duration`.
const SHUTDOWN_DELAY: Duration = Duration::from_secs(5);

/// Neither HTTP/1.1 nor a frame of HTTP/2.
const GARBAGE: [u8; 64] = [0xfe; 64];

/// Waits for the next connection. Listens only while the fault accepts connections.
///
/// Cancel safety: no connection is lost.
pub(super) async fn next_connection(
    listener: &mut Option<TcpListener>,
    address: SocketAddr,
    state: FaultState,
) -> io::Result<TcpStream> {
    if !state.accepts_connections() {
        *listener = None;
        return pending().await;
    }
    let listener = match listener {
        Some(listener) => listener,
        None => listener.insert(TcpListener::bind(address).await?),
    };
    let (stream, _) = listener.accept().await?;
    if state.fault == Some(Fault::Reset) {
        let _ = stream.set_zero_linger(); // otherwise the connection is closed instead of reset
    }
    Ok(stream)
}

/// Ends what is open some time after a shutdown has begun. Runs for ever. Cancel safety: a shutdown
/// does not end.
pub(super) async fn end_shutdowns(state: &ServerState) {
    let mut changes = state.fault.subscribe();
    let announced = FaultState {
        fault: Some(Fault::Shutdown),
        has_shut_down: false,
    };
    while changes.wait_for(|fault| *fault == announced).await.is_ok() {
        if tokio::time::timeout(SHUTDOWN_DELAY, changes.changed())
            .await
            .is_ok()
        {
            continue;
        }
        state.fault.send_if_modified(|fault| {
            let ends = *fault == announced;
            fault.has_shut_down |= ends;
            if ends {
                state.stopping.send_replace(true);
            }
            ends
        });
    }
}

/// Answers the first bytes of a connection with what is not HTTP, and closes it.
pub(super) async fn send_garbage(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    if stream
        .read(&mut [0; 1024])
        .await
        .is_ok_and(|length| length > 0)
    {
        let _ = stream.write_all(&GARBAGE).await;
        let _ = stream.shutdown().await;
    }
}

/// What the fault in force does to a request.
pub(super) fn effect<B>(state: &ServerState, request: &Request<B>) -> Option<RequestEffect> {
    let fault = *state.fault.borrow();
    let query = QueryParameters::parse(request.uri().query());
    let route = ApiRoute::parse(request.uri().path());
    fault.effect(request.method(), &route, &query)
}

/// What happens before a request is served: nothing, or a response in its place. `reset` resets its
/// connection.
pub(super) async fn before_request(
    state: &ServerState,
    effect: Option<RequestEffect>,
    reset: &Notify,
) -> Option<Response<TrackedBody>> {
    let refused = |response: Response<PlaygroundBody>| {
        Some(response.map(|body| TrackedBody::new(body, None)))
    };
    match effect? {
        RequestEffect::Delay(delay) => {
            tokio::time::sleep(delay).await;
            None
        }
        RequestEffect::Hang => {
            end_of(Fault::Hang, state.fault.subscribe()).await;
            None
        }
        RequestEffect::HangAfterHead => None,
        RequestEffect::NotReady => refused(endpoints::failed_health_check()),
        RequestEffect::Reset => {
            reset.notify_one();
            // No response may be faster than the reset, and nothing is executed afterwards.
            end_of(Fault::Reset, state.fault.subscribe()).await;
            refused(endpoints::failed_health_check())
        }
        RequestEffect::ServerError => {
            let error = StatusError::internal_error("etcdserver: no leader");
            refused(endpoints::status_error(&error))
        }
        RequestEffect::TooManyRequests => refused(endpoints::too_many_requests(1)),
    }
}

/// Holds the body of a response back, if the fault does so.
pub(super) fn hold_body(
    state: &ServerState,
    effect: Option<RequestEffect>,
    response: Response<TrackedBody>,
) -> Response<TrackedBody> {
    if effect != Some(RequestEffect::HangAfterHead) {
        return response;
    }
    let end = end_of(Fault::HangAfterHead, state.fault.subscribe());
    response.map(|body| body.map_body(|body| held_until(end, body)))
}

fn held_until(
    end: impl Future<Output = ()> + Send + 'static,
    body: PlaygroundBody,
) -> PlaygroundBody {
    StreamBody::new(end.map(|()| BodyStream::new(body)).flatten_stream()).boxed_unsync()
}

async fn end_of(fault: Fault, mut changes: watch::Receiver<FaultState>) {
    let _ = changes.wait_for(|state| state.fault != Some(fault)).await;
}
