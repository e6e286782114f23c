//! What an operator sees, as data: one moment of weir, and what was before it.
//!
//! Whatever grows is a running total since the start; who shows it makes rates from the difference of two snapshots. Names
//! may come from clients: they are cut to a length where they are counted, and are for the viewer to show as text and
//! nothing else. Fields that a reader does not know are for it to pass over, and what is missing is empty.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;

use crate::limits::rate::RateLimitSnapshot;

/// One moment of weir.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusSnapshot {
    /// The name of the machine (or Pod) that weir runs on; empty where it is not known.
    pub host: String,
    /// weir's version.
    pub version: String,
    /// When this was: milliseconds since 1970.
    pub unix_ms: u64,
    /// How long weir runs.
    pub uptime_seconds: f64,
    /// Whether it can do its work.
    pub readiness: ReadinessStatus,
    /// The way to the API server.
    pub upstream: UpstreamStatus,
    /// Requests of clients.
    pub requests: RequestsStatus,
    /// Requests that a limit refused, by the limit: `queue-full`, `time-out`, `client-limit` ...
    pub rejections: BTreeMap<String, u64>,
    /// How it is decided how many requests go on at a time.
    pub mode: AdmissionMode,
    /// `--flowcontrol-enforcement=DryRun`: every request goes on at once, and what levels say of themselves is what would be.
    pub dry_run: bool,
    /// Requests that a level would have refused in a dry run, by reason; none of them is among the rejections.
    pub would_be_rejections: BTreeMap<String, u64>,
    /// Priority levels by name; with max-in-flight its two kinds of requests.
    pub levels: Vec<LevelStatus>,
    /// Event limits and client limits, in the order of the configuration.
    pub rate_limits: Vec<RateLimitSnapshot>,
    /// Refusals that are held back.
    pub holds: HoldsStatus,
    /// Connections of clients.
    pub connections: ConnectionsStatus,
    /// Who asks most.
    pub talkers: Vec<TopTalkersStatus>,
}

/// Whether weir can do its work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReadinessStatus {
    /// What `/readyz` says; none where nobody has asked yet.
    pub ready: Option<bool>,
    /// Whether it has been told to go.
    pub shutting_down: bool,
    /// Why the API server does not believe weir's front-proxy certificate.
    pub front_proxy_failure: Option<String>,
    /// Why the upstream counts as a loop, if it does.
    pub loop_failure: Option<String>,
    /// Why the API server does not answer.
    pub upstream_failure: Option<String>,
}

/// The way to the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpstreamStatus {
    /// The API server, as HOST:PORT.
    pub address: String,
    /// Open connections, by the way that they serve.
    pub connections: BTreeMap<String, u64>,
    /// Requests of clients that got no answer, by cause.
    pub failures: BTreeMap<String, u64>,
    /// The last of them.
    pub last_failure: Option<FailureStatus>,
    /// Places for requests, by kind: long-running ones, and those without a proven credential.
    pub places: Vec<SlotsStatus>,
}

/// Places for requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlotsStatus {
    /// `long-running`, `watch` ..., as in `weir_upstream_places`.
    pub kind: String,
    /// How many there are.
    pub total: u64,
    /// How many are taken.
    pub taken: u64,
    /// The users and addresses that hold most of them, most first. One request counts for its user and for its address.
    pub holders: Vec<SlotHolderStatus>,
}

/// A user or an address, and what it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlotHolderStatus {
    /// `user`, `sourceAddress`, or `watches`: the connections that watches share.
    pub by: String,
    /// The name's beginning; empty for `watches`.
    pub name: String,
    /// Places that it holds.
    pub taken: u64,
}

/// A request that got no answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailureStatus {
    /// When: milliseconds since 1970.
    pub unix_ms: u64,
    /// Why.
    pub why: String,
}

/// Requests of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestsStatus {
    /// Under way now, those that wait among them; without long-running ones.
    pub in_flight: u64,
    /// Open watches.
    pub watches: u64,
    /// Ended, by HTTP code.
    pub by_code: BTreeMap<u16, u64>,
    /// Ended by their clients before there was an answer.
    pub aborted: u64,
}

/// How it is decided how many requests go on at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdmissionMode {
    /// Two counters.
    MaxInFlight,
    /// API Priority and Fairness.
    #[default]
    PriorityAndFairness,
}

/// A priority level, or one of the two kinds of max-in-flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LevelStatus {
    /// Its name.
    pub name: String,
    /// What it does with a request too many.
    pub kind: LevelKind,
    /// Not in the configuration any more; goes with its last request.
    pub quiescing: bool,
    /// Seats taken; with max-in-flight one a request.
    pub seats_in_use: u64,
    /// Requests that have them.
    pub executing: u64,
    /// Seats there are now, with what is borrowed and without what is lent; none: no bound.
    pub current_limit: Option<u32>,
    /// Seats by its shares.
    pub nominal_limit: Option<u32>,
    /// Fewest seats that it can come to have.
    pub lower_limit: Option<u32>,
    /// Most seats that it can come to have.
    pub upper_limit: Option<u32>,
    /// Requests that wait.
    pub waiting: u64,
    /// Seats that these will take.
    pub waiting_seats: u64,
    /// Its queues, and in how many of them somebody waits.
    pub queues: u64,
    /// See `queues`.
    pub active_queues: u64,
    /// How many requests a queue may hold.
    pub queue_length_limit: u64,
    /// Requests that were let through.
    pub dispatched: u64,
    /// Requests that were refused, or in a dry run would have been, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// How long requests waited that were let through or gave up.
    pub waits: QueueWaitStatus,
}

/// What a level does with a request too many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LevelKind {
    /// There is none.
    Exempt,
    /// It is one of max-in-flight's.
    InFlight,
    /// It waits.
    #[default]
    Queue,
    /// It is refused.
    Reject,
}

/// Times that requests waited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueWaitStatus {
    /// Requests.
    pub count: u64,
    /// The sum of their times.
    pub seconds: f64,
    /// Upper bounds in seconds, and how many did not wait longer.
    pub buckets: Vec<(f64, u64)>,
}

/// Refusals that are held back, because their clients did not wait as they were told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HoldsStatus {
    /// Held now.
    pub now: u64,
    /// The flows that these are of.
    pub flows: u64,
    /// Held since the start, those of now left out.
    pub ended: u64,
}

/// Connections of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectionsStatus {
    /// Open now.
    pub open: u64,
    /// The most there may be.
    pub most: u64,
}

/// Who asks most, by one of the things that tell requests apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopTalkersStatus {
    /// `user`, `userAgent`, `namespace` ...
    pub by: String,
    /// Over how long.
    pub window_seconds: u64,
    /// What all have asked together, shown or not.
    pub requests: u64,
    /// Those who are first by any measure; by requests first.
    pub rows: Vec<TalkerStatus>,
}

/// One who asks much, in the window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TalkerStatus {
    /// The name's beginning.
    pub name: String,
    /// Requests.
    pub requests: u64,
    /// Seats, by how long they were taken.
    pub seat_seconds: f64,
    /// Bytes of answers.
    pub bytes: u64,
    /// Requests that were refused.
    pub rejections: u64,
    /// Time in queues.
    pub queue_wait_seconds: f64,
    /// So many requests more it may have made, at most.
    pub error: u64,
}

/// The last minutes, a column for each thing that is plotted; all have as many values, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusHistory {
    /// How far the values are apart, unless weir was busy.
    pub every_seconds: u64,
    /// When each was: milliseconds since 1970.
    pub unix_ms: Vec<u64>,
    /// Requests a second that ended, by the class of their code: `2xx` ...
    pub codes: BTreeMap<String, Vec<f32>>,
    /// Requests a second that a limit refused.
    pub rejected: Vec<f32>,
    /// By the level's name.
    pub levels: BTreeMap<String, LevelHistory>,
}

/// The last minutes of a level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LevelHistory {
    /// Seats there were; 0 where there was no bound.
    pub limit: Vec<u32>,
    /// Seats taken.
    pub seats: Vec<u32>,
    /// Requests that waited.
    pub waiting: Vec<u32>,
    /// Requests a second that were refused.
    pub rejected: Vec<f32>,
}

impl LevelStatus {
    /// All that were refused.
    #[must_use]
    pub fn rejected_total(&self) -> u64 {
        self.rejected.values().sum()
    }

    /// Seats that it has of others (or, below zero, that others have of it).
    #[must_use]
    pub fn borrowed_seats(&self) -> i64 {
        match (self.current_limit, self.nominal_limit) {
            (Some(current), Some(nominal)) => i64::from(current) - i64::from(nominal),
            _ => 0,
        }
    }
}
