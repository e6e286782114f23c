//! The last requests and counters, for tests and for inspection.
//!
//! Requests are kept in memory with all their headers, credentials included, and never logged.

use crate::auth::user::ApiUser;
use crate::serving::fairness::SeatGuard;
use crate::serving::list_memory::HeldBytes;
use http::{HeaderMap, Method, Uri};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A request as it was received.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    /// The method.
    pub method: Method,
    /// The path and query, as sent.
    pub uri: Uri,
    /// The protocol version.
    pub version: http::Version,
    /// The authenticated user, before impersonation; `None` if the request was rejected with 401.
    pub user: Option<ApiUser>,
    /// All headers, as sent.
    pub headers: HeaderMap,
}

/// A review that the server executed.
#[derive(Clone, Debug, PartialEq)]
pub struct ReviewRecord {
    /// `TokenReview`, `SubjectAccessReview` or another review.
    pub kind: &'static str,
    /// The `spec` of the request, tokens included.
    pub spec: serde_json::Value,
}

/// Counters since the server was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Connections whose handshake succeeded.
    pub(crate) connections: u64,
    /// Requests of any kind.
    pub requests: u64,
    /// Ordinary requests in flight. A request is in flight until its response ends, even if its
    /// client has disconnected.
    pub(crate) in_flight: usize,
    /// Maximum of `in_flight`.
    pub max_in_flight: usize,
    /// Open watches, logs and tunnels.
    pub(crate) long_running: usize,
    /// Running handlers whose streams were reset or whose connections ended.
    pub(crate) abandoned: usize,
    /// Maximum of `abandoned`.
    pub(crate) max_abandoned: usize,
    /// HTTP/2 connections that were ended with ENHANCE_YOUR_CALM: too many handlers ran or waited
    /// for streams that were reset, or too many streams were reset before they were accepted.
    pub(crate) too_many_early_resets: u64,
    /// Requests that the server's own limit on requests in flight, or its priority and fairness,
    /// rejected.
    pub rejected: u64,
    /// Responses by status code.
    pub(crate) by_code: BTreeMap<u16, u64>,
    /// Accepted writes by verb and resource (`("create", "events")`).
    pub(crate) accepted_writes: BTreeMap<(&'static str, &'static str), u64>,
}

/// Records and counts requests.
#[derive(Debug)]
pub(crate) struct RequestLog {
    /// Maximum number of recorded requests, and of reviews.
    max_records: usize,
    /// Nothing is awaited under this lock.
    state: Mutex<RequestLogState>,
}

#[derive(Debug, Default)]
struct RequestLogState {
    counters: ServerCounters,
    requests: VecDeque<RequestRecord>,
    reviews: VecDeque<ReviewRecord>,
}

/// How a request in service is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServingClass {
    /// Not counted: a request for the counters, or a health check, which kube-apiserver's flow
    /// schema `probes` exempts.
    Exempt,
    InFlight,
    LongRunning,
}

/// A request in service, until dropped.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    pub(super) log: Arc<RequestLog>,
    pub(super) class: ServingClass,
    /// The seats of priority and fairness.
    pub(crate) seat: Option<SeatGuard>,
    /// What a list takes in memory.
    pub(crate) held: Option<HeldBytes>,
}

/// A handler that continues after its client has disconnected, until dropped.
#[derive(Debug)]
pub(crate) struct AbandonedGuard {
    log: Arc<RequestLog>,
}

impl Drop for AbandonedGuard {
    fn drop(&mut self) {
        let counters = &mut self.log.state().counters;
        counters.abandoned = counters.abandoned.saturating_sub(1);
    }
}

impl RequestLog {
    pub(crate) fn new(max_records: usize) -> Arc<Self> {
        Arc::new(Self {
            max_records,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, RequestLogState> {
        self.state.lock()
    }

    pub(crate) fn record_request(&self, record: RequestRecord) {
        let mut state = self.state();
        state.counters.requests += 1;
        state.requests.push_back(record);
        if state.requests.len() > self.max_records {
            state.requests.pop_front();
        }
    }

    pub(crate) fn record_review(&self, kind: &'static str, spec: serde_json::Value) {
        let mut state = self.state();
        state.reviews.push_back(ReviewRecord { kind, spec });
        if state.reviews.len() > self.max_records {
            state.reviews.pop_front();
        }
    }

    pub(crate) fn reviews(&self) -> Vec<ReviewRecord> {
        self.state().reviews.iter().cloned().collect()
    }

    pub(crate) fn record_response(&self, code: u16) {
        *self.state().counters.by_code.entry(code).or_default() += 1;
    }

    pub(crate) fn record_write(&self, verb: &'static str, resource: &'static str) {
        *self
            .state()
            .counters
            .accepted_writes
            .entry((verb, resource))
            .or_default() += 1;
    }

    /// Begins a request, unless it is an ordinary one and `limit` of them are in flight.
    pub(crate) fn begin_request(
        self: &Arc<Self>,
        class: ServingClass,
        limit: Option<usize>,
    ) -> Option<RequestGuard> {
        let counters = &mut self.state().counters;
        match class {
            ServingClass::InFlight => {
                if limit.is_some_and(|limit| counters.in_flight >= limit) {
                    return None;
                }
                counters.in_flight += 1;
                counters.max_in_flight = counters.max_in_flight.max(counters.in_flight);
            }
            ServingClass::Exempt => {}
            ServingClass::LongRunning => counters.long_running += 1,
        }
        Some(RequestGuard {
            log: Arc::clone(self),
            class,
            seat: None,
            held: None,
        })
    }

    /// Counts a request that a limit of the server rejected.
    pub(crate) fn record_rejection(&self) {
        self.state().counters.rejected += 1;
    }

    /// Counts a connection whose handshake succeeded.
    pub(crate) fn record_connection(&self) {
        self.state().counters.connections += 1;
    }

    /// Counts a running handler whose client has disconnected.
    pub(crate) fn track_abandoned(self: &Arc<Self>) -> AbandonedGuard {
        let counters = &mut self.state().counters;
        counters.abandoned += 1;
        counters.max_abandoned = counters.max_abandoned.max(counters.abandoned);
        AbandonedGuard {
            log: Arc::clone(self),
        }
    }

    /// Counts a connection that was ended because of the streams that were reset on it.
    pub(crate) fn record_too_many_early_resets(&self) {
        self.state().counters.too_many_early_resets += 1;
    }

    pub(crate) fn requests(&self) -> Vec<RequestRecord> {
        self.state().requests.iter().cloned().collect()
    }

    pub(crate) fn counters(&self) -> ServerCounters {
        self.state().counters.clone()
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let counters = &mut self.log.state().counters;
        let count = match self.class {
            ServingClass::Exempt => return,
            ServingClass::InFlight => &mut counters.in_flight,
            ServingClass::LongRunning => &mut counters.long_running,
        };
        *count = count.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::{RequestLog, ServingClass};

    #[test]
    fn the_limit_applies_to_ordinary_requests() {
        let log = RequestLog::new(10);
        let first = log.begin_request(ServingClass::InFlight, Some(1));
        assert!(first.is_some());
        assert!(log.begin_request(ServingClass::InFlight, Some(1)).is_none());
        log.record_rejection();
        let watch = log.begin_request(ServingClass::LongRunning, Some(1));
        assert!(watch.is_some());
        let counters = log.counters();
        assert_eq!(
            (counters.in_flight, counters.long_running, counters.rejected),
            (1, 1, 1)
        );
        drop((first, watch));
        let counters = log.counters();
        assert_eq!(
            (
                counters.in_flight,
                counters.max_in_flight,
                counters.long_running
            ),
            (0, 1, 0)
        );
    }
}
