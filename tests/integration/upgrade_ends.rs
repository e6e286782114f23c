//! How tunnels end: one direction at a time, or both at once, and always for both sides.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use crate::support::client::Ask;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

const EXEC: &str = "/api/v1/namespaces/a/pods/b/exec?command=sh";

const OPEN: &str = "apiserver_longrunning_requests{component=\"apiserver\",group=\"\",resource=\"pods\",\
    scope=\"resource\",subresource=\"exec\",verb=\"CONNECT\",version=\"v1\"}";

async fn tunnel() -> (Weir, Wire, Wire) {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    let (near, far) = open(&weir, &mut upstream).await;
    (weir, near, far)
}

async fn open(weir: &Weir, upstream: &mut Upstream) -> (Wire, Wire) {
    let mut near = weir.wire().await;
    let ask = Ask::new("POST", EXEC)
        .header("connection", "upgrade")
        .header("upgrade", "SPDY/3.1");
    near.send(ask.to_http1()).await;
    let mut far = upstream.next().await.into_wire();
    far.send(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
    )
    .await;
    assert_eq!(near.answered().await.status, 101);
    (near, far)
}

#[tokio::test]
async fn a_tunnel_takes_the_place_of_a_connection_to_its_end() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .max_connections(1)
        .start()
        .await;
    let (mut near, mut far) = open(&weir, &mut upstream).await;
    near.send("there").await;
    assert_eq!(far.reader.exactly(5).await.unwrap(), "there");
    far.send("back").await;
    assert_eq!(near.reader.exactly(4).await.unwrap(), "back");
    assert_eq!(weir.metric("weir_client_connections").await, 1.0);
    Wire::new(weir.tcp().await).reader.ended().await;
    assert_eq!(
        weir.metric("weir_client_connections_refused_total").await,
        1.0
    );
    drop((near, far));
    weir.metric_becomes("weir_client_connections", 0.0).await;
    open(&weir, &mut upstream).await;
}

#[tokio::test]
async fn a_client_that_has_said_all_still_hears() {
    let (_weir, mut near, mut far) = tunnel().await;
    near.send("last words").await;
    near.writer.finish().await;
    assert_eq!(far.reader.exactly(10).await.unwrap(), "last words");
    assert_eq!(far.reader.some(1).await.unwrap(), None, "a clean end");
    far.send("and the answer").await;
    assert_eq!(near.reader.exactly(14).await.unwrap(), "and the answer");
    far.close().await;
    assert_eq!(near.reader.some(1).await.unwrap(), None);
}

#[tokio::test]
async fn an_upstream_that_has_said_all_still_hears() {
    let (_weir, mut near, mut far) = tunnel().await;
    far.send("last words").await;
    far.writer.finish().await;
    assert_eq!(near.reader.exactly(10).await.unwrap(), "last words");
    assert_eq!(near.reader.some(1).await.unwrap(), None, "a clean end");
    near.send("and the answer").await;
    assert_eq!(far.reader.exactly(14).await.unwrap(), "and the answer");
    near.close().await;
    assert_eq!(far.reader.some(1).await.unwrap(), None);
}

#[tokio::test]
async fn a_client_that_breaks_off_ends_the_upstream_s_side() {
    let (weir, near, mut far) = tunnel().await;
    weir.metric_becomes(OPEN, 1.0).await;
    drop(near);
    far.reader.ended().await;
    weir.metric_becomes(OPEN, 0.0).await;
}

#[tokio::test]
async fn an_upstream_that_breaks_off_ends_the_client_s_side() {
    let (weir, mut near, far) = tunnel().await;
    weir.metric_becomes(OPEN, 1.0).await;
    drop(far);
    near.reader.ended().await;
    weir.metric_becomes(OPEN, 0.0).await;
}

#[tokio::test]
async fn a_tunnel_whose_end_does_not_read_holds_back_the_other() {
    const ALL: usize = 64 << 20;
    const MOST_ON_THE_WAY: usize = 48 << 20;
    let (weir, near, mut far) = tunnel().await;
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let mut writer = near.writer;
    let flood = tokio::spawn(async move {
        while count.load(Ordering::SeqCst) < ALL {
            writer.send_patiently(&[7; 64 << 10]).await.unwrap();
            count.fetch_add(64 << 10, Ordering::SeqCst);
        }
    });
    weir.comes_to_rest(&sent, MOST_ON_THE_WAY).await;
    let mut come = 0;
    while come < ALL {
        come += far
            .reader
            .some(ALL)
            .await
            .unwrap()
            .expect("it goes on")
            .len();
    }
    assert_eq!(come, ALL);
    flood.await.unwrap();
}
