//! Request heads that the API server's HTTP server answers before any handler: they get its code and a Status, reach nothing, and
//! over HTTP/1.1 end their connection, so that nothing behind them counts as a request.

use serde_json::Value;

use crate::support::Http;
use crate::support::client::Ask;
use crate::support::frames;
use crate::support::frames::Frame;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::ALICE;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

const LIST: &str = "/api/v1/pods";

/// What a smuggler would want to be a request of its own.
const BEHIND: &str = "GET /behind HTTP/1.1\r\nhost: weir\r\n\r\n";

async fn serving() -> (Weir, Upstream) {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    (weir, upstream)
}

/// The next answer is weir's own with this code and message, and the connection ends behind it.
async fn is_rejected(wire: &mut Wire, code: u16, message: &str) {
    let (answered, body) = wire.answer("GET").await;
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
    assert_eq!(wire.reader.some(1).await.ok().flatten(), None, "it ends");
}

#[tokio::test]
async fn heads_that_go_s_server_refuses_get_its_code_and_a_status_and_end_their_connection() {
    let (weir, mut upstream) = serving().await;
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
        // These the HTTP library does not parse.
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
        let mut wire = weir.wire().await;
        let end = if head.is_empty() { "\r\n" } else { "\r\n\r\n" };
        wire.send(format!(
            "POST /first HTTP/1.1\r\n{head}{end}0\r\n\r\n{BEHIND}"
        ))
        .await;
        is_rejected(&mut wire, code, message).await;
        upstream.assert_nothing_came();
    }
}

#[tokio::test]
async fn heads_that_the_http_library_cannot_parse_get_a_status() {
    let (weir, mut upstream) = serving().await;
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
        let mut wire = weir.wire().await;
        wire.send(format!("{text}{BEHIND}")).await;
        is_rejected(&mut wire, code, message).await;
        upstream.assert_nothing_came();
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
async fn a_head_that_cannot_be_parsed_stands_behind_the_answers_before_it() {
    let (weir, mut upstream) = serving().await;
    for bad in ["G@T / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"] {
        let mut wire = weir.wire().await;
        let good = Ask::get(LIST).header(ALICE.0, ALICE.1).to_http1();
        wire.send([&good[..], bad.as_bytes(), BEHIND.as_bytes()].concat())
            .await;
        let body = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        upstream.next().await.reply(404, body).await;
        let (answered, text) = wire.answer("GET").await;
        assert_eq!((answered.status, &text[..]), (404, body.as_bytes()));
        is_rejected(&mut wire, 400, "").await;
        upstream.assert_nothing_came();
    }
}

#[tokio::test]
async fn a_malformed_host_on_http2_is_a_400_and_its_connection_goes_on() {
    let (weir, mut upstream) = serving().await;
    let mut client = weir.frames().await;
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
        client.send(&Frame::request(stream, &head, true)).await;
        let mut body = Vec::new();
        loop {
            let frame = client.next().await.unwrap();
            if frame.kind == frames::DATA {
                assert_eq!(frame.stream, stream, "{frame:?}");
                body.extend_from_slice(&frame.payload);
            }
            if frame.ends() {
                break;
            }
        }
        let status: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(status["code"], 400, "{status}");
        upstream.assert_nothing_came();
    }
    // The HTTP library resets it before weir sees a request.
    client.send(&Frame::request(7, &head("a b"), true)).await;
    assert_eq!(client.until(frames::RST_STREAM).await.stream, 7);
    client.send(&Frame::request(9, &head("weir"), true)).await;
    upstream.next().await.reply(200, "{}").await;
    assert!(client.until(frames::HEADERS).await.is_ok());
    let series = "weir_malformed_requests_total{cause=\"host\"}";
    assert_eq!(weir.metric(series).await, 3.0);
}

#[tokio::test]
async fn an_expectation_that_go_does_not_look_at_on_http2_goes_no_further_than_weir() {
    let (weir, mut upstream) = serving().await;
    let ask = Ask::get(LIST).header("expect", "foo");
    let call = weir.alice(Http::Two).send(ask).await;
    let exchange = upstream.next().await;
    assert_eq!(exchange.asked.headers.get("expect"), None);
    exchange.reply(200, "{}").await;
    assert_eq!(call.answer().await.status, 200);
}
