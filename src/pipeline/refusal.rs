//! Every way of saying no, and how it looks on the wire.
//!
//! A no is a `metav1.Status` that names weir and the limit or the fault in its first cause, so that `kubectl` prints a
//! sentence and a log on the client's side tells who refused. (kube-apiserver itself answers plain text to too many
//! requests; client-go takes both.) The refusals of the limits are written once, when weir starts: saying no must cost next to nothing.
//! A refusal never touches the upstream. It does not look at the request's body; what becomes of that is `refusing`'s.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::HeaderValue;
use http::Response;
use http::StatusCode;
use http::header;

use crate::api::Status;
use crate::flowcontrol::queue_set::Reason;
use crate::identity::Unauthenticated;
use crate::keyed::Key;
use crate::keyed::Secret;
use crate::keyed::SharedByKey;
use crate::limits::Rejection;
use crate::limits::clients::enforce::TooMany;
use crate::limits::events::enforce::TooManyEvents;
use crate::limits::hold::Flow;
use crate::pipeline::body::Body;
use crate::pipeline::impersonation::Refused;
use crate::pipeline::name_decision;
use crate::pipeline::rates::BodyFault;
use crate::pipeline::rates::LARGEST_BODY;
use crate::request_info::RequestKind;
use crate::request_info::TargetError;
use crate::upstream::ForwardError;
use crate::upstream::headers::MOST;
use crate::upstream::headers::Unspeakable;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROTOBUF: HeaderValue = HeaderValue::from_static("application/vnd.kubernetes.protobuf");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache, private");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// Room for those of a refusal, with what decided and what the HTTP library adds.
const HEADERS: usize = 8;

/// After how many seconds a request that did not reach the API server is worth another try: one, which client-go takes
/// for "retry", and which gives a restarting server a moment.
const RETRY_UNSENT: u32 = 1;

/// What refuses events for whose bodies there is no room.
pub const EVENT_BODIES: &str = "event-bodies";

/// What `/readyz` says once weir has been told to go, in the form of kube-apiserver's.
const SHUTTING_DOWN: &[u8] = b"[-]shutdown failed: weir is shutting down\nreadyz check failed\n";

/// What a client with a certificate is told where there is no way to assert its user.
const NO_FRONT_PROXY: &str = "weir knows you by your client certificate but cannot tell the API server so: it needs \
     --proxy-client-cert-file and --proxy-client-key-file, signed by the CA of the API server's \
     --requestheader-client-ca-file, or --assert-by=impersonation and the right to impersonate; a bearer token \
     without a client certificate is passed on as it is";

/// Why a request gets no answer of the upstream's.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// What was sent is no request that could be passed on.
    BadRequest(String),
    /// An event's body, which had to be read, cannot be had.
    Body(BodyFault),
    /// `CONNECT`, which the proxy does not do.
    Connect,
    /// No answer from the upstream.
    Forward(ForwardError),
    /// A certificate's user who may not impersonate, where weir asserts by impersonation itself.
    Impersonation(Refused),
    /// More headers than can go on.
    LongHead,
    /// Told to go: `/readyz` on the client's port.
    NotReady,
    /// A certificate's user, and no way to assert one.
    NoFrontProxy,
    /// A defect of weir's.
    Panic,
    /// A limit's no.
    Rejected {
        /// Which limit's.
        rejection: Rejection,
        /// Who hears it later if he comes back too early; `None` for what is never held back.
        flow: Option<Flow>,
    },
    /// RequestInfo cannot be made of it: upstream's own text.
    RequestInfo(Bytes),
    /// No answer within the request's time.
    Timeout(Duration),
    /// The credential that was presented does not hold.
    Unauthenticated(Unauthenticated),
    /// The user cannot be asserted in headers.
    Unspeakable(Unspeakable),
}

impl From<TargetError<'_>> for Refusal {
    fn from(error: TargetError<'_>) -> Self {
        match error {
            TargetError::Malformed(why) => Self::BadRequest(why.to_string()),
            TargetError::Unresolvable(unresolvable) => {
                Self::RequestInfo(unresolvable.body().into())
            }
        }
    }
}

impl From<Unauthenticated> for Refusal {
    fn from(error: Unauthenticated) -> Self {
        Self::Unauthenticated(error)
    }
}

impl From<ForwardError> for Refusal {
    fn from(error: ForwardError) -> Self {
        Self::Forward(error)
    }
}

impl From<Unspeakable> for Refusal {
    fn from(error: Unspeakable) -> Self {
        Self::Unspeakable(error)
    }
}

impl Refusal {
    /// The status code it is answered with.
    #[must_use]
    pub fn code(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::Body(BodyFault::Broken) => StatusCode::BAD_REQUEST,
            Self::Body(BodyFault::NoRoom) => StatusCode::TOO_MANY_REQUESTS,
            Self::Body(BodyFault::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Body(BodyFault::TooSlow) => StatusCode::REQUEST_TIMEOUT,
            Self::Connect => StatusCode::METHOD_NOT_ALLOWED,
            Self::Forward(error) if error.unsent() => StatusCode::SERVICE_UNAVAILABLE,
            Self::Forward(_) => StatusCode::BAD_GATEWAY,
            Self::LongHead => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::NotReady | Self::Panic | Self::RequestInfo(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::Impersonation(Refused::Denied(_)) => StatusCode::FORBIDDEN,
            Self::Impersonation(Refused::Undecided) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Impersonation(Refused::Unclear(_)) => StatusCode::BAD_REQUEST,
            Self::Rejected { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::NoFrontProxy | Self::Unauthenticated(_) | Self::Unspeakable(_) => {
                StatusCode::UNAUTHORIZED
            }
        }
    }

    /// Whether a limit or the time that a request may take is the reason: kube-apiserver's "terminations".
    #[must_use]
    pub const fn in_self_defense(&self) -> bool {
        self.limit().is_some() || matches!(self, Self::Timeout(_))
    }

    /// The limit whose no it is, in a word: see [`Rejection::limit`], and the room for events' bodies.
    #[must_use]
    pub const fn limit(&self) -> Option<&'static str> {
        if let Self::Rejected { rejection, .. } = self {
            return Some(rejection.limit());
        }
        if matches!(self, Self::Body(BodyFault::NoRoom)) {
            return Some(EVENT_BODIES);
        }
        None
    }

    /// The Status, for what has one; the other two are plain text, as upstream's.
    fn status(&self) -> Result<Status, Bytes> {
        let (reason, cause, message, retry_after_seconds) = match self {
            Self::NotReady => return Err(Bytes::from_static(SHUTTING_DOWN)),
            Self::RequestInfo(text) => return Err(text.clone()),
            Self::BadRequest(why) => ("BadRequest", "weir/bad-request", why.clone(), None),
            Self::Body(fault) => body_fault(*fault),
            Self::Panic => (
                "InternalError",
                "weir/panic",
                "this request met a defect of weir's; its log says where".to_owned(),
                None,
            ),
            Self::Connect => (
                "MethodNotAllowed",
                "weir/connect",
                "CONNECT is not passed on: use a GET or POST that asks for an upgrade".to_owned(),
                None,
            ),
            Self::Forward(error) => unanswered(error),
            Self::LongHead => (
                "BadRequest",
                "weir/headers",
                format!("the request's headers are longer than {MOST} bytes"),
                None,
            ),
            Self::NoFrontProxy => unauthorized("weir/no-front-proxy-certificate", NO_FRONT_PROXY),
            Self::Impersonation(refused) => impersonation(refused),
            Self::Rejected { rejection, .. } => return Ok(rejected(rejection)),
            Self::Timeout(limit) => (
                "Timeout",
                "weir/request-timeout",
                format!(
                    "the API server did not answer within {}s (weir's --request-timeout)",
                    limit.as_secs_f64()
                ),
                None,
            ),
            Self::Unauthenticated(Unauthenticated::BadCertificate(fault)) => {
                unauthorized("weir/client-certificate", fault)
            }
            Self::Unspeakable(part) => unauthorized("weir/client-certificate", part),
        };
        Ok(Status {
            code: self.code().as_u16(),
            reason,
            message,
            cause,
            retry_after_seconds,
        })
    }
}

/// A reason, the cause, a message, and after how many seconds to try again.
type Said = (&'static str, &'static str, String, Option<u32>);

fn unauthorized(cause: &'static str, why: impl fmt::Display) -> Said {
    ("Unauthorized", cause, why.to_string(), None)
}

fn unanswered(error: &ForwardError) -> Said {
    let reason = if error.unsent() {
        "ServiceUnavailable"
    } else {
        "BadGateway"
    };
    let message = format!("weir got no answer from the API server: {error}");
    (
        reason,
        error.label(),
        message,
        error.passes().then_some(RETRY_UNSENT),
    )
}

fn impersonation(refused: &Refused) -> Said {
    let (reason, again) = match refused {
        Refused::Denied(_) => ("Forbidden", None),
        Refused::Undecided => ("ServiceUnavailable", Some(RETRY_UNSENT)),
        Refused::Unclear(_) => ("BadRequest", None),
    };
    (reason, "weir/impersonation", refused.to_string(), again)
}

/// Reason, cause, message and seconds of what cannot be read; of one that is too large upstream's words.
fn body_fault(fault: BodyFault) -> Said {
    match fault {
        BodyFault::Broken => (
            "BadRequest",
            "weir/body",
            "the event's body broke off".to_owned(),
            None,
        ),
        BodyFault::NoRoom => (
            "TooManyRequests",
            "weir/event-bodies",
            "too many events are being read; please try again later".to_owned(),
            Some(RETRY_UNSENT),
        ),
        BodyFault::TooLarge => (
            "RequestEntityTooLarge",
            "weir/body",
            format!("Request entity too large: limit is {LARGEST_BODY}"),
            None,
        ),
        BodyFault::TooSlow => (
            "Timeout",
            "weir/body",
            "the event's body did not come in time".to_owned(),
            None,
        ),
    }
}

/// Of an event as upstream's plugin has it; who leaves Retry-After out gets nothing but that.
fn too_many_events(rejected: &TooManyEvents) -> Status {
    let cause = match rejected.retry_after {
        Some(_) => "weir/event-rate-limit",
        None => "",
    };
    Status {
        code: StatusCode::TOO_MANY_REQUESTS.as_u16(),
        reason: "TooManyRequests",
        message: rejected.message.clone(),
        cause,
        retry_after_seconds: rejected.retry_after,
    }
}

fn rejected(rejection: &Rejection) -> Status {
    let (cause, message) = match rejection {
        Rejection::Events(rejected) => return too_many_events(rejected),
        Rejection::Clients(TooMany { rule, limit, .. }) => {
            let what = limit.name();
            let message = format!(
                "too many requests: rule {rule:?} of weir's clientLimits allows no more ({what}); please try again later"
            );
            ("weir/client-limit", message)
        }
        Rejection::Fairness(rejected) => {
            let (cause, what) = match rejected.reason {
                Reason::ConcurrencyLimit => ("weir/concurrency-limit", "all its seats are taken"),
                Reason::QueueFull => ("weir/queue-full", "its queues are full"),
                Reason::TimeOut => ("weir/time-out", "no seat came free in time"),
            };
            let (schema, level) = (
                &rejected.flow_schema().name,
                &rejected.priority_level().name,
            );
            let reason = rejected.reason.label();
            let message = format!(
                "too many requests: flow schema {schema:?} leads to priority level {level:?}, and {what} ({reason}); please try again later"
            );
            (cause, message)
        }
        Rejection::MaxInFlight { kind, limit } => {
            let (cause, flag, what) = match kind {
                RequestKind::Mutating => (
                    "weir/max-mutating-requests-inflight",
                    "--max-mutating-requests-inflight",
                    "mutating",
                ),
                RequestKind::ReadOnly => (
                    "weir/max-requests-inflight",
                    "--max-requests-inflight",
                    "read-only",
                ),
            };
            let message = format!(
                "too many requests: weir serves at most {limit} {what} requests at a time ({flag}); please try again later"
            );
            (cause, message)
        }
    };
    Status {
        code: StatusCode::TOO_MANY_REQUESTS.as_u16(),
        reason: "TooManyRequests",
        message,
        cause,
        retry_after_seconds: Some(rejection.retry_after()),
    }
}

/// Refusals of the limits, each written once: a few levels, reasons and times make all that there are.
#[derive(Debug, Default)]
pub struct Prepared {
    /// By all that a refusal depends on.
    written: SharedByKey<Wire>,
    secret: Secret,
}

/// Most kinds that are kept, if levels are changed all the time; beyond it they are written anew.
const MOST_KINDS: usize = 4096;

/// A Status as it goes out, in both encodings.
#[derive(Debug)]
struct Wire {
    code: StatusCode,
    json: (HeaderMap, Bytes),
    protobuf: (HeaderMap, Bytes),
}

impl Wire {
    fn of(status: &Status, code: StatusCode) -> Self {
        let whole = |content_type, body: Bytes| {
            let mut headers = usual_headers(content_type);
            if let Some(seconds) = status.retry_after_seconds {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
            (headers, body)
        };
        Self {
            code,
            json: whole(JSON, status.to_json()),
            protobuf: whole(PROTOBUF, status.to_protobuf()),
        }
    }

    /// A limit's no; of fairness, with the names of what decided.
    fn of_rejection(rejection: &Rejection) -> Self {
        let mut wire = Self::of(&rejected(rejection), StatusCode::TOO_MANY_REQUESTS);
        if let Rejection::Fairness(rejected) = rejection {
            for headers in [&mut wire.json.0, &mut wire.protobuf.0] {
                name_decision(headers, rejected.flow_schema(), rejected.priority_level());
            }
        }
        wire
    }

    fn respond(&self, encoding: Encoding) -> Response<Body> {
        let (headers, body) = match encoding {
            Encoding::Json => &self.json,
            Encoding::Protobuf => &self.protobuf,
        };
        answer(self.code, headers.clone(), body.clone())
    }
}

impl Prepared {
    /// The answer to a client who reads this.
    #[must_use]
    pub fn respond(&self, refusal: &Refusal, encoding: Encoding) -> Response<Body> {
        if let Refusal::Rejected { rejection, .. } = refusal {
            return self.rejected(rejection, encoding);
        }
        match refusal.status() {
            Ok(status) => Wire::of(&status, refusal.code()).respond(encoding),
            Err(text) => answer(refusal.code(), usual_headers(PLAIN), text),
        }
    }

    fn rejected(&self, rejection: &Rejection, encoding: Encoding) -> Response<Body> {
        let kind = match rejection {
            // As many texts as keys: written when they are needed.
            Rejection::Clients(_) | Rejection::Events(_) => {
                return Wire::of_rejection(rejection).respond(encoding);
            }
            Rejection::Fairness(rejected) => Key::of(
                &self.secret,
                (
                    rejected.flow_schema(),
                    rejected.priority_level(),
                    rejected.reason,
                    rejected.retry_after,
                ),
            ),
            Rejection::MaxInFlight { kind, limit } => Key::of(&self.secret, (kind, limit)),
        };
        if let Some(wire) = self.written.get(&kind) {
            return wire.respond(encoding);
        }
        let wire = Wire::of_rejection(rejection);
        let response = wire.respond(encoding);
        if self.written.len() < MOST_KINDS {
            self.written.insert(kind, wire);
        }
        response
    }
}

fn usual_headers(content_type: HeaderValue) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(HEADERS);
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::CACHE_CONTROL, NO_CACHE);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    headers
}

fn answer(code: StatusCode, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::fixed(body));
    *response.status_mut() = code;
    *response.headers_mut() = headers;
    response
}

/// How a Status is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// JSON.
    Json,
    /// Kubernetes' protobuf.
    Protobuf,
}

impl Encoding {
    /// By this `Accept`: protobuf where that is allowed and nothing that JSON would satisfy.
    #[must_use]
    pub fn accepted(accept: Option<&HeaderValue>) -> Self {
        if wants_protobuf(accept) {
            Self::Protobuf
        } else {
            Self::Json
        }
    }
}

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
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    const REJECTION: Rejection = Rejection::MaxInFlight {
        kind: RequestKind::ReadOnly,
        limit: 400,
    };

    #[tokio::test]
    async fn a_rejection_names_its_limit_and_is_small() {
        let refusal = Refusal::Rejected {
            rejection: REJECTION,
            flow: None,
        };
        let response = Prepared::default().respond(&refusal, Encoding::Json);
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        assert_eq!(
            response.headers()[header::X_CONTENT_TYPE_OPTIONS],
            "nosniff"
        );
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(
            body.len() < 2048,
            "client-go reads 2 KiB to keep the connection"
        );
        let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            status["details"]["causes"][0]["reason"],
            "weir/max-requests-inflight"
        );
        assert_eq!(status["details"]["retryAfterSeconds"], 1);
    }

    #[test]
    fn protobuf_only_where_nothing_else_is_accepted() {
        for (accept, expected) in [
            ("application/vnd.kubernetes.protobuf", true),
            (
                "application/vnd.kubernetes.protobuf, application/vnd.kubernetes.protobuf;q=0.5",
                true,
            ),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                false,
            ),
            ("application/vnd.kubernetes.protobuf, */*", false),
            ("text/html", false),
        ] {
            assert_eq!(
                wants_protobuf(Some(&HeaderValue::from_static(accept))),
                expected,
                "{accept}"
            );
        }
    }

    #[test]
    fn what_cannot_have_reached_the_server_may_be_tried_again_and_nothing_else() {
        let unsent = Refusal::Forward(ForwardError::Closed);
        let unsent = Prepared::default().respond(&unsent, Encoding::Json);
        assert_eq!(
            (unsent.status(), &unsent.headers()[header::RETRY_AFTER]),
            (StatusCode::SERVICE_UNAVAILABLE, &HeaderValue::from(1))
        );
        let late = Refusal::Timeout(Duration::from_secs(60));
        let late = Prepared::default().respond(&late, Encoding::Json);
        assert_eq!(late.status(), 504);
        assert!(!late.headers().contains_key(header::RETRY_AFTER));
    }
}
