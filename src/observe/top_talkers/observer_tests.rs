//! What a request counts for, by its record.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::Method;
use http::StatusCode;
use http::uri::PathAndQuery;

use super::*;
use crate::api::UserInfo;
use crate::pipeline::trace::record::Record;
use crate::pipeline::trace::record::RequestObserver;
use crate::pipeline::trace::record::RequestOutcome;

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
    let begin = Clock.now();
    let talkers = TopTalkers::new(begin, 1);
    let desk = talkers.new_shard();
    let now = begin + Duration::from_secs(2);
    for target in [
        "/apis/apps/v1/namespaces/shop/deployments?limit=5",
        "/api/v1/nodes/n1/status",
        "/version",
    ] {
        desk.on_ended(&record(target, begin), now);
    }
    let mut nameless = record("/api/v1/nodes/n1/status", begin);
    (nameless.user, nameless.user_agent) = (None, None);
    desk.on_ended(&nameless, now);

    let names = |by| {
        let names = top(&talkers, by, now).into_iter();
        names
            .map(|(name, did)| format!("{name} {}", did.requests))
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
    let begin = Clock.now();
    let talkers = TopTalkers::new(begin, 1);
    let desk = talkers.new_shard();
    let targets = [
        "/api/v1/nodes",
        "/api/v1/namespaces/a/pods",
        "/api/v1/namespaces/b/pods",
    ];
    let agents = ["kubectl/v1.36.0", "flood/1.0"];
    let mut exact: [BTreeMap<String, u64>; DIMENSIONS] = Default::default();
    for _ in 0..5000 {
        let target = random.usize(0..targets.len());
        let mut record = record(targets[target], begin);
        let deletes = random.bool();
        record.method = if deletes { Method::DELETE } else { Method::GET };
        // Many, so that neither all that are alike nor all names have room on a desk.
        let user = format!("user-{}", random.u8(0..120));
        record.user = Some(Arc::new(UserInfo {
            name: user.clone(),
            ..UserInfo::default()
        }));
        let agent = agents[random.usize(0..2)];
        record.user_agent = Some(HeaderValue::from_static(agent));
        let address = format!("10.0.0.{}", random.u8(0..4));
        record.peer = SocketAddr::new(address.parse().unwrap(), random.u16(..));
        desk.on_ended(&record, begin);
        let verb = if deletes { "deletecollection" } else { "list" };
        let (namespace, resource) = [("<none>", "nodes"), ("a", "pods"), ("b", "pods")][target];
        let asked = format!("{verb} {resource}");
        let names = [
            None,
            Some(namespace),
            Some(&*asked),
            Some(&*address),
            Some(&*user),
            Some(agent),
        ];
        for (counts, name) in exact.iter_mut().zip(names) {
            if let Some(name) = name {
                *counts.entry(name.to_owned()).or_default() += 1;
            }
        }
        if random.u8(..) == 0 {
            talkers.flush_shards(begin);
        }
    }
    for (by, expected) in Dimension::ALL.into_iter().zip(exact) {
        let shown = top(&talkers, by, begin).into_iter();
        let shown: BTreeMap<_, _> = shown.map(|(name, did)| (name, did.requests)).collect();
        if by == Dimension::User {
            // More than are shown, of whom nobody counts for too much.
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
    let begin = Clock.now();
    let talkers = TopTalkers::new(begin, 1);
    let desk = talkers.new_shard();
    let now = begin + Duration::from_secs(2);
    let mut impersonating = record("/version", begin);
    for name in ["bob", "carol"] {
        impersonating.counted_as = Some(Arc::new(UserInfo {
            name: name.to_owned(),
            ..UserInfo::default()
        }));
        desk.on_ended(&impersonating, now);
    }
    desk.on_ended(&record("/version", begin), now);
    desk.on_ended(&impersonating, now);
    let top = top(&talkers, Dimension::User, now).into_iter();
    let names: Vec<_> = top.map(|(name, did)| (name, did.requests)).collect();
    let expected = [("carol", 2), ("alice", 1), ("bob", 1)];
    assert_eq!(names, expected.map(|(name, did)| (name.to_owned(), did)));
}

#[test]
fn a_rejection_holds_no_seats() {
    let begin = Clock.now();
    let talkers = TopTalkers::new(begin, 1);
    let now = begin + Duration::from_secs(2);
    let mut rejected = record("/api/v1/pods", begin);
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
    let begin = Clock.now();
    let talkers = TopTalkers::new(begin, 1);
    let desk = talkers.new_shard();
    let mut watch = record("/api/v1/pods?watch=1", begin);
    let did = |requests, bytes| {
        let did = Usage {
            requests,
            bytes,
            ..Usage::default()
        };
        [("watch pods".to_owned(), did)]
    };
    watch.sent_bytes = 0;
    desk.on_response_started(&watch);
    let now = begin + Duration::from_secs(50);
    assert_eq!(top(&talkers, Dimension::Resource, now), did(1, 0));
    watch.sent_bytes = 7000;
    desk.on_ended(&watch, now);
    assert_eq!(top(&talkers, Dimension::Resource, now), did(1, 7000));

    // One that was refused has no beginning.
    watch.outcome = RequestOutcome::Failed(StatusCode::SERVICE_UNAVAILABLE);
    desk.on_ended(&watch, now);
    assert_eq!(top(&talkers, Dimension::Resource, now), did(2, 14_000));
}
