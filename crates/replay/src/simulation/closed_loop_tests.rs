//! Closed-loop clients: what a request that waits does to the next ones of its client.

use std::time::{Duration, Instant};

use fastrand::Rng;

use super::engine::Simulation;
use super::model::{ClientBehaviour, ReplayModel, ReplayedPolicies};
use super::outcome::SimulationOutcome;
use super::tests::{
    TestLog, arrivals_over_time, assert_all_conserved, assert_conserved, fairness, max_in_flight,
    random_log,
};
use crate::report::model::ClosedLoopReport;

const CLOSED: ReplayModel = ReplayModel {
    clients: ClientBehaviour::ClosedClientGo,
    service_time_scale: 1.0,
    capacity: None,
};

const GET: &str = "/api/v1/namespaces/a/pods/p";

#[test]
fn a_closed_loop_client_sends_its_next_request_after_the_one_before_and_its_think_time() {
    let mut log = TestLog::default();
    log.add(0, "GET", GET, "bob", 1000);
    log.add(1, "GET", GET, "alice", 100);
    // 99 ms after the first one has ended, and after 199 ms more.
    log.add(200, "GET", GET, "alice", 1);
    log.add(400, "GET", GET, "alice", 1);
    let simulate = |clients| {
        let model = ReplayModel { clients, ..CLOSED };
        let policies = ReplayedPolicies {
            rejection_hold: Duration::ZERO,
            ..max_in_flight(1, 1)
        };
        log.simulate(&policies, model).run
    };
    let open = simulate(ClientBehaviour::ClientGo);
    assert_eq!((open.total.rejected, open.closed_loop), (3, None));
    let closed = simulate(ClientBehaviour::ClosedClientGo);
    // Rejected at 1 ms only. Repeated at 1001 ms, so the next ones are sent at 1200 and 1400 ms.
    assert_eq!((closed.total.rejected, closed.total.executed), (1, 4));
    let expected = ClosedLoopReport {
        sent_later: 2,
        mean_s: 1.0,
        longest_s: 1.0,
        log_paused_s: 0.0,
    };
    assert_eq!(closed.closed_loop, Some(expected));
    let impatient = simulate(ClientBehaviour::ClosedImpatient);
    assert_eq!(impatient.total.executed, 4);
    assert_eq!(impatient.closed_loop.unwrap().sent_later, 2);
}

#[test]
fn a_closed_loop_client_has_as_many_requests_at_a_time_as_in_the_record() {
    let mut log = TestLog::default();
    for n in 0..40 {
        // Two at a time, one after the other.
        log.add(n * 10, "GET", GET, "alice", 9);
        log.add(n * 10 + 1, "GET", GET, "alice", 9);
        log.add(n * 10 + 2, "GET", "/api/v1/pods?watch=1", "alice", 9);
    }
    let most = |clients| {
        let model = ReplayModel {
            clients,
            service_time_scale: 3.0,
            capacity: None,
        };
        let run = log.simulate(&max_in_flight(100, 1), model).run;
        assert_eq!(run.total.executed, 120);
        (run.levels[0].most_seats_in_use, run.closed_loop)
    };
    assert_eq!(most(ClientBehaviour::ClientGo).0, 6);
    let (most, delays) = most(ClientBehaviour::ClosedClientGo);
    assert_eq!(most, 2);
    // Each takes 18 ms more: the last ones are later by 39 times of it.
    let delays = delays.unwrap();
    assert_eq!((delays.sent_later, delays.longest_s), (78, 0.702));
}

#[test]
fn a_client_that_is_served_faster_than_in_the_record_is_not_ahead_of_it() {
    let mut log = TestLog::default();
    for n in 0..4 {
        log.add(n * 100, "GET", GET, "alice", 90);
    }
    log.add(350, "GET", GET, "alice", 1);
    let model = ReplayModel {
        service_time_scale: 0.1,
        ..CLOSED
    };
    let run = log.simulate(&max_in_flight(1, 1), model).run;
    assert_eq!((run.total.executed, run.total.rejected), (5, 0));
    assert_eq!(run.closed_loop, Some(ClosedLoopReport::default()));
    assert_eq!(run.series.levels[0].dispatched.iter().sum::<u64>(), 5);
}

#[test]
fn a_log_pauses_while_too_many_requests_wait_for_their_clients() {
    let mut random = Rng::with_seed(7);
    let log = random_log(&mut random, 500);
    let policies = fairness(10);
    let simulate = |most| {
        let model = ReplayModel {
            service_time_scale: 5.0,
            ..CLOSED
        };
        let mut simulation = Simulation::new(&policies, model, &log.table, Instant::now());
        simulation.workers.set_max_pending(most);
        for item in log.items.clone() {
            simulation.offer(item);
            assert!(simulation.workers.pending() <= most);
        }
        simulation.finish()
    };
    let paused = |outcome: &SimulationOutcome| outcome.run.closed_loop.unwrap().log_paused_s;
    let outcome = simulate(3);
    assert_all_conserved(&log, &outcome, "paused");
    assert!(paused(&outcome) > 1.0, "{}", paused(&outcome));
    assert_eq!(paused(&simulate(1000)), 0.0);
}

#[test]
fn what_a_client_has_not_sent_at_the_end_is_unfinished() {
    let mut log = TestLog::default();
    log.add(0, "GET", GET, "alice", 1000);
    log.add(2000, "GET", GET, "alice", 1);
    log.add(2100, "GET", GET, "alice", 1);
    let model = ReplayModel {
        service_time_scale: 1e5,
        ..CLOSED
    };
    let outcome = log.simulate(&max_in_flight(5, 1), model);
    let total = &outcome.run.total;
    assert_eq!((total.executed, total.unfinished), (0, 3));
    assert_conserved(total, "not sent");
    assert_eq!(arrivals_over_time(&outcome.run), 3);
}
