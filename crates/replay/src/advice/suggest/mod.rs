//! Suggestions from a log: a level of its own for a user whose requests make others wait, and limits that
//! the users of the log stay below.
//!
//! What is suggested was replayed over the log. Nothing is promised that the replay did not show.

mod client_rule;
pub mod find;
pub(super) mod limits;
pub mod output;
mod own_level;
mod rates;
pub mod settings;
