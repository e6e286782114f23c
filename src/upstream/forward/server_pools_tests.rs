use super::*;
use crate::upstream::connection::address;
use crate::upstream::connection::address::ServerAddress;
use crate::upstream::connection::http_settings::MaxFields;
use crate::upstream::headers::auth_mode::{FrontProxy, PassThrough};
use crate::upstream::requester::Requester;
use crate::upstream::tls::PemInput;
use crate::upstream::tls::tests::self_signed_pair;
use crate::upstream::{UpstreamConfig, UpstreamProtocol};
use weir_base::metrics::Registry;

fn key() -> Arc<CertifiedKey> {
    let (certificate, key) = self_signed_pair("front-proxy-client");
    let certificate = PemInput::new("certificate", certificate.as_bytes());
    let key = PemInput::new("key", key.as_bytes());
    tls::parse_certified_key(certificate, key).unwrap()
}

fn server(host: &str) -> ServerAddress {
    let (authority, name) = address::parse_server(&format!("https://{host}")).unwrap();
    ServerAddress::new(authority, name)
}

fn config(hosts: &[&str], front_proxy: Option<&Arc<CertifiedKey>>) -> UpstreamConfig {
    UpstreamConfig {
        servers: hosts.iter().map(|host| server(host)).collect(),
        endpoint_slices: false,
        roots: CertificatePool::default(),
        front_proxy: front_proxy.cloned(),
        max_http2_connections: 1,
        protocol: UpstreamProtocol::Auto,
        max_connections: 10,
        instance_id: InstanceId::from_bytes([1; 16]),
        probe_interval: None,
    }
}

fn pools<M: AuthMode>(
    config: &UpstreamConfig,
    servers: &Arc<ServerSet>,
    certificate: PresentedCertificate,
) -> Arc<ServerPools<M>> {
    let metrics = UpstreamMetrics::register(&Registry::new());
    let settings = config.pool_settings(certificate, None, &metrics);
    ServerPools::new(Arc::clone(servers), settings)
}

/// The pools of the current servers.
fn current<M: AuthMode>(pools: &ServerPools<M>) -> Vec<Arc<Pool<M>>> {
    let list = pools.servers.list().clone();
    let servers = list.servers.iter();
    servers.filter_map(|server| pools.pool_of(server)).collect()
}

#[tokio::test]
async fn a_changed_configuration_keeps_the_pools_that_it_does_not_concern() {
    let (old, new) = (key(), key());
    let before = config(&["192.0.2.1", "192.0.2.2"], Some(&old));
    let servers = crate::upstream::server_set(&before, &Registry::new());
    let asserting = pools::<FrontProxy>(&before, &servers, PresentedCertificate::FrontProxy);
    let plain = pools::<PassThrough>(&before, &servers, PresentedCertificate::None);
    let (asserting_before, plain_before) = (current(&asserting), current(&plain));

    // The same again, and another server.
    let more = config(&["192.0.2.2", "192.0.2.1", "192.0.2.3"], Some(&old));
    crate::upstream::reconfigure(&servers, &more);
    let now = current(&asserting);
    assert_eq!(now.len(), 3);
    assert!(Arc::ptr_eq(&now[0], &asserting_before[1]));
    assert!(Arc::ptr_eq(&now[1], &asserting_before[0]));

    // Another certificate concerns only the connections that present it.
    crate::upstream::reconfigure(&servers, &config(&["192.0.2.1", "192.0.2.2"], Some(&new)));
    let now = current(&asserting);
    assert!(!Arc::ptr_eq(&now[0], &asserting_before[0]));
    assert!(Arc::ptr_eq(&current(&plain)[0], &plain_before[0]));

    // Without one there are none.
    crate::upstream::reconfigure(&servers, &config(&["192.0.2.1"], None));
    assert!(current(&asserting).is_empty());
    assert!(Arc::ptr_eq(&current(&plain)[0], &plain_before[0]));

    // Other roots concern all.
    let mut other_roots = config(&["192.0.2.1"], Some(&new));
    other_roots.roots = CertificatePool::new(&new.cert[..1]).unwrap();
    crate::upstream::reconfigure(&servers, &other_roots);
    assert!(!Arc::ptr_eq(&current(&plain)[0], &plain_before[0]));
    assert_eq!(current(&asserting).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_replaced_pool_leases_nothing_more_and_returns_the_request() {
    // It never answers.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let before = config(&[&address], None);
    let servers = crate::upstream::server_set(&before, &Registry::new());
    let plain = pools::<PassThrough>(&before, &servers, PresentedCertificate::None);
    let replaced = current(&plain).remove(0);
    let waits = tokio::spawn({
        let pool = Arc::clone(&replaced);
        async move {
            let class = ConnectionClass::Shared;
            pool.lease(class, MaxFields::Many, &Requester::default())
                .await
                .map(|_| ())
        }
    });
    tokio::task::yield_now().await;
    let mut other_roots = before.clone();
    other_roots.roots = CertificatePool::new(&key().cert[..1]).unwrap();
    crate::upstream::reconfigure(&servers, &other_roots);
    assert!(!replaced.is_replaced());
    assert!(!Arc::ptr_eq(&current(&plain)[0], &replaced));
    assert!(replaced.is_replaced());
    let refused = waits.await.unwrap();
    assert!(matches!(refused, Err(ForwardError::Closed)), "{refused:?}");
}

#[tokio::test]
async fn pools_do_not_return_to_an_older_list() {
    let before = config(&["192.0.2.1"], None);
    let servers = crate::upstream::server_set(&before, &Registry::new());
    let plain = pools::<PassThrough>(&before, &servers, PresentedCertificate::None);
    let old = Arc::clone(&servers.list());
    crate::upstream::reconfigure(&servers, &config(&["192.0.2.2"], None));
    let current = current(&plain);
    plain.follow(&old, &mut plain.pools.lock());
    let entries = &plain.pools.lock().pools;
    assert!(Arc::ptr_eq(&entries[0].pool, &current[0]));
}

/// The error of an HTTP/1.1 request with this body, to a peer that reads a little and closes.
async fn http1_error(body: &'static str, fails: bool) -> hyper::Error {
    use http_body_util::BodyExt;
    let (client, mut peer) = tokio::io::duplex(4096);
    let io = hyper_util::rt::TokioIo::new(client);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let frames = [Ok(http_body::Frame::data(bytes::Bytes::from(body)))];
    let failure = fails.then(|| Err(io::Error::other("the client is gone")));
    let frames = futures_util::stream::iter(frames.into_iter().chain(failure));
    let body = http_body_util::StreamBody::new(frames).boxed();
    let request = http::Request::post("/").body(body).unwrap();
    tokio::spawn(async move {
        let mut read = [0; 1];
        let _ = tokio::io::AsyncReadExt::read(&mut peer, &mut read).await;
        if fails {
            std::future::pending::<()>().await; // it keeps the connection
        }
    });
    sender.send_request(request).await.unwrap_err()
}

#[tokio::test]
async fn an_http1_connection_that_ends_counts_and_a_body_that_fails_does_not() {
    assert!(is_broken_connection(&http1_error("x", false).await));
    assert!(!is_broken_connection(&http1_error("x", true).await));
    assert!(is_broken_connection(&io::Error::from(
        io::ErrorKind::ConnectionReset
    )));
}

/// The error of an HTTP/2 request whose stream the peer resets, or whose connection it ends.
async fn http2_error(resets: bool) -> h2::Error {
    let (client, peer) = tokio::io::duplex(4096);
    tokio::spawn(async move {
        let mut connection = h2::server::handshake(peer).await.unwrap();
        let (_request, mut response) = connection.accept().await.unwrap().unwrap();
        if resets {
            response.send_reset(h2::Reason::INTERNAL_ERROR);
            let _ = connection.accept().await;
        }
    });
    let (mut sender, connection) = h2::client::handshake(client).await.unwrap();
    tokio::spawn(connection);
    let (response, _) = sender.send_request(http::Request::new(()), true).unwrap();
    response.await.unwrap_err()
}

#[tokio::test]
async fn an_http2_connection_that_ends_counts_and_a_stream_that_is_reset_does_not() {
    assert!(is_broken_connection(&http2_error(false).await));
    assert!(!is_broken_connection(&http2_error(true).await));
}
