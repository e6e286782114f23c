//! The status of weir as plain data: one snapshot, and the history before it.
//!
//! Growing numbers are totals since the start; a viewer computes rates from the difference of two
//! snapshots. Names may come from clients: they are truncated where they are counted, and viewers
//! must display them as text only. A reader ignores unknown fields and treats missing ones as
//! empty.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::alarms::AlarmStatus;
use crate::marks::MarkStatus;
use weir_kubernetes::numeric::to_f64;
use weir_limits::levers::LeverSnapshot;
use weir_limits::rate::top_keys::{RateLimitSnapshot, TopKey};

/// A snapshot of weir's status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusSnapshot {
    /// The name of the machine (or Pod) that weir runs on. Empty if it is not known.
    pub host: String,
    /// The version of weir.
    pub version: String,
    /// The time of the snapshot in milliseconds since 1970.
    pub unix_ms: u64,
    /// Seconds since weir started.
    pub uptime_seconds: f64,
    /// The readiness of weir.
    pub readiness: ReadinessStatus,
    /// What hurts clients most now.
    pub headline: Headline,
    /// What an operator has to act on, the critical ones first.
    pub alarms: Vec<AlarmStatus>,
    /// What an operator blocks and limits, oldest first.
    pub levers: Vec<LeverSnapshot>,
    /// Which configuration is in force.
    pub config: ConfigReport,
    /// Connections and failures towards the API server.
    pub upstream: UpstreamStatus,
    /// The weirs that divide the totals. `None` if this one does not.
    pub replicas: Option<ReplicasStatus>,
    /// Which replicas the snapshot is of. `None`: of the one that has sent it.
    pub view: Option<ReplicaViewStatus>,
    /// Requests of clients.
    pub requests: RequestsStatus,
    /// Rejected requests by limit: `queue-full`, `time-out`, `client-limit` ...
    pub rejections: BTreeMap<String, u64>,
    /// The mode in which weir limits concurrent requests.
    pub mode: AdmissionMode,
    /// The total that weir finds by itself. `None` if it is a number of the configuration.
    pub total: Option<TotalStatus>,
    /// weir's total beside that of the API server.
    pub seats: SeatsStatus,
    /// `--flowcontrol-enforcement=DryRun`: all requests execute at once, and the numbers of levels
    /// are those of a simulation.
    pub dry_run: bool,
    /// Requests that limits would have rejected that only count, by limit. They are not among the
    /// rejections.
    pub would_be_rejections: BTreeMap<String, u64>,
    /// The users whose requests these were, those with most first.
    pub would_be_rejected: Vec<TopKey>,
    /// How many users these are; as many as are tracked (64) or more.
    pub would_be_rejected_users: u64,
    /// Priority levels by name; with max-in-flight, its two kinds of requests.
    pub levels: Vec<LevelStatus>,
    /// The flow schemas and priority levels in force. Empty with max-in-flight.
    pub flowcontrol: FlowcontrolStatus,
    /// Event limits and client limits, in the order of the configuration.
    pub rate_limits: Vec<RateLimitSnapshot>,
    /// Rejections that are delayed.
    pub holds: HoldsStatus,
    /// Connections of clients.
    pub connections: ConnectionsStatus,
    /// The processor time and the memory of this process.
    pub process: ProcessStatus,
    /// What was lost since the start, by the alarm that tells of it: events of the audit log, lines of
    /// the log, requests of a record ...
    pub losses: BTreeMap<String, u64>,
    /// When certificates and weir's own credential end, the first one first.
    pub expiries: Vec<ExpiryStatus>,
    /// What has changed in the last 15 minutes, oldest first.
    pub marks: Vec<MarkStatus>,
    /// The top talkers by window and dimension.
    pub talkers: Vec<TopTalkersStatus>,
}

/// How urgent a headline is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeadlineSeverity {
    /// Nothing hurts.
    Calm,
    /// Nothing is known yet.
    #[default]
    Unknown,
    /// An operator should look.
    Warning,
    /// Requests fail, or wait for long.
    Critical,
}

/// What hurts clients most now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Headline {
    /// That of the worst trouble of all.
    pub severity: HeadlineSeverity,
    /// The worst trouble, in a line.
    pub text: String,
    /// More of it: the users and the level.
    pub detail: String,
    /// The other troubles, the worst first.
    pub also: Vec<String>,
    /// The requests that it hurts at a time.
    pub hurt: f64,
    /// The replica that has it, where several are shown together.
    pub replica: Option<String>,
}

/// weir's total beside that of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SeatsStatus {
    /// The total of all replicas, in seats or slots. 0 is no limit.
    pub own: u32,
    /// The API server's own seats, if it publishes them.
    pub server: Option<u64>,
}

/// The processor time and the memory of weir's process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessStatus {
    /// Processor time since the start, in seconds.
    pub cpu_seconds: f64,
    /// Processors that it may use. 0 if that is not known.
    pub cpus: u32,
    /// Resident memory in bytes. 0 if it is not known.
    pub memory_bytes: u64,
    /// `--memory-limit` in bytes. 0 is no limit.
    pub memory_limit_bytes: u64,
}

/// When a certificate or a credential ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExpiryStatus {
    /// What it is: the flag that names it.
    pub name: String,
    /// In seconds since 1970.
    pub unix_seconds: i64,
    /// The replica that has it, where several are shown together.
    pub replica: Option<String>,
}

/// The total that weir finds by itself (`--max-requests-inflight=auto`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TotalStatus {
    /// In seats.
    pub seats: u32,
    /// The most that it may be, in seats.
    pub most: u32,
    /// The API server's own seats, if it publishes them.
    pub server_seats: Option<u64>,
    /// What a small read took inside the API server under load, last, in milliseconds.
    pub read_ms: Option<f64>,
    /// What it may take, in milliseconds.
    pub target_ms: f64,
    /// Why the total changed last.
    pub reason: String,
}

/// The flow schemas and priority levels in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlowcontrolStatus {
    /// What weir knows about the cluster's objects: `not-read`, `pending`, `synced`, `failed`.
    pub cluster: String,
    /// Why they cannot be read.
    pub failure: Option<String>,
    /// The objects, sorted by kind and name.
    pub objects: Vec<FlowcontrolObjectStatus>,
}

/// A flow schema or priority level in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlowcontrolObjectStatus {
    /// `FlowSchema` or `PriorityLevelConfiguration`.
    pub kind: String,
    /// The name.
    pub name: String,
    /// `built-in`, `cluster`, or the location in a file.
    pub origin: String,
}

/// Connections and failures towards the API server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpstreamStatus {
    /// The configured API servers as HOST:PORT, separated by commas.
    pub address: String,
    /// The API servers by address.
    pub servers: Vec<ServerStatus>,
    /// Open connections by class.
    pub connections: BTreeMap<String, u64>,
    /// Requests of clients without a response from the API server, by cause.
    pub failures: BTreeMap<String, u64>,
    /// Responses of the API server so far.
    pub responses: u64,
    /// Those of them that are 5xx.
    pub errors: u64,
    /// The time until a response of the API server begins.
    pub latency: DurationHistogram,
    /// The last of these failures.
    pub last_failure: Option<FailureStatus>,
    /// Slots for requests by kind: long-running ones, and those without a verified credential.
    pub places: Vec<SlotsStatus>,
}

/// An API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerStatus {
    /// HOST:PORT.
    pub address: String,
    /// Whether it gets its share of the requests.
    pub healthy: bool,
    /// Whether a weir answers there, so that it is never used.
    pub refused: bool,
    /// Why it gets no requests.
    pub why: Option<String>,
    /// Short requests in flight.
    pub in_flight: u64,
    /// Long-running requests in flight.
    pub long_running: u64,
    /// Requests so far.
    pub requests: u64,
    /// How often it was ejected because requests failed on it.
    pub ejections: u64,
}

/// The weirs that divide the totals, as this one sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicasStatus {
    /// The name of this one.
    pub name: String,
    /// `member`, `waiting`, `cut-off`, `joining`, `superseded`, `off`.
    pub state: String,
    /// What keeps it from sharing the totals with all others.
    pub failure: Option<String>,
    /// The totals in force, and its shares.
    pub pools: Vec<ReplicaPoolStatus>,
    /// The others, by name.
    pub others: Vec<OtherReplicaStatus>,
}

/// A total that replicas divide.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaPoolStatus {
    /// `seats`, `read-only`, `mutating`.
    pub name: String,
    /// The configured total.
    pub total: u32,
    /// What this replica may use of it.
    pub share: u32,
}

/// Another weir that divides the totals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OtherReplicaStatus {
    /// Its name.
    pub name: String,
    /// `live`, `silent`, `expired` (its floor is reserved), `leaving`.
    pub state: String,
    /// What it holds, in the order of the totals in force.
    pub held: Vec<u32>,
}

/// Which replicas a snapshot is of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaViewStatus {
    /// `all`, or the name of one.
    pub chosen: String,
    /// All replicas, by name.
    pub replicas: Vec<ViewedReplicaStatus>,
}

/// A replica, as the one sees it that has sent the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ViewedReplicaStatus {
    /// The name.
    pub name: String,
    /// Whether its numbers are in those of `all`. If not, it is missing.
    pub counted: bool,
    /// Seconds since it has sent its numbers. `None` if it never has.
    pub age_seconds: Option<f64>,
    /// Why it has sent no newer ones.
    pub failure: Option<String>,
}

impl ReplicaViewStatus {
    /// The names of the replicas whose numbers are in those of `all`. Totals of two snapshots can be
    /// compared if both have the same ones.
    pub fn counted(&self) -> impl Iterator<Item = &str> {
        let counted = self.replicas.iter().filter(|replica| replica.counted);
        counted.map(|replica| &*replica.name)
    }
}

/// Slots for requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlotsStatus {
    /// `long-running`, `watch` ..., as in `weir_upstream_places`.
    pub kind: String,
    /// Number of slots.
    pub total: u64,
    /// Slots in use.
    pub taken: u64,
    /// The users and addresses that use most slots, largest first. A request counts for its user
    /// and for its address.
    pub holders: Vec<SlotHolderStatus>,
}

/// A user or an address, and the slots it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlotHolderStatus {
    /// `user`, `sourceAddress`, or `watches`: the connections that watches share.
    pub by: String,
    /// The name, truncated; empty for `watches`.
    pub name: String,
    /// Slots in use.
    pub taken: u64,
}

/// A request without a response from the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailureStatus {
    /// The time in milliseconds since 1970.
    pub unix_ms: u64,
    /// The cause.
    pub why: String,
}

/// Requests of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestsStatus {
    /// Requests in flight, queued ones included, long-running ones excluded.
    pub in_flight: u64,
    /// Open watches.
    pub watches: u64,
    /// Ended requests by status code.
    pub by_code: BTreeMap<u16, u64>,
    /// Requests that their clients aborted before the response.
    pub aborted: u64,
}

/// How weir limits concurrent requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdmissionMode {
    /// Two counters: `--max-requests-inflight` and `--max-mutating-requests-inflight`.
    MaxInFlight,
    /// API Priority and Fairness.
    #[default]
    PriorityAndFairness,
}

/// A priority level, or one of the two kinds of requests of max-in-flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LevelStatus {
    /// The name of the level.
    pub name: String,
    /// The response to requests over the limit.
    pub kind: LevelKind,
    /// Removed from the configuration; ends with its last request.
    pub quiescing: bool,
    /// Seats in use. With max-in-flight, each request takes one.
    pub seats_in_use: u64,
    /// Requests that are executing.
    pub executing: u64,
    /// Current seats, with borrowed ones and without lent ones. `None`: no limit.
    pub current_limit: Option<u32>,
    /// Seats by the level's shares.
    pub nominal_limit: Option<u32>,
    /// Fewest seats that the level can have.
    pub lower_limit: Option<u32>,
    /// Most seats that the level can have.
    pub upper_limit: Option<u32>,
    /// Queued requests.
    pub waiting: u64,
    /// Seats that the queued requests need.
    pub waiting_seats: u64,
    /// Number of queues.
    pub queues: u64,
    /// Queues with queued requests.
    pub active_queues: u64,
    /// Most requests per queue.
    pub queue_length_limit: u64,
    /// Requests dispatched so far.
    pub dispatched: u64,
    /// Requests rejected, or in a dry run those that would have been, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// Whether it only counts.
    pub dry_run: bool,
    /// Queue times of requests that were dispatched or whose clients gave up.
    pub waits: DurationHistogram,
    /// Who waits and who holds the seats. Empty while nothing waits.
    pub queue: QueueStatus,
}

/// The requests of a level by user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueStatus {
    /// How long 99 of 100 of those that wait now have waited at most, in seconds.
    pub waited_seconds: f64,
    /// The users with most waiting requests, and their number.
    pub waiting: Vec<UserCount>,
    /// The users with most seats, and their number.
    pub seats: Vec<UserCount>,
}

/// A user and a number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UserCount {
    /// The name, truncated.
    pub user: String,
    /// The number.
    pub count: u64,
}

/// The response to requests over a level's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LevelKind {
    /// There is no limit.
    Exempt,
    /// One of the two kinds of max-in-flight.
    InFlight,
    /// They are queued.
    #[default]
    Queue,
    /// They are rejected.
    Reject,
}

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DurationHistogram {
    /// Number of durations.
    pub count: u64,
    /// Their sum in seconds.
    pub seconds: f64,
    /// Upper bounds in seconds, each with the number of durations that are no longer.
    pub buckets: Vec<(f64, u64)>,
}

impl DurationHistogram {
    /// The quantile of what was added since `then`, in seconds: between two bounds in proportion, as
    /// Prometheus' `histogram_quantile`. `None` if nothing was added.
    #[must_use]
    pub fn quantile_since(&self, then: &Self, quantile: f64) -> Option<f64> {
        let added = to_f64(
            self.count
                .checked_sub(then.count)
                .filter(|&added| added > 0)?,
        );
        let rank = added * quantile;
        let (mut below, mut lower) = (0.0, 0.0);
        for (place, (bound, count)) in self.buckets.iter().enumerate() {
            let before = then.buckets.get(place).map_or(0, |(_, count)| *count);
            let upto = to_f64(count.saturating_sub(before));
            if upto >= rank {
                let part = (rank - below) / (upto - below).max(f64::MIN_POSITIVE);
                return Some(lower + (bound - lower) * part.clamp(0.0, 1.0));
            }
            (below, lower) = (upto, *bound);
        }
        Some(lower)
    }
}

/// Delayed rejections: of clients that retried before `Retry-After` had passed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HoldsStatus {
    /// Rejections that are delayed now.
    pub now: u64,
    /// Flows of these rejections.
    pub flows: u64,
    /// Delayed rejections since the start, except those of `now`.
    pub ended: u64,
    /// Seconds until the last retry that was paced is due: the longest `Retry-After` that pacing
    /// asks for.
    pub paced_seconds: f64,
}

/// Connections of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectionsStatus {
    /// Open connections.
    pub open: u64,
    /// The limit of open connections.
    pub most: u64,
}

/// The top talkers in one window and dimension.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopTalkersStatus {
    /// `user`, `userAgent`, `namespace` ...
    pub by: String,
    /// Length of the window in seconds.
    pub window_seconds: u64,
    /// Requests of all names together, listed or not.
    pub requests: u64,
    /// The first names by each measure; those by requests come first.
    pub rows: Vec<TalkerStatus>,
}

/// The usage of one name in the window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TalkerStatus {
    /// The name, truncated.
    pub name: String,
    /// Number of requests.
    pub requests: u64,
    /// Seats × seconds that they were occupied.
    pub seat_seconds: f64,
    /// Bytes of response bodies.
    pub bytes: u64,
    /// Rejected requests.
    pub rejections: u64,
    /// Rejections by limits that only count.
    pub would_be_rejections: u64,
    /// Seconds in queues.
    pub queue_wait_seconds: f64,
    /// The number of requests is at most `requests` + `error`.
    pub error: u64,
}

/// The history as columns of equal length, oldest value first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusHistory {
    /// Seconds between values. The interval is longer while weir is overloaded.
    pub every_seconds: u64,
    /// The time of each row in milliseconds since 1970.
    pub unix_ms: Vec<u64>,
    /// Ended requests per second by class of status code: `2xx` ...
    pub codes: BTreeMap<String, Vec<f32>>,
    /// Rejected requests per second.
    pub rejected: Vec<f32>,
    /// The total that weir has found, in seats; 0 where it is a number of the configuration.
    pub total: Vec<u32>,
    /// Other values by name: [`Column`](crate::history::Column).
    pub values: BTreeMap<String, Vec<f32>>,
    /// The history of each level by its name.
    pub levels: BTreeMap<String, LevelHistory>,
    /// What has changed, oldest first. Snapshots have it, too.
    pub marks: Vec<MarkStatus>,
}

/// The history of one level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LevelHistory {
    /// Current seats; 0 without a limit.
    pub limit: Vec<u32>,
    /// Seats in use.
    pub seats: Vec<u32>,
    /// Queued requests.
    pub waiting: Vec<u32>,
    /// Rejected requests per second.
    pub rejected: Vec<f32>,
}

impl LevelStatus {
    /// Returns the rejections of all reasons.
    #[must_use]
    pub fn rejected_total(&self) -> u64 {
        self.rejected.values().sum()
    }

    /// Returns the seats borrowed from other levels; negative if more are lent.
    #[must_use]
    pub fn borrowed_seats(&self) -> i64 {
        match (self.current_limit, self.nominal_limit) {
            (Some(current), Some(nominal)) => i64::from(current) - i64::from(nominal),
            _ => 0,
        }
    }
}

/// Readiness in the status snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReadinessStatus {
    /// The last result of `/readyz`; `None` before the first probe.
    pub ready: Option<bool>,
    /// Whether weir is shutting down.
    pub shutting_down: bool,
    /// Why the API server does not accept weir's front-proxy certificate.
    pub front_proxy_failure: Option<String>,
    /// Why the upstream counts as a loop.
    pub loop_failure: Option<String>,
    /// Why rate limits are not shared with other replicas; `None` also if they need not be.
    pub shared_limits_failure: Option<String>,
    /// Why the API server does not respond.
    pub upstream_failure: Option<String>,
    /// Milliseconds since the last probe of an API server. `None` before the first one.
    pub age_ms: Option<u64>,
}

/// The configuration in the status snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigReport {
    /// The number of the configuration in force: 1 at the start, one more with each change.
    pub generation: u64,
    /// When it was last read without an error, in milliseconds since 1970.
    pub last_success_unix_ms: u64,
    /// When it was last refused, in milliseconds since 1970. 0 if it never was.
    pub last_failure_unix_ms: u64,
    /// Why the last one was refused; empty if it was not. The one before it stays in force.
    pub errors: Vec<String>,
    /// Settings that have been changed and apply after a restart only.
    pub needs_restart: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_that_of_what_was_added() {
        let histogram = |counts: [u64; 3]| DurationHistogram {
            count: counts[2],
            seconds: 0.0,
            buckets: vec![(0.1, counts[0]), (1.0, counts[1])],
        };
        let then = histogram([10, 10, 10]);
        let quantile = |counts, quantile| histogram(counts).quantile_since(&then, quantile);
        assert_eq!(quantile([10, 10, 10], 0.99), None, "nothing was added");
        assert_eq!(quantile([20, 20, 20], 0.5), Some(0.05));
        let half = quantile([10, 20, 20], 0.5);
        assert!(
            half.is_some_and(|half| (half - 0.55).abs() < 1e-9),
            "{half:?}"
        );
        assert_eq!(
            quantile([10, 10, 20], 0.5),
            Some(1.0),
            "beyond the last bound"
        );
        assert_eq!(quantile([5, 5, 5], 0.5), None, "of another process");
    }
}
