//! A client library that others wrote, unchanged, through the real program: the `kube` crate against `weir playground`.
//!
//! Each test starts a playground of its own and waits for events only, with one generous limit. What each case is asked
//! twice is asked once as a user known by certificate and once as one known by token: the two go different ways.

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
