//! Advice from a log: replays it many times under policies that differ from those of a
//! configuration.
//!
//! [`search`] looks for the smallest total concurrency at which stated [objectives](objective) hold.
//! [`suggest`] looks for objects and limits that would have served the log better.
//! The log is kept in memory if it is small, and read again for each run if it is not
//! ([`repeatable_log`]).

pub(crate) mod objective;
pub(crate) mod repeatable_log;
mod resampling;
pub(crate) mod search;
pub(crate) mod suggest;
#[cfg(test)]
mod suggest_tests;
#[cfg(test)]
mod tests;
pub(crate) mod trials;
pub(crate) mod variants;
