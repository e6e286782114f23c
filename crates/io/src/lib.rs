//! What stands between a socket and the HTTP library. Nothing here knows what a request is.
//!
//! - [`tcp`]: single slices are sent without a list, and an idle connection can be asked for what has
//!   just arrived. [`proxy_protocol`]: the client's address, sent before TLS.
//! - [`write_coalescing`]: the writes of a poll go out together. [`write_backpressure`] bounds what the
//!   HTTP library takes from a body before it writes. [`written_first`]: an error waits for the bytes
//!   before it.
//! - [`frame_scanner`]: the frames of HTTP/2 as they are read.
//! - [`in_place`]: boxes whose values are made where they stay.

#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "tests need a base instant; the ordinary build is still checked"
    )
)]

pub mod frame_scanner;
pub mod in_place;
pub mod proxy_protocol;
pub mod tcp;
pub mod write_backpressure;
pub mod write_coalescing;
pub mod written_first;
