//! Changes of the configuration while requests wait and execute.

use super::*;

fn objects(levels: &[Object]) -> Vec<Object> {
    let mut objects = levels.to_vec();
    objects.push(schema("all", "work", "*"));
    objects
}

/// Whether the level `work` is quiescing, if it is still in `dump_priority_levels`.
fn is_quiescing(fixture: &ControllerFixture) -> Option<bool> {
    fixture.level_dump("work").map(|dump| dump.is_quiescing)
}

#[tokio::test(start_paused = true)]
async fn more_seats_start_waiting_requests() {
    let fixture = one_level(1, queue(1, 10));
    let _held = fixture.get_now("a");
    let mut waiting = fixture.get("b").expect_pending();
    fixture
        .controller
        .set_server_concurrency_limit(Clock.now(), 5);
    assert!(matches!(waiting.poll_once(), Poll::Ready(Ok(_))));
    let limit = "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"work\"}";
    assert_eq!(fixture.metric_value(limit), Some(5.0));
}

#[tokio::test(start_paused = true)]
async fn fewer_seats_stop_no_executing_request() {
    let fixture = one_level(3, queue(1, 10));
    let held = [
        fixture.get_now("a"),
        fixture.get_now("b"),
        fixture.get_now("c"),
    ];
    fixture
        .controller
        .set_server_concurrency_limit(Clock.now(), 1);
    assert_eq!(fixture.load("work"), (0, 3, 3));
    let mut waiting = fixture.get("d").expect_pending();
    let [first, second, third] = held;
    drop(first);
    drop(second);
    assert!(waiting.poll_once().is_pending());
    drop(third);
    assert!(matches!(waiting.poll_once(), Poll::Ready(Ok(_))));
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_keep_waiting_when_the_level_stops_queuing() {
    let fixture = one_level(1, queue(4, 10));
    let held = fixture.get_now("a");
    let mut waiting = fixture.get("b").expect_pending();
    let rejecting = objects(&[level("work", 100, reject())]);
    fixture.controller.configure(Clock.now(), &rejecting);
    assert!(waiting.poll_once().is_pending());
    let rejected = fixture.admit("c", "GET", POD).await.unwrap_err();
    assert_eq!(rejected.reason, RejectReason::ConcurrencyLimit);
    drop(held);
    assert!(matches!(waiting.poll_once(), Poll::Ready(Ok(_))));
}

#[tokio::test(start_paused = true)]
async fn a_level_removed_while_requests_wait_drains_and_is_then_closed() {
    let fixture = one_level(1, queue(1, 10));
    let running = {
        let controller = Arc::clone(&fixture.controller);
        tokio::spawn(async move { controller.run().await })
    };
    run_ready_tasks().await;
    let held = fixture.get_now("a");
    let mut waiting = fixture.get("b").expect_pending();
    fixture.controller.configure(Clock.now(), &[]);
    assert_eq!(is_quiescing(&fixture), Some(true));
    let dump = fixture.controller.dump_priority_levels();
    assert!(
        dump.contains("work,              1,            false,  true,        1,"),
        "{dump}"
    );
    let elsewhere = fixture.get_now("c");
    assert_eq!(elsewhere.decision().priority_level().name, "catch-all");
    drop(held);
    run_ready_tasks().await;
    assert_eq!(is_quiescing(&fixture), Some(true), "one still runs");
    let Poll::Ready(Ok(last)) = waiting.poll_once() else {
        panic!("its turn has come");
    };
    assert_eq!(last.decision().priority_level().name, "work");
    drop(last);
    run_ready_tasks().await;
    assert_eq!(is_quiescing(&fixture), None);
    assert!(!fixture.controller.dump_priority_levels().contains("work"));
    let dispatched = "apiserver_flowcontrol_dispatched_requests_total\
                      {flow_schema=\"all\",priority_level=\"work\"}";
    assert_eq!(
        fixture.metric_value(dispatched),
        Some(2.0),
        "what was counted remains"
    );
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_level_restored_while_it_drains_keeps_its_requests() {
    let fixture = one_level(1, queue(1, 10));
    let held = fixture.get_now("a");
    let mut waiting = fixture.get("b").expect_pending();
    fixture.controller.configure(Clock.now(), &[]);
    fixture
        .controller
        .configure(Clock.now(), &objects(&[level("work", 100, queue(1, 10))]));
    assert_eq!(is_quiescing(&fixture), Some(false));
    assert_eq!(fixture.load("work"), (1, 1, 1));
    drop(held);
    assert!(matches!(waiting.poll_once(), Poll::Ready(Ok(_))));
}

#[tokio::test(start_paused = true)]
async fn a_level_restored_after_it_was_closed_starts_empty() {
    let fixture = one_level(2, queue(1, 10));
    drop(fixture.get_now("a"));
    fixture.controller.configure(Clock.now(), &[]);
    assert_eq!(is_quiescing(&fixture), None);
    fixture
        .controller
        .configure(Clock.now(), &objects(&[level("work", 100, queue(1, 10))]));
    assert_eq!(fixture.totals("work"), QueueSetTotals::default());
    let _held = [fixture.get_now("a"), fixture.get_now("b")];
    let _waiting = fixture.get("c").expect_pending();
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_closed_level_is_classified_again() {
    let fixture = one_level(1, queue(1, 10));
    let before = fixture.controller.snapshot.load_full();
    fixture.controller.configure(Clock.now(), &[]);
    let route = before
        .routes
        .iter()
        .find(|route| route.flow_schema.name == "all");
    let info = RequestInfo::parse("GET", POD.as_bytes()).unwrap();
    let arriving = ArrivingRequest {
        info: &info,
        user: &UserInfo::default(),
        flow_distinguisher: b"",
        flow_hash: 0,
        work: WorkEstimate::default(),
        interested_watches: None,
    };
    let refused = route.unwrap().arrive(Clock.now(), &arriving).unwrap_err();
    assert_eq!(refused, ArrivalError::Closed);
    assert_eq!(
        fixture.get_now("a").decision().priority_level().name,
        "catch-all"
    );
}

#[tokio::test(start_paused = true)]
async fn a_draining_level_keeps_its_seats_until_it_is_closed() {
    let levels = [
        level("work", 50, queue(1, 10)),
        level("other", 45, queue(1, 10)),
    ];
    let fixture = controller_fixture(20, Enforcement::Enforce, &objects(&levels));
    let nominal = |name: &str| {
        let series =
            format!("apiserver_flowcontrol_nominal_limit_seats{{priority_level=\"{name}\"}}");
        fixture.metric_value(&series).unwrap()
    };
    assert_eq!((nominal("work"), nominal("other")), (10.0, 9.0));
    let held = fixture.get_now("a");
    fixture.controller.configure(Clock.now(), &levels[1..]);
    assert_eq!(nominal("other"), 9.0);
    drop(held);
    fixture.controller.configure(Clock.now(), &levels[1..]);
    assert_eq!(nominal("other"), 18.0);
}

#[tokio::test(start_paused = true)]
async fn seats_follow_the_demand() {
    let mut idle = level("idle", 50, queue(1, 10));
    if let Object::PriorityLevelConfiguration(level) = &mut idle {
        level.spec.limited.as_mut().unwrap().lendable_percent = 80;
    }
    let levels = [level("work", 45, queue(1, 50)), idle];
    let fixture = controller_fixture(20, Enforcement::Enforce, &objects(&levels));
    let limit = |name: &str| {
        let series =
            format!("apiserver_flowcontrol_current_limit_seats{{priority_level=\"{name}\"}}");
        fixture.metric_value(&series).unwrap()
    };
    let users: Vec<_> = (0..40).map(|n| format!("u{n}")).collect();
    let mut requests: Vec<_> = users.iter().map(|user| fixture.get(user)).collect();
    let mut held = Vec::new();
    for request in &mut requests {
        if let Poll::Ready(admitted) = request.poll_once() {
            held.push(admitted.unwrap());
        }
    }
    let before = held.len();
    advance(10_000 * MS).await;
    fixture.controller.adjust(Clock.now());
    assert_eq!((limit("work"), limit("idle")), (17.0, 2.0));
    for request in requests.iter_mut().skip(before) {
        if let Poll::Ready(admitted) = request.poll_once() {
            held.push(admitted.unwrap());
        }
    }
    assert_eq!(held.len(), 17, "after {before} at first");
}

#[tokio::test(start_paused = true)]
async fn a_mandatory_level_whose_object_is_deleted_keeps_its_spec() {
    let exempt = |nominal| {
        Object::PriorityLevelConfiguration(PriorityLevelConfiguration {
            metadata: ObjectMeta {
                name: "exempt".to_owned(),
                uid: "u-1".to_owned(),
                ..ObjectMeta::default()
            },
            spec: PriorityLevelConfigurationSpec {
                enablement: PriorityLevelEnablement::Exempt,
                limited: None,
                exempt: Some(
                    weir_kubernetes::api::flowcontrol::ExemptPriorityLevelConfiguration {
                        nominal_concurrency_shares: nominal,
                        lendable_percent: 0,
                    },
                ),
            },
            ..PriorityLevelConfiguration::default()
        })
    };
    let fixture = controller_fixture(20, Enforcement::Enforce, &[exempt(5)]);
    fixture.controller.configure(Clock.now(), &[]);
    let limit = "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"exempt\"}";
    assert_eq!(fixture.metric_value(limit), Some(10.0));
}

#[tokio::test(start_paused = true)]
async fn enforcement_and_the_longest_wait_change_with_the_settings() {
    let fixture = one_level(1, queue(1, 10));
    let enforced = **fixture.controller.config.load();
    let set = |config| fixture.controller.set_config(Clock.now(), config);
    let first = fixture.get_now("a");
    let waiting = tokio::spawn({
        let controller = Arc::clone(&fixture.controller);
        async move {
            let info = RequestInfo::parse("GET", POD.as_bytes()).unwrap();
            let user = UserInfo::default();
            let times = RequestTimes::at(Clock.now());
            controller.admit(&info, &user, times).await.is_ok()
        }
    });
    run_ready_tasks().await;
    assert_eq!(fixture.load("work"), (1, 1, 1));
    set(ControllerConfig {
        enforcement: Enforcement::DryRun,
        ..enforced
    });
    assert!(fixture.controller.is_dry_run());
    let free = fixture.get_now("c"); // executes at once
    drop(free);
    run_ready_tasks().await;
    assert!(
        !waiting.is_finished(),
        "it arrived while limits were enforced"
    );
    set(ControllerConfig {
        request_timeout: 400 * MS,
        ..enforced
    });
    let before = Clock.now();
    let rejected = fixture.admit("d", "GET", POD).await;
    assert!(rejected.is_err());
    assert_eq!(Clock.now() - before, 100 * MS, "a quarter of the time");
    drop(first);
    assert!(waiting.await.unwrap());
}

fn named_objects(n: usize) -> Vec<Object> {
    let mut objects = vec![
        level("work", 100, queue(1, 10)),
        level(&format!("level-{n}"), 10, queue(1, 10)),
        schema(&format!("schema-{n}"), "work", "a"),
        schema(&format!("other-{n}"), &format!("level-{n}"), "b"),
    ];
    objects.push(schema("all", "work", "*"));
    objects
}

#[tokio::test(start_paused = true)]
async fn a_thousand_changes_keep_the_counters_of_the_last_removed_objects_only() {
    let fixture = controller_fixture(600, Enforcement::Enforce, &named_objects(0));
    let mut most = 0;
    for n in 0..1000 {
        fixture.controller.configure(Clock.now(), &named_objects(n));
        let schema = |user| fixture.get_now(user).decision().flow_schema().name.clone();
        assert_eq!(schema("a"), format!("schema-{n}"));
        assert_eq!(schema("b"), format!("other-{n}"));
        advance(MS).await;
        if n % 50 == 0 {
            most = most.max(fixture.registry.render().lines().count());
        }
        if n == 100 {
            let rows = fixture.registry.render();
            assert!(
                rows.contains("flow_schema=\"schema-99\""),
                "the last counts"
            );
            assert!(!rows.contains("schema-10\""), "those of long ago");
        }
        if n == 200 {
            most = 0;
        }
    }
    let bounded = fixture.registry.render().lines().count();
    assert!(most <= bounded + 100, "{most} and then {bounded}");
    let closed = fixture.controller.configuration.lock().all_levels().len();
    assert!(
        closed <= 4 + crate::flowcontrol::level::MAX_RETAINED,
        "{closed}"
    );

    advance(crate::flowcontrol::level::RETENTION).await;
    fixture.controller.adjust(Clock.now());
    let rows = fixture.registry.render();
    assert!(!rows.contains("998"), "{rows}");
    assert!(rows.contains("flow_schema=\"schema-999\""), "still there");
}

#[tokio::test(start_paused = true)]
async fn the_counters_of_a_removed_schema_stay_while_a_request_is_counted_there() {
    let fixture = controller_fixture(600, Enforcement::Enforce, &named_objects(0));
    let held = fixture.get_now("a");
    let before = fixture.controller.snapshot.load_full();
    for n in 1..=200 {
        fixture.controller.configure(Clock.now(), &named_objects(n));
        drop(fixture.get_now("a"));
        advance(MS).await;
    }
    let executing = "apiserver_flowcontrol_current_executing_requests\
                     {flow_schema=\"schema-0\",priority_level=\"work\"}";
    assert_eq!(fixture.metric_value(executing), Some(1.0));
    drop(held);
    fixture
        .controller
        .configure(Clock.now(), &named_objects(201));
    assert_eq!(fixture.metric_value(executing), None);
    drop(fixture.get_now("a")); // another schema may have the row now

    let mut routes = before.routes.iter();
    let route = routes.find(|route| route.flow_schema.name == "schema-0");
    let info = RequestInfo::parse("GET", POD.as_bytes()).unwrap();
    let arriving = ArrivingRequest {
        info: &info,
        user: &UserInfo::default(),
        flow_distinguisher: b"",
        flow_hash: 0,
        work: WorkEstimate::default(),
        interested_watches: None,
    };
    let late = route.unwrap().arrive(Clock.now(), &arriving).unwrap_err();
    assert_eq!(late, ArrivalError::Closed, "it is classified again");
}
