//! The claims of a token whose signature is verified.

use serde_json::{Map, Value};

/// The leeway for `nbf` and `iat`, in seconds, for issuers whose clocks are ahead of weir's
/// (`jwt.DefaultLeeway` of kube-apiserver's library). `exp` has none: an expired token loses its
/// flow, and the API server still answers the request.
const LEEWAY: f64 = 60.0;

/// Why the claims of a token do not authenticate a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimError {
    /// The token has expired.
    Expired,
    /// A claim is missing or has an invalid value.
    Malformed,
    /// The token is not valid yet.
    NotYetValid,
    /// The token is for another audience.
    WrongAudience,
    /// A required claim does not have the required value, or the user would have a `system:` name
    /// or group.
    Rejected,
}

/// The claims of a token whose signature is verified.
#[derive(Clone, Copy, Debug)]
pub struct Claims<'t>(&'t Map<String, Value>);

impl<'t> Claims<'t> {
    pub(crate) const fn new(claims: &'t Map<String, Value>) -> Self {
        Self(claims)
    }

    /// A top-level claim. The name `a.b` does not mean `b` in `a`.
    pub(crate) fn get(self, name: &str) -> Option<&'t Value> {
        self.0.get(name)
    }

    pub(crate) fn get_str(self, name: &str) -> Option<&'t str> {
        self.get(name)?.as_str().filter(|text| !text.is_empty())
    }

    /// A claim that is a string or a list of strings.
    fn get_strings(self, name: &str) -> Option<Vec<&'t str>> {
        string_list(self.get(name)?)
    }

    /// Checks `exp`, `nbf` and `iat` at `now`. Returns `exp`, which is required, in seconds since
    /// the epoch.
    pub(crate) fn check_validity(self, now: f64) -> Result<f64, ClaimError> {
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

    pub(crate) fn has_audience(self, audiences: &[String]) -> bool {
        self.get_strings("aud").is_some_and(|named| {
            named
                .iter()
                .any(|named| audiences.iter().any(|audience| audience == named))
        })
    }
}

pub(crate) fn string_list(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(text) => Some(vec![text]),
        Value::Array(items) => items.iter().map(Value::as_str).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}
