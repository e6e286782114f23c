//! Nothing is buffered and nothing is changed: bytes arrive as they were written.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::support::client::{TestClient, TestRequest};
use crate::support::fake_upstream::{FakeUpstream, RawUpstream};
use crate::support::raw_http1::RawHttp1;
use crate::support::weir::Weir;
use crate::support::{HttpVersion, weir};

const WATCH: &str = "/api/v1/pods?watch=1";

/// A client and an upstream with these HTTP versions, and weir between them.
async fn start_between(
    client: HttpVersion,
    upstream: HttpVersion,
) -> (TestClient, FakeUpstream, Weir) {
    let upstream = FakeUpstream::preferring(upstream).await;
    let weir = weir::builder(upstream.address)
        .without_body_buffer()
        .start()
        .await;
    (weir.alice(client), upstream, weir)
}

/// As [`start_between`]; weir reads small bodies before it forwards them.
async fn start_with_body_buffer(
    client: HttpVersion,
    upstream: HttpVersion,
) -> (TestClient, FakeUpstream, Weir) {
    let upstream = FakeUpstream::preferring(upstream).await;
    let weir = weir::builder(upstream.address).start().await;
    (weir.alice(client), upstream, weir)
}

#[tokio::test]
async fn the_headers_of_a_quiet_watch_arrive_before_any_byte_of_its_body() {
    for (near, far) in HttpVersion::PAIRS {
        let (mut client, mut upstream, _weir) = start_between(near, far).await;
        let mut call = client.send(TestRequest::get(WATCH)).await;
        let mut exchange = upstream.next_exchange().await;
        assert_eq!(exchange.connection.http, far);
        exchange
            .send_head(200, &[("content-type", "application/json")])
            .await;
        let head = call.head().await;
        assert_eq!(
            (head.status, &head.headers["content-type"]),
            (200, "application/json")
        );
        exchange.end().await;
        assert_eq!(call.body().read_to_end().await.unwrap(), "");
    }
}

#[tokio::test]
async fn each_watch_event_passes_as_it_is_written() {
    for (near, far) in HttpVersion::PAIRS {
        let (mut client, mut upstream, _weir) = start_between(near, far).await;
        let mut call = client.send(TestRequest::get(WATCH)).await;
        let mut exchange = upstream.next_exchange().await;
        exchange.send_head(200, &[]).await;
        assert_eq!(call.head().await.status, 200);
        for n in 0..20 {
            let event = format!("{{\"type\":\"ADDED\",\"n\":{n}}}\n");
            exchange.send(event.clone()).await;
            assert_eq!(call.body().next_text().await, event, "{near:?} {far:?}");
        }
        exchange.end().await;
        assert!(call.body().next_chunk().await.is_none());
    }
}

#[tokio::test]
async fn a_request_body_streams_before_and_after_the_response_begins() {
    for (near, far) in HttpVersion::PAIRS {
        let (mut client, mut upstream, _weir) = start_between(near, far).await;
        let mut call = client
            .send(TestRequest::new("POST", "/api/v1/upload").streamed())
            .await;
        let mut exchange = upstream.next_exchange().await;
        for piece in ["one", "two"] {
            call.send(piece).await;
            assert_eq!(exchange.request_body.next_text().await, piece);
        }
        exchange.send_head(200, &[]).await;
        assert_eq!(call.head().await.status, 200);
        exchange.send("begun").await;
        assert_eq!(call.body().next_text().await, "begun");
        call.send("three").await;
        assert_eq!(
            exchange.request_body.next_text().await,
            "three",
            "{near:?} {far:?}"
        );
        call.end().await;
        assert!(exchange.request_body.next_chunk().await.is_none());
        exchange.end().await;
        assert!(call.body().next_chunk().await.is_none());
    }
}

#[tokio::test]
async fn a_body_of_20_mb_arrives_byte_for_byte_both_ways() {
    const LENGTH: u32 = 20_000_000;
    let up: Bytes = (0..LENGTH)
        .map(|n| n.to_le_bytes()[usize::try_from(n % 4).unwrap()])
        .collect();
    let down: Bytes = up.iter().rev().copied().collect();
    for (near, far) in HttpVersion::PAIRS {
        let (mut client, mut upstream, _weir) = start_between(near, far).await;
        let sent = client.request(TestRequest::post(
            "/api/v1/namespaces/a/configmaps",
            up.clone(),
        ));
        let served = async {
            let mut exchange = upstream.next_exchange().await;
            let body = exchange.read_body().await;
            assert_eq!(&exchange.request.headers["content-length"], "20000000");
            exchange.respond(201, down.clone()).await;
            body
        };
        let (response, body) = tokio::join!(sent, served);
        assert_eq!(
            Sha256::digest(&body),
            Sha256::digest(&up),
            "{near:?} {far:?}"
        );
        assert_eq!(
            Sha256::digest(&response.body),
            Sha256::digest(&down),
            "{near:?} {far:?}"
        );
        assert_eq!(&response.headers["content-length"], "20000000");
    }
}

#[tokio::test]
async fn announced_trailers_pass_both_ways() {
    for (near, far) in HttpVersion::PAIRS {
        let (mut client, mut upstream, _weir) = start_between(near, far).await;
        let request = TestRequest::new("POST", "/api/v1/upload")
            .header("te", "trailers")
            .header("trailer", "x-sum")
            .streamed();
        let mut call = client.send(request).await;
        let mut exchange = upstream.next_exchange().await;
        assert_eq!(&exchange.request.headers["te"], "trailers");
        call.send("up").await;
        call.outgoing.end(&[("x-sum", "sent")]).await.unwrap();
        assert_eq!(exchange.read_body().await, "up");
        assert_eq!(
            exchange.request_body.trailers.get("x-sum"),
            Some("sent"),
            "{near:?} {far:?}"
        );
        exchange.send_head(200, &[("trailer", "x-sum")]).await;
        exchange.send("down").await;
        exchange.end_with_trailers(&[("x-sum", "answered")]).await;
        let response = call.response().await;
        assert_eq!(response.text(), "down");
        assert_eq!(
            response.trailers.get("x-sum"),
            Some("answered"),
            "{near:?} {far:?}"
        );
    }
}

#[tokio::test]
async fn trailers_need_no_announcement_between_http2_sides() {
    let (mut client, mut upstream, _weir) =
        start_between(HttpVersion::Http2, HttpVersion::Http2).await;
    let mut call = client
        .send(TestRequest::new("POST", "/pkg.Service/Call").streamed())
        .await;
    call.send("up").await;
    call.outgoing.end(&[("x-sum", "sent")]).await.unwrap();
    let mut exchange = upstream.next_exchange().await;
    exchange.read_body().await;
    assert_eq!(exchange.request_body.trailers.get("x-sum"), Some("sent"));
    exchange.send_head(200, &[]).await;
    exchange.end_with_trailers(&[("grpc-status", "0")]).await;
    assert_eq!(call.response().await.trailers.get("grpc-status"), Some("0"));
}

/// Names that are no trailers, and that HTTP/2 allows to be sent.
const NO_TRAILERS: [&str; 16] = [
    "authorization",
    "cache-control",
    "content-encoding",
    "content-range",
    "content-type",
    "expect",
    "host",
    "http2-settings",
    "if-none-match",
    "max-forwards",
    "pragma",
    "proxy-authorization",
    "range",
    "realm",
    "trailer",
    "www-authenticate",
];

/// Likewise, and HTTP/2 does not.
const CONNECTION_TRAILERS: [&str; 6] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// The names that must not pass from a peer that speaks `http`.
fn no_trailers(http: HttpVersion) -> Vec<&'static str> {
    match http {
        HttpVersion::Http1 => [&NO_TRAILERS[..], &CONNECTION_TRAILERS].concat(),
        HttpVersion::Http2 => NO_TRAILERS.to_vec(),
    }
}

#[tokio::test]
async fn trailers_that_are_headers_of_a_message_or_a_connection_pass_in_no_direction() {
    for (near, far) in HttpVersion::PAIRS {
        for whole in [false, true] {
            let (mut client, mut upstream, _weir) = start_with_body_buffer(near, far).await;
            let names = no_trailers(near);
            let announced = format!("x-sum, {}", names.join(", "));
            let request = TestRequest::new("POST", "/api/v1/upload")
                .header("te", "trailers")
                .header("trailer", &announced)
                .streamed();
            let mut call = client.send(request).await;
            let mut sent: Vec<_> = names.iter().map(|name| (*name, "x")).collect();
            sent.push(("x-sum", "sent"));
            let mut exchange = if whole {
                call.send("up").await;
                call.outgoing.end(&sent).await.unwrap();
                upstream.next_exchange().await
            } else {
                call.send(vec![b'u'; 100_000]).await; // more than is read beforehand
                let exchange = upstream.next_exchange().await;
                call.outgoing.end(&sent).await.unwrap();
                exchange
            };
            exchange.read_body().await;
            let passed = &exchange.request_body.trailers.0;
            assert_eq!(passed.len(), 1, "{near:?} {far:?} {passed:?}");
            assert_eq!(passed[0], ("x-sum".to_owned(), "sent".to_owned()));
            exchange.send_head(200, &[("trailer", &announced)]).await;
            exchange.send("down").await;
            let mut sent: Vec<_> = no_trailers(far).into_iter().map(|n| (n, "x")).collect();
            sent.push(("x-sum", "answered"));
            exchange.end_with_trailers(&sent).await;
            let passed = call.response().await.trailers.0;
            assert_eq!(passed.len(), 1, "{near:?} {far:?} {passed:?}");
            assert_eq!(passed[0], ("x-sum".to_owned(), "answered".to_owned()));
        }
    }
}

#[tokio::test]
async fn a_body_whose_trailers_all_are_dropped_ends() {
    for (near, far) in HttpVersion::PAIRS {
        for name in no_trailers(near) {
            for size in [2, 100_000] {
                let (mut client, mut upstream, _weir) = start_with_body_buffer(near, far).await;
                let request = TestRequest::new("POST", "/api/v1/upload")
                    .header("te", "trailers")
                    .streamed();
                let mut call = client.send(request).await;
                call.send(vec![b'u'; size]).await;
                call.outgoing.end(&[(name, "x")]).await.unwrap();
                let mut exchange = upstream.next_exchange().await;
                assert_eq!(exchange.read_body().await.len(), size, "{name}");
                exchange.send_head(201, &[("te", "trailers")]).await;
                exchange.send("down").await;
                exchange.end_with_trailers(&[("host", "x")]).await;
                let response = call.response().await;
                assert_eq!(response.status, 201, "{near:?} {far:?} {name}");
                assert_eq!(response.text(), "down");
            }
        }
    }
}

#[tokio::test]
async fn trailers_with_an_invalid_name_are_a_malformed_body() {
    for far in HttpVersion::BOTH {
        for size in [2, 100_000] {
            let (mut client, mut upstream, _weir) =
                start_with_body_buffer(HttpVersion::Http1, far).await;
            let request = TestRequest::new("POST", "/api/v1/upload").streamed();
            let mut call = client.send(request).await;
            call.send(vec![b'u'; size]).await;
            let upload = (size > 2).then_some(upstream.next_exchange());
            let upload = futures_util::future::OptionFuture::from(upload).await;
            let _reading = upload.map(|mut exchange| {
                tokio::spawn(async move { exchange.request_body.read_to_end().await })
            });
            call.outgoing.end(&[("x\"sum", "1")]).await.unwrap();
            assert_eq!(call.response().await.status, 400, "{far:?} {size}");
        }
    }
}

#[tokio::test]
async fn a_body_s_encoding_and_bytes_pass_unchanged() {
    const GZIP: &[u8] = b"\x1f\x8b\x08\0not really\0\xff";
    for (near, far) in HttpVersion::PAIRS {
        let (mut client, mut upstream, _weir) = start_between(near, far).await;
        let request = TestRequest::post("/api/v1/namespaces/a/pods", GZIP)
            .header("content-encoding", "gzip")
            .header("accept-encoding", "gzip");
        let call = client.send(request).await;
        let mut exchange = upstream.next_exchange().await;
        assert_eq!(exchange.read_body().await, GZIP);
        assert_eq!(exchange.request.headers.all("content-encoding"), ["gzip"]);
        assert_eq!(exchange.request.headers.all("accept-encoding"), ["gzip"]);
        let headers = [
            ("content-encoding", "gzip"),
            ("etag", "\"1\""),
            ("vary", "Accept"),
        ];
        exchange.respond_with_headers(200, &headers, GZIP).await;
        let response = call.response().await;
        assert_eq!(response.body, GZIP);
        for (name, value) in headers {
            assert_eq!(response.headers.all(name), [value]);
        }

        let call = client.send(TestRequest::get("/api")).await;
        let exchange = upstream.next_exchange().await;
        assert_eq!(
            exchange.request.headers.get("accept-encoding"),
            None,
            "none is added"
        );
        exchange.respond(200, "{}").await;
        call.response().await;
    }
}

#[tokio::test]
async fn repeated_headers_stay_separate_and_in_order() {
    for (near, far) in HttpVersion::PAIRS {
        let (mut client, mut upstream, _weir) = start_between(near, far).await;
        let request = TestRequest::get("/api")
            .header("impersonate-user", "carol")
            .header("impersonate-group", "first")
            .header("impersonate-group", "second")
            .header("impersonate-group", "third, still");
        let call = client.send(request).await;
        let exchange = upstream.next_exchange().await;
        let groups = exchange.request.headers.all("impersonate-group");
        assert_eq!(
            groups,
            ["first", "second", "third, still"],
            "{near:?} {far:?}"
        );
        let headers = [
            ("warning", "299 - \"one\""),
            ("x-other", "1"),
            ("warning", "299 - \"two\""),
        ];
        exchange.respond_with_headers(200, &headers, "{}").await;
        let response = call.response().await;
        assert_eq!(
            response.headers.all("warning"),
            ["299 - \"one\"", "299 - \"two\""]
        );
    }
}

#[tokio::test]
async fn unknown_methods_pass() {
    for (near, far) in HttpVersion::PAIRS {
        let (mut client, mut upstream, _weir) = start_between(near, far).await;
        for method in ["PROPFIND", "TRACE", "frobnicate", "M-SEARCH!"] {
            let target = "/api/v1/namespaces/a/services/b/proxy/x";
            let call = client.send(TestRequest::new(method, target)).await;
            let exchange = upstream.next_exchange().await;
            assert_eq!(exchange.request.method, method);
            exchange.respond(207, "multi").await;
            let response = call.response().await;
            assert_eq!((response.status, response.text()), (207, "multi"));
        }
    }
}

#[tokio::test]
async fn responses_without_a_body_end_with_their_head() {
    for (near, far) in HttpVersion::PAIRS {
        let (mut client, mut upstream, _weir) = start_between(near, far).await;
        let length = [("content-length", "77")];
        let cases: [(&str, u16, &[(&str, &str)]); 4] = [
            ("HEAD", 200, &length),
            ("HEAD", 404, &[]),
            ("DELETE", 204, &[]),
            ("GET", 304, &[("etag", "\"2\"")]),
        ];
        for (method, status, headers) in cases {
            let call = client
                .send(TestRequest::new(method, "/api/v1/namespaces/a"))
                .await;
            let mut exchange = upstream.next_exchange().await;
            exchange.send_head(status, headers).await;
            let response = call.response().await;
            assert_eq!(
                (response.status, response.text()),
                (status, ""),
                "{near:?} {far:?}"
            );
            for (name, value) in headers {
                assert_eq!(
                    response.headers.all(name),
                    [*value],
                    "{method} {status} {near:?} {far:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn the_body_of_a_get_passes_with_or_without_a_length() {
    for (near, far) in HttpVersion::PAIRS {
        let (mut client, mut upstream, _weir) = start_between(near, far).await;
        let target = "/api/v1/namespaces/a/services/search/proxy/_search";
        for with_length in [true, false] {
            let sent = async {
                let mut request = TestRequest::post(target, "query");
                if !with_length {
                    request = request.streamed();
                }
                let mut call = client.send(request.method("GET")).await;
                if !with_length {
                    call.send("query").await;
                    call.end().await;
                }
                call.response().await
            };
            let served = async {
                let mut exchange = upstream.next_exchange().await;
                let body = exchange.read_body().await;
                exchange.respond(200, "found").await;
                body
            };
            let (response, body) = tokio::join!(sent, served);
            assert_eq!(response.text(), "found");
            assert_eq!(
                body, "query",
                "length told: {with_length}, {near:?} {far:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_response_delimited_by_close_ends_cleanly_if_its_connection_does() {
    for near in HttpVersion::BOTH {
        for clean in [true, false] {
            let upstream = RawUpstream::start().await;
            let weir = weir::builder(upstream.address).start().await;
            let mut client = weir.alice(near);
            let mut call = client.send(TestRequest::get("/api/v1/pods")).await;
            let mut wire = RawHttp1::new(upstream.accept_trusted(HttpVersion::Http1).await);
            wire.read_request_head().await;
            wire.send("HTTP/1.1 200 OK\r\n\r\nall of it").await;
            assert_eq!(call.head().await.status, 200);
            assert_eq!(call.body().next_text().await, "all of it");
            if clean {
                wire.close().await;
                assert_eq!(call.body().read_to_end().await.unwrap(), "");
            } else {
                drop(wire);
                assert!(
                    call.body().read_to_end().await.is_err(),
                    "cut off, as {near:?} sees it"
                );
            }
        }
    }
}

#[tokio::test]
async fn heads_of_nearly_1_mib_pass_both_ways() {
    // 100 headers of 9000 bytes: more than the libraries' defaults, less than Go's 1 MiB.
    let value = "v".repeat(9000);
    let names: Vec<String> = (0..100).map(|n| format!("x-large-{n}")).collect();
    let large: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), value.as_str())).collect();
    for (near, far) in HttpVersion::PAIRS {
        let (mut client, mut upstream, _weir) = start_between(near, far).await;
        let request = large
            .iter()
            .fold(TestRequest::get("/api"), |request, (n, v)| {
                request.header(n, v)
            });
        let (call, exchange) = tokio::join!(client.send(request), upstream.next_exchange());
        for (name, value) in &large {
            assert_eq!(exchange.request.headers.all(name), [*value]);
        }
        let (response, ()) = tokio::join!(
            call.response(),
            exchange.respond_with_headers(200, &large, "{}")
        );
        assert_eq!(
            response.status,
            200,
            "{near:?} {far:?}: {}",
            response.text()
        );
        for (name, value) in &large {
            assert_eq!(response.headers.all(name), [*value]);
        }
    }
}
