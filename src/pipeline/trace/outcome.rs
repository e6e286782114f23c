//! The outcome of a request, and which responses kube-apiserver counts as requests of a handler.
//! Pure.

use http::{HeaderMap, StatusCode, header};

use crate::limits::Rejection;
use weir_kubernetes::request_info::{RequestInfo, Verb, is_built_in_group};

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
pub(crate) struct RejectionFacts<'a> {
    /// The code of the response.
    pub(crate) code: StatusCode,
    /// The label of the limit that rejects the request.
    pub(crate) limit: Option<&'static str>,
    /// The rejection of an admission limit, which names its flow schema or its rule.
    pub(crate) limit_rejection: Option<&'a Rejection>,
    /// The cause of a 502, 503 or 504 that stands in for the API server's response.
    pub(crate) upstream_failure_cause: Option<&'static str>,
    /// A limit or the request's deadline is the reason.
    pub(crate) is_termination: bool,
    /// The client ended the request, so no response is received.
    pub(crate) is_client_abort: bool,
    /// The response stands in for one of kube-apiserver's filters, which it does not count.
    pub(crate) is_filter_response: bool,
}

/// Whether kube-apiserver counts the response in `apiserver_request_*`. It counts where a handler
/// ends (`InstrumentRouteFunc`, `InstrumentHandlerFunc`) and where a limit drops a request
/// (`RecordDroppedRequest`), and nothing that ends in another filter or in the choice of a route.
/// An unauthenticated client can cause any number of these, for anything that it makes up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HandlerReached {
    Yes,
    No,
    /// Unless the body, which begins with these bytes, is a filter's ([`FILTER_TEXTS`]).
    UnlessFilterText(Vec<u8>),
}

/// How many bytes of a body are inspected: a Status has its message there, in any encoding.
const INSPECTED_PREFIX: usize = 1024;

/// Part of the message by which a filter's response is recognized.
const FILTER_TEXTS: [(StatusCode, &[u8]); 7] = [
    // `withRequestDeadline`
    (
        StatusCode::BAD_REQUEST,
        b"invalid timeout specified in the request URL",
    ),
    // `impersonation.buildImpersonationRequests`
    (
        StatusCode::BAD_REQUEST,
        b" without impersonating a user name",
    ),
    // `Unauthorized`; the 401 of a server behind a Pod, a Service or a node has another body.
    (StatusCode::UNAUTHORIZED, br#""reason":"Unauthorized""#),
    // `responsewriters.Forbidden`: `… is forbidden: User "NAME" cannot …`. The authorizer names a
    // user in its own way, which an admission plugin (quota, PodSecurity) does not.
    (StatusCode::FORBIDDEN, b" forbidden: User "),
    // `withRetryAfter`
    (
        StatusCode::TOO_MANY_REQUESTS,
        b"The apiserver is shutting down",
    ),
    // `withWaitGroup`
    (
        StatusCode::SERVICE_UNAVAILABLE,
        b"apiserver is shutting down",
    ),
    // `routes.Handler` before all paths are installed
    (
        StatusCode::SERVICE_UNAVAILABLE,
        b"before all known HTTP paths have been installed",
    ),
];

impl HandlerReached {
    /// Of a response of the API server, as far as its head shows. `has_handler` says whether the
    /// path of a non-resource request has a handler that counts.
    pub(crate) fn of_response(
        info: &RequestInfo<'_>,
        has_handler: bool,
        code: StatusCode,
        headers: &HeaderMap,
    ) -> Self {
        let inspected = || {
            let has_texts = FILTER_TEXTS.iter().any(|(of, _)| *of == code);
            if has_texts {
                Self::UnlessFilterText(Vec::new())
            } else {
                Self::Yes
            }
        };
        match code {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::FORBIDDEN => inspected(),
            // What the server behind a connection answers has come through a handler, whatever it is.
            _ if connects(info) => inspected(),
            StatusCode::UNAUTHORIZED => Self::No,
            _ if !info.is_resource_request() => {
                if has_handler {
                    inspected()
                } else {
                    Self::No
                }
            }
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_ACCEPTABLE => Self::No,
            // Handlers answer with a Status. The time-out filter writes one without a type, and the
            // handler below it counts its end.
            StatusCode::GATEWAY_TIMEOUT => Self::Yes,
            _ if is_plain_error(code, headers) => Self::No,
            _ => inspected(),
        }
    }

    /// Of weir's own response. Its 401 and 403 are a filter's in any case.
    pub(crate) const fn of_rejection(rejection: &RejectionFacts<'_>) -> Self {
        if rejection.is_filter_response {
            Self::No
        } else {
            Self::Yes
        }
    }

    /// Inspects a part of the body.
    pub(crate) fn inspect(&mut self, data: &[u8]) {
        if let Self::UnlessFilterText(seen) = self {
            let room = INSPECTED_PREFIX.saturating_sub(seen.len());
            seen.extend_from_slice(data.get(..room).unwrap_or(data));
        }
    }

    /// Whether a handler was reached, at the end of the body of a response with this code.
    pub(crate) fn reached(&self, code: StatusCode) -> bool {
        match self {
            Self::Yes => true,
            Self::No => false,
            Self::UnlessFilterText(seen) => !FILTER_TEXTS
                .iter()
                .any(|(of, text)| *of == code && memchr::memmem::find(seen, text).is_some()),
        }
    }
}

/// Whether it leads to a server behind the API server: exec, port-forward, logs, proxied apps.
fn connects(info: &RequestInfo<'_>) -> bool {
    info.is_resource_request() && info.long_running() && *info.verb() != Verb::Watch
}

/// Whether the API server's own priority and fairness or max-in-flight has rejected the request, in
/// plain text (`tooManyRequests`). What a disruption budget or an admission plugin rejects is a Status.
///
/// Neither limits what leads to another server, so that a 429 there is that server's. An API group
/// that is not built in may be an aggregated API server's, whose own limits look alike.
pub(crate) fn is_limit_rejection(
    info: &RequestInfo<'_>,
    code: StatusCode,
    headers: &HeaderMap,
) -> bool {
    code == StatusCode::TOO_MANY_REQUESTS
        && is_plain_error(code, headers)
        && !connects(info)
        && info.is_resource_request()
        && is_built_in_group(info.api_group())
}

/// Whether it is an error in plain text: of a filter, of no route, of a panic, or of the aggregator.
fn is_plain_error(code: StatusCode, headers: &HeaderMap) -> bool {
    let is_plain = headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|content_type| content_type.as_bytes().starts_with(b"text/plain"));
    is_plain && (code.is_client_error() || code.is_server_error())
}
