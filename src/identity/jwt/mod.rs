//! JSON Web Tokens: what one says of itself, and whether its issuer has said so. Pure.
//!
//! Nothing in a token counts before its signature was verified, but for which issuer and which key to ask. Signatures are
//! asymmetric ones only ([`KeySet`]); a header that demands what is not known here (`crit`) is refused (RFC 7515, 4.1.11).
//!
//! kube-apiserver's library (go-jose) reads more spellings of a token than its issuer's: with any bits where a part's last character has
//! some to spare, and, by its version, with white space. What was signed it makes of the parts that it has read. All of them are read
//! here, too: a client that has the token can make them, and would count as unknown otherwise.

pub mod authentication_config;
mod issuer;
mod keys;

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Map;
use serde_json::Value;

pub use issuer::ClaimError;
pub use issuer::ClaimMapping;
pub use issuer::JwtIssuer;
pub use issuer::RequiredClaim;
pub use issuer::ServiceAccountValidator;
pub use issuer::ValidatedUser;
pub use keys::KeySet;

use crate::identity::bearer_token::BASE64_RAW_URL;

/// The longest token that is looked into. Kubernetes' own have 1 to 2 KiB, an OIDC token with hundreds of groups some tens.
const MAX_TOKEN_BYTES: usize = 128 << 10;

/// How far a clock that is ahead of weir's may be when it says "not before" or "issued at" (`jwt.DefaultLeeway` of the library
/// that kube-apiserver uses). Expiry has none: an expired token loses its place in the queue, not its answer.
const LEEWAY: f64 = 60.0;

/// A token, taken apart and not yet verified.
#[derive(Debug)]
pub struct Jwt<'t> {
    header: JoseHeader,
    claims: Map<String, Value>,
    /// What was signed.
    signing_input: Cow<'t, [u8]>,
    signature: Vec<u8>,
}

#[derive(Debug, Deserialize)]
struct JoseHeader {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

impl<'t> Jwt<'t> {
    /// Takes a token apart; `None` if it has not the form of one.
    #[must_use]
    pub fn parse(token: &'t [u8]) -> Option<Self> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let mut parts = token.split(|byte| *byte == b'.');
        let (header, claims, signature) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let message = token.get(..header.len() + 1 + claims.len())?;
        let (header, usual) = decode_part(header)?;
        let (claims, also_usual) = decode_part(claims)?;
        let message = if usual && also_usual {
            Cow::Borrowed(message)
        } else {
            let encode = |part: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(part);
            Cow::Owned(format!("{}.{}", encode(&header), encode(&claims)).into_bytes())
        };
        let (signature, _) = decode_part(signature)?;
        let header: JoseHeader = serde_json::from_slice(&header).ok()?;
        Some(Self {
            claims: serde_json::from_slice(&claims).ok()?,
            signing_input: message,
            signature,
            header: JoseHeader {
                kid: header.kid.filter(|kid| !kid.is_empty()),
                ..header
            },
        })
    }

    /// Whom it says that it is from; to be believed after [`Jwt::signed_by`] only.
    #[must_use]
    pub fn issuer(&self) -> Option<&str> {
        self.claims.get("iss")?.as_str()
    }

    /// Which key it says that it was signed with.
    #[must_use]
    pub fn key_id(&self) -> Option<&str> {
        self.header.kid.as_deref()
    }

    /// When it says that it ends, in seconds since the epoch. Unverified, this may shorten what is believed, never lengthen it.
    #[must_use]
    pub fn expiry(&self) -> Option<f64> {
        self.claims.get("exp")?.as_f64()
    }

    /// The claims, if one of `keys` has signed them.
    #[must_use]
    pub fn verify_signature(&self, keys: &KeySet) -> Option<Claims<'_>> {
        let signed = self.header.crit.is_none()
            && keys.verify(
                self.key_id(),
                &self.header.alg,
                &self.signing_input,
                &self.signature,
            );
        signed.then_some(Claims(&self.claims))
    }
}

/// What a part of a token says, and whether it is spelt as it is encoded.
fn decode_part(part: &[u8]) -> Option<(Vec<u8>, bool)> {
    if let Ok(decoded) = BASE64_URL_SAFE_NO_PAD.decode(part) {
        return Some((decoded, true));
    }
    let text = str::from_utf8(part).ok()?;
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let decoded = BASE64_RAW_URL.decode(text).ok()?;
    Some((decoded, false))
}

/// Claims whose issuer has signed them.
#[derive(Clone, Copy, Debug)]
pub struct Claims<'t>(&'t Map<String, Value>);

impl<'t> Claims<'t> {
    /// A claim by its name; `a.b` is a claim of that name, not `b` in `a`.
    fn get(self, name: &str) -> Option<&'t Value> {
        self.0.get(name)
    }

    fn get_str(self, name: &str) -> Option<&'t str> {
        self.get(name)?.as_str().filter(|text| !text.is_empty())
    }

    /// A claim that is a text or a list of texts.
    fn get_strings(self, name: &str) -> Option<Vec<&'t str>> {
        string_list(self.get(name)?)
    }

    /// When it ends, in seconds since the epoch, if it holds at `now`. One without an end does not.
    fn check_validity(self, now: f64) -> Result<f64, ClaimError> {
        let time = |name: &str| match self.get(name) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or(ClaimError::Malformed),
        };
        let expiry = time("exp")?.ok_or(ClaimError::Malformed)?;
        if now >= expiry {
            return Err(ClaimError::Expired);
        }
        for name in ["nbf", "iat"] {
            if time(name)?.is_some_and(|from| from > now + LEEWAY) {
                return Err(ClaimError::NotYetValid);
            }
        }
        Ok(expiry)
    }

    fn has_audience(self, audiences: &[String]) -> bool {
        self.get_strings("aud").is_some_and(|told| {
            told.iter()
                .any(|told| audiences.iter().any(|audience| audience == told))
        })
    }
}

fn string_list(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(text) => Some(vec![text]),
        Value::Array(items) => items.iter().map(Value::as_str).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}
