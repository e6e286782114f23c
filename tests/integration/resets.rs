//! Clients that cancel requests faster than anybody needs to lose their HTTP/2 connection, and nobody else's.

use std::time::Duration;

use crate::support::Http;
use crate::support::client::Ask;
use crate::support::frames;
use crate::support::frames::Frame;
use crate::support::frames::Frames;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::ALICE;
use crate::support::weir::Setup;
use crate::support::weir::Weir;

const LIST: &str = "/api/v1/pods";

const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 0xb;

/// Of one a second: so many may come at once.
const BURST: u32 = 4;

/// More than a loaded machine needs to come to the end of a burst that grows by one a second.
const MANY: u32 = 1000;

const CLOSED: &str = "weir_client_connections_closed_total{reason=\"resets\"}";

fn strict(upstream: &Upstream) -> Setup {
    weir::before(upstream.address).with(|config| config.serving.resets_per_second = 1)
}

fn head(path: &'static str) -> [(&'static str, &'static str); 5] {
    [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", path),
        ALICE,
    ]
}

async fn is_served(client: &mut Frames, stream: u32, upstream: &mut Upstream) {
    client
        .send(&Frame::request(stream, &head(LIST), true))
        .await;
    upstream.next().await.reply(200, "{}").await;
    loop {
        let frame = client.next().await.unwrap();
        assert_ne!(frame.kind, frames::GOAWAY);
        if frame.ends() {
            return;
        }
    }
}

#[tokio::test]
async fn a_client_that_cancels_too_often_loses_its_connection_and_no_other_does() {
    // Exempt paths are no way around.
    for path in [LIST, "/readyz", "/api/v1/pods?watch=1"] {
        let mut upstream = Upstream::start().await;
        let weir = strict(&upstream).start().await;
        let mut other = weir.frames().await;
        let mut client = weir.frames().await;
        let mut stream = 1;
        let mut given_up = Vec::new(); // the upstream answers none of them
        for _ in 0..BURST {
            client
                .send(&Frame::request(stream, &head(path), true))
                .await;
            given_up.push(upstream.next().await);
            client.send(&Frame::reset(stream, CANCEL)).await;
            stream += 2;
        }
        is_served(&mut client, stream, &mut upstream).await;
        assert_eq!(weir.metric(CLOSED).await, 0.0);
        let told = loop {
            stream += 2;
            let request = Frame::request(stream, &head(path), true);
            if client.try_send(&request).await.is_err() {
                break client.until(frames::GOAWAY).await;
            }
            tokio::select! {
                exchange = upstream.next() => {
                    let _ = client.try_send(&Frame::reset(stream, CANCEL)).await;
                    given_up.push(exchange);
                }
                frame = client.next() => {
                    let frame = frame.unwrap();
                    if frame.kind == frames::GOAWAY {
                        break frame;
                    }
                }
            }
            assert!(stream < 2 * MANY, "it goes on for ever");
        };
        assert_eq!(told.number(4), ENHANCE_YOUR_CALM, "{path}");
        assert!((1..=stream).contains(&told.number(0)), "the last stream");
        client.ended().await;
        weir.metric_becomes(CLOSED, 1.0).await;
        other.send(&Frame::new(frames::PING, 0, 0, [0; 8])).await;
        other.until_acknowledged().await;
    }
}

#[tokio::test]
async fn refusals_that_are_held_count_when_they_are_cancelled() {
    let mut upstream = Upstream::start().await;
    let weir = strict(&upstream)
        .limits(1, 1)
        .rejection_hold(Duration::from_secs(60))
        .start()
        .await;
    let mut busy = weir.alice(Http::One);
    let _taken = (busy.send(Ask::get(LIST)).await, upstream.next().await);
    let mut client = weir.frames().await;
    let mut stream = 1;
    loop {
        let request = Frame::request(stream, &head(LIST), true);
        let sent = client.try_send(&request).await.is_ok()
            && client.try_send(&Frame::reset(stream, CANCEL)).await.is_ok();
        stream += 2;
        assert!(stream < 2 * MANY, "it goes on for ever");
        if !sent || closed_for_resets(&weir).await {
            break;
        }
    }
    let told = client.until(frames::GOAWAY).await;
    assert_eq!(told.number(4), ENHANCE_YOUR_CALM);
}

async fn closed_for_resets(weir: &Weir) -> bool {
    weir.metric(CLOSED).await > 0.0
}

#[tokio::test]
async fn what_has_come_to_its_end_is_not_counted() {
    let mut upstream = Upstream::start().await;
    let weir = strict(&upstream).start().await;
    let mut client = weir.frames().await;
    for n in 0..10 * BURST {
        let stream = 2 * n + 1;
        is_served(&mut client, stream, &mut upstream).await;
        client.send(&Frame::reset(stream, CANCEL)).await;
    }
    is_served(&mut client, 1001, &mut upstream).await;
    assert_eq!(weir.metric(CLOSED).await, 0.0);
}

#[tokio::test]
async fn without_a_rate_nothing_is_counted() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .with(|config| config.serving.resets_per_second = 0)
        .start()
        .await;
    let mut client = weir.frames().await;
    let mut given_up = Vec::new(); // the upstream answers none of them
    for n in 0..300 {
        client
            .send(&Frame::request(2 * n + 1, &head(LIST), true))
            .await;
        given_up.push(upstream.next().await);
        client.send(&Frame::reset(2 * n + 1, CANCEL)).await;
    }
    is_served(&mut client, 1001, &mut upstream).await;
    assert_eq!(weir.metric(CLOSED).await, 0.0);
}
