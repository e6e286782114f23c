//! The texts that Kubernetes accepts as a time: `time.Parse` (Go 1.27) with the layouts of
//! `metav1.Time` and `metav1.MicroTime`.
//!
//! Go accepts slightly more than RFC 3339: an hour of one digit, a comma before the fraction,
//! offsets of 24 hours or 60 minutes. The value of the time is not computed.

/// Whether `text` is a `metav1.Time`, with or without a fraction of the second.
#[must_use]
pub fn is_time(text: &[u8]) -> bool {
    strip_date_time(text)
        .map(|rest| match rest {
            [b'.' | b',', b'0'..=b'9', rest @ ..] => skip_digits(rest),
            rest => rest,
        })
        .is_some_and(is_zone)
}

/// Whether `text` is a `metav1.MicroTime`: exactly six digits for the fraction of the second, the
/// first of which may be a sign.
#[must_use]
pub fn is_micro_time(text: &[u8]) -> bool {
    let Some((fraction, zone)) =
        strip_date_time(text).and_then(|rest| rest.split_first_chunk::<7>())
    else {
        return false;
    };
    let digits = |digits: &[u8]| digits.iter().all(u8::is_ascii_digit);
    let well = match fraction {
        [b'.' | b',', b'-', rest @ ..] => rest == b"00000",
        [b'.' | b',', b'+', rest @ ..] => digits(rest),
        [b'.' | b',', rest @ ..] => digits(rest),
        [_, _, _, _, _, _, _] => false,
    };
    well && is_zone(zone)
}

/// The text after the seconds.
fn strip_date_time(text: &[u8]) -> Option<&[u8]> {
    let (century, rest) = split_two_digits(text)?;
    let (year, rest) = split_two_digits(rest)?;
    let (month, rest) = split_two_digits(rest.strip_prefix(b"-")?)?;
    let (day, rest) = split_two_digits(rest.strip_prefix(b"-")?)?;
    let rest = rest.strip_prefix(b"T")?;
    let (hour, rest) = match split_two_digits(rest) {
        Some(both) => both,
        None => {
            let (digit, rest) = rest.split_first()?;
            (digit.is_ascii_digit().then(|| digit - b'0')?, rest)
        }
    };
    let (minute, rest) = split_two_digits(rest.strip_prefix(b":")?)?;
    let (second, rest) = split_two_digits(rest.strip_prefix(b":")?)?;
    let leap = year % 4 == 0 && (year != 0 || century % 4 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return None,
    };
    let is_valid = (1..=days).contains(&day) && hour < 24 && minute < 60 && second < 60;
    is_valid.then_some(rest)
}

fn is_zone(text: &[u8]) -> bool {
    let offset = |rest| {
        let (hours, rest) = split_two_digits(rest)?;
        let (minutes, rest) = split_two_digits(rest)?;
        Some(hours <= 24 && minutes <= 60 && rest.is_empty())
    };
    match text {
        b"Z" => true,
        [b'+' | b'-', a, b, b':', c, d] => offset(&[*a, *b, *c, *d]).unwrap_or_default(),
        _ => false,
    }
}

fn split_two_digits(text: &[u8]) -> Option<(u8, &[u8])> {
    match text {
        [a @ b'0'..=b'9', b @ b'0'..=b'9', rest @ ..] => Some(((a - b'0') * 10 + b - b'0', rest)),
        _ => None,
    }
}

fn skip_digits(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| !byte.is_ascii_digit());
    text.get(end.unwrap_or(text.len())..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected results are Go's, for either layout.
    #[test]
    fn times_are_accepted_as_in_go() {
        for (text, time, micro) in [
            ("2024-02-03T04:05:06Z", true, false),
            ("2024-02-03T4:05:06Z", true, false),
            ("2024-02-03T04:05:06,5Z", true, false),
            ("2024-02-03T04:05:06.123456Z", true, true),
            ("2024-02-03T4:05:06,123456+01:00", true, true),
            ("2024-02-03T04:05:06.+12345Z", false, true),
            ("2024-02-03T04:05:06.-00000Z", false, true),
            ("2024-02-03T04:05:06.-12345Z", false, false),
            ("2024-02-03T04:05:06.1234567Z", true, false),
            ("2024-01-01T00:00:00.1234567890123456789Z", true, false),
            ("0000-02-29T00:00:00-07:00", true, false),
            ("2024-02-29T04:05:06+24:60", true, false),
            ("2000-02-29T00:00:00.000000Z", true, true),
            ("1900-02-29T00:00:00.000000Z", false, false),
            ("2023-02-29T00:00:00.000000Z", false, false),
            ("2024-02-29T04:05:06+25:00", false, false),
            ("2024-02-29T04:05:06+00:61", false, false),
            ("2024-02-03T04:05:06.Z", false, false),
            ("2024-02-03T04:05:06 Z", false, false),
            ("2024-02-03t04:05:06Z", false, false),
            ("2024-02-03T04:05:06z", false, false),
            ("2024-02-03T04:05:60Z", false, false),
            ("2024-02-03T04:60:00Z", false, false),
            ("2024-02-03T24:00:00Z", false, false),
            ("2024-13-01T00:00:00Z", false, false),
            ("2024-00-01T00:00:00Z", false, false),
            ("2024-04-31T00:00:00Z", false, false),
            ("2024-01-00T00:00:00Z", false, false),
            ("2024-01-01T00:00:00-07:00x", false, false),
            ("2024-01-01T00:00:00.123456-0700", false, false),
            ("2024-01-01", false, false),
            ("yesterday", false, false),
            ("", false, false),
        ] {
            assert_eq!(is_time(text.as_bytes()), time, "{text}");
            assert_eq!(is_micro_time(text.as_bytes()), micro, "{text}");
        }
    }
}
