//! The answers to requests that are refused; those of fairness and max-in-flight are written once a second.
//!
//! A few levels, reasons and times make all of these that there are, and in a storm each is given many thousand times: head and
//! body are there, down to the date, and only copied.

use bytes::Bytes;
use http::HeaderMap;
use http::HeaderValue;
use http::Response;
use http::StatusCode;
use http::header;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;

use crate::api::Status;
use crate::clock::Clock;
use crate::keyed::Key;
use crate::keyed::Secret;
use crate::keyed::SharedByKey;
use crate::limits::Rejection;
use crate::pipeline::body::Body;
use crate::pipeline::name_decision;
use crate::pipeline::refusal::Encoding;
use crate::pipeline::refusal::PROTOBUF;
use crate::pipeline::refusal::Refusal;
use crate::pipeline::refusal::rejected;
use crate::upstream::headers::keep_unindexed;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache, private");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// Room for those of a refusal, with what decided and what the HTTP library adds.
const HEADERS: usize = 8;

/// Most kinds that are kept, if levels are changed all the time; beyond it they are written anew.
const MOST_KINDS: usize = 4096;

/// Answers that are there already.
#[derive(Debug, Default)]
pub struct Prepared {
    /// By all that a refusal depends on.
    written: SharedByKey<Dated>,
    secret: Secret,
}

/// An answer with the date of this second.
#[derive(Debug)]
struct Dated {
    unix_second: i64,
    wire: Wire,
}

impl Prepared {
    /// The answer to a client who reads this.
    #[must_use]
    pub fn respond(&self, refusal: &Refusal, encoding: Encoding) -> Response<Body> {
        if let Refusal::Rejected(rejection) = refusal {
            return self.rejected(rejection, encoding, Clock.unix_second());
        }
        match refusal.status() {
            Ok(status) => Wire::of(&status, refusal.code()).respond(encoding),
            Err(text) => answer(refusal.code(), usual_headers(PLAIN), text),
        }
    }

    fn rejected(
        &self,
        rejection: &Rejection,
        encoding: Encoding,
        unix_second: i64,
    ) -> Response<Body> {
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
            Rejection::UnprovenUpgrade { retry_after } => {
                Key::of(&self.secret, ("unproven-upgrade", retry_after))
            }
        };
        if let Some(dated) = self.written.get(&kind)
            && dated.unix_second == unix_second
        {
            return dated.wire.respond(encoding);
        }
        let mut wire = Wire::of_rejection(rejection);
        wire.date(unix_second);
        let response = wire.respond(encoding);
        if self.written.len() < MOST_KINDS || self.written.contains_key(&kind) {
            self.written.insert(kind, Dated { unix_second, wire });
        }
        response
    }
}

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
            protobuf: whole(HeaderValue::from_static(PROTOBUF), status.to_protobuf()),
        }
    }

    /// A limit's no; of fairness, with the names of what decided.
    fn of_rejection(rejection: &Rejection) -> Self {
        let mut wire = Self::of(&rejected(rejection), StatusCode::TOO_MANY_REQUESTS);
        if let Rejection::Fairness(rejected) = rejection {
            for headers in wire.heads() {
                name_decision(headers, rejected.flow_schema(), rejected.priority_level());
            }
        }
        wire
    }

    /// Says when, which the HTTP library does otherwise; not of a time that has no such date.
    fn date(&mut self, unix_second: i64) {
        let date = Timestamp::from_second(unix_second)
            .and_then(|time| DateTimePrinter::new().timestamp_to_rfc9110_string(&time));
        let date = date.ok().and_then(|date| HeaderValue::try_from(date).ok());
        if let Some(date) = date {
            for headers in self.heads() {
                headers.insert(header::DATE, date.clone());
                keep_unindexed(headers);
            }
        }
    }

    const fn heads(&mut self) -> [&mut HeaderMap; 2] {
        [&mut self.json.0, &mut self.protobuf.0]
    }

    fn respond(&self, encoding: Encoding) -> Response<Body> {
        let (headers, body) = match encoding {
            Encoding::Json => &self.json,
            Encoding::Protobuf => &self.protobuf,
        };
        answer(self.code, headers.clone(), body.clone())
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt;

    use super::*;
    use crate::request_info::RequestKind;
    use crate::upstream::ForwardError;

    const REJECTION: Rejection = Rejection::MaxInFlight {
        kind: RequestKind::ReadOnly,
        limit: 400,
    };

    #[tokio::test]
    async fn a_rejection_names_its_limit_and_is_small() {
        let refusal = Refusal::Rejected(REJECTION);
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
    fn a_rejection_has_the_date_of_its_second() {
        let prepared = Prepared::default();
        let date = |second| {
            let response = prepared.rejected(&REJECTION, Encoding::Json, second);
            response.headers()[header::DATE].clone()
        };
        for (second, expected) in [
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (784_111_778, "Sun, 06 Nov 1994 08:49:38 GMT"),
        ] {
            assert_eq!(date(second), expected);
        }
        assert_eq!(prepared.written.len(), 1, "one for each kind");
        assert!(date(784_111_779).is_sensitive(), "not to be indexed");
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
