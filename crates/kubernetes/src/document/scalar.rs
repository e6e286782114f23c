//! Resolves the type of unquoted scalars.
//!
//! YAML follows sigs.k8s.io/yaml of Kubernetes 1.36 (`resolve` of its go-yaml v2, then a conversion
//! to JSON and back): YAML 1.1's booleans and octals. JSON follows its own rules. Dates stay
//! strings, as in Kubernetes.

/// The type and value of a scalar. A string's text is in [`ScalarNode`](super::node::ScalarNode).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResolvedScalar {
    /// A boolean.
    Bool(bool),
    /// A number that is not whole or not finite, or a JSON number with a point or an exponent.
    Float(f64),
    /// A whole number. In YAML this includes `10.0` and `1e3`, since Kubernetes' conversion to JSON
    /// drops the point.
    Integer(i128),
    /// A null.
    Null,
    /// A string.
    String,
}

/// Resolves an unquoted scalar of a YAML document.
pub(super) fn resolve_yaml(text: &str) -> ResolvedScalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return ResolvedScalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return ResolvedScalar::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return ResolvedScalar::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return ResolvedScalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return ResolvedScalar::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return ResolvedScalar::Float(f64::NEG_INFINITY),
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return ResolvedScalar::String;
    }
    // go-yaml does not remove underscores from a number that begins with a point.
    let plain = if text.starts_with('.') {
        text.to_owned()
    } else {
        text.replace('_', "")
    };
    if let Some(value) = parse_integer(&plain) {
        return ResolvedScalar::Integer(value);
    }
    match parse_float(&plain) {
        Some(value) => round_trip_json(value),
        None => ResolvedScalar::String,
    }
}

/// Resolves an unquoted scalar of a JSON document.
pub(super) fn resolve_json(text: &str) -> ResolvedScalar {
    match text {
        "null" => ResolvedScalar::Null,
        "true" => ResolvedScalar::Bool(true),
        "false" => ResolvedScalar::Bool(false),
        _ => match text.parse() {
            Ok(value) => ResolvedScalar::Integer(value),
            Err(_) => text
                .parse()
                .map_or(ResolvedScalar::String, ResolvedScalar::Float),
        },
    }
}

/// Go's `strconv.ParseInt` and `ParseUint` with base 0: the prefix determines the base, and the
/// value has to fit into 64 bits.
fn parse_integer(text: &str) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = match lower.split_at_checked(2) {
        Some(("0x", rest)) => (16, rest),
        Some(("0o", rest)) => (8, rest),
        Some(("0b", rest)) => (2, rest),
        _ => match lower.strip_prefix('0') {
            Some(rest) if !rest.is_empty() => (8, rest),
            _ => (10, lower.as_str()),
        },
    };
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None; // from_str_radix would accept a second sign
    }
    let value = sign * i128::from_str_radix(digits, base).ok()?;
    (i128::from(i64::MIN)..=i128::from(u64::MAX))
        .contains(&value)
        .then_some(value)
}

/// A decimal number as go-yaml accepts it, which excludes `inf` and `1.2.3`.
fn parse_float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let formed = unsigned
        .chars()
        .all(|c| c.is_ascii_digit() || "+-.eE".contains(c));
    if formed && unsigned.contains(|c: char| c.is_ascii_digit()) {
        text.parse().ok().filter(|value: &f64| value.is_finite()) // Go treats an overflow as no number
    } else {
        None
    }
}

/// Go formats a whole float64 below 1e21 without a point, and reads it back as an integer.
fn round_trip_json(value: f64) -> ResolvedScalar {
    let whole = value.fract() == 0.0 && value.abs() < 1e21;
    let integer = whole.then(|| format!("{value:.0}").parse().ok()).flatten();
    integer.map_or(ResolvedScalar::Float(value), ResolvedScalar::Integer)
}

#[cfg(test)]
mod tests {
    use super::ResolvedScalar::{Bool, Float, Integer, Null, String};
    use super::{resolve_json, resolve_yaml};

    #[test]
    fn unquoted_yaml_resolves_as_in_kubernetes() {
        let cases = [
            ("", Null),
            ("~", Null),
            ("null", Null),
            ("y", Bool(true)),
            ("On", Bool(true)),
            ("NO", Bool(false)),
            ("off", Bool(false)),
            ("yEs", String),
            ("nil", String),
            ("0", Integer(0)),
            ("-12", Integer(-12)),
            ("+12", Integer(12)),
            ("010", Integer(8)),
            ("0o10", Integer(8)),
            ("0x1F", Integer(31)),
            ("-0b101", Integer(-5)),
            ("08", Integer(8)),
            ("1_000", Integer(1000)),
            ("10.0", Integer(10)),
            ("1e3", Integer(1000)),
            ("1E+3", Integer(1000)),
            ("5.5", Float(5.5)),
            (".5", Float(0.5)),
            ("5.", Integer(5)),
            ("18446744073709551615", Integer(u64::MAX.into())),
            (".inf", Float(f64::INFINITY)),
            ("1.2.3", String),
            ("10.0.0.1", String),
            ("--1", String),
            ("+-1", String),
            ("-", String),
            (".", String),
            ("1h", String),
            ("1E400", String),
            ("inf", String),
            ("NaN", String),
            ("-inf", String),
            ("2001-01-01", String),
            ("0x", String),
            ("0xG", String),
            ("<<", String),
        ];
        for (text, expected) in cases {
            assert_eq!(resolve_yaml(text), expected, "{text:?}");
        }
    }

    #[test]
    fn unquoted_json_resolves_by_the_rules_of_json() {
        let cases = [
            ("null", Null),
            ("true", Bool(true)),
            ("10", Integer(10)),
            ("-0", Integer(0)),
            ("10.0", Float(10.0)),
            ("1e3", Float(1000.0)),
        ];
        for (text, expected) in cases {
            assert_eq!(resolve_json(text), expected, "{text:?}");
        }
    }
}
