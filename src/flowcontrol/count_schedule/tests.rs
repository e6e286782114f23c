//! One call a second, which resource is next, and how failures are backed off.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A schedule and its clock.
struct Run {
    schedule: CountSchedule,
    now: Instant,
}

impl Run {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            schedule: CountSchedule::new(now),
            now,
        }
    }

    fn listed(&mut self, target: &str) -> bool {
        let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
        self.schedule.listed(self.now, &info)
    }

    fn next(&mut self) -> Next {
        self.schedule.next(self.now, |_| true)
    }

    /// The call of now: `review pods`, `list pods`, or nothing.
    fn call(&mut self) -> Option<Call> {
        match self.next() {
            Next::Call(call) => Some(call),
            Next::Wait(until) => {
                assert!(until > self.now, "a wait that is over");
                None
            }
        }
    }

    fn named(call: Option<&Call>) -> String {
        match call {
            Some(Call::Review(of)) => format!("review {}", of.resource),
            Some(Call::List(of)) => format!("list {}", of.resource),
            None => "nothing".to_owned(),
        }
    }

    /// Makes the call of now, which ends like this at once.
    fn ends(&mut self, outcome: Outcome) -> String {
        let call = self.call();
        let name = Self::named(call.as_ref());
        if let Some(call) = call {
            self.schedule.ended(self.now, &call, outcome);
        }
        name
    }

    /// How long it takes until there is a call, while this is listed.
    fn time_to_call(&mut self, listed: &str) -> Duration {
        let start = self.now;
        while let Next::Wait(until) = self.next() {
            self.now = until;
            self.listed(listed);
        }
        self.now - start
    }
}

#[test]
fn a_resource_is_reviewed_then_listed_a_second_later() {
    let mut run = Run::new();
    assert_eq!(run.ends(Outcome::Allowed), "nothing", "nothing is listed");
    assert!(run.listed("/apis/apps/v1/namespaces/a/deployments?labelSelector=x"));
    assert!(!run.listed("/apis/apps/v1/deployments"), "known");
    assert_eq!(run.ends(Outcome::Allowed), "review deployments");
    assert_eq!(run.ends(Outcome::Counted), "nothing", "once a second");
    run.now += SECOND;
    let call = run.call().unwrap();
    let Call::List(of) = &call else {
        panic!("{call:?}")
    };
    assert_eq!(of.target(), "/apis/apps/v1/deployments?limit=1");
    run.schedule.ended(run.now, &call, Outcome::Counted);
}

#[test]
fn there_is_one_call_a_second_at_most_whatever_the_outcomes() {
    let mut run = Run::new();
    for n in 0..MOST_RESOURCES {
        run.listed(&format!("/api/v1/r{n}"));
    }
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let outcomes = [
        Outcome::Allowed,
        Outcome::Denied,
        Outcome::NoReviews,
        Outcome::Counted,
        Outcome::Uncountable,
        Outcome::Failed,
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
            run.schedule.ended(run.now, &call, outcome);
        }
        let n = random.usize(..MOST_RESOURCES);
        run.listed(&format!("/api/v1/r{n}"));
        run.now += Duration::from_millis(random.u64(..2000));
    }
    assert!(calls > 100, "{calls}");
}

#[test]
fn resources_come_in_the_order_in_which_they_were_first_listed() {
    let mut run = Run::new();
    for resource in ["b", "c", "a"] {
        run.listed(&format!("/api/v1/{resource}"));
        run.now += Duration::from_millis(1);
    }
    let mut order = Vec::new();
    for outcome in [
        Outcome::Allowed,
        Outcome::Counted,
        Outcome::Denied,
        Outcome::Allowed,
        Outcome::Counted,
    ] {
        order.push(run.ends(outcome));
        run.now += SECOND;
    }
    let expected = ["review b", "list b", "review c", "review a", "list a"];
    assert_eq!(order, expected);
    // The review of b serves again, c was denied.
    assert_eq!(run.ends(Outcome::Counted), "list b");
}

#[test]
fn only_what_is_wanted_and_still_listed_is_counted() {
    let mut run = Run::new();
    run.listed("/api/v1/pods");
    run.listed("/api/v1/nodes");
    let next = run.schedule.next(run.now, |of| &*of.resource == "pods");
    assert!(matches!(next, Next::Call(Call::Review(of)) if &*of.resource == "pods"));
    run.now += SECOND;
    let next = run.schedule.next(run.now, |_| false);
    assert_eq!(next, Next::Wait(run.now + IDLE));
    run.now += LISTED_WITHIN - 2 * SECOND;
    run.listed("/api/v1/nodes");
    run.now += SECOND;
    assert_eq!(run.ends(Outcome::Denied), "review nodes");
    run.now += SECOND;
    assert_eq!(run.ends(Outcome::Denied), "nothing");
}

#[test]
fn a_denied_resource_is_reviewed_again_after_ten_minutes_and_never_listed() {
    for denied_by_list in [false, true] {
        let mut run = Run::new();
        run.listed("/api/v1/pods");
        if denied_by_list {
            assert_eq!(run.ends(Outcome::Allowed), "review pods");
            run.now += SECOND;
            assert_eq!(run.ends(Outcome::Denied), "list pods");
        } else {
            assert_eq!(run.ends(Outcome::Denied), "review pods");
        }
        let start = run.now;
        while run.now < start + REVIEW_HOLDS {
            run.listed("/api/v1/pods");
            assert_eq!(run.ends(Outcome::Denied), "nothing");
            run.now += SECOND;
        }
        run.listed("/api/v1/pods");
        assert_eq!(run.ends(Outcome::Denied), "review pods");
    }
}

#[test]
fn a_review_serves_for_ten_minutes() {
    let mut run = Run::new();
    run.listed("/api/v1/pods");
    assert_eq!(run.ends(Outcome::Allowed), "review pods");
    run.now += REVIEW_HOLDS - SECOND;
    run.listed("/api/v1/pods");
    assert_eq!(run.ends(Outcome::Counted), "list pods");
    run.now += SECOND;
    assert_eq!(run.ends(Outcome::Allowed), "review pods");
}

#[test]
fn failures_are_backed_off_for_the_resource_and_for_all() {
    let mut run = Run::new();
    run.listed("/api/v1/pods");
    let mut waits = Vec::new();
    for _ in 0..12 {
        waits.push(run.time_to_call("/api/v1/pods").as_secs());
        run.now = run.schedule.not_before;
        assert_eq!(run.ends(Outcome::Failed), "review pods");
    }
    assert_eq!(waits[0], 0);
    assert!(waits[1] >= 29, "{waits:?}");
    // Each is noticed within the time that it takes to look again.
    let late = IDLE.as_secs();
    let grows = |pair: &[u64]| pair[0] <= pair[1] + late;
    assert!(waits.windows(2).all(grows), "{waits:?}");
    assert!(waits[11].abs_diff(3600) <= late, "{waits:?}");
    // Another resource waits for the pause of all.
    run.listed("/api/v1/nodes");
    let pause = run.time_to_call("/api/v1/nodes");
    assert!(
        pause <= LONGEST_PAUSE && pause >= LONGEST_PAUSE / 2,
        "{pause:?}"
    );
    run.now = run.schedule.not_before;
    assert_eq!(run.ends(Outcome::Allowed), "review nodes");
    // It answers again: the next call comes after a second.
    run.now += SECOND;
    assert_eq!(run.ends(Outcome::Counted), "list nodes");
    assert_eq!(backoff(1, FIRST_BACKOFF, LONGEST_BACKOFF), FIRST_BACKOFF);
    assert_eq!(
        backoff(2, FIRST_BACKOFF, LONGEST_BACKOFF),
        2 * FIRST_BACKOFF
    );
    assert_eq!(backoff(u32::MAX, FIRST_PAUSE, LONGEST_PAUSE), LONGEST_PAUSE);
}

#[test]
fn without_reviews_nothing_is_asked_for_ten_minutes() {
    let mut run = Run::new();
    run.listed("/api/v1/pods");
    run.listed("/api/v1/nodes");
    assert_eq!(run.ends(Outcome::NoReviews), "review nodes");
    assert_eq!(run.next(), Next::Wait(run.now + REVIEW_HOLDS));
}

#[test]
fn a_list_that_tells_no_count_is_tried_again_after_an_hour() {
    let mut run = Run::new();
    run.listed("/api/v1/pods");
    assert_eq!(run.ends(Outcome::Allowed), "review pods");
    run.now += SECOND;
    assert_eq!(run.ends(Outcome::Uncountable), "list pods");
    run.now += UNCOUNTABLE_FOR - SECOND;
    run.listed("/api/v1/pods");
    assert_eq!(run.ends(Outcome::Allowed), "nothing");
    run.now += SECOND;
    assert_eq!(run.ends(Outcome::Allowed), "review pods");
}

#[test]
fn credentials_computed_resources_and_strange_names_are_never_asked_for() {
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
        let mut run = Run::new();
        let info = RequestInfo::parse("GET", target.as_bytes());
        if info.is_ok() {
            assert!(!run.listed(target), "{target}");
        }
        assert_eq!(run.ends(Outcome::Allowed), "nothing", "{target}");
    }
    let mut run = Run::new();
    assert!(!run.listed(&format!("/api/v1/{}", "a".repeat(LONGEST_NAME + 1))));
    assert!(run.listed("/api/v1/events"));
}

#[test]
fn the_version_that_was_listed_last_is_asked_for() {
    let mut run = Run::new();
    run.listed("/apis/batch/v1beta1/cronjobs");
    run.listed("/apis/batch/v1/cronjobs");
    let Some(Call::Review(of)) = run.call() else {
        panic!("no review")
    };
    assert_eq!(of.target(), "/apis/batch/v1/cronjobs?limit=1");
}

#[test]
fn of_too_many_resources_the_one_longest_not_listed_makes_room() {
    let mut run = Run::new();
    for n in 0..MOST_RESOURCES {
        run.listed(&format!("/api/v1/r{n}"));
    }
    run.now += SECOND;
    for n in (0..MOST_RESOURCES).filter(|&n| n != 7) {
        run.listed(&format!("/api/v1/r{n}"));
    }
    assert!(run.listed("/api/v1/new"));
    assert_eq!(run.schedule.entries.len(), MOST_RESOURCES);
    assert!(run.listed("/api/v1/r7"), "it made room");
    // The end of a call about a resource that made room changes nothing.
    let gone = Countable {
        group: "".into(),
        version: "v1".into(),
        resource: "gone".into(),
    };
    run.schedule
        .ended(run.now, &Call::List(gone), Outcome::Counted);
    assert_eq!(run.schedule.entries.len(), MOST_RESOURCES);
}
