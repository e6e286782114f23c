//! The report of a replay: what `-o json` prints, and what tables and pages are made from. Pure.
//!
//! Times are in milliseconds or seconds, as their names say. Lists are sorted: groups by what they
//! lost (rejected, then waited, then arrived), levels by name.

use std::collections::BTreeMap;

use serde::Serialize;

/// A replay of one log under one or two configurations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    /// What was read.
    pub(crate) input: InputReport,
    /// The assumptions of the simulation.
    pub(crate) model: ModelReport,
    /// One for each configuration: that of the flags, then that of `--compare`.
    pub(crate) runs: Vec<RunReport>,
    /// The users whose requests fare worse or better: compared with the record, or, with
    /// `--compare`, under the second configuration compared with the first.
    pub(crate) changes: ChangesReport,
}

/// What was read of the log.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct InputReport {
    /// Lines that are not empty.
    pub(crate) lines: u64,
    /// Bytes, after decompression.
    pub(crate) bytes: u64,
    /// Requests that were replayed.
    pub(crate) arrivals: u64,
    /// The time of the first arrival, in RFC 3339.
    pub(crate) first: Option<String>,
    /// The time of the last arrival.
    pub(crate) last: Option<String>,
    /// The time between both, in seconds.
    pub(crate) duration_s: f64,
    /// Audit events that only say that a request was received: the same request has another event
    /// when it ends.
    pub(crate) received_events: u64,
    /// Audit events of the end of a long-running request whose start was replayed.
    pub(crate) end_events: u64,
    /// Requests that the log says were rejected.
    pub(crate) recorded_rejected: u64,
    /// Seconds that requests waited that were dispatched, as far as the log says.
    pub(crate) recorded_wait_s: f64,
    /// Recorded rejections that were left out, since the simulated clients repeat requests
    /// themselves.
    pub(crate) left_out_retries: u64,
    /// What could not be used.
    pub(crate) skipped: SkippedReport,
    /// How far arrivals were out of order.
    pub(crate) order: OrderReport,
    /// Whether the first configuration has the flow schemas under which the log was written. `None` if
    /// the log does not say which they were, and with max-in-flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) classification: Option<ClassificationReport>,
    /// Whether clients wait for their own requests.
    pub(crate) waiting: WaitingReport,
}

/// Requests of which the log says how long they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct WaitingReport {
    /// How many there are, without long-running ones.
    pub(crate) requests: u64,
    /// Those of clients that send the next one when the one before has ended.
    pub(crate) of_waiting: u64,
}

impl WaitingReport {
    /// Whether most requests are of clients that wait for their own requests: a model in which they
    /// do not predicts rejections that such clients do not see.
    #[must_use]
    pub(crate) const fn is_closed_loop(self) -> bool {
        self.of_waiting > 0 && self.of_waiting >= self.requests - self.of_waiting
    }
}

/// Requests whose recorded flow schema is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ClassificationReport {
    /// How many there are.
    pub(crate) recorded: u64,
    /// Those that match another flow schema of the first configuration.
    pub(crate) different: u64,
}

/// Lines that are not used, or only in part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SkippedReport {
    /// Lines that are not JSON.
    pub(crate) not_json: u64,
    /// The last lines of files that end within a line.
    pub(crate) truncated: u64,
    /// Compressed files with other bytes behind their end than zeros.
    pub(crate) trailing: u64,
    /// JSON that is neither an audit event nor an arrival.
    pub(crate) not_events: u64,
    /// Events without a usable time, user, method or URL.
    pub(crate) incomplete: u64,
    /// Requests that kube-apiserver itself would not understand.
    pub(crate) malformed_requests: u64,
    /// Fields that are not known. Their lines are used.
    pub(crate) unknown_fields: u64,
    /// Arrivals that a record says it has lost.
    pub(crate) not_recorded: u64,
}

/// How far arrivals were out of order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct OrderReport {
    /// Arrivals are sorted within this time, in seconds.
    pub(crate) window_s: f64,
    /// Arrivals that came later than that in the log. They are replayed late.
    pub(crate) late: u64,
    /// By how much at most, in seconds.
    pub(crate) latest_by_s: f64,
}

impl InputReport {
    /// Why the model of the clients does not fit the log. `None` if nothing speaks against it.
    #[must_use]
    pub(crate) fn unfit_clients(&self, model: &ModelReport) -> Option<String> {
        let waiting = self.waiting;
        (waiting.is_closed_loop() && !model.clients.starts_with("closed")).then(|| {
            format!(
                "{} of {} requests are of clients that wait for their own requests. --clients closed-client-go fits this \
                 log: with --clients {} fewer seats reject more than these clients would see",
                waiting.of_waiting, waiting.requests, model.clients
            )
        })
    }

    /// Whether so many requests are replayed late that the results mean little.
    #[must_use]
    pub(crate) const fn is_out_of_order(&self) -> bool {
        self.order.late.saturating_mul(100) > self.arrivals
    }
}

/// The assumptions of the simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ModelReport {
    /// `open`, `client-go`, `impatient`, `closed-client-go` or `closed-impatient`.
    pub(crate) clients: &'static str,
    /// Recorded service times are multiplied by this.
    pub(crate) service_time_scale: f64,
    /// Requests that the API server works on at full speed at a time. `None`: any number.
    pub(crate) capacity: Option<f64>,
}

/// The outcome under one configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RunReport {
    /// The name of the configuration: its file, or `flags`.
    pub(crate) policies: String,
    /// `fairness` or `max-in-flight`.
    pub(crate) limiter: &'static str,
    /// The seats of all levels, or the slots of both kinds. 0: not limited.
    pub(crate) seats: u64,
    /// All requests.
    pub(crate) total: GroupReport,
    /// The priority levels, by name. With max-in-flight, the request kinds.
    pub(crate) levels: Vec<LevelReport>,
    /// The flow schemas.
    pub(crate) schemas: GroupsReport,
    /// The flows, each of a schema.
    pub(crate) flows: GroupsReport,
    /// The users.
    pub(crate) users: GroupsReport,
    /// The user agents.
    pub(crate) user_agents: GroupsReport,
    /// The addresses of clients.
    pub(crate) sources: GroupsReport,
    /// The same over time.
    pub(crate) series: SeriesReport,
    /// How much later clients sent than in the record. `None` if clients do not wait for their own
    /// requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) closed_loop: Option<ClosedLoopReport>,
}

/// What closed-loop clients sent later than in the record, because they waited for earlier requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ClosedLoopReport {
    /// Requests that were sent later.
    pub(crate) sent_later: u64,
    /// By so many seconds on average.
    pub(crate) mean_s: f64,
    /// By so many seconds at most.
    pub(crate) longest_s: f64,
    /// Seconds for which the whole log waited, since too many requests did.
    pub(crate) log_paused_s: f64,
}

/// Groups of requests: those that lost most.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct GroupsReport {
    /// How many groups there are.
    pub(crate) count: u64,
    /// The first of them.
    pub(crate) top: Vec<GroupReport>,
    /// All others together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) others: Option<GroupReport>,
}

/// A group of requests. Each attempt of a client that repeats a request counts:
/// `arrivals = executed + rejected + cancelled + unfinished`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct GroupReport {
    /// The name of the group.
    pub(crate) name: String,
    /// Of a flow or a schema: its priority level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority_level: Option<String>,
    /// Of a flow: its flow schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) flow_schema: Option<String>,
    /// Requests that arrived, with those that clients repeated.
    pub(crate) arrivals: u64,
    /// Those that were executed to their end.
    pub(crate) executed: u64,
    /// Those that were rejected.
    pub(crate) rejected: u64,
    /// Rejected requests by the limit that rejected them, as in weir's metrics.
    pub(crate) rejected_by: BTreeMap<&'static str, u64>,
    /// Those whose client went away before they were executed.
    pub(crate) cancelled: u64,
    /// Those that waited or executed when the replay ended.
    pub(crate) unfinished: u64,
    /// Those of `arrivals` that repeat a rejected request.
    pub(crate) retries: u64,
    /// Rejected requests that a client did not repeat any more.
    pub(crate) gave_up: u64,
    /// Rejections that were held back, because the client did not wait.
    pub(crate) held: u64,
    /// Waits of the requests that were dispatched, zeros included.
    pub(crate) wait: WaitReport,
    /// Seats times the time for which they were occupied.
    pub(crate) seat_seconds: f64,
    /// What the log says became of the same requests.
    pub(crate) recorded: RecordedReport,
}

/// The waits before dispatch, in queues and for rate limits. Percentiles are exact to 1/16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct WaitReport {
    /// Requests that waited at all.
    pub(crate) waited: u64,
    /// The median.
    pub(crate) p50_ms: f64,
    /// 99 of 100 waited no longer.
    pub(crate) p99_ms: f64,
    /// The longest wait.
    pub(crate) max_ms: f64,
    /// All waits together, in seconds.
    pub(crate) total_s: f64,
}

/// What the log says became of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct RecordedReport {
    /// Requests that were rejected by a limit.
    pub(crate) rejected: u64,
    /// Seconds that requests waited that were dispatched.
    pub(crate) wait_s: f64,
}

/// A priority level, or a request kind of max-in-flight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LevelReport {
    /// Its requests.
    #[serde(flatten)]
    pub(crate) requests: GroupReport,
    /// `Exempt`, `Queue`, `Reject`, or `MaxInFlight`.
    pub(crate) kind: &'static str,
    /// The seats by the configuration: nominal, least and most with borrowing.
    pub(crate) nominal_seats: u32,
    /// The seats that the level never lends.
    pub(crate) min_seats: u32,
    /// The most seats with all that the level may borrow.
    pub(crate) max_seats: u32,
    /// The least and the most seats that it had by borrowing.
    pub(crate) least_limit: u32,
    /// See `least_limit`.
    pub(crate) greatest_limit: u32,
    /// The most seats that were occupied at a time.
    pub(crate) most_seats_in_use: u64,
    /// The most requests that waited at a time.
    pub(crate) most_waiting: u64,
}

/// Counts over time. All lists have one entry for each step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct SeriesReport {
    /// The time of the first step, in RFC 3339.
    pub(crate) start: Option<String>,
    /// The length of a step in seconds.
    pub(crate) step_s: f64,
    /// The levels, in the order of `levels` of the run.
    pub(crate) levels: Vec<LevelSeries>,
}

/// A level over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct LevelSeries {
    /// The name of the level.
    pub(crate) name: String,
    /// Requests that arrived.
    pub(crate) arrivals: Vec<u64>,
    /// Requests that were dispatched.
    pub(crate) dispatched: Vec<u64>,
    /// Requests that were rejected.
    pub(crate) rejected: Vec<u64>,
    /// The longest wait of a request that was dispatched, in milliseconds.
    pub(crate) longest_wait_ms: Vec<f64>,
    /// The average number of occupied seats.
    pub(crate) seats_in_use: Vec<f64>,
    /// The average limit, which borrowing changes.
    pub(crate) seats_limit: Vec<f64>,
    /// The most requests that waited at a time.
    pub(crate) waiting: Vec<u64>,
}

/// Who fares worse and who better.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ChangesReport {
    /// What is compared: the name of a configuration, or `recorded`.
    pub(crate) before: String,
    /// With what.
    pub(crate) after: String,
    /// Those that lose most, first.
    pub(crate) losers: Vec<Change>,
    /// Those that win most, first.
    pub(crate) winners: Vec<Change>,
}

/// What changes for a user.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Change {
    /// The user.
    pub(crate) user: String,
    /// Its requests, under the second.
    pub(crate) arrivals: u64,
    /// Rejected requests, before and after.
    pub(crate) rejected: [u64; 2],
    /// Seconds of waiting, before and after.
    pub(crate) wait_s: [f64; 2],
}
