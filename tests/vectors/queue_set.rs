//! `queueset_trace`: complete traces of a priority level, event by event.
//! `queueset_upstream_crash`: traces in which upstream panics. Here every request must end.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test says so when a case is not as described"
)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_flowcontrol::concurrency::demand::SeatDemand;
use weir_flowcontrol::fairqueuing::queue_set::{
    Arrival, Departure, Effects, QueueSet, Queuing, RejectReason, RequestKey,
};
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_flowcontrol::fairqueuing::shuffle_sharding::Dealer;

use crate::support;

#[test]
fn every_request_of_every_trace_starts_as_upstream() {
    for case in support::cases("queueset_trace") {
        let name = case["name"].as_str().unwrap();
        let expected = &case["expected"];
        let leaks = expected["final"]["seats_waiting"] != 0;
        let mut trace = TraceReplay::new(&case["input"]);
        let mut states = expected["states"].as_array().map(|states| states.iter());
        while let Some(event) = trace.step() {
            if let Some(expected) = states.as_mut().map(|states| states.next().unwrap()) {
                trace.assert_state(name, &event, expected, leaks);
            }
        }
        assert!(
            states.is_none_or(|mut left| left.next().is_none()),
            "{name}: too few events"
        );
        trace.assert_outcome(name, expected, leaks);
    }
}

#[test]
fn a_level_that_shrinks_while_seats_linger_loses_no_request() {
    for case in support::cases("queueset_upstream_crash") {
        let name = case["name"].as_str().unwrap();
        let mut trace = TraceReplay::new(&case["input"]);
        while trace.step().is_some() {}
        for (index, request) in trace.requests.iter().enumerate() {
            let came_to_an_end = matches!(request.outcome, "E" | "QF" | "CL" | "TO");
            assert!(
                came_to_an_end,
                "{name}: request {index} is {}",
                request.outcome
            );
        }
        assert_eq!(trace.level.totals().seats_in_use, 0, "{name}");
        assert_eq!(trace.level.totals().seats_waiting, 0, "{name}");
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TraceEvent {
    Arrive(usize),
    Finish(usize),
    Cancel(usize),
    Release(usize),
    Configure(usize),
}

struct TraceRequest {
    flow_hash: u64,
    work: WorkEstimate,
    execution: u64,
    ticket: Option<RequestKey>,
    queue: i64,
    outcome: &'static str,
    start: i64,
    order: i64,
}

struct TraceReplay {
    origin: Instant,
    now: u64,
    level: QueueSet<usize>,
    demand: SeatDemand,
    effects: Effects,
    requests: Vec<TraceRequest>,
    configurations: Vec<(Queuing, u32)>,
    events: BinaryHeap<Reverse<(u64, TraceEvent)>>,
    dispatches: i64,
}

fn number<T: TryFrom<i64>>(value: &Value) -> T {
    let number = value
        .as_i64()
        .unwrap_or_else(|| panic!("not a number: {value}"));
    T::try_from(number).unwrap_or_else(|_| panic!("out of range: {number}"))
}

fn configuration(config: &Value) -> (Queuing, u32) {
    let queuing = match number::<i32>(&config["queues"]) {
        -1 => Queuing::Exempt,
        0 => Queuing::Reject,
        queues => Queuing::Queue {
            dealer: Dealer::new(queues, number(&config["hand_size"])).unwrap(),
            queue_length_limit: number(&config["queue_length_limit"]),
        },
    };
    (queuing, number(&config["concurrency_limit"]))
}

impl TraceReplay {
    #[expect(clippy::disallowed_methods, reason = "virtual time begins somewhere")]
    fn new(input: &Value) -> Self {
        let origin = Instant::now();
        let (queuing, concurrency_limit) = configuration(&input["config"]);
        let mut events = BinaryHeap::new();
        let mut configurations = Vec::new();
        for change in input["config_changes"].as_array().into_iter().flatten() {
            events.push(Reverse((
                number(&change["t_ns"]),
                TraceEvent::Configure(configurations.len()),
            )));
            configurations.push(configuration(change));
        }
        let mut requests = Vec::new();
        for request in input["requests"].as_array().unwrap() {
            let flow = &input["flows"][number::<usize>(&request[1])];
            events.push(Reverse((
                number(&request[0]),
                TraceEvent::Arrive(requests.len()),
            )));
            if let Ok(cancel_at) = u64::try_from(number::<i64>(&request[6])) {
                events.push(Reverse((cancel_at, TraceEvent::Cancel(requests.len()))));
            }
            requests.push(TraceRequest {
                flow_hash: flow["hash"].as_str().unwrap().parse().unwrap(),
                work: WorkEstimate {
                    initial_seats: number(&request[2]),
                    final_seats: number(&request[3]),
                    additional_latency: Duration::from_nanos(number(&request[4])),
                },
                execution: number(&request[5]),
                ticket: None,
                queue: -1,
                outcome: "",
                start: -1,
                order: -1,
            });
        }
        Self {
            origin,
            now: 0,
            level: QueueSet::new(origin, queuing, concurrency_limit),
            demand: SeatDemand::new(origin),
            effects: Effects::default(),
            requests,
            configurations,
            events,
            dispatches: 0,
        }
    }

    /// Executes the next event and returns which one it was.
    fn step(&mut self) -> Option<String> {
        let Reverse((t, event)) = self.events.pop()?;
        let now = self.origin + Duration::from_nanos(t);
        let name = match event {
            TraceEvent::Arrive(i) => {
                self.arrive(i, now);
                format!("arrive:{i}")
            }
            TraceEvent::Finish(i) => {
                self.leave(i, t, now);
                format!("finish:{i}")
            }
            TraceEvent::Release(i) => {
                self.leave(i, t, now);
                "release".to_owned()
            }
            TraceEvent::Cancel(i) => {
                let Some(ticket) = self.requests[i].ticket else {
                    return self.step();
                };
                if self.level.cancel(now, ticket, &mut self.effects).is_some() {
                    self.requests[i].outcome = "TO";
                }
                format!("cancel:{i}")
            }
            TraceEvent::Configure(i) => {
                let (queuing, concurrency_limit) = self.configurations[i];
                self.level
                    .reconfigure(now, queuing, concurrency_limit, &mut self.effects);
                "config".to_owned()
            }
        };
        self.now = t;
        for ticket in &self.effects.started {
            let index = *self.level.payload(*ticket).unwrap();
            let request = &mut self.requests[index];
            request.outcome = "E";
            request.start = i64::try_from(t).unwrap();
            request.order = self.dispatches;
            self.dispatches += 1;
            self.events
                .push(Reverse((t + request.execution, TraceEvent::Finish(index))));
        }
        self.effects.started.clear();
        self.demand.set(now, self.level.totals().seat_demand());
        Some(name)
    }

    fn arrive(&mut self, index: usize, now: Instant) {
        let request = &mut self.requests[index];
        let (flow_hash, work) = (request.flow_hash, request.work);
        match self
            .level
            .arrive(now, flow_hash, work, index, &mut self.effects)
        {
            Arrival::Execute(ticket) => request.ticket = Some(ticket),
            Arrival::Queued(ticket) => {
                request.ticket = Some(ticket);
                request.outcome = "W";
            }
            Arrival::Reject(RejectReason::ConcurrencyLimit) => request.outcome = "CL",
            Arrival::Reject(RejectReason::QueueFull) => request.outcome = "QF",
            Arrival::Reject(RejectReason::TimeOut) => panic!("nobody has waited yet"),
        }
        if let Some(enqueued) = self.effects.enqueued {
            request.queue = i64::try_from(enqueued.queue).unwrap();
        }
    }

    fn leave(&mut self, index: usize, t: u64, now: Instant) {
        let ticket = self.requests[index].ticket.unwrap();
        match self.level.leave(now, ticket, &mut self.effects).unwrap() {
            Departure::Lingers(time) => {
                let end = t + u64::try_from(time.as_nanos()).unwrap();
                self.events.push(Reverse((end, TraceEvent::Release(index))));
            }
            Departure::Released(released) => assert_eq!(released, index),
            Departure::Ejected(released) => panic!("{released} had not started"),
        }
    }

    fn assert_state(&self, name: &str, event: &str, expected: &Value, leaks: bool) {
        let totals = self.level.totals();
        let queues: Vec<Value> = self
            .level
            .dump_queues()
            .map(|queue| {
                let start = queue.next_dispatch_r.units();
                json!([
                    queue.requests_waiting,
                    queue.requests_executing,
                    queue.seats_in_use,
                    start
                ])
            })
            .collect();
        let state = json!({
            "enqueues": self.level.enqueues(),
            "event": event,
            "executing": totals.requests_executing,
            "queues": if queues.is_empty() { Value::Null } else { Value::from(queues) },
            "r": self.level.current_r().units(),
            "robin": self.level.robin_index(),
            "seats_in_use": totals.seats_in_use,
            "seats_waiting": self.seats_waiting(expected, leaks),
            "t_ns": self.now,
            "waiting": totals.requests_waiting,
        });
        assert_eq!(state, *expected, "{name}");
    }

    /// Upstream does not subtract some of the seats that it counted as waiting. weir does.
    fn seats_waiting(&self, expected: &Value, leaks: bool) -> Value {
        if leaks {
            expected["seats_waiting"].clone()
        } else {
            json!(self.level.totals().seats_waiting)
        }
    }

    fn assert_outcome(&mut self, name: &str, expected: &Value, leaks: bool) {
        let requests = expected["requests"].as_array().unwrap();
        assert_eq!(self.requests.len(), requests.len(), "{name}");
        for (index, (request, expected)) in self.requests.iter().zip(requests).enumerate() {
            let outcome = json!([request.queue, request.outcome, request.start, request.order]);
            assert_eq!(outcome, *expected, "{name}: request {index}");
        }
        assert_eq!(self.now, expected["end_ns"], "{name}");
        let totals = self.level.totals();
        let last = &expected["final"];
        let state = json!({
            "cancelled": totals.cancelled,
            "executing": totals.requests_executing,
            "num_queues": self.level.dump_queues().count(),
            "r": self.level.current_r().units().to_string(),
            "rejected": totals.rejected,
            "robin_index": self.level.robin_index(),
            "seats_in_use": totals.seats_in_use,
            "seats_waiting": self.seats_waiting(last, leaks),
            "waiting": totals.requests_waiting,
        });
        assert_eq!(state, *last, "{name}");
        if !leaks {
            self.assert_demand(name, &expected["seat_demand"]);
        }
    }

    fn assert_demand(&mut self, name: &str, expected: &Value) {
        let demand = self
            .demand
            .read(self.origin + Duration::from_nanos(self.now));
        let moments = demand.moments.unwrap();
        for (what, value) in [
            ("duration_s", demand.seconds),
            ("min", demand.min),
            ("max", demand.max),
            ("average", moments.average),
            ("deviation", moments.deviation),
        ] {
            let wanted = expected[what].as_f64().unwrap();
            let near = (value - wanted).abs() <= 1e-9 * wanted.abs().max(1.0);
            assert!(near, "{name}: {what} is {value}, not {wanted}");
        }
    }
}
