//! What a log says, in memory: requests as they arrived, and the ends of long-running ones. Pure.

use std::borrow::Cow;
use std::num::NonZeroU64;

use super::clients::ClientId;
use super::clients::SchemaId;
use crate::flowcontrol::fairqueuing::seats::WorkEstimate;

/// An entry of a log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LogItem {
    /// A request.
    Request(LoggedRequest),
    /// The end of a long-running request.
    StreamEnd {
        /// Its id: see [`LoggedRequest::stream`].
        stream: u64,
        /// Microseconds, as [`LoggedRequest::at_us`].
        at_us: i64,
    },
}

/// A request of a log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoggedRequest {
    /// The arrival, in microseconds since the Unix epoch (or since any other moment).
    pub(crate) at_us: i64,
    /// Who sent it.
    pub(crate) client: ClientId,
    /// The method, as `GET`.
    pub(crate) method: Cow<'static, str>,
    /// The target of the request line.
    pub(crate) url: Box<[u8]>,
    /// Nanoseconds from the dispatch to the release of its seats. `None` if the log does not say.
    pub(crate) service_ns: Option<u64>,
    /// What became of it.
    pub(crate) recorded: RecordedOutcome,
    /// The seats that a weir has estimated for it.
    pub(crate) seats: Option<u32>,
    /// The bytes of the response, if it was successful and the log says.
    pub(crate) bytes: Option<NonZeroU64>,
    /// What event limits look at, if the log says.
    pub(crate) event: Option<Box<LoggedEvent>>,
    /// Of a long-running request that has not ended: its id. 0 for any other.
    pub(crate) stream: u64,
    /// Its place in the order of decisions, if the log has that.
    pub(crate) order: Option<Box<RecordedOrder>>,
}

/// The steps of a request in the order of all decisions of one weir. The first number is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordedOrder {
    /// Whose numbers these are: a process, from the begin to the end of its record.
    pub(crate) run: u64,
    /// When the level decided about the arrival, in nanoseconds as [`LoggedRequest::at_us`].
    pub(crate) at_ns: i64,
    /// The arrival.
    pub(crate) arrival: u64,
    /// The request left its level, or its queue.
    pub(crate) departure: Option<u64>,
    /// The step from which its dispatch followed. 0: none that has a number. `None`: it was not
    /// dispatched.
    pub(crate) dispatch: Option<u64>,
    /// Its seats were free at last.
    pub(crate) lingered: Option<u64>,
    /// Nanoseconds from the departure to that.
    pub(crate) lingered_ns: u64,
    /// What it was estimated at.
    pub(crate) work: Option<WorkEstimate>,
    /// The last adjustment of seats before the arrival, if no earlier request has it.
    pub(crate) adjustment: Option<RecordedAdjustment>,
}

/// An adjustment of seats in the order of all decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedAdjustment {
    /// Its number. 0: it was before the record.
    pub(crate) number: u64,
    /// When it was, in nanoseconds as [`RecordedOrder::at_ns`].
    pub(crate) at_ns: i64,
}

/// What became of a request when it was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordedOutcome {
    /// Nanoseconds in queues and for rate limits.
    pub(crate) wait_ns: u64,
    /// Whether a limit has rejected it.
    pub(crate) rejected: bool,
    /// Whether its client went away before a response.
    pub(crate) cancelled: bool,
    /// The status code of the response, if there was one.
    pub(crate) code: Option<u16>,
    /// The flow schema that it matched, if the log says.
    pub(crate) flow_schema: Option<SchemaId>,
}

/// What event limits look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoggedEvent {
    /// What stands for source and object.
    pub(crate) key: Box<str>,
    /// Whether the event is a warning.
    pub(crate) warning: bool,
}

impl LogItem {
    /// The same at another time, which is not the recorded one: without its place in the order of
    /// decisions.
    #[must_use]
    pub(crate) fn moved_to(mut self, time_us: i64) -> Self {
        match &mut self {
            Self::Request(request) => {
                request.at_us = time_us;
                request.order = None;
            }
            Self::StreamEnd { at_us, .. } => *at_us = time_us,
        }
        self
    }

    /// When it happened.
    #[must_use]
    pub(crate) const fn at_us(&self) -> i64 {
        match self {
            Self::Request(request) => request.at_us,
            Self::StreamEnd { at_us, .. } => *at_us,
        }
    }
}
