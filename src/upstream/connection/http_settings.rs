//! The settings of HTTP towards the upstream, each chosen on purpose: the libraries' defaults suit
//! a browser's peer, not kube-apiserver.
//!
//! Windows of a connection have room for all of its streams, so that a slow reader of one stream
//! does not stop the others. Logs and proxied streams, whose frames others than the API server
//! write, have HTTP/1.1 connections of their own. A dead path is found after 30 s of silence and 15
//! s without an answer, by PING and, on HTTP/1.1, by TCP: otherwise it stays for 15 minutes.

use std::time::Duration;

use hyper::client::conn::http1;

/// Most bytes of headers that kube-apiserver accepts and sends (Go's `http.DefaultMaxHeaderBytes`).
const MAX_HEADER_LIST_SIZE: u32 = 1 << 20;

/// Most fields of a head with [`MaxFields::Many`]. kube-apiserver bounds their bytes, not their
/// number.
const MANY_FIELDS: usize = 1024;

/// Largest read buffer of an HTTP/1.1 connection: a head must fit.
const MAX_HTTP1_BUFFER: usize = (1 << 20) + (64 << 10);

/// Receive window of a stream: enough for a long-distance link. A response that its client does not
/// read stops there.
const STREAM_WINDOW: u32 = 256 << 10;

/// Most streams that weir uses on one connection, whatever the peer allows. kube-apiserver allows
/// 100 unless its `--http2-max-streams-per-connection` says otherwise.
pub(crate) const MAX_STREAMS: usize = 256;

/// Receive window of a connection, large enough for all streams: clients that do not read cannot
/// stop the other responses on their connection.
const CONNECTION_WINDOW: u32 = 256 * STREAM_WINDOW;

/// Small unread frames count for up to 256 bytes each. Beyond this budget h2 closes the connection,
/// and with it all its responses. Responses of logs and proxies, which others than the API server
/// write, use connections of their own. What remains are watches with short events; the budget
/// suffices for [`MAX_STREAMS`] of them that are not read.
const DATA_FRAME_BUDGET: usize = 256 << 20;

/// client-go's `HTTP2_READ_IDLE_TIMEOUT_SECONDS`. A dead path is found within the sum of this and
/// [`PING_TIMEOUT`] instead of 15 minutes.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(30);
/// client-go's `HTTP2_PING_TIMEOUT_SECONDS`.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Most bytes of one request body in the send buffer.
const SEND_BUFFER: usize = 256 << 10;

/// Most reset streams that are remembered, so that frames still in flight for them are ignored. The
/// peer is the API server: its late frames are no attack, so their number does not end a connection
/// either.
const MAX_RESET_STREAMS: usize = 4096;

/// How many fields the head of a response may have on an HTTP/1.1 connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MaxFields {
    /// 100, hyper's default: its table is on the stack. For reads, which can be sent again.
    #[default]
    Usual,
    /// 1,024. hyper allocates and fills a table of 64 KB for each response.
    Many,
}

pub(crate) fn http1_builder(max_fields: MaxFields) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HTTP1_BUFFER);
    match max_fields {
        MaxFields::Usual => {}
        MaxFields::Many => {
            builder.max_headers(MANY_FIELDS);
        }
    }
    builder
}

pub(crate) fn http2_builder() -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder
        .enable_push(false)
        .initial_max_send_streams(0) // no stream before the peer has said how many it allows
        .max_header_list_size(MAX_HEADER_LIST_SIZE)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .data_frame_budget(DATA_FRAME_BUDGET)
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(None);
    builder
}
