//! Faulty, slow and hostile clients: they get an error or nothing, and other clients are not
//! affected.

use std::sync::Arc;

use tokio::net::TcpSocket;
use tokio_rustls::TlsConnector;

use crate::support::client::{TestClient, TestRequest};
use crate::support::fake_upstream::FakeUpstream;
use crate::support::raw_http1::RawHttp1;
use crate::support::raw_http2::{RawFrame, RawHttp2};
use crate::support::weir::{ALICE, Weir};
use crate::support::{HttpVersion, certificates, eventually, raw_http2, weir};

const LIST: &str = "/api/v1/pods";

async fn start() -> (Weir, FakeUpstream) {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    (weir, upstream)
}

async fn assert_served(client: &mut TestClient, upstream: &mut FakeUpstream) {
    let call = client.send(TestRequest::get(LIST)).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}

#[tokio::test]
async fn malformed_http_is_rejected_and_never_reaches_the_upstream() {
    let (weir, mut upstream) = start().await;
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
        let mut wire = weir.raw_http1().await;
        wire.send(sent).await;
        let head = wire
            .reader
            .read_head()
            .await
            .ok()
            .flatten()
            .unwrap_or_default();
        let first = head.first().map_or("", String::as_str);
        assert!(
            first.is_empty() || first.starts_with("HTTP/1.1 4"),
            "{sent:?}: {first:?}"
        );
        wire.reader.wait_for_close().await;
        upstream.assert_no_request();
    }
    assert_served(&mut weir.alice(HttpVersion::Http1), &mut upstream).await;
}

#[tokio::test]
async fn a_malformed_chunk_aborts_the_upload_and_never_ends_it_cleanly() {
    let mut upstream = FakeUpstream::preferring(HttpVersion::Http1).await;
    let weir = weir::builder(upstream.address)
        .without_body_buffer()
        .start()
        .await;
    for sent in ["zz\r\n", "-1\r\n", "3\r\nabcX", "ffffffffffffffffff\r\n"] {
        let mut wire = weir.raw_http1().await;
        wire.send("POST / HTTP/1.1\r\nhost: weir\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n")
            .await;
        let mut exchange = upstream.next_exchange().await;
        assert_eq!(exchange.request_body.next_text().await, "ok");
        wire.send(sent).await;
        assert!(
            exchange.request_body.read_to_end().await.is_err(),
            "{sent:?}"
        );
        let (answered, _) = wire.read_response("POST").await;
        assert_eq!(answered.status, 400, "it is the client's fault: {sent:?}");
    }
}

#[tokio::test]
async fn a_small_body_with_a_malformed_chunk_is_a_400_and_never_reaches_the_upstream() {
    let (weir, mut upstream) = start().await;
    for sent in ["zz\r\n", "-1\r\n", "3\r\nabcX", "ffffffffffffffffff\r\n"] {
        let mut wire = weir.raw_http1().await;
        wire.send("POST / HTTP/1.1\r\nhost: weir\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n")
            .await;
        wire.send(sent).await;
        let (answered, _) = wire.read_response("POST").await;
        assert_eq!(answered.status, 400, "{sent:?}");
    }
    upstream.assert_no_request();
}

/// HTTP/2's code for a reset without an error.
const NO_ERROR: u32 = 0;

const ABORTED_METRIC: &str = "weir_aborted_requests_total";

const UPLOAD_HEAD: [(&str, &str); 5] = [
    (":method", "POST"),
    (":scheme", "https"),
    (":authority", "weir"),
    (":path", LIST),
    ALICE,
];

#[tokio::test]
async fn an_upload_reset_with_no_error_is_not_complete() {
    for far in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = weir::builder(upstream.address)
            .without_body_buffer()
            .start()
            .await;
        let mut client = weir.raw_http2().await;
        client
            .send(&RawFrame::request(1, &UPLOAD_HEAD, false))
            .await;
        client.send(&RawFrame::data(1, b"half", false)).await;
        let mut exchange = upstream.next_exchange().await;
        assert_eq!(exchange.request_body.next_text().await, "half");
        client.send(&RawFrame::reset(1, NO_ERROR)).await;
        assert!(
            exchange.request_body.read_to_end().await.is_err(),
            "{far:?}"
        );
        weir.wait_for_metric(ABORTED_METRIC, 1.0).await;
    }
}

#[tokio::test]
async fn a_small_body_reset_with_no_error_never_reaches_the_upstream() {
    let (weir, mut upstream) = start().await;
    let mut client = weir.raw_http2().await;
    for stream in [1, 3, 5, 7] {
        client
            .send(&RawFrame::request(stream, &UPLOAD_HEAD, false))
            .await;
        client.send(&RawFrame::data(stream, b"half", false)).await;
        client.send(&RawFrame::reset(stream, NO_ERROR)).await;
    }
    weir.wait_for_metric(ABORTED_METRIC, 4.0).await;
    upstream.assert_no_request();
}

#[tokio::test]
async fn frames_that_violate_http2_end_their_connection_and_no_other() {
    let (weir, mut upstream) = start().await;
    let mut other = weir.alice(HttpVersion::Http2);
    assert_served(&mut other, &mut upstream).await;
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", LIST),
    ];
    for frame in [
        RawFrame::data(0, b"x", false),
        RawFrame::data(5, b"x", false),
        RawFrame::request(2, &head, true),
        RawFrame::new(raw_http2::WINDOW_UPDATE, 0, 0, [0, 0, 0, 0]),
        RawFrame::new(raw_http2::SETTINGS, 0, 0, [0; 5]),
        RawFrame::new(raw_http2::PING, 0, 0, [0; 7]),
        RawFrame::new(raw_http2::HEADERS, raw_http2::END_HEADERS, 1, [0xff; 20]),
        RawFrame::new(raw_http2::RST_STREAM, 0, 9, [0; 4]),
        RawFrame::new(9, 0, 1, []),
    ] {
        let mut client = weir.raw_http2().await;
        client.send(&frame).await;
        client.next_frame_of_kind(raw_http2::GOAWAY).await;
        client.wait_for_close().await;
        assert_served(&mut other, &mut upstream).await;
    }
}

#[tokio::test]
async fn a_malformed_stream_is_reset_and_the_connection_goes_on() {
    let (weir, mut upstream) = start().await;
    let mut client = weir.raw_http2().await;
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
        client.send(&RawFrame::request(stream, head, true)).await;
        let response = loop {
            let frame = client.next_frame().await.unwrap();
            assert_ne!(frame.kind, raw_http2::GOAWAY, "{head:?}");
            if frame.stream == stream {
                break frame;
            }
        };
        assert!(!response.is_ok(), "{head:?}");
        upstream.assert_no_request();
    }
    client.send(&RawFrame::request(21, &good, true)).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert!(client.next_frame_of_kind(raw_http2::HEADERS).await.is_ok());
}

#[tokio::test]
async fn heads_of_more_than_1_mib_are_rejected() {
    let (weir, mut upstream) = start().await;
    let mut wire = weir.raw_http1().await;
    let head = TestRequest::get(LIST)
        .header("x-large", &"v".repeat(4 << 20))
        .to_http1();
    let RawHttp1 {
        mut reader,
        mut writer,
    } = wire;
    let sending = tokio::spawn(async move {
        let _ = writer.send_without_timeout(&head).await; // the connection may be closed before the end
    });
    let head = reader.read_head().await;
    if let Ok(Some(lines)) = head {
        assert!(lines[0].starts_with("HTTP/1.1 431"), "{lines:?}");
    }
    reader.wait_for_close().await;
    sending.abort();

    let mut client = weir.alice(HttpVersion::Http2);
    let request = (0..130).fold(TestRequest::get(LIST), |request, n| {
        request.header(&format!("x-{n}"), &"v".repeat(9000))
    });
    let mut call = client.send(request).await;
    if let Ok(head) = call.try_head().await {
        assert_eq!(head.status, 431);
    }
    upstream.assert_no_request();
    wire = weir.raw_http1().await;
    wire.send(TestRequest::get(LIST).to_http1()).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(wire.read_response("GET").await.0.status, 200);
}

fn request_with_groups(count: usize) -> TestRequest {
    (0..count).fold(
        TestRequest::get(LIST).header("impersonate-user", "x"),
        |request, n| request.header("impersonate-group", &format!("group-{n}")),
    )
}

#[tokio::test]
async fn a_thousand_groups_can_be_impersonated_and_two_thousand_by_http1_cannot() {
    for (near, far) in HttpVersion::PAIRS {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = weir::builder(upstream.address).start().await;
        let counts: &[usize] = if near == HttpVersion::Http1 {
            &[1000]
        } else {
            &[1000, 2000]
        };
        for count in counts {
            let call = weir.alice(near).send(request_with_groups(*count)).await;
            let exchange = upstream.next_exchange().await;
            let seen = exchange.request.headers.all("impersonate-group");
            assert_eq!(seen.len(), *count);
            assert_eq!(seen[999], "group-999");
            exchange.respond(200, "{}").await;
            call.response().await;
        }
    }
    let (weir, mut upstream) = start().await;
    let mut wire = weir.raw_http1().await;
    wire.send(request_with_groups(2000).to_http1()).await;
    assert_eq!(wire.read_response_head().await.status, 431);
    wire.reader.wait_for_close().await;
    upstream.assert_no_request();
}

#[tokio::test]
async fn slow_handshakes_and_heads_delay_no_other_client() {
    let (weir, mut upstream) = start().await;
    let mut dawdling = Vec::new();
    for n in 0..60 {
        let mut wire = match n % 3 {
            0 => RawHttp1::new(weir.connect_tcp().await),
            1 => {
                let mut wire = RawHttp1::new(weir.connect_tcp().await);
                wire.send([22, 3, 1, 1, 0, 1]).await; // a ClientHello that stops early
                wire
            }
            _ => weir.raw_http1().await,
        };
        if n % 3 == 2 {
            wire.send("GET /api/v1/pods HTTP/1.1\r\nhost: we").await;
        }
        dawdling.push(wire);
    }
    for near in HttpVersion::BOTH {
        let mut client = weir.alice(near);
        for _ in 0..10 {
            assert_served(&mut client, &mut upstream).await;
        }
    }
}

#[tokio::test]
async fn failed_handshakes_are_counted() {
    let (weir, _upstream) = start().await;
    let series = "apiserver_tls_handshake_errors_total";
    assert_eq!(weir.metric(series).await, 0.0);
    let mut plain = RawHttp1::new(weir.connect_tcp().await);
    plain.send("GET / HTTP/1.1\r\nhost: weir\r\n\r\n").await;
    plain.reader.wait_for_close().await;
    drop(weir.connect_tcp().await);
    weir.wait_for_metric(series, 2.0).await;
}

#[tokio::test]
async fn connections_over_the_limit_are_closed_at_once_and_those_below_it_are_served() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .max_connections(3)
        .start()
        .await;
    let mut clients = [
        weir.alice(HttpVersion::Http2),
        weir.alice(HttpVersion::Http2),
        weir.alice(HttpVersion::Http2),
    ];
    for client in &mut clients {
        assert_served(client, &mut upstream).await;
    }
    for _ in 0..3 {
        RawHttp1::new(weir.connect_tcp().await)
            .reader
            .wait_for_close()
            .await;
    }
    assert_eq!(
        weir.metric("weir_client_connections_refused_total").await,
        3.0
    );
    for client in &mut clients {
        assert_served(client, &mut upstream).await;
    }
    let [one, ..] = clients;
    drop(one);
    weir.wait_for_metric("weir_client_connections", 2.0).await;
    eventually("a free place", async || {
        let mut wire = RawHttp1::new(weir.connect_tcp().await);
        // The start of a ClientHello: a connection with a handshake slot is read further.
        wire.writer.send([22]).await.ok()?;
        let others = weir.get_admin("/livez");
        tokio::select! {
            () = wire.reader.wait_for_close() => None,
            _ = others => Some(()),
        }
    })
    .await;
}

#[tokio::test]
async fn http2_settings_fit_kube_apiserver_and_its_clients() {
    const HEADER_LIST: u16 = 6;
    const WINDOW: u16 = 4;
    let (weir, _upstream) = start().await;
    let mut client = weir.raw_http2().await;
    // The window of the connection is widened at once, so the settings have arrived by then.
    let widened = client.next_frame_of_kind(raw_http2::WINDOW_UPDATE).await;
    assert!(
        widened.stream == 0 && widened.u32_at(0) > 8 << 20,
        "{widened:?}"
    );
    let setting = |settings: &[(u16, u32)], name| {
        settings
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, value)| *value)
    };
    let near = &client.settings;
    assert_eq!(setting(near, raw_http2::MAX_STREAMS), Some(100));
    assert_eq!(setting(near, HEADER_LIST), Some(1 << 20));
    assert!(setting(near, WINDOW).is_some_and(|window| window >= 256 << 10));

    let upstream = crate::support::fake_upstream::RawUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let _call = weir
        .alice(HttpVersion::Http2)
        .send(TestRequest::get(LIST))
        .await;
    let mut server = RawHttp2::server(upstream.accept_trusted(HttpVersion::Http2).await, &[]).await;
    let widened = server.next_frame_of_kind(raw_http2::WINDOW_UPDATE).await;
    assert!(
        widened.stream == 0 && widened.u32_at(0) > 8 << 20,
        "{widened:?}"
    );
    let far = &server.settings;
    assert_eq!(setting(far, HEADER_LIST), Some(1 << 20));
    assert!(setting(far, WINDOW).is_some_and(|window| window >= 256 << 10));
}

#[tokio::test]
async fn goaway_chance_makes_clients_reconnect_without_losing_requests() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .goaway_chance(0.02)
        .start()
        .await;
    let mut client = weir.raw_http2().await;
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", LIST),
        ALICE,
    ];
    // With a chance of 1 in 50, five thousand without one do not occur.
    for n in 0..5000 {
        let stream = 2 * n + 1;
        client.send(&RawFrame::request(stream, &head, true)).await;
        upstream.next_exchange().await.respond(200, "{}").await;
        let mut got_goaway = false;
        loop {
            let frame = client.next_frame().await.unwrap();
            got_goaway |= frame.kind == raw_http2::GOAWAY;
            if frame.stream == stream && frame.ends_stream() {
                break;
            }
        }
        if got_goaway {
            client.wait_for_close().await;
            return;
        }
    }
    panic!("never asked to connect anew");
}

/// While it reads, a client sends WINDOW_UPDATE, which must not reset the connection once weir has
/// written everything.
#[tokio::test]
async fn the_last_response_of_a_connection_arrives_whole_however_late_the_client_reads_it() {
    const BODY: usize = 6 << 20;
    const INITIAL_WINDOW: u16 = 4;
    const RECEIVE_BUFFER: u32 = 32 << 10;
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .goaway_chance(1.0)
        .start()
        .await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(RECEIVE_BUFFER).unwrap();
    let tcp = socket.connect(weir.clients).await.unwrap();
    let tls = certificates::client_tls_config(&[HttpVersion::Http2.alpn()], None);
    let tls = TlsConnector::from(Arc::new(tls)).connect("127.0.0.1".try_into().unwrap(), tcp);
    let mut client = RawHttp2::client(Box::new(tls.await.unwrap())).await;
    let window = u32::try_from(BODY).unwrap();
    client
        .send(&RawFrame::settings(&[(INITIAL_WINDOW, window)]))
        .await;
    let update = |bytes: u32| RawFrame::new(raw_http2::WINDOW_UPDATE, 0, 0, bytes.to_be_bytes());
    client.send(&update(window)).await;
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", LIST),
        ALICE,
    ];
    client.send(&RawFrame::request(1, &head, true)).await;
    let exchange = upstream.next_exchange().await;
    exchange.respond(200, vec![b'x'; BODY]).await;
    let mut received = 0;
    while received < BODY {
        let frame = client.next_frame().await;
        let frame = frame.unwrap_or_else(|why| panic!("{why:?} after {received} bytes"));
        if frame.kind == raw_http2::DATA {
            received += frame.payload.len();
        }
        let _ = client.try_send(&update(1)).await; // the end is found by reading
        // weir is faster than this.
        assert_eq!(weir.get_admin("/livez").await.status, 200);
    }
    client.wait_for_close().await;
}

#[tokio::test]
async fn a_connection_that_negotiates_http2_and_does_not_speak_it_is_closed() {
    let (weir, _upstream) = start().await;
    let silent = async |bytes: &'static str| {
        let tls = certificates::client_tls_config(&[HttpVersion::Http2.alpn()], None);
        let mut wire = RawHttp1::new(weir.connect_tls(Arc::new(tls)).await);
        wire.send(bytes).await;
        // weir's SETTINGS, and nothing after.
        while let Ok(Some(_)) = wire.reader.read_some(1000).await {}
    };
    tokio::join!(silent(""), silent("PRI * HTTP/2.0\r\n"));
}
