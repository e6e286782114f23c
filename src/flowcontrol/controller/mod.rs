//! The entry point of API Priority and Fairness: admits or rejects requests.
//!
//! One controller serves all cores. A request loads an immutable snapshot of the configuration, is
//! classified and estimated by it, and then takes one lock, the one of its priority level. A change
//! of the configuration is prepared concurrently and swaps the snapshot at the end. A request keeps
//! the snapshot that classified it, and levels outlive snapshots. This is `configController` of
//! Kubernetes 1.36 (`apf_controller.go`, `apf_filter.go`).
//!
//! The controller does not read files or respond to requests. Its caller decides which requests
//! bypass it: long-running requests except for watches.

mod apf_controller;
mod config;
mod configuration;
mod count_state;
mod dump;
mod held_seats;
mod object_counting;
mod snapshot;
#[cfg(test)]
pub(crate) mod tests;

pub use self::apf_controller::Controller;
pub use self::config::{ControllerConfig, Enforcement, RequestTimes};
pub(crate) use self::held_seats::SeatUse;
