//! Exports spans to a collector: OTLP over gRPC, without TLS, as kube-apiserver does.
//!
//! A unary gRPC call is an HTTP/2 request with a length before its body and a status in its
//! trailers. The `h2` crate, which also carries the requests to the API server, is enough for that.
//! Spans are sent in batches. Spans that cannot be sent are counted and dropped.

use std::io;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::client;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use prometheus::{IntCounter, IntCounterVec};
use prost::Message;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::warn;

use crate::observe::spans::otlp;
use crate::observe::spans::otlp::{
    AttributeValue, ExportTraceServiceRequest, InstrumentationScope, KeyValue, OtlpResource,
    ResourceSpans, ScopeSpans, Span,
};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_kubernetes::numeric::saturating_u32;
use weir_limits::throttling::log_limiter::LogLimiter;

/// Most spans per batch, and how long the first of them waits for others: OpenTelemetry's defaults
/// for a batch (`OTEL_BSP_MAX_EXPORT_BATCH_SIZE`, `OTEL_BSP_SCHEDULE_DELAY`).
const MAX_BATCH_SPANS: usize = 512;
const SCHEDULE_DELAY: Duration = Duration::from_secs(5);

/// Longest time of an export (`OTEL_EXPORTER_OTLP_TIMEOUT`).
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest response in bytes. A collector's response has a few.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Metrics of spans by result.
#[derive(Clone, Debug)]
pub struct SpanMetrics {
    pub(super) dropped: IntCounter,
    exported: IntCounter,
    failed: IntCounter,
}

impl SpanMetrics {
    /// Registers the metrics.
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
    /// Exports spans until the channel is closed and empty.
    pub(super) async fn run(self, mut spans: mpsc::Receiver<Vec<Span>>) {
        let log = LogLimiter::default();
        while let Some(first) = spans.recv().await {
            let mut batch = first;
            let gathering = timeout(SCHEDULE_DELAY, async {
                while batch.len() < MAX_BATCH_SPANS
                    && let Some(more) = spans.recv().await
                {
                    batch.extend(more);
                }
            });
            // Either the batch is full, or the delay has passed.
            let _ = gathering.await;
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

/// Sends a batch on a new connection: a batch every few seconds does not justify a pooled one.
async fn send(endpoint: &Authority, spans: Vec<Span>) -> io::Result<()> {
    let tcp = TcpStream::connect(endpoint.as_str()).await?;
    let (mut sender, connection) = client::handshake(tcp).await.map_err(io::Error::other)?;
    let connection = tokio::spawn(connection);
    let result = async {
        let (response, mut body) = sender
            .send_request(export_request(endpoint)?, false)
            .map_err(io::Error::other)?;
        body.send_data(grpc_frame(spans), true)
            .map_err(io::Error::other)?;
        let (head, mut body) = response.await.map_err(io::Error::other)?.into_parts();
        let mut received = 0;
        while let Some(data) = body.data().await {
            received += data.map_err(io::Error::other)?.len();
            if received > MAX_RESPONSE_BYTES {
                return Err(io::Error::other("a response of more than 64 KiB"));
            }
        }
        let trailers = body.trailers().await.map_err(io::Error::other)?;
        // A response without a body has its status in the headers.
        check_grpc_status(trailers.as_ref().unwrap_or(&head.headers))
    };
    let result = result.await;
    connection.abort();
    result
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

/// Encodes the uncompressed message with its length prefix.
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
    bytes.put_u32(saturating_u32(length)); // 512 spans are less than 4 GiB
    bytes.put(message.encode_to_vec().as_slice());
    bytes.freeze()
}

/// Checks the status of a call.
fn check_grpc_status(headers: &HeaderMap) -> io::Result<()> {
    let header_value = |name| headers.get(name).map(HeaderValue::to_str);
    match header_value("grpc-status") {
        Some(Ok("0")) => Ok(()),
        Some(Ok(code)) => {
            let message = header_value("grpc-message")
                .and_then(Result::ok)
                .unwrap_or_default();
            Err(io::Error::other(format!("gRPC status {code}: {message}")))
        }
        Some(Err(_)) | None => Err(io::Error::other("the response has no gRPC status")),
    }
}
