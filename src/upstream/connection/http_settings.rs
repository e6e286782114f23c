//! HTTP's settings on the upstream's side, each set on purpose: the libraries' defaults suit a browser's peer, not
//! kube-apiserver's.

use std::time::Duration;

use hyper::client::conn::http1;

/// What kube-apiserver accepts, and sends, of headers (Go's `http.DefaultMaxHeaderBytes`).
const MAX_HEADER_LIST_SIZE: u32 = 1 << 20;

/// Most headers in an HTTP/1.1 response; the count is no limit upstream, the bytes are.
const MAX_HTTP1_HEADERS: usize = 1024;

/// Read buffer of an HTTP/1.1 connection at its largest: a head must fit.
const MAX_HTTP1_BUFFER: usize = (1 << 20) + (64 << 10);

/// Enough of one answer on its way for a long-distance link; an answer that nobody reads stops there.
const STREAM_WINDOW: u32 = 256 << 10;

/// Most streams that are used of one connection, whatever the peer allows: kube-apiserver allows 100 unless its
/// `--http2-max-streams-per-connection` says otherwise.
pub(in crate::upstream) const MAX_STREAMS: usize = 256;

/// Room for all streams: clients that do not read cannot stop the answers of the others on their connection.
const CONNECTION_WINDOW: u32 = 256 * STREAM_WINDOW;

/// Small frames that nobody has read count for up to 256 bytes each; beyond this the library gives the connection up, and
/// with it everybody's answers. Those of logs and proxies, which others than the API server write, come on connections of
/// their own; what is left is watches whose events are short, and this is for [`MAX_STREAMS`] of them that nobody reads.
const DATA_FRAME_BUDGET: usize = 256 << 20;

/// client-go's `HTTP2_READ_IDLE_TIMEOUT_SECONDS`: a dead path is found within the sum of the two instead of 15 minutes.
pub(in crate::upstream) const PING_INTERVAL: Duration = Duration::from_secs(30);
/// client-go's `HTTP2_PING_TIMEOUT_SECONDS`.
pub(in crate::upstream) const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// What one request's body may have on its way in memory.
const SEND_BUFFER: usize = 256 << 10;

/// How many streams that were given up are remembered, so that what is still on its way for them is dropped in silence.
/// The peer is the API server: its late frames are no attack, so their number ends no connection either.
const MAX_RESET_STREAMS: usize = 4096;

pub(in crate::upstream) fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .max_headers(MAX_HTTP1_HEADERS)
        .max_buf_size(MAX_HTTP1_BUFFER);
    builder
}

pub(in crate::upstream) fn http2_builder() -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder
        .enable_push(false)
        .initial_max_send_streams(0) // none is begun before the peer has said how many it takes
        .max_header_list_size(MAX_HEADER_LIST_SIZE)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .data_frame_budget(DATA_FRAME_BUDGET)
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(None);
    builder
}
