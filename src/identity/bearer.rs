//! The bearer token of a request: in `Authorization`, or in a WebSocket's subprotocol. Pure.
//!
//! Read as `bearertoken.Authenticator` and `websocket.ProtocolAuthenticator` (Kubernetes 1.36) read them.

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::header::SEC_WEBSOCKET_PROTOCOL;

/// What begins a WebSocket subprotocol that carries a bearer token
/// (`authentication/request/websocket/protocol.go`, 1.36).
pub const WEBSOCKET_BEARER: &str = "base64url.bearer.authorization.k8s.io.";

/// What a request says besides its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bearer<'a> {
    /// Nothing.
    None,
    /// Some credential whose form weir does not read: another scheme, a subprotocol that is no token.
    Other,
    /// A token.
    Token(Cow<'a, [u8]>),
}

/// The token of a request with `headers`.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Bearer<'_> {
    let authorization = headers.get(AUTHORIZATION);
    if let Some(token) = authorization.and_then(|value| in_authorization(value.as_bytes())) {
        return Bearer::Token(Cow::Borrowed(token));
    }
    let found = in_protocol(headers);
    if found == Bearer::None && authorization.is_some() {
        return Bearer::Other;
    }
    found
}

/// The scheme in any case, the token up to the next space; two spaces are an empty token, which is none.
fn in_authorization(value: &[u8]) -> Option<&[u8]> {
    let mut words = value.trim_ascii().splitn(3, |byte| *byte == b' ');
    let scheme = words.next().unwrap_or_default();
    words
        .next()
        .filter(|token| scheme.eq_ignore_ascii_case(b"bearer") && !token.is_empty())
}

/// One token, beside at least one protocol that is meant.
fn in_protocol(headers: &HeaderMap) -> Bearer<'static> {
    let mut encoded = None;
    let (mut tokens, mut others) = (0, 0);
    for value in headers.get_all(SEC_WEBSOCKET_PROTOCOL) {
        for protocol in value.as_bytes().split(|byte| *byte == b',') {
            match protocol
                .trim_ascii()
                .strip_prefix(WEBSOCKET_BEARER.as_bytes())
            {
                Some(token) => {
                    tokens += 1;
                    encoded = Some(token);
                }
                None => others += 1,
            }
        }
    }
    let Some(encoded) = encoded else {
        return Bearer::None;
    };
    match BASE64_URL_SAFE_NO_PAD.decode(encoded) {
        Ok(token)
            if tokens == 1 && others > 0 && !token.is_empty() && str::from_utf8(&token).is_ok() =>
        {
            Bearer::Token(Cow::Owned(token))
        }
        _ => Bearer::Other,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

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

    fn token(text: &str) -> Bearer<'_> {
        Bearer::Token(Cow::Borrowed(text.as_bytes()))
    }

    #[test]
    fn a_token_is_read_whatever_the_scheme_s_case_and_up_to_a_space() {
        for header in ["Bearer secret", "bearer secret", " BEARER secret trailing"] {
            assert_eq!(bearer(&authorization(header)), token("secret"), "{header}");
        }
        for header in ["Bearer", "Bearer ", "Bearer  secret", "Basic c2VjcmV0", ""] {
            assert_eq!(bearer(&authorization(header)), Bearer::Other, "{header}");
        }
        assert_eq!(bearer(&HeaderMap::new()), Bearer::None);
    }

    #[test]
    fn a_token_in_a_websocket_s_protocol_needs_another_protocol_beside_it() {
        const TOKEN: &str = "base64url.bearer.authorization.k8s.io.c2VjcmV0";
        let beside = "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0";
        assert_eq!(bearer(&protocols(&[beside])), token("secret"));
        assert_eq!(bearer(&protocols(&["v4", TOKEN])), token("secret"));
        for bad in [
            &[TOKEN][..],
            &["v4", TOKEN, TOKEN],
            &["v4", "base64url.bearer.authorization.k8s.io.c2VjcmV0="],
            &["v4", "base64url.bearer.authorization.k8s.io.!!"],
            &["v4", "base64url.bearer.authorization.k8s.io."],
        ] {
            assert_eq!(bearer(&protocols(bad)), Bearer::Other, "{bad:?}");
        }
        assert_eq!(bearer(&protocols(&["v4.channel.k8s.io"])), Bearer::None);
    }

    #[test]
    fn authorization_goes_before_the_protocol() {
        let mut headers = protocols(&["v4, base64url.bearer.authorization.k8s.io.b3RoZXI"]);
        assert_eq!(bearer(&headers), token("other"));
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Basic YTpi"));
        assert_eq!(bearer(&headers), token("other"));
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
        assert_eq!(bearer(&headers), token("secret"));
    }
}
