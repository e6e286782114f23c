//! The library's handling of a 429.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client, Error};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::objects::config_map;
use crate::playground::{ALICE, Playground, within};

/// One mutating request at a time, and no queues.
const ONE_WRITE_FLAGS: [&str; 2] = [
    "--enable-priority-and-fairness=false",
    "--max-mutating-requests-inflight=1",
];

/// An upload that was admitted and waits for its body. It holds a seat until it is dropped.
async fn hold_seat(playground: &Playground) -> BufReader<TlsStream<TcpStream>> {
    let address = playground.read_file("address");
    let ca = playground.read_file("ca.crt");
    let tokens = playground.read_file("tokens.csv");
    let bob = tokens.lines().find(|line| line.contains(",bob,")).unwrap();
    let token = bob.split(',').next().unwrap();
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    within("a seat", async {
        let tcp = TcpStream::connect(&address).await.unwrap();
        let tls = TlsConnector::from(Arc::new(config));
        let mut stream = BufReader::new(tls.connect(name, tcp).await.unwrap());
        let head = format!(
            "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: {address}\r\n\
             Authorization: Bearer {token}\r\nContent-Type: application/json\r\n\
             Content-Length: 100\r\nExpect: 100-continue\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // Sent to admitted requests only.
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        assert_eq!(line, "HTTP/1.1 100 Continue\r\n");
        stream
    })
    .await
}

/// Requests that the limit has rejected.
async fn rejected_count(playground: &Playground) -> u64 {
    metric(
        playground,
        "apiserver_dropped_requests_total{request_kind=\"mutating\"} ",
    )
    .await
}

/// The value of a counter.
async fn metric(playground: &Playground, series: &str) -> u64 {
    let address = playground.read_file("admin-address");
    let mut text = String::new();
    within("the metrics", async {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.read_to_string(&mut text).await.unwrap();
    })
    .await;
    let count = text.lines().find_map(|line| line.strip_prefix(series));
    count.map_or(0, |count| count.parse().unwrap()) // absent before the first increment
}

#[tokio::test]
async fn a_429_names_its_limit_and_retry_after() {
    let playground = Playground::start(&ONE_WRITE_FLAGS).await;
    let _seat = hold_seat(&playground).await;
    for context in ALICE {
        let mut config = playground.config(context).await;
        config.default_retry = false;
        let maps: Api<ConfigMap> = Api::namespaced(Client::try_from(config).unwrap(), "default");
        let (post, map) = (PostParams::default(), config_map("refused", "1"));
        let status = match within("an answer", maps.create(&post, &map)).await {
            Err(Error::Api(status)) => status,
            other => panic!("{other:?}, as {context}"),
        };
        assert_eq!((status.code, &*status.reason), (429, "TooManyRequests"));
        assert!(
            status.message.contains("--max-mutating-requests-inflight"),
            "{}",
            status.message
        );
        let details = status.details.expect("details");
        assert_eq!(details.retry_after_seconds, 1);
        let causes: Vec<&str> = details.causes.iter().map(|cause| &*cause.reason).collect();
        assert_eq!(causes, ["weir/max-mutating-requests-inflight"]);
    }
}

#[tokio::test]
async fn a_client_that_honours_retry_after_is_served() {
    let playground = Playground::start(&ONE_WRITE_FLAGS).await;
    for context in ALICE {
        let before = rejected_count(&playground).await;
        let seat = hold_seat(&playground).await;
        let maps: Api<ConfigMap> = Api::namespaced(playground.client(context).await, "default");
        let map = config_map(&format!("later-by-{context}"), "1");
        let post = PostParams::default();
        let create = maps.create(&post, &map);
        let give_way = async {
            while rejected_count(&playground).await == before {}
            drop(seat);
        };
        let (made, ()) = within("the second try", async { tokio::join!(create, give_way) }).await;
        assert_eq!(
            made.unwrap().metadata.name,
            map.metadata.name,
            "as {context}"
        );
    }
    let held = metric(&playground, "weir_rejection_hold_seconds_count ").await;
    assert_eq!(held, 0, "who waits as he is told is never held");
}
