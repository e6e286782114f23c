//! The search for the smallest total concurrency at which objectives hold, or for the shares with which
//! they hold at the configured one.

pub mod find;
pub mod model;
pub mod output;
mod runs;
mod same_total;
mod shares;
mod smallest;
