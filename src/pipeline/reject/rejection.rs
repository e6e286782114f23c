//! Every rejection, with its code and its Status.
//!
//! A rejection is a `metav1.Status` whose first cause names weir and the limit or the fault, so
//! that `kubectl` prints a sentence and a client-side log shows what rejected the request.
//! (kube-apiserver itself sends plain text for too many requests; client-go accepts both.)
//! [`response_cache`](crate::pipeline::reject::response_cache) writes the response, since a
//! rejection must cost next to nothing. A rejected request never reaches the upstream. Nothing here
//! reads the request's body; [`body_drain`](crate::pipeline::reject::body_drain) does.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header, request};

use crate::identity::AuthenticationError;
use crate::identity::impersonation::target::InvalidImpersonation;
use crate::limits::Rejection;
use crate::pipeline::connection::head_budget::HeadBudgetExhausted;
use crate::pipeline::reject::invalid_head::InvalidHead;
use crate::pipeline::reject::limit_status::limit_status;
use crate::pipeline::trace::outcome::RejectionFacts;
use crate::upstream::ForwardError;
use crate::upstream::headers::MAX_HEADER_BYTES;
use crate::upstream::headers::request_head::UnencodableUser;
use crate::upstream::loop_detection::LoopRejection;
use weir_kubernetes::api::Status;
use weir_kubernetes::request_info::{Query, TargetError};
use weir_limits::rate::policies::enforcer::PolicyRejection;
use weir_limits::rejection_hold::HoldPolicy;

/// `Retry-After` of a request that did not reach the API server, in seconds. client-go takes 1 for
/// "retry", and it gives a restarting server a moment.
const RETRY_AFTER_UNSENT: u32 = 1;

/// The limit label of events whose bodies have no room in the budget.
pub(crate) const EVENT_BODIES: &str = "event-bodies";

/// The limit label of long-running requests beyond the share of their user or address.
pub(crate) const LONG_RUNNING_SHARE: &str = "long-running-share";

/// The body of `/readyz` during shutdown, in kube-apiserver's format.
const SHUTTING_DOWN_BODY: &[u8] =
    b"[-]shutdown failed: weir is shutting down\nreadyz check failed\n";

/// The message for a client with a certificate if weir has no means to assert its user.
const NO_FRONT_PROXY_MESSAGE: &str = "weir authenticated you by your client certificate but cannot assert that to the API server: it needs \
     --proxy-client-cert-file and --proxy-client-key-file, signed by the CA of the API server's \
     --requestheader-client-ca-file, or --assert-by=impersonation and the right to impersonate; a bearer token \
     without a client certificate is passed on as it is";

/// Why a request gets no response of the upstream.
#[derive(Clone, Debug)]
pub(crate) enum RequestRejection {
    /// The request cannot be forwarded as it is.
    BadRequest(String),
    /// The request's body cannot be read.
    Body(BodyReadError),
    /// `CONNECT`, which weir does not proxy.
    Connect,
    /// A lever has ended the request while the API server worked on it. Why; may be empty.
    Ended(Arc<str>),
    /// A policy denies the request.
    Denied(PolicyRejection),
    /// The upstream did not respond.
    Forward(ForwardError),
    /// Go's server would respond before any handler.
    InvalidHead(InvalidHead),
    /// A certificate's user may not impersonate, where weir itself asserts users by impersonation.
    Impersonation(ImpersonationError),
    /// The headers are longer than what can be forwarded.
    HeadersTooLong,
    /// The request has passed weir before, or has passed too many proxies.
    Loop(LoopRejection),
    /// Too many heads wait in memory for authentication.
    HeadBudgetExhausted,
    /// `/readyz` on the client's port during shutdown.
    NotReady,
    /// A certificate's user, and no means to assert one.
    NoFrontProxyCertificate,
    /// A defect of weir.
    Panic,
    /// A limit rejects the request.
    Limit(Rejection),
    /// No RequestInfo can be made of the request; the text is upstream's.
    RequestInfo(Bytes),
    /// No response within the request's time.
    Timeout(Duration),
    /// The request's head did not arrive within `--request-header-timeout`.
    HeadTimeout,
    /// The presented credential is invalid.
    Unauthenticated(AuthenticationError),
    /// The user cannot be encoded in headers.
    UnencodableUser(UnencodableUser),
}

/// Why a request's body cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyReadError {
    /// The client disconnected.
    Aborted,
    /// The body is malformed.
    Malformed,
    /// The budget of request bodies, or the part of it that one client address may use, is
    /// exhausted.
    BudgetExhausted,
    /// The body is larger than this, in bytes.
    TooLarge(usize),
    /// The body did not arrive in time.
    TooSlow,
}

/// Why weir rejects an impersonation that it has to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImpersonationError {
    /// The impersonation is forbidden; the text is the API server's.
    Denied(String),
    /// The API server could not be queried.
    Undecided,
    /// The impersonation headers are invalid.
    Invalid(InvalidImpersonation),
}

impl fmt::Display for ImpersonationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(why) => f.write_str(why),
            Self::Undecided => f.write_str(
                "the API server did not review whether you may impersonate (SubjectAccessReview); weir needs that review \
                 with --assert-by=impersonation",
            ),
            Self::Invalid(why) => why.fmt(f),
        }
    }
}

impl From<TargetError<'_>> for RequestRejection {
    fn from(error: TargetError<'_>) -> Self {
        match error {
            TargetError::Malformed(why) => Self::BadRequest(why.to_string()),
            TargetError::Unresolvable(unresolvable) => {
                Self::RequestInfo(unresolvable.body().into())
            }
        }
    }
}

impl From<AuthenticationError> for RequestRejection {
    fn from(error: AuthenticationError) -> Self {
        Self::Unauthenticated(error)
    }
}

impl From<ForwardError> for RequestRejection {
    fn from(error: ForwardError) -> Self {
        Self::Forward(error)
    }
}

impl From<HeadBudgetExhausted> for RequestRejection {
    fn from(_: HeadBudgetExhausted) -> Self {
        Self::HeadBudgetExhausted
    }
}

impl From<LoopRejection> for RequestRejection {
    fn from(why: LoopRejection) -> Self {
        Self::Loop(why)
    }
}

impl From<UnencodableUser> for RequestRejection {
    fn from(error: UnencodableUser) -> Self {
        Self::UnencodableUser(error)
    }
}

impl RequestRejection {
    /// The status code of the response.
    #[must_use]
    pub(crate) fn code(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::Body(BodyReadError::Aborted | BodyReadError::Malformed) => {
                StatusCode::BAD_REQUEST
            }
            Self::Body(BodyReadError::BudgetExhausted) => StatusCode::TOO_MANY_REQUESTS,
            Self::Body(BodyReadError::TooLarge(_)) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Body(BodyReadError::TooSlow) => StatusCode::REQUEST_TIMEOUT,
            Self::Connect => StatusCode::METHOD_NOT_ALLOWED,
            Self::Denied(_) => StatusCode::FORBIDDEN,
            Self::Forward(ForwardError::ShareExceeded(_)) => StatusCode::TOO_MANY_REQUESTS,
            Self::Forward(error) if error.is_unsent() => StatusCode::SERVICE_UNAVAILABLE,
            Self::Forward(_) => StatusCode::BAD_GATEWAY,
            Self::InvalidHead(why) => why.code(),
            Self::HeadTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::HeadersTooLong => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Loop(_) => StatusCode::LOOP_DETECTED,
            // Not 431: the head itself is valid, and client-go retries a 503 with Retry-After.
            Self::HeadBudgetExhausted => StatusCode::SERVICE_UNAVAILABLE,
            Self::NotReady | Self::Panic | Self::RequestInfo(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::Impersonation(ImpersonationError::Denied(_)) => StatusCode::FORBIDDEN,
            Self::Impersonation(ImpersonationError::Undecided) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Impersonation(ImpersonationError::Invalid(_)) => StatusCode::BAD_REQUEST,
            Self::Limit(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Ended(_) | Self::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::NoFrontProxyCertificate | Self::Unauthenticated(_) | Self::UnencodableUser(_) => {
                StatusCode::UNAUTHORIZED
            }
        }
    }

    /// Whether a limit or the request's deadline is the reason: kube-apiserver's "terminations".
    #[must_use]
    pub(crate) const fn is_termination(&self) -> bool {
        self.limit().is_some() || matches!(self, Self::Ended(_) | Self::Timeout(_))
    }

    /// Whether the client ended the request, so that no response is received.
    #[must_use]
    pub(crate) const fn is_client_abort(&self) -> bool {
        matches!(self, Self::Body(BodyReadError::Aborted))
    }

    /// Whether an HTTP/1.1 connection ends with the response, because the start of the next request
    /// is uncertain.
    #[must_use]
    pub(crate) const fn closes_connection(&self) -> bool {
        matches!(self, Self::InvalidHead(_) | Self::HeadTimeout)
    }

    /// The cause of a 502, 503 or 504 that stands in for the API server's missing response.
    #[must_use]
    pub(crate) const fn upstream_failure_cause(&self) -> Option<&'static str> {
        match self {
            Self::Forward(ForwardError::ShareExceeded(_)) => None, // weir's own limit
            Self::Forward(error) => Some(error.label()),
            Self::Timeout(_) => Some("weir/request-timeout"),
            Self::BadRequest(_)
            | Self::Body(_)
            | Self::Connect
            | Self::Ended(_)
            | Self::Denied(_)
            | Self::Impersonation(_)
            | Self::InvalidHead(_)
            | Self::HeadersTooLong
            | Self::Loop(_)
            | Self::NoFrontProxyCertificate
            | Self::HeadBudgetExhausted
            | Self::NotReady
            | Self::Panic
            | Self::Limit(_)
            | Self::RequestInfo(_)
            | Self::HeadTimeout
            | Self::Unauthenticated(_)
            | Self::UnencodableUser(_) => None,
        }
    }

    /// The label of the limit that rejects the request, if one does: see
    /// [`Rejection::limit_label`], the budget of event bodies, and the shares of long-running
    /// requests.
    #[must_use]
    pub(crate) const fn limit(&self) -> Option<&'static str> {
        if let Self::Limit(rejection) = self {
            return Some(rejection.limit_label());
        }
        if matches!(self, Self::Body(BodyReadError::BudgetExhausted)) {
            return Some(EVENT_BODIES);
        }
        if matches!(self, Self::Forward(ForwardError::ShareExceeded(_))) {
            return Some(LONG_RUNNING_SHARE);
        }
        None
    }

    /// Whether the request is rejected for lack of a seat: by priority and fairness or by
    /// max-in-flight.
    #[must_use]
    pub(crate) const fn is_seat_rejection(&self) -> bool {
        matches!(
            self,
            Self::Limit(Rejection::Fairness(_) | Rejection::MaxInFlight(_))
        )
    }

    const fn limit_rejection(&self) -> Option<&Rejection> {
        if let Self::Limit(rejection) = self {
            return Some(rejection);
        }
        None
    }

    /// Whether kube-apiserver would answer before its limits, by a filter that counts nothing.
    const fn is_filter_response(&self) -> bool {
        match self {
            Self::BadRequest(_)
            | Self::Connect
            | Self::Denied(_)
            | Self::HeadTimeout
            | Self::HeadersTooLong
            | Self::Impersonation(_)
            | Self::InvalidHead(_)
            | Self::NoFrontProxyCertificate
            | Self::RequestInfo(_)
            | Self::Unauthenticated(_)
            | Self::UnencodableUser(_) => true,
            Self::Body(_)
            | Self::Ended(_)
            | Self::Forward(_)
            | Self::HeadBudgetExhausted
            | Self::Limit(_)
            | Self::Loop(_)
            | Self::NotReady
            | Self::Panic
            | Self::Timeout(_) => false,
        }
    }

    /// What a trace records of the rejection.
    pub(crate) fn facts(&self) -> RejectionFacts<'_> {
        RejectionFacts {
            code: self.code(),
            limit: self.limit(),
            limit_rejection: self.limit_rejection(),
            upstream_failure_cause: self.upstream_failure_cause(),
            is_termination: self.is_termination(),
            is_client_abort: self.is_client_abort(),
            is_filter_response: self.is_filter_response(),
        }
    }

    /// The seconds of `Retry-After`, if the response has one.
    #[must_use]
    pub(crate) fn retry_after(&self) -> Option<u32> {
        match self {
            Self::Limit(rejection) => rejection
                .sends_retry_after()
                .then(|| rejection.retry_after()),
            Self::Forward(error) => error.is_transient().then_some(RETRY_AFTER_UNSENT),
            Self::Body(BodyReadError::BudgetExhausted)
            | Self::Impersonation(ImpersonationError::Undecided)
            | Self::HeadBudgetExhausted => Some(RETRY_AFTER_UNSENT),
            Self::BadRequest(_)
            | Self::Body(_)
            | Self::Connect
            | Self::Ended(_)
            | Self::Denied(_)
            | Self::Impersonation(_)
            | Self::InvalidHead(_)
            | Self::HeadersTooLong
            | Self::Loop(_)
            | Self::NoFrontProxyCertificate
            | Self::NotReady
            | Self::Panic
            | Self::RequestInfo(_)
            | Self::HeadTimeout
            | Self::Timeout(_)
            | Self::Unauthenticated(_)
            | Self::UnencodableUser(_) => None,
        }
    }

    /// How the rejection is delayed for a client that retries before its `Retry-After` has passed;
    /// `None` without `Retry-After`. The cause of a rejection that is not a limit's may be over at
    /// any moment, so the delay is at most its own `Retry-After`, whatever was sent before.
    #[must_use]
    pub(crate) fn hold_policy(&self) -> Option<HoldPolicy> {
        let seconds = self.retry_after()?;
        Some(if let Self::Limit(rejection) = self {
            rejection.hold_policy()
        } else {
            HoldPolicy::capped_at(Duration::from_secs(seconds.into()))
        })
    }

    /// The Status of a rejection that has one. The other two are plain text, as upstream's.
    ///
    /// # Errors
    /// The text of a rejection without a Status.
    pub(crate) fn status(&self) -> Result<Status, Bytes> {
        let (reason, cause, message) = match self {
            Self::NotReady => return Err(Bytes::from_static(SHUTTING_DOWN_BODY)),
            Self::RequestInfo(text) => return Err(text.clone()),
            Self::BadRequest(why) => ("BadRequest", "weir/bad-request", why.clone()),
            Self::Body(fault) => body_read_error(*fault),
            Self::Panic => (
                "InternalError",
                "weir/panic",
                "weir failed on this request because of a defect; its log has the location"
                    .to_owned(),
            ),
            Self::Connect => (
                "MethodNotAllowed",
                "weir/connect",
                "CONNECT is not supported: use a GET or POST with an Upgrade header".to_owned(),
            ),
            // A retry may find that it was executed.
            Self::Ended(why) => (
                "Timeout",
                "weir/blocked",
                format!("an operator has ended this request (weir ctl): {why}"),
            ),
            Self::Denied(denial) => denied(denial),
            Self::Forward(error) => upstream_failure(error),
            Self::InvalidHead(why) => (why.reason(), "weir/bad-request", why.message()),
            Self::HeadersTooLong => headers_too_long(),
            // client-go turns an unknown 5xx into InternalError and does not retry it without
            // Retry-After.
            Self::Loop(why) => ("InternalError", "weir/loop", why.to_string()),
            Self::HeadBudgetExhausted => head_budget_exhausted(),
            Self::HeadTimeout => head_timeout(),
            Self::NoFrontProxyCertificate => {
                unauthorized("weir/no-front-proxy-certificate", NO_FRONT_PROXY_MESSAGE)
            }
            Self::Impersonation(refused) => impersonation_error(refused),
            Self::Limit(rejection) => return Ok(limit_status(rejection)),
            Self::Timeout(limit) => (
                "Timeout",
                "weir/request-timeout",
                format!(
                    "the API server did not respond within {}s (weir's --request-timeout)",
                    limit.as_secs_f64()
                ),
            ),
            Self::Unauthenticated(AuthenticationError::InvalidCertificate(fault)) => {
                unauthorized("weir/client-certificate", fault)
            }
            Self::UnencodableUser(part) => unauthorized("weir/client-certificate", part),
        };
        Ok(Status {
            code: self.code().as_u16(),
            reason,
            message,
            cause,
            retry_after_seconds: self.retry_after(),
        })
    }
}

/// Reason, cause, and message.
type StatusParts = (&'static str, &'static str, String);

fn denied(denial: &PolicyRejection) -> StatusParts {
    let message = denial.message.clone();
    let message = message
        .unwrap_or_else(|| format!("weir's policy {:?} denies such requests", denial.policy));
    ("Forbidden", "weir/policy", message)
}

fn headers_too_long() -> StatusParts {
    let message = format!("the request's headers are longer than {MAX_HEADER_BYTES} bytes");
    ("BadRequest", "weir/headers", message)
}

fn head_budget_exhausted() -> StatusParts {
    let message = "too many request heads are waiting to be completed or authenticated; please try again later";
    (
        "ServiceUnavailable",
        "weir/request-heads",
        message.to_owned(),
    )
}

fn head_timeout() -> StatusParts {
    let message = "the request's head did not come in time (weir's --request-header-timeout)";
    ("Timeout", "weir/request-header-timeout", message.to_owned())
}

fn unauthorized(cause: &'static str, why: impl fmt::Display) -> StatusParts {
    ("Unauthorized", cause, why.to_string())
}

fn upstream_failure(error: &ForwardError) -> StatusParts {
    let reason = if matches!(error, ForwardError::ShareExceeded(_)) {
        "TooManyRequests"
    } else if error.is_unsent() {
        "ServiceUnavailable"
    } else {
        "BadGateway"
    };
    let message = format!("weir got no response from the API server: {error}");
    (reason, error.label(), message)
}

fn impersonation_error(refused: &ImpersonationError) -> StatusParts {
    let reason = match refused {
        ImpersonationError::Denied(_) => "Forbidden",
        ImpersonationError::Undecided => "ServiceUnavailable",
        ImpersonationError::Invalid(_) => "BadRequest",
    };
    (reason, "weir/impersonation", refused.to_string())
}

/// Reason, cause and message for a body that cannot be read. The message for a body that is too
/// large is upstream's.
fn body_read_error(fault: BodyReadError) -> StatusParts {
    match fault {
        BodyReadError::Aborted => (
            "BadRequest",
            "weir/body",
            "the request's body broke off".to_owned(),
        ),
        BodyReadError::Malformed => (
            "BadRequest",
            "weir/body",
            "the request's body is not framed as HTTP has it".to_owned(),
        ),
        BodyReadError::BudgetExhausted => (
            "TooManyRequests",
            "weir/event-bodies",
            "too many events are being read; please try again later".to_owned(),
        ),
        BodyReadError::TooLarge(limit) => (
            "RequestEntityTooLarge",
            "weir/body",
            format!("Request entity too large: limit is {limit}"),
        ),
        BodyReadError::TooSlow => (
            "Timeout",
            "weir/body",
            "the request's body did not come in time".to_owned(),
        ),
    }
}

/// The media type of Kubernetes' protobuf encoding.
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The encoding of a Status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusEncoding {
    /// JSON.
    Json,
    /// JSON, indented where kube-apiserver indents it.
    PrettyJson,
    /// Kubernetes' protobuf.
    Protobuf,
}

impl StatusEncoding {
    /// The encoding for a request with this head: protobuf if it is accepted and nothing that JSON
    /// would satisfy is.
    #[must_use]
    pub(crate) fn from_request(head: &request::Parts) -> Self {
        if wants_protobuf(head.headers.get(header::ACCEPT)) {
            Self::Protobuf
        } else if wants_indentation(head) {
            Self::PrettyJson
        } else {
            Self::Json
        }
    }
}

/// `negotiation.isPrettyPrint`: on request, and for command line tools and browsers.
fn wants_indentation(head: &request::Parts) -> bool {
    let query = head.uri.query().unwrap_or_default().as_bytes();
    match Query::new(query).first("pretty") {
        Some(pretty) if !pretty.is_empty() => TRUE_TEXTS.contains(&&*pretty),
        Some(_) | None => head.headers.get(header::USER_AGENT).is_some_and(|agent| {
            INDENTED_AGENTS
                .iter()
                .any(|of| agent.as_bytes().starts_with(of))
        }),
    }
}

/// What `strconv.ParseBool` takes for true.
const TRUE_TEXTS: [&[u8]; 6] = [b"1", b"t", b"T", b"TRUE", b"true", b"True"];

/// The user agents that get indented JSON.
const INDENTED_AGENTS: [&[u8]; 3] = [b"curl", b"Wget", b"Mozilla/5.0"];

fn wants_protobuf(accept: Option<&HeaderValue>) -> bool {
    let mut protobuf = false;
    for range in accept
        .map_or(&b""[..], HeaderValue::as_bytes)
        .split(|b| *b == b',')
    {
        let media = range
            .split(|b| *b == b';')
            .next()
            .unwrap_or_default()
            .trim_ascii();
        let is = |name: &[u8]| media.eq_ignore_ascii_case(name);
        if is(b"*/*") || is(b"application/*") || is(b"application/json") {
            return false;
        }
        protobuf |= is(PROTOBUF.as_bytes());
    }
    protobuf
}

#[cfg(test)]
#[path = "rejection_tests.rs"]
mod tests;
