//! Requests that run at once, and what becomes of them on paper.

use super::*;

/// For how many milliseconds requests ran on paper.
fn ran(world: &World) -> f64 {
    let sum = "apiserver_flowcontrol_request_execution_seconds_sum\
               {flow_schema=\"all\",priority_level=\"work\",type=\"regular\"}";
    (world.value(sum).unwrap() * 1e3).round()
}

fn on_paper(seats: u32, limit_response: LimitResponse) -> World {
    let objects = [
        level("work", 100, limit_response),
        schema("all", "work", "*"),
    ];
    world(seats, Enforcement::DryRun, &objects)
}

#[tokio::test(start_paused = true)]
async fn who_has_ended_before_the_paper_turn_is_served_on_paper_for_as_long_as_it_ran() {
    let world = on_paper(1, queue(1, 10));
    let (first, second) = (world.get_now("a"), world.get_now("b"));
    settle().await;
    assert_eq!(world.now("work"), (1, 1, 1));
    pass(10 * MS).await;
    drop(second);
    pass(20 * MS).await;
    assert_eq!(world.now("work"), (1, 1, 1), "the turn has not come");
    drop(first);
    settle().await;
    assert_eq!(world.now("work"), (0, 1, 1));
    pass(9 * MS).await;
    assert_eq!(world.now("work"), (0, 1, 1));
    pass(MS).await;
    assert_eq!(world.now("work"), (0, 0, 0));
    assert_eq!(ran(&world), 40.0);
}

#[tokio::test(start_paused = true)]
async fn who_still_runs_at_the_paper_turn_is_served_on_paper_from_then_on_for_as_long_as_it_runs() {
    let world = on_paper(1, queue(1, 10));
    let (first, second) = (world.get_now("a"), world.get_now("b"));
    pass(10 * MS).await;
    drop(first);
    settle().await;
    assert_eq!(world.now("work"), (0, 1, 1));
    pass(40 * MS).await;
    drop(second);
    pass(9 * MS).await;
    assert_eq!(world.now("work"), (0, 1, 1));
    pass(MS).await;
    assert_eq!(world.now("work"), (0, 0, 0));
    assert_eq!(ran(&world), 60.0);
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_on_paper_is_refused_there_and_runs_on() {
    let world = on_paper(1, queue(1, 10));
    let _first = world.get_now("a");
    let second = world.get_now("b");
    pass(14_999 * MS).await;
    assert_eq!(second.refused_on_paper(), None);
    pass(MS).await;
    assert_eq!(second.refused_on_paper(), Some(Reason::TimeOut));
    assert_eq!(world.now("work"), (0, 1, 1));
    drop(second);
    settle().await;
    assert_eq!(world.now("work"), (0, 1, 1));
    assert_eq!(world.totals("work").cancelled, 1);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_on_paper_takes_no_seat() {
    let world = on_paper(1, reject());
    let (first, second) = (world.get_now("a"), world.get_now("b"));
    assert_eq!(first.refused_on_paper(), None);
    assert_eq!(second.refused_on_paper(), Some(Reason::ConcurrencyLimit));
    assert_eq!(second.flow_schema().name, "all");
    assert_eq!(world.now("work"), (0, 1, 1));
    drop(first);
    drop(second);
    assert_eq!(world.now("work"), (0, 0, 0));
    let totals = world.totals("work");
    assert_eq!((totals.dispatched, totals.rejected), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_queues_on_paper_is_charged_for_its_initialization() {
    let world = on_paper(1, queue(1, 10));
    let first = world.get_now("a");
    let mut watch = world.admit("b", "GET", WATCH).await.unwrap();
    pass(4 * MS).await;
    watch.initialized();
    pass(4 * MS).await;
    drop(first);
    settle().await;
    assert_eq!(world.now("work"), (0, 1, 1));
    pass(4 * MS).await;
    assert_eq!(world.now("work"), (0, 0, 0));
    assert_eq!(world.watchers("POST", PODS), 1);
}

#[test]
fn places_on_paper_go_with_the_runtime() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    let world = runtime.block_on(async { on_paper(1, queue(1, 10)) });
    let held = runtime.block_on(async {
        let held = [world.get_now("a"), world.get_now("b")];
        settle().await;
        held
    });
    assert_eq!(world.now("work"), (1, 1, 1));
    drop(runtime);
    assert_eq!(world.now("work"), (0, 1, 1));
    drop(held);
    assert_eq!(world.now("work"), (0, 0, 0));
}
