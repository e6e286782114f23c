//! Memory of a delayed rejection, over that of any waiting request in the HTTP library: less than 2
//! KiB (for an event: with its message), for any length of head, body and names.

#![expect(
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "what does not come as it should fails the test, and a pipeline has many parts"
)]

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use allocation_counter::measure;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use weir::flowcontrol::controller::RequestTimes;
use weir::identity::{LocalAuthenticators, RequestAuthenticator, TokenAuthenticator, tokens};
use weir::limits::abandoned_backlog::AbandonedBacklog;
use weir::limits::levers::Levers;
use weir::limits::list_bytes::ListBytes;
use weir::limits::memory_limit::MemoryLimit;
use weir::limits::upgrade_rate::UpgradeRateLimit;
use weir::limits::watch_starts::WatchStarts;
use weir::limits::{Admission, AdmissionPermit};
use weir::pipeline::Pipeline;
use weir::pipeline::connection::head_budget::HeadBudget;
use weir::pipeline::connection::peer::{BodyDrainSlots, HoldState, Peer};
use weir::pipeline::dependencies::{
    PipelineSettings, SharedDependencies, TransferConfig, WorkerDependencies,
};
use weir::pipeline::reject::body_drain::BodyDrainBudget;
use weir::pipeline::reject::delay::{RejectionDelay, RejectionDelayConfig};
use weir::pipeline::response::abandoned::AbandonedRequests;
use weir::pipeline::response::body::Body;
use weir::pipeline::response::deadlines::{Deadlines, SlowTransfers};
use weir::pipeline::trace::RequestMetrics;
use weir::pipeline::trace::record::{Record, RequestObserver};
use weir::upstream;
use weir::upstream::Upstream;
use weir::upstream::connection::address::ServerAddress;
use weir::upstream::connection::connection_budget::{ConnectionBudget, SlotMetrics};
use weir::upstream::loop_detection::LoopDetector;
use weir::upstream::loop_detection::cdn_loop::InstanceId;
use weir_base::clock::Clock;
use weir_base::drain::Drain;
use weir_base::metrics::Registry;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::max_in_flight;
use weir_limits::rate;
use weir_limits::rate::RateLimits;
use weir_limits::rate::events::buckets::{LimitedEventGroups, MAX_MESSAGE_BYTES};
use weir_limits::rate::events::config::{EventLimitConfig, LimitType};
use weir_limits::rate::events::enforcer;
use weir_limits::throttling::memory_budget::MemoryBudget;
use weir_limits::throttling::minimum_rate::MinimumRate;
use weir_limits::{AdmissionAttributes, MaxInFlight};

/// Streams of the connection. Half of them may be held.
const STREAMS: u32 = 100;

/// Timeout of all events.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Early requests: as many as may be held.
const EARLY_REQUESTS: usize = 49;

/// Maximum memory of each, in bytes.
const MAX_BYTES: i64 = 2 << 10;

/// A path that weir answers itself, at once.
const IMMEDIATE_PATH: &str = "/api/v1/watch";

/// An observer that does nothing.
#[derive(Debug)]
struct NoopObserver;

impl RequestObserver for NoopObserver {
    fn on_ended(&self, _: &Record, _: Instant) {}
}

struct FullPipeline {
    pipeline: Arc<Pipeline>,
    rejection_delay: Arc<RejectionDelay>,
    /// Of the write that is in flight.
    _permit: AdmissionPermit,
}

/// A pipeline that admits one event and one write; the write is in flight already.
async fn full_pipeline() -> FullPipeline {
    let registry = Registry::new();
    let config = max_in_flight::MaxInFlightConfig {
        read_only: 0.into(),
        mutating: 1.into(),
    };
    let admission = Admission::MaxInFlight(Arc::new(MaxInFlight::new(config, &registry)));
    let events = enforcer::EventRateLimitConfig {
        limits: vec![EventLimitConfig {
            limit_type: LimitType::SourceAndObject,
            qps: 1,
            burst: 1,
            cache_size: 10,
            warning_reserve_percent: 0,
        }],
        groups: LimitedEventGroups::All,
        retry_after: true,
        dry_run: false,
    };
    let config = rate::RateLimitsConfig {
        events: Some(events),
        clients: Vec::new(),
        policies: Vec::new(),
    };
    let info = RequestInfo::parse("POST", b"/api/v1/namespaces/a/pods").unwrap();
    let (user, now) = (UserInfo::anonymous(), Clock.now());
    let digest = AdmissionAttributes {
        info: &info,
        user: &user,
    };
    let permit = admission
        .admit(&digest, RequestTimes::at(now))
        .await
        .unwrap();
    let tokens = tokens::TokenConfig {
        issuers: Vec::new(),
        service_accounts: None,
        api_server: None,
        reviews_per_second: 50,
        audiences: Vec::new(),
        cache_ttl: Duration::from_secs(120),
    };
    let tokens = TokenAuthenticator::new(tokens, &registry);
    let upstream = upstream::UpstreamConfig {
        servers: vec![ServerAddress::new(
            "127.0.0.1:1".parse().unwrap(),
            "127.0.0.1".try_into().unwrap(),
        )],
        endpoint_slices: false,
        roots: weir_x509::CertificatePool::default(),
        front_proxy: None,
        max_http2_connections: 1,
        protocol: upstream::UpstreamProtocol::Auto,
        max_connections: 1024,
        instance_id: InstanceId::from_bytes([1; 16]),
        probe_interval: None,
    };
    let places = ConnectionBudget::new(upstream.max_connections, &SlotMetrics::register(&registry));
    let metrics = upstream::UpstreamMetrics::register(&registry);
    let witness: Arc<dyn RequestObserver> = Arc::new(NoopObserver);
    let rejection_delay = Arc::new(RejectionDelay::new(
        RejectionDelayConfig {
            rejection_hold: Duration::from_secs(600),
            max_rejection_millicores: 0,
        },
        &registry,
    ));
    let shared = SharedDependencies {
        authenticator: Arc::new(
            RequestAuthenticator::new(LocalAuthenticators::default(), tokens).unwrap(),
        ),
        impersonation_authorizer: None,
        identity_headers: Arc::default(),
        rates: Arc::new(RateLimits::new(&config, &registry)),
        admission,
        memory_limit: MemoryLimit::new(0, &registry),
        abandoned_backlog: AbandonedBacklog::new(&registry),
        levers: Levers::new(&registry),
        list_bytes: ListBytes::new(|| (1, 1), &registry),
        watch_starts: WatchStarts::new(&registry),
        upgrade_rate: UpgradeRateLimit::new(0, &registry),
        head_budget: HeadBudget::new(&registry),
        request_body_budget: MemoryBudget::new(64 << 20),
        body_drain_budget: BodyDrainBudget::new(&registry),
        loop_detector: LoopDetector::register(upstream.instance_id.clone(), &registry),
        rejection_responses: Arc::default(),
        rejection_delay: Arc::clone(&rejection_delay),
        drain: Drain::new(),
        metrics: RequestMetrics::register(&registry),
        upstream_log_limiter: Arc::default(),
        settings: PipelineSettings {
            request_timeout: Duration::from_secs(3600),
            transfers: TransferConfig::default(),
            classify_impersonated: false,
            sampler: None,
            has_audit_log: false,
            explain_responses: false,
        },
    };
    let worker = WorkerDependencies {
        upstream: Arc::new(Upstream::new(
            &upstream,
            &upstream::server_set(&upstream, &registry),
            &places,
            None,
            &metrics,
        )),
        abandoned_requests: AbandonedRequests::new(AbandonedRequests::register(&registry)),
        deadlines: Deadlines::new(MinimumRate::default(), SlowTransfers::register(&registry)),
        observers: Arc::from([witness]),
        lever_pulled: Arc::default(),
    };
    let pipeline = Arc::new(Pipeline::new(Arc::new(shared), worker));
    FullPipeline {
        pipeline,
        rejection_delay,
        _permit: permit,
    }
}

type BoxedResponse = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// The result of a request.
type RequestHandler = Arc<dyn Fn(Request<Incoming>) -> BoxedResponse + Send + Sync>;

fn weir_handler(pipeline: &Arc<Pipeline>) -> RequestHandler {
    let pipeline = Arc::clone(pipeline);
    let peer = Arc::new(Peer {
        address: SocketAddr::from(([127, 0, 0, 1], 1)),
        address_value: OnceLock::new(),
        connection_id: 1,
        trusted: false,
        certificate: None,
        trust: pipeline.trust_observer(),
        unverified_user: OnceLock::new(),
        last_user: Default::default(),
        levers_at_start: 0,
        hold_state: HoldState::new(100),
        body_drain_slots: BodyDrainSlots::default(),
    });
    Arc::new(move |request| {
        let (pipeline, peer) = (Arc::clone(&pipeline), Arc::clone(&peer));
        let (head, body) = request.into_parts();
        let head = Box::new(head);
        Box::pin(async move { pipeline.handle(&peer, head, body).await })
    })
}

/// Drops the request and waits for ever, except for the first requests and [`IMMEDIATE_PATH`].
fn waiting_handler(waiting: &Arc<AtomicUsize>) -> RequestHandler {
    let waiting = Arc::clone(waiting);
    Arc::new(move |request| {
        let at_once =
            request.uri().path() == IMMEDIATE_PATH || request.uri().query() == Some("first");
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

/// A client on its own thread, whose memory does not count. It sends `first` one by one, then all
/// `EARLY_REQUESTS` on command, and reports when they have arrived.
fn spawn_client(
    address: SocketAddr,
    first: usize,
    request: impl Fn(&str) -> Request<Full<Bytes>> + Send + 'static,
) -> (mpsc::Sender<()>, mpsc::Receiver<()>) {
    let (start_sender, mut start) = mpsc::channel(1);
    let (done_sender, done) = mpsc::channel(1);
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
                let response = sender.send_request(request("?first")).await.unwrap();
                response.into_body().collect().await.unwrap();
            }
            done_sender.send(()).await.unwrap();
            start.recv().await;
            for _ in 0..EARLY_REQUESTS {
                tokio::spawn(sender.send_request(request("")));
            }
            // The requests before these have arrived by now, almost certainly.
            for _ in 0..50 {
                let immediate = Request::get(format!("http://weir{IMMEDIATE_PATH}"));
                let immediate = immediate.body(Full::default()).unwrap();
                sender.send_request(immediate).await.unwrap();
            }
            done_sender.send(()).await.unwrap();
            start.recv().await; // until the test ends
        });
    });
    (start_sender, done)
}

/// Bytes of the requests, of all that are `waiting` at the end together.
fn measure_requests(
    serve: RequestHandler,
    first: usize,
    request: impl Fn(&str) -> Request<Full<Bytes>> + Send + 'static,
    runtime: &tokio::runtime::Runtime,
) -> i64 {
    let (start_sender, mut done) = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ends = spawn_client(listener.local_addr().unwrap(), first, request);
        let (tcp, _) = listener.accept().await.unwrap();
        let service = service_fn(move |request| {
            let response = serve(request);
            async move { Ok::<_, Infallible>(response.await) }
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
    runtime
        .block_on(within("the first requests to be answered", done.recv()))
        .unwrap();
    let taken = measure(|| {
        runtime.block_on(async {
            start_sender.send(()).await.unwrap();
            within("the requests to wait", done.recv()).await.unwrap();
        });
    });
    taken.bytes_current
}

/// Waits for `event`. Fails the test with a message on timeout.
async fn within<F: Future>(what: &str, event: F) -> F::Output {
    let event = tokio::time::timeout(EVENT_TIMEOUT, event).await;
    assert!(event.is_ok(), "waited {EVENT_TIMEOUT:?} in vain for {what}");
    event.unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// The memory of a delayed rejection of such a request, over that of a waiting request. The least
/// of three measurements, because other allocations only add to it.
fn bytes_per_rejection(
    first: usize,
    request: impl Fn(&str) -> Request<Full<Bytes>> + Copy + Send + 'static,
) -> i64 {
    (0..3)
        .map(|_| measure_bytes_per_rejection(first, request))
        .min()
        .unwrap()
}

fn measure_bytes_per_rejection(
    first: usize,
    request: impl Fn(&str) -> Request<Full<Bytes>> + Copy + Send + 'static,
) -> i64 {
    let plain = runtime();
    let waiting = Arc::new(AtomicUsize::new(0));
    let without = measure_requests(waiting_handler(&waiting), first, request, &plain);
    assert_eq!(waiting.load(Ordering::SeqCst), EARLY_REQUESTS);
    let runtime = runtime();
    let full = runtime.block_on(full_pipeline());
    let with = measure_requests(weir_handler(&full.pipeline), first, request, &runtime);
    let (held, ..) = full.rejection_delay.snapshot();
    // On a slow machine some delays have ended already.
    assert!(held > EARLY_REQUESTS / 2, "{held} are held");
    (with - without) / i64::try_from(held).unwrap()
}

#[test]
fn a_held_rejection_keeps_neither_the_head_nor_the_body_of_its_request() {
    let each = bytes_per_rejection(1, |query| {
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
    assert!((0..MAX_BYTES).contains(&each), "{each} bytes");
}

#[test]
fn a_held_rejection_of_an_event_keeps_no_more_of_its_key_than_its_message() {
    // The second of two requests is rejected, with a `Retry-After`.
    let each = bytes_per_rejection(2, |query| {
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
    let message = i64::try_from(MAX_MESSAGE_BYTES).unwrap();
    assert!((0..MAX_BYTES + message).contains(&each), "{each} bytes");
}
