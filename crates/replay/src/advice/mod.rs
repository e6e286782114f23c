//! Advice from a log: replays it many times under policies that differ from those of a
//! configuration.
//!
//! [`search`] looks for the smallest total concurrency at which stated [objectives](objective) hold.
//! [`suggest`] looks for objects and limits that would have served the log better.
//! The log is kept in memory if it is small, and read again for each run if it is not
//! ([`repeatable_log`]).

pub mod objective;
pub mod repeatable_log;
mod resampling;
pub mod search;
pub mod suggest;
#[cfg(test)]
mod suggest_tests;
#[cfg(test)]
mod tests;
pub mod trials;
pub mod variants;
