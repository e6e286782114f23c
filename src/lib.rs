//! weir: a reverse proxy in front of kube-apiserver that protects it from overload.
//!
//! # The path of a request
//!
//! 1. [`server`]: accepts the connection, performs the TLS handshake, speaks HTTP.
//! 2. [`pipeline`]: one function runs the steps, with one exit.
//! 3. [`weir_kubernetes::request_info`]: parses the request in Kubernetes' terms.
//! 4. [`identity`]: authenticates its user.
//! 5. [`limits`]: admits it with a permit, or rejects it.
//! 6. [`upstream`]: forwards it to the API server in the mode that its credential allows.
//! 7. [`pipeline::response`]: streams the response, whose body holds the permit until its end.
//! 8. [`pipeline::trace`], [`observe`]: count and show the outcome.
//!
//! Imports run in no circle (`tests/architecture.rs`). The compiler keeps the rest apart: what stands
//! in `crates/` knows nothing of this crate.
//!
//! # Invariants
//!
//! A permit is released exactly once, after the upstream's stream is closed. (Over HTTP/2, if the
//! request body is still being sent: after its upload was stopped, which resets the stream.)
//! Nothing is awaited under a lock. A rejected request never reaches the upstream. A request that
//! asserts a user travels only on connections with weir's certificate. A request with its own
//! credential travels only on connections without one.

#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "tests need a base instant; the ordinary build is still checked"
    )
)]

// The path of a request
pub mod flowcontrol;
pub mod identity;
pub mod limits;
pub mod observe;
pub mod pipeline;
pub mod replicas;
pub mod server;
pub mod upstream;

// Shared by all
pub(crate) mod flag_values;
pub(crate) mod handover;

// Any bytes, for what reads those of peers and files
#[cfg(all(fuzzing, not(test)))]
pub mod fuzzing;
#[cfg(test)]
pub mod fuzzing;

// The program
pub mod app;
pub mod cli;
pub mod config;
pub mod control;
