//! Requests that do not wait, and the seats that they hold.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_request_holds_its_seat_until_it_is_dropped() {
    let fixture = one_level(2, queue(4, 10));
    let (first, second) = (fixture.get_now("a"), fixture.get_now("b"));
    assert_eq!(fixture.load("work"), (0, 2, 2));
    assert_eq!(first.decision().flow_schema().name, "all");
    assert_eq!(first.decision().priority_level().name, "work");
    drop(first);
    assert_eq!(fixture.load("work"), (0, 1, 1));
    advance(2 * MS).await;
    drop(second);
    assert_eq!(fixture.load("work"), (0, 0, 0));
    let labels = "{flow_schema=\"all\",priority_level=\"work\"";
    let value = |name: &str, more: &str| {
        fixture.metric_value(&format!("apiserver_flowcontrol_{name}{labels}{more}}}"))
    };
    assert_eq!(value("dispatched_requests_total", ""), Some(2.0));
    assert_eq!(value("current_executing_requests", ""), Some(0.0));
    assert_eq!(
        value("request_execution_seconds_sum", ",type=\"regular\""),
        Some(0.002)
    );
    assert_eq!(
        value("request_execution_seconds_count", ",type=\"regular\""),
        Some(2.0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_rejection_has_a_reason_and_a_retry_after() {
    let fixture = one_level(1, reject());
    let _held = fixture.get_now("a");
    let rejected = fixture.admit("b", "GET", POD).await.unwrap_err();
    assert_eq!(rejected.reason, RejectReason::ConcurrencyLimit);
    assert_eq!(rejected.retry_after, 1);
    assert_eq!(rejected.decision.flow_schema().name, "all");
    assert_eq!(rejected.decision.priority_level().uid.len(), 36);
    let totals = fixture.totals("work");
    assert_eq!((totals.rejected, totals.cancelled), (1, 0));
    let refused = "apiserver_flowcontrol_request_wait_duration_seconds_count\
                   {execute=\"false\",flow_schema=\"all\",priority_level=\"work\"}";
    assert_eq!(fixture.metric_value(refused), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn an_exempt_level_admits_and_counts_every_request() {
    let fixture = one_level(1, reject());
    let info = RequestInfo::parse("GET", b"/").unwrap();
    let master = UserInfo {
        name: "root".to_owned(),
        groups: vec!["system:masters".to_owned()],
        ..UserInfo::default()
    };
    let mut held = Vec::new();
    for _ in 0..5 {
        let admitted = fixture
            .controller
            .admit(&info, &master, RequestTimes::at(Clock.now()))
            .await;
        held.push(admitted.unwrap());
    }
    assert_eq!(fixture.load("exempt"), (0, 5, 5));
    fixture.publish_peaks();
    drop(held);
    assert_eq!(fixture.load("exempt"), (0, 0, 0));
    let peak = "apiserver_current_inflight_requests{request_kind=\"readOnly\"}";
    assert_eq!(fixture.metric_value(peak), Some(5.0));
    let waits = "apiserver_flowcontrol_request_wait_duration_seconds_count\
                 {execute=\"true\",flow_schema=\"exempt\",priority_level=\"exempt\"}";
    assert_eq!(
        fixture.metric_value(waits),
        None,
        "who is exempt cannot have waited"
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_releases_its_seat_once_initialized_and_is_counted_until_it_ends() {
    let fixture = one_level(1, queue(1, 10));
    let mut watch = fixture.admit("a", "GET", WATCH).await.unwrap();
    assert_eq!(
        (
            fixture.load("work"),
            fixture.interested_watches("POST", PODS)
        ),
        ((0, 1, 1), 1)
    );
    advance(3 * MS).await;
    watch.release();
    assert_eq!(
        (
            fixture.load("work"),
            fixture.interested_watches("POST", PODS)
        ),
        ((0, 0, 0), 1)
    );
    watch.release();
    drop(watch);
    assert_eq!(
        (
            fixture.load("work"),
            fixture.interested_watches("POST", PODS)
        ),
        ((0, 0, 0), 0)
    );
    let times = "apiserver_flowcontrol_request_execution_seconds_sum\
                 {flow_schema=\"all\",priority_level=\"work\",type=\"watch\"}";
    assert_eq!(fixture.metric_value(times), Some(0.003));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_before_it_is_initialized_releases_everything() {
    let fixture = one_level(1, queue(1, 10));
    drop(fixture.admit("a", "GET", WATCH).await.unwrap());
    assert_eq!(
        (
            fixture.load("work"),
            fixture.interested_watches("POST", PODS)
        ),
        ((0, 0, 0), 0)
    );
}

/// A write that ten watches receive.
async fn write_with_many_watches(fixture: &ControllerFixture) -> SeatPermit {
    for _ in 0..10 {
        let mut watch = fixture.admit("w", "GET", WATCH).await.unwrap();
        watch.release();
        std::mem::forget(watch);
    }
    fixture.admit("a", "POST", PODS).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn seats_linger_after_a_write_with_many_watches() {
    let fixture = one_level(1, queue(1, 10));
    let write = write_with_many_watches(&fixture).await;
    assert_eq!(write.decision().work.additional_latency, 5 * MS);
    drop(write);
    assert_eq!(fixture.load("work"), (0, 0, 1));
    let mut next = fixture.get("b").expect_pending();
    advance(4 * MS).await;
    assert!(next.poll_once().is_pending());
    advance(MS).await;
    assert!(matches!(next.poll_once(), Poll::Ready(Ok(_))));
    drop(next);
    assert_eq!(fixture.load("work"), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn seats_do_not_linger_outside_of_a_runtime() {
    let fixture = one_level(1, queue(1, 10));
    let write = write_with_many_watches(&fixture).await;
    std::thread::spawn(|| drop(write)).join().unwrap();
    assert_eq!(fixture.load("work"), (0, 0, 0));
}

#[test]
fn lingering_seats_are_released_when_their_runtime_ends() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap()
    };
    let first = runtime();
    let fixture = first.block_on(async { one_level(1, queue(1, 10)) });
    first.block_on(async { drop(write_with_many_watches(&fixture).await) });
    assert_eq!(fixture.load("work"), (0, 0, 1));
    drop(first);
    assert_eq!(fixture.load("work"), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn detail_buffers_of_ended_requests_are_reused() {
    let fixture = one_level(100, queue(8, 10));
    for round in 0..3 {
        let users: Vec<_> = (0..5).map(|n| format!("user-{round}-{n}")).collect();
        let held: Vec<_> = users.iter().map(|user| fixture.get_now(user)).collect();
        let text = fixture.controller.dump_requests(true);
        for user in &users {
            assert_eq!(text.matches(user.as_str()).count(), 2, "{user}\n{text}");
        }
        assert_eq!(text.lines().count(), 6, "{text}");
        drop(held);
    }
}
