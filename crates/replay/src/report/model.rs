//! The report of a replay: what `-o json` prints, and what tables and pages are made from. Pure.
//!
//! Times are in milliseconds or seconds, as their names say. Lists are sorted: groups by what they
//! lost (rejected, then waited, then arrived), levels by name.

use serde::Serialize;
use std::collections::BTreeMap;

/// A replay of one log under one or two configurations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was read.
    pub input: InputReport,
    /// The assumptions of the simulation.
    pub model: ModelReport,
    /// One for each configuration: that of the flags, then that of `--compare`.
    pub runs: Vec<RunReport>,
    /// The users whose requests fare worse or better: compared with the record, or, with
    /// `--compare`, under the second configuration compared with the first.
    pub changes: ChangesReport,
}

/// What was read of the log.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct InputReport {
    /// Lines that are not empty.
    pub lines: u64,
    /// Bytes, after decompression.
    pub bytes: u64,
    /// Requests that were replayed.
    pub arrivals: u64,
    /// The time of the first arrival, in RFC 3339.
    pub first: Option<String>,
    /// The time of the last arrival.
    pub last: Option<String>,
    /// The time between both, in seconds.
    pub duration_s: f64,
    /// Audit events that only say that a request was received: the same request has another event
    /// when it ends.
    pub received_events: u64,
    /// Audit events of the end of a long-running request whose start was replayed.
    pub end_events: u64,
    /// Requests that the log says were rejected.
    pub recorded_rejected: u64,
    /// Seconds that requests waited that were dispatched, as far as the log says.
    pub recorded_wait_s: f64,
    /// Recorded rejections that were left out, since the simulated clients repeat requests
    /// themselves.
    pub left_out_retries: u64,
    /// What could not be used.
    pub skipped: SkippedReport,
    /// How far arrivals were out of order.
    pub order: OrderReport,
    /// Whether the first configuration has the flow schemas under which the log was written. `None` if
    /// the log does not say which they were, and with max-in-flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classification: Option<ClassificationReport>,
    /// Whether clients wait for their own requests.
    pub waiting: WaitingReport,
}

/// Requests of which the log says how long they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WaitingReport {
    /// How many there are, without long-running ones.
    pub requests: u64,
    /// Those of clients that send the next one when the one before has ended.
    pub of_waiting: u64,
}

impl WaitingReport {
    /// Whether most requests are of clients that wait for their own requests: a model in which they
    /// do not predicts rejections that such clients do not see.
    #[must_use]
    pub const fn is_closed_loop(self) -> bool {
        self.of_waiting > 0 && self.of_waiting >= self.requests - self.of_waiting
    }
}

/// Requests whose recorded flow schema is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClassificationReport {
    /// How many there are.
    pub recorded: u64,
    /// Those that match another flow schema of the first configuration.
    pub different: u64,
}

/// Lines that are not used, or only in part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SkippedReport {
    /// Lines that are not JSON.
    pub not_json: u64,
    /// The last lines of files that end within a line.
    pub truncated: u64,
    /// Compressed files with other bytes behind their end than zeros.
    pub trailing: u64,
    /// JSON that is neither an audit event nor an arrival.
    pub not_events: u64,
    /// Events without a usable time, user, method or URL.
    pub incomplete: u64,
    /// Requests that kube-apiserver itself would not understand.
    pub malformed_requests: u64,
    /// Fields that are not known. Their lines are used.
    pub unknown_fields: u64,
    /// Arrivals that a record says it has lost.
    pub not_recorded: u64,
}

/// How far arrivals were out of order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OrderReport {
    /// Arrivals are sorted within this time, in seconds.
    pub window_s: f64,
    /// Arrivals that came later than that in the log. They are replayed late.
    pub late: u64,
    /// By how much at most, in seconds.
    pub latest_by_s: f64,
}

impl InputReport {
    /// Why the model of the clients does not fit the log. `None` if nothing speaks against it.
    #[must_use]
    pub fn unfit_clients(&self, model: &ModelReport) -> Option<String> {
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
    pub const fn is_out_of_order(&self) -> bool {
        self.order.late.saturating_mul(100) > self.arrivals
    }
}

/// The assumptions of the simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelReport {
    /// `open`, `client-go`, `impatient`, `closed-client-go` or `closed-impatient`.
    pub clients: &'static str,
    /// Recorded service times are multiplied by this.
    pub service_time_scale: f64,
    /// Requests that the API server works on at full speed at a time. `None`: any number.
    pub capacity: Option<f64>,
}

/// The outcome under one configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunReport {
    /// The name of the configuration: its file, or `flags`.
    pub policies: String,
    /// `fairness` or `max-in-flight`.
    pub limiter: &'static str,
    /// The seats of all levels, or the slots of both kinds. 0: not limited.
    pub seats: u64,
    /// All requests.
    pub total: GroupReport,
    /// The priority levels, by name. With max-in-flight, the request kinds.
    pub levels: Vec<LevelReport>,
    /// The flow schemas.
    pub schemas: GroupsReport,
    /// The flows, each of a schema.
    pub flows: GroupsReport,
    /// The users.
    pub users: GroupsReport,
    /// The user agents.
    pub user_agents: GroupsReport,
    /// The addresses of clients.
    pub sources: GroupsReport,
    /// The same over time.
    pub series: SeriesReport,
    /// How much later clients sent than in the record. `None` if clients do not wait for their own
    /// requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed_loop: Option<ClosedLoopReport>,
    /// The total that was found. `None` if it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_total: Option<AutoTotalReport>,
}

/// A total that was found as the proxy finds it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AutoTotalReport {
    /// The least total, in seats.
    pub least: u32,
    /// The greatest.
    pub greatest: u32,
    /// That at the end.
    pub last: u32,
    /// How often it changed.
    pub changes: u64,
    /// What an urgent small read might take, in milliseconds.
    pub target_ms: f64,
    /// The changes by more than a fifth, which the proxy would log: the first 1,000.
    pub large_changes: Vec<TotalChangeReport>,
}

/// A change of a total that was found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TotalChangeReport {
    /// Seconds since the first arrival.
    pub at_s: f64,
    /// The total from then on, in seats.
    pub seats: u32,
    /// Why, in words.
    pub reason: &'static str,
}

/// What closed-loop clients sent later than in the record, because they waited for earlier requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ClosedLoopReport {
    /// Requests that were sent later.
    pub sent_later: u64,
    /// By so many seconds on average.
    pub mean_s: f64,
    /// By so many seconds at most.
    pub longest_s: f64,
    /// Seconds for which the whole log waited, since too many requests did.
    pub log_paused_s: f64,
}

/// Groups of requests: those that lost most.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GroupsReport {
    /// How many groups there are.
    pub count: u64,
    /// The first of them.
    pub top: Vec<GroupReport>,
    /// All others together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others: Option<GroupReport>,
}

/// A group of requests. Each attempt of a client that repeats a request counts:
/// `arrivals = executed + rejected + cancelled + unfinished`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GroupReport {
    /// The name of the group.
    pub name: String,
    /// Of a flow or a schema: its priority level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_level: Option<String>,
    /// Of a flow: its flow schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_schema: Option<String>,
    /// Requests that arrived, with those that clients repeated.
    pub arrivals: u64,
    /// Those that were executed to their end.
    pub executed: u64,
    /// Those that were rejected.
    pub rejected: u64,
    /// Rejected requests by the limit that rejected them, as in weir's metrics.
    pub rejected_by: BTreeMap<&'static str, u64>,
    /// Those whose client went away before they were executed.
    pub cancelled: u64,
    /// Those that waited or executed when the replay ended.
    pub unfinished: u64,
    /// Those of `arrivals` that repeat a rejected request.
    pub retries: u64,
    /// Rejected requests that a client did not repeat any more.
    pub gave_up: u64,
    /// Rejections that were held back, because the client did not wait.
    pub held: u64,
    /// Waits of the requests that were dispatched, zeros included.
    pub wait: WaitReport,
    /// Seats times the time for which they were occupied.
    pub seat_seconds: f64,
    /// What the log says became of the same requests.
    pub recorded: RecordedReport,
}

/// The waits before dispatch, in queues and for rate limits. Percentiles are exact to 1/16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WaitReport {
    /// Requests that waited at all.
    pub waited: u64,
    /// The median.
    pub p50_ms: f64,
    /// 99 of 100 waited no longer.
    pub p99_ms: f64,
    /// The longest wait.
    pub max_ms: f64,
    /// All waits together, in seconds.
    pub total_s: f64,
}

/// What the log says became of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RecordedReport {
    /// Requests that were rejected by a limit.
    pub rejected: u64,
    /// Seconds that requests waited that were dispatched.
    pub wait_s: f64,
}

/// A priority level, or a request kind of max-in-flight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LevelReport {
    /// Its requests.
    #[serde(flatten)]
    pub requests: GroupReport,
    /// `Exempt`, `Queue`, `Reject`, or `MaxInFlight`.
    pub kind: &'static str,
    /// The seats by the configuration: nominal, least and most with borrowing.
    pub nominal_seats: u32,
    /// The seats that the level never lends.
    pub min_seats: u32,
    /// The most seats with all that the level may borrow.
    pub max_seats: u32,
    /// The least and the most seats that it had by borrowing.
    pub least_limit: u32,
    /// See `least_limit`.
    pub greatest_limit: u32,
    /// The most seats that were occupied at a time.
    pub most_seats_in_use: u64,
    /// The most requests that waited at a time.
    pub most_waiting: u64,
}

/// Counts over time. All lists have one entry for each step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SeriesReport {
    /// The time of the first step, in RFC 3339.
    pub start: Option<String>,
    /// The length of a step in seconds.
    pub step_s: f64,
    /// The levels, in the order of `levels` of the run.
    pub levels: Vec<LevelSeries>,
}

/// A level over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LevelSeries {
    /// The name of the level.
    pub name: String,
    /// Requests that arrived.
    pub arrivals: Vec<u64>,
    /// Requests that were dispatched.
    pub dispatched: Vec<u64>,
    /// Requests that were rejected.
    pub rejected: Vec<u64>,
    /// The longest wait of a request that was dispatched, in milliseconds.
    pub longest_wait_ms: Vec<f64>,
    /// The average number of occupied seats.
    pub seats_in_use: Vec<f64>,
    /// The average limit, which borrowing changes.
    pub seats_limit: Vec<f64>,
    /// The most requests that waited at a time.
    pub waiting: Vec<u64>,
}

/// Who fares worse and who better.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChangesReport {
    /// What is compared: the name of a configuration, or `recorded`.
    pub before: String,
    /// With what.
    pub after: String,
    /// Those that lose most, first.
    pub losers: Vec<Change>,
    /// Those that win most, first.
    pub winners: Vec<Change>,
}

/// What changes for a user.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The user.
    pub user: String,
    /// Its requests, under the second.
    pub arrivals: u64,
    /// Rejected requests, before and after.
    pub rejected: [u64; 2],
    /// Seconds of waiting, before and after.
    pub wait_s: [f64; 2],
}

/// Rejections and waits of a group, in a simulation and in the record.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupLoss {
    /// Requests, with those that clients repeated.
    pub arrivals: u64,
    /// Rejected requests.
    pub rejected: u64,
    /// Seconds of waiting of the requests that were dispatched.
    pub wait_s: f64,
    /// Requests that the log says were rejected.
    pub recorded_rejected: u64,
    /// Seconds of waiting, as far as the log says.
    pub recorded_wait_s: f64,
}
