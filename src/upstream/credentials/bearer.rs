//! The `Authorization` header for a bearer token. Pure.
//!
//! Promises: it is marked sensitive, so that neither a `Debug` nor HTTP/2's header compression keeps it, and a token that
//! cannot be sent is not quoted.

use std::fmt;

use http::HeaderValue;

/// A token that cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnspeakableToken;

impl fmt::Display for UnspeakableToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token with characters that no HTTP header can have")
    }
}

impl std::error::Error for UnspeakableToken {}

/// The header's value.
///
/// # Errors
/// The token cannot stand in a header.
pub fn bearer(token: &str) -> Result<HeaderValue, UnspeakableToken> {
    let mut value =
        HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| UnspeakableToken)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_sent_as_it_is_and_not_shown() {
        let value = bearer("abc.def").unwrap();
        assert_eq!(value, "Bearer abc.def");
        assert_eq!(format!("{value:?}"), "Sensitive");
        assert_eq!(bearer("abc\ndef"), Err(UnspeakableToken));
    }
}
