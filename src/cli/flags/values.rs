//! Parsers of flag values.

use std::time::Duration;

use crate::request_info::go_duration;

/// Parses a duration in Go's syntax: `1m30s`, `500ms`.
///
/// # Errors
/// If the syntax is invalid, or the duration is negative.
pub(in crate::cli) fn parse_duration(text: &str) -> Result<Duration, String> {
    let nanos = go_duration::parse(text.as_bytes())
        .map_err(|why| format!("{why}; give it as 30s, 1m30s or 500ms"))?;
    u64::try_from(nanos)
        .map(Duration::from_nanos)
        .map_err(|_| "it must not be negative".to_owned())
}

pub(in crate::cli) fn parse_positive_duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration.is_zero() {
        return Err("it must be longer than 0s".to_owned());
    }
    Ok(duration)
}

/// Parses a duration of more than zero. With zero every request would get 504.
pub(in crate::cli) fn parse_request_timeout(text: &str) -> Result<Duration, String> {
    let limit = parse_duration(text)?;
    if limit.is_zero() {
        return Err("it must be more than 0s: every request would get 504".to_owned());
    }
    Ok(limit)
}

/// A longer delay would exceed the timeout of clients.
const MAX_REJECTION_HOLD: Duration = Duration::from_secs(60);

pub(in crate::cli) fn parse_rejection_hold(text: &str) -> Result<Duration, String> {
    let hold = parse_duration(text)?;
    if hold > MAX_REJECTION_HOLD {
        return Err("it must not be longer than 1m".to_owned());
    }
    Ok(hold)
}

pub(in crate::cli) fn parse_goaway_chance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(chance) if (0.0..=0.02).contains(&chance) => Ok(chance),
        // kube-apiserver's own wording.
        _ => Err("--goaway-chance can not be less than 0 or greater than 0.02".to_owned()),
    }
}
