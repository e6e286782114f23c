//! Values of flags: parsers, and the defaults of a group of flags.
//!
//! Settings without files are used as they are parsed: the struct of a concern is a group of flags.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Command};
use weir_kubernetes::request_info::go_duration;

/// The values of a group of flags that has no required one, if none is given.
///
/// # Panics
/// If a default value of the group is invalid, or a flag is required: each group has a test.
#[must_use]
#[expect(
    clippy::expect_used,
    reason = "default values are constants, and each group has a test"
)]
pub(crate) fn defaults<A: Args>() -> A {
    let command = A::augment_args(Command::new("defaults").no_binary_name(true));
    let matches = command.try_get_matches_from::<_, &str>([]);
    matches
        .and_then(|matches| A::from_arg_matches(&matches))
        .expect("no flag of a group of settings is required, and defaults are valid")
}

/// Parses one of `all` by its name, as `/debug/top_talkers` does.
pub(crate) fn name_parser<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(name)).try_map(move |text| {
        let found = all.into_iter().find(|value| name(*value) == text);
        found.ok_or("there is no such thing")
    })
}

/// Parses a duration in Go's syntax: `1m30s`, `500ms`.
///
/// # Errors
/// If the syntax is invalid, or the duration is negative.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let nanos = go_duration::parse(text.as_bytes())
        .map_err(|why| format!("{why}; give it as 30s, 1m30s or 500ms"))?;
    u64::try_from(nanos)
        .map(Duration::from_nanos)
        .map_err(|_| "it must not be negative".to_owned())
}

pub(crate) fn parse_positive_duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration.is_zero() {
        return Err("it must be longer than 0s".to_owned());
    }
    Ok(duration)
}

/// Parses a duration of more than zero. With zero every request would get 504.
pub(crate) fn parse_request_timeout(text: &str) -> Result<Duration, String> {
    let limit = parse_duration(text)?;
    if limit.is_zero() {
        return Err("it must be more than 0s: every request would get 504".to_owned());
    }
    Ok(limit)
}

/// A longer delay would exceed the timeout of clients.
const MAX_REJECTION_HOLD: Duration = Duration::from_secs(60);

pub(crate) fn parse_rejection_hold(text: &str) -> Result<Duration, String> {
    let hold = parse_duration(text)?;
    if hold > MAX_REJECTION_HOLD {
        return Err("it must not be longer than 1m".to_owned());
    }
    Ok(hold)
}

/// 0 means 100, as in kube-apiserver's flag (1.36).
pub(crate) fn parse_max_streams(text: &str) -> Result<u32, String> {
    let max_streams = text.parse().map_err(|why| format!("{why}"))?;
    Ok(if max_streams == 0 { 100 } else { max_streams })
}

pub(crate) fn parse_goaway_chance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(chance) if (0.0..=0.02).contains(&chance) => Ok(chance),
        // kube-apiserver's own wording.
        _ => Err("--goaway-chance can not be less than 0 or greater than 0.02".to_owned()),
    }
}

/// Parses a share: more than 0, at most 1.
pub(crate) fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok();
    share
        .filter(|share: &f64| *share > 0.0 && *share <= 1.0)
        .ok_or_else(|| "it must be more than 0 and at most 1".to_owned())
}

/// A mebibyte in bytes.
pub(crate) const MEBIBYTE: u64 = 1 << 20;

/// weir takes some 30 MiB without clients. With a lower limit it would reject everything.
const MIN_MEMORY_LIMIT: u64 = 64 * MEBIBYTE;

/// Parses a limit of memory: bytes, or a Kubernetes quantity without a fraction (`512Mi`, `1G`). 0
/// is no limit.
pub(crate) fn parse_memory_limit(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if bytes > 0 && bytes < MIN_MEMORY_LIMIT {
        return Err("it must be at least 64Mi, or 0 for no limit".to_owned());
    }
    Ok(bytes)
}

/// Parses bytes, or a Kubernetes quantity without a fraction (`512Mi`, `1G`).
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    const SUFFIXES: [(&str, u64); 8] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    let (number, unit) = SUFFIXES
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))
        .unwrap_or((text, 1));
    number
        .parse()
        .ok()
        .and_then(|number: u64| number.checked_mul(unit))
        .ok_or_else(|| "give it in bytes, or as 512Mi or 1Gi".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_max_streams_means_one_hundred() {
        let parsed = ["0", "1", "1000"].map(parse_max_streams);
        assert_eq!(parsed, [100, 1, 1000].map(Ok));
        assert!(parse_max_streams("x").is_err());
    }

    #[test]
    fn a_memory_limit_is_a_number_of_bytes_or_a_quantity() {
        let parsed = |text| parse_memory_limit(text).ok();
        assert_eq!(parsed("0"), Some(0));
        assert_eq!(parsed("268435456"), Some(256 * MEBIBYTE));
        assert_eq!(parsed("256Mi"), Some(256 * MEBIBYTE));
        assert_eq!(parsed("2Gi"), Some(2 << 30));
        assert_eq!(parsed("1G"), Some(1_000_000_000));
        for invalid in [
            "",
            "Mi",
            "-1",
            "1.5Gi",
            "63Mi",
            "1mi",
            "99999999999Ti",
            "1 Gi",
        ] {
            assert_eq!(parsed(invalid), None, "{invalid}");
        }
    }
}
