//! The cost of counting a request for the top talkers, in nanoseconds on its worker for all
//! groupings, by the number of users and user agents. "parsed" is the part that parses the
//! request's target again.

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use criterion::{Criterion, criterion_group, criterion_main};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, StatusCode};
use weir::pipeline::trace::outcome::RequestOutcome;
use weir::pipeline::trace::record::{Record, RequestObserver};
use weir_kubernetes::api::UserInfo;
use weir_talkers::{TopTalkers, TopTalkersQuery};

#[expect(clippy::disallowed_methods, reason = "a time to begin at")]
fn now() -> (Instant, SystemTime) {
    (Instant::now(), SystemTime::now())
}

#[expect(clippy::unwrap_used, reason = "these texts are in order")]
fn record(n: u32) -> Record {
    let user = UserInfo {
        name: format!("system:serviceaccount:kube-system:controller-{n}"),
        ..UserInfo::default()
    };
    let agent = format!("controller-{n}/v1.36.0 (linux/amd64) kubernetes/0123abc/leader-election");
    let target = "/apis/apps/v1/namespaces/kube-system/deployments/web";
    let (arrived, arrived_wall) = now();
    Record {
        method: Method::GET,
        target: PathAndQuery::from_static(target),
        long_running: false,
        peer: SocketAddr::from(([127, 0, 0, 1], 1)),
        forwarded_for: None,
        user_agent: Some(HeaderValue::from_str(&agent).unwrap()),
        arrived,
        arrived_wall,
        user: Some(Arc::new(user)),
        counted_as: None,
        decision: None,
        rule: None,
        policies: None,
        dry_run: None,
        trace_context: None,
        audit: None,
        is_logged: false,
        outcome: RequestOutcome::Responded(StatusCode::OK),
        sent_bytes: 1000,
    }
}

fn top_talkers(c: &mut Criterion) {
    let mut group = c.benchmark_group("talkers");
    for many in [1, 100, 100_000] {
        let records: Vec<_> = (0..many).map(record).collect();
        let talkers = TopTalkers::new(now().0, 1);
        let desk = talkers.new_shard();
        let (end, _) = now();
        let mut next = records.iter().cycle();
        group.bench_function(format!("{many} users"), |b| {
            b.iter(|| {
                next.next()
                    .map(|record| desk.on_ended(black_box(record), end))
            });
        });
        group.bench_function(format!("{many} users, shown"), |b| {
            b.iter(|| talkers.top(black_box(&TopTalkersQuery::default())));
        });
    }
    let one = record(0);
    group.bench_function("parsed", |b| b.iter(|| black_box(&one).info().is_ok()));
    group.finish();
}

criterion_group!(benches, top_talkers);
criterion_main!(benches);
