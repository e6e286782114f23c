//! Tests of spans against a collector that records what it receives.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::observe::spans::config::TracingConfig;
use crate::observe::spans::{SpanMetrics, SpanProcessor};
use crate::observe::wait_tests::eventually;
use crate::pipeline::trace::outcome::RequestOutcome;
use crate::pipeline::trace::record::{Record, RequestObserver};
use crate::pipeline::trace::trace_context::TraceContext;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_kubernetes::api::UserInfo;

const EXPORT_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Starts a collector that responds with this gRPC status. Returns its address and the received
/// spans.
async fn start_collector(status: &'static str) -> (SocketAddr, mpsc::UnboundedReceiver<Vec<Span>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (received, spans) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(tcp).await.unwrap();
            let received = received.clone();
            tokio::spawn(async move {
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let received = received.clone();
                    tokio::spawn(async move {
                        let _ = received.send(read_spans(request).await);
                        let response =
                            Response::builder().header("content-type", "application/grpc");
                        let mut stream = respond
                            .send_response(response.body(()).unwrap(), false)
                            .unwrap();
                        stream
                            .send_data(Bytes::from_static(&[0, 0, 0, 0, 0]), false)
                            .unwrap();
                        let mut trailers = HeaderMap::new();
                        trailers.insert("grpc-status", HeaderValue::from_static(status));
                        stream.send_trailers(trailers).unwrap();
                    });
                }
            });
        }
    });
    (address, spans)
}

async fn read_spans(request: http::Request<h2::RecvStream>) -> Vec<Span> {
    assert_eq!(request.method(), Method::POST);
    assert_eq!(request.uri().path(), EXPORT_PATH);
    assert_eq!(request.headers()["content-type"], "application/grpc");
    assert_eq!(request.headers()["te"], "trailers");
    let (mut body, mut read) = (request.into_body(), Vec::new());
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        read.extend_from_slice(&data);
    }
    let mut message = Bytes::from(read);
    assert_eq!(message.get_u8(), 0, "not compressed");
    let length = usize::try_from(message.get_u32()).unwrap();
    assert_eq!(length, message.len());
    let mut sent = ExportTraceServiceRequest::decode(message).unwrap();
    let mut spans = sent.resource_spans.remove(0);
    let resource = spans.resource.unwrap();
    let name = resource
        .attributes
        .iter()
        .find(|attribute| attribute.key == "service.name");
    assert_eq!(
        name.unwrap().value.as_ref().unwrap().value,
        Some(Value::StringValue("weir".to_owned()))
    );
    spans.scope_spans.remove(0).spans
}

fn start_processor(address: SocketAddr, registry: &Registry) -> SpanProcessor {
    let config = TracingConfig {
        endpoint: address.to_string().parse().unwrap(),
        sampling_rate_per_million: 0,
    };
    SpanProcessor::start(config, SpanMetrics::register(registry)).unwrap()
}

fn traced_record(forwarded: bool) -> Record {
    let now = Clock.now();
    Record {
        method: Method::GET,
        target: PathAndQuery::from_static("/api/v1/namespaces/a/pods/b/log?follow=1&token=abc"),
        long_running: true,
        peer: SocketAddr::from(([127, 0, 0, 1], 7)),
        forwarded_for: None,
        user_agent: Some(HeaderValue::from_static("kubectl")),
        arrived: now,
        arrived_wall: SystemTime::UNIX_EPOCH + Duration::from_secs(100),
        user: Some(Arc::new(UserInfo::anonymous())),
        counted_as: None,
        decision: None,
        rule: None,
        policies: None,
        dry_run: None,
        audit: None,
        is_logged: false,
        trace_context: Some(Box::new(TraceContext {
            trace_id: [1; 16],
            parent_span: Some([2; 8]),
            request_span: [3; 8],
            upstream_span: [4; 8],
            forwarded_at: forwarded.then(|| now + Duration::from_secs(1)),
            responded_at: forwarded.then(|| now + Duration::from_secs(2)),
        })),
        outcome: if forwarded {
            RequestOutcome::Responded(StatusCode::OK)
        } else {
            RequestOutcome::Rejected("queue-full")
        },
        sent_bytes: 42,
    }
}

fn attribute(span: &Span, key: &str) -> Option<Value> {
    let found = span
        .attributes
        .iter()
        .find(|attribute| attribute.key == key);
    found?.value.as_ref()?.value.clone()
}

fn is_counted(registry: &Registry, result: &str) -> bool {
    let text = registry.render();
    text.contains(&format!(
        "weir_trace_spans_total{{result=\"{result}\"}} 2\n"
    ))
}

/// Spans are counted, possibly after `finish` has returned.
async fn assert_eventually_counted(registry: &Registry, result: &str) {
    let counted = eventually(|| is_counted(registry, result)).await;
    assert!(counted, "{}", registry.render());
}

#[tokio::test]
async fn a_request_is_two_spans_at_the_collector() {
    let (address, mut received) = start_collector("0").await;
    let registry = Registry::new();
    let spans = start_processor(address, &registry);
    let record = traced_record(true);
    spans.on_ended(&record, record.arrived + Duration::from_secs(5));
    spans.finish().await;
    let sent = received.recv().await.unwrap();
    let [request, forwarding] = &sent[..] else {
        panic!("{sent:#?}");
    };
    assert_eq!(
        request.name,
        "GET /api/v1/namespaces/{:namespace}/pods/{:name}/log"
    );
    let ids = |span: &Span| [&span.parent_span_id, &span.span_id].map(|id| id[0]);
    assert_eq!((ids(request), ids(forwarding)), ([2, 3], [3, 4]));
    assert_eq!(
        (request.kind, forwarding.kind),
        (SpanKind::Server.into(), SpanKind::Client.into())
    );
    assert!(sent.iter().all(|span| span.trace_id == [1; 16]));
    let seconds = |span: &Span| {
        [span.start_time_unix_nano, span.end_time_unix_nano].map(|at| at / 1_000_000_000)
    };
    assert_eq!(
        (seconds(request), seconds(forwarding)),
        ([100, 105], [101, 105])
    );
    assert_eq!(
        attribute(request, "http.response.status_code"),
        Some(Value::IntValue(200))
    );
    let query = Some(Value::StringValue("follow=1&token=redacted".to_owned()));
    assert_eq!(attribute(request, "url.query"), query);
    assert_eventually_counted(&registry, "exported").await;
}

#[tokio::test]
async fn a_rejected_request_is_one_span() {
    let (address, mut received) = start_collector("0").await;
    let spans = start_processor(address, &Registry::new());
    let record = traced_record(false);
    spans.on_ended(&record, record.arrived);
    spans.finish().await;
    let sent = received.recv().await.unwrap();
    assert_eq!(sent.len(), 1);
    let why = Some(Value::StringValue("queue-full".to_owned()));
    assert_eq!(attribute(&sent[0], "weir.rejection"), why);
}

#[tokio::test]
async fn spans_that_the_collector_rejects_are_counted() {
    let (address, mut received) = start_collector("8").await;
    let registry = Registry::new();
    let spans = start_processor(address, &registry);
    let record = traced_record(true);
    spans.on_ended(&record, record.arrived);
    spans.finish().await;
    assert!(received.recv().await.is_some());
    assert_eventually_counted(&registry, "failed").await;
    spans.on_ended(&record, record.arrived); // weir is ending
    assert!(is_counted(&registry, "dropped"), "{}", registry.render());
}
