//! Upstream failures: the client gets the matching error, a truncated response has no clean end,
//! and the next request works.

use std::time::Duration;

use h2::Reason;

use crate::support::certificates::pki;
use crate::support::client::{FullResponse, TestRequest};
use crate::support::fake_upstream::{FakeUpstream, RawUpstream};
use crate::support::raw_http1::RawHttp1;
use crate::support::{HttpVersion, eventually, weir};

const LIST: &str = "/api/v1/pods";

/// The request cannot have reached the API server.
fn assert_not_sent(response: &FullResponse, cause: &str) {
    assert_503(response, cause, &["1"]);
}

/// The request cannot have reached the API server, and a retry soon will not either.
fn assert_never_sent(response: &FullResponse, cause: &str) {
    assert_503(response, cause, &[]);
}

fn assert_503(response: &FullResponse, cause: &str, retry_after: &[&str]) {
    let kube_status = response.kube_status();
    assert_eq!(
        (response.status, kube_status.reason.as_str()),
        (503, "ServiceUnavailable"),
        "{kube_status:?}"
    );
    assert_eq!(kube_status.cause, cause, "{kube_status:?}");
    assert_eq!(response.headers.all("retry-after"), retry_after);
}

/// The request may have reached the API server.
fn assert_possibly_sent(response: &FullResponse, cause: &str) {
    let kube_status = response.kube_status();
    assert_eq!(
        (response.status, kube_status.reason.as_str()),
        (502, "BadGateway"),
        "{kube_status:?}"
    );
    assert_eq!(kube_status.cause, cause, "{kube_status:?}");
    assert_eq!(
        response.headers.get("retry-after"),
        None,
        "client-go would try again by itself"
    );
}

#[tokio::test]
async fn an_unreachable_upstream_is_a_503_until_it_is_back() {
    for near in HttpVersion::BOTH {
        let gone = FakeUpstream::start().await;
        let weir = weir::builder(gone.address).start().await;
        let place = gone.reservation.clone();
        drop(gone);
        let mut clients = [
            weir.alice(near),
            weir.anonymous(near),
            weir.with_certificate(near, &pki().alice),
        ];
        for client in &mut clients {
            // The listener may still be closing.
            let response = client.get(LIST).await;
            assert_not_sent(&response, "weir/upstream-connect");
            assert!(
                response.kube_status().message.contains("refused"),
                "{:?}",
                response.kube_status()
            );
        }
        let mut upstream = FakeUpstream::restart_at(place).await;
        for client in &mut clients {
            let call = client.send(TestRequest::get(LIST)).await;
            upstream.next_exchange().await.respond(200, "{}").await;
            assert_eq!(call.response().await.status, 200);
        }
    }
}

#[tokio::test]
async fn an_upstream_whose_certificate_is_not_trusted_is_a_503() {
    for near in HttpVersion::BOTH {
        let upstream = RawUpstream::start().await;
        let weir = weir::builder(upstream.address)
            .without_body_buffer()
            .start()
            .await;
        let impostor = pki().untrusted_ca.issue_server();
        for mut client in [weir.alice(near), weir.anonymous(near)] {
            let (response, _) = tokio::join!(
                client.get(LIST),
                upstream.accept_tls(HttpVersion::Http1, &impostor)
            );
            assert_never_sent(&response, "weir/upstream-tls");
        }
    }
}

#[tokio::test]
async fn an_upstream_that_does_not_speak_tls_is_a_503() {
    let upstream = RawUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .without_body_buffer()
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let answered = async {
        let mut wire = RawHttp1::new(upstream.accept_tcp().await);
        wire.send("HTTP/1.1 400 Bad Request\r\n\r\nthis is no TLS")
            .await;
        wire.reader.wait_for_close().await;
    };
    let (response, ()) = tokio::join!(client.get(LIST), answered);
    assert_never_sent(&response, "weir/upstream-tls");
}

#[tokio::test]
async fn an_upstream_that_closes_within_the_handshake_is_a_503() {
    let upstream = RawUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .without_body_buffer()
        .start()
        .await;
    let mut client = weir.anonymous(HttpVersion::Http2);
    let (response, ()) = tokio::join!(client.get(LIST), async {
        drop(upstream.accept_tcp().await)
    });
    assert_not_sent(&response, "weir/upstream-tls");
}

#[tokio::test]
async fn a_connection_that_breaks_before_a_response_is_a_502() {
    for (near, far) in HttpVersion::PAIRS {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = weir::builder(upstream.address)
            .without_body_buffer()
            .start()
            .await;
        let mut client = weir.alice(near);
        for request in [TestRequest::get(LIST), TestRequest::post(LIST, "{}")] {
            let call = client.send(request).await;
            let mut exchange = upstream.next_exchange().await;
            exchange.read_body().await;
            exchange.cut();
            assert_possibly_sent(&call.response().await, "weir/upstream-reset");
            upstream.assert_no_request();
        }
    }
}

#[tokio::test]
async fn an_http1_connection_that_closes_before_a_response_is_a_502() {
    for near in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::preferring(HttpVersion::Http1).await;
        let weir = weir::builder(upstream.address)
            .without_body_buffer()
            .start()
            .await;
        let call = weir.alice(near).send(TestRequest::get(LIST)).await;
        upstream.next_exchange().await.close().await;
        assert_possibly_sent(&call.response().await, "weir/upstream-reset");
        upstream.assert_no_request();
    }
}

#[tokio::test]
async fn a_stream_that_is_reset_after_it_may_have_been_executed_is_a_502() {
    for near in HttpVersion::BOTH {
        for reason in [
            Reason::INTERNAL_ERROR,
            Reason::CANCEL,
            Reason::ENHANCE_YOUR_CALM,
        ] {
            let mut upstream = FakeUpstream::start().await;
            let weir = weir::builder(upstream.address)
                .without_body_buffer()
                .start()
                .await;
            let call = weir.alice(near).send(TestRequest::get(LIST)).await;
            upstream.next_exchange().await.reset(reason);
            assert_possibly_sent(&call.response().await, "weir/upstream-reset");
            upstream.assert_no_request();
        }
    }
}

#[tokio::test]
async fn a_malformed_response_is_a_502() {
    for bytes in [
        "220 smtp.example ESMTP\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: two\r\n\r\n{}",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    ] {
        let upstream = RawUpstream::start().await;
        let weir = weir::builder(upstream.address)
            .without_body_buffer()
            .start()
            .await;
        let call = weir
            .anonymous(HttpVersion::Http2)
            .send(TestRequest::get(LIST))
            .await;
        let mut wire = RawHttp1::new(upstream.accept_trusted(HttpVersion::Http1).await);
        wire.read_request_head().await;
        wire.send(bytes).await;
        assert_possibly_sent(&call.response().await, "weir/upstream-reset");
    }
}

#[tokio::test]
async fn an_unrequested_protocol_switch_is_a_502() {
    let upstream = RawUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .without_body_buffer()
        .start()
        .await;
    let call = weir
        .anonymous(HttpVersion::Http2)
        .send(TestRequest::get(LIST))
        .await;
    let mut wire = RawHttp1::new(upstream.accept_trusted(HttpVersion::Http1).await);
    wire.read_request_head().await;
    wire.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")
        .await;
    let response = call.response().await;
    assert_eq!(response.status, 502);
    wire.reader.wait_for_close().await;
}

#[tokio::test]
async fn a_truncated_list_reaches_the_client_as_truncated() {
    for (near, far) in HttpVersion::PAIRS {
        for length in [None, Some(("content-length", "1000"))] {
            let mut upstream = FakeUpstream::preferring(far).await;
            let weir = weir::builder(upstream.address)
                .without_body_buffer()
                .start()
                .await;
            let mut call = weir.alice(near).send(TestRequest::get(LIST)).await;
            let mut exchange = upstream.next_exchange().await;
            exchange.send_head(200, length.as_slice()).await;
            exchange.send("{\"items\":[").await;
            assert_eq!(call.head().await.status, 200);
            assert_eq!(call.body().next_text().await, "{\"items\":[");
            exchange.cut();
            // No bytes follow the received part, and the client does not take it for complete.
            let rest = call.body().next_chunk().await;
            assert!(matches!(rest, Some(Err(_))), "{near:?} {far:?}: {rest:?}");
        }
    }
}

#[tokio::test]
async fn an_aborted_watch_reaches_the_client_as_aborted() {
    for (near, far) in HttpVersion::PAIRS {
        // A reset without an error is not a clean end either.
        for reason in [None, Some(Reason::INTERNAL_ERROR), Some(Reason::NO_ERROR)] {
            let mut upstream = FakeUpstream::preferring(far).await;
            let weir = weir::builder(upstream.address)
                .without_body_buffer()
                .start()
                .await;
            let mut call = weir
                .alice(near)
                .send(TestRequest::get("/api/v1/pods?watch=1"))
                .await;
            let mut exchange = upstream.next_exchange().await;
            exchange.send_head(200, &[]).await;
            exchange.send("{\"type\":\"ADDED\"}\n").await;
            call.head().await;
            assert_eq!(call.body().next_text().await, "{\"type\":\"ADDED\"}\n");
            match reason {
                Some(reason) => exchange.reset(reason),
                None => exchange.cut(),
            }
            let rest = call.body().next_chunk().await;
            assert!(matches!(rest, Some(Err(_))), "{near:?} {far:?}: {rest:?}");
        }
    }
}

#[tokio::test]
async fn an_upload_ends_when_its_upstream_connection_closes() {
    for (near, far) in HttpVersion::PAIRS {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = weir::builder(upstream.address)
            .without_body_buffer()
            .start()
            .await;
        let mut call = weir
            .alice(near)
            .send(TestRequest::new("POST", LIST).streamed())
            .await;
        call.send("half").await;
        let mut exchange = upstream.next_exchange().await;
        assert_eq!(exchange.request_body.next_text().await, "half");
        exchange.cut();
        let head = call.head().await;
        assert_eq!(head.status, 502, "{near:?} {far:?}");
        upstream.assert_no_request();
    }
}

#[tokio::test]
async fn a_response_may_begin_before_the_request_has_ended() {
    for (near, far) in HttpVersion::PAIRS {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = weir::builder(upstream.address)
            .without_body_buffer()
            .start()
            .await;
        let mut call = weir
            .alice(near)
            .send(TestRequest::new("POST", LIST).streamed())
            .await;
        call.send("more than is welcome").await;
        let mut exchange = upstream.next_exchange().await;
        exchange.request_body.next_text().await;
        exchange.send_head(413, &[("content-length", "9")]).await;
        exchange.send("too large").await;
        let head = call.head().await;
        assert_eq!(head.status, 413, "{near:?} {far:?}");
        assert_eq!(call.body().next_text().await, "too large");
    }
}

#[tokio::test]
async fn the_request_after_a_failure_succeeds() {
    for (near, far) in HttpVersion::PAIRS {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = weir::builder(upstream.address)
            .without_body_buffer()
            .start()
            .await;
        let mut client = weir.alice(near);
        for _ in 0..3 {
            // A read would be sent again: its connection may have been idle.
            let call = client.send(TestRequest::post(LIST, "{}")).await;
            upstream.next_exchange().await.cut();
            assert_eq!(call.response().await.status, 502);
            let call = client.send(TestRequest::get(LIST)).await;
            upstream.next_exchange().await.respond(200, "{}").await;
            assert_eq!(call.response().await.status, 200, "{near:?} {far:?}");
        }
    }
}

/// weir's own responses in place of the API server's are counted by code and cause. Those of the
/// API server are not.
#[tokio::test]
async fn responses_in_place_of_the_api_server_are_counted_by_cause() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .without_body_buffer()
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let series = |code: u16, cause: &str| {
        format!("weir_unanswered_requests_total{{cause=\"weir/{cause}\",code=\"{code}\"}}")
    };
    for code in [502, 503, 504] {
        let call = client.send(TestRequest::get(LIST)).await;
        upstream.next_exchange().await.respond(code, "{}").await;
        assert_eq!(call.response().await.status, code);
    }
    let metrics = weir.get_admin("/metrics").await;
    assert!(!metrics.text().contains("weir_unanswered_requests_total{"));

    let call = client.send(TestRequest::get(LIST)).await;
    upstream.next_exchange().await.cut();
    assert_eq!(call.response().await.status, 502);
    weir.wait_for_metric(&series(502, "upstream-reset"), 1.0)
        .await;
    let hasty = weir::builder(upstream.address)
        .without_body_buffer()
        .request_timeout(Duration::from_millis(200))
        .start()
        .await;
    let response = hasty.alice(HttpVersion::Http2).get(LIST).await; // never answered
    assert_eq!(response.status, 504);
    hasty
        .wait_for_metric(&series(504, "request-timeout"), 1.0)
        .await;
    let place = upstream.reservation.clone();
    drop(upstream);
    // The listener and its connections may still be closing.
    let connect = series(503, "upstream-connect");
    eventually("a refused connection", async || {
        client.get(LIST).await;
        (weir.metric(&connect).await > 0.0).then_some(())
    })
    .await;
    drop(place);
}

#[tokio::test]
async fn weir_survives_an_upstream_that_is_killed_with_requests_in_flight() {
    for near in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::start().await;
        let place = upstream.reservation.clone();
        let weir = weir::builder(place.address)
            .limits(2, 1)
            .without_body_buffer()
            .start()
            .await;
        let mut client = weir.alice(near);
        let mut list = client.send(TestRequest::get(LIST)).await;
        let mut exchange = upstream.next_exchange().await;
        exchange.send_head(200, &[]).await;
        exchange.send("[").await;
        list.head().await;
        let mut watch = client.send(TestRequest::get("/api/v1/pods?watch=1")).await;
        let mut watched = upstream.next_exchange().await;
        watched.send_head(200, &[]).await;
        watch.head().await;
        let mut upload = client.send(TestRequest::new("POST", LIST).streamed()).await;
        upload.send("half").await;
        let uploaded = upstream.next_exchange().await;
        drop((exchange, watched, uploaded, upstream));
        assert!(list.body().read_to_end().await.is_err());
        assert!(watch.body().read_to_end().await.is_err());
        assert!(matches!(upload.head().await.status, 502 | 503));
        let response = client.get(LIST).await;
        assert!(matches!(response.status, 502 | 503), "{response:?}");
        let mut upstream = FakeUpstream::restart_at(place).await;
        let call = client.send(TestRequest::get(LIST)).await;
        upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
}

#[tokio::test]
async fn errors_of_the_upstream_pass_unchanged() {
    for (near, far) in HttpVersion::PAIRS {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = weir::builder(upstream.address)
            .without_body_buffer()
            .start()
            .await;
        let mut client = weir.alice(near);
        for status in [400, 401, 403, 409, 429, 500, 503, 504] {
            let call = client.send(TestRequest::get(LIST)).await;
            let headers = [
                ("retry-after", "7"),
                ("x-kubernetes-pf-flowschema-uid", "u"),
            ];
            upstream
                .next_exchange()
                .await
                .respond_with_headers(status, &headers, "its own words")
                .await;
            let response = call.response().await;
            assert_eq!(
                (response.status, response.text()),
                (status, "its own words")
            );
            for (name, value) in headers {
                assert_eq!(response.headers.all(name), [value]);
            }
            let level = response.headers.get("x-kubernetes-pf-prioritylevel-uid");
            assert_eq!(level, None, "it is the upstream's to name");
        }
    }
}

#[tokio::test]
async fn an_http1_connection_that_closed_while_idle_loses_no_request() {
    let mut upstream = FakeUpstream::preferring(HttpVersion::Http1).await;
    let weir = weir::builder(upstream.address)
        .without_body_buffer()
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    for _ in 0..3 {
        let call = client.send(TestRequest::post(LIST, "{}")).await;
        let mut exchange = upstream.next_exchange().await;
        exchange.read_body().await;
        exchange.send_head(201, &[("content-length", "2")]).await;
        exchange.send("{}").await;
        assert_eq!(call.response().await.status, 201);
        exchange.close().await;
        let open = "weir_upstream_connections{way=\"pass-through\"}";
        eventually("weir to notice", async || {
            (weir.metric(open).await == 0.0).then_some(())
        })
        .await;
    }
}
