//! A simulation of weir's limits in virtual time.
//!
//! The decisions are those of the proxy: its matcher, its queue sets, its allocation of seats, its
//! limits. Here a request is a number instead of a task, and the time is that of the log.
//!
//! Things happen in the order of their times. Of those at the same time, what frees seats comes
//! first, then arrivals, in the order of the log. So two replays of one log are the same.
//!
//! They are pure or take the time as an argument. Only what waits is the simulation's own: an
//! agenda of future events takes the place of tasks and timers. A test runs the same requests
//! through the live controller, in a runtime's paused time, and expects the same decisions and
//! waits.

mod agenda;
mod arrivals;
mod auto_total;
#[cfg(test)]
mod closed_loop_tests;
mod departures;
mod engine;
mod limits;
pub mod measure;
pub mod model;
pub mod outcome;
mod probes;
mod requests;
mod service;
mod statistics;
#[cfg(test)]
mod tests;
mod workers;

use std::sync::Arc;
use std::time::Instant;

use crate::clients::ClientTable;
use crate::logged::LogItem;

pub use self::engine::Simulation;
pub use self::model::{AutoTotalPolicy, ReplayModel, ReplayedPolicies};
pub use self::outcome::SimulationOutcome;
pub use self::statistics::groups::Measured;

/// Replays a log in memory under these policies. Items are in the order of their times; their clients are in
/// `clients`. `base` is any moment.
#[must_use]
pub fn simulate(
    log: impl IntoIterator<Item = LogItem>,
    policies: &ReplayedPolicies,
    model: ReplayModel,
    clients: &Arc<ClientTable>,
    base: Instant,
) -> SimulationOutcome {
    let mut simulation = Simulation::new(policies, model, clients, base);
    for item in log {
        simulation.offer(item);
    }
    simulation.finish()
}
