//! Request heads that do not end, or whose user is not known yet: limited in time and in memory,
//! without effect on other clients.

use std::time::Duration;

use crate::handshakes::{connect_from, raw_http1_over};
use crate::support::client::TestRequest;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::raw_http2::RawFrame;
use crate::support::weir::{ALICE, Weir};
use crate::support::{HttpVersion, eventually, raw_http2, weir};

const LIST: &str = "/api/v1/pods";

/// `--request-header-timeout` of these tests.
const SHORT_TIMEOUT: Duration = Duration::from_secs(1);

const RESERVED_METRIC: &str = "weir_request_head_bytes";

/// One address's part of the budget.
const BYTES_PER_ADDRESS: usize = 16 << 20;

/// A field of one byte, which takes more than two hundred in memory.
const INDEXED_COOKIE: u8 = 0x80 | 32;

/// The most fields of one frame.
const FRAME_FIELDS: usize = 2048;

const HEAD: [(&str, &str); 5] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "weir"),
    (":path", LIST),
    ALICE,
];

async fn with_short_header_timeout() -> (Weir, FakeUpstream) {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .with(|config| config.serving.connections.request_header_timeout = SHORT_TIMEOUT)
        .start()
        .await;
    (weir, upstream)
}

/// Counted after the connection has ended, which its client sees before.
async fn wait_for_closed_count(weir: &Weir, reason: &str, count: f64) {
    let series = format!("weir_client_connections_closed_total{{reason=\"{reason}\"}}");
    weir.wait_for_metric(&series, count).await;
}

#[tokio::test]
async fn a_slow_request_head_is_a_408_and_idle_connections_stay() {
    let (weir, mut upstream) = with_short_header_timeout().await;
    let get = TestRequest::get(LIST).header(ALICE.0, ALICE.1).to_http1();
    let (mut silent, mut idle, mut pipelined) = (
        weir.raw_http1().await,
        weir.raw_http1().await,
        weir.raw_http1().await,
    );
    idle.send([&get[..], b"\r\n"].concat()).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(idle.read_response("GET").await.0.status, 200);
    // The start of the next head arrives with the previous request.
    pipelined.send([&get[..], b"GET /api"].concat()).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(pipelined.read_response("GET").await.0.status, 200);

    let mut slow = weir.raw_http1().await;
    slow.send("GET /").await;
    let lines = loop {
        tokio::select! {
            lines = slow.reader.read_head_without_timeout() => break lines.unwrap().unwrap(),
            _ = weir.get_admin("/livez") => {}
        }
        let _ = slow.writer.send("x").await; // weir may have closed it by now
    };
    assert_eq!(lines[0], "HTTP/1.1 408 Request Timeout");
    assert!(lines.contains(&"Connection: close".to_owned()), "{lines:?}");
    assert!(
        lines.contains(&"Content-Type: application/json".to_owned()),
        "{lines:?}"
    );
    slow.reader.wait_for_close().await;
    let (answered, body) = pipelined.read_response("GET").await;
    assert_eq!(answered.status, 408);
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("weir/request-header-timeout"), "{text}");
    for wire in [&mut silent, &mut idle] {
        wire.send(&get).await;
        upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(wire.read_response("GET").await.0.status, 200);
    }
    wait_for_closed_count(&weir, "head_timeout", 2.0).await;
    drop((slow, pipelined));
    weir.wait_for_metric(RESERVED_METRIC, 0.0).await;
}

#[tokio::test]
async fn a_slow_body_is_not_a_slow_head() {
    let (weir, mut upstream) = with_short_header_timeout().await;
    let mut wire = weir.raw_http1().await;
    let mut slow = weir.raw_http1().await;
    wire.send("POST /api/v1/pods HTTP/1.1\r\nhost: weir\r\ncontent-length: 5\r\n\r\nab")
        .await;
    slow.send("GET /").await;
    assert_eq!(slow.read_response_head().await.status, 408);
    wire.send("cde").await;
    let mut exchange = upstream.next_exchange().await;
    assert_eq!(exchange.read_body().await, "abcde");
    exchange.respond(200, "{}").await;
    assert_eq!(wire.read_response("POST").await.0.status, 200);
}

#[tokio::test]
async fn an_incomplete_header_block_ends_its_http2_connection_and_no_other() {
    let (weir, mut upstream) = with_short_header_timeout().await;
    let mut other = weir.raw_http2().await;
    other.send(&RawFrame::request(1, &HEAD, true)).await;
    let under_way = upstream.next_exchange().await;
    let whole = RawFrame::request(3, &HEAD, true);
    let unfinished = RawFrame {
        flags: raw_http2::END_STREAM,
        ..whole.clone()
    };
    for (frame, cut) in [(&unfinished, usize::MAX), (&whole, 20), (&whole, 5)] {
        let mut client = weir.raw_http2().await;
        client.send(&RawFrame::request(1, &HEAD, true)).await;
        upstream.next_exchange().await.respond(200, "{}").await;
        while !client.next_frame().await.unwrap().ends_stream() {}
        client.send_part(frame, 0, cut).await;
        let mut sent = cut;
        let goaway = loop {
            tokio::select! {
                goaway = client.next_frame() => break goaway.unwrap(),
                _ = weir.get_admin("/livez") => {}
            }
            if (FRAME_HEADER_LENGTH..FRAME_HEADER_LENGTH + 40).contains(&sent) {
                client.send_part(frame, sent, sent + 1).await; // byte by byte
                sent += 1;
            }
        };
        assert_eq!(goaway.kind, raw_http2::GOAWAY);
        let last_and_code = (goaway.u32_at(0), goaway.u32_at(4));
        assert_eq!(last_and_code, (1, ENHANCE_YOUR_CALM), "cut at {cut}");
        client.wait_for_close().await;
    }
    under_way.respond(200, "{}").await;
    assert!(other.next_frame_of_kind(raw_http2::HEADERS).await.is_ok());
    wait_for_closed_count(&weir, "head_timeout", 3.0).await;
}

/// The bytes of a frame before its payload.
const FRAME_HEADER_LENGTH: usize = 9;

const ENHANCE_YOUR_CALM: u32 = 0xb;

#[tokio::test]
async fn incomplete_heads_of_one_address_take_only_its_share_of_the_memory() {
    const LENGTH: usize = 900 << 10;
    const FREE: usize = 8 << 10;
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let whole = TestRequest::get(LIST)
        .header(ALICE.0, ALICE.1)
        .header("x-long", &"v".repeat(LENGTH))
        .to_http1();
    let (part, rest) = whole.split_at(LENGTH);
    let each = 2 * LENGTH - FREE;
    let mut held = Vec::new();
    for n in 1..=BYTES_PER_ADDRESS / each {
        let mut wire = raw_http1_over(connect_from(&weir, [127, 0, 0, 1]).await).await;
        wire.send(part).await;
        let reserved = f64::from(u32::try_from(n * each).unwrap());
        weir.wait_for_metric(RESERVED_METRIC, reserved).await;
        held.push(wire);
    }
    let mut one_more = raw_http1_over(connect_from(&weir, [127, 0, 0, 1]).await).await;
    one_more.send(part).await;
    let rejected = one_more.read_response_head().await;
    assert_eq!(rejected.status, 503);
    assert_eq!(rejected.headers.get("retry-after"), Some("1"));
    one_more.reader.wait_for_close().await;
    wait_for_closed_count(&weir, "head_budget", 1.0).await;
    let counted = "weir_request_heads_refused_total{head=\"incomplete\"}";
    assert_eq!(weir.metric(counted).await, 1.0);

    let mut other = raw_http1_over(connect_from(&weir, [127, 0, 0, 2]).await).await;
    other.send(part).await;
    other.send(rest).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(other.read_response("GET").await.0.status, 200);
    // Small heads use none of the budget.
    let mut small = raw_http1_over(connect_from(&weir, [127, 0, 0, 1]).await).await;
    small
        .send(TestRequest::get(LIST).header(ALICE.0, ALICE.1).to_http1())
        .await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(small.read_response("GET").await.0.status, 200);
    drop(held);
    weir.wait_for_metric(RESERVED_METRIC, 0.0).await;
}

/// A GET with this many fields and a few more.
fn get_with_fields(count: usize) -> Vec<u8> {
    let get = TestRequest::get(LIST).header(ALICE.0, ALICE.1);
    (0..count)
        .fold(get, |request, n| request.header(&format!("x-{n}"), "v"))
        .to_http1()
}

#[tokio::test]
async fn a_head_of_many_fields_is_read_wherever_it_stands() {
    let (weir, mut upstream) = with_short_header_timeout().await;
    let counts = [0, 90, 150, 0, 1000];
    for (pipelined, write) in [
        (false, usize::MAX),
        (false, 1000),
        (true, usize::MAX),
        (true, 1000),
    ] {
        let mut wire = weir.raw_http1().await;
        if pipelined {
            let all: Vec<u8> = counts.iter().flat_map(|n| get_with_fields(*n)).collect();
            for part in all.chunks(write.min(all.len())) {
                wire.send(part).await;
            }
        }
        for count in counts {
            if !pipelined {
                let get = get_with_fields(count);
                for part in get.chunks(write.min(get.len())) {
                    wire.send(part).await;
                }
            }
            let exchange = upstream.next_exchange().await;
            let named = |n: &usize| exchange.request.headers.get(&format!("x-{n}")).is_some();
            assert_eq!((0..=count).filter(named).count(), count);
            exchange.respond(200, "{}").await;
            assert_eq!(wire.read_response("GET").await.0.status, 200);
        }
    }
    // With a body, whose connection serves the next request.
    let mut wire = weir.raw_http1().await;
    let post = (0..200)
        .fold(TestRequest::post(LIST, "body"), |request, n| {
            request.header(&format!("x-{n}"), "v")
        })
        .header(ALICE.0, ALICE.1);
    for _ in 0..2 {
        wire.send(post.to_http1()).await;
        let mut exchange = upstream.next_exchange().await;
        assert_eq!(exchange.read_body().await, "body");
        exchange.respond(201, "{}").await;
        assert_eq!(wire.read_response("POST").await.0.status, 201);
    }
}

#[tokio::test]
async fn a_head_of_many_fields_that_does_not_end_is_a_408_and_one_of_too_many_a_431() {
    let (weir, mut upstream) = with_short_header_timeout().await;
    for (count, ends, status) in [(200, false, 408), (1200, true, 431)] {
        let mut wire = weir.raw_http1().await;
        let mut get = get_with_fields(count);
        if !ends {
            get.truncate(get.len() - 2);
        }
        wire.send(get).await;
        let (head, body) = wire.read_response("GET").await;
        assert_eq!(head.status, status);
        let text = String::from_utf8_lossy(&body);
        assert!(text.contains("\"kind\":\"Status\""), "{text}");
        wire.reader.wait_for_close().await;
    }
    upstream.assert_no_request();
    weir.wait_for_metric(RESERVED_METRIC, 0.0).await;
}

#[tokio::test]
async fn an_http2_header_block_is_charged_for_its_decoded_size() {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let mut clients = Vec::new();
    // Up to the maximum number of fields: six megabytes.
    for n in 1..=3 {
        let mut client = weir.raw_http2().await;
        client.next_frame_of_kind(raw_http2::WINDOW_UPDATE).await;
        let mut kind = raw_http2::HEADERS;
        for fields in [INDEXED_COOKIE; 27_300].chunks(FRAME_FIELDS) {
            client.send(&RawFrame::new(kind, 0, 1, fields)).await;
            kind = raw_http2::CONTINUATION;
        }
        if n < 3 {
            eventually("its memory to be reserved", async || {
                let reserved = weir.metric(RESERVED_METRIC).await;
                (reserved > f64::from(n) * 6e6).then_some(())
            })
            .await;
        } else {
            let goaway = client.next_frame_of_kind(raw_http2::GOAWAY).await;
            assert_eq!(goaway.u32_at(4), ENHANCE_YOUR_CALM);
            client.wait_for_close().await;
        }
        clients.push(client);
    }
    wait_for_closed_count(&weir, "head_budget", 1.0).await;
}

#[tokio::test]
async fn a_frame_of_too_many_fields_ends_its_connection() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let head = RawFrame::request(1, &HEAD, true);
    for too_many in [false, true] {
        let mut client = weir.raw_http2().await;
        let mut request = head.clone();
        let own = HEAD.len();
        let fields = FRAME_FIELDS - own + usize::from(too_many);
        request.payload.extend(vec![INDEXED_COOKIE; fields]);
        client.send(&request).await;
        if too_many {
            let goaway = client.next_frame_of_kind(raw_http2::GOAWAY).await;
            assert_eq!(goaway.u32_at(4), ENHANCE_YOUR_CALM);
            client.wait_for_close().await;
            upstream.assert_no_request();
        } else {
            upstream.next_exchange().await.respond(200, "{}").await;
            assert!(client.next_frame_of_kind(raw_http2::HEADERS).await.is_ok());
        }
    }
    wait_for_closed_count(&weir, "head_fields", 1.0).await;
}

/// The number of such fields of a head.
const FIELDS: usize = 2000;

/// The number of heads with such fields that fit into one address's part.
const HEADS_THAT_FIT: u32 = 36;

/// This head, and such fields.
fn with_fields(stream: u32, head: &[(&str, &str)], end: bool) -> RawFrame {
    let mut request = RawFrame::request(stream, head, end);
    request.payload.extend([INDEXED_COOKIE; FIELDS]);
    request
}

#[tokio::test]
async fn heads_of_requests_that_await_their_body_are_charged() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let mut client = weir.raw_http2().await;
    let mut head = HEAD;
    head[0].1 = "POST";
    for n in 0..=HEADS_THAT_FIT {
        client.send(&with_fields(2 * n + 1, &head, false)).await;
    }
    let rejected = client.next_frame_of_kind(raw_http2::HEADERS).await;
    assert_eq!(rejected.stream, 2 * HEADS_THAT_FIT + 1);
    let body = client.next_frame_of_kind(raw_http2::DATA).await.payload;
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("\"code\":503"), "{text}");
    assert!(text.contains("weir/request-heads"), "{text}");
    let (reserved, each) = (weir.metric(RESERVED_METRIC).await, 224 * FIELDS * 36);
    assert!(
        reserved >= f64::from(u32::try_from(each).unwrap()),
        "{reserved}"
    );
    upstream.assert_no_request();
    drop(client);
    weir.wait_for_metric(RESERVED_METRIC, 0.0).await;
}

#[tokio::test]
async fn heads_of_requests_that_await_authentication_are_charged() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .own_token("own-token")
        .start()
        .await;
    let mut client = weir.raw_http2().await;
    let mut head = HEAD;
    head[4].1 = "Bearer nobody-knows-it";
    for n in 0..=HEADS_THAT_FIT {
        client.send(&with_fields(2 * n + 1, &head, true)).await;
    }
    let rejected = client.next_frame_of_kind(raw_http2::HEADERS).await;
    assert_eq!(rejected.stream, 2 * HEADS_THAT_FIT + 1);
    let body = client.next_frame_of_kind(raw_http2::DATA).await.payload;
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("\"code\":503"), "{text}");
    assert!(text.contains("weir/request-heads"), "{text}");
    let counted = "weir_request_heads_refused_total{head=\"unidentified\"}";
    assert_eq!(weir.metric(counted).await, 1.0);
    // Requests that are authenticated without a review use none of it.
    let served = weir
        .alice(HttpVersion::Http2)
        .send(TestRequest::get(LIST))
        .await;
    let mut reviews = Vec::new();
    loop {
        let exchange = upstream.next_exchange().await;
        if exchange.request.target == LIST {
            exchange.respond(200, "{}").await;
            break;
        }
        reviews.push(exchange);
    }
    assert_eq!(served.response().await.status, 200);
    drop(client);
    weir.wait_for_metric(RESERVED_METRIC, 0.0).await;
}
