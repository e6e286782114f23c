//! Headers: weir sets the identity of a request. Forwarding, expectation and host headers are
//! passed correctly.

use ::weir::identity::request_header::IdentityHeaders;
use ::weir::observe::spans;
use http::HeaderName;
use tokio::net::TcpListener;

use crate::support::certificates::pki;
use crate::support::client::TestRequest;
use crate::support::fake_upstream::{FakeUpstream, RawUpstream};
use crate::support::message::Headers;
use crate::support::raw_http2::{RawFrame, RawHttp2};
use crate::support::weir::{ALICE, Weir};
use crate::support::{HttpVersion, raw_http2, weir, within};

/// Every spelling of headers by which a client could assert an identity.
const IDENTITY_HEADERS: [&str; 12] = [
    "X-Remote-User",
    "x-remote-uid",
    "X-REMOTE-GROUP",
    "X-Remote-Extra-Scopes",
    "x-remote-extra-authentication.kubernetes.io%2fpod-name",
    "X_Remote_User",
    "X-Remote_Group",
    "x_remote-extra_a",
    "X-Remote-Whatever-Comes",
    "X-Remote-",
    "x_remote_uid",
    "X-Remote_Extra-",
];

/// The names of `headers` that could assert an identity.
fn identity_header_names(headers: &Headers) -> Vec<String> {
    let names = headers
        .0
        .iter()
        .map(|(name, _)| name.to_lowercase().replace('_', "-"));
    names.filter(|name| name.starts_with("x-remote")).collect()
}

/// HPACK (RFC 7541, 6.2.3): a `date` (33 in its table) that is never indexed.
const DATE_UNINDEXED: [u8; 2] = [0x1f, 33 - 15];

#[tokio::test]
async fn a_date_header_is_never_added_to_the_hpack_table() {
    let upstream = RawUpstream::start().await;
    let weir = weir::builder(upstream.address).limits(1, 1).start().await;
    let mut client = weir.raw_http2().await;
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", "/api/v1/pods"),
        ALICE,
    ];
    client.send(&RawFrame::request(1, &head, true)).await;
    let mut server = RawHttp2::server(upstream.accept_trusted(HttpVersion::Http2).await, &[]).await;
    let stream = server.next_frame_of_kind(raw_http2::HEADERS).await.stream;
    client.send(&RawFrame::request(3, &head, true)).await;
    let rejected = client.next_frame_of_kind(raw_http2::HEADERS).await;
    let response = [
        (":status", "200"),
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ];
    server
        .send(&RawFrame::request(stream, &response, true))
        .await;
    let forwarded = client.next_frame_of_kind(raw_http2::HEADERS).await;
    assert_eq!((rejected.stream, forwarded.stream), (3, 1));
    for response in [rejected, forwarded] {
        let mut bytes = response.payload.windows(2);
        assert!(bytes.any(|two| two == DATE_UNINDEXED), "{response:?}");
    }
}

async fn start_weir(upstream: &FakeUpstream) -> Weir {
    weir::builder(upstream.address).start().await
}

#[tokio::test]
async fn identity_headers_of_a_client_never_reach_the_upstream() {
    for (near, far) in HttpVersion::PAIRS {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = start_weir(&upstream).await;
        for mut client in [weir.alice(near), weir.anonymous(near)] {
            let request = IDENTITY_HEADERS
                .iter()
                .fold(TestRequest::get("/api"), |request, name| {
                    request.header(name, "mallory")
                });
            let call = client.send(request).await;
            let exchange = upstream.next_exchange().await;
            assert_eq!(
                identity_header_names(&exchange.request.headers),
                [""; 0],
                "{near:?} {far:?}"
            );
            exchange.respond(200, "{}").await;
            call.response().await;
        }
    }
}

#[tokio::test]
async fn a_certificate_s_user_is_asserted_whatever_identity_headers_the_client_sends() {
    for (near, far) in HttpVersion::PAIRS {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = start_weir(&upstream).await;
        let mut client = weir.with_certificate(near, &pki().alice);
        let request = IDENTITY_HEADERS
            .iter()
            .fold(TestRequest::get("/api"), |request, name| {
                request.header(name, "mallory")
            });
        let request = if near == HttpVersion::Http1 {
            request.header("connection", "x-remote-user, x-remote-group, x-remote-uid")
        } else {
            request
        };
        let call = client.send(request).await;
        let exchange = upstream.next_exchange().await;
        let headers = &exchange.request.headers;
        assert_eq!(headers.all("x-remote-user"), ["alice"]);
        assert_eq!(
            headers.all("x-remote-group"),
            ["dev", "ops", "system:authenticated"]
        );
        let mallory = headers.0.iter().find(|(_, value)| value == "mallory");
        assert_eq!(mallory, None, "{near:?} {far:?}");
        exchange.respond(200, "{}").await;
        call.response().await;
    }
}

#[tokio::test]
async fn identity_headers_in_trailers_are_removed() {
    for (near, far) in HttpVersion::PAIRS {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = start_weir(&upstream).await;
        for mut client in [weir.alice(near), weir.with_certificate(near, &pki().alice)] {
            let request = TestRequest::new("POST", "/api")
                .header("trailer", "x-sum, x-remote-user, x_remote_group")
                .header("te", "trailers")
                .streamed();
            let mut call = client.send(request).await;
            call.send("body").await;
            let trailers = [
                ("x-remote-user", "mallory"),
                ("x_remote_group", "system:masters"),
                ("x-sum", "1"),
            ];
            call.outgoing.end(&trailers).await.unwrap();
            let mut exchange = upstream.next_exchange().await;
            exchange.read_body().await;
            let come = &exchange.request_body.trailers;
            assert_eq!(identity_header_names(come), [""; 0], "{near:?} {far:?}");
            assert_eq!(come.get("x-sum"), Some("1"), "{near:?} {far:?}");
            exchange.respond(200, "{}").await;
            call.response().await;
        }
    }
}

#[tokio::test]
async fn identity_headers_of_configured_names_are_set_by_weir_only() {
    let name = HeaderName::from_static;
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .identity_headers(IdentityHeaders {
            username: vec![name("x-user"), name("x-old_user")],
            uid: vec![name("x-uid")],
            group: vec![name("x-group")],
            extra_prefix: vec!["x-more-".to_owned()],
            former: Vec::new(),
        })
        .start()
        .await;
    let claimed = [
        "X-User",
        "x-old-user",
        "X_Uid",
        "x-group",
        "x-more-a",
        "X-Remote-User",
    ];
    for mut client in [
        weir.alice(HttpVersion::Http2),
        weir.with_certificate(HttpVersion::Http2, &pki().alice),
    ] {
        let request = claimed.iter().fold(TestRequest::get("/api"), |request, n| {
            request.header(n, "mallory")
        });
        let call = client.send(request).await;
        let exchange = upstream.next_exchange().await;
        let headers = &exchange.request.headers;
        assert!(
            !headers.0.iter().any(|(_, value)| value == "mallory"),
            "{headers:?}"
        );
        if exchange.connection.certificate.is_some() {
            assert_eq!(headers.all("x-user"), ["alice"]);
            assert_eq!(
                headers.all("x-group"),
                ["dev", "ops", "system:authenticated"]
            );
            assert_eq!(identity_header_names(headers), [""; 0]);
        }
        exchange.respond(200, "{}").await;
        call.response().await;
    }
}

#[tokio::test]
async fn x_forwarded_for_is_set_and_only_trusted_proxies_extend_it() {
    for (near, far) in HttpVersion::PAIRS {
        for trusted in [false, true] {
            let mut upstream = FakeUpstream::preferring(far).await;
            let setup = weir::builder(upstream.address);
            let setup = if trusted {
                setup.trust_test_clients()
            } else {
                setup
            };
            let weir = setup.start().await;
            let request = TestRequest::get("/api")
                .header("X-Forwarded-For", "10.1.1.1, 10.2.2.2")
                .header("x-forwarded-for", "10.3.3.3")
                .header("x-real-ip", "10.4.4.4");
            let mut client = weir.alice(near);
            let call = client.send(request).await;
            let exchange = upstream.next_exchange().await;
            let headers = &exchange.request.headers;
            let (chain, real) = if trusted {
                ("10.1.1.1, 10.2.2.2, 10.3.3.3, 127.0.0.1", Some("10.4.4.4"))
            } else {
                ("127.0.0.1", None)
            };
            assert_eq!(headers.all("x-forwarded-for"), [chain]);
            assert_eq!(headers.get("x-real-ip"), real);
            exchange.respond(200, "{}").await;
            call.response().await;
        }
    }
}

#[tokio::test]
async fn the_upstream_is_addressed_by_its_own_name() {
    for (near, far) in HttpVersion::PAIRS {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = start_weir(&upstream).await;
        let mut client = weir.alice(near);
        let call = client.send(TestRequest::get("/api")).await;
        let exchange = upstream.next_exchange().await;
        assert_eq!(
            exchange.request.authority,
            upstream.address.to_string(),
            "{near:?} {far:?}"
        );
        let hosts = exchange.request.headers.all("host").len();
        assert_eq!(hosts, if far == HttpVersion::Http1 { 1 } else { 0 });
        exchange.respond(200, "{}").await;
        call.response().await;
    }
}

#[tokio::test]
async fn a_proxied_application_is_addressed_by_the_host_of_its_client() {
    let apps = [
        "/api/v1/namespaces/a/pods/b:8080/proxy/login?next=%2f",
        "/api/v1/namespaces/a/services/https:b:443/proxy/",
        "/api/v1/nodes/n1/proxy/stats",
    ];
    let others = [
        "/api/v1/namespaces/a/pods/proxy",
        "/apis/example.com/v1/namespaces/a/pods/b/proxy",
        "/api/v1/namespaces/a/pods/b/log",
    ];
    for (near, far) in HttpVersion::PAIRS {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = start_weir(&upstream).await;
        let own = upstream.address.to_string();
        for target in apps.iter().chain(&others) {
            let is_app = apps.contains(target);
            let mut client = weir.alice(near);
            let request = TestRequest::get(target).header("x-forwarded-proto", "http");
            let call = client.send(request).await;
            let exchange = upstream.next_exchange().await;
            let context = format!("{near:?} {far:?} {target}");
            let (host, proto) = if is_app {
                ("weir", "https")
            } else {
                (&*own, "http")
            };
            let headers = &exchange.request.headers;
            assert_eq!(exchange.request.authority, host, "{context}");
            assert_eq!(
                headers.get("x-forwarded-host"),
                is_app.then_some("weir"),
                "{context}"
            );
            assert_eq!(headers.all("x-forwarded-proto"), [proto], "{context}");
            exchange.respond(200, "{}").await;
            call.response().await;
        }
    }
}

#[tokio::test]
async fn only_forwarding_headers_are_added() {
    for (near, far) in HttpVersion::PAIRS {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = start_weir(&upstream).await;
        let sent = [
            (
                "accept",
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            ),
            ("audit-id", "5a1f"),
            ("impersonate-uid", "u"),
            ("user-agent", "kubectl/v1.36.0"),
            ("x_under_score", "kept"),
        ];
        let request = sent
            .iter()
            .fold(TestRequest::get("/apis"), |request, (n, v)| {
                request.header(n, v)
            });
        let mut client = weir.alice(near);
        let call = client.send(request).await;
        let exchange = upstream.next_exchange().await;
        let mut seen: Vec<(&str, &str)> = exchange
            .request
            .headers
            .0
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .collect();
        seen.retain(|(name, _)| !["cdn-loop", "host"].contains(name));
        seen.sort_unstable();
        let mut expected = [&sent[..], &[ALICE, ("x-forwarded-for", "127.0.0.1")]].concat();
        expected.sort_unstable();
        assert_eq!(seen, expected, "{near:?} {far:?}");
        let headers = [
            ("date", "Sat, 21 Nov 2026 10:00:00 GMT"),
            ("x-kubernetes-pf-flowschema-uid", "7"),
        ];
        exchange.respond_with_headers(200, &headers, "{}").await;
        let response = call.response().await;
        let mut seen: Vec<(&str, &str)> = response
            .headers
            .0
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, [&[("content-length", "2")], &headers[..]].concat());
    }
}

#[tokio::test]
async fn split_cookies_of_http2_are_joined_for_http1() {
    let mut upstream = FakeUpstream::preferring(HttpVersion::Http1).await;
    let weir = start_weir(&upstream).await;
    let mut client = weir.alice(HttpVersion::Http2);
    let request = TestRequest::get("/api")
        .header("cookie", "a=1")
        .header("cookie", "b=2");
    let call = client.send(request).await;
    let exchange = upstream.next_exchange().await;
    assert_eq!(exchange.request.headers.all("cookie"), ["a=1; b=2"]);
    exchange.respond(200, "{}").await;
    call.response().await;
}

#[tokio::test]
async fn expect_100_continue_is_answered_by_weir() {
    for far in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = start_weir(&upstream).await;
        let mut wire = weir.raw_http1().await;
        wire.send(
            "POST /api HTTP/1.1\r\nhost: weir\r\nauthorization: Bearer alice-token\r\n\
             Expect: 100-continue\r\ncontent-length: 4\r\n\r\n",
        )
        .await;
        let continued = wire.reader.read_head().await;
        assert_eq!(continued.unwrap().unwrap(), ["HTTP/1.1 100 Continue"]);
        wire.send("body").await;
        let mut exchange = upstream.next_exchange().await;
        assert_eq!(exchange.request.headers.get("expect"), None);
        assert_eq!(exchange.read_body().await, "body");
        exchange.respond(201, "{}").await;
        assert_eq!(wire.read_response("POST").await.0.status, 201);
    }
}

#[tokio::test]
async fn a_rejected_request_gets_no_100_continue() {
    let upstream = FakeUpstream::start().await;
    let weir = start_weir(&upstream).await;
    let unknown = pki().untrusted_ca.issue_client("mallory", &[]);
    let mut wire = weir.raw_http1_with_certificate(Some(&unknown)).await;
    wire.send(
        "POST /api HTTP/1.1\r\nhost: weir\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n",
    )
    .await;
    let answered = wire.read_response_head().await;
    assert_eq!(answered.status, 401);
    assert_eq!(answered.headers.get("connection"), Some("close"));
    wire.reader.wait_for_close().await;
}

/// weir does not change the trace context (https://www.w3.org/TR/trace-context/) unless it traces
/// itself.
#[tokio::test]
async fn trace_headers_pass_unchanged() {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for (near, far) in HttpVersion::PAIRS {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = start_weir(&upstream).await;
        let request = TestRequest::get("/api")
            .header("traceparent", parent)
            .header("tracestate", "rojo=00f067aa0ba902b7")
            .header("tracestate", "congo=t61rcWkgMzE")
            .header("baggage", "userId=alice");
        let call = weir.alice(near).send(request).await;
        let exchange = upstream.next_exchange().await;
        let came = &exchange.request.headers;
        let of = |name: &str| -> Vec<&str> {
            let named = came
                .0
                .iter()
                .filter(|(of, _)| of.eq_ignore_ascii_case(name));
            named.map(|(_, value)| value.as_str()).collect()
        };
        assert_eq!(of("traceparent"), [parent], "{near:?} {far:?}");
        assert_eq!(
            of("tracestate").join(","),
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
        );
        assert_eq!(of("baggage"), ["userId=alice"]);
        exchange.respond(200, "{}").await;
        call.response().await;
    }
}

#[tokio::test]
async fn a_sampled_trace_continues_with_weir_s_span() {
    let collector = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = collector.local_addr().unwrap().to_string();
    let mut upstream = FakeUpstream::start().await;
    let config = spans::config::TracingConfig {
        endpoint: endpoint.parse().unwrap(),
        sampling_rate_per_million: 0,
    };
    let weir = weir::builder(upstream.address).with(|weir| weir.reporting.spans = Some(config));
    let weir = weir.start().await;
    for (flags, same) in [("01", false), ("00", true)] {
        let parent = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
        let request = TestRequest::get("/api")
            .header("traceparent", &parent)
            .header("tracestate", "rojo=1");
        let call = weir.alice(HttpVersion::Http1).send(request).await;
        let exchange = upstream.next_exchange().await;
        let went = exchange.request.headers.get("traceparent").unwrap();
        assert_eq!(went[..36], parent[..36], "the trace is the same");
        assert_eq!(went == parent, same, "{went}");
        assert_eq!(went[52..], format!("-{flags}"));
        assert_eq!(exchange.request.headers.get("tracestate"), Some("rojo=1"));
        exchange.respond(200, "{}").await;
        call.response().await;
    }
    // The content of spans is tested in `observe::spans`; here only that something is sent.
    within("spans", collector.accept()).await.unwrap();
}
