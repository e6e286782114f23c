//! Observability for operators: health, metrics and the status page on listeners separate from the
//! clients' port; logs, audit log and traces.

pub mod admin;
pub mod alarm_board;
pub mod audit;
pub mod dry_run;
pub mod info_metrics;
pub mod logging;
pub mod readiness;
pub mod spans;
pub(crate) mod status;
mod talker_observer;
#[cfg(test)]
mod talker_observer_tests;
#[cfg(test)]
mod wait_tests;
