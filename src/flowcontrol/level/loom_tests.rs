//! Models of the lock of a level and its permits.

use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use http::HeaderValue;

use super::*;
use weir_base::metrics::Registry;
use weir_base::sync::atomic::{AtomicU32, Ordering};
use weir_base::sync::{Notify, block_on, model, thread};
use weir_flowcontrol::concurrency::ConcurrencyLimits;
use weir_flowcontrol::concurrency::demand::DemandPeriod;
use weir_flowcontrol::concurrency::level_limits::LevelSpec;
use weir_flowcontrol::fairqueuing::queue_set::Queuing;
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_flowcontrol::fairqueuing::shuffle_sharding::Dealer;
use weir_flowcontrol::matching::FlowDistinguisherMethod;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::in_flight::InFlightMetrics;

/// The route to a level with one seat and one queue.
fn route(now: Instant) -> Arc<SchemaRoute> {
    let spec = LevelSpec {
        name: "work".to_owned(),
        queuing: Queuing::Queue {
            dealer: Dealer::new(1, 1).unwrap(),
            queue_length_limit: 10,
        },
        nominal_concurrency_shares: 1,
        lendable_percent: 0,
        borrowing_limit_percent: None,
    };
    let queuing = spec.queuing;
    let mut limits = ConcurrencyLimits::new(1);
    let no_demand = |_: &str| DemandPeriod {
        seconds: 0.0,
        min: 0.0,
        max: 0.0,
        moments: None,
    };
    limits.configure(vec![spec], no_demand).unwrap();
    let in_flight = InFlightMetrics::new(&Registry::new());
    let drained = Arc::new(Notify::new());
    let level = PriorityLevel::new("work", now, queuing, &in_flight, &drained);
    level.apply_limits(now, &limits.levels()[0], 1);
    let object = |name: &str| ObjectId {
        name: name.to_owned(),
        uid: HeaderValue::from_static("uid"),
    };
    Arc::new(SchemaRoute {
        flow_schema: object("all"),
        distinguisher_method: FlowDistinguisherMethod::Single,
        priority_level: object("work"),
        counters: level.register_schema("all"),
        level,
        is_dry_run: false,
    })
}

fn arrive(route: &Arc<SchemaRoute>, now: Instant) -> ArrivalOutcome {
    let arriving = ArrivingRequest {
        info: &RequestInfo::parse("GET", b"/api/v1/pods").unwrap(),
        user: &UserInfo::default(),
        flow_distinguisher: b"",
        flow_hash: 0,
        work: WorkEstimate {
            initial_seats: 1,
            ..WorkEstimate::default()
        },
        interested_watches: None,
    };
    route.arrive(now, &arriving).unwrap()
}

/// How a request waits in the queue.
#[derive(Clone, Copy)]
enum Patience {
    UntilDispatched,
    UntilItTimesOut,
    /// The client leaves.
    NotAtAll,
}

/// Sends a request. Returns whether it was executed.
fn send(route: &Arc<SchemaRoute>, waits: Patience, now: Instant, done: &AtomicU32) -> bool {
    let permit = match arrive(route, now) {
        ArrivalOutcome::Executing(permit) => permit,
        ArrivalOutcome::Queued(mut permit) => {
            let gives_up = match waits {
                Patience::UntilDispatched => {
                    block_on(permit.wait_for_dispatch());
                    false
                }
                Patience::UntilItTimesOut => {
                    permit.wait_for_dispatch().now_or_never().is_none()
                        && permit.cancel(now).is_some()
                }
                Patience::NotAtAll => permit.wait_for_dispatch().now_or_never().is_none(),
            };
            if gives_up {
                return false;
            }
            permit
        }
    };
    // Two steps: another holder, or one that does not see them, loses one.
    let before = done.load(Ordering::Relaxed);
    done.store(before + 1, Ordering::Relaxed);
    drop(permit);
    true
}

fn run_with_one_that(gives_up: Patience) {
    let now = Instant::now();
    let (route, done) = (route(now), Arc::new(AtomicU32::new(0)));
    let request = |waits| {
        let (route, done) = (Arc::clone(&route), Arc::clone(&done));
        move || u32::from(send(&route, waits, now, &done))
    };
    let others = [Patience::UntilDispatched, gives_up].map(|waits| thread::spawn(request(waits)));
    let mut executed = request(Patience::UntilDispatched)();
    for other in others {
        executed += other.join().unwrap();
    }
    assert!(executed >= 2, "both that wait");
    assert_eq!(done.load(Ordering::Relaxed), executed);
    assert_eq!(route.level.held_seats(), 0);
    assert!(route.level.is_idle());
    assert!(matches!(arrive(&route, now), ArrivalOutcome::Executing(_)));
}

fn assert_no_seat_is_lost_to_one_that(gives_up: Patience) {
    // The stack of a model's first thread is too small for a queue set.
    model(move || {
        thread::spawn(move || run_with_one_that(gives_up))
            .join()
            .unwrap()
    });
}

#[test]
fn a_seat_has_one_holder_at_a_time_and_none_is_lost_to_a_request_that_times_out() {
    assert_no_seat_is_lost_to_one_that(Patience::UntilItTimesOut);
}

#[test]
fn a_seat_has_one_holder_at_a_time_and_none_is_lost_to_a_client_that_leaves() {
    assert_no_seat_is_lost_to_one_that(Patience::NotAtAll);
}
