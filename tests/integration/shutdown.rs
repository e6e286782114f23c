//! Graceful shutdown: first unready, then no new connections, then requests and watches end, then
//! exit code 0.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::client::TestRequest;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::process::WeirProcess;
use crate::support::raw_http1::RawHttp1;
use crate::support::raw_http2::RawFrame;
use crate::support::weir::ALICE;
use crate::support::{HttpVersion, eventually, raw_http2};

const LIST: &str = "/api/v1/pods";
const WATCH: &str = "/api/v1/pods?watch=1";

const UNREADY_LINE: &str = "/readyz fails from now on";
const CLOSING_LINE: &str = "no new connections";

async fn start(flags: &[&str]) -> (WeirProcess, FakeUpstream) {
    let upstream = FakeUpstream::start().await;
    let flags = [&["--token-auth-file=tokens.csv"], flags].concat();
    let weir = WeirProcess::serve(upstream.address, &flags).await;
    (weir, upstream)
}

/// Waits until new connections fail.
async fn wait_until_listener_closed(weir: &WeirProcess) {
    eventually("the listener to close", async || {
        tokio::net::TcpStream::connect(weir.clients)
            .await
            .is_err()
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn sigterm_fails_readiness_at_once_and_weir_serves_until_the_delay_is_over() {
    let (mut weir, mut upstream) = start(&["--shutdown-delay-duration=12s"]).await;
    assert_eq!(weir.get_admin("/readyz").await.status, 200);
    let mut client = weir.alice(HttpVersion::Http2);
    let call = client.send(TestRequest::get("/readyz")).await;
    upstream
        .next_exchange()
        .await
        .respond(200, "the upstream's ok")
        .await;
    assert_eq!(call.response().await.text(), "the upstream's ok");

    weir.send_signal("TERM").await;
    weir.next_log_line(UNREADY_LINE).await;
    let report = weir.get_admin("/readyz").await;
    assert_eq!(report.status, 500);
    assert!(report.text().contains("[-]shutdown"), "{}", report.text());
    for http in HttpVersion::BOTH {
        for mut client in [weir.alice(http), weir.anonymous(http)] {
            for target in ["/readyz", "/readyz?verbose"] {
                let unready = client.get(target).await;
                assert_eq!(unready.status, 500, "{target}");
                assert!(
                    unready.text().contains("[-]shutdown failed"),
                    "{}",
                    unready.text()
                );
            }
            // New and existing connections are served as usual.
            let call = client.send(TestRequest::get(LIST)).await;
            upstream.next_exchange().await.respond(200, "{}").await;
            let response = call.response().await;
            assert_eq!(
                (response.status, response.headers.get("connection")),
                (200, None)
            );
        }
    }
    weir.next_log_line(CLOSING_LINE).await;
    wait_until_listener_closed(&weir).await;
    assert_eq!(weir.wait_for_exit().await.code(), Some(0));
}

#[tokio::test]
async fn persistent_connections_are_closed_in_the_second_half_of_the_delay() {
    let (mut weir, upstream) = start(&["--shutdown-delay-duration=8s"]).await;
    let upstream = crate::audit::spawn_ok_responder(upstream).await;
    let _ = upstream;
    let mut http1 = weir.raw_http1().await;
    let mut http2 = weir.raw_http2().await;
    http2.next_frame_of_kind(raw_http2::WINDOW_UPDATE).await;
    let request = format!(
        "GET {LIST} HTTP/1.1\r\nhost: weir\r\n{}: {}\r\n\r\n",
        ALICE.0, ALICE.1
    );
    http1.send(&*request).await;
    let first = http1.read_response("GET").await.0;
    assert_eq!((first.status, first.headers.get("connection")), (200, None));
    weir.send_signal("TERM").await;
    weir.next_log_line(UNREADY_LINE).await;
    loop {
        http1.send(&*request).await;
        let response = http1.read_response("GET").await.0;
        assert_eq!(response.status, 200);
        match response.headers.get("connection") {
            None => {}
            Some(value) => {
                assert_eq!(value, "close");
                break;
            }
        }
    }
    http1.reader.wait_for_close().await;
    assert_eq!(
        http2.next_frame_of_kind(raw_http2::GOAWAY).await.u32_at(4),
        0,
        "NO_ERROR"
    );
    // A client without another server to connect to is served.
    assert_eq!(weir.alice(HttpVersion::Http2).get(LIST).await.status, 200);
    weir.next_log_line(CLOSING_LINE).await;
    assert_eq!(weir.wait_for_exit().await.code(), Some(0));
}

#[tokio::test]
async fn idle_connections_get_goaway_or_are_closed() {
    let (mut weir, upstream) = start(&[]).await;
    let mut http1 = weir.raw_http1().await;
    http1
        .send("GET /api/v1/watch HTTP/1.1\r\nhost: weir\r\n\r\n")
        .await;
    assert_eq!(http1.read_response("GET").await.0.status, 500);
    let mut untouched = weir.raw_http1().await;
    let mut http2 = weir.raw_http2().await;
    http2.next_frame_of_kind(raw_http2::WINDOW_UPDATE).await;
    weir.send_signal("TERM").await;
    http1.reader.wait_for_close().await;
    untouched.reader.wait_for_close().await;
    assert_eq!(
        http2.next_frame_of_kind(raw_http2::GOAWAY).await.u32_at(4),
        0,
        "NO_ERROR"
    );
    http2.wait_for_close().await;
    assert_eq!(weir.wait_for_exit().await.code(), Some(0));
    drop(upstream);
}

#[tokio::test]
async fn an_in_flight_request_finishes_and_its_connection_closes_last() {
    let (mut weir, mut upstream) = start(&[]).await;
    let mut http1 = weir.raw_http1().await;
    http1
        .send(TestRequest::get(LIST).header(ALICE.0, ALICE.1).to_http1())
        .await;
    let first = upstream.next_exchange().await;
    let mut http2 = weir.raw_http2().await;
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", LIST),
        ALICE,
    ];
    http2.send(&RawFrame::request(1, &head, true)).await;
    let mut second = upstream.next_exchange().await;
    second.send_head(200, &[]).await;
    assert!(http2.next_frame_of_kind(raw_http2::HEADERS).await.is_ok());

    weir.send_signal("TERM").await;
    weir.next_log_line(CLOSING_LINE).await;
    http2.next_frame_of_kind(raw_http2::GOAWAY).await;
    assert!(weir.is_running());
    // One more round trip: the other connection has received its GOAWAY by then.
    second.send("part").await;
    assert_eq!(
        http2.next_frame_of_kind(raw_http2::DATA).await.payload,
        b"part"
    );
    first.respond(200, "whole").await;
    let (answered, body) = http1.read_response("GET").await;
    assert_eq!((answered.status, body.as_ref()), (200, &b"whole"[..]));
    assert_eq!(answered.headers.all("connection"), ["close"]);
    http1.reader.wait_for_close().await;
    assert!(weir.is_running());
    second.end().await;
    while !http2
        .next_frame_of_kind(raw_http2::DATA)
        .await
        .ends_stream()
    {}
    assert_eq!(weir.wait_for_exit().await.code(), Some(0));
}

#[tokio::test]
async fn watches_end_cleanly_within_the_grace_period() {
    for flags in [
        &["--shutdown-watch-termination-grace-period=2s"][..],
        &["--shutdown-watch-termination-grace-period=0s"],
        &[],
    ] {
        let (mut weir, mut upstream) = start(flags).await;
        let mut clients = [
            weir.alice(HttpVersion::Http1),
            weir.alice(HttpVersion::Http2),
            weir.anonymous(HttpVersion::Http2),
        ];
        let mut open = Vec::new();
        for client in &mut clients {
            for _ in 0..5 {
                let mut call = client.send(TestRequest::get(WATCH)).await;
                let mut exchange = upstream.next_exchange().await;
                exchange.send_head(200, &[]).await;
                exchange.send("event").await;
                call.head().await;
                assert_eq!(call.body().next_text().await, "event");
                open.push((call, exchange));
            }
        }
        // A list in flight ends first. Watches wait for it and still deliver events.
        let mut list = clients[1].send(TestRequest::get(LIST)).await;
        let listed = upstream.next_exchange().await;
        weir.send_signal("TERM").await;
        weir.next_log_line(CLOSING_LINE).await;
        let (call, exchange) = &mut open[0];
        exchange.send("late event").await;
        assert_eq!(call.body().next_text().await, "late event");
        listed.respond(200, "{}").await;
        assert_eq!(list.head().await.status, 200);
        assert_eq!(list.body().read_to_end().await.unwrap(), "{}");
        for (mut call, mut exchange) in open {
            let rest = call.body().next_chunk().await;
            assert!(rest.is_none(), "a clean end, not {rest:?}");
            exchange.wait_for_cancel().await;
        }
        assert_eq!(weir.wait_for_exit().await.code(), Some(0));
    }
}

#[tokio::test]
async fn a_tunnel_does_not_delay_shutdown() {
    let (mut weir, mut upstream) = start(&[]).await;
    let mut near = weir.raw_http1().await;
    let request = TestRequest::new("POST", "/api/v1/namespaces/a/pods/b/exec")
        .header("connection", "upgrade")
        .header("upgrade", "SPDY/3.1");
    near.send(request.to_http1()).await;
    let mut far: RawHttp1 = upstream.next_exchange().await.into_raw_http1();
    far.send(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: SPDY/3.1\r\n\r\n",
    )
    .await;
    assert_eq!(near.read_response_head().await.status, 101);
    weir.send_signal("TERM").await;
    near.reader.wait_for_close().await;
    far.reader.wait_for_close().await;
    assert_eq!(weir.wait_for_exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_request_that_does_not_end_delays_shutdown_until_its_deadline() {
    let (mut weir, mut upstream) = start(&["--request-timeout=2s"]).await;
    let call = weir
        .alice(HttpVersion::Http2)
        .send(TestRequest::get(LIST))
        .await;
    let mut exchange = upstream.next_exchange().await;
    weir.send_signal("INT").await;
    exchange.wait_for_cancel().await;
    assert_eq!(call.response().await.status, 504);
    assert_eq!(weir.wait_for_exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_weir_at_once() {
    for stage in [UNREADY_LINE, CLOSING_LINE] {
        let delay = if stage == UNREADY_LINE {
            "--shutdown-delay-duration=1h"
        } else {
            "--request-timeout=1h"
        };
        let (mut weir, mut upstream) = start(&[delay]).await;
        let mut call = weir
            .alice(HttpVersion::Http2)
            .send(TestRequest::get(LIST))
            .await;
        let mut exchange = upstream.next_exchange().await;
        weir.send_signal("TERM").await;
        weir.next_log_line(stage).await;
        weir.send_signal("TERM").await;
        assert_eq!(weir.wait_for_exit().await.code(), Some(1), "cut short");
        assert!(call.try_head().await.is_err());
        exchange.wait_for_cancel().await;
    }
}

#[tokio::test]
async fn startup_raises_and_logs_the_open_file_limit() {
    let upstream = FakeUpstream::start().await;
    let weir = WeirProcess::serve(upstream.address, &[]).await;
    let raised = weir
        .startup_lines
        .iter()
        .find(|line| line.contains("open-file limit"));
    let raised = raised.unwrap_or_else(|| panic!("{:#?}", weir.startup_lines));
    let limit = raised.split("limit=").nth(1).unwrap_or_default();
    assert!(
        limit.parse::<u64>().is_ok_and(|limit| limit >= 1024),
        "{raised}"
    );
    // A warning tells that requests with unverified tokens are classified as one user.
    assert!(
        weir.startup_lines
            .iter()
            .any(|line| line.contains("system:anonymous"))
    );
}

#[tokio::test]
async fn a_watch_that_must_be_aborted_makes_the_exit_code_nonzero() {
    // In a longer grace period the minimum transfer rate ends it.
    let (mut weir, mut upstream) = start(&["--shutdown-watch-termination-grace-period=0s"]).await;
    let mut call = weir
        .alice(HttpVersion::Http1)
        .send(TestRequest::get(WATCH))
        .await;
    let mut exchange = upstream.next_exchange().await;
    exchange.send_head(200, &[]).await;
    call.head().await;
    // Its client does not read, so it cannot be ended cleanly.
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let flood = tokio::spawn(async move {
        while exchange.try_send(vec![7; 64 << 10]).await.is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    weir.wait_until_stable(&sent, 1024).await;
    weir.send_signal("TERM").await;
    weir.next_log_line("shut down: remaining connections").await;
    assert_eq!(weir.wait_for_exit().await.code(), Some(1));
    flood.await.unwrap();
    drop(call);
}
