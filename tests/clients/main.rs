//! A client library that others wrote, unchanged, through the real program: the `kube` crate against `weir playground`.
//!
//! Each test starts a playground of its own and waits for events only, with one generous limit. What each case is asked
//! twice is asked once as a user known by certificate and once as one known by token: the two go different ways.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what does not come as it should fails the test"
)]

mod objects;
mod overload;
mod playground;
mod tunnels;
