//! Replays the requests of a log under other policies: who would have waited, and who would have
//! been rejected (`weir replay`).
//!
//! A [`reader`] makes items of the lines of logs, in the order of their times. A [`simulation`] lets
//! them happen under the policies of a configuration, with the decisions of the proxy, in virtual
//! time. A [`report`] says what became of them. [`advice`] replays a log many times, to find policies
//! under which it fares as an operator wants.

#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "tests need a base instant; the ordinary build is still checked"
    )
)]

pub mod advice;
pub mod arrival;
pub mod clients;
pub mod histogram;
pub mod logged;
pub mod reader;
pub mod report;
pub mod run;
pub mod simulation;
#[cfg(test)]
mod tests;
