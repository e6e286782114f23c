//! The `Authorization` header for a bearer token. Pure.
//!
//! Promises: the value is marked sensitive, so that neither `Debug` nor HTTP/2's header compression
//! keeps it. A token that cannot be sent is not quoted.

use http::HeaderValue;

/// A token that a header cannot contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token with characters that no HTTP header can have")]
pub struct UnencodableToken;

/// The header value for `token`.
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

    #[test]
    fn a_token_is_sent_unchanged_and_hidden_from_debug() {
        let value = bearer_header("abc.def").unwrap();
        assert_eq!(value, "Bearer abc.def");
        assert_eq!(format!("{value:?}"), "Sensitive");
        assert_eq!(bearer_header("abc\ndef"), Err(UnencodableToken));
    }
}
