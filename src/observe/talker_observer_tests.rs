//! Tests of the names and the usage that a record counts for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use http::{HeaderValue, Method, StatusCode};

use crate::pipeline::trace::outcome::RequestOutcome;
use crate::pipeline::trace::record::{Record, RequestObserver};
use weir_base::clock::Clock;
use weir_kubernetes::api::UserInfo;
use weir_limits::rate::policies::enforcer::PolicyNotes;
use weir_talkers::{Dimension, TopTalkers, TopTalkersQuery, Usage};

const OK: RequestOutcome = RequestOutcome::Responded(StatusCode::OK);

fn record(target: &'static str, arrived: Instant) -> Record {
    let user = UserInfo {
        name: "alice".to_owned(),
        ..UserInfo::default()
    };
    Record {
        method: Method::GET,
        target: PathAndQuery::from_static(target),
        long_running: target.contains("watch=1"),
        peer: SocketAddr::from(([127, 0, 0, 1], 1)),
        forwarded_for: None,
        user_agent: Some(HeaderValue::from_static("kubectl/v1.36.0")),
        arrived,
        arrived_wall: Clock.wall(),
        user: Some(Arc::new(user)),
        counted_as: None,
        decision: None,
        rule: None,
        policies: None,
        dry_run: None,
        audit: None,
        is_logged: false,
        trace_context: None,
        outcome: OK,
        sent_bytes: 100,
    }
}

fn top(talkers: &TopTalkers, by: Dimension, now: Instant) -> Vec<(String, Usage)> {
    let query = TopTalkersQuery {
        by,
        limit: TopTalkersQuery::MAX_LIMIT,
        ..TopTalkersQuery::default()
    };
    let top = talkers.top_at(&query, now);
    let rows = top.rows.into_iter();
    rows.map(|row| (row.name, row.usage)).collect()
}

#[test]
fn a_request_counts_in_every_dimension() {
    let start = Clock.now();
    let talkers = TopTalkers::new(start, 1);
    let shard = talkers.new_shard();
    let now = start + Duration::from_secs(2);
    for target in [
        "/apis/apps/v1/namespaces/shop/deployments?limit=5",
        "/api/v1/nodes/n1/status",
        "/version",
    ] {
        shard.on_ended(&record(target, start), now);
    }
    let mut anonymous = record("/api/v1/nodes/n1/status", start);
    (anonymous.user, anonymous.user_agent) = (None, None);
    shard.on_ended(&anonymous, now);

    let names = |by| {
        let names = top(&talkers, by, now).into_iter();
        names
            .map(|(name, usage)| format!("{name} {}", usage.requests))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(Dimension::User), ["alice 3", "<unknown> 1"]);
    assert_eq!(
        names(Dimension::UserAgent),
        ["kubectl/v1.36.0 3", "<none> 1"]
    );
    assert_eq!(names(Dimension::Namespace), ["<none> 3", "shop 1"]);
    assert_eq!(
        names(Dimension::Resource),
        [
            "get nodes/status 2",
            "get /version 1",
            "list deployments.apps 1"
        ]
    );
    assert_eq!(names(Dimension::Flow), [""; 0], "no priority level decided");
    let all = Usage {
        requests: 3,
        seat_seconds: 6.0,
        bytes: 300,
        rejections: 0,
        queue_wait_seconds: 0.0,
        would_be_rejections: 0,
    };
    assert_eq!(
        top(&talkers, Dimension::User, now)[0],
        ("alice".to_owned(), all)
    );
}

#[test]
fn requests_with_cached_keys_count_like_the_first_one() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let start = Clock.now();
    let talkers = TopTalkers::new(start, 1);
    let shard = talkers.new_shard();
    let targets = [
        "/api/v1/nodes",
        "/api/v1/namespaces/a/pods",
        "/api/v1/namespaces/b/pods",
    ];
    let user_agents = ["kubectl/v1.36.0", "flood/1.0"];
    let mut exact: [BTreeMap<String, u64>; Dimension::ALL.len()] = Default::default();
    for _ in 0..5000 {
        let target = random.usize(0..targets.len());
        let mut record = record(targets[target], start);
        let deletes = random.bool();
        record.method = if deletes { Method::DELETE } else { Method::GET };
        // Many users, so that neither all fingerprints nor all names fit into a shard.
        let user = format!("user-{}", random.u8(0..120));
        record.user = Some(Arc::new(UserInfo {
            name: user.clone(),
            ..UserInfo::default()
        }));
        let user_agent = user_agents[random.usize(0..2)];
        record.user_agent = Some(HeaderValue::from_static(user_agent));
        let address = format!("10.0.0.{}", random.u8(0..4));
        record.peer = SocketAddr::new(address.parse().unwrap(), random.u16(..));
        let tags = [&[][..], &["ci"], &["ci", "nightly"]][random.usize(0..3)];
        record.policies = Some(Arc::new(PolicyNotes {
            tags: tags.iter().map(|tag| Arc::from(*tag)).collect(),
            ..PolicyNotes::default()
        }));
        let tags = Some(tags.join(",")).filter(|tags| !tags.is_empty());
        shard.on_ended(&record, start);
        let verb = if deletes { "deletecollection" } else { "list" };
        let (namespace, resource) = [("<none>", "nodes"), ("a", "pods"), ("b", "pods")][target];
        let verb_and_resource = format!("{verb} {resource}");
        let names = [
            None,
            Some(namespace),
            Some(&*verb_and_resource),
            Some(&*address),
            tags.as_deref(),
            Some(&*user),
            Some(user_agent),
        ];
        for (counts, name) in exact.iter_mut().zip(names) {
            if let Some(name) = name {
                *counts.entry(name.to_owned()).or_default() += 1;
            }
        }
        if random.u8(..) == 0 {
            talkers.flush_shards(start);
        }
    }
    for (by, expected) in Dimension::ALL.into_iter().zip(exact) {
        let shown = top(&talkers, by, start).into_iter();
        let shown: BTreeMap<_, _> = shown.map(|(name, usage)| (name, usage.requests)).collect();
        if by == Dimension::User {
            // There are more names than rows, and no count is too high.
            assert_eq!(shown.len(), TopTalkersQuery::MAX_LIMIT);
            for (name, requests) in shown {
                assert!(requests <= expected[&name], "{name}");
            }
        } else {
            assert_eq!(shown, expected, "{by:?}");
        }
    }
}

#[test]
fn an_impersonated_request_counts_for_the_user_that_the_limits_saw() {
    let start = Clock.now();
    let talkers = TopTalkers::new(start, 1);
    let shard = talkers.new_shard();
    let now = start + Duration::from_secs(2);
    let mut impersonating = record("/version", start);
    for name in ["bob", "carol"] {
        impersonating.counted_as = Some(Arc::new(UserInfo {
            name: name.to_owned(),
            ..UserInfo::default()
        }));
        shard.on_ended(&impersonating, now);
    }
    shard.on_ended(&record("/version", start), now);
    shard.on_ended(&impersonating, now);
    let top = top(&talkers, Dimension::User, now).into_iter();
    let names: Vec<_> = top.map(|(name, usage)| (name, usage.requests)).collect();
    let expected = [("carol", 2), ("alice", 1), ("bob", 1)];
    assert_eq!(
        names,
        expected.map(|(name, usage)| (name.to_owned(), usage))
    );
}

#[test]
fn a_rejection_holds_no_seats() {
    let start = Clock.now();
    let talkers = TopTalkers::new(start, 1);
    let now = start + Duration::from_secs(2);
    let mut rejected = record("/api/v1/pods", start);
    rejected.outcome = RequestOutcome::Rejected("max-in-flight");
    talkers.new_shard().on_ended(&rejected, now);
    let expected = Usage {
        requests: 1,
        rejections: 1,
        bytes: 100,
        ..Usage::default()
    };
    assert_eq!(
        top(&talkers, Dimension::User, now),
        [("alice".to_owned(), expected)]
    );
}

#[test]
fn a_watch_counts_when_it_starts_and_its_bytes_when_it_ends() {
    let start = Clock.now();
    let talkers = TopTalkers::new(start, 1);
    let shard = talkers.new_shard();
    let mut watch = record("/api/v1/pods?watch=1", start);
    let usage = |requests, bytes| {
        let usage = Usage {
            requests,
            bytes,
            ..Usage::default()
        };
        [("watch pods".to_owned(), usage)]
    };
    watch.sent_bytes = 0;
    shard.on_response_started(&watch);
    let now = start + Duration::from_secs(50);
    assert_eq!(top(&talkers, Dimension::Resource, now), usage(1, 0));
    watch.sent_bytes = 7000;
    shard.on_ended(&watch, now);
    assert_eq!(top(&talkers, Dimension::Resource, now), usage(1, 7000));

    // A rejected request has no response start.
    watch.outcome = RequestOutcome::Failed(StatusCode::SERVICE_UNAVAILABLE);
    shard.on_ended(&watch, now);
    assert_eq!(top(&talkers, Dimension::Resource, now), usage(2, 14_000));
}
