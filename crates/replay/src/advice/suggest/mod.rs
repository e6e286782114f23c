//! Suggestions from a log: levels of their own for users whose requests make others wait, limits that
//! the users of the log stay below, and what is never used.
//!
//! What is suggested was replayed over the log. Nothing is promised that the replay did not show.

mod client_rule;
mod events;
pub mod find;
mod limits;
pub mod model;
pub mod output;
mod own_level;
mod rates;
pub mod settings;

/// The rate limits with these rules.
#[cfg(test)]
pub(super) fn parse_rates_for_tests(
    rules: &[serde_json::Value],
    settings: &settings::KeptSettings,
) -> weir_limits::rate::RateLimitsConfig {
    limits::parse_rates(None, rules, settings)
}
