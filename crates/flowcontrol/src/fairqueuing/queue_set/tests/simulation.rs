//! Flows of clients in virtual time: the service that each flow gets, and the waits of its
//! requests.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use super::super::{Arrival, Departure, Effects, QueueSet, RequestKey};
use super::{MS, SplitMix64, origin, queuing, seats};
use crate::fairqueuing::seats::WorkEstimate;

/// The clients of one flow. Each sends a request, waits for its end, pauses, and sends the next.
#[derive(Clone, Copy)]
struct SimFlow {
    clients: u32,
    work: WorkEstimate,
    /// A request executes for half of this time up to all of it.
    service_time: Duration,
    think_time: Duration,
}

/// The result of a flow.
#[derive(Clone, Copy, Default)]
struct SimOutcome {
    /// In seat-seconds.
    served: f64,
    longest_wait: Duration,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum SimEvent {
    Arrive(usize),
    /// The request with this index ends its current phase.
    Leave(usize),
}

#[derive(Clone, Copy)]
struct QueuedRequest {
    flow: usize,
    key: RequestKey,
    arrived: Duration,
}

/// Flows on a level, each in a queue of its own.
struct QueueSetSimulation<'a> {
    flows: &'a [SimFlow],
    set: QueueSet<usize>,
    effects: Effects,
    requests: Vec<QueuedRequest>,
    events: BinaryHeap<Reverse<(Duration, SimEvent)>>,
    rng: SplitMix64,
}

/// The results of each flow on a level with `limit` seats, measured from the first quarter of the
/// time on.
fn simulate(flows: &[SimFlow], limit: u32, span: Duration, mut rng: SplitMix64) -> Vec<SimOutcome> {
    let t0 = origin();
    let mut events = BinaryHeap::new();
    for (index, flow) in flows.iter().enumerate() {
        for _ in 0..flow.clients {
            let first = Duration::from_nanos(rng.below(1_000_000));
            events.push(Reverse((first, SimEvent::Arrive(index))));
        }
    }
    let set = QueueSet::new(t0, queuing(64, 1, 10_000), limit);
    let (effects, requests) = (Effects::default(), Vec::new());
    let mut simulation = QueueSetSimulation {
        flows,
        set,
        effects,
        requests,
        events,
        rng,
    };
    let mut outcomes = vec![SimOutcome::default(); flows.len()];
    while let Some(Reverse((now, event))) = simulation.events.pop()
        && now <= span
    {
        match event {
            SimEvent::Arrive(flow) => simulation.arrive(t0 + now, now, flow),
            SimEvent::Leave(number) => simulation.leave(t0 + now, now, number),
        }
        for (flow, served, waited) in simulation.start(now) {
            if now > span / 4 {
                let outcome = &mut outcomes[flow];
                outcome.served += served;
                outcome.longest_wait = outcome.longest_wait.max(waited);
            }
        }
    }
    outcomes
}

impl QueueSetSimulation<'_> {
    fn arrive(&mut self, at: Instant, now: Duration, flow: usize) {
        let hash = u64::try_from(flow).unwrap();
        let number = self.requests.len();
        match self
            .set
            .arrive(at, hash, self.flows[flow].work, number, &mut self.effects)
        {
            Arrival::Execute(key) | Arrival::Queued(key) => {
                self.requests.push(QueuedRequest {
                    flow,
                    key,
                    arrived: now,
                });
            }
            Arrival::Reject(reason) => panic!("{reason:?}"),
        }
    }

    fn leave(&mut self, at: Instant, now: Duration, number: usize) {
        let QueuedRequest { flow, key, .. } = self.requests[number];
        match self.set.leave(at, key, &mut self.effects) {
            Some(Departure::Lingers(time)) => {
                self.events
                    .push(Reverse((now + time, SimEvent::Leave(number))));
            }
            Some(Departure::Released(_)) => {
                self.events.push(Reverse((
                    now + self.flows[flow].think_time,
                    SimEvent::Arrive(flow),
                )));
            }
            departure => panic!("{departure:?}"),
        }
    }

    /// Starts the dispatched requests. Returns the flow, the service and the wait of each.
    fn start(&mut self, now: Duration) -> Vec<(usize, f64, Duration)> {
        let mut started = Vec::new();
        for &key in &self.effects.started {
            let number = *self.set.payload(key).unwrap();
            let QueuedRequest { flow, arrived, .. } = self.requests[number];
            let SimFlow {
                work,
                service_time: service,
                ..
            } = self.flows[flow];
            let half = u64::try_from((service / 2).as_nanos()).unwrap();
            let runs = Duration::from_nanos(half + self.rng.below(half + 1));
            self.events
                .push(Reverse((now + runs, SimEvent::Leave(number))));
            let held = (runs + work.additional_latency).as_secs_f64();
            started.push((flow, f64::from(work.max_seats()) * held, now - arrived));
        }
        started
    }
}

/// Max-min fairness: each flow gets its demand up to a bound, the same for all, at which the sum is
/// `capacity` (or all demands are met). Found by bisection.
fn max_min(demands: &[f64], capacity: f64) -> Vec<f64> {
    let allocations = |level: f64| demands.iter().map(move |demand| demand.min(level));
    let (mut low, mut high) = (0.0, capacity);
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if allocations(middle).sum::<f64>() < capacity {
            low = middle
        } else {
            high = middle
        }
    }
    allocations(high).collect()
}

/// The seats that a flow would occupy if it never waited.
fn demand(flow: &SimFlow) -> f64 {
    let held = flow.service_time.as_secs_f64() * 0.75 + flow.work.additional_latency.as_secs_f64();
    let busy = held / (held + flow.think_time.as_secs_f64());
    f64::from(flow.clients) * f64::from(flow.work.max_seats()) * busy
}

fn assert_fair(flows: &[SimFlow], limit: u32, margin: f64) {
    let span = Duration::from_secs(60);
    for seed in 0..3 {
        let outcomes = simulate(flows, limit, span, SplitMix64::new(seed));
        let demands: Vec<f64> = flows.iter().map(demand).collect();
        let fair = max_min(&demands, f64::from(limit));
        for (index, (outcome, fair)) in outcomes.iter().zip(&fair).enumerate() {
            let share = outcome.served / (span.as_secs_f64() * 0.75);
            assert!(
                (share - fair).abs() <= margin * fair,
                "seed {seed}: flow {index} gets {share:.3} seats instead of {fair:.3} of {limit}"
            );
        }
    }
}

fn flow(clients: u32, service: Duration, think: Duration) -> SimFlow {
    SimFlow {
        clients,
        work: seats(1),
        service_time: service,
        think_time: think,
    }
}

#[test]
fn floods_share_equally_whatever_their_size() {
    let flows = [
        flow(20, 10 * MS, MS),
        flow(80, 10 * MS, MS),
        flow(200, 10 * MS, MS),
    ];
    assert_fair(&flows, 6, 0.01);
}

#[test]
fn seats_unused_by_a_small_flow_are_shared_by_the_others() {
    let flows = [
        flow(2, 10 * MS, 90 * MS),
        flow(40, 10 * MS, MS),
        flow(4, 10 * MS, 60 * MS),
        flow(90, 5 * MS, MS),
    ];
    assert_fair(&flows, 8, 0.08);
}

#[test]
fn slow_requests_get_no_more_than_quick_ones() {
    let flows = [
        flow(50, MS, MS),
        flow(50, 40 * MS, MS),
        flow(50, 8 * MS, MS),
    ];
    assert_fair(&flows, 9, 0.03);
}

#[test]
fn wide_and_lingering_requests_are_charged_for_their_seats() {
    // Many seats, because no flow uses the few that stay free while a wide request waits for them.
    let wide = SimFlow {
        work: seats(3),
        ..flow(100, 10 * MS, MS)
    };
    let lingering = SimFlow {
        work: WorkEstimate {
            initial_seats: 2,
            final_seats: 2,
            additional_latency: 7 * MS,
        },
        ..flow(100, 10 * MS, MS)
    };
    assert_fair(&[wide, lingering, flow(100, 10 * MS, MS)], 60, 0.05);
}

#[test]
fn an_idle_level_serves_each_flow_its_whole_demand() {
    let flows = [flow(3, 10 * MS, 10 * MS), flow(5, 20 * MS, 40 * MS)];
    assert_fair(&flows, 40, 0.02);
}

/// The bound of fair queuing, for a flow that has one request waiting at a time. On arrival it
/// waits for a seat to become free, and then for no more than one request of each active queue.
#[test]
fn a_mouse_flow_waits_for_one_round_whatever_the_elephant_flows_do() {
    for (seed, limit, elephants, service) in [
        (1, 1, 3, 10 * MS),
        (2, 2, 8, 2 * MS),
        (3, 10, 12, 20 * MS),
        (4, 4, 40, 5 * MS),
    ] {
        let mut flows = vec![flow(100, service, Duration::ZERO); elephants];
        flows.push(flow(1, service, 7 * MS));
        let outcomes = simulate(
            &flows,
            limit,
            Duration::from_secs(20),
            SplitMix64::new(seed),
        );
        let waited = outcomes[elephants].longest_wait;
        let round = service * u32::try_from(elephants + 1).unwrap().div_ceil(limit);
        assert!(
            waited <= round + service,
            "seed {seed}: waited {waited:?}, a round is {round:?}"
        );
        let elephant = outcomes[0].longest_wait;
        assert!(
            elephant > 3 * (round + service),
            "seed {seed}: no flood, {elephant:?}"
        );
    }
}
