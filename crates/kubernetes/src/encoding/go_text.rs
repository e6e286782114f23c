//! Text in the exact form of Go: quoted strings (`strconv`), and the strings of `encoding/json`, so
//! that tools that search for bytes find them. Pure.

use std::borrow::Cow;
use std::io;

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

use super::printable::{is_printable, push_go_escape};

/// `text` in double quotes, as `%q` prints a string.
pub fn quote(text: &[u8]) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            push_quoted(&mut quoted, c);
        }
        for byte in chunk.invalid() {
            quoted.push_str(&format!("\\x{byte:02x}"));
        }
    }
    quoted.push('"');
    quoted
}

fn push_quoted(quoted: &mut String, c: char) {
    match c {
        '"' => quoted.push_str("\\\""),
        c if is_printable(c) && c != '\\' => quoted.push(c),
        c => push_go_escape(quoted, c),
    }
}

/// `value` as JSON.
pub fn json(value: &impl Serialize) -> String {
    let mut text = Vec::new();
    append_json(value, &mut text);
    String::from_utf8(text).unwrap_or_default() // JSON is UTF-8
}

/// Appends `value` as JSON.
pub fn append_json(value: &impl Serialize, text: &mut Vec<u8>) {
    // Fails only for map keys that are not strings and for failing writers. Neither occurs here.
    let _ = value.serialize(&mut Serializer::with_formatter(text, GoFormatter));
}

/// Escapes HTML characters and JavaScript's line separators as well.
struct GoFormatter;

impl Formatter for GoFormatter {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            let (plain, special) = rest.split_at(at);
            writer.write_all(plain.as_bytes())?;
            let mut characters = special.chars();
            if let Some(character) = characters.next() {
                write!(writer, "\\u{:04x}", u32::from(character))?;
            }
            rest = characters.as_str();
        }
        writer.write_all(rest.as_bytes())
    }
}

/// Decodes the escapes of a JSON string, which are well-formed. As in Go's decoder, an unpaired
/// surrogate becomes U+FFFD, and so does each byte that is not UTF-8.
pub fn unescape_json(raw: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        let (plain, escape) = rest.split_at(at);
        push_lossy(&mut text, plain);
        let (c, length) = match escape.get(1) {
            Some(b'u') => unescape_unicode(escape),
            Some(other) => (unescape_simple(*other), 2),
            None => (char::REPLACEMENT_CHARACTER, 1),
        };
        push_char(&mut text, c);
        rest = escape.get(length..).unwrap_or_default();
    }
    push_lossy(&mut text, rest);
    text
}

fn unescape_simple(escaped: u8) -> char {
    match escaped {
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        itself => char::from(itself),
    }
}

/// Decodes `\u0000`, or a pair of them, at the beginning of a text. Returns the character and the
/// length of the escape.
fn unescape_unicode(escape: &[u8]) -> (char, usize) {
    let unit = |from: usize| {
        let digits = escape.get(from..from + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let first = unit(0).unwrap_or(0xfffd);
    let pair = [Some(first), unit(6)].into_iter().flatten();
    match char::decode_utf16(pair).next() {
        Some(Ok(c)) if c.len_utf16() == 2 => (c, 12),
        Some(Ok(c)) => (c, 6),
        Some(Err(_)) | None => (char::REPLACEMENT_CHARACTER, 6),
    }
}

/// `text`, in which each byte that is not UTF-8 becomes its own U+FFFD, as in Go.
pub fn replace_invalid_utf8(text: &[u8]) -> Vec<u8> {
    let mut valid = Vec::with_capacity(text.len());
    push_lossy(&mut valid, text);
    valid
}

/// `text` as a string, in which each byte that is not UTF-8 becomes its own U+FFFD, as in Go.
pub fn lossy(text: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(text) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(String::from_utf8(replace_invalid_utf8(text)).unwrap_or_default()),
    }
}

fn push_char(text: &mut Vec<u8>, c: char) {
    text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Appends bytes. Each that is not UTF-8 becomes its own U+FFFD, as in Go.
fn push_lossy(text: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        text.extend_from_slice(chunk.valid().as_bytes());
        for _ in chunk.invalid() {
            push_char(text, char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_escapes_characters_that_go_does_not_print() {
        let cases: [(&[u8], &str); 10] = [
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
            (b"\x07\x08\x0c\n\r\t\x0b", r#""\a\b\f\n\r\t\v""#),
            (
                "a'\"\\\n\u{1}\u{e9}\u{200b}\u{1f600}".as_bytes(),
                "\"a'\\\"\\\\\\n\\x01\u{e9}\\u200b\u{1f600}\"",
            ),
            ("cafe\u{301}".as_bytes(), "\"cafe\u{301}\""),
        ];
        for (text, quoted) in cases {
            assert_eq!(quote(text), quoted);
        }
    }

    #[test]
    fn strings_are_escaped_as_go_escapes_them() {
        let mut line = Vec::new();
        append_json(
            &"a<b>&c \u{2028}\u{2029} \"\\\n\t\u{1}\u{8}\u{7f} \u{e9}",
            &mut line,
        );
        let expected =
            "\"a\\u003cb\\u003e\\u0026c \\u2028\\u2029 \\\"\\\\\\n\\t\\u0001\\b\u{7f} \u{e9}\"";
        assert_eq!(String::from_utf8(line).unwrap(), expected);
        assert_eq!(json(&["a<b", "*"]), "[\"a\\u003cb\",\"*\"]");
    }

    #[test]
    fn escapes_of_json_strings_are_decoded_as_go_decodes_them() {
        let cases: [(&[u8], &str); 6] = [
            (br#"a\\\"\/\b\f\n\r\t"#, "a\\\"/\u{8}\u{c}\n\r\t"),
            (br"\u00e9\ud83d\ude00", "\u{e9}\u{1f600}"),
            (br"\ud83d\n\ude00", "\u{fffd}\n\u{fffd}"),
            (br"\ud83d\u0061", "\u{fffd}a"),
            ("\u{1f600}\\u0000".as_bytes(), "\u{1f600}\0"),
            (b"\xe2\x82\\n\xff", "\u{fffd}\u{fffd}\n\u{fffd}"),
        ];
        for (raw, text) in cases {
            let unescaped = String::from_utf8(unescape_json(raw)).unwrap();
            assert_eq!(unescaped, text);
        }
    }
}
