//! The interval of one second, the choice of the resource, and the backoff after failures.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A schedule and its clock.
struct ScheduleFixture {
    schedule: CountSchedule,
    now: Instant,
}

impl ScheduleFixture {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            schedule: CountSchedule::new(now),
            now,
        }
    }

    fn list(&mut self, target: &str) -> bool {
        let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
        self.schedule.record_list(self.now, &info)
    }

    fn next(&mut self) -> NextCountCall {
        self.schedule.next(self.now, |_| true)
    }

    /// The current call: `review pods`, `list pods`, or none.
    fn call(&mut self) -> Option<CountCall> {
        match self.next() {
            NextCountCall::Call(call) => Some(call),
            NextCountCall::Wait(until) => {
                assert!(until > self.now, "a wait that is over");
                None
            }
        }
    }

    fn describe(call: Option<&CountCall>) -> String {
        match call {
            Some(CountCall::Review(of)) => format!("review {}", of.resource),
            Some(CountCall::List(of)) => format!("list {}", of.resource),
            None => "nothing".to_owned(),
        }
    }

    /// Makes the current call, which ends at once with this outcome.
    fn complete_call(&mut self, outcome: CountOutcome) -> String {
        let call = self.call();
        let name = Self::describe(call.as_ref());
        if let Some(call) = call {
            self.schedule.record_outcome(self.now, &call, outcome);
        }
        name
    }

    /// The time until there is a call, while this resource is listed.
    fn time_to_call(&mut self, listed: &str) -> Duration {
        let start = self.now;
        while let NextCountCall::Wait(until) = self.next() {
            self.now = until;
            self.list(listed);
        }
        self.now - start
    }
}

#[test]
fn a_resource_is_reviewed_then_listed_a_second_later() {
    let mut run = ScheduleFixture::new();
    assert_eq!(
        run.complete_call(CountOutcome::Allowed),
        "nothing",
        "nothing is listed"
    );
    assert!(run.list("/apis/apps/v1/namespaces/a/deployments?labelSelector=x"));
    assert!(!run.list("/apis/apps/v1/deployments"), "known");
    assert_eq!(
        run.complete_call(CountOutcome::Allowed),
        "review deployments"
    );
    assert_eq!(
        run.complete_call(CountOutcome::Counted),
        "nothing",
        "once a second"
    );
    run.now += SECOND;
    let call = run.call().unwrap();
    let CountCall::List(of) = &call else {
        panic!("{call:?}")
    };
    assert_eq!(of.target(), "/apis/apps/v1/deployments?limit=1");
    run.schedule
        .record_outcome(run.now, &call, CountOutcome::Counted);
}

#[test]
fn there_is_one_call_a_second_at_most_whatever_the_outcomes() {
    let mut run = ScheduleFixture::new();
    for n in 0..MAX_RESOURCES {
        run.list(&format!("/api/v1/r{n}"));
    }
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let outcomes = [
        CountOutcome::Allowed,
        CountOutcome::Denied,
        CountOutcome::NoReviews,
        CountOutcome::Counted,
        CountOutcome::Uncountable,
        CountOutcome::Failed,
    ];
    let mut last: Option<Instant> = None;
    let mut calls = 0;
    for _ in 0..20_000 {
        if let Some(call) = run.call() {
            calls += 1;
            if let Some(last) = last.replace(run.now) {
                assert!(run.now - last >= SECOND, "{:?}", run.now - last);
            }
            let outcome = outcomes[random.usize(..outcomes.len())];
            run.schedule.record_outcome(run.now, &call, outcome);
        }
        let n = random.usize(..MAX_RESOURCES);
        run.list(&format!("/api/v1/r{n}"));
        run.now += Duration::from_millis(random.u64(..2000));
    }
    assert!(calls > 100, "{calls}");
}

#[test]
fn resources_come_in_the_order_in_which_they_were_first_listed() {
    let mut run = ScheduleFixture::new();
    for resource in ["b", "c", "a"] {
        run.list(&format!("/api/v1/{resource}"));
        run.now += Duration::from_millis(1);
    }
    let mut order = Vec::new();
    for outcome in [
        CountOutcome::Allowed,
        CountOutcome::Counted,
        CountOutcome::Denied,
        CountOutcome::Allowed,
        CountOutcome::Counted,
    ] {
        order.push(run.complete_call(outcome));
        run.now += SECOND;
    }
    let expected = ["review b", "list b", "review c", "review a", "list a"];
    assert_eq!(order, expected);
    // The review of b is still valid, c was denied.
    assert_eq!(run.complete_call(CountOutcome::Counted), "list b");
}

#[test]
fn only_resources_that_need_a_count_and_are_still_listed_are_counted() {
    let mut run = ScheduleFixture::new();
    run.list("/api/v1/pods");
    run.list("/api/v1/nodes");
    let next = run.schedule.next(run.now, |of| &*of.resource == "pods");
    assert!(matches!(next, NextCountCall::Call(CountCall::Review(of)) if &*of.resource == "pods"));
    run.now += SECOND;
    let next = run.schedule.next(run.now, |_| false);
    assert_eq!(next, NextCountCall::Wait(run.now + IDLE_INTERVAL));
    run.now += LISTED_TTL - 2 * SECOND;
    run.list("/api/v1/nodes");
    run.now += SECOND;
    assert_eq!(run.complete_call(CountOutcome::Denied), "review nodes");
    run.now += SECOND;
    assert_eq!(run.complete_call(CountOutcome::Denied), "nothing");
}

#[test]
fn a_denied_resource_is_reviewed_again_in_seconds_and_then_after_ten_minutes() {
    for denied_by_list in [false, true] {
        let mut run = ScheduleFixture::new();
        run.list("/api/v1/pods");
        if denied_by_list {
            assert_eq!(run.complete_call(CountOutcome::Allowed), "review pods");
            run.now += SECOND;
            assert_eq!(run.complete_call(CountOutcome::Denied), "list pods");
        } else {
            assert_eq!(run.complete_call(CountOutcome::Denied), "review pods");
        }
        for pause in [FIRST_DENIAL_TTL, REVIEW_TTL, REVIEW_TTL] {
            let start = run.now;
            while run.now < start + pause {
                run.list("/api/v1/pods");
                assert_eq!(run.complete_call(CountOutcome::Denied), "nothing");
                run.now += SECOND;
            }
            run.list("/api/v1/pods");
            assert_eq!(run.complete_call(CountOutcome::Denied), "review pods");
        }
    }
}

#[test]
fn a_review_is_valid_for_ten_minutes() {
    let mut run = ScheduleFixture::new();
    run.list("/api/v1/pods");
    assert_eq!(run.complete_call(CountOutcome::Allowed), "review pods");
    run.now += REVIEW_TTL - SECOND;
    run.list("/api/v1/pods");
    assert_eq!(run.complete_call(CountOutcome::Counted), "list pods");
    run.now += SECOND;
    assert_eq!(run.complete_call(CountOutcome::Allowed), "review pods");
}

#[test]
fn failures_back_off_the_resource_and_all_calls() {
    let mut run = ScheduleFixture::new();
    run.list("/api/v1/pods");
    let mut waits = Vec::new();
    for _ in 0..12 {
        waits.push(run.time_to_call("/api/v1/pods").as_secs());
        run.now = run.schedule.not_before;
        assert_eq!(run.complete_call(CountOutcome::Failed), "review pods");
    }
    assert_eq!(waits[0], 0);
    assert!(waits[1] >= 29, "{waits:?}");
    // Each is noticed within the idle interval.
    let late = IDLE_INTERVAL.as_secs();
    let grows = |pair: &[u64]| pair[0] <= pair[1] + late;
    assert!(waits.windows(2).all(grows), "{waits:?}");
    assert!(waits[11].abs_diff(3600) <= late, "{waits:?}");
    // Another resource waits for the global backoff.
    run.list("/api/v1/nodes");
    let pause = run.time_to_call("/api/v1/nodes");
    assert!(
        pause <= MAX_GLOBAL_BACKOFF && pause >= MAX_GLOBAL_BACKOFF / 2,
        "{pause:?}"
    );
    run.now = run.schedule.not_before;
    assert_eq!(run.complete_call(CountOutcome::Allowed), "review nodes");
    // The API server responds again: the next call comes after a second.
    run.now += SECOND;
    assert_eq!(run.complete_call(CountOutcome::Counted), "list nodes");
    assert_eq!(backoff(1, INITIAL_BACKOFF, MAX_BACKOFF), INITIAL_BACKOFF);
    assert_eq!(
        backoff(2, INITIAL_BACKOFF, MAX_BACKOFF),
        2 * INITIAL_BACKOFF
    );
    assert_eq!(
        backoff(u32::MAX, INITIAL_GLOBAL_BACKOFF, MAX_GLOBAL_BACKOFF),
        MAX_GLOBAL_BACKOFF
    );
}

#[test]
fn without_reviews_no_call_is_made_for_seconds_and_then_for_ten_minutes() {
    let mut run = ScheduleFixture::new();
    run.list("/api/v1/pods");
    run.list("/api/v1/nodes");
    assert_eq!(run.complete_call(CountOutcome::NoReviews), "review nodes");
    for pause in [FIRST_DENIAL_TTL, REVIEW_TTL] {
        assert_eq!(run.next(), NextCountCall::Wait(run.now + pause));
        run.now += pause;
        run.list("/api/v1/pods");
        run.list("/api/v1/nodes");
        assert!(
            run.complete_call(CountOutcome::NoReviews)
                .starts_with("review")
        );
    }
    assert_eq!(run.next(), NextCountCall::Wait(run.now + REVIEW_TTL));
}

#[test]
fn a_list_without_a_count_is_retried_after_an_hour() {
    let mut run = ScheduleFixture::new();
    run.list("/api/v1/pods");
    assert_eq!(run.complete_call(CountOutcome::Allowed), "review pods");
    run.now += SECOND;
    assert_eq!(run.complete_call(CountOutcome::Uncountable), "list pods");
    run.now += UNCOUNTABLE_RETRY_INTERVAL - SECOND;
    run.list("/api/v1/pods");
    assert_eq!(run.complete_call(CountOutcome::Allowed), "nothing");
    run.now += SECOND;
    assert_eq!(run.complete_call(CountOutcome::Allowed), "review pods");
}

#[test]
fn credentials_computed_resources_and_invalid_names_are_never_listed() {
    for target in [
        "/api/v1/secrets",
        "/api/v1/namespaces/a/secrets?limit=500",
        "/apis/example.com/v1/secrets",
        "/apis/external-secrets.io/v1/externalsecrets",
        "/apis/oauth.openshift.io/v1/oauthaccesstokens",
        "/apis/cloudcredential.openshift.io/v1/credentialsrequests",
        "/api/v1/componentstatuses",
        "/apis/metrics.k8s.io/v1beta1/pods",
        "/apis/custom.metrics.k8s.io/v1beta1/services",
        "/api/v1/Pods",
        "/api/v1/%2e%2e",
        "/api/v1/pods%3Fx",
        "/apis/a%20b/v1/pods",
        "/apis/%2e%2e/v1/pods",
    ] {
        let mut run = ScheduleFixture::new();
        let info = RequestInfo::parse("GET", target.as_bytes());
        if info.is_ok() {
            assert!(!run.list(target), "{target}");
        }
        assert_eq!(
            run.complete_call(CountOutcome::Allowed),
            "nothing",
            "{target}"
        );
    }
    let mut run = ScheduleFixture::new();
    assert!(!run.list(&format!("/api/v1/{}", "a".repeat(MAX_NAME_LENGTH + 1))));
    assert!(run.list("/api/v1/events"));
}

#[test]
fn the_last_listed_version_is_counted() {
    let mut run = ScheduleFixture::new();
    run.list("/apis/batch/v1beta1/cronjobs");
    run.list("/apis/batch/v1/cronjobs");
    let Some(CountCall::Review(of)) = run.call() else {
        panic!("no review")
    };
    assert_eq!(of.target(), "/apis/batch/v1/cronjobs?limit=1");
}

#[test]
fn the_least_recently_listed_resource_is_evicted_first() {
    let mut run = ScheduleFixture::new();
    for n in 0..MAX_RESOURCES {
        run.list(&format!("/api/v1/r{n}"));
    }
    run.now += SECOND;
    for n in (0..MAX_RESOURCES).filter(|&n| n != 7) {
        run.list(&format!("/api/v1/r{n}"));
    }
    assert!(run.list("/api/v1/new"));
    assert_eq!(run.schedule.entries.len(), MAX_RESOURCES);
    assert!(run.list("/api/v1/r7"), "it made room");
    // The outcome of a call for an evicted resource changes nothing.
    let gone = CountableResource {
        group: "".into(),
        version: "v1".into(),
        resource: "gone".into(),
    };
    run.schedule
        .record_outcome(run.now, &CountCall::List(gone), CountOutcome::Counted);
    assert_eq!(run.schedule.entries.len(), MAX_RESOURCES);
}
