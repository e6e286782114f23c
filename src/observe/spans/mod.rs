//! Traces by OpenTelemetry: of each request that is traced, a span for it and one for its way to the API server.
//!
//! Whether a request is traced `pipeline` decides, and the API server's own spans are children of the second one. Names and
//! attributes are those of kube-apiserver's spans and of OpenTelemetry's conventions for HTTP; what weir decided stands beside
//! them. Spans are made when the request has ended, and wait for the collector in a bounded queue.

pub mod config;
mod exporter;
mod otlp;

use std::fmt;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::observe::client_text;
use crate::observe::client_text::truncate;
use crate::observe::spans::config::TracingConfig;
use crate::observe::spans::exporter::OtlpExporter;
use crate::observe::spans::otlp::AttributeValue;
use crate::observe::spans::otlp::KeyValue;
use crate::observe::spans::otlp::Span;
use crate::observe::spans::otlp::SpanStatus;
use crate::pipeline::trace::record::Record;
use crate::pipeline::trace::record::RequestObserver;
use crate::pipeline::trace::record::RequestOutcome;
use crate::pipeline::trace::trace_context::TraceContext;
use crate::request_info::RequestInfo;

pub use crate::observe::spans::exporter::SpanMetrics;

/// Requests whose spans may wait for the collector: OpenTelemetry's default for spans (`OTEL_BSP_MAX_QUEUE_SIZE`), of which
/// each has two.
const MAX_QUEUED_REQUESTS: usize = 1024;

/// What is kept of a text that a client may make as long as it likes, in bytes.
const MAX_TEXT_BYTES: usize = 1024;

/// How long weir's end waits for the collector.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes spans of traced requests and has them sent.
pub struct SpanProcessor {
    /// None once weir ends.
    queue: ArcSwapOption<mpsc::Sender<Vec<Span>>>,
    metrics: SpanMetrics,
    /// Awaited once, at the end.
    export_task: Mutex<Option<JoinHandle<()>>>,
}

impl SpanProcessor {
    /// Begins to send to the collector, on the runtime that this is called in.
    #[must_use]
    pub fn start(config: TracingConfig, metrics: SpanMetrics) -> Self {
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

    /// Sends what waits, if that does not take long.
    ///
    /// # Cancel safety
    /// What waits may be lost.
    pub async fn finish(&self) {
        self.queue.store(None);
        if let Some(exporting) = self.export_task.lock().await.take() {
            let _ = timeout(FLUSH_TIMEOUT, exporting).await;
        }
    }
}

impl RequestObserver for SpanProcessor {
    fn on_ended(&self, record: &Record, now: Instant) {
        let Some(traced) = &record.trace_context else {
            return;
        };
        let queue = self.queue.load();
        match queue.as_ref().map(|queue| queue.try_reserve()) {
            // Only then they are made: a collector that is away costs nothing but this.
            Some(Ok(room)) => room.send(build_spans(record, traced, now)),
            Some(Err(_)) | None => {
                let both = 1 + u64::from(traced.forwarded_at.is_some());
                self.metrics.dropped.inc_by(both);
            }
        }
    }
}

impl fmt::Debug for SpanProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spans").finish_non_exhaustive()
    }
}

/// The span of a request, and that of its way to the API server, if it went there.
fn build_spans(record: &Record, traced: &TraceContext, now: Instant) -> Vec<Span> {
    let at = |instant: Instant| {
        let wall = record.arrived_wall + instant.saturating_duration_since(record.arrived);
        let since_1970 = wall.duration_since(SystemTime::UNIX_EPOCH);
        u64::try_from(since_1970.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
    };
    let code = record.outcome.code().map(|code| code.as_u16());
    let failed = code.is_none_or(|code| code >= 500);
    let status = failed.then(|| SpanStatus {
        message: String::new(),
        code: otlp::STATUS_CODE_ERROR,
    });
    let span = |id: [u8; 8], parent: Option<[u8; 8]>, name, kind| Span {
        trace_id: traced.trace_id.to_vec(),
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
            traced.request_span,
            traced.parent_span,
            span_name(record),
            otlp::SPAN_KIND_SERVER,
        )
    };
    let Some(forwarded) = traced.forwarded_at else {
        return vec![request];
    };
    let mut about = SpanAttributes::default();
    about.push_text("http.request.method", Some(record.method.as_str()));
    if traced.responded_at.is_some() {
        about.push_integer("http.response.status_code", code.map(i64::from));
    }
    let name = record.method.as_str().to_owned();
    let forwarding = Span {
        start_time_unix_nano: at(forwarded),
        attributes: about.0,
        ..span(
            traced.upstream_span,
            Some(traced.request_span),
            name,
            otlp::SPAN_KIND_CLIENT,
        )
    };
    vec![request, forwarding]
}

/// As kube-apiserver names its spans: the method, and the path with its names left out (`getSpanNameFromRequestInfo`).
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
    let mut about = SpanAttributes::default();
    about.push_text("http.request.method", Some(record.method.as_str()));
    about.push_text("url.path", Some(record.target.path()));
    let query = record.target.query().map(client_text::redact_query);
    about.push_text("url.query", query.as_deref());
    about.push_text("url.scheme", Some("https"));
    let user_agent = record.user_agent.as_ref();
    let user_agent = user_agent.map(|agent| client_text::header_to_text(agent, MAX_TEXT_BYTES));
    about.push_text("user_agent.original", user_agent.as_deref());
    about.push_text("client.address", Some(&record.peer.ip().to_string()));
    about.push_text("user.name", record.user.as_ref().map(|user| &*user.name));
    let code = record.outcome.code().map(|code| code.as_u16());
    about.push_integer("http.response.status_code", code.map(i64::from));
    about.push_integer(
        "http.response.body.size",
        i64::try_from(record.sent_bytes).ok(),
    );
    if let Some(decision) = &record.decision {
        about.push_text("weir.flow_schema", Some(&decision.flow_schema().name));
        about.push_text("weir.priority_level", Some(&decision.priority_level().name));
        about.push_integer("weir.seats", Some(decision.seats.into()));
        let wait = decision.queue_wait.as_secs_f64();
        about.0.push(KeyValue::new(
            "weir.queue_wait_seconds",
            AttributeValue::Double(wait),
        ));
    }
    if let RequestOutcome::Rejected(limit) = record.outcome {
        about.push_text("weir.rejection", Some(limit));
    }
    about.0
}

/// What is said about a span.
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
