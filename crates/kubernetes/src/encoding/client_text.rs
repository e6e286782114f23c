//! Truncation and redaction of texts from clients, for logs and traces. Pure.

use std::borrow::Cow;

use crate::encoding::percent;

/// Returns the beginning of a text, at most `max_bytes` long.
pub fn truncate(text: &str, max_bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(max_bytes))
        .unwrap_or(text)
}

/// Returns the beginning of a header as text. Invalid UTF-8 is replaced and does not hide the rest.
pub fn header_to_text(header: &[u8], max_bytes: usize) -> Cow<'_, str> {
    let beginning = header.get(..max_bytes).unwrap_or(header);
    match String::from_utf8_lossy(beginning) {
        Cow::Borrowed(text) => Cow::Borrowed(text),
        // The replacement character is longer than the byte it replaces.
        Cow::Owned(text) => Cow::Owned(truncate(&text, max_bytes).to_owned()),
    }
}

/// Parameters whose values are credentials: letters and digits of their names, in lower case.
/// kube-apiserver reads none of them, but a server behind it (an aggregated API, `proxy` of a Pod or a
/// service) may.
const SECRET_PARAMETERS: [&str; 26] = [
    "accesskey",
    "accesstoken",
    "apikey",
    "apitoken",
    "assertion",
    "auth",
    "authorization",
    "authtoken",
    "bearertoken",
    "clientassertion",
    "clientsecret",
    "code",
    "credential",
    "idtoken",
    "jwt",
    "passwd",
    "password",
    "privatekey",
    "pwd",
    "refreshtoken",
    "secret",
    "secretkey",
    "sessiontoken",
    "sig",
    "signature",
    "token",
];

/// How the parameters of signed addresses begin (`X-Amz-Signature`, `X-Goog-Credential`): what
/// follows is one of [`SECRET_PARAMETERS`] or `securitytoken`.
const SIGNED_PREFIXES: [&str; 3] = ["xamz", "xgoog", "xms"];

/// Written in place of a credential.
const REDACTED: &str = "redacted";

/// Returns a request target with the credentials in its query, and in parameters of its path
/// (`/a;token=b/c`), redacted.
pub fn redact_target(target: &str) -> Cow<'_, str> {
    let Some((path, query)) = target.split_once('?') else {
        return redact(target, TextKind::Path);
    };
    match (redact(path, TextKind::Path), redact_query(query)) {
        (Cow::Borrowed(_), Cow::Borrowed(_)) => Cow::Borrowed(target),
        (path, query) => Cow::Owned(format!("{path}?{query}")),
    }
}

/// Returns a query with its credentials redacted.
pub fn redact_query(query: &str) -> Cow<'_, str> {
    redact(query, TextKind::Query)
}

/// What a text is, which determines where a parameter begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextKind {
    /// `;` begins a parameter, and `/` ends it.
    Path,
    /// `;` and `?` begin a parameter as `&` does, since some servers parse them so.
    Query,
}

impl TextKind {
    const fn ends(self, byte: u8) -> bool {
        match self {
            Self::Path => matches!(byte, b';' | b'/'),
            Self::Query => matches!(byte, b'&' | b';' | b'?'),
        }
    }

    fn begins(self, byte: u8) -> bool {
        self.ends(byte) && byte != b'/'
    }
}

/// Where a parser of parameters is.
enum Place {
    /// In a name that began here.
    Name(usize),
    /// In a value that is no credential, or in no parameter.
    Other,
    /// In a credential. Whether its `=` was percent-encoded: then an encoded separator ends it.
    Secret(bool),
}

/// Separators and `=` count percent-encoded, too: a value may be an address with parameters.
fn redact(text: &str, kind: TextKind) -> Cow<'_, str> {
    let (mut redacted, mut copied) = (String::new(), 0);
    let mut place = match kind {
        TextKind::Path => Place::Other,
        TextKind::Query => Place::Name(0),
    };
    for Letter { byte, at, end } in letters(text) {
        let is_encoded = end - at > 1;
        let in_plain_secret = matches!(place, Place::Secret(false));
        if kind.ends(byte) && !(in_plain_secret && is_encoded) {
            if matches!(place, Place::Secret(_)) {
                copied = at;
            }
            place = if kind.begins(byte) {
                Place::Name(end)
            } else {
                Place::Other
            };
        } else if let (b'=', Place::Name(from)) = (byte, &place) {
            place = if is_secret(text.get(*from..at).unwrap_or_default()) {
                redacted.push_str(text.get(copied..end).unwrap_or_default());
                redacted.push_str(REDACTED);
                copied = text.len();
                Place::Secret(is_encoded)
            } else {
                Place::Other
            };
        }
    }
    if redacted.is_empty() {
        return Cow::Borrowed(text);
    }
    redacted.push_str(text.get(copied..).unwrap_or_default());
    Cow::Owned(redacted)
}

/// Whether the value of a parameter of this name is a credential.
fn is_secret(name: &str) -> bool {
    let plain = letters(name).map(|letter| letter.byte.to_ascii_lowercase());
    let plain = plain.filter(u8::is_ascii_alphanumeric);
    let is = |secret: &str| plain.clone().eq(secret.bytes());
    let is_signed = |prefix: &&str| {
        let starts = plain.clone().take(prefix.len()).eq(prefix.bytes());
        let rest = plain.clone().skip(prefix.len());
        let mut secrets = SECRET_PARAMETERS.iter().chain(["securitytoken"].iter());
        starts && secrets.any(|secret| rest.clone().eq(secret.bytes()))
    };
    SECRET_PARAMETERS.iter().any(|secret| is(secret)) || SIGNED_PREFIXES.iter().any(is_signed)
}

/// A byte of a text, percent-decoded where the encoding is valid, and where it stands.
#[derive(Clone, Copy)]
struct Letter {
    byte: u8,
    at: usize,
    end: usize,
}

fn letters(text: &str) -> impl Iterator<Item = Letter> + Clone {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = *bytes.get(at)?;
        let mut after = bytes.get(at + 1..).unwrap_or_default().iter().copied();
        let decoded = (first == b'%').then(|| percent::decode_escape(&mut after));
        let (byte, length) = match decoded.flatten() {
            Some(byte) => (byte, 3),
            None => (first, 1),
        };
        let letter = Letter {
            byte,
            at,
            end: at + length,
        };
        at += length;
        Some(letter)
    })
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
            (
                "/api?secret=a&apikey=b&api_key=c&code=d&Api-Key=e&pwd=f",
                "/api?secret=redacted&apikey=redacted&api_key=redacted&code=redacted&Api-Key=redacted&pwd=redacted",
            ),
            (
                "/api?X-Amz-Signature=a&X-Amz-Security-Token=b&X-Amz-Date=c",
                "/api?X-Amz-Signature=redacted&X-Amz-Security-Token=redacted&X-Amz-Date=c",
            ),
            (
                "/api/proxy/a;token=b;v=1/c;access_token=d?x=%2Fy",
                "/api/proxy/a;token=redacted;v=1/c;access_token=redacted?x=%2Fy",
            ),
            ("/a%3Btoken%3Db/c", "/a%3Btoken%3Dredacted/c"),
            (
                "/api?next=%2Fx%3Fa%3D1%26token%3Dabc%26b%3D2&token=a%26b%3Dc",
                "/api?next=%2Fx%3Fa%3D1%26token%3Dredacted%26b%3D2&token=redacted",
            ),
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
            "/a;v=1/token=abc;/x;tokens=abc",
            "/api?X-Amz-Date=a&codes=b&decode=c&key=d",
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
        assert_eq!(header_to_text(b"flood/1.0", 512), "flood/1.0");
        assert_eq!(header_to_text(b"fl\xffod/1.0", 512), "fl\u{fffd}od/1.0");
        assert_eq!(header_to_text("é/1".as_bytes(), 512), "é/1");
        for bytes in [&[b'x'; 1000], &[0xff; 1000]] {
            assert!(header_to_text(bytes, 512).len() <= 512);
        }
    }
}
