//! The cost of an admission and its end, in a priority level of 128 queues with hands of six: the
//! cost of fairness for a request.
//!
//! Uncontended, with few and with many flows, and with a thousand queued requests. Each round trip
//! is one `arrive` and one `leave`. Hashes are computed before. Time advances by a microsecond for
//! each call.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "virtual time begins somewhere, and 128 queues can be dealt in sixes"
)]

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use weir_flowcontrol::fairqueuing::queue_set::{Arrival, Effects, QueueSet, Queuing, RequestKey};
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_flowcontrol::fairqueuing::shuffle_sharding::{Dealer, flow_hash};

const STEP: Duration = Duration::from_micros(1);

const WORK: WorkEstimate = WorkEstimate {
    initial_seats: 1,
    final_seats: 0,
    additional_latency: Duration::ZERO,
};

/// A priority level, the flows that visit it in rotation, and the time.
struct BenchLevel {
    set: QueueSet<()>,
    effects: Effects,
    hashes: Vec<u64>,
    arrivals: usize,
    now: Instant,
}

impl BenchLevel {
    fn new(flows: usize, concurrency_limit: u32) -> Self {
        let dealer = Dealer::new(128, 6).expect("hands that can be dealt");
        let now = Instant::now();
        Self {
            set: QueueSet::new(
                now,
                Queuing::Queue {
                    dealer,
                    queue_length_limit: 10_000,
                },
                concurrency_limit,
            ),
            effects: Effects::default(),
            hashes: (0..flows)
                .map(|n| flow_hash("global-default", &format!("user-{n}")))
                .collect(),
            arrivals: 0,
            now,
        }
    }

    fn arrive(&mut self) -> Option<RequestKey> {
        self.now += STEP;
        self.arrivals += 1;
        let hash = self
            .hashes
            .get(self.arrivals % self.hashes.len())
            .copied()
            .unwrap_or_default();
        match self.set.arrive(self.now, hash, WORK, (), &mut self.effects) {
            Arrival::Execute(ticket) | Arrival::Queued(ticket) => Some(ticket),
            Arrival::Reject(_) => None,
        }
    }

    fn leave(&mut self, ticket: RequestKey) {
        self.now += STEP;
        self.set.leave(self.now, ticket, &mut self.effects);
    }
}

fn uncontended(c: &mut Criterion) {
    let mut group = c.benchmark_group("admit_and_finish");
    for flows in [1, 100, 10_000] {
        let mut level = BenchLevel::new(flows, 600);
        group.bench_function(BenchmarkId::new("flows", flows), |b| {
            b.iter(|| {
                if let Some(ticket) = black_box(level.arrive()) {
                    level.leave(ticket);
                }
            });
        });
    }
    group.finish();
}

fn contended(c: &mut Criterion) {
    let mut group = c.benchmark_group("queue_and_finish");
    for flows in [1, 100, 10_000] {
        let mut level = BenchLevel::new(flows, 10);
        let mut running = VecDeque::new();
        for _ in 0..1010 {
            level.arrive();
            running.extend(&level.effects.started);
        }
        group.bench_function(BenchmarkId::new("flows", flows), |b| {
            b.iter(|| {
                black_box(level.arrive());
                if let Some(ticket) = running.pop_front() {
                    level.leave(ticket);
                    running.extend(&level.effects.started);
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, uncontended, contended);
criterion_main!(benches);
