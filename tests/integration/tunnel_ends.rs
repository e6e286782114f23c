//! Ends of tunnels: one direction at a time, or both at once. Both sides always see the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::client::TestRequest;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::raw_http1::RawHttp1;
use crate::support::weir;
use crate::support::weir::Weir;

const EXEC: &str = "/api/v1/namespaces/a/pods/b/exec?command=sh";

const OPEN_METRIC: &str = "apiserver_longrunning_requests{component=\"apiserver\",group=\"\",resource=\"pods\",\
    scope=\"resource\",subresource=\"exec\",verb=\"CONNECT\",version=\"v1\"}";

async fn start_with_tunnel() -> (Weir, RawHttp1, RawHttp1) {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let (near, far) = open_tunnel(&weir, &mut upstream).await;
    (weir, near, far)
}

async fn open_tunnel(weir: &Weir, upstream: &mut FakeUpstream) -> (RawHttp1, RawHttp1) {
    let mut near = weir.raw_http1().await;
    let request = TestRequest::new("POST", EXEC)
        .header("connection", "upgrade")
        .header("upgrade", "SPDY/3.1");
    near.send(request.to_http1()).await;
    let mut far = upstream.next_exchange().await.into_raw_http1();
    far.send(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
    )
    .await;
    assert_eq!(near.read_response_head().await.status, 101);
    (near, far)
}

#[tokio::test]
async fn a_tunnel_counts_as_a_connection_until_it_ends() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .max_connections(1)
        .start()
        .await;
    let (mut near, mut far) = open_tunnel(&weir, &mut upstream).await;
    near.send("there").await;
    assert_eq!(far.reader.read_exactly(5).await.unwrap(), "there");
    far.send("back").await;
    assert_eq!(near.reader.read_exactly(4).await.unwrap(), "back");
    assert_eq!(weir.metric("weir_client_connections").await, 1.0);
    RawHttp1::new(weir.connect_tcp().await)
        .reader
        .wait_for_close()
        .await;
    assert_eq!(
        weir.metric("weir_client_connections_refused_total").await,
        1.0
    );
    drop((near, far));
    weir.wait_for_metric("weir_client_connections", 0.0).await;
    open_tunnel(&weir, &mut upstream).await;
}

#[tokio::test]
async fn a_client_that_half_closes_still_receives() {
    let (_weir, mut near, mut far) = start_with_tunnel().await;
    near.send("last words").await;
    near.writer.shutdown().await;
    assert_eq!(far.reader.read_exactly(10).await.unwrap(), "last words");
    assert_eq!(far.reader.read_some(1).await.unwrap(), None, "a clean end");
    far.send("and the answer").await;
    assert_eq!(
        near.reader.read_exactly(14).await.unwrap(),
        "and the answer"
    );
    far.close().await;
    assert_eq!(near.reader.read_some(1).await.unwrap(), None);
}

#[tokio::test]
async fn an_upstream_that_half_closes_still_receives() {
    let (_weir, mut near, mut far) = start_with_tunnel().await;
    far.send("last words").await;
    far.writer.shutdown().await;
    assert_eq!(near.reader.read_exactly(10).await.unwrap(), "last words");
    assert_eq!(near.reader.read_some(1).await.unwrap(), None, "a clean end");
    near.send("and the answer").await;
    assert_eq!(far.reader.read_exactly(14).await.unwrap(), "and the answer");
    near.close().await;
    assert_eq!(far.reader.read_some(1).await.unwrap(), None);
}

#[tokio::test]
async fn a_client_that_aborts_ends_the_upstream_s_side() {
    let (weir, near, mut far) = start_with_tunnel().await;
    weir.wait_for_metric(OPEN_METRIC, 1.0).await;
    drop(near);
    far.reader.wait_for_close().await;
    weir.wait_for_metric(OPEN_METRIC, 0.0).await;
}

#[tokio::test]
async fn an_upstream_that_aborts_ends_the_client_s_side() {
    let (weir, mut near, far) = start_with_tunnel().await;
    weir.wait_for_metric(OPEN_METRIC, 1.0).await;
    drop(far);
    near.reader.wait_for_close().await;
    weir.wait_for_metric(OPEN_METRIC, 0.0).await;
}

/// The two sides of a tunnel.
#[derive(Clone, Copy, Debug)]
enum Side {
    Client,
    Upstream,
}

#[tokio::test]
async fn what_was_received_from_a_side_that_aborts_arrives() {
    const BYTES: usize = 300_000; // more than the peer's socket takes before it reads
    for aborting in [Side::Client, Side::Upstream] {
        for _ in 0..10 {
            let (weir, near, far) = start_with_tunnel().await;
            let (mut from, mut to) = match aborting {
                Side::Client => (near, far),
                Side::Upstream => (far, near),
            };
            let marked: Vec<u8> = (0..BYTES).map(|n| u8::try_from(n % 251).unwrap()).collect();
            from.send(&marked).await;
            drop(from); // without the end of TLS
            let received = to.reader.read_exactly(BYTES).await;
            assert!(received.unwrap() == marked, "{aborting:?}");
            to.reader.wait_for_close().await;
            drop(to);
            weir.wait_for_metric(OPEN_METRIC, 0.0).await;
        }
    }
}

#[tokio::test]
async fn a_tunnel_end_that_does_not_read_blocks_the_other() {
    const TOTAL_BYTES: usize = 64 << 20;
    const MAX_BUFFERED: usize = 48 << 20;
    let (weir, near, mut far) = start_with_tunnel().await;
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let mut writer = near.writer;
    let flood = tokio::spawn(async move {
        while count.load(Ordering::SeqCst) < TOTAL_BYTES {
            writer.send_without_timeout(&[7; 64 << 10]).await.unwrap();
            count.fetch_add(64 << 10, Ordering::SeqCst);
        }
    });
    weir.wait_until_stable(&sent, MAX_BUFFERED).await;
    let mut come = 0;
    while come < TOTAL_BYTES {
        come += far
            .reader
            .read_some(TOTAL_BYTES)
            .await
            .unwrap()
            .expect("it goes on")
            .len();
    }
    assert_eq!(come, TOTAL_BYTES);
    flood.await.unwrap();
}
