//! JSON Web Tokens: parsing, signatures and claims. Pure.
//!
//! Before the signature is verified, a token's contents only select the issuer and the key. Only
//! asymmetric signatures are supported ([`KeySet`]). A token whose header has critical extensions
//! (`crit`) is rejected (RFC 7515, 4.1.11).
//!
//! kube-apiserver's library (go-jose) accepts more encodings of a token than its issuer produces:
//! unused bits of a part's last character may have any value and, depending on the version, white
//! space is allowed. It computes the signing input from the decoded parts. All of these encodings
//! are accepted here, too: a client that has the token can produce them, and would be
//! unauthenticated to weir alone.

pub mod authentication_config;
mod claims;
mod issuer;
mod keys;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use base64::{Engine, alphabet};
use serde::Deserialize;
use serde_json::{Map, Value};

pub use claims::{ClaimError, Claims};
pub use issuer::{ClaimMapping, JwtIssuer, RequiredClaim, ServiceAccountValidator, ValidatedUser};
pub use keys::KeySet;

/// The longest token that is parsed or reviewed, in bytes. Kubernetes' own tokens have 1 to 2 KiB.
/// An OIDC token with hundreds of groups has some tens of KiB.
pub const MAX_TOKEN_BYTES: usize = 64 << 10;

/// Go's `base64.RawURLEncoding`: without padding, and unused bits of the last character may have
/// any value.
pub const BASE64_RAW_URL: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// A parsed token whose signature is not verified.
#[derive(Debug)]
pub struct Jwt<'t> {
    header: JoseHeader,
    claims: Map<String, Value>,
    /// The bytes that were signed.
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
    /// Parses a token. `None` if it is not a JWT.
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
        let signing_input = token.get(..header.len() + 1 + claims.len())?;
        let (header, header_canonical) = decode_part(header)?;
        let (claims, claims_canonical) = decode_part(claims)?;
        let signing_input = if header_canonical && claims_canonical {
            Cow::Borrowed(signing_input)
        } else {
            let encode = |part: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(part);
            Cow::Owned(format!("{}.{}", encode(&header), encode(&claims)).into_bytes())
        };
        let (signature, _) = decode_part(signature)?;
        let header: JoseHeader = serde_json::from_slice(&header).ok()?;
        Some(Self {
            claims: serde_json::from_slice(&claims).ok()?,
            signing_input,
            signature,
            header: JoseHeader {
                kid: header.kid.filter(|kid| !kid.is_empty()),
                ..header
            },
        })
    }

    /// The unverified `iss` claim. Trustworthy only after [`Jwt::verify_signature`].
    #[must_use]
    pub fn issuer(&self) -> Option<&str> {
        self.claims.get("iss")?.as_str()
    }

    /// The unverified id of the key that signed the token.
    #[must_use]
    pub fn key_id(&self) -> Option<&str> {
        self.header.kid.as_deref()
    }

    /// The unverified `exp` claim, in seconds since the epoch. It may shorten the time for which a
    /// result is cached, never lengthen it.
    #[must_use]
    pub fn expiry(&self) -> Option<f64> {
        self.claims.get("exp")?.as_f64()
    }

    /// The claims, if one of `keys` signed them.
    #[must_use]
    pub fn verify_signature(&self, keys: &KeySet) -> Option<Claims<'_>> {
        let signed = self.header.crit.is_none()
            && keys.verify(
                self.key_id(),
                &self.header.alg,
                &self.signing_input,
                &self.signature,
            );
        signed.then_some(Claims::new(&self.claims))
    }
}

/// Decodes a part of a token. The flag is false if its encoding is not the canonical one.
fn decode_part(part: &[u8]) -> Option<(Vec<u8>, bool)> {
    if let Ok(decoded) = BASE64_URL_SAFE_NO_PAD.decode(part) {
        return Some((decoded, true));
    }
    let text = str::from_utf8(part).ok()?;
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let decoded = BASE64_RAW_URL.decode(text).ok()?;
    Some((decoded, false))
}
