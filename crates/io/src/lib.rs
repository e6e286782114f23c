//! What stands between a socket and the HTTP library. Nothing here knows what a request is.
//!
//! - [`tcp`]: single slices are sent without a list, and an idle connection can be asked for what has
//!   just arrived. [`proxy_protocol`]: the client's address, sent before TLS. [`not_tls`]: what a
//!   connection begins with instead. [`staged_close`]: a client reads the last bytes before the end.
//! - [`write_coalescing`]: the writes of a poll go out together. [`write_backpressure`] bounds what the
//!   HTTP library takes from a body before it writes. [`written_first`]: an error waits for the bytes
//!   before it. [`deferred_write_errors`]: what the peer has sent is read before a failed write counts.
//! - [`frame_scanner`]: the frames of HTTP/2 as they are read. [`goaway`]: the last one that is written.
//!   [`ping_schedule`]: when a PING is sent, and what its answer acknowledges.
//! - [`pauses`]: a thread that has to wait for a core looks less often for what has arrived.
//! - [`in_place`]: boxes whose values are made where they stay. [`rare_events`]: a future that is polled
//!   only when it was woken.

#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "tests need a base instant; the ordinary build is still checked"
    )
)]

pub mod deferred_write_errors;
pub mod frame_scanner;
pub mod goaway;
pub mod in_place;
pub mod not_tls;
pub mod pauses;
pub mod ping_schedule;
pub mod proxy_protocol;
pub mod rare_events;
pub mod staged_close;
pub mod tcp;
pub mod write_backpressure;
pub mod write_coalescing;
pub mod written_first;
