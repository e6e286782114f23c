//! Advice from a log: replays it many times under policies that differ from those of a
//! configuration.
//!
//! [`search`] looks for the smallest total concurrency at which stated [objectives](objective) hold.
//! [`suggest`] looks for objects and limits that would have served the log better.
//! The log is read again for each pass ([`repeatable_log`]).

pub mod objective;
pub mod repeatable_log;
pub mod search;
mod smallest;
pub mod suggest;
#[cfg(test)]
mod suggest_tests;
#[cfg(test)]
mod tests;
pub mod variants;
