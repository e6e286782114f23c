//! Dry run: requests that execute at once, and their simulation.

use parking_lot::Mutex;

use super::*;
use weir_kubernetes::api::flowcontrol::ENFORCEMENT_ANNOTATION;

/// The simulated execution time of all requests, in milliseconds.
fn executed_milliseconds(fixture: &ControllerFixture) -> f64 {
    let sum = "apiserver_flowcontrol_request_execution_seconds_sum\
               {flow_schema=\"all\",priority_level=\"work\",type=\"regular\"}";
    (fixture.metric_value(sum).unwrap() * 1e3).round()
}

fn dry_run_fixture(seats: u32, limit_response: LimitResponse) -> ControllerFixture {
    let objects = [
        level("work", 100, limit_response),
        schema("all", "work", "*"),
    ];
    controller_fixture(seats, Enforcement::DryRun, &objects)
}

#[tokio::test(start_paused = true)]
async fn a_request_that_ended_before_its_simulated_dispatch_is_charged_its_run_time() {
    let fixture = dry_run_fixture(1, queue(1, 10));
    let (first, second) = (fixture.get_now("a"), fixture.get_now("b"));
    run_ready_tasks().await;
    assert_eq!(fixture.load("work"), (1, 1, 1));
    advance(10 * MS).await;
    drop(second);
    advance(20 * MS).await;
    assert_eq!(fixture.load("work"), (1, 1, 1), "the turn has not come");
    drop(first);
    run_ready_tasks().await;
    assert_eq!(fixture.load("work"), (0, 1, 1));
    advance(9 * MS).await;
    assert_eq!(fixture.load("work"), (0, 1, 1));
    advance(MS).await;
    assert_eq!(fixture.load("work"), (0, 0, 0));
    assert_eq!(executed_milliseconds(&fixture), 40.0);
}

#[tokio::test(start_paused = true)]
async fn a_request_still_running_at_its_simulated_dispatch_is_charged_its_whole_run_time_from_then_on()
 {
    let fixture = dry_run_fixture(1, queue(1, 10));
    let (first, second) = (fixture.get_now("a"), fixture.get_now("b"));
    advance(10 * MS).await;
    drop(first);
    run_ready_tasks().await;
    assert_eq!(fixture.load("work"), (0, 1, 1));
    advance(40 * MS).await;
    drop(second);
    advance(9 * MS).await;
    assert_eq!(fixture.load("work"), (0, 1, 1));
    advance(MS).await;
    assert_eq!(fixture.load("work"), (0, 0, 0));
    assert_eq!(executed_milliseconds(&fixture), 60.0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_times_out_in_the_simulated_queue_is_counted_as_rejected_and_keeps_running()
{
    let fixture = dry_run_fixture(1, queue(1, 10));
    let _first = fixture.get_now("a");
    let mut second = fixture.get_now("b");
    assert!(second.simulated_mut().is_some() && second.dry_run_rejection().is_none());
    let reported = reports_of(&mut second);
    advance(14_999 * MS).await;
    assert_eq!(*reported.lock(), []);
    advance(MS).await;
    assert_eq!(*reported.lock(), [RejectReason::TimeOut]);
    assert_eq!(fixture.load("work"), (0, 1, 1));
    drop(second);
    run_ready_tasks().await;
    assert_eq!(fixture.load("work"), (0, 1, 1));
    assert_eq!(fixture.totals("work").cancelled, 1);
}

/// What the simulation reports of a request.
fn reports_of(permit: &mut SeatPermit) -> Arc<Mutex<Vec<RejectReason>>> {
    let reported = Arc::<Mutex<Vec<_>>>::default();
    let reports = Arc::clone(&reported);
    let simulated = permit.simulated_mut().expect("a simulation");
    simulated.report_rejection_to(move |rejection| reports.lock().push(rejection.reason));
    reported
}

#[tokio::test(start_paused = true)]
async fn a_rejection_is_reported_when_the_request_has_ended_and_when_the_report_is_late() {
    let fixture = dry_run_fixture(1, queue(1, 10));
    let _first = fixture.get_now("a");
    let (mut ended, mut late) = (fixture.get_now("b"), fixture.get_now("b"));
    let of_ended = reports_of(&mut ended);
    drop(ended);
    advance(15_000 * MS).await;
    assert_eq!(*of_ended.lock(), [RejectReason::TimeOut]);
    let of_late = reports_of(&mut late);
    run_ready_tasks().await;
    assert_eq!(*of_late.lock(), [RejectReason::TimeOut]);
}

#[tokio::test(start_paused = true)]
async fn a_dispatched_request_reports_nothing() {
    let fixture = dry_run_fixture(1, queue(1, 10));
    let first = fixture.get_now("a");
    let mut second = fixture.get_now("b");
    let reported = reports_of(&mut second);
    drop(first);
    advance(20_000 * MS).await;
    drop(second);
    advance(20_000 * MS).await;
    assert_eq!(*reported.lock(), []);
    assert_eq!(Arc::strong_count(&reported), 1, "the report is dropped");
}

/// With this annotation by weir.
fn annotated(mut object: Object, enforcement: &str) -> Object {
    let annotation = (ENFORCEMENT_ANNOTATION.to_owned(), enforcement.to_owned());
    object.metadata_mut().annotations.push(annotation);
    object
}

#[tokio::test(start_paused = true)]
async fn a_schema_or_a_level_is_a_dry_run_by_itself() {
    let objects = |of_level: &str, of_schema: &str| {
        [
            annotated(level("work", 100, reject()), of_level),
            annotated(schema("all", "work", "*"), of_schema),
            level("other", 100, reject()),
        ]
    };
    for (of_level, of_schema, passes) in [
        ("Enforce", "Enforce", false),
        ("DryRun", "Enforce", true),
        ("Enforce", "DryRun", true),
        ("dryrun", "", false),
    ] {
        let objects = objects(of_level, of_schema);
        let fixture = controller_fixture(2, Enforcement::Enforce, &objects);
        let _held = fixture.get_now("a");
        let second = fixture.admit("b", "GET", POD).await;
        assert_eq!(second.is_ok(), passes, "{of_level} {of_schema}");
        let spared = second.ok();
        let spared = spared.as_ref().and_then(SeatPermit::dry_run_rejection);
        assert_eq!(spared.is_some(), passes, "{of_level} {of_schema}");
        let levels = fixture.controller.dry_run_levels();
        assert_eq!(levels.contains("work"), of_level == "DryRun");
        assert!(!fixture.controller.is_dry_run() && !levels.contains("other"));
        fixture.controller.set_enforcement(Enforcement::EnforceAll);
        assert!(fixture.admit("b", "GET", POD).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_simulated_rejection_occupies_no_seat() {
    let fixture = dry_run_fixture(1, reject());
    let (first, second) = (fixture.get_now("a"), fixture.get_now("b"));
    assert!(first.dry_run_rejection().is_none());
    let rejection = second.dry_run_rejection().unwrap();
    assert_eq!(rejection.reason, RejectReason::ConcurrencyLimit);
    assert_eq!(second.decision().flow_schema().name, "all");
    assert_eq!(fixture.load("work"), (0, 1, 1));
    drop(first);
    drop(second);
    assert_eq!(fixture.load("work"), (0, 0, 0));
    let totals = fixture.totals("work");
    assert_eq!((totals.dispatched, totals.rejected), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_watch_in_the_simulated_queue_is_charged_for_its_initialization() {
    let fixture = dry_run_fixture(1, queue(1, 10));
    let first = fixture.get_now("a");
    let mut watch = fixture.admit("b", "GET", WATCH).await.unwrap();
    advance(4 * MS).await;
    watch.release();
    advance(4 * MS).await;
    drop(first);
    run_ready_tasks().await;
    assert_eq!(fixture.load("work"), (0, 1, 1));
    advance(4 * MS).await;
    assert_eq!(fixture.load("work"), (0, 0, 0));
    assert_eq!(fixture.interested_watches("POST", PODS), 1);
}

#[test]
fn simulated_requests_end_with_their_runtime() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    let fixture = runtime.block_on(async { dry_run_fixture(1, queue(1, 10)) });
    let held = runtime.block_on(async {
        let held = [fixture.get_now("a"), fixture.get_now("b")];
        run_ready_tasks().await;
        held
    });
    assert_eq!(fixture.load("work"), (1, 1, 1));
    drop(runtime);
    assert_eq!(fixture.load("work"), (0, 1, 1));
    drop(held);
    assert_eq!(fixture.load("work"), (0, 0, 0));
}
