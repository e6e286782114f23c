//! The spans of a request. Pure.

use std::time::Instant;

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::SpanData;

use crate::pipeline::trace::outcome::RequestOutcome;
use crate::pipeline::trace::record::Record;
use crate::pipeline::trace::trace_context::TraceContext;
use weir_kubernetes::encoding::client_text::{header_to_text, redact_query, truncate};
use weir_kubernetes::request_info::RequestInfo;

/// Longest attribute in bytes. Clients choose the length of some.
const MAX_TEXT_BYTES: usize = 1024;

/// Builds the span of a request, and that of its upstream request if it was forwarded.
pub(super) fn build(record: &Record, context: &TraceContext, now: Instant) -> Vec<SpanData> {
    let at =
        |instant: Instant| record.arrived_wall + instant.saturating_duration_since(record.arrived);
    let code = record.outcome.code().map(|code| code.as_u16());
    let failed = code.is_none_or(|code| code >= 500);
    let method = record.method.as_str();
    let request = SpanData {
        span_context: SpanContext::new(
            TraceId::from_bytes(context.trace_id),
            SpanId::from_bytes(context.request_span),
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        ),
        parent_span_id: SpanId::from_bytes(context.parent_span.unwrap_or_default()),
        parent_span_is_remote: context.parent_span.is_some(),
        span_kind: SpanKind::Server,
        name: span_name(record).into(),
        start_time: record.arrived_wall,
        end_time: at(now),
        attributes: request_attributes(record),
        dropped_attributes_count: 0,
        events: Default::default(),
        links: Default::default(),
        status: if failed {
            Status::error("")
        } else {
            Status::Unset
        },
        instrumentation_scope: InstrumentationScope::builder("weir")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    };
    let Some(forwarded) = context.forwarded_at else {
        return vec![request];
    };
    let code = code.filter(|_| context.responded_at.is_some());
    let forwarding = SpanData {
        span_context: SpanContext::new(
            TraceId::from_bytes(context.trace_id),
            SpanId::from_bytes(context.upstream_span),
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        ),
        parent_span_id: SpanId::from_bytes(context.request_span),
        parent_span_is_remote: false,
        span_kind: SpanKind::Client,
        name: method.to_owned().into(),
        start_time: at(forwarded),
        attributes: [text("http.request.method", method)]
            .into_iter()
            .chain(code.map(|code| integer("http.response.status_code", code)))
            .collect(),
        ..request.clone()
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
    let mut attributes = vec![
        text("http.request.method", record.method.as_str()),
        text("url.path", record.target.path()),
        text("url.scheme", "https"),
        text("client.address", &record.peer.ip().to_string()),
    ];
    let query = record.target.query();
    attributes.extend(query.map(|query| text("url.query", &redact_query(query))));
    let agent = record.user_agent.as_ref();
    let agent = agent.map(|agent| header_to_text(agent.as_bytes(), MAX_TEXT_BYTES));
    attributes.extend(agent.map(|agent| text("user_agent.original", &agent)));
    let user = record.user.as_ref();
    attributes.extend(user.map(|user| text("user.name", &user.name)));
    let code = record.outcome.code();
    attributes.extend(code.map(|code| integer("http.response.status_code", code.as_u16())));
    let size = i64::try_from(record.sent_bytes).ok();
    attributes.extend(size.map(|size| integer("http.response.body.size", size)));
    if let Some(decision) = &record.decision {
        attributes.extend([
            text("weir.flow_schema", &decision.flow_schema().name),
            text("weir.priority_level", &decision.priority_level().name),
            integer("weir.seats", decision.seats()),
            KeyValue::new("weir.queue_wait_seconds", decision.queue_wait.as_secs_f64()),
        ]);
    }
    if let RequestOutcome::Rejected(limit) = record.outcome {
        attributes.push(text("weir.rejection", limit));
    }
    attributes
}

fn text(key: &'static str, text: &str) -> KeyValue {
    KeyValue::new(key, truncate(text, MAX_TEXT_BYTES).to_owned())
}

fn integer(key: &'static str, number: impl Into<i64>) -> KeyValue {
    KeyValue::new(key, number.into())
}
