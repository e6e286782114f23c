//! Going away in order: first unready, then no new connections, then requests and watches end, then exit code 0.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use crate::support::Http;
use crate::support::client::Answer;
use crate::support::client::Ask;
use crate::support::eventually;
use crate::support::frames;
use crate::support::frames::Frame;
use crate::support::process::Process;
use crate::support::upstream::Upstream;
use crate::support::weir::ALICE;
use crate::support::wire::Wire;

const LIST: &str = "/api/v1/pods";
const WATCH: &str = "/api/v1/pods?watch=1";

const TOLD: &str = "/readyz fails from now on";
const CLOSING: &str = "no new connections";

async fn serving(flags: &[&str]) -> (Process, Upstream) {
    let upstream = Upstream::start().await;
    let flags = [&["--token-auth-file=tokens.csv"], flags].concat();
    let weir = Process::serve(upstream.address, &flags).await;
    (weir, upstream)
}

/// The admin listener's `/readyz`, for which weir asks the upstream.
async fn readiness(weir: &Process, upstream: &mut Upstream) -> Answer {
    let mut report = std::pin::pin!(weir.operator("/readyz"));
    loop {
        tokio::select! {
            report = &mut report => return report,
            exchange = upstream.next() => exchange.reply(200, "ok").await,
        }
    }
}

/// Waits until nobody can connect any more.
async fn assert_closed_to_newcomers(weir: &Process) {
    eventually("the listener to close", async || {
        tokio::net::TcpStream::connect(weir.clients)
            .await
            .is_err()
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn told_to_go_it_is_unready_at_once_and_serves_on_until_the_delay_is_over() {
    let (mut weir, mut upstream) = serving(&["--shutdown-delay-duration=6s"]).await;
    assert_eq!(readiness(&weir, &mut upstream).await.status, 200);
    let mut client = weir.alice(Http::Two);
    let call = client.send(Ask::get("/readyz")).await;
    upstream.next().await.reply(200, "the upstream's ok").await;
    assert_eq!(call.answer().await.text(), "the upstream's ok");

    weir.signal("TERM").await;
    weir.logs(TOLD).await;
    let report = readiness(&weir, &mut upstream).await;
    assert_eq!(report.status, 500);
    assert!(report.text().contains("[-]shutdown"), "{}", report.text());
    for http in Http::BOTH {
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
            // Newcomers, and whoever is there, are served as usual.
            let call = client.send(Ask::get(LIST)).await;
            upstream.next().await.reply(200, "{}").await;
            let answer = call.answer().await;
            assert_eq!(
                (answer.status, answer.headers.get("connection")),
                (200, None)
            );
        }
    }
    weir.logs(CLOSING).await;
    assert_closed_to_newcomers(&weir).await;
    assert_eq!(weir.ended().await.code(), Some(0));
}

#[tokio::test]
async fn clients_that_keep_connections_move_in_the_second_half_of_the_delay() {
    let (mut weir, upstream) = serving(&["--shutdown-delay-duration=8s"]).await;
    let upstream = crate::audit::answered(upstream).await;
    let _ = upstream;
    let mut http1 = weir.wire().await;
    let mut http2 = weir.frames().await;
    http2.until(frames::WINDOW_UPDATE).await;
    let ask = format!(
        "GET {LIST} HTTP/1.1\r\nhost: weir\r\n{}: {}\r\n\r\n",
        ALICE.0, ALICE.1
    );
    http1.send(&*ask).await;
    let first = http1.answer("GET").await.0;
    assert_eq!((first.status, first.headers.get("connection")), (200, None));
    weir.signal("TERM").await;
    weir.logs(TOLD).await;
    loop {
        http1.send(&*ask).await;
        let answer = http1.answer("GET").await.0;
        assert_eq!(answer.status, 200);
        match answer.headers.get("connection") {
            None => {}
            Some(told) => {
                assert_eq!(told, "close");
                break;
            }
        }
    }
    http1.reader.ended().await;
    assert_eq!(http2.until(frames::GOAWAY).await.number(4), 0, "NO_ERROR");
    // Who has nowhere else to go is served.
    assert_eq!(weir.alice(Http::Two).get(LIST).await.status, 200);
    weir.logs(CLOSING).await;
    assert_eq!(weir.ended().await.code(), Some(0));
}

#[tokio::test]
async fn idle_connections_are_told_and_closed() {
    let (mut weir, upstream) = serving(&[]).await;
    let mut http1 = weir.wire().await;
    http1
        .send("GET /api/v1/watch HTTP/1.1\r\nhost: weir\r\n\r\n")
        .await;
    assert_eq!(http1.answer("GET").await.0.status, 500);
    let mut untouched = weir.wire().await;
    let mut http2 = weir.frames().await;
    http2.until(frames::WINDOW_UPDATE).await;
    weir.signal("TERM").await;
    http1.reader.ended().await;
    untouched.reader.ended().await;
    assert_eq!(http2.until(frames::GOAWAY).await.number(4), 0, "NO_ERROR");
    http2.ended().await;
    assert_eq!(weir.ended().await.code(), Some(0));
    drop(upstream);
}

#[tokio::test]
async fn a_request_under_way_finishes_and_its_connection_is_the_last_to_close() {
    let (mut weir, mut upstream) = serving(&[]).await;
    let mut http1 = weir.wire().await;
    http1
        .send(Ask::get(LIST).header(ALICE.0, ALICE.1).to_http1())
        .await;
    let first = upstream.next().await;
    let mut http2 = weir.frames().await;
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", LIST),
        ALICE,
    ];
    http2.send(&Frame::request(1, &head, true)).await;
    let mut second = upstream.next().await;
    second.begin(200, &[]).await;
    assert!(http2.until(frames::HEADERS).await.is_ok());

    weir.signal("TERM").await;
    weir.logs(CLOSING).await;
    http2.until(frames::GOAWAY).await;
    assert!(weir.runs());
    // There and back once more: the other connection has been told as well by then.
    second.send("part").await;
    assert_eq!(http2.until(frames::DATA).await.payload, b"part");
    first.reply(200, "whole").await;
    let (answered, body) = http1.answer("GET").await;
    assert_eq!((answered.status, body.as_ref()), (200, &b"whole"[..]));
    assert_eq!(answered.headers.all("connection"), ["close"]);
    http1.reader.ended().await;
    assert!(weir.runs());
    second.end().await;
    while !http2.until(frames::DATA).await.ends() {}
    assert_eq!(weir.ended().await.code(), Some(0));
}

#[tokio::test]
async fn watches_end_cleanly_within_the_grace_period() {
    for flags in [&["--shutdown-watch-termination-grace-period=2s"][..], &[]] {
        let (mut weir, mut upstream) = serving(flags).await;
        let mut clients = [
            weir.alice(Http::One),
            weir.alice(Http::Two),
            weir.anonymous(Http::Two),
        ];
        let mut open = Vec::new();
        for client in &mut clients {
            for _ in 0..5 {
                let mut call = client.send(Ask::get(WATCH)).await;
                let mut exchange = upstream.next().await;
                exchange.begin(200, &[]).await;
                exchange.send("event").await;
                call.head().await;
                assert_eq!(call.body().text().await, "event");
                open.push((call, exchange));
            }
        }
        // A list under way goes first; watches wait for it, and still carry events.
        let mut list = clients[1].send(Ask::get(LIST)).await;
        let listed = upstream.next().await;
        weir.signal("TERM").await;
        weir.logs(CLOSING).await;
        let (call, exchange) = &mut open[0];
        exchange.send("late event").await;
        assert_eq!(call.body().text().await, "late event");
        listed.reply(200, "{}").await;
        assert_eq!(list.head().await.status, 200);
        assert_eq!(list.body().rest().await.unwrap(), "{}");
        for (mut call, mut exchange) in open {
            let rest = call.body().next().await;
            assert!(rest.is_none(), "a clean end, not {rest:?}");
            exchange.given_up().await;
        }
        assert_eq!(weir.ended().await.code(), Some(0));
    }
}

#[tokio::test]
async fn a_tunnel_does_not_keep_it_from_going() {
    let (mut weir, mut upstream) = serving(&[]).await;
    let mut near = weir.wire().await;
    let ask = Ask::new("POST", "/api/v1/namespaces/a/pods/b/exec")
        .header("connection", "upgrade")
        .header("upgrade", "SPDY/3.1");
    near.send(ask.to_http1()).await;
    let mut far: Wire = upstream.next().await.into_wire();
    far.send(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: SPDY/3.1\r\n\r\n",
    )
    .await;
    assert_eq!(near.answered().await.status, 101);
    weir.signal("TERM").await;
    near.reader.ended().await;
    far.reader.ended().await;
    assert_eq!(weir.ended().await.code(), Some(0));
}

#[tokio::test]
async fn a_request_that_does_not_end_holds_it_up_no_longer_than_its_time() {
    let (mut weir, mut upstream) = serving(&["--request-timeout=2s"]).await;
    let call = weir.alice(Http::Two).send(Ask::get(LIST)).await;
    let mut exchange = upstream.next().await;
    weir.signal("INT").await;
    exchange.given_up().await;
    assert_eq!(call.answer().await.status, 504);
    assert_eq!(weir.ended().await.code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    for stage in [TOLD, CLOSING] {
        let delay = if stage == TOLD {
            "--shutdown-delay-duration=1h"
        } else {
            "--request-timeout=1h"
        };
        let (mut weir, mut upstream) = serving(&[delay]).await;
        let mut call = weir.alice(Http::Two).send(Ask::get(LIST)).await;
        let mut exchange = upstream.next().await;
        weir.signal("TERM").await;
        weir.logs(stage).await;
        weir.signal("TERM").await;
        assert_eq!(weir.ended().await.code(), Some(1), "cut short");
        assert!(call.try_head().await.is_err());
        exchange.given_up().await;
    }
}

#[tokio::test]
async fn at_its_start_it_raises_and_tells_its_open_file_limit() {
    let upstream = Upstream::start().await;
    let weir = Process::serve(upstream.address, &[]).await;
    let raised = weir
        .opening
        .iter()
        .find(|line| line.contains("open-file limit"));
    let raised = raised.unwrap_or_else(|| panic!("{:#?}", weir.opening));
    let limit = raised.split("limit=").nth(1).unwrap_or_default();
    assert!(
        limit.parse::<u64>().is_ok_and(|limit| limit >= 1024),
        "{raised}"
    );
    // It also says whom it cannot tell apart.
    assert!(
        weir.opening
            .iter()
            .any(|line| line.contains("system:anonymous"))
    );
}

#[tokio::test]
async fn a_watch_that_has_to_be_cut_off_is_told_by_the_exit_code() {
    let (mut weir, mut upstream) = serving(&[]).await;
    let mut call = weir.alice(Http::One).send(Ask::get(WATCH)).await;
    let mut exchange = upstream.next().await;
    exchange.begin(200, &[]).await;
    call.head().await;
    // Nobody reads it, so that it cannot be ended in order.
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let flood = tokio::spawn(async move {
        while exchange.try_send(vec![7; 64 << 10]).await.is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    weir.comes_to_rest(&sent, 1024).await;
    weir.signal("TERM").await;
    weir.logs("what is still open is cut off").await;
    assert_eq!(weir.ended().await.code(), Some(1));
    flood.await.unwrap();
    drop(call);
}
