//! Clients that err, dawdle or mean harm: they get a no, or nothing, and nobody else notices.

use std::sync::Arc;

use crate::support::Http;
use crate::support::certificates;
use crate::support::client::Ask;
use crate::support::client::Client;
use crate::support::eventually;
use crate::support::frames;
use crate::support::frames::Frame;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::ALICE;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

const LIST: &str = "/api/v1/pods";

async fn serving() -> (Weir, Upstream) {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    (weir, upstream)
}

async fn is_served(client: &mut Client, upstream: &mut Upstream) {
    let call = client.send(Ask::get(LIST)).await;
    upstream.next().await.reply(200, "{}").await;
    assert_eq!(call.answer().await.status, 200);
}

#[tokio::test]
async fn what_is_no_http_is_refused_and_reaches_nobody() {
    let (weir, mut upstream) = serving().await;
    for sent in [
        "\r\n\r\nGET\r\n\r\n",
        "GET / HTTP/9.9\r\nhost: weir\r\n\r\n",
        "GET /\r\nhost: weir\r\n\r\n",
        "GET / HTTP/1.1\r\nbad header: x\r\n\r\n",
        "GET / HTTP/1.1\r\nhost : weir\r\n\r\n",
        "GET / HTTP/1.1\r\nx: a\0b\r\n\r\n",
        "G@T / HTTP/1.1\r\nhost: weir\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\u{16}\u{3}\u{1} this is TLS within TLS \r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 18446744073709551616\r\n\r\n",
    ] {
        let mut wire = weir.wire().await;
        wire.send(sent).await;
        let head = wire.reader.head().await.ok().flatten().unwrap_or_default();
        let first = head.first().map_or("", String::as_str);
        assert!(
            first.is_empty() || first.starts_with("HTTP/1.1 4"),
            "{sent:?}: {first:?}"
        );
        wire.reader.ended().await;
        upstream.assert_nothing_came();
    }
    is_served(&mut weir.alice(Http::One), &mut upstream).await;
}

#[tokio::test]
async fn a_chunk_that_is_none_breaks_the_upload_and_never_ends_it_cleanly() {
    let mut upstream = Upstream::preferring(Http::One).await;
    let weir = weir::before(upstream.address).streaming().start().await;
    for sent in ["zz\r\n", "-1\r\n", "3\r\nabcX", "ffffffffffffffffff\r\n"] {
        let mut wire = weir.wire().await;
        wire.send("POST / HTTP/1.1\r\nhost: weir\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n")
            .await;
        let mut exchange = upstream.next().await;
        assert_eq!(exchange.incoming.text().await, "ok");
        wire.send(sent).await;
        assert!(exchange.incoming.rest().await.is_err(), "{sent:?}");
        let (answered, _) = wire.answer("POST").await;
        assert_eq!(answered.status, 400, "it is the client's fault: {sent:?}");
    }
}

#[tokio::test]
async fn a_small_body_with_a_chunk_that_is_none_is_a_400_and_reaches_nothing() {
    let (weir, mut upstream) = serving().await;
    for sent in ["zz\r\n", "-1\r\n", "3\r\nabcX", "ffffffffffffffffff\r\n"] {
        let mut wire = weir.wire().await;
        wire.send("POST / HTTP/1.1\r\nhost: weir\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n")
            .await;
        wire.send(sent).await;
        let (answered, _) = wire.answer("POST").await;
        assert_eq!(answered.status, 400, "{sent:?}");
    }
    upstream.assert_nothing_came();
}

/// HTTP/2's code for a reset that is no error.
const NO_ERROR: u32 = 0;

const ABORTED: &str = "weir_aborted_requests_total";

const UPLOAD: [(&str, &str); 5] = [
    (":method", "POST"),
    (":scheme", "https"),
    (":authority", "weir"),
    (":path", LIST),
    ALICE,
];

#[tokio::test]
async fn an_upload_that_is_reset_without_an_error_is_not_the_whole() {
    for far in Http::BOTH {
        let mut upstream = Upstream::preferring(far).await;
        let weir = weir::before(upstream.address).streaming().start().await;
        let mut client = weir.frames().await;
        client.send(&Frame::request(1, &UPLOAD, false)).await;
        client.send(&Frame::data(1, b"half", false)).await;
        let mut exchange = upstream.next().await;
        assert_eq!(exchange.incoming.text().await, "half");
        client.send(&Frame::reset(1, NO_ERROR)).await;
        assert!(exchange.incoming.rest().await.is_err(), "{far:?}");
        weir.metric_becomes(ABORTED, 1.0).await;
    }
}

#[tokio::test]
async fn a_small_body_that_is_reset_without_an_error_reaches_nothing() {
    let (weir, mut upstream) = serving().await;
    let mut client = weir.frames().await;
    for stream in [1, 3, 5, 7] {
        client.send(&Frame::request(stream, &UPLOAD, false)).await;
        client.send(&Frame::data(stream, b"half", false)).await;
        client.send(&Frame::reset(stream, NO_ERROR)).await;
    }
    weir.metric_becomes(ABORTED, 4.0).await;
    upstream.assert_nothing_came();
}

#[tokio::test]
async fn frames_that_break_the_rules_end_their_connection_and_no_other() {
    let (weir, mut upstream) = serving().await;
    let mut other = weir.alice(Http::Two);
    is_served(&mut other, &mut upstream).await;
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", LIST),
    ];
    for frame in [
        Frame::data(0, b"x", false),
        Frame::data(5, b"x", false),
        Frame::request(2, &head, true),
        Frame::new(frames::WINDOW_UPDATE, 0, 0, [0, 0, 0, 0]),
        Frame::new(frames::SETTINGS, 0, 0, [0; 5]),
        Frame::new(frames::PING, 0, 0, [0; 7]),
        Frame::new(frames::HEADERS, frames::END_HEADERS, 1, [0xff; 20]),
        Frame::new(frames::RST_STREAM, 0, 9, [0; 4]),
        Frame::new(9, 0, 1, []),
    ] {
        let mut client = weir.frames().await;
        client.send(&frame).await;
        client.until(frames::GOAWAY).await;
        client.ended().await;
        is_served(&mut other, &mut upstream).await;
    }
}

#[tokio::test]
async fn a_malformed_stream_is_reset_and_the_connection_goes_on() {
    let (weir, mut upstream) = serving().await;
    let mut client = weir.frames().await;
    let good = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", LIST),
    ];
    let malformed: [&[(&str, &str)]; 5] = [
        &good[..3],
        &[good[0], good[1], good[2], good[3], ("connection", "close")],
        &[
            good[0],
            good[1],
            good[2],
            good[3],
            ("transfer-encoding", "chunked"),
        ],
        &[good[0], good[1], good[2], good[3], ("te", "gzip")],
        &[good[0], good[0], good[1], good[2], good[3]],
    ];
    for (n, head) in malformed.into_iter().enumerate() {
        let stream = u32::try_from(2 * n + 1).unwrap();
        client.send(&Frame::request(stream, head, true)).await;
        let answer = loop {
            let frame = client.next().await.unwrap();
            assert_ne!(frame.kind, frames::GOAWAY, "{head:?}");
            if frame.stream == stream {
                break frame;
            }
        };
        assert!(!answer.is_ok(), "{head:?}");
        upstream.assert_nothing_came();
    }
    client.send(&Frame::request(21, &good, true)).await;
    upstream.next().await.reply(200, "{}").await;
    assert!(client.until(frames::HEADERS).await.is_ok());
}

#[tokio::test]
async fn heads_of_more_than_1_mib_are_refused() {
    let (weir, mut upstream) = serving().await;
    let mut wire = weir.wire().await;
    let head = Ask::get(LIST)
        .header("x-large", &"v".repeat(4 << 20))
        .to_http1();
    let Wire {
        mut reader,
        mut writer,
    } = wire;
    let sending = tokio::spawn(async move {
        let _ = writer.send_patiently(&head).await; // it may be cut off before its end
    });
    let head = reader.head().await;
    if let Ok(Some(lines)) = head {
        assert!(lines[0].starts_with("HTTP/1.1 431"), "{lines:?}");
    }
    reader.ended().await;
    sending.abort();

    let mut client = weir.alice(Http::Two);
    let ask = (0..130).fold(Ask::get(LIST), |ask, n| {
        ask.header(&format!("x-{n}"), &"v".repeat(9000))
    });
    let mut call = client.send(ask).await;
    if let Ok(head) = call.try_head().await {
        assert_eq!(head.status, 431);
    }
    upstream.assert_nothing_came();
    wire = weir.wire().await;
    wire.send(Ask::get(LIST).to_http1()).await;
    upstream.next().await.reply(200, "{}").await;
    assert_eq!(wire.answer("GET").await.0.status, 200);
}

fn groups(count: usize) -> Ask {
    (0..count).fold(Ask::get(LIST).header("impersonate-user", "x"), |ask, n| {
        ask.header("impersonate-group", &format!("group-{n}"))
    })
}

#[tokio::test]
async fn a_thousand_groups_can_be_impersonated_and_two_thousand_by_http1_cannot() {
    for (near, far) in Http::PAIRS {
        let mut upstream = Upstream::preferring(far).await;
        let weir = weir::before(upstream.address).start().await;
        let counts: &[usize] = if near == Http::One {
            &[1000]
        } else {
            &[1000, 2000]
        };
        for count in counts {
            let call = weir.alice(near).send(groups(*count)).await;
            let exchange = upstream.next().await;
            let seen = exchange.asked.headers.all("impersonate-group");
            assert_eq!(seen.len(), *count);
            assert_eq!(seen[999], "group-999");
            exchange.reply(200, "{}").await;
            call.answer().await;
        }
    }
    let (weir, mut upstream) = serving().await;
    let mut wire = weir.wire().await;
    wire.send(groups(2000).to_http1()).await;
    assert_eq!(wire.answered().await.status, 431);
    wire.reader.ended().await;
    upstream.assert_nothing_came();
}

#[tokio::test]
async fn clients_that_dawdle_in_their_handshake_or_their_head_keep_nobody_waiting() {
    let (weir, mut upstream) = serving().await;
    let mut dawdling = Vec::new();
    for n in 0..60 {
        let mut wire = match n % 3 {
            0 => Wire::new(weir.tcp().await),
            1 => {
                let mut wire = Wire::new(weir.tcp().await);
                wire.send([22, 3, 1, 1, 0, 1]).await; // a ClientHello that stops early
                wire
            }
            _ => weir.wire().await,
        };
        if n % 3 == 2 {
            wire.send("GET /api/v1/pods HTTP/1.1\r\nhost: we").await;
        }
        dawdling.push(wire);
    }
    for near in Http::BOTH {
        let mut client = weir.alice(near);
        for _ in 0..10 {
            is_served(&mut client, &mut upstream).await;
        }
    }
}

#[tokio::test]
async fn handshakes_that_fail_are_counted() {
    let (weir, _upstream) = serving().await;
    let series = "apiserver_tls_handshake_errors_total";
    assert_eq!(weir.metric(series).await, 0.0);
    let mut plain = Wire::new(weir.tcp().await);
    plain.send("GET / HTTP/1.1\r\nhost: weir\r\n\r\n").await;
    plain.reader.ended().await;
    drop(weir.tcp().await);
    weir.metric_becomes(series, 2.0).await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_at_once_and_those_below_it_served() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .max_connections(3)
        .start()
        .await;
    let mut clients = [
        weir.alice(Http::Two),
        weir.alice(Http::Two),
        weir.alice(Http::Two),
    ];
    for client in &mut clients {
        is_served(client, &mut upstream).await;
    }
    for _ in 0..3 {
        Wire::new(weir.tcp().await).reader.ended().await;
    }
    assert_eq!(
        weir.metric("weir_client_connections_refused_total").await,
        3.0
    );
    for client in &mut clients {
        is_served(client, &mut upstream).await;
    }
    let [one, ..] = clients;
    drop(one);
    weir.metric_becomes("weir_client_connections", 2.0).await;
    eventually("a free place", async || {
        let mut wire = Wire::new(weir.tcp().await);
        // A ClientHello's beginning: whoever has a place waits for its rest.
        wire.writer.send([22]).await.ok()?;
        let others = weir.operator("/livez");
        tokio::select! {
            () = wire.reader.ended() => None,
            _ = others => Some(()),
        }
    })
    .await;
}

#[tokio::test]
async fn http2_settings_are_what_kube_apiserver_s_clients_and_kube_apiserver_need() {
    const HEADER_LIST: u16 = 6;
    const WINDOW: u16 = 4;
    let (weir, _upstream) = serving().await;
    let mut client = weir.frames().await;
    // The connection's window is widened at once, so the settings have come by then.
    let widened = client.until(frames::WINDOW_UPDATE).await;
    assert!(
        widened.stream == 0 && widened.number(0) > 8 << 20,
        "{widened:?}"
    );
    let setting = |settings: &[(u16, u32)], name| {
        settings
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, value)| *value)
    };
    let near = &client.settings;
    assert_eq!(setting(near, frames::MAX_STREAMS), Some(100));
    assert_eq!(setting(near, HEADER_LIST), Some(1 << 20));
    assert!(setting(near, WINDOW).is_some_and(|window| window >= 256 << 10));

    let upstream = crate::support::upstream::ByHand::start().await;
    let weir = weir::before(upstream.address).start().await;
    let _call = weir.alice(Http::Two).send(Ask::get(LIST)).await;
    let mut server = frames::Frames::server(upstream.next(Http::Two).await, &[]).await;
    let widened = server.until(frames::WINDOW_UPDATE).await;
    assert!(
        widened.stream == 0 && widened.number(0) > 8 << 20,
        "{widened:?}"
    );
    let far = &server.settings;
    assert_eq!(setting(far, HEADER_LIST), Some(1 << 20));
    assert!(setting(far, WINDOW).is_some_and(|window| window >= 256 << 10));
}

#[tokio::test]
async fn now_and_then_a_client_is_asked_to_connect_anew_and_loses_nothing() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .goaway_chance(0.02)
        .start()
        .await;
    let mut client = weir.frames().await;
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", LIST),
        ALICE,
    ];
    // A chance of 1 in 50: five thousand without one do not happen.
    for n in 0..5000 {
        let stream = 2 * n + 1;
        client.send(&Frame::request(stream, &head, true)).await;
        upstream.next().await.reply(200, "{}").await;
        let mut told = false;
        loop {
            let frame = client.next().await.unwrap();
            told |= frame.kind == frames::GOAWAY;
            if frame.stream == stream && frame.ends() {
                break;
            }
        }
        if told {
            client.ended().await;
            return;
        }
    }
    panic!("never asked to connect anew");
}

#[tokio::test]
async fn who_agrees_on_http2_and_does_not_speak_it_is_closed() {
    let (weir, _upstream) = serving().await;
    let silent = async |said: &'static str| {
        let tls = certificates::client_config(&[Http::Two.alpn()], None);
        let mut wire = Wire::new(weir.dial(Arc::new(tls)).await);
        wire.send(said).await;
        // weir's SETTINGS, and then nothing more.
        while let Ok(Some(_)) = wire.reader.some(1000).await {}
    };
    tokio::join!(silent(""), silent("PRI * HTTP/2.0\r\n"));
}
