//! Text that no reader takes for more than text: what is not printable is escaped. Pure.
//!
//! Names come from clients. A control character moves a terminal's cursor, U+2028 begins a line in
//! YAML 1.1, U+202E turns the rest of a line around.

use std::borrow::Cow;

/// `unicode.IsPrint`: letters, marks, numbers, punctuation, symbols and the ASCII space. The
/// standard library has the same table behind `escape_debug`, though of a later Unicode version; a
/// preceding letter keeps it from escaping marks.
#[must_use]
pub fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        c if c.is_ascii() => false,
        c => String::from_iter(['a', c]).escape_debug().count() == 2,
    }
}

/// A text for a terminal, a table or a comment, on one line: what is not printable is written as Go's
/// `%q` writes it (`\n`, `\x1b`, `\u2028`, `\U000e0001`). So is a backslash: two names never look alike.
#[must_use]
pub fn escape(text: &str) -> Cow<'_, str> {
    escape_with(text, |c| is_printable(c) && c != '\\', push_go_escape)
}

/// The same for a message, in which names are quoted already: its backslashes stay.
#[must_use]
pub fn escape_message(text: &str) -> Cow<'_, str> {
    escape_with(text, is_printable, push_go_escape)
}

/// A JSON text in which strings have unescaped characters that are not printable. The same value,
/// with these characters escaped. All JSON that weir writes is escaped like this, since people read it
/// in terminals; only the audit log stays as Go writes it, for tools that search for bytes.
#[must_use]
pub fn escape_json(text: &str) -> Cow<'_, str> {
    escape_with(text, is_printable, |escaped, c| match c {
        '\n' => escaped.push(c), // between values: a string has none
        c => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        }
    })
}

/// A JSON text as a YAML scalar in double quotes: YAML has no pairs of surrogates.
#[must_use]
pub(super) fn escape_yaml(text: &str) -> Cow<'_, str> {
    escape_with(text, is_printable, push_unicode_escape)
}

/// Appends the escape of Go's `%q` for a character that is not printable.
pub(super) fn push_go_escape(escaped: &mut String, c: char) {
    match c {
        '\u{7}' => escaped.push_str("\\a"),
        '\u{8}' => escaped.push_str("\\b"),
        '\u{c}' => escaped.push_str("\\f"),
        '\n' => escaped.push_str("\\n"),
        '\r' => escaped.push_str("\\r"),
        '\t' => escaped.push_str("\\t"),
        '\u{b}' => escaped.push_str("\\v"),
        '\\' => escaped.push_str("\\\\"),
        c if c.is_ascii() => escaped.push_str(&format!("\\x{:02x}", u32::from(c))),
        c => push_unicode_escape(escaped, c),
    }
}

fn push_unicode_escape(escaped: &mut String, c: char) {
    let code = u32::from(c);
    if code < 0x1_0000 {
        escaped.push_str(&format!("\\u{code:04x}"));
    } else {
        escaped.push_str(&format!("\\U{code:08x}"));
    }
}

fn escape_with(
    text: &str,
    is_kept: impl Fn(char) -> bool,
    push_escape: impl Fn(&mut String, char),
) -> Cow<'_, str> {
    if text.chars().all(&is_kept) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_kept(c) {
            escaped.push(c);
        } else {
            push_escape(&mut escaped, c);
        }
    }
    Cow::Owned(escaped)
}

/// Names with which a client may try to leave the text that it stands in, for tests of what writes
/// names.
pub const HOSTILE_NAMES: [&str; 31] = [
    "a\nb: c",
    "a\r\nb",
    "a\u{85}---\u{85}b: c",
    "x\u{2028}---\u{2028}{\"kind\":\"ConfigMap\"}\u{2028}---\u{2028}#",
    "x\u{2029}---\u{2029}b",
    "\u{feff}bom",
    "\u{202e}bidi\u{2066}",
    "\u{0}nul\u{1}",
    "\u{1b}[2J\u{1b}]0;title\u{7}",
    "\u{9b}2J",
    "del\u{7f}",
    "\u{fffe}\u{ffff}",
    "\u{e0001}\u{10ffff}\u{fdd0}",
    "\u{1f600} e\u{301} \u{4e16}",
    "nbsp\u{a0}\u{3000}\u{200b}",
    "\"'\\ quotes `",
    "- a: [b, {c}] # d",
    "---",
    "...",
    "=cmd|' /C calc'!A0",
    "<script>alert(1)</script>&amp;",
    "${{ secrets }} {{ .x }} %s %00",
    " ",
    "y",
    "*",
    "",
    "x\\u2028",
    "system:serviceaccount:ci:*",
    "system:serviceaccount:ci:Runner_1",
    "system:serviceaccount:ci:a:b",
    "system:serviceaccount::x",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn text_for_a_terminal_has_one_line_and_no_control_character() {
        for name in HOSTILE_NAMES {
            for escaped in [escape(name), escape_message(name)] {
                assert!(escaped.chars().all(is_printable), "{name:?}: {escaped:?}");
            }
        }
        let escaped: BTreeSet<_> = HOSTILE_NAMES.into_iter().map(escape).collect();
        assert_eq!(escaped.len(), HOSTILE_NAMES.len(), "no two look alike");
        assert_eq!(escape("x\u{2028}"), r"x\u2028");
        assert_eq!(escape(r"x\u2028"), r"x\\u2028");
        assert_eq!(escape_message(r#"no "a\\b""#), r#"no "a\\b""#);
        assert_eq!(
            escape("\u{1b}[2J\u{9b}\n\u{2028}"),
            r"\x1b[2J\u009b\n\u2028"
        );
        assert_eq!(escape("caf\u{e9} \u{1f600}"), "caf\u{e9} \u{1f600}");
    }

    #[test]
    fn json_has_the_same_value_and_only_printable_characters() {
        for name in HOSTILE_NAMES {
            let value = serde_json::json!({ name: [name] });
            for text in [value.to_string(), format!("{value:#}")] {
                let escaped = escape_json(&text);
                let is_plain = |c: char| c == '\n' || is_printable(c);
                assert!(escaped.chars().all(is_plain), "{name:?}: {escaped:?}");
                let read: serde_json::Value = serde_json::from_str(&escaped).unwrap();
                assert_eq!(read, value);
            }
        }
    }
}
