//! The precision of a report.

/// To a millionth: a report says no more than is known.
pub(crate) fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}
