//! A request target is forwarded byte for byte, without its fragment, or rejected: weir classifies
//! what the API server sees.

use crate::support::client::TestRequest;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::raw_http1::RawHttp1;
use crate::support::raw_http2::{RawFrame, RawHttp2};
use crate::support::weir::Weir;
use crate::support::{HttpVersion, raw_http2, weir};

/// Unusual but valid.
const FORWARDED_TARGETS: [&str; 21] = [
    "/",
    "/?",
    "/api/v1/pods?",
    "/api/v1/pods??watch=true",
    "//api//v1//pods//",
    "/api/v1/namespaces/a/pods/b%2Flog",
    "/api/v1/namespaces/a/pods/b%2flog?x=%2f",
    "/api/v1/namespaces/a/services/http:web:80/proxy//x;y=1/../z/./?a;b&c",
    "/api/v1/pods?labelSelector=a%3Db%2Cc+in+(d,e)&limit=500&limit=1",
    "/api/v1/pods?fieldSelector=metadata.name%3Da&&&=&=b&c=",
    "/api/v1/pods?continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEi-_.~!$'()*,@",
    "/%61pi/v1/pods",
    "/api/v1/%70ods",
    "/api/v1/pods/%C3%A9",
    "/api/v1/pods/\u{e9}",
    "/api/v1/pods?name=\u{e9}",
    "/api/v1/pods?bad=%zz%",
    "/a+b/a%20b/a%00b",
    "/a|b",
    "/a:80@b,c;d=e/-_.!~*'()",
    "/api/v1/pods?a=b?c=d/e:f@g",
];

async fn start_with_http1_upstream() -> (Weir, FakeUpstream) {
    let upstream = FakeUpstream::preferring(HttpVersion::Http1).await;
    let weir = weir::builder(upstream.address).start().await;
    (weir, upstream)
}

/// A client and an upstream, to test one target after the other.
struct TargetHarness {
    weir: Weir,
    upstream: FakeUpstream,
    http1: Option<RawHttp1>,
    http2: Option<(RawHttp2, u32)>,
}

impl TargetHarness {
    async fn new() -> Self {
        let (weir, upstream) = start_with_http1_upstream().await;
        Self {
            weir,
            upstream,
            http1: None,
            http2: None,
        }
    }

    /// The result of `target` over HTTP/1.1: the target at the upstream, or the code of the
    /// rejection.
    async fn send_http1(&mut self, target: &str) -> Result<String, u16> {
        let mut wire = match self.http1.take() {
            Some(wire) => wire,
            None => self.weir.raw_http1().await,
        };
        wire.send(format!("GET {target} HTTP/1.1\r\nhost: weir\r\n\r\n"))
            .await;
        tokio::select! {
            exchange = self.upstream.next_exchange() => {
                let seen = exchange.request.target.clone();
                exchange.respond(200, "{}").await;
                assert_eq!(wire.read_response("GET").await.0.status, 200);
                self.http1 = Some(wire);
                Ok(seen)
            }
            answered = wire.reader.read_head() => {
                let head = answered.unwrap().expect("an answer");
                self.upstream.assert_no_request();
                Err(head[0].split(' ').nth(1).unwrap().parse().unwrap())
            }
        }
    }

    /// The result of `target` over HTTP/2: the target at the upstream, or the kind of rejection.
    async fn send_http2(&mut self, target: &str) -> Result<String, RawFrame> {
        let (mut client, stream) = match self.http2.take() {
            Some(under_way) => under_way,
            None => (self.weir.raw_http2().await, 1),
        };
        client.send(&get_frame(stream, target)).await;
        let became = tokio::select! {
            exchange = self.upstream.next_exchange() => {
                let seen = exchange.request.target.clone();
                exchange.respond(200, "{}").await;
                assert!(client.next_frame_of_kind(raw_http2::HEADERS).await.is_ok());
                Ok(seen)
            }
            rejected = next_rejection(&mut client) => {
                self.upstream.assert_no_request();
                Err(rejected)
            }
        };
        if became.as_ref().is_ok_and(|_| stream < 1000) {
            self.http2 = Some((client, stream + 2));
        }
        became
    }
}

/// The frame that rejects it.
async fn next_rejection(client: &mut RawHttp2) -> RawFrame {
    loop {
        let frame = client.next_frame().await.unwrap();
        if matches!(
            frame.kind,
            raw_http2::HEADERS | raw_http2::RST_STREAM | raw_http2::GOAWAY
        ) {
            assert!(!frame.is_ok(), "200, and the upstream has seen nothing");
            return frame;
        }
    }
}

fn get_frame(stream: u32, target: &str) -> RawFrame {
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", target),
    ];
    RawFrame::request(stream, &head, true)
}

#[tokio::test]
async fn a_target_is_forwarded_byte_for_byte() {
    let mut between = TargetHarness::new().await;
    for target in FORWARDED_TARGETS {
        assert_eq!(between.send_http1(target).await, Ok(target.to_owned()));
        assert_eq!(between.send_http2(target).await, Ok(target.to_owned()));
    }
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let mut client = weir.alice(HttpVersion::Http2);
    for target in FORWARDED_TARGETS
        .into_iter()
        .filter(|target| target.is_ascii())
    {
        let call = client.send(TestRequest::get(target)).await;
        let exchange = upstream.next_exchange().await;
        let apart = ["%2Flog", "%2flog", "/proxy/"]
            .iter()
            .any(|last| target.contains(last));
        let http = if apart {
            HttpVersion::Http1
        } else {
            HttpVersion::Http2
        };
        assert_eq!(
            (exchange.request.target.as_str(), exchange.connection.http),
            (target, http)
        );
        exchange.respond(200, "{}").await;
        call.response().await;
    }
}

#[tokio::test]
async fn any_byte_in_a_target_is_forwarded_unchanged_or_the_request_is_rejected() {
    let mut between = TargetHarness::new().await;
    let mut wrong = Vec::new();
    for byte in 0x21..=0x7f_u8 {
        let odd = char::from(byte);
        for target in [format!("/a{odd}b?c"), format!("/a?b{odd}c")] {
            let in_path = target.ends_with("?c");
            let forwarded = target.split('#').next().unwrap_or_default();
            // As `docs/differences.md` lists them. `%b?` is no escape.
            let is_rejected = matches!(odd, '<' | '>' | '\x7f')
                || (in_path && matches!(odd, '`' | '%'))
                || (!in_path && odd == '"');
            match between.send_http1(&target).await {
                Ok(seen) if seen == forwarded && !is_rejected => {}
                Err(400) if is_rejected => {}
                other => wrong.push(format!("HTTP/1.1: {target:?} became {other:?}")),
            }
            match between.send_http2(&target).await {
                Ok(seen) if seen == forwarded => {}
                Err(_) => {}
                other => wrong.push(format!("HTTP/2: {target:?} became {other:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn raw_utf8_in_a_target_is_forwarded_and_other_high_bytes_are_a_400() {
    let mut between = TargetHarness::new().await;
    let target = "/ü?ü";
    assert_eq!(between.send_http1(target).await.as_deref(), Ok(target));
    for odd in [0x80_u8, 0xc3, 0xff] {
        for request in [
            [b"GET /a", &[odd][..], b" HTTP/1.1\r\nhost: weir\r\n\r\n"].concat(),
            [b"GET /a?", &[odd][..], b" HTTP/1.1\r\nhost: weir\r\n\r\n"].concat(),
        ] {
            let mut wire = between.weir.raw_http1().await;
            wire.send(request).await;
            assert_eq!(wire.read_response("GET").await.0.status, 400, "{odd:x}");
        }
    }
    between.upstream.assert_no_request();
}

#[tokio::test]
async fn limits_and_the_upstream_see_a_target_without_its_fragment() {
    const POD: &str = "/api/v1/namespaces/a/pods/b#/log";
    let mut between = TargetHarness::new().await;
    for (target, without) in [
        ("/api/v1/pods#", "/api/v1/pods"),
        ("/api/v1/pods#/log", "/api/v1/pods"),
        ("/api/v1/pods?watch=1#x", "/api/v1/pods?watch=1"),
        ("/#", "/"),
    ] {
        assert_eq!(between.send_http1(target).await.as_deref(), Ok(without));
        assert_eq!(between.send_http2(target).await.as_deref(), Ok(without));
    }
    let nothing_else = between.send_http1("https://weir#x").await;
    assert_eq!(nothing_else.as_deref(), Ok("/"));
    assert_eq!(between.send_http2("#x").await.as_deref(), Ok("/"));
    // The log of a pod would be long-running and need no seat. The pod itself does.
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).limits(1, 1).start().await;
    let mut client = weir.alice(HttpVersion::Http2);
    let call = client.send(TestRequest::get("/api/v1/pods")).await;
    let exchange = upstream.next_exchange().await;
    let mut wire = weir.raw_http1().await;
    wire.send(format!("GET {POD} HTTP/1.1\r\nhost: weir\r\n\r\n"))
        .await;
    assert_eq!(wire.read_response("GET").await.0.status, 429);
    let mut raw = weir.raw_http2().await;
    raw.send(&get_frame(1, POD)).await;
    assert_eq!(next_rejection(&mut raw).await.kind, raw_http2::HEADERS);
    let dropped = "apiserver_dropped_requests_total{request_kind=\"readOnly\"}";
    assert_eq!(weir.metric(dropped).await, 2.0);
    upstream.assert_no_request();
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}

#[tokio::test]
async fn invalid_targets_are_a_400() {
    let mut between = TargetHarness::new().await;
    for target in [
        "/a<b",
        "/a b",
        "/a%2",
        "/a%zz",
        "api/v1/pods",
        "?watch=1",
        "http://[::1/api",
        "/a\u{1}b",
    ] {
        assert_eq!(between.send_http1(target).await, Err(400), "{target:?}");
    }
}

#[tokio::test]
async fn a_malformed_path_is_a_kubernetes_bad_request() {
    let (weir, mut upstream) = start_with_http1_upstream().await;
    let response = weir
        .anonymous(HttpVersion::Http2)
        .get("/api/v1/pods/%2")
        .await;
    let kube_status = response.kube_status();
    assert_eq!(
        (response.status, kube_status.reason.as_str()),
        (400, "BadRequest")
    );
    assert_eq!(kube_status.cause, "weir/bad-request");
    upstream.assert_no_request();
}

#[tokio::test]
async fn paths_that_kube_apiserver_cannot_resolve_get_its_error() {
    let (weir, mut upstream) = start_with_http1_upstream().await;
    let response = weir
        .anonymous(HttpVersion::Http2)
        .get("/api/v1/watch")
        .await;
    assert_eq!(response.status, 500);
    assert!(
        response
            .text()
            .starts_with("Internal Server Error: \"/api/v1/watch\":"),
        "{response:?}"
    );
    upstream.assert_no_request();
}

#[tokio::test]
async fn connect_is_a_405() {
    let (weir, mut upstream) = start_with_http1_upstream().await;
    let mut wire = weir.raw_http1().await;
    wire.send("CONNECT kube.example:443 HTTP/1.1\r\nhost: kube.example:443\r\n\r\n")
        .await;
    assert_eq!(wire.read_response_head().await.status, 405);
    let mut client = weir.raw_http2().await;
    let head = [(":method", "CONNECT"), (":authority", "kube.example:443")];
    client.send(&RawFrame::request(1, &head, false)).await;
    let rejected = next_rejection(&mut client).await;
    assert_eq!((rejected.kind, rejected.stream), (raw_http2::HEADERS, 1));
    upstream.assert_no_request();
}

#[tokio::test]
async fn an_absolute_target_is_classified_and_forwarded_by_its_path() {
    let mut between = TargetHarness::new().await;
    let seen = between.send_http1("https://weir/api/v1/pods?limit=1").await;
    assert_eq!(seen.as_deref(), Ok("/api/v1/pods?limit=1"));
}

#[tokio::test]
async fn options_asterisk_is_forwarded() {
    for near in HttpVersion::BOTH {
        let (weir, mut upstream) = start_with_http1_upstream().await;
        let answered = async {
            match near {
                HttpVersion::Http1 => {
                    let mut wire = weir.raw_http1().await;
                    wire.send("OPTIONS * HTTP/1.1\r\nhost: weir\r\n\r\n").await;
                    assert_eq!(wire.read_response("OPTIONS").await.0.status, 200);
                }
                HttpVersion::Http2 => {
                    let mut client = weir.raw_http2().await;
                    let head = [
                        (":method", "OPTIONS"),
                        (":scheme", "https"),
                        (":authority", "weir"),
                        (":path", "*"),
                    ];
                    client.send(&RawFrame::request(1, &head, true)).await;
                    assert!(client.next_frame_of_kind(raw_http2::HEADERS).await.is_ok());
                }
            }
        };
        let served = async {
            let exchange = upstream.next_exchange().await;
            assert_eq!(exchange.request.target, "*");
            exchange.respond(200, "").await;
        };
        tokio::join!(answered, served);
    }
}
