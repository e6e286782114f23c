//! Whole simulations: what is conserved, what is the same each time, and what the live controller
//! decides about the same requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::model::{ClientBehaviour, ReplayModel, ReplayedPolicies};
use super::outcome::SimulationOutcome;
use super::simulate;
use crate::clients::ClientTable;
use crate::logged::{LogItem, LoggedRequest, RecordedOutcome, RequestLine};
use crate::report::model::{GroupReport, GroupsReport, RunReport};
use weir_explain::explainer::{ConcurrencyPolicy, ExplainedPolicies};
use weir_flowcontrol::bootstrap;
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::document;
use weir_kubernetes::document::Diagnostics;
use weir_limits::max_in_flight::MaxInFlightConfig;
use weir_limits::rate::RateLimitsConfig;
use weir_limits::rate::policies::config::parse_policies;

const MS: u64 = 1_000_000;

fn policies(concurrency: ConcurrencyPolicy) -> ReplayedPolicies {
    ReplayedPolicies {
        name: "test".to_owned(),
        limits: ExplainedPolicies {
            concurrency,
            rates: RateLimitsConfig::default(),
            request_timeout: Duration::from_secs(60),
        },
        rejection_hold: Duration::from_secs(1),
        auto_total: None,
    }
}

pub(super) fn fairness(seats: u32) -> ReplayedPolicies {
    policies(ConcurrencyPolicy::Fairness {
        server_concurrency_limit: seats,
        objects: bootstrap::add_missing(Vec::new()),
        dry_run: false,
    })
}

pub(super) fn max_in_flight(read_only: u32, mutating: u32) -> ReplayedPolicies {
    policies(ConcurrencyPolicy::MaxInFlight(MaxInFlightConfig {
        read_only: read_only.into(),
        mutating: mutating.into(),
    }))
}

/// A log in memory.
#[derive(Default)]
pub(super) struct TestLog {
    pub(super) table: Arc<ClientTable>,
    pub(super) items: Vec<LogItem>,
}

impl TestLog {
    pub(super) fn add(
        &mut self,
        at_ms: i64,
        method: &'static str,
        url: &str,
        user: &str,
        service_ms: u64,
    ) {
        let user = UserInfo {
            name: user.to_owned(),
            groups: vec!["system:authenticated".to_owned()],
            ..UserInfo::default()
        };
        self.items.push(LogItem::Request(LoggedRequest {
            at_us: at_ms * 1000,
            client: self.table.intern(user, "agent", "192.0.2.1"),
            line: RequestLine::new(method, url.as_bytes()).unwrap(),
            service_ns: Some(service_ms * MS).into(),
            recorded: RecordedOutcome::default(),
            seats: None,
            stream: 0,
            rare: None,
        }));
    }

    pub(super) fn simulate(
        &self,
        policies: &ReplayedPolicies,
        model: ReplayModel,
    ) -> SimulationOutcome {
        simulate(
            self.items.clone(),
            policies,
            model,
            &self.table,
            Instant::now(),
        )
    }
}

/// A random log with all kinds of requests.
pub(super) fn random_log(random: &mut Rng, requests: usize) -> TestLog {
    let mut log = TestLog::default();
    let mut at = 0;
    for n in 0..requests {
        at += random.i64(0..40);
        let user = format!("user-{}", random.u8(..6));
        let (method, url) = match random.u8(..10) {
            0 => ("GET", "/api/v1/pods?limit=500"),
            1 => ("POST", "/api/v1/namespaces/a/pods"),
            2 => ("GET", "/api/v1/namespaces/a/pods?watch=1&timeoutSeconds=5"),
            3 => ("GET", "/api/v1/namespaces/a/pods/p/log?follow=true"),
            4 => ("GET", "/healthz"),
            5 => ("PUT", "/apis/apps/v1/namespaces/a/deployments/d"),
            6 => ("GET", "/%zz"),
            7 => ("GET", "/api/v1/pods?timeout=soon"),
            _ => ("GET", "/api/v1/namespaces/a/pods/p"),
        };
        log.add(at, method, url, &user, random.u64(..2000));
        let Some(LogItem::Request(request)) = log.items.last_mut() else {
            unreachable!()
        };
        request.stream = u64::try_from(n + 1).unwrap();
        match random.u8(..12) {
            0 => request.service_ns = None.into(),
            1 => (request.recorded.rejected, request.service_ns) = (true, None.into()),
            2 => {
                request.recorded.cancelled = true;
                request.recorded.wait_ns = random.u64(..500 * MS);
            }
            4 | 5 => request.rare.get_or_insert_default().work = Some(any_work(random)),
            3 => log.items.push(LogItem::StreamEnd {
                stream: random.u64(..1000),
                at_us: at * 1000 + 1,
            }),
            _ => {}
        }
    }
    log
}

fn any_work(random: &mut Rng) -> WorkEstimate {
    WorkEstimate {
        initial_seats: random.u32(..20),
        final_seats: random.u32(..20),
        additional_latency: Duration::from_millis(random.u64(..20)),
    }
}

pub(super) fn assert_conserved(group: &GroupReport, context: &str) {
    assert_eq!(
        group.arrivals,
        group.executed + group.rejected + group.cancelled + group.unfinished,
        "{context}: {group:?}"
    );
}

fn sum(groups: &GroupsReport) -> u64 {
    let all = groups.top.iter().chain(&groups.others);
    all.map(|group| group.arrivals).sum()
}

pub(super) fn arrivals_over_time(run: &RunReport) -> u64 {
    let levels = run.series.levels.iter();
    levels.flat_map(|level| &level.arrivals).sum()
}

#[test]
fn requests_are_conserved_and_two_replays_are_the_same() {
    for seed in 0..3 {
        let mut random = Rng::with_seed(seed);
        let log = random_log(&mut random, 500);
        for (policies, limiter) in [
            (fairness(10), "fairness"),
            (max_in_flight(3, 2), "max-in-flight"),
        ] {
            for clients in [
                ClientBehaviour::Open,
                ClientBehaviour::ClientGo,
                ClientBehaviour::Impatient,
                ClientBehaviour::ClosedClientGo,
                ClientBehaviour::ClosedImpatient,
            ] {
                let context = format!("seed {seed}, {limiter}, {clients:?}");
                let model = ReplayModel {
                    clients,
                    service_time_scale: [1.0, 0.5, 3.0][random.usize(..3)],
                    capacity: [None, Some(2.5)][random.usize(..2)],
                };
                let outcome = log.simulate(&policies, model);
                assert_all_conserved(&log, &outcome, &context);
                assert_eq!(log.simulate(&policies, model), outcome, "{context}");
            }
        }
    }
}

pub(super) fn assert_all_conserved(log: &TestLog, outcome: &SimulationOutcome, context: &str) {
    let RunReport {
        total,
        users,
        sources,
        levels,
        ..
    } = &outcome.run;
    assert_conserved(total, context);
    let of_levels = levels.iter().map(|level| &level.requests);
    for group in users.top.iter().chain(of_levels) {
        assert_conserved(group, context);
    }
    let is_request = |item: &&LogItem| matches!(item, LogItem::Request(_));
    let requests = log.items.iter().filter(is_request).count();
    let first_attempts = total.arrivals - total.retries;
    assert_eq!(
        first_attempts + outcome.malformed + outcome.left_out_retries,
        u64::try_from(requests).unwrap(),
        "{context}"
    );
    let sums = (sum(users), sum(sources), arrivals_over_time(&outcome.run));
    let arrivals = total.arrivals;
    assert_eq!(sums, (arrivals, arrivals, arrivals), "{context}");
    assert!(
        total.executed > 0 && total.rejected > 0,
        "{context}: {total:?}"
    );
}

#[test]
fn slots_of_max_in_flight_are_free_again_when_requests_end() {
    let mut log = TestLog::default();
    for _ in 0..5 {
        log.add(0, "GET", "/api/v1/namespaces/a/pods/p", "alice", 10);
    }
    log.add(10, "GET", "/api/v1/namespaces/a/pods/p", "alice", 10);
    log.add(5, "DELETE", "/api/v1/namespaces/a/pods/p", "alice", 10);
    let run = log
        .simulate(&max_in_flight(2, 1), ReplayModel::default())
        .run;
    assert_eq!((run.total.executed, run.total.rejected), (4, 3));
    assert_eq!(
        run.total.rejected_by,
        BTreeMap::from([("max-in-flight", 3)])
    );
    assert_eq!(run.levels[0].most_seats_in_use, 2);
}

#[test]
fn a_client_of_client_go_repeats_its_request_after_retry_after() {
    let mut log = TestLog::default();
    for _ in 0..2 {
        log.add(0, "GET", "/api/v1/namespaces/a/pods/p", "alice", 2500);
    }
    let model = ReplayModel {
        clients: ClientBehaviour::ClientGo,
        ..ReplayModel::default()
    };
    let total = log.simulate(&max_in_flight(1, 1), model).run.total;
    // Rejected at 0, 1 and 2 seconds; executed at 3.
    assert_eq!(
        (
            total.arrivals,
            total.executed,
            total.rejected,
            total.retries
        ),
        (5, 2, 3, 3)
    );
    assert_eq!((total.gave_up, total.held), (0, 0));
}

#[test]
fn an_impatient_client_is_held_and_gives_up_at_the_end_of_its_time() {
    let mut log = TestLog::default();
    log.add(0, "GET", "/api/v1/namespaces/a/pods/p", "alice", 100_000);
    log.add(0, "GET", "/api/v1/namespaces/a/pods/p", "alice", 1);
    let model = ReplayModel {
        clients: ClientBehaviour::Impatient,
        ..ReplayModel::default()
    };
    let total = log.simulate(&max_in_flight(1, 1), model).run.total;
    assert_eq!((total.executed, total.gave_up), (1, 1));
    // One at once. Then the proxy holds all but four a second on a connection of HTTP/2.
    assert!((200..=250).contains(&total.rejected), "{total:?}");
    assert!(total.held >= 55, "{total:?}");
}

#[test]
fn a_day_without_requests_is_skipped_and_any_time_is_taken() {
    let mut log = TestLog::default();
    for at in [0, 86_400_000_000, i64::MAX / 1000, 5, i64::MIN / 1000] {
        log.add(
            at,
            "GET",
            "/api/v1/namespaces/a/pods/p",
            "alice",
            u64::MAX / MS,
        );
    }
    let total = log
        .simulate(&fairness(10), ReplayModel::default())
        .run
        .total;
    assert_eq!(total.arrivals, 5);
    assert_conserved(&total, "any time");
}

#[test]
fn policies_reject_in_a_replay_what_they_would_when_they_are_enforced() {
    let rule = |name: &str, verb: &str, lines: &str| {
        format!(
            "- name: {name}\n  enforcement: DryRun\n  rules: [{{subjects: [{{kind: User, user: {{name: alice}}}}], resourceRules: [{{verbs: [{verb}], apiGroups: [''], resources: [pods, pods/exec], clusterScope: true, namespaces: ['*']}}]}}]\n  {lines}\n"
        )
    };
    let text = rule(
        "lists",
        "list",
        "conditions: [{name: a, expression: request.options.limit == 0}]\n  until: 1970-01-01T00:00:10Z\n  deny: {}",
    ) + &rule("one", "get", "limit: {inFlight: 1}");
    let mut diagnostics = Diagnostics::default();
    let nodes = document::parse_all("weir.yaml", &text, &mut diagnostics);
    let mut configured = max_in_flight(100, 100);
    configured.limits.rates.policies = parse_policies(&nodes[0], "policies", &mut diagnostics);
    assert_eq!(diagnostics.to_string(), "");
    let mut log = TestLog::default();
    for (at, url, user) in [
        (0, "/api/v1/pods", "alice"),
        (100, "/api/v1/pods?limit=5", "alice"),
        (200, "/api/v1/pods", "bob"),
        // Two at a time, then one after the other.
        (1000, "/api/v1/namespaces/a/pods/p", "alice"),
        (1001, "/api/v1/namespaces/a/pods/p", "alice"),
        (3000, "/api/v1/namespaces/a/pods/p", "alice"),
        (4000, "/api/v1/namespaces/a/pods/p", "alice"),
        // It has ended.
        (10_000, "/api/v1/pods", "alice"),
    ] {
        log.add(at, "GET", url, user, 50);
    }
    let model = ReplayModel {
        clients: ClientBehaviour::Open,
        ..ReplayModel::default()
    };
    let run = log.simulate(&configured, model).run;
    assert_eq!((run.total.executed, run.total.rejected), (6, 2));
    assert_eq!(run.total.rejected_by, BTreeMap::from([("policy", 2)]));
}
