//! Getting in: connections take turns for their handshakes by address, and load balancers tell whose they pass on.

use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::Http;
use crate::support::certificates;
use crate::support::client::Ask;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::ALICE;
use crate::support::weir::Door;
use crate::support::wire::Wire;
use crate::support::within;

const LIST: &str = "/api/v1/pods";

/// Handshakes that one address may have at a time.
const BY_ADDRESS: usize = 32;

const WAITING: &str = "weir_client_handshakes_waiting";

/// A version 2 header that names 203.0.113.7 as the source.
const PROXIED: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x07\x0a\0\0\x01\xc0\x01\x19\x2b";

/// A connection from this address.
pub(crate) async fn from(door: &Door, address: [u8; 4]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((address, 0).into()).unwrap();
    within("a connection", socket.connect(door.clients))
        .await
        .unwrap()
}

/// HTTP/1.1 by hand, over this connection.
pub(crate) async fn wire_over(tcp: TcpStream) -> Wire {
    let tls = certificates::client_config(&[Http::One.alpn()], None);
    let connecting =
        TlsConnector::from(Arc::new(tls)).connect("127.0.0.1".try_into().unwrap(), tcp);
    Wire::new(within("the TLS handshake", connecting).await.unwrap())
}

fn ask() -> Vec<u8> {
    Ask::get(LIST).header(ALICE.0, ALICE.1).to_http1()
}

/// Begins a handshake and says no more.
async fn dawdle(door: &Door, address: [u8; 4]) -> TcpStream {
    let mut tcp = from(door, address).await;
    tcp.write_all(b"\x16\x03\x01\x02\0\x01").await.unwrap(); // a long hello's beginning
    tcp
}

#[tokio::test]
async fn one_address_cannot_keep_others_from_their_handshakes() {
    // More connections than the usual soft limit of a login shell (1024) allows.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    let mut dawdling = Vec::new();
    for _ in 0..20 * BY_ADDRESS {
        dawdling.push(dawdle(&weir, [127, 0, 0, 1]).await);
    }
    let mut other = wire_over(from(&weir, [127, 0, 0, 2]).await).await;
    assert!(
        weir.metric(WAITING).await > 0.0,
        "it was served before them"
    );
    other.send(ask()).await;
    upstream.next().await.reply(200, "{}").await;
    assert_eq!(other.answered().await.status, 200);
    drop(dawdling);
    // Turns that nobody wants any more are passed on.
    let mut late = wire_over(from(&weir, [127, 0, 0, 1]).await).await;
    late.send(ask()).await;
    upstream.next().await.reply(200, "{}").await;
    assert_eq!(late.answered().await.status, 200);
    weir.metric_becomes(WAITING, 0.0).await;
}

#[tokio::test]
async fn who_says_nothing_takes_no_turn() {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    let mut silent = Vec::new();
    for _ in 0..10 * BY_ADDRESS {
        silent.push(from(&weir, [127, 0, 0, 1]).await);
    }
    wire_over(from(&weir, [127, 0, 0, 1]).await).await;
    assert_eq!(weir.metric(WAITING).await, 0.0);
}

#[tokio::test]
async fn one_address_cannot_take_all_places_before_it_is_known() {
    const PLACES: usize = 8;
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .max_connections(PLACES)
        .start()
        .await;
    let mut silent = Vec::new();
    for _ in 0..PLACES {
        silent.push(from(&weir, [127, 0, 0, 1]).await);
    }
    let one_more = from(&weir, [127, 0, 0, 1]).await;
    Wire::new(one_more).reader.ended().await;
    let mut other = wire_over(from(&weir, [127, 0, 0, 2]).await).await;
    other.send(ask()).await;
    upstream.next().await.reply(200, "{}").await;
    assert_eq!(other.answered().await.status, 200);
    // The last to come made room; who is known keeps the place.
    Wire::new(silent.pop().unwrap()).reader.ended().await;
    let displaced = "weir_client_handshakes_turned_away_total";
    let refused = "weir_client_connections_refused_total";
    assert_eq!(weir.metric(displaced).await, 1.0);
    assert_eq!(weir.metric(refused).await, 1.0);
}

#[tokio::test]
async fn trusted_proxies_have_as_many_handshakes_as_there_are() {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .trusting_its_clients()
        .start()
        .await;
    let mut dawdling = Vec::new();
    for _ in 0..2 * BY_ADDRESS {
        dawdling.push(dawdle(&weir, [127, 0, 0, 1]).await);
    }
    wire_over(from(&weir, [127, 0, 0, 1]).await).await;
    assert_eq!(weir.metric(WAITING).await, 0.0);
}

#[tokio::test]
async fn a_trusted_proxy_says_whose_connection_it_passes_on() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .by_proxy_protocol()
        .start()
        .await;
    let mut tcp = weir.tcp().await;
    tcp.write_all(PROXIED).await.unwrap();
    let mut wire = wire_over(tcp).await;
    let forged = Ask::get(LIST)
        .header(ALICE.0, ALICE.1)
        .header("x-forwarded-for", "198.51.100.1");
    wire.send(forged.to_http1()).await;
    let exchange = upstream.next().await;
    assert_eq!(
        exchange.asked.headers.all("x-forwarded-for"),
        ["203.0.113.7"],
        "it is the client that is trusted or not, not the load balancer"
    );
    exchange.reply(200, "{}").await;
    assert_eq!(wire.answered().await.status, 200);
}

#[tokio::test]
async fn a_client_that_a_proxy_names_speaks_for_itself_wherever_it_is() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .by_proxy_protocol()
        .start()
        .await;
    let mut tcp = weir.tcp().await;
    let mut proxied = PROXIED.to_vec();
    proxied[16..20].copy_from_slice(&[127, 0, 0, 7]); // one of the trusted proxies
    tcp.write_all(&proxied).await.unwrap();
    let mut wire = wire_over(tcp).await;
    let forged = Ask::get(LIST)
        .header(ALICE.0, ALICE.1)
        .header("x-forwarded-for", "198.51.100.1");
    wire.send(forged.to_http1()).await;
    let exchange = upstream.next().await;
    assert_eq!(exchange.asked.headers.all("x-forwarded-for"), ["127.0.0.7"]);
    exchange.reply(200, "{}").await;
    assert_eq!(wire.answered().await.status, 200);
}

#[tokio::test]
async fn nobody_else_can_say_that_he_is_another() {
    let upstream = Upstream::start().await;
    // Neither a client of a proxy that is not said to use it, nor who is no proxy, were it said.
    for setup in [
        weir::before(upstream.address).trusting_its_clients(),
        weir::before(upstream.address).by_proxy_protocol_from_elsewhere(),
    ] {
        let weir = setup.start().await;
        let mut tcp = weir.tcp().await;
        tcp.write_all(PROXIED).await.unwrap();
        let mut told = Vec::new();
        // An alert, or the end at once: never a handshake.
        let _ = within("the end", tcp.read_to_end(&mut told)).await;
        weir.metric_becomes("apiserver_tls_handshake_errors_total", 1.0)
            .await;
    }
}
