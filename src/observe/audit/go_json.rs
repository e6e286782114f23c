//! JSON in the exact form of Go's `encoding/json`, so that tools that search for bytes find them.
//! Pure.

use std::io;

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// Appends `value` as JSON and a line end.
pub(super) fn append_line(value: &impl Serialize, line: &mut Vec<u8>) {
    // Fails only for map keys that are not strings and for failing writers. Neither occurs here.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut *line, GoFormatter));
    line.push(b'\n');
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped_as_go_escapes_them() {
        let mut line = Vec::new();
        append_line(
            &"a<b>&c \u{2028}\u{2029} \"\\\n\t\u{1}\u{8}\u{7f} \u{e9}",
            &mut line,
        );
        let expected =
            "\"a\\u003cb\\u003e\\u0026c \\u2028\\u2029 \\\"\\\\\\n\\t\\u0001\\b\u{7f} \u{e9}\"\n";
        assert_eq!(String::from_utf8(line).unwrap(), expected);
    }
}
