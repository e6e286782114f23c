//! The level as the debug endpoints show it: read, not stepped, so virtual time stands still.

use std::time::Instant;

use super::QueueSet;
use crate::flowcontrol::fairqueuing::queue_set::request_slab::DispatchPhase;
use crate::flowcontrol::fairqueuing::queue_set::request_slab::QueueSetRequest;
use crate::flowcontrol::fairqueuing::queue_set::request_slab::RequestKey;
use crate::flowcontrol::fairqueuing::seats::SeatSeconds;
use crate::flowcontrol::fairqueuing::seats::WorkEstimate;

/// A line of `dump_queues`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDump {
    /// Where it stands among the queues.
    pub index: usize,
    /// Requests in line: `PendingRequests`.
    pub requests_waiting: usize,
    /// Requests that run.
    pub requests_executing: usize,
    /// The seats that these and lingering ones have.
    pub seats_in_use: u64,
    /// The virtual start of the next request to be dispatched.
    pub next_dispatch_r: SeatSeconds,
    /// Over the requests in line, the seats of their main phase.
    pub initial_seats_sum: u64,
    /// Over the requests in line, the seats they will occupy.
    pub max_seats_sum: u64,
    /// Over the requests in line, their work.
    pub total_work_sum: SeatSeconds,
}

/// A line of `dump_requests`.
#[derive(Clone, Copy, Debug)]
pub struct RequestDump<'a, T> {
    /// Its ticket.
    pub key: RequestKey,
    /// The caller's part of it.
    pub payload: &'a T,
    /// The queue it waits in or was dispatched from.
    pub queue: Option<usize>,
    /// Its place in the queue, from 0, while it waits.
    pub position: Option<usize>,
    /// When it arrived.
    pub arrived: Instant,
    /// What it is expected to cost.
    pub work: WorkEstimate,
    /// When it was dispatched, if it has been.
    pub started: Option<Instant>,
}

impl<T> QueueSet<T> {
    /// How many queues have somebody waiting: the `ActiveQueues` of `dump_priority_levels`.
    #[must_use]
    pub fn backlogged_queues(&self) -> usize {
        self.backlogged.len()
    }

    /// The index of the queue dispatched from last; -1 if that was the first one and is gone. Ties
    /// are broken from the one after it on.
    #[must_use]
    pub fn robin_index(&self) -> i64 {
        i64::try_from(self.next_robin_index).map_or(i64::MAX, |next| next - 1)
    }

    /// How many arrivals have chosen a queue so far, the rejected ones too.
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

    /// All requests that wait or run: queue by queue, each in line and then those running by start;
    /// at last those that belong to no queue. Requests whose seats only linger are not shown.
    #[must_use]
    pub fn dump_requests(&self) -> Vec<RequestDump<'_, T>> {
        let mut lines = Vec::new();
        for queue in &self.queues {
            for (position, (slot, request)) in queue.waiting.iter(&self.requests).enumerate() {
                lines.push(self.dump_request(slot, request, Some(position), None));
            }
        }
        for (slot, request) in self.requests.iter() {
            if let DispatchPhase::Executing { since } = request.phase {
                lines.push(self.dump_request(slot, request, None, Some(since)));
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

    fn dump_request<'a>(
        &self,
        slot: usize,
        request: &'a QueueSetRequest<T>,
        position: Option<usize>,
        started: Option<Instant>,
    ) -> RequestDump<'a, T> {
        RequestDump {
            key: self.requests.key(slot),
            payload: &request.payload,
            queue: request.queue,
            position,
            arrived: request.arrived,
            work: request.work,
            started,
        }
    }
}
