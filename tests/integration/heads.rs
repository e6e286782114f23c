//! Request heads that do not come to their end, or whose user is not known yet: bounded in time and in memory, and nobody else
//! notices.

use std::time::Duration;

use crate::doors::from;
use crate::doors::wire_over;
use crate::support::Http;
use crate::support::client::Ask;
use crate::support::eventually;
use crate::support::frames;
use crate::support::frames::Frame;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::ALICE;
use crate::support::weir::Weir;

const LIST: &str = "/api/v1/pods";

/// `--request-header-timeout` of these tests.
const SHORT: Duration = Duration::from_secs(1);

const RESERVED: &str = "weir_request_head_bytes";

/// Of the budget, what one address may have.
const OF_ADDRESS: usize = 16 << 20;

const HEAD: [(&str, &str); 5] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "weir"),
    (":path", LIST),
    ALICE,
];

async fn hurrying() -> (Weir, Upstream) {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .with(|config| config.serving.header_timeout = SHORT)
        .start()
        .await;
    (weir, upstream)
}

/// It is counted when the connection has gone, of which its client hears before.
async fn closed_becomes(weir: &Weir, reason: &str, count: f64) {
    let series = format!("weir_client_connections_closed_total{{reason=\"{reason}\"}}");
    weir.metric_becomes(&series, count).await;
}

#[tokio::test]
async fn a_head_that_trickles_is_answered_408_and_idle_connections_stay() {
    let (weir, mut upstream) = hurrying().await;
    let get = Ask::get(LIST).header(ALICE.0, ALICE.1).to_http1();
    let (mut silent, mut idle, mut pipelined) =
        (weir.wire().await, weir.wire().await, weir.wire().await);
    idle.send([&get[..], b"\r\n"].concat()).await;
    upstream.next().await.reply(200, "{}").await;
    assert_eq!(idle.answer("GET").await.0.status, 200);
    // The beginning of the next one comes with the one before.
    pipelined.send([&get[..], b"GET /api"].concat()).await;
    upstream.next().await.reply(200, "{}").await;
    assert_eq!(pipelined.answer("GET").await.0.status, 200);

    let mut slow = weir.wire().await;
    slow.send("GET /").await;
    let lines = loop {
        tokio::select! {
            lines = slow.reader.next_head() => break lines.unwrap().unwrap(),
            _ = weir.operator("/livez") => {}
        }
        let _ = slow.writer.send("x").await; // weir may have ended it by now
    };
    assert_eq!(lines[0], "HTTP/1.1 408 Request Timeout");
    assert!(lines.contains(&"Connection: close".to_owned()), "{lines:?}");
    assert!(
        lines.contains(&"Content-Type: application/json".to_owned()),
        "{lines:?}"
    );
    slow.reader.ended().await;
    let (answered, body) = pipelined.answer("GET").await;
    assert_eq!(answered.status, 408);
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("weir/request-header-timeout"), "{text}");
    for wire in [&mut silent, &mut idle] {
        wire.send(&get).await;
        upstream.next().await.reply(200, "{}").await;
        assert_eq!(wire.answer("GET").await.0.status, 200);
    }
    closed_becomes(&weir, "head_timeout", 2.0).await;
    drop((slow, pipelined));
    weir.metric_becomes(RESERVED, 0.0).await;
}

#[tokio::test]
async fn a_body_that_takes_its_time_is_no_head() {
    let (weir, mut upstream) = hurrying().await;
    let mut wire = weir.wire().await;
    let mut slow = weir.wire().await;
    wire.send("POST /api/v1/pods HTTP/1.1\r\nhost: weir\r\ncontent-length: 5\r\n\r\nab")
        .await;
    slow.send("GET /").await;
    assert_eq!(slow.answered().await.status, 408);
    wire.send("cde").await;
    let mut exchange = upstream.next().await;
    assert_eq!(exchange.body().await, "abcde");
    exchange.reply(200, "{}").await;
    assert_eq!(wire.answer("POST").await.0.status, 200);
}

#[tokio::test]
async fn an_incomplete_header_block_ends_its_http2_connection_and_no_other() {
    let (weir, mut upstream) = hurrying().await;
    let mut other = weir.frames().await;
    other.send(&Frame::request(1, &HEAD, true)).await;
    let under_way = upstream.next().await;
    let whole = Frame::request(3, &HEAD, true);
    let unfinished = Frame {
        flags: frames::END_STREAM,
        ..whole.clone()
    };
    for (frame, cut) in [(&unfinished, usize::MAX), (&whole, 20), (&whole, 5)] {
        let mut client = weir.frames().await;
        client.send(&Frame::request(1, &HEAD, true)).await;
        upstream.next().await.reply(200, "{}").await;
        while !client.next().await.unwrap().ends() {}
        client.send_part(frame, 0, cut).await;
        let mut sent = cut;
        let told = loop {
            tokio::select! {
                told = client.next() => break told.unwrap(),
                _ = weir.operator("/livez") => {}
            }
            if (HEADER..HEADER + 40).contains(&sent) {
                client.send_part(frame, sent, sent + 1).await; // it trickles
                sent += 1;
            }
        };
        assert_eq!(told.kind, frames::GOAWAY);
        let last_and_code = (told.number(0), told.number(4));
        assert_eq!(last_and_code, (1, ENHANCE_YOUR_CALM), "cut at {cut}");
        client.ended().await;
    }
    under_way.reply(200, "{}").await;
    assert!(other.until(frames::HEADERS).await.is_ok());
    closed_becomes(&weir, "head_timeout", 3.0).await;
}

/// The bytes before a frame's payload.
const HEADER: usize = 9;

const ENHANCE_YOUR_CALM: u32 = 0xb;

#[tokio::test]
async fn incomplete_heads_of_one_address_take_a_part_of_the_memory_and_others_have_the_rest() {
    const LENGTH: usize = 900 << 10;
    const FREE: usize = 8 << 10;
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    let whole = Ask::get(LIST)
        .header(ALICE.0, ALICE.1)
        .header("x-long", &"v".repeat(LENGTH))
        .to_http1();
    let (part, rest) = whole.split_at(LENGTH);
    let each = 2 * LENGTH - FREE;
    let mut held = Vec::new();
    for n in 1..=OF_ADDRESS / each {
        let mut wire = wire_over(from(&weir, [127, 0, 0, 1]).await).await;
        wire.send(part).await;
        let reserved = f64::from(u32::try_from(n * each).unwrap());
        weir.metric_becomes(RESERVED, reserved).await;
        held.push(wire);
    }
    let mut one_more = wire_over(from(&weir, [127, 0, 0, 1]).await).await;
    one_more.send(part).await;
    let refused = one_more.answered().await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.headers.get("retry-after"), Some("1"));
    one_more.reader.ended().await;
    closed_becomes(&weir, "head_budget", 1.0).await;
    let counted = "weir_request_heads_refused_total{head=\"incomplete\"}";
    assert_eq!(weir.metric(counted).await, 1.0);

    let mut other = wire_over(from(&weir, [127, 0, 0, 2]).await).await;
    other.send(part).await;
    other.send(rest).await;
    upstream.next().await.reply(200, "{}").await;
    assert_eq!(other.answer("GET").await.0.status, 200);
    // Small heads need nothing of it.
    let mut small = wire_over(from(&weir, [127, 0, 0, 1]).await).await;
    small
        .send(Ask::get(LIST).header(ALICE.0, ALICE.1).to_http1())
        .await;
    upstream.next().await.reply(200, "{}").await;
    assert_eq!(small.answer("GET").await.0.status, 200);
    drop(held);
    weir.metric_becomes(RESERVED, 0.0).await;
}

#[tokio::test]
async fn a_header_block_of_http2_counts_as_what_it_becomes() {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    let mut clients = Vec::new();
    // A byte each is a field, and there may be that many: six megabytes.
    for n in 1..=3 {
        let mut client = weir.frames().await;
        client.until(frames::WINDOW_UPDATE).await;
        for (kind, fields) in [(frames::HEADERS, 16_000), (frames::CONTINUATION, 11_300)] {
            let indexed = vec![0x80 | 32; fields];
            client.send(&Frame::new(kind, 0, 1, indexed)).await;
        }
        if n < 3 {
            eventually("its memory to be reserved", async || {
                let reserved = weir.metric(RESERVED).await;
                (reserved > f64::from(n) * 6e6).then_some(())
            })
            .await;
        } else {
            let told = client.until(frames::GOAWAY).await;
            assert_eq!(told.number(4), ENHANCE_YOUR_CALM);
            client.ended().await;
        }
        clients.push(client);
    }
    closed_becomes(&weir, "head_budget", 1.0).await;
}

/// Fields of one byte each, and of more than two hundred in memory.
const FIELDS: usize = 15_000;

/// So many heads with such fields fit into the part of one address.
const FIT: u32 = 4;

const INDEXED_COOKIE: u8 = 0x80 | 32;

#[tokio::test]
async fn heads_whose_body_is_awaited_share_the_memory() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    let mut client = weir.frames().await;
    let mut head = HEAD;
    head[0].1 = "POST";
    let post = |stream| {
        let mut request = Frame::request(stream, &head, false);
        request.payload.extend([INDEXED_COOKIE; FIELDS]);
        request
    };
    for n in 0..=FIT {
        client.send(&post(2 * n + 1)).await;
    }
    let refused = client.until(frames::HEADERS).await;
    assert_eq!(refused.stream, 2 * FIT + 1);
    let body = client.until(frames::DATA).await.payload;
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("\"code\":503"), "{text}");
    assert!(text.contains("weir/request-heads"), "{text}");
    let (reserved, each) = (weir.metric(RESERVED).await, 224 * FIELDS * 4);
    assert!(
        reserved >= f64::from(u32::try_from(each).unwrap()),
        "{reserved}"
    );
    upstream.assert_nothing_came();
    drop(client);
    weir.metric_becomes(RESERVED, 0.0).await;
}

#[tokio::test]
async fn heads_whose_user_is_looked_up_share_the_memory() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .calling_with("own-token")
        .start()
        .await;
    let mut client = weir.frames().await;
    let mut head = HEAD;
    head[4].1 = "Bearer nobody-knows-it";
    for n in 0..=FIT {
        let mut request = Frame::request(2 * n + 1, &head, true);
        request.payload.extend([INDEXED_COOKIE; FIELDS]);
        client.send(&request).await;
    }
    let refused = client.until(frames::HEADERS).await;
    assert_eq!(refused.stream, 2 * FIT + 1);
    let body = client.until(frames::DATA).await.payload;
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("\"code\":503"), "{text}");
    assert!(text.contains("weir/request-heads"), "{text}");
    let counted = "weir_request_heads_refused_total{head=\"unidentified\"}";
    assert_eq!(weir.metric(counted).await, 1.0);
    // Others, whom nobody has to ask about, take nothing of it.
    let served = weir.alice(Http::Two).send(Ask::get(LIST)).await;
    let mut reviews = Vec::new();
    loop {
        let exchange = upstream.next_but_readyz().await;
        if exchange.asked.target == LIST {
            exchange.reply(200, "{}").await;
            break;
        }
        reviews.push(exchange);
    }
    assert_eq!(served.answer().await.status, 200);
    drop(client);
    weir.metric_becomes(RESERVED, 0.0).await;
}
