//! HTTP's settings on the upstream's side, each set on purpose: the libraries' defaults suit a browser's peer, not
//! kube-apiserver's.

use std::time::Duration;

use hyper::client::conn::http1;
use hyper::client::conn::http2;
use hyper_util::rt::TokioExecutor;
use hyper_util::rt::TokioTimer;

/// What kube-apiserver accepts, and sends, of headers (Go's `http.DefaultMaxHeaderBytes`).
const HEADER_BYTES: u32 = 1 << 20;

/// Most headers in an HTTP/1.1 response; the count is no limit upstream, the bytes are.
const HEADERS: usize = 1024;

/// Read buffer of an HTTP/1.1 connection at its largest: a head must fit.
const HTTP1_BUFFER: usize = (1 << 20) + (64 << 10);

/// Enough of one answer on its way for a long-distance link; an answer that nobody reads stops there.
const STREAM_WINDOW: u32 = 1 << 20;

/// So large that a few clients who do not read cannot stop the answers of the others on their connection.
const CONNECTION_WINDOW: u32 = 16 << 20;

/// client-go's `HTTP2_READ_IDLE_TIMEOUT_SECONDS`: a dead path is found within the sum of the two instead of 15 minutes.
const PING_EVERY: Duration = Duration::from_secs(30);
/// client-go's `HTTP2_PING_TIMEOUT_SECONDS`.
const PING_ANSWER: Duration = Duration::from_secs(15);

pub(super) fn client_http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.max_headers(HEADERS).max_buf_size(HTTP1_BUFFER);
    builder
}

pub(super) fn client_http2(
    executor: TokioExecutor,
    timer: TokioTimer,
) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(executor);
    builder
        .timer(timer)
        .max_header_list_size(HEADER_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWER)
        .keep_alive_while_idle(true);
    builder
}
