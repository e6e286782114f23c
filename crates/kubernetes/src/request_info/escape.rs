//! Paths as Go's `net/url` prints them.
//!
//! Everything works on bytes: a path need not be UTF-8. Encoding is for messages and logs only, and
//! allocates.

use std::borrow::Cow;

/// The path as `URL.EscapedPath` prints it: as received, unless it contains a byte that Go would
/// have escaped. In that case the whole of `decoded` is escaped again.
#[must_use]
pub fn escaped_path<'p>(raw: &'p [u8], decoded: &[u8]) -> Cow<'p, [u8]> {
    let accepted = |b: u8| is_unescaped_in_path(b) || b"!'()*[]%".contains(&b);
    if raw.iter().all(|&b| accepted(b)) {
        return Cow::Borrowed(raw);
    }
    let mut escaped = Vec::with_capacity(decoded.len() * 2);
    for &byte in decoded {
        if is_unescaped_in_path(byte) {
            escaped.push(byte);
        } else {
            escaped.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
    Cow::Owned(escaped)
}

const fn is_unescaped_in_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'-' | b'_' | b'.' | b'~')
        || matches!(
            byte,
            b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'@'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::percent;
    use crate::encoding::percent::PlusMode;

    #[test]
    fn a_path_is_printed_as_received_unless_go_would_escape_it() {
        let cases: [(&str, &str); 6] = [
            ("/a%2fb/(x)[1]!", "/a%2fb/(x)[1]!"),
            ("/\u{e9}/(x)", "/%C3%A9/%28x%29"),
            ("/a%2fb#c", "/a/b%23c"),
            ("/a b", "/a%20b"),
            ("/%3f|", "/%3F%7C"),
            ("/a\"<>", "/a%22%3C%3E"),
        ];
        for (raw, escaped) in cases {
            let decoded = percent::decode(raw.as_bytes(), PlusMode::Literal).unwrap();
            assert_eq!(
                escaped_path(raw.as_bytes(), &decoded),
                escaped.as_bytes(),
                "{raw}"
            );
        }
    }
}
