//! The workers of closed-loop clients: each sends one request at a time. Pure.
//!
//! A log does not say which request of a client waited for which other one. A client is taken to be a
//! set of workers. A request that begins after another one of the same client has ended is sent by the
//! worker of that one, and the time between both is its think time. Of several workers that were free,
//! the one that was free last sends the request, so think times are the shortest. If none was free, the
//! client has one worker more: the record shows that it did not wait.
//!
//! In the simulation a worker sends its next request when the one before has ended and its think time
//! has passed, and not before the recorded time. So a client that waits sends later, and one that is
//! served faster than in the record is not ahead of it.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use slab::Slab;

use crate::clients::ClientId;
use crate::logged::LoggedRequest;
use crate::simulation::agenda::SimTime;
use weir_kubernetes::numeric::saturating_u64;

/// The most workers: a cluster has some 10,000. Beyond, requests that no worker is free for are sent
/// as they were recorded.
const MAX_WORKERS: usize = 1 << 17;

/// The most requests that wait for their workers: some 30 MiB. Beyond, the log is read on only when one
/// of them was sent.
const MAX_PENDING: usize = 200_000;

/// A worker, by its number. The first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorkerId(NonZeroU32);

/// When a request took place in the record, without the pauses of the simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedSpan {
    pub start: SimTime,
    pub end: SimTime,
}

/// What becomes of a request that its client would send now.
#[derive(Debug)]
pub(crate) enum Sending {
    /// It is sent now, by this worker.
    Now(LoggedRequest, Option<WorkerId>),
    /// Its worker sends it at this time.
    At(SimTime, WorkerId),
    /// Its worker sends others before.
    Later,
}

/// The requests that were sent later than they were recorded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delays {
    pub requests: u64,
    pub longest_ns: u64,
    pub total_ns: u128,
}

/// All workers.
#[derive(Debug)]
pub(crate) struct Workers {
    workers: Vec<ClientWorker>,
    /// By client, and by the recorded end of their last request.
    by_end: BTreeSet<(u32, SimTime, WorkerId)>,
    pending: Slab<PendingRequest>,
    max_pending: usize,
    delays: Delays,
}

#[derive(Debug, Default)]
struct ClientWorker {
    /// When its last request ended in the simulation. `None`: it has not, or another one is planned.
    free_since: Option<SimTime>,
    /// The first and the last of its requests that wait.
    queue: Option<(usize, usize)>,
}

#[derive(Debug)]
struct PendingRequest {
    request: LoggedRequest,
    /// When it would have been sent.
    due: SimTime,
    think_ns: u64,
    next: Option<usize>,
}

impl WorkerId {
    fn index(self) -> usize {
        usize::try_from(self.0.get()).unwrap_or(usize::MAX) - 1
    }
}

impl Default for Workers {
    fn default() -> Self {
        Self {
            workers: Vec::new(),
            by_end: BTreeSet::new(),
            pending: Slab::new(),
            max_pending: MAX_PENDING,
            delays: Delays::default(),
        }
    }
}

impl Workers {
    /// Whether no more requests may wait.
    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() >= self.max_pending
    }

    /// The number of requests that wait for their workers.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    pub(crate) const fn delays(&self) -> Delays {
        self.delays
    }

    /// A client would send a request now.
    pub(crate) fn send(
        &mut self,
        now: SimTime,
        request: LoggedRequest,
        recorded: RecordedSpan,
    ) -> Sending {
        let Some((worker, think_ns)) = self.assign(request.client, recorded) else {
            return Sending::Now(request, None);
        };
        let Some(state) = self.workers.get_mut(worker.index()) else {
            return Sending::Now(request, None); // unreachable: workers are never removed
        };
        let free_since = state.free_since.take();
        let at = free_since.map(|since| since.plus(think_ns));
        if at.is_some_and(|at| at <= now) {
            return Sending::Now(request, Some(worker));
        }
        let number = self.pending.insert(PendingRequest {
            request,
            due: now,
            think_ns,
            next: None,
        });
        let first = match state.queue {
            Some((first, last)) => {
                if let Some(last) = self.pending.get_mut(last) {
                    last.next = Some(number);
                }
                first
            }
            None => number,
        };
        state.queue = Some((first, number));
        at.map_or(Sending::Later, |at| Sending::At(at, worker))
    }

    /// The worker of a request, and its think time.
    fn assign(&mut self, client: ClientId, recorded: RecordedSpan) -> Option<(WorkerId, u64)> {
        let RecordedSpan { start, end } = recorded;
        let ClientId(client) = client;
        let first = (client, SimTime(0), WorkerId(NonZeroU32::MIN));
        let last = (client, start, WorkerId(NonZeroU32::MAX));
        let free = self.by_end.range(first..=last).next_back().copied();
        let (worker, think_ns) = match free {
            Some(free) => {
                self.by_end.remove(&free);
                let (_, since, worker) = free;
                (worker, start.since(since))
            }
            None => (self.add_worker()?, 0),
        };
        self.by_end.insert((client, end.max(start), worker));
        Some((worker, think_ns))
    }

    fn add_worker(&mut self) -> Option<WorkerId> {
        if self.workers.len() >= MAX_WORKERS {
            return None;
        }
        self.workers.push(ClientWorker {
            free_since: Some(SimTime(0)),
            queue: None,
        });
        let number = u32::try_from(self.workers.len()).ok()?;
        NonZeroU32::new(number).map(WorkerId)
    }

    /// The request of a worker has ended. Returns when the worker sends its next one, if that waits.
    pub(crate) fn end(&mut self, now: SimTime, worker: WorkerId) -> Option<SimTime> {
        let state = self.workers.get_mut(worker.index())?;
        let Some((first, _)) = state.queue else {
            state.free_since = Some(now);
            return None;
        };
        let think_ns = self.pending.get(first)?.think_ns;
        Some(now.plus(think_ns))
    }

    /// Takes the request that a worker sends now.
    pub(crate) fn take(&mut self, now: SimTime, worker: WorkerId) -> Option<LoggedRequest> {
        let state = self.workers.get_mut(worker.index())?;
        let (first, last) = state.queue?;
        let pending = self.pending.try_remove(first)?;
        state.queue = pending.next.map(|next| (next, last));
        let delay = now.since(pending.due);
        self.delays.requests += u64::from(delay > 0);
        self.delays.longest_ns = self.delays.longest_ns.max(delay);
        self.delays.total_ns += u128::from(delay);
        Some(pending.request)
    }

    /// Takes all requests that still wait, in the order of the log.
    pub(crate) fn drain(&mut self) -> Vec<LoggedRequest> {
        self.workers.clear();
        self.by_end.clear();
        let mut pending: Vec<PendingRequest> = self.pending.drain().collect();
        pending.sort_by_key(|pending| pending.due);
        pending.into_iter().map(|pending| pending.request).collect()
    }

    /// For tests: fewer requests may wait.
    #[cfg(test)]
    pub(crate) const fn set_max_pending(&mut self, most: usize) {
        self.max_pending = most;
    }
}

impl Delays {
    /// The mean delay of those requests in nanoseconds.
    pub(crate) fn mean_ns(self) -> u64 {
        let mean = self.total_ns / u128::from(self.requests.max(1));
        saturating_u64(mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logged::{RecordedOutcome, RequestLine};

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> SimTime {
        SimTime(ms * MS)
    }

    /// Sends a request of a client that was recorded from `start` to `end`.
    fn send(workers: &mut Workers, client: u32, start: u64, end: u64) -> Sending {
        let request = LoggedRequest {
            at_us: 0,
            client: ClientId(client),
            line: RequestLine::new("GET", b"/").unwrap(),
            service_ns: None.into(),
            recorded: RecordedOutcome::default(),
            seats: None,
            stream: 0,
            rare: None,
        };
        let (start, end) = (at(start), at(end));
        workers.send(start, request, RecordedSpan { start, end })
    }

    fn sent_now(sending: Sending) -> WorkerId {
        match sending {
            Sending::Now(_, Some(worker)) => worker,
            other @ (Sending::Now(_, None) | Sending::At(..) | Sending::Later) => {
                panic!("{other:?}")
            }
        }
    }

    #[test]
    fn requests_that_overlap_have_workers_of_their_own_and_the_last_one_that_was_free_sends_the_next()
     {
        let mut workers = Workers::default();
        let [one, two, three] = [(0, 50), (10, 40), (20, 90)]
            .map(|(start, end)| sent_now(send(&mut workers, 1, start, end)));
        assert!(one != two && two != three);
        let other = sent_now(send(&mut workers, 2, 45, 60));
        assert!(![one, two, three].contains(&other), "another client");
        for (worker, end) in [(one, 50), (two, 40)] {
            assert_eq!(workers.end(at(end), worker), None);
        }
        assert_eq!(sent_now(send(&mut workers, 1, 55, 56)), one);
        assert_eq!(sent_now(send(&mut workers, 1, 55, 70)), two);
        assert!(
            matches!(send(&mut workers, 1, 95, 99), Sending::Later),
            "the third is not done"
        );
        assert_eq!(workers.end(at(100), three), Some(at(105)));
        assert!(workers.take(at(105), three).is_some());
        assert_eq!(
            (workers.delays().requests, workers.delays().longest_ns),
            (1, 10 * MS)
        );
    }

    #[test]
    fn a_worker_sends_what_waits_in_the_order_of_the_log() {
        let mut workers = Workers::default();
        let worker = sent_now(send(&mut workers, 1, 0, 10));
        for n in 1..4 {
            assert!(matches!(
                send(&mut workers, 1, n * 10 + 2, n * 10 + 10),
                Sending::Later
            ));
        }
        let mut now = 100;
        for left in [2, 1, 0] {
            assert_eq!(workers.end(at(now), worker), Some(at(now + 2)));
            now += 2;
            assert!(workers.take(at(now), worker).is_some());
            assert_eq!(workers.pending(), left);
        }
        assert_eq!(workers.end(at(now), worker), None);
        // It is later than recorded by then, so what comes now waits for its think time.
        let sending = send(&mut workers, 1, 50, 60);
        assert!(
            matches!(sending, Sending::At(until, _) if until == at(now + 10)),
            "{sending:?}"
        );
    }
}
