//! Responses: their bodies and the headers that describe the bodies.

use crate::request::QueryParameters;
use crate::serving::request_log::ServerCounters;
use crate::serving::response_body::PlaygroundBody;
use crate::status::StatusError;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::header::{CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use std::convert::Infallible;

/// Length up to which Go's HTTP/2 server knows the length of a response before it sends the head,
/// in bytes.
const MAX_MEASURED_LENGTH: usize = 4096;
/// Size of the chunks of a long response, in bytes.
const CHUNK_SIZE: usize = 32 * 1024;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The result of a handler.
pub(crate) type HandlerResult = Result<Response<PlaygroundBody>, StatusError>;

pub(crate) fn full(
    code: StatusCode,
    content_type: &'static str,
    body: Vec<u8>,
) -> Response<PlaygroundBody> {
    with_body(
        code,
        content_type,
        Full::new(Bytes::from(body)).boxed_unsync(),
    )
}

fn with_body(
    code: StatusCode,
    content_type: &'static str,
    body: PlaygroundBody,
) -> Response<PlaygroundBody> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// A complete object. Go's encoder ends it with a newline.
pub(crate) fn json(code: StatusCode, mut body: Vec<u8>) -> Response<PlaygroundBody> {
    body.push(b'\n');
    if body.len() <= MAX_MEASURED_LENGTH {
        return full(code, JSON, body);
    }
    let body = Bytes::from(body);
    with_body(code, JSON, chunked_body(std::iter::once(body)))
}

/// Text, as Go's `http.Error` and the health checks send it.
pub(crate) fn text(code: StatusCode, body: &str) -> Response<PlaygroundBody> {
    let mut response = full(code, TEXT, body.as_bytes().to_vec());
    set_nosniff(&mut response);
    response
}

fn set_nosniff(response: &mut Response<PlaygroundBody>) {
    let nosniff = HeaderValue::from_static("nosniff");
    response
        .headers_mut()
        .insert(X_CONTENT_TYPE_OPTIONS, nosniff);
}

/// A chunked body without a known length.
pub(crate) fn chunked_body(chunks: impl Iterator<Item = Bytes> + Send + 'static) -> PlaygroundBody {
    stream_body(stream::iter(chunks))
}

/// A chunked body without a known length, whose chunks are not all ready.
pub(crate) fn stream_body(chunks: impl Stream<Item = Bytes> + Send + 'static) -> PlaygroundBody {
    let frames = chunks.map(|chunk| Ok::<_, Infallible>(Frame::data(chunk)));
    StreamBody::new(frames).boxed_unsync()
}

/// A list: `head`, the items with commas between them, and `tail`. It is encoded while it is sent.
pub(crate) fn list(
    head: Vec<u8>,
    items: impl Iterator<Item = Bytes> + Send + 'static,
    tail: &'static [u8],
) -> Response<PlaygroundBody> {
    let mut chunks = ListChunks {
        head: Some(head),
        items,
        first: true,
        tail: Some(tail),
    };
    let body = match (chunks.next(), chunks.next()) {
        (Some(only), None) if only.len() <= MAX_MEASURED_LENGTH => Full::new(only).boxed_unsync(),
        (first, second) => chunked_body(first.into_iter().chain(second).chain(chunks)),
    };
    with_body(StatusCode::OK, JSON, body)
}

/// A body of unknown duration: a watch, a log.
pub(crate) fn streaming(
    content_type: &'static str,
    chunks: impl Stream<Item = Bytes> + Send + 'static,
) -> Response<PlaygroundBody> {
    with_body(StatusCode::OK, content_type, stream_body(chunks))
}

/// The events of a watch.
pub(crate) fn watch_events(
    chunks: impl Stream<Item = Bytes> + Send + 'static,
) -> Response<PlaygroundBody> {
    streaming(JSON, chunks)
}

struct ListChunks<I> {
    head: Option<Vec<u8>>,
    items: I,
    first: bool,
    tail: Option<&'static [u8]>,
}

impl<I: Iterator<Item = Bytes>> Iterator for ListChunks<I> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.tail?;
        let mut chunk = self.head.take().unwrap_or_default();
        while chunk.len() < CHUNK_SIZE {
            let Some(item) = self.items.next() else {
                chunk.extend_from_slice(self.tail.take()?);
                break;
            };
            if !self.first {
                chunk.push(b',');
            }
            self.first = false;
            chunk.extend_from_slice(&item);
        }
        Some(Bytes::from(chunk))
    }
}

/// An error as a Status.
pub(crate) fn status_error(status: &StatusError) -> Response<PlaygroundBody> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(code, status.to_json());
    if code == StatusCode::FORBIDDEN {
        set_nosniff(&mut response);
    }
    if let Some(seconds) = status.retry_after() {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The response of kube-apiserver's filters that limit requests (`tooManyRequests` of
/// `server/filters/maxinflight.go`), with this `Retry-After` in seconds.
pub(crate) fn too_many_requests(retry_after: u32) -> Response<PlaygroundBody> {
    let message = "Too many requests, please try again later.\n";
    let mut response = text(StatusCode::TOO_MANY_REQUESTS, message);
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from(retry_after));
    response
}

/// The response to a path that is not served.
pub(crate) fn page_not_found() -> Response<PlaygroundBody> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// A health check; it always succeeds.
pub(crate) fn health(check: &str, query: &QueryParameters) -> Response<PlaygroundBody> {
    if !query.flag("verbose") {
        return text(StatusCode::OK, "ok");
    }
    let verbose = format!("[+]ping ok\n[+]log ok\n[+]storage-readiness ok\n{check} check passed\n");
    text(StatusCode::OK, &verbose)
}

/// A `/readyz` that fails, as kube-apiserver's does while it shuts down.
pub(crate) fn failed_health_check() -> Response<PlaygroundBody> {
    let report = "[+]ping ok\n[-]shutdown failed: reason withheld\nreadyz check failed\n";
    text(StatusCode::INTERNAL_SERVER_ERROR, report)
}

/// The stored objects of a resource.
pub(crate) struct StoredResource {
    pub(crate) group: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) objects: usize,
    /// Total size in bytes; `None` if it is not measured.
    pub(crate) bytes: Option<usize>,
}

/// The counters, kube-apiserver's own metrics of stored objects, and those of priority and fairness, in
/// Prometheus' format.
pub(crate) fn metrics(
    counters: &ServerCounters,
    stored: &[StoredResource],
    resident_memory: u64,
    fairness: &str,
) -> Response<PlaygroundBody> {
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let families = [
        ("connections_total", "counter", counters.connections),
        ("requests_total", "counter", counters.requests),
        ("rejected_requests_total", "counter", counters.rejected),
        ("inflight_requests", "gauge", number(counters.in_flight)),
        (
            "inflight_requests_max",
            "gauge",
            number(counters.max_in_flight),
        ),
        (
            "long_running_requests",
            "gauge",
            number(counters.long_running),
        ),
        ("abandoned_handlers", "gauge", number(counters.abandoned)),
        (
            "abandoned_handlers_max",
            "gauge",
            number(counters.max_abandoned),
        ),
        (
            "too_many_early_resets_total",
            "counter",
            counters.too_many_early_resets,
        ),
    ];
    let mut text = String::new();
    for (name, kind, value) in families {
        text.push_str(&format!(
            "# TYPE playground_{name} {kind}\nplayground_{name} {value}\n"
        ));
    }
    text.push_str("# TYPE playground_responses_total counter\n");
    for (code, count) in &counters.by_code {
        text.push_str(&format!(
            "playground_responses_total{{code=\"{code}\"}} {count}\n"
        ));
    }
    text.push_str(&format!(
        "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes {resident_memory}\n"
    ));
    let objects = |of: &StoredResource| of.objects.to_string();
    let size = |of: &StoredResource| {
        of.bytes
            .map_or_else(|| "-1".to_owned(), |bytes| bytes.to_string())
    };
    push_family(&mut text, "objects", stored, objects);
    push_family(&mut text, "size_estimate_bytes", stored, size);
    text.push_str(fairness);
    full(StatusCode::OK, METRICS, text.into_bytes())
}

/// Appends one gauge for each resource.
fn push_family(
    text: &mut String,
    name: &str,
    stored: &[StoredResource],
    value: impl Fn(&StoredResource) -> String,
) {
    text.push_str(&format!("# TYPE apiserver_resource_{name} gauge\n"));
    for of in stored {
        let (group, resource, value) = (of.group, of.resource, value(of));
        text.push_str(&format!(
            "apiserver_resource_{name}{{group=\"{group}\",resource=\"{resource}\"}} {value}\n"
        ));
    }
}

/// The version of the simulated server.
pub(crate) fn version() -> Response<PlaygroundBody> {
    let version = r#"{
  "major": "1",
  "minor": "36",
  "emulationMajor": "1",
  "emulationMinor": "36",
  "minCompatibilityMajor": "1",
  "minCompatibilityMinor": "35",
  "gitVersion": "v1.36.2",
  "gitCommit": "playground",
  "gitTreeState": "clean",
  "buildDate": "1970-01-01T00:00:00Z",
  "goVersion": "none",
  "compiler": "rustc",
  "platform": "linux/amd64"
}"#;
    full(StatusCode::OK, JSON, version.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::list;
    use bytes::Bytes;
    use http_body::Body;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn a_short_list_has_a_length_and_a_long_one_is_chunked() {
        let items = |count: usize| (0..count).map(|n| Bytes::from(n.to_string()));
        let short = list(b"[".to_vec(), items(3), b"]");
        assert_eq!(short.body().size_hint().exact(), Some(7));
        let body = short.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "[0,1,2]");
        let long = list(b"[".to_vec(), items(20_000), b"]");
        assert_eq!(long.body().size_hint().exact(), None);
        let body = long.into_body().collect().await.unwrap().to_bytes();
        let numbers: Vec<u32> = serde_json::from_slice(&body).unwrap();
        assert_eq!(numbers, (0..20_000).collect::<Vec<u32>>());
        let none = list(b"[".to_vec(), items(0), b"]");
        assert_eq!(none.into_body().collect().await.unwrap().to_bytes(), "[]");
    }
}
