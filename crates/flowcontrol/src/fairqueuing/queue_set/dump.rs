//! The level as the debug endpoints show it. A dump reads and does not step, so virtual time does
//! not advance.

use std::time::Instant;

use super::set::QueueSet;
use crate::fairqueuing::queue_set::request_slab::{DispatchPhase, QueueSetRequest};
use crate::fairqueuing::seats::{SeatSeconds, WorkEstimate};

/// A line of `dump_queues`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDump {
    /// The index of the queue.
    pub index: usize,
    /// Requests in the queue: `PendingRequests`.
    pub requests_waiting: usize,
    /// Executing requests of the queue.
    pub requests_executing: usize,
    /// The seats of executing and lingering requests.
    pub seats_in_use: u64,
    /// The virtual start of the next request to be dispatched.
    pub next_dispatch_r: SeatSeconds,
    /// The seats of the main phase, summed over the waiting requests.
    pub initial_seats_sum: u64,
    /// The seats that the waiting requests will occupy.
    pub max_seats_sum: u64,
    /// The work of the waiting requests.
    pub total_work_sum: SeatSeconds,
}

/// A line of `dump_requests`.
#[derive(Clone, Copy, Debug)]
pub struct RequestDump<'a, T> {
    /// The caller's payload.
    pub payload: &'a T,
    /// The queue that it waits in or was dispatched from.
    pub queue: Option<usize>,
    /// The position in the queue, from 0, while it waits.
    pub position: Option<usize>,
    /// The time of arrival.
    pub arrived: Instant,
    /// The expected cost.
    pub work: WorkEstimate,
    /// The time of dispatch. `None` while it waits.
    pub started: Option<Instant>,
}

/// A request that waits or has seats.
#[derive(Clone, Copy, Debug)]
pub struct Occupant<'a, T> {
    /// The caller's payload.
    pub payload: &'a T,
    /// The time of arrival.
    pub arrived: Instant,
    /// Whether it waits. Otherwise it has its seats.
    pub is_waiting: bool,
    /// The seats that it has or waits for.
    pub seats: u64,
}

impl<T> QueueSet<T> {
    /// All requests, in no order. Unlike [`dump_requests`](Self::dump_requests) it allocates nothing
    /// and has those whose seats only linger.
    pub fn occupants(&self) -> impl Iterator<Item = Occupant<'_, T>> {
        self.requests.iter().map(|(_, request)| Occupant {
            payload: &request.payload,
            arrived: request.arrived,
            is_waiting: request.is_waiting(),
            seats: request.seats(),
        })
    }

    /// The number of queues with waiting requests: `ActiveQueues` of `dump_priority_levels`.
    #[must_use]
    pub fn backlogged_queues(&self) -> usize {
        self.backlogged.len()
    }

    /// The index of the queue of the last dispatch. -1 if that was the first queue and it has been
    /// removed. Ties are broken from the next queue on.
    #[must_use]
    pub fn robin_index(&self) -> i64 {
        i64::try_from(self.next_robin_index).map_or(i64::MAX, |next| next - 1)
    }

    /// The number of arrivals that have chosen a queue so far, including rejected ones.
    #[must_use]
    pub const fn enqueues(&self) -> usize {
        self.enqueues
    }

    /// All queues, in order.
    pub fn dump_queues(&self) -> impl Iterator<Item = QueueDump> {
        self.queues
            .iter()
            .enumerate()
            .map(|(index, queue)| QueueDump {
                index,
                requests_waiting: queue.waiting.len(),
                requests_executing: queue.requests_executing,
                seats_in_use: queue.seats_in_use,
                next_dispatch_r: queue.next_dispatch_r,
                initial_seats_sum: queue.waiting.initial_seats(),
                max_seats_sum: queue.waiting.max_seats(),
                total_work_sum: queue.waiting.total_work(),
            })
    }

    /// All waiting and executing requests. They are ordered by queue. Within a queue, waiting
    /// requests in order come before executing requests by start. Requests without a queue come
    /// last. Requests whose seats only linger are left out.
    #[must_use]
    pub fn dump_requests(&self) -> Vec<RequestDump<'_, T>> {
        let mut lines = Vec::new();
        for queue in &self.queues {
            for (position, (_, request)) in queue.waiting.iter(&self.requests).enumerate() {
                lines.push(dump_request(request, Some(position), None));
            }
        }
        for (_, request) in self.requests.iter() {
            if let DispatchPhase::Executing { since } = request.phase {
                lines.push(dump_request(request, None, Some(since)));
            }
        }
        lines.sort_by_key(|line| {
            (
                line.queue.unwrap_or(usize::MAX),
                line.position.unwrap_or(usize::MAX),
                line.started,
            )
        });
        lines
    }
}

fn dump_request<T>(
    request: &QueueSetRequest<T>,
    position: Option<usize>,
    started: Option<Instant>,
) -> RequestDump<'_, T> {
    RequestDump {
        payload: &request.payload,
        queue: request.queue,
        position,
        arrived: request.arrived,
        work: request.work,
        started,
    }
}
