//! Truncation and redaction of texts from clients, for logs and traces. Pure.

use std::borrow::Cow;

use http::HeaderValue;

use crate::encoding::percent;

/// Returns the beginning of a text, at most `max_bytes` long.
pub(super) fn truncate(text: &str, max_bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(max_bytes))
        .unwrap_or(text)
}

/// Returns the beginning of a header as text. Invalid UTF-8 is replaced and does not hide the rest.
pub(super) fn header_to_text(header: &HeaderValue, max_bytes: usize) -> Cow<'_, str> {
    let bytes = header.as_bytes();
    let beginning = bytes.get(..max_bytes).unwrap_or(bytes);
    match String::from_utf8_lossy(beginning) {
        Cow::Borrowed(text) => Cow::Borrowed(text),
        // The replacement character is longer than the byte it replaces.
        Cow::Owned(text) => Cow::Owned(truncate(&text, max_bytes).to_owned()),
    }
}

/// Query parameters whose values are credentials, in lower case. kube-apiserver reads none of them,
/// but a server behind it (an aggregated API, `proxy` of a Pod or a service) may.
const SECRET_PARAMETERS: [&str; 7] = [
    "access_token",
    "auth_token",
    "client_secret",
    "id_token",
    "password",
    "refresh_token",
    "token",
];

/// Written in place of a credential.
const REDACTED: &str = "redacted";

/// Returns a request target with the credentials in its query redacted.
pub(super) fn redact_target(target: &str) -> Cow<'_, str> {
    let Some((path, query)) = target.split_once('?') else {
        return Cow::Borrowed(target);
    };
    match redact_query(query) {
        Cow::Borrowed(_) => Cow::Borrowed(target),
        Cow::Owned(query) => Cow::Owned(format!("{path}?{query}")),
    }
}

/// Returns a query with its credentials redacted. `;` and `?` start a parameter as `&` does, since
/// some servers parse them so.
pub(super) fn redact_query(query: &str) -> Cow<'_, str> {
    let parameters = || query.split_inclusive(['&', ';', '?']);
    if !parameters().any(|parameter| split_secret(parameter).is_some()) {
        return Cow::Borrowed(query);
    }
    let mut redacted = String::with_capacity(query.len());
    for parameter in parameters() {
        match split_secret(parameter) {
            Some((name, end)) => redacted.extend([name, "=", REDACTED, end]),
            None => redacted.push_str(parameter),
        }
    }
    Cow::Owned(redacted)
}

/// Returns the name of a parameter whose value is a credential, and the text after the value.
fn split_secret(parameter: &str) -> Option<(&str, &str)> {
    let (name, value) = parameter.split_once('=')?;
    let (_, end) = value.split_at(value.trim_end_matches(['&', ';', '?']).len());
    let matches = |secret: &str| {
        let decoded =
            PercentDecodedBytes(name.as_bytes()).map(|letter| letter.to_ascii_lowercase());
        decoded.eq(secret.bytes())
    };
    SECRET_PARAMETERS
        .iter()
        .any(|secret| matches(secret))
        .then_some((name, end))
}

/// The bytes of a text, percent-decoded where the encoding is valid.
struct PercentDecodedBytes<'a>(&'a [u8]);

impl Iterator for PercentDecodedBytes<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        let mut after = rest.iter().copied();
        let decoded = (first == b'%').then(|| percent::decode_escape(&mut after));
        let (letter, rest) = match decoded.flatten() {
            Some(letter) => (letter, rest.get(2..)?),
            None => (first, rest),
        };
        self.0 = rest;
        Some(letter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_a_query_are_redacted() {
        for (target, expected) in [
            ("/api?access_token=abc", "/api?access_token=redacted"),
            ("/api?a=1&token=abc&b=2", "/api?a=1&token=redacted&b=2"),
            (
                "/api?TOKEN=a=b;password=&x",
                "/api?TOKEN=redacted;password=redacted&x",
            ),
            ("/api?%74oke%6E=abc", "/api?%74oke%6E=redacted"),
            (
                "/api?next=/x?id_token=abc&refresh_token=d",
                "/api?next=/x?id_token=redacted&refresh_token=redacted",
            ),
            (
                "/api?client_secret=a&auth_token=b&token=%zz",
                "/api?client_secret=redacted&auth_token=redacted&token=redacted",
            ),
            ("/api?token=a&token=b", "/api?token=redacted&token=redacted"),
        ] {
            assert_eq!(redact_target(target), expected);
        }
    }

    #[test]
    fn the_rest_of_a_target_is_unchanged() {
        for target in [
            "/api/v1/pods",
            "/api/v1/pods?limit=5&continue=abc",
            "/api?mytoken=abc&token&tokens=abc&%7token=abc&=token",
            "/token=abc?",
            "/api?",
            "",
        ] {
            assert!(
                matches!(redact_target(target), Cow::Borrowed(expected) if expected == target),
                "{target}"
            );
        }
    }

    #[test]
    fn an_invalid_byte_is_replaced_and_the_text_stays_within_its_limit() {
        let header = |bytes: &[u8]| HeaderValue::from_bytes(bytes).unwrap();
        assert_eq!(header_to_text(&header(b"flood/1.0"), 512), "flood/1.0");
        assert_eq!(
            header_to_text(&header(b"fl\xffod/1.0"), 512),
            "fl\u{fffd}od/1.0"
        );
        assert_eq!(header_to_text(&header("é/1".as_bytes()), 512), "é/1");
        for bytes in [&[b'x'; 1000], &[0xff; 1000]] {
            assert!(header_to_text(&header(bytes), 512).len() <= 512);
        }
    }
}
