//! Requests that wait: dispatched, timed out and cancelled ones.

use std::sync::mpsc;

use super::*;

const TIMED_OUT: &str = "apiserver_flowcontrol_rejected_requests_total\
                         {flow_schema=\"all\",priority_level=\"work\",reason=\"time-out\"}";

#[tokio::test(start_paused = true)]
async fn a_waiting_request_starts_when_a_seat_is_released() {
    let fixture = one_level(1, queue(1, 10));
    let held = fixture.get_now("a");
    let mut next = fixture.get("b").expect_pending();
    assert_eq!(fixture.load("work"), (1, 1, 1));
    advance(7 * MS).await;
    assert!(next.poll_once().is_pending());
    drop(held);
    let Poll::Ready(Ok(admitted)) = next.poll_once() else {
        panic!("its turn has come");
    };
    assert_eq!(admitted.decision().queue_wait, 7 * MS);
    assert_eq!(fixture.load("work"), (0, 1, 1));
    let waits = "apiserver_flowcontrol_request_wait_duration_seconds_sum\
                 {execute=\"true\",flow_schema=\"all\",priority_level=\"work\"}";
    assert_eq!(fixture.metric_value(waits), Some(0.007));
}

#[tokio::test(start_paused = true)]
async fn the_users_that_wait_and_those_that_hold_the_seats_are_named_while_one_waits() {
    let fixture = one_level(2, queue(1, 10));
    let _held = [fixture.get_now("a"), fixture.get_now("a")];
    let occupants = || fixture.controller.occupants(Clock.now());
    assert!(occupants().is_empty(), "nothing waits");
    let _first = fixture.get("b").expect_pending();
    advance(3 * MS).await;
    let waiting = [
        fixture.get("c").expect_pending(),
        fixture.get("c").expect_pending(),
    ];
    advance(4 * MS).await;
    let [(level, work)] = &occupants()[..] else {
        panic!("one level");
    };
    assert_eq!(level, "work");
    assert_eq!(work.waiting, [("c".to_owned(), 2), ("b".to_owned(), 1)]);
    assert_eq!(work.seats, [("a".to_owned(), 2)]);
    assert_eq!(work.waited, 7 * MS);
    drop(waiting);
    let [(_, work)] = &occupants()[..] else {
        panic!("one level");
    };
    assert_eq!(work.waiting, [("b".to_owned(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_rejects() {
    let fixture = one_level(1, queue(1, 2));
    let _held = fixture.get_now("a");
    let _waiting = [
        fixture.get("b").expect_pending(),
        fixture.get("c").expect_pending(),
    ];
    let rejected = fixture.admit("d", "GET", POD).await.unwrap_err();
    assert_eq!(rejected.reason, RejectReason::QueueFull);
    assert_eq!(fixture.load("work"), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_while_it_waits_leaves_the_queue() {
    let fixture = one_level(1, queue(1, 10));
    let held = fixture.get_now("a");
    let (second, mut third) = (
        fixture.get("b").expect_pending(),
        fixture.get("c").expect_pending(),
    );
    drop(second);
    assert_eq!(fixture.load("work"), (1, 1, 1));
    assert_eq!(fixture.metric_value(TIMED_OUT), Some(1.0));
    drop(held);
    assert!(matches!(third.poll_once(), Poll::Ready(Ok(_))));
}

#[tokio::test(start_paused = true)]
async fn a_request_dropped_right_after_its_dispatch_releases_its_seat() {
    let fixture = one_level(1, queue(1, 10));
    let held = fixture.get_now("a");
    let (second, mut third) = (
        fixture.get("b").expect_pending(),
        fixture.get("c").expect_pending(),
    );
    drop(held);
    assert_eq!(
        fixture.load("work"),
        (1, 1, 1),
        "the second has the seat and does not know"
    );
    drop(second);
    assert!(matches!(third.poll_once(), Poll::Ready(Ok(_))));
    assert_eq!(fixture.metric_value(TIMED_OUT), None);
    let totals = fixture.totals("work");
    assert_eq!((totals.dispatched, totals.rejected), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_never_polled_is_not_counted() {
    let fixture = one_level(1, queue(1, 10));
    drop(fixture.get("a"));
    assert_eq!(fixture.totals("work"), QueueSetTotals::default());
}

/// The time that a request waits that arrived `ago` and has `time` in total.
async fn wait_duration(
    fixture: &ControllerFixture,
    ago: Duration,
    time: Option<Duration>,
) -> Duration {
    tokio::time::sleep(ago).await;
    let now = Clock.now();
    let arrived = now.checked_sub(ago).unwrap();
    let deadline = time.map(|time| arrived + time);
    let outcome = fixture
        .admit_until("b", "GET", POD, arrived, deadline)
        .await;
    assert_eq!(outcome.unwrap_err().reason, RejectReason::TimeOut);
    Clock.now() - now
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_a_quarter_of_its_timeout_from_its_arrival_and_a_minute_at_most() {
    let fixture = one_level(1, queue(1, 10));
    let _held = fixture.get_now("a");
    let second = 1000 * MS;
    let none = Duration::ZERO;
    for (ago, time, expected) in [
        (none, None, 15 * second),
        (none, Some(8 * second), 2 * second),
        (5 * second, Some(60 * second), 10 * second),
        (none, Some(3600 * second), 60 * second),
        (20 * second, None, none),
    ] {
        assert_eq!(
            wait_duration(&fixture, ago, time).await,
            expected,
            "{ago:?}, {time:?}"
        );
    }
    assert_eq!(fixture.load("work"), (0, 1, 1));
    assert_eq!(fixture.totals("work").cancelled, 5);
}

#[tokio::test(start_paused = true)]
async fn a_request_past_its_queue_deadline_starts_if_a_seat_is_free() {
    let fixture = one_level(1, queue(1, 10));
    advance(20_000 * MS).await;
    let arrived = Clock.now().checked_sub(20_000 * MS).unwrap();
    let admitted = fixture.admit_until("a", "GET", POD, arrived, None).await;
    assert_eq!(admitted.unwrap().decision().queue_wait, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_request_dispatched_right_before_its_timeout_keeps_its_seat() {
    let fixture = one_level(1, queue(1, 10));
    let held = fixture.get_now("a");
    let mut second = fixture.get("b").expect_pending();
    tokio::time::advance(16_000 * MS).await;
    drop(held);
    assert!(matches!(second.poll_once(), Poll::Ready(Ok(_))));
    drop(second);
    assert_eq!(fixture.load("work"), (0, 0, 0));
    assert_eq!(fixture.metric_value(TIMED_OUT), None);
}

#[tokio::test(start_paused = true)]
async fn many_rejections_raise_retry_after() {
    let fixture = one_level(1, reject());
    let _held = fixture.get_now("a");
    let mut longest = 0;
    for _ in 0..10 {
        let rejected = fixture.admit("b", "GET", POD).await.unwrap_err();
        longest = longest.max(rejected.retry_after);
    }
    assert!(
        (1..=2).contains(&longest),
        "within a second or two it can double once"
    );
}

#[test]
fn a_seat_released_on_one_runtime_wakes_a_request_on_another() {
    let fixture = one_level(1, queue(1, 10));
    let held = fixture.get_now("a");
    let (queued, is_queued) = mpsc::channel();
    std::thread::scope(|scope| {
        let fixture = &fixture;
        let waiting = scope.spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().build().unwrap();
            runtime.block_on(async {
                let admission = fixture.admit("b", "GET", POD);
                let note = async {
                    queued.send(()).unwrap();
                };
                tokio::join!(biased; admission, note).0.is_ok()
            })
        });
        is_queued.recv().unwrap();
        assert_eq!(fixture.load("work").0, 1);
        drop(held);
        assert!(waiting.join().unwrap());
    });
    assert_eq!(fixture.load("work"), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn peaks_are_the_most_waiting_and_executing_requests() {
    let fixture = one_level(1, queue(1, 10));
    let held = fixture.get_now("a");
    let waiting = [
        fixture.get("b").expect_pending(),
        fixture.get("c").expect_pending(),
    ];
    drop(waiting);
    drop(held);
    fixture.publish_peaks();
    let peak = |phase: &str| {
        fixture.metric_value(&format!(
            "apiserver_current_{phase}_requests{{request_kind=\"readOnly\"}}"
        ))
    };
    assert_eq!((peak("inqueue"), peak("inflight")), (Some(2.0), Some(1.0)));
    fixture.publish_peaks();
    assert_eq!((peak("inqueue"), peak("inflight")), (Some(0.0), Some(0.0)));
}

#[tokio::test(start_paused = true)]
async fn ratios_are_weighted_by_their_duration() {
    let fixture = one_level(2, queue(1, 10));
    let held = [fixture.get_now("a"), fixture.get_now("b")];
    let waiting = fixture.get("c").expect_pending();
    advance(4 * MS).await;
    drop(waiting);
    drop(held);
    advance(6 * MS).await;
    let level = |name: &str| {
        let name = format!("apiserver_flowcontrol_{name}priority_level=\"work\"}}");
        fixture.metric_value(&name).unwrap()
    };
    assert_eq!(level("demand_seats_sum{"), 1.5 * 4e6);
    assert_eq!(level("demand_seats_count{"), 10e6);
    let utilization = |phase: &str| {
        level(&format!(
            "priority_level_request_utilization_sum{{phase=\"{phase}\","
        ))
    };
    assert_eq!(utilization("executing"), 4e6);
    assert_eq!(utilization("waiting"), 0.1 * 4e6);
    assert_eq!(
        level("priority_level_seat_utilization_sum{phase=\"executing\","),
        4e6
    );
    let kinds = "apiserver_flowcontrol_read_vs_write_current_requests_sum\
                 {phase=\"executing\",request_kind=\"readOnly\"}";
    assert_eq!(
        fixture.metric_value(kinds),
        Some(2.0 / 3.0 * 4e6),
        "of the seats by shares of all levels"
    );
}
