//! Connecting: handshakes are limited by address, and load balancers send the client's address by
//! the PROXY protocol.

use std::sync::Arc;

use ::weir::server::settings::AddressLimit;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

use crate::support::client::TestRequest;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::raw_http1::RawHttp1;
use crate::support::weir::{ALICE, Endpoints};
use crate::support::{HttpVersion, certificates, weir, within};

const LIST: &str = "/api/v1/pods";

/// Concurrent handshakes of one address.
const HANDSHAKES_PER_ADDRESS: usize = 32;

const WAITING_METRIC: &str = "weir_client_handshakes_waiting";

/// A version 2 header with the source 203.0.113.7.
const PROXY_V2_HEADER: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x07\x0a\0\0\x01\xc0\x01\x19\x2b";

/// A connection from this address.
pub(crate) async fn connect_from(endpoints: &Endpoints, address: [u8; 4]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((address, 0).into()).unwrap();
    within("a connection", socket.connect(endpoints.clients))
        .await
        .unwrap()
}

/// Raw HTTP/1.1 over this connection.
pub(crate) async fn raw_http1_over(tcp: TcpStream) -> RawHttp1 {
    let tls = certificates::client_tls_config(&[HttpVersion::Http1.alpn()], None);
    let connecting =
        TlsConnector::from(Arc::new(tls)).connect("127.0.0.1".try_into().unwrap(), tcp);
    RawHttp1::new(within("the TLS handshake", connecting).await.unwrap())
}

fn request_bytes() -> Vec<u8> {
    TestRequest::get(LIST).header(ALICE.0, ALICE.1).to_http1()
}

/// Starts a handshake and stops.
async fn stall_handshake(endpoints: &Endpoints, address: [u8; 4]) -> TcpStream {
    let mut tcp = connect_from(endpoints, address).await;
    tcp.write_all(b"\x16\x03\x01\x02\0\x01").await.unwrap(); // the start of a long ClientHello
    tcp
}

#[tokio::test]
async fn one_address_cannot_block_the_handshakes_of_others() {
    // More connections than the usual soft limit of a login shell (1024) allows.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let mut dawdling = Vec::new();
    for _ in 0..20 * HANDSHAKES_PER_ADDRESS {
        dawdling.push(stall_handshake(&weir, [127, 0, 0, 1]).await);
    }
    let mut other = raw_http1_over(connect_from(&weir, [127, 0, 0, 2]).await).await;
    assert!(
        weir.metric(WAITING_METRIC).await > 0.0,
        "it was served before them"
    );
    other.send(request_bytes()).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(other.read_response_head().await.status, 200);
    drop(dawdling);
    // Slots of closed connections are passed on.
    let mut late = raw_http1_over(connect_from(&weir, [127, 0, 0, 1]).await).await;
    late.send(request_bytes()).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(late.read_response_head().await.status, 200);
    weir.wait_for_metric(WAITING_METRIC, 0.0).await;
}

#[tokio::test]
async fn a_silent_connection_takes_no_handshake_permit() {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let mut silent = Vec::new();
    for _ in 0..10 * HANDSHAKES_PER_ADDRESS {
        silent.push(connect_from(&weir, [127, 0, 0, 1]).await);
    }
    raw_http1_over(connect_from(&weir, [127, 0, 0, 1]).await).await;
    assert_eq!(weir.metric(WAITING_METRIC).await, 0.0);
}

#[tokio::test]
async fn one_address_cannot_take_all_connections_before_its_handshakes() {
    const MAX_CONNECTIONS: usize = 8;
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .max_connections(MAX_CONNECTIONS)
        .start()
        .await;
    let mut silent = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        silent.push(connect_from(&weir, [127, 0, 0, 1]).await);
    }
    let one_more = connect_from(&weir, [127, 0, 0, 1]).await;
    RawHttp1::new(one_more).reader.wait_for_close().await;
    let mut other = raw_http1_over(connect_from(&weir, [127, 0, 0, 2]).await).await;
    other.send(request_bytes()).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(other.read_response_head().await.status, 200);
    // The newest connection was closed to make room. A connection after its handshake stays.
    RawHttp1::new(silent.pop().unwrap())
        .reader
        .wait_for_close()
        .await;
    let displaced = "weir_client_handshakes_turned_away_total";
    let rejected = "weir_client_connections_refused_total";
    assert_eq!(weir.metric(displaced).await, 1.0);
    assert_eq!(weir.metric(rejected).await, 1.0);
}

#[tokio::test]
async fn an_address_has_three_quarters_of_the_connections_and_leaves_the_others() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .max_connections(4)
        .with(|config| {
            config.serving.connections.max_connections_per_address =
                Some(AddressLimit::DynamicShare)
        })
        .start()
        .await;
    let mut first = Vec::new();
    for _ in 0..3 {
        first.push(raw_http1_over(connect_from(&weir, [127, 0, 0, 1]).await).await);
    }
    let one_more = connect_from(&weir, [127, 0, 0, 1]).await;
    RawHttp1::new(one_more).reader.wait_for_close().await;
    let mut other = raw_http1_over(connect_from(&weir, [127, 0, 0, 2]).await).await;
    for client in first.iter_mut().chain([&mut other]) {
        client.send(request_bytes()).await;
        upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(client.read_response_head().await.status, 200);
    }
    let rejected = "weir_client_connections_share_refused_total";
    assert_eq!(weir.metric(rejected).await, 1.0);
    let largest = "weir_client_connections_largest_address";
    assert_eq!(weir.metric(largest).await, 3.0);
    first.pop();
    weir.wait_for_metric(largest, 2.0).await;
    raw_http1_over(connect_from(&weir, [127, 0, 0, 1]).await).await;
}

#[tokio::test]
async fn connections_behind_proxy_protocol_count_for_the_client_that_it_names() {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .proxy_protocol()
        .with(|config| {
            config.serving.connections.max_connections_per_address = Some(AddressLimit::Fixed(1))
        })
        .start()
        .await;
    let named = async |last: u8| {
        let mut tcp = weir.connect_tcp().await;
        let mut header = PROXY_V2_HEADER.to_vec();
        header[19] = last;
        tcp.write_all(&header).await.unwrap();
        tcp
    };
    let _first = raw_http1_over(named(7).await).await;
    let _other = raw_http1_over(named(8).await).await;
    let mut tcp = named(7).await;
    let mut received = Vec::new();
    let _ = within("the end", tcp.read_to_end(&mut received)).await;
    assert_eq!(received, b"", "no handshake");
    let rejected = "weir_client_connections_share_refused_total";
    assert_eq!(weir.metric(rejected).await, 1.0);
}

#[tokio::test]
async fn far_above_the_memory_limit_new_connections_are_closed() {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .with(|config| config.memory_limit = 1)
        .start()
        .await;
    weir.wait_for_metric("weir_memory_pressure", 2.0).await;
    RawHttp1::new(weir.connect_tcp().await)
        .reader
        .wait_for_close()
        .await;
    let rejected = "weir_memory_limit_refused_connections_total";
    assert_eq!(weir.metric(rejected).await, 1.0);
    assert_eq!(weir.get_admin("/livez").await.status, 200);
}

#[tokio::test]
async fn trusted_proxies_have_no_handshake_limit_of_their_own() {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .trust_test_clients()
        .start()
        .await;
    let mut dawdling = Vec::new();
    for _ in 0..2 * HANDSHAKES_PER_ADDRESS {
        dawdling.push(stall_handshake(&weir, [127, 0, 0, 1]).await);
    }
    raw_http1_over(connect_from(&weir, [127, 0, 0, 1]).await).await;
    assert_eq!(weir.metric(WAITING_METRIC).await, 0.0);
}

#[tokio::test]
async fn a_trusted_proxy_s_proxy_protocol_header_names_the_client() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .proxy_protocol()
        .start()
        .await;
    let mut tcp = weir.connect_tcp().await;
    tcp.write_all(PROXY_V2_HEADER).await.unwrap();
    let mut wire = raw_http1_over(tcp).await;
    let forged = TestRequest::get(LIST)
        .header(ALICE.0, ALICE.1)
        .header("x-forwarded-for", "198.51.100.1");
    wire.send(forged.to_http1()).await;
    let exchange = upstream.next_exchange().await;
    assert_eq!(
        exchange.request.headers.all("x-forwarded-for"),
        ["203.0.113.7"],
        "it is the client that is trusted or not, not the load balancer"
    );
    exchange.respond(200, "{}").await;
    assert_eq!(wire.read_response_head().await.status, 200);
}

#[tokio::test]
async fn a_client_behind_proxy_protocol_is_not_itself_a_trusted_proxy() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .proxy_protocol()
        .start()
        .await;
    let mut tcp = weir.connect_tcp().await;
    let mut proxied = PROXY_V2_HEADER.to_vec();
    proxied[16..20].copy_from_slice(&[127, 0, 0, 7]); // one of the trusted proxies
    tcp.write_all(&proxied).await.unwrap();
    let mut wire = raw_http1_over(tcp).await;
    let forged = TestRequest::get(LIST)
        .header(ALICE.0, ALICE.1)
        .header("x-forwarded-for", "198.51.100.1");
    wire.send(forged.to_http1()).await;
    let exchange = upstream.next_exchange().await;
    assert_eq!(
        exchange.request.headers.all("x-forwarded-for"),
        ["127.0.0.7"]
    );
    exchange.respond(200, "{}").await;
    assert_eq!(wire.read_response_head().await.status, 200);
}

#[tokio::test]
async fn proxy_protocol_from_untrusted_addresses_is_rejected() {
    let upstream = FakeUpstream::start().await;
    // Neither from a trusted address without `--proxy-protocol`, nor from an untrusted address with
    // it.
    for setup in [
        weir::builder(upstream.address).trust_test_clients(),
        weir::builder(upstream.address).proxy_protocol_from_other_networks(),
    ] {
        let weir = setup.start().await;
        let mut tcp = weir.connect_tcp().await;
        tcp.write_all(PROXY_V2_HEADER).await.unwrap();
        let mut received = Vec::new();
        // An alert or an immediate close: never a handshake.
        let _ = within("the end", tcp.read_to_end(&mut received)).await;
        weir.wait_for_metric("apiserver_tls_handshake_errors_total", 1.0)
            .await;
    }
}
