//! Memory of priority and fairness: none for a request that is not queued, less than 1 KiB for a
//! queued request, and less than 64 KiB for an idle priority level. Also the maximum memory of the
//! top talkers, and of an event in YAML while it is parsed.

#![expect(
    clippy::as_conversions,
    clippy::disallowed_methods,
    reason = "futures of one kind in a list, and a time to begin at"
)]

#[path = "memory/held_rejections.rs"]
mod held_rejections;
#[path = "memory/request_heads.rs"]
mod request_heads;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use allocation_counter::measure;
use weir::flowcontrol::controller::{Controller, ControllerConfig, Enforcement, RequestTimes};
use weir_base::metrics::Registry;
use weir_flowcontrol::bootstrap;
use weir_kubernetes::api::flowcontrol::Object;
use weir_kubernetes::api::{UserInfo, flowcontrol};
use weir_kubernetes::document;
use weir_kubernetes::document::Diagnostics;
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::rate::events::body;
use weir_limits::rate::events::body::EventEncoding;
use weir_talkers::{TalkerName, TopTalkers, Weights};

fn controller(seats: u32, objects: &[Object]) -> Arc<Controller> {
    let config = ControllerConfig {
        server_concurrency_limit: seats,
        request_timeout: Duration::from_secs(60),
        enforcement: Enforcement::Enforce,
        consistent_reads_from_cache: true,
    };
    Controller::new(config, objects, &Registry::new())
}

/// A priority level with the suggested queues of any length, and a flow schema that matches all
/// requests.
fn level(name: &str) -> Vec<Object> {
    let text = format!(
        "apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {{name: {name}}}
spec:
  type: Limited
  limited:
    limitResponse: {{type: Queue, queuing: {{queues: 128, handSize: 6, queueLengthLimit: 100000}}}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {{name: {name}}}
spec:
  matchingPrecedence: 2
  priorityLevelConfiguration: {{name: {name}}}
  distinguisherMethod: {{type: ByUser}}
  rules:
  - subjects: [{{kind: Group, group: {{name: 'system:authenticated'}}}}]
    resourceRules:
    - {{verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}}
"
    );
    let mut errors = Diagnostics::default();
    let documents = document::parse_all("level", &text, &mut errors);
    let objects = flowcontrol::read(&documents, &mut errors);
    assert_eq!(errors.to_string(), "");
    objects
}

fn user(name: &str, groups: &[&str]) -> UserInfo {
    UserInfo {
        name: name.to_owned(),
        groups: groups.iter().map(|&group| group.to_owned()).collect(),
        ..UserInfo::default()
    }
    .with_authenticated_group()
}

#[test]
fn an_admission_that_does_not_wait_allocates_nothing() {
    let controller = controller(600, &bootstrap::add_missing(Vec::new()));
    let requests = [
        ("GET", "/api/v1/namespaces/default/pods/web-0"),
        ("GET", "/api/v1/namespaces/default/pods?limit=500"),
        ("PATCH", "/api/v1/nodes/node-17/status"),
        (
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-17",
        ),
        ("GET", "/version"),
    ];
    let users = [
        user("alice", &["devs"]),
        user("system:serviceaccount:a:b", &["system:serviceaccounts"]),
        user("system:node:node-17", &["system:nodes"]),
        user("admin", &["system:masters"]),
    ];
    let mut context = Context::from_waker(Waker::noop());
    let mut each = || {
        for (method, target) in requests {
            for user in &users {
                let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
                let admitted =
                    pin!(controller.admit(&info, user, RequestTimes::at(Instant::now())));
                let Poll::Ready(Ok(admitted)) = admitted.poll(&mut context) else {
                    panic!("there are seats for all");
                };
                drop(admitted);
            }
        }
    };
    each(); // allocates buffers that stay
    let allocated = measure(|| {
        for _ in 0..100 {
            each();
        }
    });
    assert_eq!(allocated.count_total, 0, "{allocated:?}");
}

type BoxedAdmission<'a> = Pin<Box<dyn Future<Output = bool> + 'a>>;

#[test]
fn a_queued_request_takes_less_than_1_kib_and_frees_it() {
    const WAITING: usize = 10_000;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _timers = runtime.enter();
    let controller = controller(1, &level("work"));
    let target = b"/apis/apps/v1/namespaces/production-europe/deployments/web-frontend";
    let info = RequestInfo::parse("GET", target).unwrap();
    let users: Vec<_> = (0..1000)
        .map(|n| user(&format!("system:serviceaccount:production:worker-{n}"), &[]))
        .collect();
    let now = Instant::now();
    let mut context = Context::from_waker(Waker::noop());
    let first = pin!(controller.admit(&info, &users[0], RequestTimes::at(now)));
    let Poll::Ready(Ok(the_seat)) = first.poll(&mut context) else {
        panic!("there is one seat");
    };
    // The futures belong to their callers, not to fairness.
    let mut admissions: Vec<BoxedAdmission<'_>> = users
        .iter()
        .cycle()
        .take(WAITING)
        .map(|user| {
            let admission = controller.admit(&info, user, RequestTimes::at(now));
            Box::pin(async { admission.await.is_ok() }) as BoxedAdmission<'_>
        })
        .collect();
    let mut ready = 0;
    let taken = measure(|| {
        for admission in &mut admissions {
            ready += usize::from(admission.as_mut().poll(&mut context).is_ready());
        }
    });
    assert_eq!(ready, 0, "there is place for all");
    let each = taken.bytes_current / i64::try_from(WAITING).unwrap();
    println!("{each} bytes a waiting request");
    assert!((1..1024).contains(&each), "{taken:?}");

    // Each future holds its own queue slot. The boxes were allocated before and are not counted.
    let boxes: usize = admissions.iter().map(|one| size_of_val(&**one)).sum();
    let freed = measure(|| {
        admissions.clear();
        drop(the_seat);
    });
    let freed = -freed.bytes_current - i64::try_from(boxes).unwrap();
    let left = taken.bytes_current - freed;
    println!("{left} bytes are left in the level that is idle now");
    assert!(left < 64 << 10, "{left} bytes");
}

#[test]
fn an_idle_level_takes_less_than_64_kib() {
    const LEVELS: usize = 100;
    let mut objects = bootstrap::add_missing(Vec::new());
    let controller = controller(600, &objects);
    objects.extend((0..LEVELS).flat_map(|n| level(&format!("level-{n}"))));
    let taken = measure(|| controller.configure(Instant::now(), &objects));
    let each = taken.bytes_current / i64::try_from(LEVELS).unwrap();
    println!("{each} bytes an idle level, with its schema");
    assert!((1..64 << 10).contains(&each), "{taken:?}");
}

/// Each five seconds: as many names as are kept in that time, each longer than the stored part and
/// never repeated. At the end: more names than a table holds.
#[test]
fn the_top_talkers_have_bounded_memory() {
    const MAX_BYTES: i64 = 30 << 20; // seven kinds of names, six measures
    const TICKS: u32 = 800; // an hour has 720
    let begin = Instant::now();
    let taken = measure(|| {
        let talkers = TopTalkers::new(begin, 1);
        let desk = talkers.new_shard();
        let long = "x".repeat(1000);
        for tick in 0..TICKS {
            for n in 0..if tick + 1 < TICKS { 252 } else { 1000_u32 } {
                let loud = n / 4 + 1;
                let name = format!("{tick}-{n}-{long}");
                let of = |measure| u64::from(if n % 4 == measure { loud * 1000 } else { 1 });
                let held = Duration::from_secs(of(0));
                let wait = Duration::from_secs(of(1));
                let weights = Weights::from_request(of(2), wait, of(3) > 1, 1, held);
                let parts = [name.as_bytes()];
                desk.count(None, [Some(TalkerName::new(&parts)); 7], weights);
            }
            talkers.flush_shards(begin + Duration::from_secs(5) * tick);
        }
        // The hour is full: the memory now is the maximum.
        std::mem::forget((talkers, desk));
    });
    println!("{} bytes of the top talkers", taken.bytes_current);
    assert!(
        (1 << 20..MAX_BYTES).contains(&taken.bytes_current),
        "{taken:?}"
    );
}

/// Bodies of 64 KiB that repeat content by anchors, aliases and `<<`. Plain content costs the most.
#[test]
fn no_event_in_yaml_takes_more_memory_than_a_plain_one() {
    const LARGEST: usize = 64 << 10;
    const MAX_BYTES: u64 = 16 << 20;
    let nested = |begin: &str, inner: &str, item: &str, end: &str| {
        let (begin, end) = (begin.repeat(90), end.repeat(90));
        let room = LARGEST - begin.len() - inner.len() - end.len() - 2;
        format!("{begin}[{inner}{}]{end}", item.repeat(room / item.len()))
    };
    let keys: String = (0..6000).map(|n| format!("k{n}: , ")).collect();
    let bodies = [
        ("plain", nested("[", "", "~,", "]")),
        ("anchors", nested("[&a ", "", "~,", "]")),
        ("aliases", nested("[&a ", "&x [~, ~, ~, ~], ", "*x,", "]")),
        ("names", nested("[&a ", "", "&b ~,", "]")),
        (
            "merged",
            format!("{}{{{keys}}}{}", "{<<: ".repeat(90), "}".repeat(90)),
        ),
    ];
    for (name, text) in bodies {
        assert!(text.len() <= LARGEST, "{name}");
        let taken = measure(|| {
            let event = body::parse(EventEncoding::Yaml, b"v1", text.as_bytes());
            assert_eq!(event, None);
        });
        println!(
            "{name}: {} bytes, {} in all",
            taken.bytes_max, taken.bytes_total
        );
        assert!(
            taken.bytes_max < MAX_BYTES && taken.bytes_total < 4 * MAX_BYTES,
            "{name}: {taken:?}"
        );
    }
}
