//! weir: a reverse proxy that stands in front of kube-apiserver and keeps it standing.
//!
//! # The way of a request
//!
//! 1. [`server`]: a connection is accepted, TLS is agreed on, HTTP is spoken.
//! 2. [`pipeline`]: one function leads from step to step, and has one exit.
//! 3. [`request_info`]: what is asked, in Kubernetes' terms.
//! 4. [`identity`]: who asks.
//! 5. [`limits`]: may it go on? A permit, or a rejection.
//! 6. [`upstream`]: the request goes to the API server, by the way that its credential allows.
//! 7. [`pipeline::guarded`]: the answer streams back, and what the request held rides on it to its end.
//! 8. [`pipeline::trace`], [`observe`]: what became of it is counted, and shown.
//!
//! # Layers
//!
//! A module imports only from rows above its own; those of one row do not import each other (`tests/architecture.rs`).
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `clock` `write_coalescing` `document` `hash_keys` `metrics` `minimum_rate` `log_limiter` `io` |
//! | 1 | `api` `drain` `request_info` (pure), `playground` (apart from all others) |
//! | 2 | `identity` |
//! | 3 | `flowcontrol` `upstream` |
//! | 4 | `limits` |
//! | 5 | `pipeline` |
//! | 6 | `server` `observe` |
//! | 7 | `config` |
//! | 8 | `app` |
//! | 9 | `cli` |
//!
//! # Invariants
//!
//! A permit is given back exactly once, after the upstream's stream is closed (over HTTP/2, where a request's body is still on its
//! way by then: after its upload was stopped, which resets the stream). Nothing is awaited under a lock. A refusal
//! never reaches the upstream. A request that names a user travels only on connections that carry weir's certificate, and
//! one with its own credential only on connections that carry none.

#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "tests need a base instant; the ordinary build is still checked"
    )
)]

// The way of a request
pub mod flowcontrol;
pub mod identity;
pub mod limits;
pub mod observe;
pub mod pipeline;
pub mod request_info;
pub mod server;
pub mod upstream;

// What they share
pub mod api;
pub mod clock;
pub mod document;
pub mod drain;
pub mod hash_keys;
pub mod io;
pub mod log_limiter;
pub mod metrics;
pub mod minimum_rate;
pub mod write_coalescing;

// A room of its own
#[cfg(feature = "playground")]
pub mod playground;

// The edges
pub mod app;
pub mod cli;
pub mod config;
