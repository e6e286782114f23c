//! Paths and quoting as in Go's `net/url` and `strconv`.
//!
//! Everything works on bytes: a path or a query need not be UTF-8. Encoding is for error messages
//! only and allocates.

use std::borrow::Cow;

/// The path as `URL.EscapedPath` prints it: as received, unless it contains a byte that Go would
/// have escaped. In that case the whole of `decoded` is escaped again.
pub(super) fn escaped_path<'p>(raw: &'p [u8], decoded: &[u8]) -> Cow<'p, [u8]> {
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

/// `text` in double quotes, as `%q` prints a string.
pub(super) fn quote(text: &[u8]) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => quoted.extend(['\\', c]),
                // Go has short names for some of these, but a target that contains one is rejected
                // before it is quoted.
                c if c.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
                c if is_printable(c) => quoted.push(c),
                c if u32::from(c) < 0x1_0000 => {
                    quoted.push_str(&format!("\\u{:04x}", u32::from(c)))
                }
                c => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
            }
        }
        for byte in chunk.invalid() {
            quoted.push_str(&format!("\\x{byte:02x}"));
        }
    }
    quoted.push('"');
    quoted
}

/// `unicode.IsPrint`: letters, marks, numbers, punctuation, symbols and the ASCII space. The
/// standard library has the same table behind `escape_debug`, though of a later Unicode version; a
/// preceding letter keeps it from escaping marks.
fn is_printable(c: char) -> bool {
    c.is_ascii() || String::from_iter(['a', c]).escape_debug().count() == 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percent;
    use crate::percent::PlusMode;

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

    #[test]
    fn quoting_escapes_characters_that_go_does_not_print() {
        let cases: [(&[u8], &str); 7] = [
            (b"/a?b=\"\\'<&", r#""/a?b=\"\\'<&""#),
            (
                "/\u{e9}\u{301}\u{4e16}".as_bytes(),
                "\"/\u{e9}\u{301}\u{4e16}\"",
            ),
            (
                "\u{200b}\u{feff}\u{a0}".as_bytes(),
                r#""\u200b\ufeff\u00a0""#,
            ),
            ("\u{e0001}\u{1f600}".as_bytes(), "\"\\U000e0001\u{1f600}\""),
            ("\u{85}\u{fffd}".as_bytes(), "\"\\u0085\u{fffd}\""),
            (b"\xff\xe2\x82x", r#""\xff\xe2\x82x""#),
            (b"\x01\x7f", r#""\x01\x7f""#),
        ];
        for (text, quoted) in cases {
            assert_eq!(quote(text), quoted);
        }
    }
}
