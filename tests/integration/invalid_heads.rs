//! Request heads that the API server's HTTP server rejects before any handler: weir responds with
//! the same code and a Status, forwards nothing, and closes an HTTP/1.1 connection, so that no
//! bytes after them count as a request.

use serde_json::Value;

use crate::support::client::TestRequest;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::raw_http1::RawHttp1;
use crate::support::raw_http2::RawFrame;
use crate::support::weir::{ALICE, Weir};
use crate::support::{HttpVersion, raw_http2, weir};

const LIST: &str = "/api/v1/pods";

/// The request that an attacker tries to smuggle.
const PIPELINED_REQUEST: &str = "GET /behind HTTP/1.1\r\nhost: weir\r\n\r\n";

async fn start() -> (Weir, FakeUpstream) {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    (weir, upstream)
}

/// The next response is weir's own with this code and message, and the connection ends after it.
async fn assert_rejected(wire: &mut RawHttp1, code: u16, message: &str) {
    let (answered, body) = wire.read_response("GET").await;
    let text = String::from_utf8_lossy(&body);
    assert_eq!(answered.status, code, "{text}");
    assert_eq!(answered.headers.get("connection"), Some("close"));
    assert_eq!(
        answered.headers.get("content-type"),
        Some("application/json")
    );
    let status: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status["kind"], "Status");
    assert_eq!(status["code"], code);
    let said = status["message"].as_str().unwrap();
    assert!(said.contains(message), "{said:?} is not {message:?}");
    assert_eq!(status["details"]["causes"][0]["reason"], "weir/bad-request");
    assert_eq!(
        wire.reader.read_some(1).await.ok().flatten(),
        None,
        "it ends"
    );
}

#[tokio::test]
async fn heads_that_go_s_server_rejects_get_its_code_and_end_their_connection() {
    let (weir, mut upstream) = start().await;
    let te = "Unsupported transfer encoding";
    for (head, code, message) in [
        ("", 400, "missing required Host header"),
        ("host: a\r\nhost: a", 400, "too many Host headers"),
        ("host: a\r\nHost: b", 400, "too many Host headers"),
        ("host: a b", 400, "malformed Host header"),
        ("host: a/b", 400, "malformed Host header"),
        ("host: a@b", 400, "malformed Host header"),
        ("host: a\r\ntransfer-encoding: gzip, chunked", 501, te),
        ("host: a\r\ntransfer-encoding: chunked, chunked", 501, te),
        (
            "host: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked",
            501,
            te,
        ),
        // The HTTP library does not parse these.
        ("host: a\r\ntransfer-encoding: identity", 501, te),
        ("host: a\r\ntransfer-encoding: chunked, gzip", 501, te),
        ("host: a\r\ntransfer-encoding: xchunked", 501, te),
        (
            "host: a\r\nexpect: foo\r\ncontent-length: 5",
            417,
            "Expect may only be 100-continue",
        ),
        (
            "host: a\r\ncontent-length: 3\r\ncontent-length: 30",
            400,
            "invalid content-length",
        ),
    ] {
        let mut wire = weir.raw_http1().await;
        let end = if head.is_empty() { "\r\n" } else { "\r\n\r\n" };
        wire.send(format!(
            "POST /first HTTP/1.1\r\n{head}{end}0\r\n\r\n{PIPELINED_REQUEST}"
        ))
        .await;
        assert_rejected(&mut wire, code, message).await;
        upstream.assert_no_request();
    }
}

#[tokio::test]
async fn heads_that_the_http_library_cannot_parse_get_a_status() {
    let (weir, mut upstream) = start().await;
    let long = "x".repeat(65_535);
    let fields = "x: y\r\n".repeat(2000);
    for (text, code, message) in [
        (
            "GET / HTTP/9.9\r\nhost: a\r\n\r\n".to_owned(),
            400,
            "HTTP version",
        ),
        (
            "GET / HTTP/1.1\r\nbad header: x\r\n\r\n".to_owned(),
            400,
            "HTTP header",
        ),
        (
            "G@T / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
            400,
            "HTTP method",
        ),
        (
            "GET /a<b HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
            400,
            "URI",
        ),
        (
            "POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n".to_owned(),
            400,
            "transfer-encoding",
        ),
        (
            format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n"),
            414,
            "target",
        ),
        (
            format!("GET / HTTP/1.1\r\n{fields}\r\n"),
            431,
            "head is too long",
        ),
    ] {
        let mut wire = weir.raw_http1().await;
        wire.send(format!("{text}{PIPELINED_REQUEST}")).await;
        assert_rejected(&mut wire, code, message).await;
        upstream.assert_no_request();
    }
    let counted = async |cause: &str| {
        let series = format!("weir_malformed_requests_total{{cause=\"{cause}\"}}");
        weir.metric(&series).await
    };
    assert_eq!(counted("syntax").await, 5.0);
    assert_eq!(counted("target").await, 1.0);
    assert_eq!(counted("headers").await, 1.0);
}

#[tokio::test]
async fn the_rejection_of_a_malformed_head_follows_earlier_responses() {
    let (weir, mut upstream) = start().await;
    for bad in ["G@T / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"] {
        let mut wire = weir.raw_http1().await;
        let good = TestRequest::get(LIST).header(ALICE.0, ALICE.1).to_http1();
        wire.send([&good[..], bad.as_bytes(), PIPELINED_REQUEST.as_bytes()].concat())
            .await;
        let body = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        upstream.next_exchange().await.respond(404, body).await;
        let (answered, text) = wire.read_response("GET").await;
        assert_eq!((answered.status, &text[..]), (404, body.as_bytes()));
        assert_rejected(&mut wire, 400, "").await;
        upstream.assert_no_request();
    }
}

#[tokio::test]
async fn a_malformed_host_on_http2_is_a_400_and_its_connection_goes_on() {
    let (weir, mut upstream) = start().await;
    let mut client = weir.raw_http2().await;
    let head = |authority: &'static str| {
        [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", authority),
            (":path", LIST),
            ALICE,
        ]
    };
    let with_host = |hosts: &[&'static str]| {
        let hosts = hosts.iter().map(|host| ("host", *host));
        head("weir").into_iter().chain(hosts).collect::<Vec<_>>()
    };
    for (stream, head) in [
        (1, with_host(&["a b"])),
        (3, with_host(&["a", "a"])),
        (5, head("a@b").to_vec()),
    ] {
        client.send(&RawFrame::request(stream, &head, true)).await;
        let mut body = Vec::new();
        loop {
            let frame = client.next_frame().await.unwrap();
            if frame.kind == raw_http2::DATA {
                assert_eq!(frame.stream, stream, "{frame:?}");
                body.extend_from_slice(&frame.payload);
            }
            if frame.ends_stream() {
                break;
            }
        }
        let status: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(status["code"], 400, "{status}");
        upstream.assert_no_request();
    }
    // The HTTP library resets it before weir sees a request.
    client.send(&RawFrame::request(7, &head("a b"), true)).await;
    assert_eq!(
        client
            .next_frame_of_kind(raw_http2::RST_STREAM)
            .await
            .stream,
        7
    );
    client
        .send(&RawFrame::request(9, &head("weir"), true))
        .await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert!(client.next_frame_of_kind(raw_http2::HEADERS).await.is_ok());
    let series = "weir_malformed_requests_total{cause=\"host\"}";
    assert_eq!(weir.metric(series).await, 3.0);
}

#[tokio::test]
async fn an_expect_header_that_go_ignores_on_http2_is_not_forwarded() {
    let (weir, mut upstream) = start().await;
    let request = TestRequest::get(LIST).header("expect", "foo");
    let call = weir.alice(HttpVersion::Http2).send(request).await;
    let exchange = upstream.next_exchange().await;
    assert_eq!(exchange.request.headers.get("expect"), None);
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}
