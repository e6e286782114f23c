//! Go's notation of a duration: `300ms`, `-1.5h`, `2h45m`.
//!
//! Follows `time.ParseDuration` (Go 1.27) exactly, errors and rounding included, because
//! kube-apiserver passes its errors on to clients.

use std::fmt;
use std::fmt::Write as _;
use std::time::Duration;

/// 2^63: the magnitude of the longest negative duration, one more than that of the longest positive
/// one.
const MAX_MAGNITUDE: u64 = 1 << 63;

/// The reason why a text is not a duration; prints as Go's error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurationError {
    text: Box<[u8]>,
    fault: DurationFault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum DurationFault {
    Invalid,
    MissingUnit,
    UnknownUnit(Box<[u8]>),
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = quote(&self.text);
        match &self.fault {
            DurationFault::Invalid => write!(f, "time: invalid duration {text}"),
            DurationFault::MissingUnit => write!(f, "time: missing unit in duration {text}"),
            DurationFault::UnknownUnit(unit) => {
                write!(f, "time: unknown unit {} in duration {text}", quote(unit))
            }
        }
    }
}

impl std::error::Error for DurationError {}

/// Parses a duration and returns it in nanoseconds.
///
/// # Errors
/// The text is not one or more numbers with units after an optional sign, or the duration does not
/// fit in 64 bits.
pub fn parse(text: &[u8]) -> Result<i64, DurationError> {
    let error = |fault| DurationError {
        text: text.into(),
        fault,
    };
    let (negative, unsigned) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if unsigned == b"0" {
        return Ok(0);
    }
    if unsigned.is_empty() {
        return Err(error(DurationFault::Invalid));
    }
    let mut total: u64 = 0;
    let mut rest = unsigned;
    while !rest.is_empty() {
        let term;
        (term, rest) = split_term(rest).map_err(error)?;
        // Go adds without a check, and two terms of 2^63 add up to zero.
        total = total.wrapping_add(term);
        if total > MAX_MAGNITUDE {
            return Err(error(DurationFault::Invalid));
        }
    }
    let nanoseconds = if negative {
        0_i64.checked_sub_unsigned(total)
    } else {
        0_i64.checked_add_unsigned(total)
    };
    nanoseconds.ok_or_else(|| error(DurationFault::Invalid))
}

/// The nanoseconds of the first number and unit of `text`, and the rest of the text.
fn split_term(text: &[u8]) -> Result<(u64, &[u8]), DurationFault> {
    let (whole, rest) = split_digits(text);
    let (fraction, rest) = match rest {
        [b'.', rest @ ..] => split_digits(rest),
        _ => (Default::default(), rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(DurationFault::Invalid);
    }
    let mut value = parse_whole(whole).ok_or(DurationFault::Invalid)?;
    let is_number = |b: &u8| *b == b'.' || b.is_ascii_digit();
    let (unit, rest) = rest.split_at(rest.iter().position(is_number).unwrap_or(rest.len()));
    if unit.is_empty() {
        return Err(DurationFault::MissingUnit);
    }
    let nanoseconds =
        nanoseconds_per(unit).ok_or_else(|| DurationFault::UnknownUnit(unit.into()))?;
    if value > MAX_MAGNITUDE / nanoseconds {
        return Err(DurationFault::Invalid);
    }
    value = value * nanoseconds + scale_fraction(nanoseconds, fraction);
    if value > MAX_MAGNITUDE {
        return Err(DurationFault::Invalid);
    }
    Ok((value, rest))
}

fn split_digits(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(
        text.iter()
            .position(|b| !b.is_ascii_digit())
            .unwrap_or(text.len()),
    )
}

fn parse_whole(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |number, digit| {
        let number = number
            .checked_mul(10)?
            .checked_add(u64::from(digit - b'0'))?;
        (number <= MAX_MAGNITUDE).then_some(number)
    })
}

/// `0.digits` of a unit. Digits that no longer fit in 63 bits are dropped.
#[expect(
    clippy::as_conversions,
    reason = "Go computes in float64, and both ends are far within its range: at most 3.6e12"
)]
fn scale_fraction(nanoseconds: u64, digits: &[u8]) -> u64 {
    let (mut fraction, mut scale) = (0_u64, 1_f64);
    for digit in digits {
        if fraction > (MAX_MAGNITUDE - 1) / 10 {
            break;
        }
        let longer = fraction * 10 + u64::from(digit - b'0');
        if longer > MAX_MAGNITUDE {
            break;
        }
        fraction = longer;
        scale *= 10.0;
    }
    (fraction as f64 * (nanoseconds as f64 / scale)) as u64
}

fn nanoseconds_per(unit: &[u8]) -> Option<u64> {
    Some(match unit {
        b"ns" => 1,
        // Both the micro sign and the Greek letter.
        b"us" | b"\xC2\xB5s" | b"\xCE\xBCs" => 1_000,
        b"ms" => 1_000_000,
        b"s" => 1_000_000_000,
        b"m" => 60_000_000_000,
        b"h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// The coarser quoting of the `time` package: every byte outside of ASCII is escaped.
fn quote(text: &[u8]) -> String {
    let mut quoted = String::from("\"");
    for &byte in text {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            0x20..=0x7F => quoted.push(char::from(byte)),
            _ => quoted.push_str(&format!("\\x{byte:02x}")),
        }
    }
    quoted.push('"');
    quoted
}

/// Formats a duration as Go's `time.Duration.String` does: `0s`, `12.5µs`, `5ms`, `1m2.5s`.
#[must_use]
pub fn format(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos();
    let (unit, name) = match nanoseconds {
        0 => return "0s".to_owned(),
        1..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let (hours, minutes) = (duration.as_secs() / 3600, duration.as_secs() / 60 % 60);
    let whole = if unit == 1_000_000_000 {
        nanoseconds / unit % 60
    } else {
        nanoseconds / unit
    };
    let mut text = String::new();
    if hours > 0 {
        let _ = write!(text, "{hours}h");
    }
    if hours > 0 || minutes > 0 {
        let _ = write!(text, "{minutes}m");
    }
    let _ = write!(text, "{whole}");
    let rest = nanoseconds % unit;
    if rest > 0 {
        let digits = unit.ilog10().try_into().unwrap_or_default();
        let rest = format!("{rest:0digits$}");
        let _ = write!(text, ".{}", rest.trim_end_matches('0'));
    }
    text + name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_as_in_go() {
        for (nanoseconds, text) in [
            (0, "0s"),
            (7, "7ns"),
            (1_500, "1.5µs"),
            (5_000_000, "5ms"),
            (12_500_000, "12.5ms"),
            (1_000_000_001, "1.000000001s"),
            (90_000_000_000, "1m30s"),
            (3_600_000_000_000, "1h0m0s"),
        ] {
            assert_eq!(format(Duration::from_nanos(nanoseconds)), text);
        }
    }

    #[test]
    fn durations_are_parsed_as_in_go() {
        let cases: [(&str, i64); 27] = [
            ("0", 0),
            ("-0", 0),
            ("+0", 0),
            ("0s", 0),
            ("5s", 5_000_000_000),
            ("+5s", 5_000_000_000),
            ("-5s", -5_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("1.004s", 1_004_000_000),
            ("100.00100s", 100_001_000_000),
            ("3h30m", 12_600_000_000_000),
            ("10.5s4m", 250_500_000_000),
            ("-2m3.4s", -123_400_000_000),
            ("1h2m3s4ms5us6ns", 3_723_004_005_006),
            ("12\u{b5}s", 12_000),
            ("12\u{3bc}s", 12_000),
            ("39h9m14.425s", 140_954_425_000_000),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("0.100000000000000000000h", 360_000_000_000),
            ("9007199254740993ns", 9_007_199_254_740_993),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("-9223372036s854ms775us808ns", i64::MIN),
            ("0.9223372036854775807h", 3_320_413_933_267),
            ("9223372036854775808ns9223372036854775808ns", 0),
        ];
        for (text, nanoseconds) in cases {
            assert_eq!(parse(text.as_bytes()), Ok(nanoseconds), "{text}");
        }
    }

    #[test]
    fn errors_are_worded_as_in_go() {
        let cases = [
            ("", r#"time: invalid duration """#),
            ("-", r#"time: invalid duration "-""#),
            ("x", r#"time: invalid duration "x""#),
            (".", r#"time: invalid duration ".""#),
            ("-.s", r#"time: invalid duration "-.s""#),
            (" 1s", r#"time: invalid duration " 1s""#),
            ("3000000h", r#"time: invalid duration "3000000h""#),
            (
                "9223372036854775808ns",
                r#"time: invalid duration "9223372036854775808ns""#,
            ),
            (
                "-9223372036854775809ns",
                r#"time: invalid duration "-9223372036854775809ns""#,
            ),
            (
                "99999999999999999999s",
                r#"time: invalid duration "99999999999999999999s""#,
            ),
            (
                "9223372036s855ms",
                r#"time: invalid duration "9223372036s855ms""#,
            ),
            ("30", r#"time: missing unit in duration "30""#),
            ("1.5", r#"time: missing unit in duration "1.5""#),
            ("1s2", r#"time: missing unit in duration "1s2""#),
            ("00", r#"time: missing unit in duration "00""#),
            ("1d", r#"time: unknown unit "d" in duration "1d""#),
            ("1S", r#"time: unknown unit "S" in duration "1S""#),
            ("1s 2s", r#"time: unknown unit "s " in duration "1s 2s""#),
            ("1\"\\", r#"time: unknown unit "\"\\" in duration "1\"\\""#),
            (
                "1\u{e9}\t",
                r#"time: unknown unit "\xc3\xa9\x09" in duration "1\xc3\xa9\x09""#,
            ),
        ];
        for (text, message) in cases {
            assert_eq!(parse(text.as_bytes()).unwrap_err().to_string(), message);
        }
    }
}
