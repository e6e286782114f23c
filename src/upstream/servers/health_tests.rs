use super::*;
use weir_base::clock::Clock;

fn after(began: Instant, seconds: u64) -> Instant {
    began + Duration::from_secs(seconds)
}

fn not_ready() -> ProbeOutcome {
    ProbeOutcome::NotReady("why".to_owned())
}

fn fail(health: &mut Health, failure: ServerFailure, times: u32, now: Instant) {
    for _ in 1..times {
        assert_eq!(health.record_failure(failure, now, true), None);
    }
}

#[test]
fn a_failed_probe_ends_requests_and_a_passed_one_returns_the_server_with_a_slow_start() {
    let now = Clock.now();
    let mut health = Health::new(false);
    assert_eq!(health.availability().share(now), Some(1.0));
    let change = health.record_probe(not_ready(), now);
    assert_eq!(change, Some(HealthChange::NotReady("why".to_owned())));
    assert_eq!(health.availability(), Availability::NotReady);
    assert_eq!(health.availability().share(now), None);
    assert_eq!(health.record_probe(not_ready(), now), None, "as before");
    let change = health.record_probe(ProbeOutcome::Ready, now);
    assert_eq!(change, Some(HealthChange::Ready));
    for (seconds, share) in [(0, 0.1), (1, 0.1), (5, 0.5), (10, 1.0), (100, 1.0)] {
        let at = after(now, seconds);
        assert_eq!(health.availability().share(at), Some(share), "{seconds} s");
    }
    let later = health.record_probe(ProbeOutcome::Ready, after(now, 2));
    assert_eq!(later, None, "the slow start goes on");
    assert_eq!(health.availability().share(after(now, 5)), Some(0.5));
}

#[test]
fn one_missed_probe_is_not_enough() {
    let now = Clock.now();
    let missed = || ProbeOutcome::NoResponse("late".to_owned());
    let mut health = Health::new(false);
    assert_eq!(health.record_probe(missed(), now), None);
    assert_eq!(health.record_probe(ProbeOutcome::Ready, now), None);
    assert_eq!(health.record_probe(missed(), now), None);
    assert_eq!(health.availability().share(now), Some(1.0));
    let change = health.record_probe(missed(), now);
    assert_eq!(change, Some(HealthChange::NotReady("late".to_owned())));
}

#[test]
fn ejections_double_and_are_forgotten_after_a_while() {
    let mut now = Clock.now();
    let mut health = Health::new(false);
    for seconds in [1, 2, 4, 8, 16, 32, 32] {
        fail(&mut health, ServerFailure::BrokenConnection, 5, now);
        let time = Duration::from_secs(seconds);
        let change = health.record_failure(ServerFailure::BrokenConnection, now, true);
        assert_eq!(change, Some(HealthChange::Ejected(time)));
        assert!(health.is_ejected(now));
        assert_eq!(health.availability().share(now), None);
        now += time;
        assert!(!health.is_ejected(now));
        assert_eq!(health.availability().share(now), Some(FIRST_SHARE));
    }
    now += EJECTION_MEMORY;
    fail(&mut health, ServerFailure::BrokenConnection, 5, now);
    let change = health.record_failure(ServerFailure::BrokenConnection, now, true);
    assert_eq!(change, Some(HealthChange::Ejected(BASE_EJECTION)));
}

#[test]
fn a_response_between_failures_prevents_an_ejection() {
    let now = Clock.now();
    let mut health = Health::new(false);
    for _ in 0..10 {
        fail(&mut health, ServerFailure::Connect, 3, now);
        health.record_success();
    }
    assert!(!health.is_ejected(now));
}

#[test]
fn a_passed_probe_ends_an_ejection_for_failed_connections_only() {
    let now = Clock.now();
    for (failure, times, ends) in [
        (ServerFailure::Connect, CONNECT_FAILURES, true),
        (ServerFailure::BrokenConnection, BROKEN_CONNECTIONS, false),
    ] {
        let mut health = Health::new(false);
        fail(&mut health, failure, times, now);
        assert!(health.record_failure(failure, now, true).is_some());
        health.record_probe(ProbeOutcome::Ready, now);
        assert_eq!(health.availability().share(now).is_some(), ends);
        let over = now + BASE_EJECTION;
        assert!(health.availability().share(over).is_some());
    }
}

#[test]
fn an_ejected_server_that_is_not_ready_stays_away_when_its_time_is_over() {
    let now = Clock.now();
    let mut health = Health::new(false);
    health.record_probe(not_ready(), now);
    fail(&mut health, ServerFailure::Connect, 3, now);
    assert!(
        health
            .record_failure(ServerFailure::Connect, now, true)
            .is_some()
    );
    assert_eq!(health.availability().share(after(now, 60)), None);
}

#[test]
fn at_most_half_of_the_servers_are_ejected() {
    for (ejected, servers, may) in [
        (0, 1, false),
        (0, 2, true),
        (1, 2, false),
        (0, 3, true),
        (1, 3, false),
        (1, 4, true),
        (2, 5, false),
    ] {
        assert_eq!(may_eject(ejected, servers), may, "{ejected} of {servers}");
    }
    let now = Clock.now();
    let mut health = Health::new(false);
    for _ in 0..100 {
        let change = health.record_failure(ServerFailure::Connect, now, false);
        assert_eq!(change, None);
    }
    assert_eq!(health.availability().share(now), Some(1.0));
}

#[test]
fn an_unverified_server_gets_nothing_before_it_has_answered() {
    let now = Clock.now();
    let mut health = Health::new(true);
    assert_eq!(health.availability().share(now), None);
    health.record_probe(ProbeOutcome::Unreachable(ForwardError::Closed), now);
    assert_eq!(health.availability(), Availability::Unverified);
    health.record_probe(not_ready(), now);
    assert_eq!(health.availability(), Availability::NotReady);
    health.record_probe(ProbeOutcome::Ready, now);
    assert!(health.availability().share(now).is_some());
}

#[test]
fn a_weir_is_refused_until_something_else_answers() {
    let now = Clock.now();
    let mut health = Health::new(true);
    let weir = ProbeOutcome::Weir(WeirServer::Peer);
    let change = health.record_probe(weir.clone(), now);
    assert_eq!(change, Some(HealthChange::Refused(WeirServer::Peer)));
    assert_eq!(health.record_probe(weir, now), None);
    health.record_probe(ProbeOutcome::Unreachable(ForwardError::Closed), now);
    assert_eq!(health.availability(), Availability::Refused);
    let change = health.record_probe(ProbeOutcome::Ready, now);
    assert_eq!(change, Some(HealthChange::Ready));
    assert_eq!(health.availability(), Availability::From(now));
}

#[test]
fn one_broken_connection_does_not_make_a_server_unreachable() {
    let now = Clock.now();
    let mut health = Health::new(false);
    assert!(health.is_unreachable_after(ServerFailure::Connect));
    for _ in 1..UNREACHABLE_CONNECTIONS {
        assert!(!health.is_unreachable_after(ServerFailure::BrokenConnection));
        health.record_failure(ServerFailure::BrokenConnection, now, true);
    }
    assert!(health.is_unreachable_after(ServerFailure::BrokenConnection));
    health.record_success();
    assert!(!health.is_unreachable_after(ServerFailure::BrokenConnection));
}

#[test]
fn a_single_server_that_answers_no_probe_is_late_after_two_seconds_and_not_ready_after_five() {
    let start = Clock.now();
    let mut health = Health::new(false);
    health.record_probe_sent(start);
    assert_eq!(health.readiness(start), UpstreamReadiness::Unknown);
    health.record_probe(ProbeOutcome::Ready, start);
    assert_eq!(health.readiness(after(start, 99)), UpstreamReadiness::Ready);
    let sent = after(start, 100);
    health.record_probe_sent(sent);
    // The first one has timed out after 3 s.
    let missed = ProbeOutcome::NoResponse("no response within 3s".to_owned());
    let mut after_a_missed_one = health.clone();
    after_a_missed_one.record_probe(missed, sent + Duration::from_millis(3_000));
    after_a_missed_one.record_probe_sent(sent + Duration::from_millis(3_600));
    for (millis, health, expected) in [
        (1_999, &health, UpstreamReadiness::Ready),
        (
            2_000,
            &health,
            UpstreamReadiness::Late("no answer for 2 s".to_owned()),
        ),
        (
            4_999,
            &after_a_missed_one,
            UpstreamReadiness::Late("no answer for 4 s".to_owned()),
        ),
        (
            5_000,
            &after_a_missed_one,
            UpstreamReadiness::NotReady("no answer for 5 s".to_owned()),
        ),
    ] {
        let now = sent + Duration::from_millis(millis);
        assert_eq!(health.readiness(now), expected, "{millis} ms");
    }
    for answer in [ProbeOutcome::Ready, not_ready()] {
        let mut health = after_a_missed_one.clone();
        health.record_probe(answer, after(sent, 9));
        assert_eq!(
            health.readiness(after(sent, 9)),
            UpstreamReadiness::Ready,
            "at once"
        );
    }
}

#[test]
fn a_single_server_makes_weir_ready_when_its_readyz_has_passed_or_after_a_minute() {
    let start = Clock.now();
    let mut health = Health::new(false).with_gate(start);
    let failed = |why: &str| UpstreamReadiness::NotReady(why.to_owned());
    assert_eq!(health.readiness(start), UpstreamReadiness::Unknown);
    health.record_probe_sent(start);
    assert_eq!(
        health.readiness(after(start, 2)),
        failed("no answer for 2 s")
    );
    health.record_probe(not_ready(), after(start, 2));
    for seconds in [2, 61] {
        health.record_probe(not_ready(), after(start, seconds));
        assert_eq!(health.readiness(after(start, seconds)), failed("why"));
    }
    let minute = after(start, 62);
    assert_eq!(
        health.readiness(minute),
        UpstreamReadiness::Ready,
        "it may serve"
    );
    // It is gone, and boots.
    health.record_probe(ProbeOutcome::Unreachable(ForwardError::Closed), minute);
    let gone = ForwardError::Closed.to_string();
    assert_eq!(health.readiness(after(minute, 999)), failed(&gone));
    let boots = after(minute, 999);
    health.record_probe(not_ready(), boots);
    assert_eq!(health.readiness(after(boots, 59)), failed("why"));
    health.record_probe(ProbeOutcome::Ready, after(boots, 59));
    assert_eq!(
        health.readiness(after(boots, 59)),
        UpstreamReadiness::Ready,
        "at once"
    );
    // Each shutdown fails `/readyz`.
    health.record_probe(not_ready(), after(boots, 70));
    assert_eq!(
        health.readiness(after(boots, 70)),
        UpstreamReadiness::Ready,
        "it serves"
    );
    // A request has found it gone.
    health.record_outage(after(boots, 80));
    health.record_probe(ProbeOutcome::Ready, after(boots, 81));
    assert_eq!(health.readiness(after(boots, 81)), UpstreamReadiness::Ready);
}
