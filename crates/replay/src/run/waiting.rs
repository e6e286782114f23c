//! Whether the clients of a log wait for their own requests. Pure.
//!
//! A client that waits has a number of workers, each of which sends its next request when the one
//! before has ended. So it has nearly as many requests in flight at each arrival as ever at a time.
//! Requests that arrive independently of each other come while fewer are in flight.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::logged::LoggedRequest;
use crate::report::model::WaitingReport;
use weir_kubernetes::request_info::RequestInfo;

/// Of fewer requests nothing is known.
const LEAST_REQUESTS: u64 = 20;

/// A client that waits has this part of its most requests in flight at an arrival, on average. Poisson
/// arrivals come above it only with more than a thousand in flight.
const LEAST_IN_FLIGHT: f64 = 0.9;

/// A client that has one request at a time waits if it is busy for this part of its time: independent
/// requests would overlap.
const LEAST_BUSY: f64 = 0.5;

/// The clients of a log, by their numbers.
#[derive(Debug, Default)]
pub(super) struct WaitingClients(HashMap<u32, ClientTimes>);

/// The requests of one client.
#[derive(Debug, Default)]
struct ClientTimes {
    requests: u64,
    /// The ends of those in flight, in microseconds.
    ends: BinaryHeap<Reverse<i64>>,
    most: usize,
    /// Requests since the most were first in flight, and their sum of requests in flight: workers
    /// start one after the other.
    counted: u64,
    in_flight: u64,
    first_us: i64,
    last_us: i64,
    busy_us: u64,
}

impl WaitingClients {
    /// Counts a request. They come in the order of their arrivals. Long-running requests and those
    /// of unknown length say nothing.
    pub(super) fn count(&mut self, request: &LoggedRequest) {
        let Some(service_ns) = request.service_ns.get() else {
            return;
        };
        let info = RequestInfo::parse(request.method(), request.target());
        if info.map_or(true, |info| info.long_running()) {
            return;
        }
        let took_us = request.recorded.wait_ns.saturating_add(service_ns) / 1000;
        let client = self.0.entry(request.client.0).or_default();
        client.count(request.at_us, took_us);
    }

    /// How many of the requests are of clients that wait.
    pub(super) fn report(&self) -> WaitingReport {
        let sum = |clients: &mut dyn Iterator<Item = &ClientTimes>| {
            clients.map(|client| client.requests).sum()
        };
        WaitingReport {
            requests: sum(&mut self.0.values()),
            of_waiting: sum(&mut self.0.values().filter(|client| client.waits())),
        }
    }
}

impl ClientTimes {
    fn count(&mut self, at_us: i64, took_us: u64) {
        if self.requests == 0 {
            self.first_us = at_us;
        }
        while self.ends.peek().is_some_and(|Reverse(end)| *end <= at_us) {
            self.ends.pop();
        }
        let end = at_us.saturating_add_unsigned(took_us);
        self.ends.push(Reverse(end));
        if self.ends.len() > self.most {
            self.most = self.ends.len();
            (self.counted, self.in_flight) = (0, 0);
        }
        self.requests += 1;
        self.counted += 1;
        self.in_flight = self
            .in_flight
            .saturating_add(u64::try_from(self.ends.len()).unwrap_or(u64::MAX));
        self.last_us = self.last_us.max(end);
        self.busy_us = self.busy_us.saturating_add(took_us);
    }

    fn waits(&self) -> bool {
        let to_f64 = weir_kubernetes::numeric::to_f64;
        if self.requests < LEAST_REQUESTS || self.counted * 2 < self.requests {
            return false;
        }
        if self.most == 1 {
            let span_us = self.last_us.saturating_sub(self.first_us).unsigned_abs();
            return to_f64(self.busy_us) >= LEAST_BUSY * to_f64(span_us);
        }
        let most = to_f64(u64::try_from(self.most).unwrap_or(u64::MAX));
        to_f64(self.in_flight) >= LEAST_IN_FLIGHT * most * to_f64(self.counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(at: f64) -> i64 {
        let micros = std::time::Duration::from_secs_f64(at / 1e6).as_micros();
        micros.try_into().unwrap()
    }

    /// Arrivals and how long they took, in microseconds.
    fn waits(requests: impl IntoIterator<Item = (i64, u64)>) -> bool {
        let mut client = ClientTimes::default();
        for (at_us, took_us) in requests {
            client.count(at_us, took_us);
        }
        client.waits()
    }

    /// Workers that send their next request `think_us` after the end of the one before.
    fn workers(workers: usize, think_us: i64, random: &mut fastrand::Rng) -> Vec<(i64, u64)> {
        let mut free: Vec<i64> = (0..workers).map(|_| random.i64(0..50_000)).collect();
        let mut requests = Vec::new();
        for _ in 0..4000 {
            let (n, at) = free
                .iter()
                .copied()
                .enumerate()
                .min_by_key(|(_, at)| *at)
                .unwrap();
            let took = random.u64(50_000..500_000);
            requests.push((at, took));
            free[n] = at + i64::try_from(took).unwrap() + think_us;
        }
        requests
    }

    #[test]
    fn workers_without_pauses_wait_and_independent_arrivals_do_not() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for count in [1, 2, 10, 300] {
            assert!(waits(workers(count, 1000, &mut random)), "{count} workers");
        }
        for per_second in [2.0, 20.0, 200.0] {
            let mut at = 0.0;
            let arrivals: Vec<_> = (0..4000)
                .map(|_| {
                    at += -(1.0 - random.f64()).ln() / per_second * 1e6;
                    (micros(at), random.u64(50_000..500_000))
                })
                .collect();
            assert!(!waits(arrivals), "{per_second} a second");
        }
    }

    #[test]
    fn a_client_that_is_seldom_busy_is_not_known_to_wait() {
        assert!(!waits((0..1000).map(|n| (n * 1_000_000, 10_000))));
        assert!(!waits((0..5).map(|n| (n * 1000, 1000))), "too few");
    }
}
