//! How many instructions the engine and the pipeline take for fixed work, counted by Valgrind
//! (callgrind). Counts do not depend on what else the machine does, so that a release can be
//! compared with the one before: `benches/instructions.sh` does.
//!
//! The replay sends requests over a connection in memory through hyper and the whole pipeline,
//! which answers each by itself: it is rejected or malformed. Forwarding is not part of it. That
//! needs the kernel's sockets, whose wake-ups are another number in each run;
//! `request-instructions.sh` counts it roughly.
//!
//! Needs valgrind, and gungraun-runner of the same version as the crate.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "virtual time begins somewhere, and the requests are well-formed"
)]
#![expect(
    missing_docs,
    unused_qualifications,
    reason = "gungraun's macros make public modules, and name every function by its path"
)]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::hint::black_box;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use gungraun::{LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::runtime::Runtime;
use weir::flowcontrol::controller::{Controller, ControllerConfig, Enforcement, RequestTimes};
use weir::identity::tokens::TokenConfig;
use weir::identity::{LocalAuthenticators, RequestAuthenticator, TokenAuthenticator};
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
use weir::pipeline::response::deadlines::{Deadlines, SlowTransfers};
use weir::pipeline::trace::RequestMetrics;
use weir::upstream;
use weir::upstream::connection::address::ServerAddress;
use weir::upstream::connection::connection_budget::{ConnectionBudget, SlotMetrics};
use weir::upstream::loop_detection::LoopDetector;
use weir::upstream::loop_detection::cdn_loop::InstanceId;
use weir::upstream::{Upstream, UpstreamConfig, UpstreamMetrics, UpstreamProtocol};
use weir_base::clock::Clock;
use weir_base::drain::Drain;
use weir_base::metrics::Registry;
use weir_flowcontrol::bootstrap;
use weir_flowcontrol::bootstrap::BootstrapClass;
use weir_flowcontrol::fairqueuing::queue_set::{Effects, QueueSet, Queuing};
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_flowcontrol::fairqueuing::shuffle_sharding::{Dealer, flow_hash};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::max_in_flight::MaxInFlightConfig;
use weir_limits::rate::{RateLimits, RateLimitsConfig};
use weir_limits::throttling::memory_budget::MemoryBudget;
use weir_limits::throttling::minimum_rate::MinimumRate;
use weir_limits::{AdmissionAttributes, MaxInFlight};

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Requests of each benchmark. The counts are of all of them.
const REQUESTS: usize = 1000;

/// Hashes have random keys, and durations end in another bucket of a histogram: by both, the same
/// work takes another number of instructions in each run. `FIXED_LIBC` names a library whose
/// `getrandom` and `clock_gettime`, which the standard library calls, return the same in each run.
fn fixed_libc() -> LibraryBenchmarkConfig {
    let mut config = LibraryBenchmarkConfig::default();
    if let Some(library) = std::env::var_os("FIXED_LIBC") {
        config.env("LD_PRELOAD", library);
    }
    config
}

// --- Parsing

#[library_benchmark]
#[bench::pod("/api/v1/namespaces/default/pods/web-0")]
#[bench::list("/apis/apps/v1/deployments?labelSelector=app%3Dweb&limit=500&resourceVersion=0")]
fn request_info(target: &str) {
    for _ in 0..REQUESTS {
        let info = RequestInfo::parse("GET", black_box(target.as_bytes()));
        drop(black_box(info));
    }
}

// --- The engine

/// A priority level and the flows that visit it in rotation.
struct Level {
    set: QueueSet<()>,
    hashes: Vec<u64>,
    now: Instant,
}

fn level(flows: usize) -> Level {
    let dealer = Dealer::new(128, 6).expect("hands that can be dealt");
    let now = Instant::now();
    let queuing = Queuing::Queue {
        dealer,
        queue_length_limit: 50,
    };
    Level {
        set: QueueSet::new(now, queuing, 10),
        hashes: (0..flows)
            .map(|flow| flow_hash("schema", &format!("user-{flow}")))
            .collect(),
        now,
    }
}

// Twenty requests are there at a time, for ten seats: half of them are queued.
#[library_benchmark]
#[bench::one_flow(args = (1), setup = level)]
#[bench::hundred_flows(args = (100), setup = level)]
fn queue_set(mut level: Level) {
    const WORK: WorkEstimate = WorkEstimate {
        initial_seats: 1,
        final_seats: 0,
        additional_latency: Duration::ZERO,
    };
    let (mut effects, mut running) = (Effects::default(), VecDeque::new());
    for arrival in 0..REQUESTS {
        let hash = level.hashes.get(arrival % level.hashes.len());
        let hash = hash.copied().unwrap_or_default();
        level.now += Duration::from_micros(1);
        black_box(level.set.arrive(level.now, hash, WORK, (), &mut effects));
        running.extend(&effects.started);
        if arrival >= 20
            && let Some(ticket) = running.pop_front()
        {
            level.set.leave(level.now, ticket, &mut effects);
            running.extend(&effects.started);
        }
    }
}

fn controller(flows: usize) -> (Arc<Controller>, Vec<UserInfo>) {
    let config = ControllerConfig {
        server_concurrency_limit: 600,
        request_timeout: Duration::from_secs(60),
        enforcement: Enforcement::Enforce,
        consistent_reads_from_cache: true,
    };
    let all = [BootstrapClass::Mandatory, BootstrapClass::Suggested];
    let objects = all.into_iter().flat_map(bootstrap::objects);
    let users = (0..flows).map(|number| {
        UserInfo {
            name: format!("user-{number}"),
            ..UserInfo::default()
        }
        .with_authenticated_group()
    });
    let controller = Controller::new(config, objects, &Registry::new());
    (controller, users.collect())
}

// Classified, estimated, admitted and released, with all metrics.
#[library_benchmark]
#[bench::one_flow(args = (1), setup = controller)]
#[bench::hundred_flows(args = (100), setup = controller)]
fn admission((controller, users): (Arc<Controller>, Vec<UserInfo>)) {
    let info = RequestInfo::parse("GET", b"/api/v1/namespaces/default/pods/web-0");
    let (info, arrived) = (info.expect("a request for a pod"), Instant::now());
    let mut context = Context::from_waker(Waker::noop());
    for user in users.iter().cycle().take(REQUESTS) {
        let admitted = pin!(controller.admit(&info, user, RequestTimes::at(arrived)));
        match admitted.poll(&mut context) {
            Poll::Ready(Ok(admitted)) => drop(black_box(admitted)),
            Poll::Ready(Err(_)) | Poll::Pending => unreachable!("there are seats for all"),
        }
    }
}

// --- The pipeline

/// A pipeline without room for a write, and what it needs to run.
struct Replay {
    runtime: Runtime,
    pipeline: Arc<Pipeline>,
    permit: AdmissionPermit,
}

fn upstream_config() -> UpstreamConfig {
    UpstreamConfig {
        servers: vec![ServerAddress::new(
            "127.0.0.1:1".parse().expect("an address"),
            "127.0.0.1".try_into().expect("a name"),
        )],
        endpoint_slices: false,
        roots: weir_x509::CertificatePool::default(),
        front_proxy: None,
        max_http2_connections: 1,
        protocol: UpstreamProtocol::Auto,
        max_connections: 1024,
        instance_id: InstanceId::from_bytes([1; 16]),
        probe_interval: None,
    }
}

fn token_config() -> TokenConfig {
    TokenConfig {
        issuers: Vec::new(),
        service_accounts: None,
        api_server: None,
        reviews_per_second: 50,
        audiences: Vec::new(),
        cache_ttl: Duration::from_secs(120),
    }
}

fn shared(admission: Admission, registry: &Registry) -> SharedDependencies {
    let tokens = TokenAuthenticator::new(token_config(), registry);
    let authenticator = RequestAuthenticator::new(LocalAuthenticators::default(), tokens);
    let rates = RateLimitsConfig {
        events: None,
        clients: Vec::new(),
        policies: Vec::new(),
    };
    SharedDependencies {
        authenticator: Arc::new(authenticator.expect("an authenticator")),
        impersonation_authorizer: None,
        identity_headers: Arc::default(),
        rates: Arc::new(RateLimits::new(&rates, registry)),
        admission,
        memory_limit: MemoryLimit::new(0, registry),
        abandoned_backlog: AbandonedBacklog::new(registry),
        levers: Levers::new(registry),
        list_bytes: ListBytes::new(|| (1, 1), registry),
        watch_starts: WatchStarts::new(registry),
        upgrade_rate: UpgradeRateLimit::new(0, registry),
        head_budget: HeadBudget::new(registry),
        request_body_budget: MemoryBudget::new(64 << 20),
        body_drain_budget: BodyDrainBudget::new(registry),
        loop_detector: LoopDetector::register(InstanceId::from_bytes([1; 16]), registry),
        rejection_responses: Arc::default(),
        rejection_delay: Arc::new(RejectionDelay::new(
            RejectionDelayConfig {
                rejection_hold: Duration::ZERO,
                max_rejection_millicores: 0,
            },
            registry,
        )),
        drain: Drain::new(),
        metrics: RequestMetrics::register(registry),
        upstream_log_limiter: Arc::default(),
        settings: PipelineSettings {
            request_timeout: Duration::from_secs(3600),
            transfers: TransferConfig::default(),
            classify_impersonated: false,
            sampler: None,
            has_audit_log: false,
            explain_responses: false,
        },
    }
}

fn worker(registry: &Registry) -> WorkerDependencies {
    let upstream = upstream_config();
    let slots = ConnectionBudget::new(upstream.max_connections, &SlotMetrics::register(registry));
    WorkerDependencies {
        upstream: Arc::new(Upstream::new(
            &upstream,
            &upstream::server_set(&upstream, registry),
            &slots,
            None,
            &UpstreamMetrics::register(registry),
        )),
        abandoned_requests: AbandonedRequests::new(AbandonedRequests::register(registry)),
        deadlines: Deadlines::new(MinimumRate::default(), SlowTransfers::register(registry)),
        observers: Arc::from([]),
        lever_pulled: Arc::default(),
    }
}

fn full_pipeline() -> Replay {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let registry = Registry::new();
    let config = MaxInFlightConfig {
        read_only: 0.into(),
        mutating: 1.into(),
    };
    let admission = Admission::MaxInFlight(Arc::new(MaxInFlight::new(config, &registry)));
    let (pipeline, permit) = runtime.block_on(async {
        let info = RequestInfo::parse("POST", b"/api/v1/namespaces/a/pods").expect("a write");
        let user = UserInfo::anonymous();
        let attributes = AdmissionAttributes {
            info: &info,
            user: &user,
        };
        let times = RequestTimes::at(Clock.now());
        let permit = admission.admit(&attributes, times).await.expect("room");
        let shared = Arc::new(shared(admission.clone(), &registry));
        (Pipeline::new(shared, worker(&registry)), permit)
    });
    Replay {
        runtime,
        pipeline: Arc::new(pipeline),
        permit,
    }
}

/// The requests in their order: method, target, body, and the status of the answer.
const RECORDED: [(Method, &str, &str, StatusCode); 4] = [
    (
        Method::POST,
        "/api/v1/namespaces/a/pods",
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web-0"}}"#,
        StatusCode::TOO_MANY_REQUESTS,
    ),
    (
        Method::PATCH,
        "/apis/apps/v1/namespaces/a/deployments/web?fieldManager=kubectl",
        r#"{"spec":{"replicas":2}}"#,
        StatusCode::TOO_MANY_REQUESTS,
    ),
    (
        Method::DELETE,
        "/api/v1/namespaces/a/pods/web-0",
        "",
        StatusCode::TOO_MANY_REQUESTS,
    ),
    (
        Method::GET,
        "/api/v1/watch",
        "",
        StatusCode::INTERNAL_SERVER_ERROR,
    ),
];

#[library_benchmark]
#[bench::rejected(setup = full_pipeline)]
fn replay(replay: Replay) {
    let Replay {
        runtime,
        pipeline,
        permit,
    } = replay;
    runtime.block_on(async {
        let (client, server) = tokio::io::duplex(64 << 10);
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
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            let (pipeline, peer) = (Arc::clone(&pipeline), Arc::clone(&peer));
            async move {
                let (head, body) = request.into_parts();
                let response = pipeline.handle(&peer, Box::new(head), body).await;
                Ok::<_, Infallible>(response)
            }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(server), service);
        tokio::spawn(connection);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(client))
            .await
            .expect("a connection in memory");
        tokio::spawn(connection);
        for (method, target, body, expected) in RECORDED.iter().cycle().take(REQUESTS) {
            let request = Request::builder()
                .method(method)
                .uri(*target)
                .header(header::HOST, "weir:6443")
                .header(header::USER_AGENT, "kubectl/v1.36.0 (linux/amd64)")
                .header(header::ACCEPT, "application/json")
                .body(Full::new(Bytes::from_static(body.as_bytes())))
                .expect("a request");
            sender.ready().await.expect("a connection that stays");
            let response = sender.send_request(request).await.expect("a response");
            assert_eq!(response.status(), *expected, "{method} {target}");
            let body = response.into_body().collect().await;
            drop(black_box(body.expect("a body")));
        }
    });
    drop(permit);
}

library_benchmark_group!(
    name = engine,
    benchmarks = [request_info, queue_set, admission]
);
library_benchmark_group!(name = pipeline, benchmarks = [replay]);
main!(
    config = fixed_libc(),
    library_benchmark_groups = [engine, pipeline]
);
