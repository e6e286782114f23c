//! Small examples with round numbers.

use std::time::Duration;

use super::super::decisions::QueuePosition;
use super::super::{Arrival, Departure, Effects, QueueSet, Queuing, RejectReason, RequestKey};
use super::{MS, origin, queuing, seats};
use crate::fairqueuing::seats::WorkEstimate;

/// With hands of one card, the hash of a flow is the index of its queue.
const A: u64 = 0;
const B: u64 = 1;

fn key_of(arrival: Arrival) -> RequestKey {
    match arrival {
        Arrival::Execute(key) | Arrival::Queued(key) => key,
        Arrival::Reject(reason) => panic!("rejected: {}", reason.label()),
    }
}

/// R, then the virtual start of each queue's next request.
fn times<T>(set: &QueueSet<T>) -> Vec<u64> {
    let starts = set.dump_queues().map(|queue| queue.next_dispatch_r);
    std::iter::once(set.current_r())
        .chain(starts)
        .map(|time| time.units())
        .collect()
}

#[test]
fn two_queues_take_turns_by_least_virtual_finish() {
    let t0 = origin();
    let mut set = QueueSet::new(t0, queuing(2, 1, 10), 1);
    let fx = &mut Effects::default();
    let a1 = key_of(set.arrive(t0, A, seats(1), "A1", fx));
    assert_eq!(
        (fx.started.as_slice(), times(&set)),
        ([a1].as_slice(), vec![0, 300_000, 0])
    );
    let a2 = key_of(set.arrive(t0 + MS, A, seats(1), "A2", fx));
    let b1 = key_of(set.arrive(t0 + 2 * MS, B, seats(1), "B1", fx));
    assert_eq!(times(&set), [200_000, 300_000, 200_000]);
    let a3 = key_of(set.arrive(t0 + 3 * MS, A, seats(1), "A3", fx));
    assert_eq!(
        set.leave(t0 + 10 * MS, a1, fx),
        Some(Departure::Released("A1"))
    );
    assert_eq!(
        (fx.started.as_slice(), times(&set)),
        ([b1].as_slice(), vec![600_000, 1_000_000, 500_000])
    );
    set.leave(t0 + 11 * MS, b1, fx);
    assert_eq!(
        (fx.started.as_slice(), times(&set)),
        ([a2].as_slice(), vec![650_000, 1_300_000, 300_000])
    );
    let b2 = key_of(set.arrive(t0 + 12 * MS, B, seats(1), "B2", fx));
    assert_eq!(times(&set), [750_000, 1_300_000, 750_000]);
    set.leave(t0 + 13 * MS, a2, fx);
    assert_eq!(
        (fx.started.as_slice(), times(&set)),
        ([b2].as_slice(), vec![800_000, 1_200_000, 1_050_000])
    );
    set.leave(t0 + 20 * MS, b2, fx);
    assert_eq!(
        (fx.started.as_slice(), times(&set)),
        ([a3].as_slice(), vec![1_150_000, 1_500_000, 1_450_000])
    );
    set.leave(t0 + 21 * MS, a3, fx);
    assert_eq!(times(&set), [1_250_000, 1_300_000, 1_450_000]);
    assert!(set.is_idle());
}

#[test]
fn no_request_overtakes_a_wide_request_that_is_next() {
    let t0 = origin();
    let mut set = QueueSet::new(t0, queuing(2, 1, 1), 3);
    let fx = &mut Effects::default();
    let lingering = WorkEstimate {
        initial_seats: 1,
        final_seats: 2,
        additional_latency: 5 * MS,
    };
    let a1 = key_of(set.arrive(t0, A, lingering, "A1", fx));
    assert_eq!(set.totals().seats_in_use, 2);
    let b1 = key_of(set.arrive(t0 + MS, B, seats(2), "B1", fx));
    assert_eq!(fx.blocked, Some(b1));
    let b2 = key_of(set.arrive(t0 + MS, B, seats(1), "B2", fx));
    assert_eq!(
        fx.enqueued,
        Some(QueuePosition {
            queue: 1,
            length: 2
        }),
        "past the limit of 1"
    );
    let a2 = key_of(set.arrive(t0 + 2 * MS, A, seats(1), "A2", fx));
    assert_eq!((fx.blocked, fx.started.len()), (Some(b1), 0));
    let b3 = key_of(set.arrive(t0 + 2 * MS, B, seats(1), "B3", fx));
    assert_eq!(
        set.leave(t0 + 3 * MS, a1, fx),
        Some(Departure::Lingers(5 * MS))
    );
    assert_eq!(
        (set.totals().requests_executing, set.totals().seats_in_use),
        (0, 2)
    );
    assert_eq!(
        set.leave(t0 + 8 * MS, a1, fx),
        Some(Departure::Released("A1"))
    );
    assert_eq!(fx.started, [b1, b2]);
    assert_eq!(times(&set), [1_250_000, 1_300_000, 1_100_000]);
    set.leave(t0 + 9 * MS, b1, fx);
    assert_eq!(fx.started, [b3, a2]);
    assert_eq!(times(&set), [1_400_000, 1_600_000, 1_000_000]);
}

#[test]
fn a_full_queue_rejects_only_when_no_seat_is_free() {
    let t0 = origin();
    let mut set = QueueSet::new(t0, queuing(2, 1, 1), 1);
    let fx = &mut Effects::default();
    assert!(matches!(
        set.arrive(t0, A, seats(1), (), fx),
        Arrival::Execute(_)
    ));
    assert!(matches!(
        set.arrive(t0, A, seats(1), (), fx),
        Arrival::Queued(_)
    ));
    assert_eq!(
        set.arrive(t0, A, seats(1), (), fx),
        Arrival::Reject(RejectReason::QueueFull)
    );
    assert!(matches!(
        set.arrive(t0, B, seats(1), (), fx),
        Arrival::Queued(_)
    ));
    assert_eq!((set.totals().rejected, set.enqueues()), (1, 4));
}

#[test]
fn a_level_without_queues_runs_one_request_even_if_it_has_no_seats() {
    let t0 = origin();
    let mut set = QueueSet::new(t0, Queuing::Reject, 0);
    let fx = &mut Effects::default();
    let first = key_of(set.arrive(t0, A, seats(2), (), fx));
    assert_eq!(
        set.arrive(t0, A, seats(1), (), fx),
        Arrival::Reject(RejectReason::ConcurrencyLimit)
    );
    assert_eq!(set.leave(t0 + MS, first, fx), Some(Departure::Released(())));
    assert!(matches!(
        set.arrive(t0 + MS, A, seats(1), (), fx),
        Arrival::Execute(_)
    ));
}

#[test]
fn a_request_wider_than_the_level_runs_alone_and_its_final_phase_is_narrowed() {
    let t0 = origin();
    let mut set = QueueSet::new(t0, queuing(2, 1, 10), 2);
    let fx = &mut Effects::default();
    let wide = WorkEstimate {
        initial_seats: 1,
        final_seats: 8,
        additional_latency: 3 * MS,
    };
    let narrow = key_of(set.arrive(t0, A, seats(1), (), fx));
    let wide = key_of(set.arrive(t0, B, wide, (), fx));
    assert_eq!((fx.blocked, set.totals().seats_waiting), (Some(wide), 8));
    set.leave(t0 + MS, narrow, fx);
    assert_eq!(
        (fx.started.as_slice(), set.totals().seats_in_use),
        ([wide].as_slice(), 2)
    );
    assert_eq!(
        set.totals().seats_waiting,
        0,
        "nothing is left over of the eight"
    );
    assert_eq!(
        set.leave(t0 + 2 * MS, wide, fx),
        Some(Departure::Lingers(12 * MS))
    );
}

#[test]
fn a_request_cancelled_right_after_its_dispatch_keeps_its_seats() {
    let t0 = origin();
    let mut set = QueueSet::new(t0, queuing(2, 1, 10), 1);
    let fx = &mut Effects::default();
    let first = key_of(set.arrive(t0, A, seats(1), 1, fx));
    let second = key_of(set.arrive(t0, A, seats(1), 2, fx));
    let third = key_of(set.arrive(t0, A, seats(1), 3, fx));
    set.leave(t0 + MS, first, fx);
    assert_eq!(fx.started, [second]);
    let before = times(&set);
    assert_eq!(set.cancel(t0 + 2 * MS, second, fx), None);
    assert_eq!(times(&set), before, "virtual time was not touched");
    assert_eq!(set.cancel(t0 + 2 * MS, third, fx), Some(3));
    assert_eq!((set.totals().rejected, set.totals().cancelled), (1, 1));
}

#[test]
fn a_released_key_refers_to_no_request() {
    let t0 = origin();
    let mut set = QueueSet::new(t0, queuing(1, 1, 10), 5);
    let fx = &mut Effects::default();
    let old = key_of(set.arrive(t0, A, seats(1), "old", fx));
    set.leave(t0, old, fx);
    let new = key_of(set.arrive(t0, A, seats(1), "new", fx));
    assert_eq!(set.leave(t0, old, fx), None);
    assert_eq!((set.payload(old), set.payload(new)), (None, Some(&"new")));
}

#[test]
fn queues_of_a_level_that_stops_queuing_drain_in_the_background() {
    let t0 = origin();
    let mut set = QueueSet::new(t0, queuing(4, 1, 10), 1);
    let fx = &mut Effects::default();
    let running = key_of(set.arrive(t0, A, seats(1), (), fx));
    let waiting = key_of(set.arrive(t0, B, seats(1), (), fx));
    set.reconfigure(t0, Queuing::Reject, 1, fx);
    assert_eq!(
        set.arrive(t0, A, seats(1), (), fx),
        Arrival::Reject(RejectReason::ConcurrencyLimit)
    );
    set.leave(t0 + MS, running, fx);
    assert_eq!(
        (fx.started.as_slice(), set.dump_queues().count()),
        ([waiting].as_slice(), 3)
    );
    set.leave(t0 + 2 * MS, waiting, fx);
    assert_eq!(
        set.dump_queues().count(),
        2,
        "those that never drain stay, and cost nothing"
    );
}

#[test]
fn a_higher_limit_starts_waiting_requests() {
    let t0 = origin();
    let mut set = QueueSet::new(t0, queuing(2, 1, 10), 0);
    let fx = &mut Effects::default();
    let waiting: Vec<RequestKey> = (0..3)
        .map(|flow| key_of(set.arrive(t0, flow, seats(1), (), fx)))
        .collect();
    set.set_concurrency_limit(t0 + MS, 2, fx);
    assert_eq!(
        fx.started,
        [waiting[1], waiting[0]],
        "turns begin at the second queue"
    );
    set.set_concurrency_limit(t0 + MS, 1, fx);
    assert_eq!(
        set.totals().seats_in_use,
        2,
        "no running request is stopped"
    );
}

#[test]
fn a_clock_that_steps_back_stands_still() {
    let t0 = origin();
    let mut set = QueueSet::new(t0 + 10 * MS, queuing(2, 1, 10), 1);
    let fx = &mut Effects::default();
    let early = key_of(set.arrive(t0, A, seats(1), (), fx));
    set.leave(t0 + 5 * MS, early, fx);
    assert_eq!(times(&set), [0, 0, 0]);
}

#[test]
fn the_gauges_show_the_times_before_the_dispatch() {
    let t0 = origin();
    let mut set = QueueSet::new(t0, queuing(2, 1, 10), 1);
    let fx = &mut Effects::default();
    assert_eq!(set.last_dispatch(), None);
    let first = key_of(set.arrive(t0, A, seats(1), (), fx));
    set.arrive(t0, A, seats(1), (), fx);
    set.arrive(t0 + 2 * MS, B, seats(1), (), fx);
    set.leave(t0 + 3 * MS, first, fx);
    let last_dispatch = set.last_dispatch().unwrap();
    assert_eq!(
        (last_dispatch.r.units(), last_dispatch.s.units()),
        (250_000, 200_000)
    );
    assert_eq!(
        (
            last_dispatch.s_bounds.0.units(),
            last_dispatch.s_bounds.1.units()
        ),
        (200_000, 300_000)
    );
    assert_eq!(last_dispatch.discounted_s_bounds, last_dispatch.s_bounds);
}

#[test]
fn idle_levels_and_waiting_requests_take_little_memory() {
    let per_request =
        size_of::<Option<crate::fairqueuing::queue_set::request_slab::QueueSetRequest<()>>>();
    assert!(per_request <= 192, "{per_request} bytes");
    let per_queue = size_of::<super::super::set::Queue>();
    assert!(
        128 * (per_queue + per_request) <= 40 << 10,
        "{per_queue} bytes a queue"
    );
}

#[test]
fn a_level_allocates_nothing_for_a_load_it_has_had_before() {
    let t0 = origin();
    let mut set = QueueSet::new(t0, queuing(128, 6, 50), 10);
    let fx = &mut Effects::default();
    let mut memory = None;
    for round in 0..100_u64 {
        let keys: Vec<RequestKey> = (0..60)
            .map(|flow| key_of(set.arrive(t0, flow * 7919 * (1 + round), seats(1), (), fx)))
            .collect();
        for key in keys {
            set.leave(t0 + Duration::from_millis(round), key, fx);
        }
        if round >= 50 {
            let now = (
                set.requests.capacity(),
                set.backlogged.capacity(),
                fx.started.capacity(),
            );
            assert_eq!(*memory.get_or_insert(now), now);
        }
    }
}

#[test]
fn the_memory_of_a_flood_is_released() {
    let t0 = origin();
    let mut set = QueueSet::new(t0, queuing(128, 6, 50_000), 1);
    let fx = &mut Effects::default();
    let keys: Vec<RequestKey> = (0..10_000)
        .map(|flow| key_of(set.arrive(t0, flow * 7919, seats(1), (), fx)))
        .collect();
    for key in keys {
        set.leave(t0, key, fx);
    }
    assert_eq!(set.requests.capacity(), 0);
}
