//! Bearer tokens in headers: extracts that of a request, from `Authorization` or from a WebSocket
//! subprotocol, and makes the `Authorization` header of a token that weir has. Pure.
//!
//! Tokens are read like `bearertoken.Authenticator` and `websocket.ProtocolAuthenticator`
//! (Kubernetes 1.36) read them, including what Go's library trims and tolerates. Otherwise a client
//! could escape the limits with a spelling that only the API server accepts.
//!
//! A header with a token is marked sensitive, so that neither `Debug` nor HTTP/2's header compression
//! keeps it. A token that cannot be sent is not quoted.

use std::borrow::Cow;

use crate::jwt::BASE64_RAW_URL;
use base64::Engine;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderMap, HeaderValue};

/// The prefix of a WebSocket subprotocol that carries a bearer token
/// (`authentication/request/websocket/protocol.go`, 1.36).
pub const WEBSOCKET_BEARER_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// The credential in a request's headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BearerCredential<'a> {
    /// No credential.
    None,
    /// A credential of an unknown form: another scheme, or a subprotocol that is not a token.
    Unrecognized,
    /// A bearer token.
    Token(Cow<'a, [u8]>),
    /// A token in `Authorization` and another one in a subprotocol. The second counts if the first
    /// is not verified.
    TwoTokens([Cow<'a, [u8]>; 2]),
}

/// A token that a header cannot contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token with characters that no HTTP header can have")]
pub struct UnencodableToken;

/// The credential of a request with `headers` and the protocol of its `Upgrade`. A subprotocol
/// counts only for a WebSocket.
#[must_use]
pub fn bearer_credential<'a>(
    headers: &'a HeaderMap,
    upgrade: Option<&HeaderValue>,
) -> BearerCredential<'a> {
    let authorization = headers.get(AUTHORIZATION);
    let first = authorization.and_then(|value| authorization_token(value.as_bytes()));
    let second = match upgrade {
        Some(protocol) if is_websocket(protocol) => subprotocol_token(headers),
        Some(_) | None => BearerCredential::None,
    };
    match (first.map(Cow::Borrowed), second) {
        (Some(first), BearerCredential::Token(second)) => {
            BearerCredential::TwoTokens([first, second])
        }
        (Some(first), _) => BearerCredential::Token(first),
        (None, BearerCredential::None) if authorization.is_some() => BearerCredential::Unrecognized,
        (None, second) => second,
    }
}

/// Whether a request with `headers` and the protocol of its `Upgrade` carries a bearer token, good or
/// bad, that the API server reads only with that `Upgrade`.
#[must_use]
pub fn has_websocket_token(headers: &HeaderMap, upgrade: &HeaderValue) -> bool {
    is_websocket(upgrade) && subprotocol_token(headers) != BearerCredential::None
}

/// `wsstream.IsWebSocketRequest`, for a valid upgrade. Go's `strings.EqualFold` folds two letters
/// outside of ASCII to ASCII letters.
fn is_websocket(protocol: &HeaderValue) -> bool {
    let folded = |letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    str::from_utf8(protocol.as_bytes())
        .is_ok_and(|text| text.chars().map(folded).eq("websocket".chars()))
}

/// The scheme in any case, then the token up to the next space. Two spaces are an empty token,
/// which does not count.
fn authorization_token(value: &[u8]) -> Option<&[u8]> {
    let mut words = trim_unicode(value).splitn(3, |byte| *byte == b' ');
    let scheme = words.next().unwrap_or_default();
    words
        .next()
        .filter(|token| scheme.eq_ignore_ascii_case(b"bearer") && !token.is_empty())
}

/// Trims like Go's `strings.TrimSpace`, which includes Unicode white space.
fn trim_unicode(mut value: &[u8]) -> &[u8] {
    // As nearly every value is.
    if let [first, .., last] = value
        && first.is_ascii_graphic()
        && last.is_ascii_graphic()
    {
        return value;
    }
    let space = |bytes: &&[u8]| {
        str::from_utf8(bytes).is_ok_and(|text| {
            let mut letters = text.chars();
            letters.next().is_some_and(char::is_whitespace) && letters.next().is_none()
        })
    };
    // White space has at most three bytes in UTF-8.
    while let Some(found) = (1..=3).find(|n| value.get(..*n).as_ref().is_some_and(space)) {
        value = value.get(found..).unwrap_or_default();
    }
    while let Some(rest) = (1..=3).find_map(|n| {
        let (rest, end) = value.split_at_checked(value.len().checked_sub(n)?)?;
        space(&end).then_some(rest)
    }) {
        value = rest;
    }
    value
}

/// The token of the subprotocols. It has to be the only token, beside at least one other protocol.
fn subprotocol_token(headers: &HeaderMap) -> BearerCredential<'static> {
    let mut encoded = None;
    let (mut tokens, mut others) = (0, 0);
    for value in headers.get_all(SEC_WEBSOCKET_PROTOCOL) {
        for protocol in value.as_bytes().split(|byte| *byte == b',') {
            match trim_unicode(protocol).strip_prefix(WEBSOCKET_BEARER_PREFIX.as_bytes()) {
                Some(token) => {
                    tokens += 1;
                    encoded = Some(token);
                }
                None => others += 1,
            }
        }
    }
    let Some(encoded) = encoded else {
        return BearerCredential::None;
    };
    match BASE64_RAW_URL.decode(encoded) {
        Ok(token)
            if tokens == 1 && others > 0 && !token.is_empty() && str::from_utf8(&token).is_ok() =>
        {
            BearerCredential::Token(Cow::Owned(token))
        }
        _ => BearerCredential::Unrecognized,
    }
}

/// The `Authorization` header for `token`.
///
/// # Errors
/// A header cannot contain the token.
pub fn bearer_header(token: &str) -> Result<HeaderValue, UnencodableToken> {
    let mut value =
        HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| UnencodableToken)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authorization(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))])
    }

    fn protocols(values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(value));
        }
        headers
    }

    fn token(text: &str) -> BearerCredential<'_> {
        BearerCredential::Token(Cow::Borrowed(text.as_bytes()))
    }

    const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

    /// The credential of a request for a WebSocket.
    fn websocket_credential(headers: &HeaderMap) -> BearerCredential<'_> {
        bearer_credential(headers, Some(&WEBSOCKET))
    }

    #[test]
    fn the_scheme_is_case_insensitive_and_the_token_ends_at_a_space() {
        for header in ["Bearer secret", "bearer secret", " BEARER secret trailing"] {
            assert_eq!(
                websocket_credential(&authorization(header)),
                token("secret"),
                "{header}"
            );
        }
        for header in ["Bearer", "Bearer ", "Bearer  secret", "Basic c2VjcmV0", ""] {
            assert_eq!(
                websocket_credential(&authorization(header)),
                BearerCredential::Unrecognized,
                "{header}"
            );
        }
        assert_eq!(
            websocket_credential(&HeaderMap::new()),
            BearerCredential::None
        );
    }

    #[test]
    fn a_token_in_a_websocket_subprotocol_needs_another_subprotocol() {
        const TOKEN: &str = "base64url.bearer.authorization.k8s.io.c2VjcmV0";
        let beside = "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0";
        assert_eq!(websocket_credential(&protocols(&[beside])), token("secret"));
        assert_eq!(
            websocket_credential(&protocols(&["v4", TOKEN])),
            token("secret")
        );
        for bad in [
            &[TOKEN][..],
            &["v4", TOKEN, TOKEN],
            &["v4", "base64url.bearer.authorization.k8s.io.c2VjcmV0="],
            &["v4", "base64url.bearer.authorization.k8s.io.!!"],
            &["v4", "base64url.bearer.authorization.k8s.io."],
        ] {
            assert_eq!(
                websocket_credential(&protocols(bad)),
                BearerCredential::Unrecognized,
                "{bad:?}"
            );
        }
        assert_eq!(
            websocket_credential(&protocols(&["v4.channel.k8s.io"])),
            BearerCredential::None
        );
    }

    #[test]
    fn authorization_precedes_the_subprotocol_which_is_the_fallback() {
        let mut headers = protocols(&["v4, base64url.bearer.authorization.k8s.io.b3RoZXI"]);
        assert_eq!(websocket_credential(&headers), token("other"));
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Basic YTpi"));
        assert_eq!(websocket_credential(&headers), token("other"));
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
        let both = [&b"secret"[..], b"other"].map(Cow::Borrowed);
        assert_eq!(
            websocket_credential(&headers),
            BearerCredential::TwoTokens(both)
        );
        assert_eq!(bearer_credential(&headers, None), token("secret"));
    }

    #[test]
    fn a_subprotocol_is_read_only_for_a_websocket_upgrade() {
        let headers = protocols(&["v4, base64url.bearer.authorization.k8s.io.c2VjcmV0"]);
        for websocket in ["websocket", "WebSocket", "web\u{17f}oc\u{212a}et"] {
            let upgrade = HeaderValue::from_bytes(websocket.as_bytes()).unwrap();
            let found = bearer_credential(&headers, Some(&upgrade));
            assert_eq!(found, token("secret"), "{websocket}");
        }
        for other in ["SPDY/3.1", "websocket, h2c", "websocket2", ""] {
            let upgrade = HeaderValue::from_static(other);
            let found = bearer_credential(&headers, Some(&upgrade));
            assert_eq!(found, BearerCredential::None, "{other}");
        }
        let latin1 = HeaderValue::from_bytes(b"web\xffsocket").unwrap();
        assert_eq!(
            bearer_credential(&headers, Some(&latin1)),
            BearerCredential::None
        );
        assert_eq!(bearer_credential(&headers, None), BearerCredential::None);
    }

    #[test]
    fn unicode_whitespace_around_a_credential_is_trimmed() {
        const SPACE: [char; 8] = [
            '\t', '\u{85}', '\u{a0}', '\u{1680}', '\u{2003}', '\u{2028}', '\u{202f}', '\u{3000}',
        ];
        let found = |text: &str| {
            let value = HeaderValue::from_bytes(text.as_bytes()).unwrap();
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
            websocket_credential(&headers) == token("secret")
        };
        for space in SPACE {
            assert!(found(&format!("{space}Bearer secret")), "{space:?}");
            assert!(found(&format!("Bearer secret{space}")), "{space:?}");
            assert!(
                found(&format!(" {space}{space} Bearer secret {space} ")),
                "{space:?}"
            );
            assert!(!found(&format!("Bearer{space}secret")), "{space:?}");
            let protocol =
                format!("v4,{space}base64url.bearer.authorization.k8s.io.c2VjcmV0{space}");
            let value = HeaderValue::from_bytes(protocol.as_bytes()).unwrap();
            let headers = HeaderMap::from_iter([(SEC_WEBSOCKET_PROTOCOL, value)]);
            assert_eq!(websocket_credential(&headers), token("secret"), "{space:?}");
        }
        for other in ["\u{200b}Bearer secret", "\u{feff}Bearer secret"] {
            assert!(!found(other), "{other:?} is no space in Unicode");
        }
        // Incomplete characters are not white space and stay.
        assert_eq!(trim_unicode(b"\xa0 a\xc2"), b"\xa0 a\xc2");
        assert_eq!(trim_unicode(b"\xc2\xa0\xe3\x80\x80"), b"");
        assert_eq!(trim_unicode(b""), b"");
    }

    #[test]
    fn trailing_bits_of_base64_are_ignored() {
        for spelling in ["c2VjcmV0cw", "c2VjcmV0cx", "c2VjcmV0c_"] {
            let protocol = format!("v4, {WEBSOCKET_BEARER_PREFIX}{spelling}");
            let value = HeaderValue::from_str(&protocol).unwrap();
            let headers = HeaderMap::from_iter([(SEC_WEBSOCKET_PROTOCOL, value)]);
            assert_eq!(
                websocket_credential(&headers),
                token("secrets"),
                "{spelling}"
            );
        }
    }

    #[test]
    fn a_token_is_sent_unchanged_and_hidden_from_debug() {
        let value = bearer_header("abc.def").unwrap();
        assert_eq!(value, "Bearer abc.def");
        assert_eq!(format!("{value:?}"), "Sensitive");
        assert_eq!(bearer_header("abc\ndef"), Err(UnencodableToken));
    }
}
