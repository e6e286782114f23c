//! The responses to rejected requests. Those of priority and fairness and of max-in-flight are
//! encoded once a second.
//!
//! A few levels, reasons and times make up all of them, and under overload each is sent many
//! thousand times. Head and body are cached, including the date, and only copied.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;

use crate::flowcontrol::level::FlowControlDecision;
use crate::flowcontrol::{FLOW_SCHEMA_UID, PRIORITY_LEVEL_UID};
use crate::limits::Rejection;
use crate::pipeline::reject::limit_status::limit_status;
use crate::pipeline::reject::rejection::{PROTOBUF, RequestRejection, StatusEncoding};
use crate::pipeline::response::body::Body;
use crate::upstream::headers::keep_unindexed;
use weir_base::clock::Clock;
use weir_base::hash_keys::{HashKey, HashSecret, SharedHashKeyMap};
use weir_kubernetes::api::Status;
use weir_limits::max_in_flight::MaxInFlightRejection;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache, private");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// Capacity for the headers of a rejection, with the decision's and those that the HTTP library
/// adds.
const HEADER_CAPACITY: usize = 8;

/// Maximum number of cached responses. Beyond it, as when levels change all the time, responses are
/// encoded anew.
const MAX_ENTRIES: usize = 4096;

/// The encoded responses.
#[derive(Debug, Default)]
pub struct RejectionResponseCache {
    /// By everything that a rejection depends on.
    entries: SharedHashKeyMap<CachedResponse>,
    secret: HashSecret,
}

/// A response with the date of its second.
#[derive(Debug)]
struct CachedResponse {
    unix_second: i64,
    status: EncodedStatus,
}

impl RejectionResponseCache {
    /// The response in the client's encoding.
    #[must_use]
    pub(crate) fn respond(
        &self,
        rejection: &RequestRejection,
        encoding: StatusEncoding,
    ) -> Response<Body> {
        self.respond_after(rejection, encoding, None)
    }

    /// The response in the client's encoding. `paced_retry_after` replaces the `Retry-After` of a
    /// rejection for lack of a seat, in seconds.
    #[must_use]
    pub(crate) fn respond_after(
        &self,
        rejection: &RequestRejection,
        encoding: StatusEncoding,
        paced_retry_after: Option<u32>,
    ) -> Response<Body> {
        if let RequestRejection::Limit(rejection) = rejection {
            let unix_second = Clock.unix_second();
            return self.limit_response(rejection, encoding, paced_retry_after, unix_second);
        }
        match rejection.status() {
            Ok(status) => status_response(&status, rejection.code(), encoding),
            Err(text) => build_response(rejection.code(), common_headers(PLAIN_TEXT), text),
        }
    }

    fn limit_response(
        &self,
        rejection: &Rejection,
        encoding: StatusEncoding,
        paced_retry_after: Option<u32>,
        unix_second: i64,
    ) -> Response<Body> {
        let retry_after = paced_retry_after.unwrap_or_else(|| rejection.retry_after());
        let key = match rejection {
            // There are as many texts as keys, so they are encoded when needed.
            Rejection::ClientLimit(_) | Rejection::EventRateLimit(_) | Rejection::Policy(_) => {
                return EncodedStatus::from_rejection(rejection, None).to_response(encoding);
            }
            Rejection::Fairness(rejected) => HashKey::of(
                &self.secret,
                (
                    rejected.decision.flow_schema(),
                    rejected.decision.priority_level(),
                    rejected.reason,
                    retry_after,
                ),
            ),
            Rejection::MaxInFlight(MaxInFlightRejection { kind, limit }) => {
                HashKey::of(&self.secret, (kind, limit, retry_after))
            }
            Rejection::AbandonedBacklog => HashKey::of(&self.secret, "abandoned-backlog"),
            Rejection::Lever { lever, .. } => {
                HashKey::of(&self.secret, ("lever", lever.id, retry_after))
            }
            Rejection::ListBytes { retry_after } => {
                HashKey::of(&self.secret, ("list-bytes", retry_after))
            }
            Rejection::MemoryLimit => HashKey::of(&self.secret, "memory-limit"),
            Rejection::UnprovenUpgrade { retry_after } => {
                HashKey::of(&self.secret, ("unproven-upgrade", retry_after))
            }
        };
        if let Some(cached) = self.entries.get(&key)
            && cached.unix_second == unix_second
        {
            return cached.status.to_response(encoding);
        }
        let mut status = EncodedStatus::from_rejection(rejection, paced_retry_after);
        status.set_date(unix_second);
        let response = status.to_response(encoding);
        if self.entries.len() < MAX_ENTRIES || self.entries.contains_key(&key) {
            self.entries.insert(
                key,
                CachedResponse {
                    unix_second,
                    status,
                },
            );
        }
        response
    }
}

/// An encoded Status, in both encodings.
#[derive(Debug)]
struct EncodedStatus {
    code: StatusCode,
    json: (HeaderMap, Bytes),
    protobuf: (HeaderMap, Bytes),
}

impl EncodedStatus {
    fn new(status: &Status, code: StatusCode) -> Self {
        let whole = |content_type, body: Bytes| {
            let mut headers = common_headers(content_type);
            if let Some(seconds) = status.retry_after_seconds {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
            (headers, body)
        };
        Self {
            code,
            json: whole(JSON, status.to_json()),
            protobuf: whole(HeaderValue::from_static(PROTOBUF), status.to_protobuf()),
        }
    }

    /// The Status of a limit's rejection; for priority and fairness with the headers of its
    /// decision.
    fn from_rejection(rejection: &Rejection, paced_retry_after: Option<u32>) -> Self {
        let mut status = limit_status(rejection);
        if paced_retry_after.is_some() {
            status.retry_after_seconds = paced_retry_after;
        }
        let mut status = Self::new(&status, StatusCode::TOO_MANY_REQUESTS);
        if let Rejection::Fairness(fairness) = rejection {
            for headers in status.headers_mut() {
                set_decision_headers(headers, &fairness.decision);
            }
        }
        status
    }

    /// Sets `Date`, which the HTTP library sets otherwise. A time outside the format's range sets
    /// none.
    fn set_date(&mut self, unix_second: i64) {
        let date = Timestamp::from_second(unix_second)
            .and_then(|time| DateTimePrinter::new().timestamp_to_rfc9110_string(&time));
        let date = date.ok().and_then(|date| HeaderValue::try_from(date).ok());
        if let Some(date) = date {
            for headers in self.headers_mut() {
                headers.insert(header::DATE, date.clone());
                keep_unindexed(headers);
            }
        }
    }

    const fn headers_mut(&mut self) -> [&mut HeaderMap; 2] {
        [&mut self.json.0, &mut self.protobuf.0]
    }

    fn to_response(&self, encoding: StatusEncoding) -> Response<Body> {
        let (headers, body) = match encoding {
            StatusEncoding::Json | StatusEncoding::PrettyJson => &self.json,
            StatusEncoding::Protobuf => &self.protobuf,
        };
        build_response(self.code, headers.clone(), body.clone())
    }
}

/// The response with a Status that no limit has caused. kube-apiserver itself sends 400 and 401
/// (`responsewriters.ErrorNegotiated`); those have its form.
fn status_response(status: &Status, code: StatusCode, encoding: StatusEncoding) -> Response<Body> {
    let mut encoded = EncodedStatus::new(status, code);
    if !matches!(code, StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED) {
        return encoded.to_response(encoding);
    }
    for headers in encoded.headers_mut() {
        headers.remove(header::X_CONTENT_TYPE_OPTIONS);
    }
    match encoding {
        StatusEncoding::PrettyJson => {
            let body = status.to_indented_json();
            let length = HeaderValue::from(body.len());
            encoded.json.0.insert(header::CONTENT_LENGTH, length);
            encoded.json.1 = body;
        }
        // The group version of the request has no Status in protobuf.
        StatusEncoding::Protobuf if code == StatusCode::UNAUTHORIZED => {
            return encoded.to_response(StatusEncoding::Json);
        }
        StatusEncoding::Protobuf | StatusEncoding::Json => {}
    }
    encoded.to_response(encoding)
}

fn common_headers(content_type: HeaderValue) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(HEADER_CAPACITY);
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::CACHE_CONTROL, NO_CACHE);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    headers
}

fn build_response(code: StatusCode, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::fixed(body));
    *response.status_mut() = code;
    *response.headers_mut() = headers;
    response
}

/// Sets the headers that name the rejecting flow schema and priority level, as kube-apiserver does.
fn set_decision_headers(headers: &mut HeaderMap, decision: &FlowControlDecision) {
    for (name, of) in [
        (FLOW_SCHEMA_UID, decision.flow_schema()),
        (PRIORITY_LEVEL_UID, decision.priority_level()),
    ] {
        headers.insert(name, of.uid.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt;

    use super::*;
    use crate::upstream::ForwardError;
    use weir_kubernetes::request_info::RequestKind;

    const REJECTION: Rejection = Rejection::MaxInFlight(MaxInFlightRejection {
        kind: RequestKind::ReadOnly,
        limit: 400,
    });

    #[tokio::test]
    async fn a_rejection_names_its_limit_and_is_small() {
        let refusal = RequestRejection::Limit(REJECTION);
        let response = RejectionResponseCache::default().respond(&refusal, StatusEncoding::Json);
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
    fn a_rejection_has_the_date_of_its_second() {
        let cache = RejectionResponseCache::default();
        let date = |second| {
            let response = cache.limit_response(&REJECTION, StatusEncoding::Json, None, second);
            response.headers()[header::DATE].clone()
        };
        for (second, expected) in [
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (784_111_778, "Sun, 06 Nov 1994 08:49:38 GMT"),
        ] {
            assert_eq!(date(second), expected);
        }
        assert_eq!(cache.entries.len(), 1, "one for each kind");
        assert!(date(784_111_779).is_sensitive(), "not to be indexed");
    }

    #[tokio::test]
    async fn a_400_or_a_401_has_the_form_of_kube_apiserver_s() {
        let denied = "a timeout".to_owned();
        for (rejection, encoding, content_type, beginning) in [
            (
                RequestRejection::BadRequest(denied.clone()),
                StatusEncoding::Json,
                "application/json",
                "{\"kind\":",
            ),
            (
                RequestRejection::BadRequest(denied.clone()),
                StatusEncoding::PrettyJson,
                "application/json",
                "{\n  \"kind\": ",
            ),
            (
                RequestRejection::BadRequest(denied),
                StatusEncoding::Protobuf,
                PROTOBUF,
                "k8s\0",
            ),
            (
                RequestRejection::NoFrontProxyCertificate,
                StatusEncoding::PrettyJson,
                "application/json",
                "{\n  \"kind\": ",
            ),
            (
                RequestRejection::NoFrontProxyCertificate,
                StatusEncoding::Protobuf,
                "application/json",
                "{\"kind\":",
            ),
        ] {
            let response = RejectionResponseCache::default().respond(&rejection, encoding);
            let headers = response.headers().clone();
            assert_eq!(headers[header::CONTENT_TYPE], content_type);
            assert!(!headers.contains_key(header::X_CONTENT_TYPE_OPTIONS));
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(headers[header::CONTENT_LENGTH], body.len().to_string());
            assert!(
                body.starts_with(beginning.as_bytes()),
                "{rejection:?} {encoding:?}"
            );
            assert_eq!(body.ends_with(b"}"), encoding == StatusEncoding::PrettyJson);
        }
    }

    #[test]
    fn only_unsent_requests_get_retry_after() {
        let unsent = RequestRejection::Forward(ForwardError::Closed);
        let unsent = RejectionResponseCache::default().respond(&unsent, StatusEncoding::Json);
        assert_eq!(
            (unsent.status(), &unsent.headers()[header::RETRY_AFTER]),
            (StatusCode::SERVICE_UNAVAILABLE, &HeaderValue::from(1))
        );
        let late = RequestRejection::Timeout(Duration::from_secs(60));
        let late = RejectionResponseCache::default().respond(&late, StatusEncoding::Json);
        assert_eq!(late.status(), 504);
        assert!(!late.headers().contains_key(header::RETRY_AFTER));
    }
}
