//! Throughput of clients that honour `Retry-After`: the `kube` crate with its defaults, with and
//! without delayed rejections, side by side. Such clients are never delayed, so both must be equal.
//! Exits with an error if they are not.
//!
//! The `kube` crate's clients use HTTP/1.1, one connection for each concurrent request. Clients
//! that share HTTP/2 connections are measured as well, without a verdict: weir remembers only a few
//! `Retry-After` times for each connection.
//!
//! Usage: cargo bench --bench backoff [-- SECONDS for each run, default 5]

#[path = "../tests/clients/playground.rs"]
#[expect(clippy::panic, clippy::unwrap_used, reason = "written for tests")]
mod playground;

use std::env;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::{AUTHORIZATION, RETRY_AFTER};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper::client::conn::http2;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use weir_base::clock::Clock;

use crate::playground::{ALICE, Playground};

/// Four times the number of slots, so that most requests get 429 and wait.
const CLIENTS: usize = 40;
const LIMIT_FLAG: &str = "--max-requests-inflight=10";

/// The same number of clients, on this number of connections.
const CONNECTIONS: usize = 4;

/// The service time of a request. It limits the throughput, not the speed of the machine.
const SERVICE_TIME_FLAG: &str = "--service-time=50ms";

/// Other load can spoil a round. If the median deviates too much, more rounds are measured, up to
/// this number, and all count.
const ROUNDS: usize = 5;
const MAX_ROUNDS: usize = 21;

/// The allowed deviation of the median from 1.
const MAX_DEVIATION: f64 = 0.03;

/// The kind of clients.
#[derive(Clone, Copy)]
enum ClientKind {
    /// The `kube` crate's clients, each with one request at a time.
    Kube,
    /// The same number of clients on a few HTTP/2 connections.
    SharedHttp2,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let seconds = env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(5));
    println!("good answers a second for {CLIENTS} clients that wait as they are told");
    let ratio = measure_ratio(ClientKind::Kube, time, MAX_ROUNDS).await?;
    println!("the same on {CONNECTIONS} connections of HTTP/2, without a verdict");
    measure_ratio(ClientKind::SharedHttp2, time, ROUNDS).await?;
    if (ratio - 1.0).abs() > MAX_DEVIATION {
        return Err(format!("holding changes what they get: {ratio:.3}").into());
    }
    Ok(())
}

/// The median of the ratios of throughput with and without delayed rejections.
async fn measure_ratio(
    kind: ClientKind,
    time: Duration,
    most: usize,
) -> Result<f64, Box<dyn Error>> {
    println!("{:>12} {:>12} {:>8}", "hold 1s", "hold 0", "ratio");
    let mut ratios = Vec::new();
    loop {
        let mut flags = ["--rejection-hold=1s", "--rejection-hold=0"];
        let turned = ratios.len() % 2 == 1; // alternates, so that drift of the machine affects both
        if turned {
            flags.reverse();
        }
        let [first, second] = flags;
        let mut good = [
            measure_throughput(kind, first, time).await?,
            measure_throughput(kind, second, time).await?,
        ];
        if turned {
            good.reverse();
        }
        let [held, not_held] = good;
        println!("{held:>12.1} {not_held:>12.1} {:>8.3}", held / not_held);
        ratios.push(held / not_held);
        ratios.sort_by(f64::total_cmp);
        let median = ratios.get(ratios.len() / 2).copied().unwrap_or_default();
        let fits = (median - 1.0).abs() <= MAX_DEVIATION;
        if ratios.len() >= most || ratios.len() >= ROUNDS && fits {
            println!("median of the ratios: {median:.3}");
            return Ok(median);
        }
    }
}

/// Successful responses a second.
async fn measure_throughput(
    kind: ClientKind,
    hold: &str,
    time: Duration,
) -> Result<f64, Box<dyn Error>> {
    let flags = [
        "--enable-priority-and-fairness=false",
        LIMIT_FLAG,
        SERVICE_TIME_FLAG,
        hold,
    ];
    let playground = Playground::start(&flags).await;
    let good = Arc::new(AtomicU64::new(0));
    let mut asking = JoinSet::new();
    match kind {
        ClientKind::Kube => spawn_kube_clients(&playground, &good, &mut asking).await,
        ClientKind::SharedHttp2 => spawn_http2_clients(&playground, &good, &mut asking).await?,
    }
    tokio::time::sleep(Duration::from_secs(2)).await; // warm-up
    let (before, began) = (good.load(Ordering::Relaxed), Clock.now());
    tokio::time::sleep(time).await;
    let more = u32::try_from(good.load(Ordering::Relaxed) - before)?;
    let per_second = f64::from(more) / Clock.now().saturating_duration_since(began).as_secs_f64();
    if per_second > 0.0 && asking.try_join_next().is_none() {
        Ok(per_second)
    } else {
        Err("some client has ended, or nobody got an answer".into())
    }
}

async fn spawn_kube_clients(
    playground: &Playground,
    good: &Arc<AtomicU64>,
    asking: &mut JoinSet<()>,
) {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(playground.pods(ALICE[1]).await);
    }
    for (pods, name) in clients {
        let good = Arc::clone(good);
        asking.spawn(async move {
            loop {
                if pods.get(&name).await.is_ok() {
                    good.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
}

async fn spawn_http2_clients(
    playground: &Playground,
    good: &Arc<AtomicU64>,
    asking: &mut JoinSet<()>,
) -> Result<(), Box<dyn Error>> {
    let (_, name) = playground.pods(ALICE[1]).await;
    let address = playground.read_file("address");
    let tokens = playground.read_file("tokens.csv");
    let token = tokens
        .lines()
        .filter_map(|line| line.split_once(','))
        .find(|(_, rest)| rest.split(',').next() == Some(ALICE[0]))
        .map(|(token, _)| token)
        .ok_or("she has no token")?;
    let request = Request::get(format!(
        "https://{address}/api/v1/namespaces/default/pods/{name}"
    ))
    .header(AUTHORIZATION, format!("Bearer {token}"))
    .body(String::new())?;
    for _ in 0..CONNECTIONS {
        let sender = connect(playground, &address).await?;
        for _ in 0..CLIENTS / CONNECTIONS {
            let (sender, request) = (sender.clone(), request.clone());
            let good = Arc::clone(good);
            asking.spawn(async move {
                let _ = request_loop(sender, request, &good).await; // the end of the loop is an error
            });
        }
    }
    Ok(())
}

async fn connect(
    playground: &Playground,
    address: &str,
) -> Result<SendRequest<String>, Box<dyn Error>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(playground.read_file("ca.crt").as_bytes()) {
        roots.add(certificate?)?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("localhost")?;
    let stream = TcpStream::connect(address).await?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await?;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Sends requests for ever and honours `Retry-After`.
async fn request_loop(
    mut sender: SendRequest<String>,
    request: Request<String>,
    good: &AtomicU64,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    loop {
        sender.ready().await?;
        let response = sender.send_request(request.clone()).await?;
        let (head, body) = response.into_parts();
        body.collect().await?;
        match head.status {
            StatusCode::OK => {
                good.fetch_add(1, Ordering::Relaxed);
            }
            StatusCode::TOO_MANY_REQUESTS => {
                let retry_after = head.headers.get(RETRY_AFTER).ok_or("no Retry-After")?;
                tokio::time::sleep(Duration::from_secs(retry_after.to_str()?.parse()?)).await;
            }
            other => return Err(format!("{other}").into()),
        }
    }
}
