//! Spans on their way to a collector: OTLP by gRPC, without TLS, as kube-apiserver sends them.
//!
//! One unary call of gRPC is an HTTP/2 request with a length before its body and a status in its trailers; the crate that
//! speaks HTTP/2 to the API server does that. Spans are sent some at a time; what cannot be sent is counted and gone.

use std::io;
use std::time::Duration;

use bytes::BufMut;
use bytes::Bytes;
use bytes::BytesMut;
use h2::client;
use http::HeaderMap;
use http::HeaderValue;
use http::Method;
use http::Request;
use http::Uri;
use http::header;
use http::uri::Authority;
use prometheus::IntCounter;
use prometheus::IntCounterVec;
use prost::Message;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::warn;

use crate::clock::Clock;
use crate::log_limiter::LogLimiter;
use crate::metrics::Registry;
use crate::observe::spans::otlp;
use crate::observe::spans::otlp::AttributeValue;
use crate::observe::spans::otlp::ExportTraceServiceRequest;
use crate::observe::spans::otlp::InstrumentationScope;
use crate::observe::spans::otlp::KeyValue;
use crate::observe::spans::otlp::OtlpResource;
use crate::observe::spans::otlp::ResourceSpans;
use crate::observe::spans::otlp::ScopeSpans;
use crate::observe::spans::otlp::Span;

/// Spans that are sent at a time at most, and how long the first of them waits for others: OpenTelemetry's defaults for a
/// batch (`OTEL_BSP_MAX_EXPORT_BATCH_SIZE`, `OTEL_BSP_SCHEDULE_DELAY`).
const MAX_BATCH_SPANS: usize = 512;
const SCHEDULE_DELAY: Duration = Duration::from_secs(5);

/// How long a collector may take (`OTEL_EXPORTER_OTLP_TIMEOUT`).
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// An answer of a collector is a few bytes.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// What is counted here.
#[derive(Clone, Debug)]
pub struct SpanMetrics {
    pub(super) dropped: IntCounter,
    exported: IntCounter,
    failed: IntCounter,
}

impl SpanMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let spans: IntCounterVec = registry.counters(
            "weir_trace_spans_total",
            "Spans of traced requests, by what became of them: exported; failed, where the collector did not take them; dropped, where too many waited for it.",
            &["result"],
        );
        Self {
            dropped: spans.with_label_values(&["dropped"]),
            exported: spans.with_label_values(&["exported"]),
            failed: spans.with_label_values(&["failed"]),
        }
    }
}

/// Sends spans to a collector.
#[derive(Debug)]
pub(super) struct OtlpExporter {
    pub(super) endpoint: Authority,
    pub(super) metrics: SpanMetrics,
}

impl OtlpExporter {
    /// Sends what comes, until no more can come.
    pub(super) async fn run(self, mut spans: mpsc::Receiver<Vec<Span>>) {
        let log = LogLimiter::default();
        while let Some(first) = spans.recv().await {
            let mut batch = first;
            let gathered = timeout(SCHEDULE_DELAY, async {
                while batch.len() < MAX_BATCH_SPANS
                    && let Some(more) = spans.recv().await
                {
                    batch.extend(more);
                }
            });
            // Either there are enough, or the time is up.
            let _ = gathered.await;
            let count = u64::try_from(batch.len()).unwrap_or_default();
            let sent = timeout(EXPORT_TIMEOUT, send(&self.endpoint, batch)).await;
            match sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(()) => self.metrics.exported.inc_by(count),
                Err(why) => {
                    self.metrics.failed.inc_by(count);
                    if let Some(more) = log.try_log(Clock.now()) {
                        warn!(endpoint = %self.endpoint, %why, more, "the collector takes no traces");
                    }
                }
            }
        }
    }
}

/// On a connection of its own: some every few seconds are not worth looking after one.
async fn send(endpoint: &Authority, spans: Vec<Span>) -> io::Result<()> {
    let tcp = TcpStream::connect(endpoint.as_str()).await?;
    let (mut sender, connection) = client::handshake(tcp).await.map_err(io::Error::other)?;
    let connection = tokio::spawn(connection);
    let answered = async {
        let (answer, mut body) = sender
            .send_request(export_request(endpoint)?, false)
            .map_err(io::Error::other)?;
        body.send_data(grpc_frame(spans), true)
            .map_err(io::Error::other)?;
        let (head, mut body) = answer.await.map_err(io::Error::other)?.into_parts();
        let mut read = 0;
        while let Some(data) = body.data().await {
            read += data.map_err(io::Error::other)?.len();
            if read > MAX_RESPONSE_BYTES {
                return Err(io::Error::other("an answer of more than 64 KiB"));
            }
        }
        let trailers = body.trailers().await.map_err(io::Error::other)?;
        // Where there is nothing else to say, the status stands in the head.
        check_grpc_status(trailers.as_ref().unwrap_or(&head.headers))
    };
    let answered = answered.await;
    connection.abort();
    answered
}

fn export_request(endpoint: &Authority) -> io::Result<Request<()>> {
    let uri = Uri::builder()
        .scheme("http")
        .authority(endpoint.clone())
        .path_and_query(otlp::EXPORT_PATH);
    Request::builder()
        .method(Method::POST)
        .uri(uri.build().map_err(io::Error::other)?)
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .header(
            header::USER_AGENT,
            concat!("weir/", env!("CARGO_PKG_VERSION")),
        )
        .body(())
        .map_err(io::Error::other)
}

/// The message, not compressed, with its length before it.
fn grpc_frame(spans: Vec<Span>) -> Bytes {
    let attribute = |key, value: &str| KeyValue::new(key, AttributeValue::Text(value.to_owned()));
    let message = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(OtlpResource {
                attributes: vec![
                    attribute("service.name", "weir"),
                    attribute("service.version", env!("CARGO_PKG_VERSION")),
                ],
            }),
            scope_spans: vec![ScopeSpans {
                scope: Some(InstrumentationScope {
                    name: "weir".to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                }),
                spans,
            }],
        }],
    };
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(length + 5);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX)); // 512 spans are less than 4 GiB
    bytes.put(message.encode_to_vec().as_slice());
    bytes.freeze()
}

/// The status of a call.
fn check_grpc_status(headers: &HeaderMap) -> io::Result<()> {
    let of = |name| headers.get(name).map(HeaderValue::to_str);
    match of("grpc-status") {
        Some(Ok("0")) => Ok(()),
        Some(Ok(code)) => {
            let message = of("grpc-message").and_then(Result::ok).unwrap_or_default();
            Err(io::Error::other(format!("gRPC status {code}: {message}")))
        }
        Some(Err(_)) | None => Err(io::Error::other("the answer has no gRPC status")),
    }
}
