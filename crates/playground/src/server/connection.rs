//! A connection: the TLS handshake, and HTTP/1.1 or HTTP/2 until the connection ends.

use crate::server::faulty;
use crate::server::framed_stream::FramedStream;
use crate::server::handler_future::HandlerFuture;
use crate::server::serve::{ConnectionControl, serve_request};
use crate::serving::fault::{ConnectionEnd, Fault, FaultState};
use crate::serving::handler_scheduler::HandlerScheduler;
use crate::state::ServerState;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// Timeout of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// kube-apiserver's idle timeout of connections. (hyper measures it from the end of a request.)
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// kube-apiserver's HTTP/2 frame size and stream window, in bytes.
const H2_WINDOW: u32 = 256 * 1024;
/// kube-apiserver's limit on the head of a request, in bytes.
const MAX_HEAD_BYTES: u32 = 1024 * 1024;
/// Maximum number of headers on HTTP/1.1; enough for a user with some hundreds of groups.
const MAX_HEADERS: usize = 512;

/// Serves one connection, from the handshake to its end. `faults` are those since it was accepted.
pub(super) async fn handle_connection(
    state: Arc<ServerState>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    faults: watch::Receiver<FaultState>,
) {
    let _ = stream.set_nodelay(true);
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
    let Ok(Ok(stream)) = handshake.await else {
        return;
    };
    state.request_log.record_connection();
    if faults.borrow().fault == Some(Fault::Garbage) {
        return faulty::send_garbage(stream).await;
    }
    let (_, session) = stream.get_ref();
    let peer = Arc::new(state.authenticator.verify_peer(session.peer_certificates()));
    let h2 = session.alpn_protocol() == Some(b"h2");
    let control = Arc::new(ConnectionControl::default());
    let streams = state.settings.max_concurrent_streams;
    let handlers = h2.then(|| HandlerScheduler::new(streams));
    let service = service_fn({
        let (state, control, handlers) =
            (Arc::clone(&state), Arc::clone(&control), handlers.clone());
        move |request| {
            let scheduled = handlers.as_ref().map(HandlerScheduler::schedule);
            let (state, peer) = (Arc::clone(&state), Arc::clone(&peer));
            let control = Arc::clone(&control);
            async move {
                if h2 && state.fault.borrow().fault == Some(Fault::NoStreams) {
                    return Err(h2::Error::from(h2::Reason::REFUSED_STREAM));
                }
                let handler_slot = match scheduled {
                    Some(scheduled) => Some(scheduled.wait_for_slot().await),
                    None => None,
                };
                let handled =
                    serve_request(Arc::clone(&state), peer, control, request, handler_slot);
                Ok(HandlerFuture::new(state, handled).await)
            }
        }
    });
    if let Some(handlers) = handlers {
        let stream = FramedStream::new(stream);
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(streams)
            .max_header_list_size(MAX_HEAD_BYTES)
            .max_frame_size(H2_WINDOW)
            .initial_stream_window_size(H2_WINDOW)
            .initial_connection_window_size(H2_WINDOW.saturating_mul(streams.clamp(1, 100)))
            .serve_connection(TokioIo::new(stream.clone()), service);
        let served = run_connection(&state, &control, faults, connection, |c| {
            c.graceful_shutdown();
        });
        tokio::select! {
            () = served => return,
            () = handlers.wait_for_too_many_resets() => {}
        }
        state.request_log.record_too_many_early_resets();
        stream.enhance_your_calm().await;
    } else {
        let io = TokioIo::new(stream);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .title_case_headers(true)
            .max_headers(MAX_HEADERS)
            .header_read_timeout(IDLE_TIMEOUT)
            .serve_connection(io, service)
            .with_upgrades();
        run_connection(&state, &control, faults, connection, |c| {
            c.graceful_shutdown();
        })
        .await;
    }
}

/// Runs a connection. Closes it gracefully on request, when the server stops and when a fault does so.
async fn run_connection<C, E>(
    state: &ServerState,
    control: &ConnectionControl,
    mut faults: watch::Receiver<FaultState>,
    connection: C,
    close: impl Fn(Pin<&mut C>),
) where
    C: Future<Output = Result<(), E>>,
    E: std::error::Error + 'static,
{
    let mut stopping = state.stopping.subscribe();
    let mut connection = pin!(connection);
    let mut open = true;
    loop {
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = control.close.notified(), if open => {
                open = false;
                close(connection.as_mut());
                continue;
            }
            _ = stopping.wait_for(|stopping| *stopping), if open => {
                open = false;
                close(connection.as_mut());
                continue;
            }
            () = control.reset.notified() => return,
            Ok(()) = faults.changed() => match faults.borrow_and_update().connection_end() {
                Some(ConnectionEnd::Abort) => return,
                Some(ConnectionEnd::Graceful) if open => {
                    open = false;
                    close(connection.as_mut());
                    continue;
                }
                Some(ConnectionEnd::Graceful) | None => continue,
            },
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
            if is_enhance_your_calm(&error) {
                state.request_log.record_too_many_early_resets();
            }
        }
        return;
    }
}

/// Whether the HTTP/2 library itself ended the connection with ENHANCE_YOUR_CALM: it limits the
/// streams that are reset before they are accepted.
fn is_enhance_your_calm(error: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .filter_map(|error| error.downcast_ref::<h2::Error>())
        .any(|error| error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM) && !error.is_remote())
}
