//! Replays the requests of a log under other policies: who would have waited, and who would have
//! been rejected (`weir replay`).
//!
//! A [`reader`] makes items of the lines of logs, in the order of their times. A [`simulation`] lets
//! them happen under the policies of a configuration, with the decisions of the proxy, in virtual
//! time. A [`report`] says what became of them. [`advice`] replays a log many times, to find policies
//! under which it fares as an operator wants.

pub(crate) mod advice;
pub(crate) mod arrival;
pub(crate) mod clients;
pub(crate) mod histogram;
pub(crate) mod logged;
pub(crate) mod reader;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod simulation;
#[cfg(test)]
mod tests;
