//! The grammar of field selectors, as far as a request's name depends on it.
//!
//! Follows `fields.ParseSelector` and `RequiresExactMatch` (Kubernetes 1.36,
//! `apimachinery/pkg/fields`): terms between unescaped commas, each `field OPERATOR value`. Spaces
//! are significant. Whether a field exists is not checked.

use std::borrow::Cow;

use crate::request_info::path::ByteSpan;

/// kube-apiserver would not accept the selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidFieldSelector;

/// The value that `selector` requires of `field`, still escaped, if it requires one.
///
/// If several terms require a value, the one that sorts first, byte by byte, wins.
///
/// # Errors
/// Any term of the selector is malformed.
pub(super) fn exact_match(
    selector: &[u8],
    field: &[u8],
) -> Result<Option<ByteSpan>, InvalidFieldSelector> {
    let mut found: Option<(&[u8], ByteSpan)> = None;
    let mut start = 0;
    while start < selector.len() {
        let term = term_at(selector, start);
        let text = term.slice(selector);
        if !text.is_empty() {
            let (name, exact, value) = split_term(text).ok_or(InvalidFieldSelector)?;
            if !is_valid_value(value) {
                return Err(InvalidFieldSelector);
            }
            if exact && name == field && found.is_none_or(|(first, _)| text < first) {
                found = Some((text, ByteSpan::new(term.end() - value.len(), term.end())));
            }
        }
        start = term.end() + 1;
    }
    Ok(found.map(|(_, value)| value))
}

/// The bytes from `start` to the next unescaped comma.
fn term_at(selector: &[u8], start: usize) -> ByteSpan {
    let mut escaped = false;
    for (at, &byte) in selector.iter().enumerate().skip(start) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => return ByteSpan::new(start, at),
            _ => {}
        }
    }
    ByteSpan::new(start, selector.len())
}

/// A term's field, whether it must equal the value (`=`, `==`) or not (`!=`), and the value.
fn split_term(term: &[u8]) -> Option<(&[u8], bool, &[u8])> {
    for at in 0..term.len() {
        let (field, rest) = term.split_at(at);
        match rest {
            [b'!', b'=', value @ ..] => return Some((field, false, value)),
            [b'=', b'=', value @ ..] | [b'=', value @ ..] => return Some((field, true, value)),
            _ => {}
        }
    }
    None
}

/// Whether a backslash escapes each `=`, `,` and `\`, and nothing else.
fn is_valid_value(value: &[u8]) -> bool {
    let mut bytes = value.iter();
    while let Some(byte) = bytes.next() {
        let fine = match byte {
            b'\\' => matches!(bytes.next(), Some(b'\\' | b',' | b'=')),
            b',' | b'=' => false,
            _ => true,
        };
        if !fine {
            return false;
        }
    }
    true
}

/// Decodes the escapes of a well-formed `value`. If it contains an escape, Go rewrites it rune by
/// rune, and every byte that is not UTF-8 becomes U+FFFD.
pub(crate) fn unescape(value: &[u8]) -> Cow<'_, [u8]> {
    if !value.contains(&b'\\') {
        return Cow::Borrowed(value);
    }
    let mut text = String::with_capacity(value.len());
    for chunk in value.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    let mut unescaped = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        unescaped.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    Cow::Owned(unescaped.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn required_name(selector: &str) -> Result<Option<String>, InvalidFieldSelector> {
        let found = exact_match(selector.as_bytes(), b"metadata.name")?;
        let value = found.map(|span| unescape(span.slice(selector.as_bytes())));
        Ok(value.map(|value| String::from_utf8(value.into_owned()).unwrap()))
    }

    #[test]
    fn a_name_is_required_by_one_or_two_equals_signs() {
        let cases = [
            ("", None),
            (",,", None),
            ("metadata.name=a", Some("a")),
            ("metadata.name==a", Some("a")),
            ("metadata.name=", Some("")),
            ("metadata.name!=a", None),
            ("metadata.name =a", None),
            ("metadata.name= a", Some(" a")),
            ("=a", None),
            ("spec.nodeName=n,metadata.name=a,", Some("a")),
            ("x=1!", None),
            ("x!=1!,metadata.name=!a!", Some("!a!")),
        ];
        for (selector, demanded) in cases {
            assert_eq!(
                required_name(selector),
                Ok(demanded.map(str::to_owned)),
                "{selector}"
            );
        }
    }

    #[test]
    fn the_term_that_sorts_first_decides_among_several_names() {
        assert_eq!(
            required_name("metadata.name=b,metadata.name=a"),
            Ok(Some("a".to_owned()))
        );
        assert_eq!(
            required_name("metadata.name=a,metadata.name==b"),
            Ok(Some("b".to_owned()))
        );
        assert_eq!(
            required_name("metadata.name=a,metadata.name="),
            Ok(Some(String::new()))
        );
    }

    #[test]
    fn escapes_are_resolved_and_keep_commas_together() {
        assert_eq!(
            required_name(r"metadata.name=a\,b\=c\\d"),
            Ok(Some(r"a,b=c\d".to_owned()))
        );
        assert_eq!(
            required_name(r"x\,y=1,metadata.name=a"),
            Ok(Some("a".to_owned()))
        );
        assert_eq!(
            unescape(b"\xff\\=\xe2\x82"),
            "\u{fffd}=\u{fffd}\u{fffd}".as_bytes()
        );
        assert_eq!(unescape(b"\xff"), &b"\xff"[..]);
    }

    #[test]
    fn one_malformed_term_makes_the_selector_invalid() {
        let faulty = [
            "metadata.name",
            "metadata.name=a,foo",
            "a=b=c",
            "a===b",
            r"a=\",
            r"a=\x",
            r"a=b\",
            r"metadata.name=a,b=\c",
            "!",
            " ",
        ];
        for selector in faulty {
            assert_eq!(
                required_name(selector),
                Err(InvalidFieldSelector),
                "{selector}"
            );
        }
    }
}
