//! Percent-decoding, on bytes: what is decoded need not be UTF-8. Pure.
//!
//! [`decode`] follows Go's `url.PathUnescape` and `url.QueryUnescape`. It borrows if there is nothing
//! to decode.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

/// The meaning of a `+`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlusMode {
    /// A plus sign, as in a path.
    Literal,
    /// A space, as in a query.
    Space,
}

/// Decodes the percent-escapes of `raw`; `None` if one of them is not `%` and two hexadecimal
/// digits.
pub fn decode(raw: &[u8], plus: PlusMode) -> Option<Cow<'_, [u8]>> {
    let special = match plus {
        PlusMode::Literal => memchr(b'%', raw),
        PlusMode::Space => memchr2(b'%', b'+', raw),
    };
    if special.is_none() {
        return Some(Cow::Borrowed(raw));
    }
    let mut decoded = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter().copied();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => decode_escape(&mut bytes)?,
            b'+' if plus == PlusMode::Space => b' ',
            other => other,
        });
    }
    Some(Cow::Owned(decoded))
}

/// The byte that the two hexadecimal digits after a `%` encode.
pub fn decode_escape(after_percent: &mut impl Iterator<Item = u8>) -> Option<u8> {
    Some(hex_value(after_percent.next()?)? << 4 | hex_value(after_percent.next()?)?)
}

const fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_borrows_what_holds_no_escape() {
        assert!(matches!(
            decode(b"/api/v1/a+b", PlusMode::Literal),
            Some(Cow::Borrowed(_))
        ));
        assert!(matches!(
            decode(b"500", PlusMode::Space),
            Some(Cow::Borrowed(_))
        ));
    }

    #[test]
    fn a_plus_is_a_space_in_queries_only() {
        assert_eq!(decode(b"a+%2B%20", PlusMode::Space).unwrap(), &b"a + "[..]);
        assert_eq!(
            decode(b"a+%2b%20", PlusMode::Literal).unwrap(),
            &b"a++ "[..]
        );
    }

    #[test]
    fn an_escape_needs_two_hexadecimal_digits() {
        for bad in ["%", "%2", "%2g", "a%zz", "%%20", "%+1"] {
            assert_eq!(decode(bad.as_bytes(), PlusMode::Literal), None, "{bad}");
        }
        assert_eq!(
            decode(b"%ff%FE%00", PlusMode::Literal).unwrap(),
            &b"\xff\xfe\0"[..]
        );
    }
}
