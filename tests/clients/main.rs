//! An unmodified third-party client library against the real program: the `kube` crate against
//! `weir playground`.
//!
//! Each test starts its own playground and waits for events, with one generous timeout. Requests
//! that are sent twice are sent once with a certificate and once with a token: the two take
//! different paths.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what does not come as it should fails the test"
)]

#[path = "../../examples/controller/controller.rs"]
mod controller;
mod objects;
mod overload;
mod playground;
mod rate_limits;
#[path = "../../examples/event_recorder/recorder.rs"]
mod recorder;
mod tunnels;
