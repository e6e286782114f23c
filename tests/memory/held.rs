//! What a refusal that is held takes of memory, over what the HTTP library takes for any request that waits: less than 2 KiB (an
//! event's with its message), however long its head, its body and what it names are.

#![expect(
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "what does not come as it should fails the test, and a pipeline has many parts"
)]

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use allocation_counter::measure;
use bytes::Bytes;
use http::Request;
use http::Response;
use http_body_util::BodyExt;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioExecutor;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use weir::api::UserInfo;
use weir::clock::Clock;
use weir::drain::Drain;
use weir::flowcontrol::controller::Times;
use weir::identity::Identity;
use weir::identity::TokenFile;
use weir::identity::Tokens;
use weir::identity::tokens;
use weir::limits::Admission;
use weir::limits::MaxInFlight;
use weir::limits::Permit;
use weir::limits::RequestDigest;
use weir::limits::events::Groups;
use weir::limits::events::LONGEST_MESSAGE;
use weir::limits::events::config::Limit;
use weir::limits::events::config::LimitType;
use weir::limits::events::enforce;
use weir::limits::max_in_flight;
use weir::limits::rates;
use weir::limits::rates::Rates;
use weir::limits::upgrades::UpgradeRate;
use weir::metrics::Registry;
use weir::minimum_rate::MinimumRate;
use weir::pipeline::Peer;
use weir::pipeline::Pipeline;
use weir::pipeline::body::Body;
use weir::pipeline::heads::HeadBudget;
use weir::pipeline::holding::Holding;
use weir::pipeline::holding::Patience;
use weir::pipeline::impersonation::Impersonation;
use weir::pipeline::in_flight::GivenUp;
use weir::pipeline::overdue::Overdue;
use weir::pipeline::overdue::SlowTransfers;
use weir::pipeline::record::Record;
use weir::pipeline::record::Witness;
use weir::pipeline::refusing::SkippedBodies;
use weir::pipeline::refusing::Skips;
use weir::pipeline::request_body::BUFFER;
use weir::pipeline::trace::RequestMetrics;
use weir::request_info::RequestInfo;
use weir::upstream;
use weir::upstream::Upstream;
use weir::upstream::cdn_loop::ProcessId;
use weir::upstream::connector::Target;
use weir::upstream::loops::LoopDetector;
use weir::upstream::read_body::Budget;
use weir::upstream::room::PlaceMetrics;
use weir::upstream::room::Room;

/// Streams of the connection: half of them may be held.
const STREAMS: u32 = 100;

/// Requests that come too early: as many as may be held.
const EARLY: usize = 49;

/// What each of them may take, in bytes.
const MOST: i64 = 2 << 10;

/// What weir answers itself, at once.
const AT_ONCE: &str = "/api/v1/watch";

/// Looks on, and has nothing to say.
#[derive(Debug)]
struct Onlooker;

impl Witness for Onlooker {
    fn ended(&self, _: &Record, _: Instant) {}
}

/// A pipeline that lets one event through and one write, which is there already.
async fn full() -> (Arc<Pipeline>, Permit) {
    let registry = Registry::new();
    let config = max_in_flight::Config {
        read_only: 0.into(),
        mutating: 1.into(),
    };
    let admission = Admission::MaxInFlight(Arc::new(MaxInFlight::new(config, &registry)));
    let events = enforce::Config {
        limits: vec![Limit {
            limit_type: LimitType::SourceAndObject,
            qps: 1,
            burst: 1,
            cache_size: 10,
            warning_reserve_percent: 0,
        }],
        groups: Groups::All,
        retry_after: true,
    };
    let config = rates::Config {
        events: Some(events),
        clients: Vec::new(),
    };
    let info = RequestInfo::parse("POST", b"/api/v1/namespaces/a/pods").unwrap();
    let (user, now) = (UserInfo::anonymous(), Clock.now());
    let digest = RequestDigest {
        info: &info,
        user: &user,
    };
    let permit = admission.admit(&digest, Times::at(now)).await.unwrap();
    let tokens = tokens::Config {
        issuers: Vec::new(),
        accounts: None,
        reviewer: None,
        reviews_per_second: 50,
        audiences: Vec::new(),
        ttl: Duration::from_secs(120),
    };
    let tokens = Tokens::new(tokens, &registry);
    let upstream = upstream::Config {
        target: Target {
            authority: "127.0.0.1:1".parse().unwrap(),
            server_name: "127.0.0.1".try_into().unwrap(),
            proxy: None,
        },
        roots: rustls::RootCertStore::empty(),
        front_proxy: None,
        most_connections: 1,
        room: 1024,
        id: ProcessId::from_bytes([1; 16]),
    };
    let places = Room::of(upstream.room, &PlaceMetrics::register(&registry));
    let metrics = upstream::Metrics::register(&registry);
    let witness: Arc<dyn Witness> = Arc::new(Onlooker);
    let pipeline = Pipeline {
        identity: Arc::new(Identity::new(None, None, TokenFile::default(), tokens).unwrap()),
        impersonation: Impersonation {
            access: None,
            classify: false,
        },
        identity_headers: Arc::default(),
        rates: Arc::new(Rates::new(&config, &registry)),
        request_bodies: Budget::new(64 << 20),
        body_buffer: BUFFER,
        given_up: GivenUp::new(GivenUp::register(&registry)),
        heads: HeadBudget::new(&registry),
        skipped_bodies: SkippedBodies::new(&registry),
        upgrades: UpgradeRate::new(0, &registry),
        admission,
        loops: LoopDetector::register(upstream.id.clone(), &registry),
        upstream: Upstream::new(&upstream, &places, None, &metrics),
        request_timeout: Duration::from_secs(3600),
        refusals: Arc::default(),
        holding: Arc::new(Holding::new(Duration::from_secs(600), &registry)),
        drain: Drain::new(),
        overdue: Overdue::new(MinimumRate::default(), SlowTransfers::register(&registry)),
        metrics: RequestMetrics::register(&registry),
        witnesses: Arc::from([witness]),
        sampler: None,
        audits: false,
        explains: false,
        upstream_log: Arc::default(),
    };
    (Arc::new(pipeline), permit)
}

type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// What becomes of a request.
type Serve = Arc<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>;

fn by_weir(pipeline: &Arc<Pipeline>) -> Serve {
    let pipeline = Arc::clone(pipeline);
    let peer = Arc::new(Peer {
        address: SocketAddr::from(([127, 0, 0, 1], 1)),
        number: 1,
        trusted: false,
        certificate: None,
        unverified: OnceLock::new(),
        fragments: Arc::default(),
        patience: Patience::new(100),
        skips: Skips::default(),
    });
    Arc::new(move |request| {
        let (pipeline, peer) = (Arc::clone(&pipeline), Arc::clone(&peer));
        let (head, body) = request.into_parts();
        let head = Box::new(head);
        Box::pin(async move { pipeline.handle(&peer, head, body).await })
    })
}

/// Keeps nothing of a request, and waits.
fn by_waiting(waiting: &Arc<AtomicUsize>) -> Serve {
    let waiting = Arc::clone(waiting);
    Arc::new(move |request| {
        let at_once = request.uri().path() == AT_ONCE || request.uri().query() == Some("first");
        if !at_once {
            waiting.fetch_add(1, Ordering::SeqCst);
        }
        Box::pin(async move {
            drop(request);
            if !at_once {
                std::future::pending::<()>().await;
            }
            Response::new(Body::fixed(Bytes::new()))
        })
    })
}

/// A client on a thread of its own, whose memory does not count. It sends `first` of these one by one, then all `EARLY` when it is
/// told to, and says when they are surely there.
fn client(
    address: SocketAddr,
    first: usize,
    request: impl Fn(&str) -> Request<Full<Bytes>> + Send + 'static,
) -> (mpsc::Sender<()>, mpsc::Receiver<()>) {
    let (go, mut told) = mpsc::channel(1);
    let (says, said) = mpsc::channel(1);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let tcp = TcpStream::connect(address).await.unwrap();
            let (mut sender, connection) =
                hyper::client::conn::http2::Builder::new(TokioExecutor::new())
                    .handshake(TokioIo::new(tcp))
                    .await
                    .unwrap();
            tokio::spawn(connection);
            for _ in 0..first {
                let answer = sender.send_request(request("?first")).await.unwrap();
                answer.into_body().collect().await.unwrap();
            }
            says.send(()).await.unwrap();
            told.recv().await;
            for _ in 0..EARLY {
                tokio::spawn(sender.send_request(request("")));
            }
            // What was sent before these has come before them, as good as surely.
            for _ in 0..50 {
                let ask = Request::get(format!("http://weir{AT_ONCE}"));
                let ask = ask.body(Full::default()).unwrap();
                sender.send_request(ask).await.unwrap();
            }
            says.send(()).await.unwrap();
            told.recv().await; // until the test is over
        });
    });
    (go, said)
}

/// Bytes that requests take, all of those that are `waiting` at last together.
fn taken(
    serve: Serve,
    first: usize,
    request: impl Fn(&str) -> Request<Full<Bytes>> + Send + 'static,
    runtime: &tokio::runtime::Runtime,
) -> i64 {
    let (go, mut said) = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ends = client(listener.local_addr().unwrap(), first, request);
        let (tcp, _) = listener.accept().await.unwrap();
        let service = service_fn(move |request| {
            let answer = serve(request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(2 * STREAMS)
            .max_header_list_size(1 << 20)
            .initial_stream_window_size(256 << 10)
            .initial_connection_window_size(64 << 20)
            .serve_connection(TokioIo::new(tcp), service);
        tokio::spawn(connection);
        ends
    });
    runtime.block_on(said.recv()).unwrap();
    let taken = measure(|| {
        runtime.block_on(async {
            go.send(()).await.unwrap();
            said.recv().await.unwrap();
        });
    });
    taken.bytes_current
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// What each held refusal of such requests takes, over one that only waits: the least of three measurements, as whatever else
/// allocates meanwhile only adds to it.
fn each(
    first: usize,
    request: impl Fn(&str) -> Request<Full<Bytes>> + Copy + Send + 'static,
) -> i64 {
    (0..3).map(|_| measured(first, request)).min().unwrap()
}

fn measured(
    first: usize,
    request: impl Fn(&str) -> Request<Full<Bytes>> + Copy + Send + 'static,
) -> i64 {
    let plain = runtime();
    let waiting = Arc::new(AtomicUsize::new(0));
    let without = taken(by_waiting(&waiting), first, request, &plain);
    assert_eq!(waiting.load(Ordering::SeqCst), EARLY);
    let runtime = runtime();
    let (pipeline, _permit) = runtime.block_on(full());
    let with = taken(by_weir(&pipeline), first, request, &runtime);
    let (held, ..) = pipeline.holding.shown();
    // On a machine that is slow for seconds some are over already.
    assert!(held > EARLY / 2, "{held} are held");
    (with - without) / i64::try_from(held).unwrap()
}

#[test]
fn a_held_refusal_keeps_neither_the_head_nor_the_body_of_its_request() {
    let each = each(1, |query| {
        Request::post(format!("http://weir/api/v1/namespaces/a/pods{query}"))
            .header(
                "user-agent",
                "kubectl/v1.36.0 (linux/amd64) kubernetes/abcdef0",
            )
            .header("x-filler", "~".repeat(60_000))
            .header("accept", "application/json;as=Table;v=v1, application/json")
            .body(Full::from(vec![b'x'; 60_000]))
            .unwrap()
    });
    println!("{each} bytes a held refusal");
    assert!((0..MOST).contains(&each), "{each} bytes");
}

#[test]
fn a_held_refusal_of_an_event_keeps_no_more_of_its_key_than_is_said() {
    // Of two first ones the second is refused, and told when to come back.
    let each = each(2, |query| {
        let event = format!(
            r#"{{"metadata":{{"name":"e"}},"source":{{"component":"{}"}}}}"#,
            "k".repeat(60_000)
        );
        Request::post(format!("http://weir/api/v1/namespaces/a/events{query}"))
            .header("content-type", "application/json")
            .body(Full::from(event))
            .unwrap()
    });
    println!("{each} bytes a held refusal of an event");
    let message = i64::try_from(LONGEST_MESSAGE).unwrap();
    assert!((0..MOST + message).contains(&each), "{each} bytes");
}
