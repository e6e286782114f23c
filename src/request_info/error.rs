//! Why a request cannot be resolved, in upstream's words.
//!
//! Messages are bytes where they repeat what the client sent: a query need not be UTF-8, and Go copies it as it is.

use std::error::Error;
use std::fmt;

use super::RequestInfo;
use super::escape;
use super::go_duration::DurationError;
use super::target::MalformedTarget;

/// The request target says nothing that could be served.
#[derive(Clone, Debug)]
pub enum TargetError<'a> {
    /// Go's server answers 400 `Bad Request`; no handler sees the request.
    Malformed(MalformedTarget),
    /// The RequestInfo filter answers 500.
    Unresolvable(Box<Unresolvable<'a>>),
}

impl fmt::Display for TargetError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(fault) => fault.fmt(f),
            Self::Unresolvable(found) => f.write_str(&String::from_utf8_lossy(&found.message())),
        }
    }
}

impl Error for TargetError<'_> {}

impl From<MalformedTarget> for TargetError<'_> {
    fn from(fault: MalformedTarget) -> Self {
        Self::Malformed(fault)
    }
}

/// A path that ends where its verb would need something to be applied to, such as `/api/v1/watch`.
#[derive(Clone, Debug)]
pub struct Unresolvable<'a> {
    pub(super) info: RequestInfo<'a>,
    pub(super) target: &'a [u8],
    /// The target as a Go `url.URL` prints it.
    pub(super) url: Vec<u8>,
}

impl<'a> Unresolvable<'a> {
    /// What was known until then. Its verb is still the lower-cased method.
    #[must_use]
    pub const fn info(&self) -> &RequestInfo<'a> {
        &self.info
    }

    /// The error of `NewRequestInfo`.
    #[must_use]
    pub fn message(&self) -> Vec<u8> {
        [
            b"unable to determine kind and namespace from url, ",
            self.url.as_slice(),
        ]
        .concat()
    }

    /// The body of the 500, its newline included: what `responsewriters.InternalError` (Kubernetes 1.36) writes, as
    /// `text/plain; charset=utf-8` and with `X-Content-Type-Options: nosniff`.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        let quoted = escape::quote(self.target);
        let front = format!("Internal Server Error: {quoted}: failed to create RequestInfo: ");
        let mut body = Vec::with_capacity(front.len() + self.url.len() + 64);
        for &byte in front.as_bytes().iter().chain(&self.message()) {
            // So that no browser finds HTML in it.
            match byte {
                b'&' => body.extend_from_slice(b"&amp;"),
                b'<' => body.extend_from_slice(b"&lt;"),
                b'>' => body.extend_from_slice(b"&gt;"),
                other => body.push(other),
            }
        }
        body.push(b'\n');
        body
    }
}

/// `?timeout=` is not a duration. kube-apiserver answers 400 with a Status that has this as its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeoutError(pub(super) DurationError);

impl fmt::Display for TimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invalid timeout specified in the request URL - {}",
            self.0
        )
    }
}

impl Error for TimeoutError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}
