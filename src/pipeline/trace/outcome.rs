//! The outcome of a request, and which responses kube-apiserver counts as requests of a handler.
//! Pure.

use http::StatusCode;

use crate::limits::Rejection;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The client disconnected, or has no response yet.
    NoResponse,
    /// The API server responded.
    Responded(StatusCode),
    /// A limit rejected the request with 429: see `RequestRejection::limit`.
    Rejected(&'static str),
    /// weir rejected the request for another reason.
    Failed(StatusCode),
    /// A defect of weir.
    Panicked,
}

impl RequestOutcome {
    /// The code of the response.
    #[must_use]
    pub(crate) const fn code(self) -> Option<StatusCode> {
        match self {
            Self::NoResponse => None,
            Self::Responded(code) | Self::Failed(code) => Some(code),
            Self::Rejected(_) => Some(StatusCode::TOO_MANY_REQUESTS),
            Self::Panicked => Some(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

/// What is recorded of a rejected request.
#[derive(Clone, Copy, Debug)]
pub(in crate::pipeline) struct RejectionFacts<'a> {
    /// The code of the response.
    pub(in crate::pipeline) code: StatusCode,
    /// The label of the limit that rejects the request.
    pub(in crate::pipeline) limit: Option<&'static str>,
    /// The rejection of an admission limit, which names its flow schema or its rule.
    pub(in crate::pipeline) limit_rejection: Option<&'a Rejection>,
    /// The cause of a 502, 503 or 504 that stands in for the API server's response.
    pub(in crate::pipeline) upstream_failure_cause: Option<&'static str>,
    /// A limit or the request's deadline is the reason.
    pub(in crate::pipeline) is_termination: bool,
    /// The client ended the request, so no response is received.
    pub(in crate::pipeline) is_client_abort: bool,
    /// weir rejects the impersonation.
    pub(in crate::pipeline) is_impersonation: bool,
}

/// Whether kube-apiserver counts the response in `apiserver_request_*`. It does not count what ends
/// before a handler (`InstrumentRouteFunc`) is reached: 401, the authorizer's 403, 404 without a
/// route, 405, 415. An unauthenticated client can cause any number of these, for anything that it
/// makes up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pipeline) enum HandlerReached {
    Yes,
    No,
    /// A 403 whose body starts with these bytes. The authorizer names a user in its own way, which
    /// an admission plugin (quota, PodSecurity) does not.
    UnlessAuthorizerDenied(Vec<u8>),
}

/// How many bytes of a 403's body are inspected: the authorizer's Status has its message there, in
/// any encoding.
const INSPECTED_PREFIX: usize = 1024;

impl HandlerReached {
    /// As far as the code shows.
    pub(in crate::pipeline) fn from_code(code: StatusCode) -> Self {
        match code {
            StatusCode::UNAUTHORIZED
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::UNSUPPORTED_MEDIA_TYPE => Self::No,
            StatusCode::FORBIDDEN => Self::UnlessAuthorizerDenied(Vec::new()),
            _ => Self::Yes,
        }
    }

    /// Inspects a part of the body.
    pub(in crate::pipeline) fn inspect(&mut self, data: &[u8]) {
        if let Self::UnlessAuthorizerDenied(seen) = self {
            let room = INSPECTED_PREFIX.saturating_sub(seen.len());
            seen.extend_from_slice(data.get(..room).unwrap_or(data));
        }
    }

    /// Whether a handler was reached, at the end of the body.
    pub(in crate::pipeline) fn reached(&self) -> bool {
        match self {
            Self::Yes => true,
            Self::No => false,
            // `responsewriters.Forbidden`: `… is forbidden: User "NAME" cannot …`.
            Self::UnlessAuthorizerDenied(seen) => {
                memchr::memmem::find(seen, b" forbidden: User ").is_none()
            }
        }
    }
}
