//! Traces by OpenTelemetry: for each traced request one span, and a second one for its upstream
//! request.
//!
//! `pipeline` decides which requests are traced. The API server's own spans are children of the
//! second span. Names and attributes follow kube-apiserver's spans and OpenTelemetry's conventions
//! for HTTP; weir's decision is added to them. Spans are built when the request has ended, and wait
//! for the collector in a bounded queue.
//!
//! It needs no SDK: OTLP over gRPC is one HTTP/2 request with a length before its body, and `h2`
//! and `prost` are dependencies already. OpenTelemetry's crates would bring a second HTTP client
//! and twice the build time. A build without the cargo feature `otlp` has no exporter. Without
//! `--tracing-config-file` the exporter costs a check of an `Option`.

pub mod config;
mod exporter;
mod otlp;

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::observe::client_text;
use crate::observe::client_text::truncate;
use crate::observe::spans::config::TracingConfig;
use crate::observe::spans::exporter::OtlpExporter;
use crate::observe::spans::otlp::{AttributeValue, KeyValue, Span, SpanStatus};
use crate::pipeline::trace::outcome::RequestOutcome;
use crate::pipeline::trace::record::{Record, RequestObserver};
use crate::pipeline::trace::trace_context::TraceContext;
use weir_kubernetes::numeric::saturating_u64;
use weir_kubernetes::request_info::RequestInfo;

pub use crate::observe::spans::exporter::SpanMetrics;

/// Most requests whose spans wait for the collector: OpenTelemetry's default for spans
/// (`OTEL_BSP_MAX_QUEUE_SIZE`). A request has two spans.
const MAX_QUEUED_REQUESTS: usize = 1024;

/// Longest attribute in bytes. Clients choose the length of some.
const MAX_TEXT_BYTES: usize = 1024;

/// Longest wait for the collector at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Builds the spans of traced requests and queues them for the exporter.
pub(crate) struct SpanProcessor {
    /// `None` after `finish`.
    queue: ArcSwapOption<mpsc::Sender<Vec<Span>>>,
    metrics: SpanMetrics,
    /// Awaited once, in `finish`.
    export_task: Mutex<Option<JoinHandle<()>>>,
}

impl SpanProcessor {
    /// Starts the exporter on the current runtime.
    #[must_use]
    pub(crate) fn start(config: TracingConfig, metrics: SpanMetrics) -> Self {
        let (queue, spans) = mpsc::channel(MAX_QUEUED_REQUESTS);
        let exporter = OtlpExporter {
            endpoint: config.endpoint,
            metrics: metrics.clone(),
        };
        Self {
            queue: ArcSwapOption::from_pointee(queue),
            metrics,
            export_task: Mutex::new(Some(tokio::spawn(exporter.run(spans)))),
        }
    }

    /// Exports the queued spans, with a time limit of `FLUSH_TIMEOUT`.
    ///
    /// # Cancel safety
    /// Queued spans may be lost.
    pub(crate) async fn finish(&self) {
        self.queue.store(None);
        if let Some(export_task) = self.export_task.lock().await.take() {
            let _ = timeout(FLUSH_TIMEOUT, export_task).await;
        }
    }
}

impl RequestObserver for SpanProcessor {
    fn on_ended(&self, record: &Record, now: Instant) {
        let Some(context) = &record.trace_context else {
            return;
        };
        let queue = self.queue.load();
        match queue.as_ref().map(|queue| queue.try_reserve()) {
            // Spans are built only if there is room: without a collector nothing else is spent.
            Some(Ok(permit)) => permit.send(build_spans(record, context, now)),
            Some(Err(_)) | None => {
                let count = 1 + u64::from(context.forwarded_at.is_some());
                self.metrics.dropped.inc_by(count);
            }
        }
    }
}

impl fmt::Debug for SpanProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpanProcessor").finish_non_exhaustive()
    }
}

/// Builds the span of a request, and that of its upstream request if it was forwarded.
fn build_spans(record: &Record, context: &TraceContext, now: Instant) -> Vec<Span> {
    let at = |instant: Instant| {
        let wall = record.arrived_wall + instant.saturating_duration_since(record.arrived);
        let since_1970 = wall.duration_since(SystemTime::UNIX_EPOCH);
        saturating_u64(since_1970.unwrap_or_default().as_nanos())
    };
    let code = record.outcome.code().map(|code| code.as_u16());
    let failed = code.is_none_or(|code| code >= 500);
    let status = failed.then(|| SpanStatus {
        message: String::new(),
        code: otlp::STATUS_CODE_ERROR,
    });
    let span = |id: [u8; 8], parent: Option<[u8; 8]>, name, kind| Span {
        trace_id: context.trace_id.to_vec(),
        span_id: id.to_vec(),
        parent_span_id: parent.map(Vec::from).unwrap_or_default(),
        name,
        kind,
        start_time_unix_nano: at(record.arrived),
        end_time_unix_nano: at(now),
        attributes: Vec::new(),
        status: status.clone(),
    };
    let request = Span {
        attributes: request_attributes(record),
        ..span(
            context.request_span,
            context.parent_span,
            span_name(record),
            otlp::SPAN_KIND_SERVER,
        )
    };
    let Some(forwarded) = context.forwarded_at else {
        return vec![request];
    };
    let mut attributes = SpanAttributes::default();
    attributes.push_text("http.request.method", Some(record.method.as_str()));
    if context.responded_at.is_some() {
        attributes.push_integer("http.response.status_code", code.map(i64::from));
    }
    let name = record.method.as_str().to_owned();
    let forwarding = Span {
        start_time_unix_nano: at(forwarded),
        attributes: attributes.0,
        ..span(
            context.upstream_span,
            Some(context.request_span),
            name,
            otlp::SPAN_KIND_CLIENT,
        )
    };
    vec![request, forwarding]
}

/// Returns the name that kube-apiserver gives to spans: the method, and the path without object
/// names (`getSpanNameFromRequestInfo`).
fn span_name(record: &Record) -> String {
    let method = record.method.as_str();
    record
        .info()
        .ok()
        .filter(|info| info.is_resource_request())
        .map_or_else(
            || method.to_owned(),
            |info| format!("{method} {}", span_route(&info)),
        )
}

fn span_route(info: &RequestInfo<'_>) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut route = format!("/{}", text(info.api_prefix()));
    let mut add = |part: &str| {
        route.push('/');
        route.push_str(part);
    };
    if !info.api_group().is_empty() {
        add(&text(info.api_group()));
    }
    add(&text(info.api_version()));
    if !info.namespace().is_empty() {
        add("namespaces/{:namespace}");
    }
    add(&text(info.resource()));
    if !info.name().is_empty() {
        add("{:name}");
    }
    if !info.subresource().is_empty() {
        add(&text(info.subresource()));
    }
    truncate(&route, MAX_TEXT_BYTES).to_owned()
}

fn request_attributes(record: &Record) -> Vec<KeyValue> {
    let mut attributes = SpanAttributes::default();
    attributes.push_text("http.request.method", Some(record.method.as_str()));
    attributes.push_text("url.path", Some(record.target.path()));
    let query = record.target.query().map(client_text::redact_query);
    attributes.push_text("url.query", query.as_deref());
    attributes.push_text("url.scheme", Some("https"));
    let user_agent = record.user_agent.as_ref();
    let user_agent = user_agent.map(|agent| client_text::header_to_text(agent, MAX_TEXT_BYTES));
    attributes.push_text("user_agent.original", user_agent.as_deref());
    attributes.push_text("client.address", Some(&record.peer.ip().to_string()));
    attributes.push_text("user.name", record.user.as_ref().map(|user| &*user.name));
    let code = record.outcome.code().map(|code| code.as_u16());
    attributes.push_integer("http.response.status_code", code.map(i64::from));
    attributes.push_integer(
        "http.response.body.size",
        i64::try_from(record.sent_bytes).ok(),
    );
    if let Some(decision) = &record.decision {
        attributes.push_text("weir.flow_schema", Some(&decision.flow_schema().name));
        attributes.push_text("weir.priority_level", Some(&decision.priority_level().name));
        attributes.push_integer("weir.seats", Some(decision.seats.into()));
        let wait = decision.queue_wait.as_secs_f64();
        attributes.0.push(KeyValue::new(
            "weir.queue_wait_seconds",
            AttributeValue::Double(wait),
        ));
    }
    if let RequestOutcome::Rejected(limit) = record.outcome {
        attributes.push_text("weir.rejection", Some(limit));
    }
    attributes.0
}

/// The attributes of a span.
#[derive(Default)]
struct SpanAttributes(Vec<KeyValue>);

impl SpanAttributes {
    fn push_text(&mut self, key: &str, text: Option<&str>) {
        let value =
            text.map(|text| AttributeValue::Text(truncate(text, MAX_TEXT_BYTES).to_owned()));
        self.0.extend(value.map(|value| KeyValue::new(key, value)));
    }

    fn push_integer(&mut self, key: &str, number: Option<i64>) {
        self.0
            .extend(number.map(|number| KeyValue::new(key, AttributeValue::Integer(number))));
    }
}

#[cfg(test)]
mod tests;
