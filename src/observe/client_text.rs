//! What clients write, as far as logs and traces repeat it. Pure.

use std::borrow::Cow;

use http::HeaderValue;

/// The beginning of a text, so many bytes at most.
pub(super) fn truncate(text: &str, longest: usize) -> &str {
    text.get(..text.floor_char_boundary(longest))
        .unwrap_or(text)
}

/// The beginning of a header; what is no UTF-8 in it is shown as such, and hides nothing of the rest.
pub(super) fn header_to_text(header: &HeaderValue, longest: usize) -> Cow<'_, str> {
    let all = header.as_bytes();
    let beginning = all.get(..longest).unwrap_or(all);
    match String::from_utf8_lossy(beginning) {
        Cow::Borrowed(text) => Cow::Borrowed(text),
        // What stands for a byte is longer than it.
        Cow::Owned(text) => Cow::Owned(truncate(&text, longest).to_owned()),
    }
}

/// Parameters of a query whose values are credentials, in small letters. kube-apiserver reads none of them; what stands behind it (an
/// aggregated API, `proxy` of a Pod or a service) may.
const SECRET_PARAMETERS: [&str; 7] = [
    "access_token",
    "auth_token",
    "client_secret",
    "id_token",
    "password",
    "refresh_token",
    "token",
];

/// What stands in the place of a credential.
const REDACTED: &str = "redacted";

/// A request's target, without the credentials in its query.
pub(super) fn redact_target(target: &str) -> Cow<'_, str> {
    let Some((path, query)) = target.split_once('?') else {
        return Cow::Borrowed(target);
    };
    match redact_query(query) {
        Cow::Borrowed(_) => Cow::Borrowed(target),
        Cow::Owned(query) => Cow::Owned(format!("{path}?{query}")),
    }
}

/// A query without the credentials in it. `;` and `?` begin a parameter as well as `&` does: whoever reads it may think so.
pub(super) fn redact_query(query: &str) -> Cow<'_, str> {
    let parameters = || query.split_inclusive(['&', ';', '?']);
    if !parameters().any(|parameter| split_secret(parameter).is_some()) {
        return Cow::Borrowed(query);
    }
    let mut shown = String::with_capacity(query.len());
    for parameter in parameters() {
        match split_secret(parameter) {
            Some((name, end)) => shown.extend([name, "=", REDACTED, end]),
            None => shown.push_str(parameter),
        }
    }
    Cow::Owned(shown)
}

/// The name of a parameter whose value is a credential, and what follows the value.
fn split_secret(parameter: &str) -> Option<(&str, &str)> {
    let (name, value) = parameter.split_once('=')?;
    let (_, end) = value.split_at(value.trim_end_matches(['&', ';', '?']).len());
    let is = |secret: &str| {
        let letters =
            PercentDecodedBytes(name.as_bytes()).map(|letter| letter.to_ascii_lowercase());
        letters.eq(secret.bytes())
    };
    SECRET_PARAMETERS
        .iter()
        .any(|secret| is(secret))
        .then_some((name, end))
}

/// The bytes of a text, percent-decoded where they can be.
struct PercentDecodedBytes<'a>(&'a [u8]);

impl Iterator for PercentDecodedBytes<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        let digit = |at: usize| char::from(*rest.get(at)?).to_digit(16);
        let (letter, rest) = match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                let letter = u8::try_from(high * 16 + low).ok()?;
                (letter, rest.get(2..)?)
            }
            _ => (*first, rest),
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
        for (target, shown) in [
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
            assert_eq!(redact_target(target), shown);
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
                matches!(redact_target(target), Cow::Borrowed(shown) if shown == target),
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
