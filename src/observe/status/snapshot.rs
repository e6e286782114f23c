//! The status of weir as plain data: one snapshot, and the history before it.
//!
//! Growing numbers are totals since the start; a viewer computes rates from the difference of two
//! snapshots. Names may come from clients: they are truncated where they are counted, and viewers
//! must display them as text only. A reader ignores unknown fields and treats missing ones as
//! empty.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::observe::alarms::list::AlarmStatus;
use crate::observe::readiness::ReadinessStatus;
use crate::observe::readiness::config_status::ConfigReport;
use crate::observe::status::marks::MarkStatus;
use weir_kubernetes::numeric::to_f64;
use weir_limits::levers::LeverSnapshot;
use weir_limits::rate::snapshot::RateLimitSnapshot;
use weir_limits::rate::top_keys::TopKey;

/// A snapshot of weir's status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StatusSnapshot {
    /// The name of the machine (or Pod) that weir runs on. Empty if it is not known.
    pub(crate) host: String,
    /// The version of weir.
    pub(crate) version: String,
    /// The time of the snapshot in milliseconds since 1970.
    pub(crate) unix_ms: u64,
    /// Seconds since weir started.
    pub(crate) uptime_seconds: f64,
    /// The readiness of weir.
    pub(crate) readiness: ReadinessStatus,
    /// What hurts clients most now.
    pub(crate) headline: Headline,
    /// What an operator has to act on, the critical ones first.
    pub(crate) alarms: Vec<AlarmStatus>,
    /// What an operator blocks and limits, oldest first.
    pub(crate) levers: Vec<LeverSnapshot>,
    /// Which configuration is in force.
    pub(crate) config: ConfigReport,
    /// Connections and failures towards the API server.
    pub(crate) upstream: UpstreamStatus,
    /// The weirs that divide the totals. `None` if this one does not.
    pub(crate) replicas: Option<ReplicasStatus>,
    /// Which replicas the snapshot is of. `None`: of the one that has sent it.
    pub(crate) view: Option<ReplicaViewStatus>,
    /// Requests of clients.
    pub(crate) requests: RequestsStatus,
    /// Rejected requests by limit: `queue-full`, `time-out`, `client-limit` ...
    pub(crate) rejections: BTreeMap<String, u64>,
    /// The mode in which weir limits concurrent requests.
    pub(crate) mode: AdmissionMode,
    /// The total that weir finds by itself. `None` if it is a number of the configuration.
    pub(crate) total: Option<TotalStatus>,
    /// weir's total beside that of the API server.
    pub(crate) seats: SeatsStatus,
    /// `--flowcontrol-enforcement=DryRun`: all requests execute at once, and the numbers of levels
    /// are those of a simulation.
    pub(crate) dry_run: bool,
    /// Requests that limits would have rejected that only count, by limit. They are not among the
    /// rejections.
    pub(crate) would_be_rejections: BTreeMap<String, u64>,
    /// The users whose requests these were, those with most first.
    pub(crate) would_be_rejected: Vec<TopKey>,
    /// How many users these are; as many as are tracked (64) or more.
    pub(crate) would_be_rejected_users: u64,
    /// Priority levels by name; with max-in-flight, its two kinds of requests.
    pub(crate) levels: Vec<LevelStatus>,
    /// The flow schemas and priority levels in force. Empty with max-in-flight.
    pub(crate) flowcontrol: FlowcontrolStatus,
    /// Event limits and client limits, in the order of the configuration.
    pub(crate) rate_limits: Vec<RateLimitSnapshot>,
    /// Rejections that are delayed.
    pub(crate) holds: HoldsStatus,
    /// Connections of clients.
    pub(crate) connections: ConnectionsStatus,
    /// The processor time and the memory of this process.
    pub(crate) process: ProcessStatus,
    /// What was lost since the start, by the alarm that tells of it: events of the audit log, lines of
    /// the log, requests of a record ...
    pub(crate) losses: BTreeMap<String, u64>,
    /// When certificates and weir's own credential end, the first one first.
    pub(crate) expiries: Vec<ExpiryStatus>,
    /// What has changed in the last 15 minutes, oldest first.
    pub(crate) marks: Vec<MarkStatus>,
    /// The top talkers by window and dimension.
    pub(crate) talkers: Vec<TopTalkersStatus>,
}

/// How urgent a headline is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HeadlineSeverity {
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
pub(crate) struct Headline {
    /// That of the worst trouble of all.
    pub(crate) severity: HeadlineSeverity,
    /// The worst trouble, in a line.
    pub(crate) text: String,
    /// More of it: the users and the level.
    pub(crate) detail: String,
    /// The other troubles, the worst first.
    pub(crate) also: Vec<String>,
    /// The requests that it hurts at a time.
    pub(crate) hurt: f64,
    /// The replica that has it, where several are shown together.
    pub(crate) replica: Option<String>,
}

/// weir's total beside that of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SeatsStatus {
    /// The total of all replicas, in seats or slots. 0 is no limit.
    pub(crate) own: u32,
    /// The API server's own seats, if it publishes them.
    pub(crate) server: Option<u64>,
}

/// The processor time and the memory of weir's process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ProcessStatus {
    /// Processor time since the start, in seconds.
    pub(crate) cpu_seconds: f64,
    /// Processors that it may use. 0 if that is not known.
    pub(crate) cpus: u32,
    /// Resident memory in bytes. 0 if it is not known.
    pub(crate) memory_bytes: u64,
    /// `--memory-limit` in bytes. 0 is no limit.
    pub(crate) memory_limit_bytes: u64,
}

/// When a certificate or a credential ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ExpiryStatus {
    /// What it is: the flag that names it.
    pub(crate) name: String,
    /// In seconds since 1970.
    pub(crate) unix_seconds: i64,
    /// The replica that has it, where several are shown together.
    pub(crate) replica: Option<String>,
}

/// The total that weir finds by itself (`--max-requests-inflight=auto`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TotalStatus {
    /// In seats.
    pub(crate) seats: u32,
    /// The most that it may be, in seats.
    pub(crate) most: u32,
    /// The API server's own seats, if it publishes them.
    pub(crate) server_seats: Option<u64>,
    /// What a small read took inside the API server under load, last, in milliseconds.
    pub(crate) read_ms: Option<f64>,
    /// What it may take, in milliseconds.
    pub(crate) target_ms: f64,
    /// Why the total changed last.
    pub(crate) reason: String,
}

/// The flow schemas and priority levels in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct FlowcontrolStatus {
    /// What weir knows about the cluster's objects: `not-read`, `pending`, `synced`, `failed`.
    pub(crate) cluster: String,
    /// Why they cannot be read.
    pub(crate) failure: Option<String>,
    /// The objects, sorted by kind and name.
    pub(crate) objects: Vec<FlowcontrolObjectStatus>,
}

/// A flow schema or priority level in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct FlowcontrolObjectStatus {
    /// `FlowSchema` or `PriorityLevelConfiguration`.
    pub(crate) kind: String,
    /// The name.
    pub(crate) name: String,
    /// `built-in`, `cluster`, or the location in a file.
    pub(crate) origin: String,
}

/// Connections and failures towards the API server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct UpstreamStatus {
    /// The configured API servers as HOST:PORT, separated by commas.
    pub(crate) address: String,
    /// The API servers by address.
    pub(crate) servers: Vec<ServerStatus>,
    /// Open connections by class.
    pub(crate) connections: BTreeMap<String, u64>,
    /// Requests of clients without a response from the API server, by cause.
    pub(crate) failures: BTreeMap<String, u64>,
    /// Responses of the API server so far.
    pub(crate) responses: u64,
    /// Those of them that are 5xx.
    pub(crate) errors: u64,
    /// The time until a response of the API server begins.
    pub(crate) latency: DurationHistogram,
    /// The last of these failures.
    pub(crate) last_failure: Option<FailureStatus>,
    /// Slots for requests by kind: long-running ones, and those without a verified credential.
    pub(crate) places: Vec<SlotsStatus>,
}

/// An API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServerStatus {
    /// HOST:PORT.
    pub(crate) address: String,
    /// Whether it gets its share of the requests.
    pub(crate) healthy: bool,
    /// Whether a weir answers there, so that it is never used.
    pub(crate) refused: bool,
    /// Why it gets no requests.
    pub(crate) why: Option<String>,
    /// Short requests in flight.
    pub(crate) in_flight: u64,
    /// Long-running requests in flight.
    pub(crate) long_running: u64,
    /// Requests so far.
    pub(crate) requests: u64,
    /// How often it was ejected because requests failed on it.
    pub(crate) ejections: u64,
}

/// The weirs that divide the totals, as this one sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ReplicasStatus {
    /// The name of this one.
    pub(crate) name: String,
    /// `member`, `waiting`, `cut-off`, `joining`, `superseded`, `off`.
    pub(crate) state: String,
    /// What keeps it from sharing the totals with all others.
    pub(crate) failure: Option<String>,
    /// The totals in force, and its shares.
    pub(crate) pools: Vec<ReplicaPoolStatus>,
    /// The others, by name.
    pub(crate) others: Vec<OtherReplicaStatus>,
}

/// A total that replicas divide.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ReplicaPoolStatus {
    /// `seats`, `read-only`, `mutating`.
    pub(crate) name: String,
    /// The configured total.
    pub(crate) total: u32,
    /// What this replica may use of it.
    pub(crate) share: u32,
}

/// Another weir that divides the totals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct OtherReplicaStatus {
    /// Its name.
    pub(crate) name: String,
    /// `live`, `silent`, `expired` (its floor is reserved), `leaving`.
    pub(crate) state: String,
    /// What it holds, in the order of the totals in force.
    pub(crate) held: Vec<u32>,
}

/// Which replicas a snapshot is of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ReplicaViewStatus {
    /// `all`, or the name of one.
    pub(crate) chosen: String,
    /// All replicas, by name.
    pub(crate) replicas: Vec<ViewedReplicaStatus>,
}

/// A replica, as the one sees it that has sent the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ViewedReplicaStatus {
    /// The name.
    pub(crate) name: String,
    /// Whether its numbers are in those of `all`. If not, it is missing.
    pub(crate) counted: bool,
    /// Seconds since it has sent its numbers. `None` if it never has.
    pub(crate) age_seconds: Option<f64>,
    /// Why it has sent no newer ones.
    pub(crate) failure: Option<String>,
}

impl ReplicaViewStatus {
    /// The names of the replicas whose numbers are in those of `all`. Totals of two snapshots can be
    /// compared if both have the same ones.
    pub(crate) fn counted(&self) -> impl Iterator<Item = &str> {
        let counted = self.replicas.iter().filter(|replica| replica.counted);
        counted.map(|replica| &*replica.name)
    }
}

/// Slots for requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlotsStatus {
    /// `long-running`, `watch` ..., as in `weir_upstream_places`.
    pub(crate) kind: String,
    /// Number of slots.
    pub(crate) total: u64,
    /// Slots in use.
    pub(crate) taken: u64,
    /// The users and addresses that use most slots, largest first. A request counts for its user
    /// and for its address.
    pub(crate) holders: Vec<SlotHolderStatus>,
}

/// A user or an address, and the slots it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlotHolderStatus {
    /// `user`, `sourceAddress`, or `watches`: the connections that watches share.
    pub(crate) by: String,
    /// The name, truncated; empty for `watches`.
    pub(crate) name: String,
    /// Slots in use.
    pub(crate) taken: u64,
}

/// A request without a response from the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct FailureStatus {
    /// The time in milliseconds since 1970.
    pub(crate) unix_ms: u64,
    /// The cause.
    pub(crate) why: String,
}

/// Requests of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RequestsStatus {
    /// Requests in flight, queued ones included, long-running ones excluded.
    pub(crate) in_flight: u64,
    /// Open watches.
    pub(crate) watches: u64,
    /// Ended requests by status code.
    pub(crate) by_code: BTreeMap<u16, u64>,
    /// Requests that their clients aborted before the response.
    pub(crate) aborted: u64,
}

/// How weir limits concurrent requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AdmissionMode {
    /// Two counters: `--max-requests-inflight` and `--max-mutating-requests-inflight`.
    MaxInFlight,
    /// API Priority and Fairness.
    #[default]
    PriorityAndFairness,
}

/// A priority level, or one of the two kinds of requests of max-in-flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LevelStatus {
    /// The name of the level.
    pub(crate) name: String,
    /// The response to requests over the limit.
    pub(crate) kind: LevelKind,
    /// Removed from the configuration; ends with its last request.
    pub(crate) quiescing: bool,
    /// Seats in use. With max-in-flight, each request takes one.
    pub(crate) seats_in_use: u64,
    /// Requests that are executing.
    pub(crate) executing: u64,
    /// Current seats, with borrowed ones and without lent ones. `None`: no limit.
    pub(crate) current_limit: Option<u32>,
    /// Seats by the level's shares.
    pub(crate) nominal_limit: Option<u32>,
    /// Fewest seats that the level can have.
    pub(crate) lower_limit: Option<u32>,
    /// Most seats that the level can have.
    pub(crate) upper_limit: Option<u32>,
    /// Queued requests.
    pub(crate) waiting: u64,
    /// Seats that the queued requests need.
    pub(crate) waiting_seats: u64,
    /// Number of queues.
    pub(crate) queues: u64,
    /// Queues with queued requests.
    pub(crate) active_queues: u64,
    /// Most requests per queue.
    pub(crate) queue_length_limit: u64,
    /// Requests dispatched so far.
    pub(crate) dispatched: u64,
    /// Requests rejected, or in a dry run those that would have been, by reason.
    pub(crate) rejected: BTreeMap<String, u64>,
    /// Whether it only counts.
    pub(crate) dry_run: bool,
    /// Queue times of requests that were dispatched or whose clients gave up.
    pub(crate) waits: DurationHistogram,
    /// Who waits and who holds the seats. Empty while nothing waits.
    pub(crate) queue: QueueStatus,
}

/// The requests of a level by user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct QueueStatus {
    /// How long 99 of 100 of those that wait now have waited at most, in seconds.
    pub(crate) waited_seconds: f64,
    /// The users with most waiting requests, and their number.
    pub(crate) waiting: Vec<UserCount>,
    /// The users with most seats, and their number.
    pub(crate) seats: Vec<UserCount>,
}

/// A user and a number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct UserCount {
    /// The name, truncated.
    pub(crate) user: String,
    /// The number.
    pub(crate) count: u64,
}

/// The response to requests over a level's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LevelKind {
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
pub(crate) struct DurationHistogram {
    /// Number of durations.
    pub(crate) count: u64,
    /// Their sum in seconds.
    pub(crate) seconds: f64,
    /// Upper bounds in seconds, each with the number of durations that are no longer.
    pub(crate) buckets: Vec<(f64, u64)>,
}

impl DurationHistogram {
    /// The quantile of what was added since `then`, in seconds: between two bounds in proportion, as
    /// Prometheus' `histogram_quantile`. `None` if nothing was added.
    #[must_use]
    pub(crate) fn quantile_since(&self, then: &Self, quantile: f64) -> Option<f64> {
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
pub(crate) struct HoldsStatus {
    /// Rejections that are delayed now.
    pub(crate) now: u64,
    /// Flows of these rejections.
    pub(crate) flows: u64,
    /// Delayed rejections since the start, except those of `now`.
    pub(crate) ended: u64,
    /// Seconds until the last retry that was paced is due: the longest `Retry-After` that pacing
    /// asks for.
    pub(crate) paced_seconds: f64,
}

/// Connections of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ConnectionsStatus {
    /// Open connections.
    pub(crate) open: u64,
    /// The limit of open connections.
    pub(crate) most: u64,
}

/// The top talkers in one window and dimension.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TopTalkersStatus {
    /// `user`, `userAgent`, `namespace` ...
    pub(crate) by: String,
    /// Length of the window in seconds.
    pub(crate) window_seconds: u64,
    /// Requests of all names together, listed or not.
    pub(crate) requests: u64,
    /// The first names by each measure; those by requests come first.
    pub(crate) rows: Vec<TalkerStatus>,
}

/// The usage of one name in the window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TalkerStatus {
    /// The name, truncated.
    pub(crate) name: String,
    /// Number of requests.
    pub(crate) requests: u64,
    /// Seats × seconds that they were occupied.
    pub(crate) seat_seconds: f64,
    /// Bytes of response bodies.
    pub(crate) bytes: u64,
    /// Rejected requests.
    pub(crate) rejections: u64,
    /// Rejections by limits that only count.
    pub(crate) would_be_rejections: u64,
    /// Seconds in queues.
    pub(crate) queue_wait_seconds: f64,
    /// The number of requests is at most `requests` + `error`.
    pub(crate) error: u64,
}

/// The history as columns of equal length, oldest value first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StatusHistory {
    /// Seconds between values. The interval is longer while weir is overloaded.
    pub(crate) every_seconds: u64,
    /// The time of each row in milliseconds since 1970.
    pub(crate) unix_ms: Vec<u64>,
    /// Ended requests per second by class of status code: `2xx` ...
    pub(crate) codes: BTreeMap<String, Vec<f32>>,
    /// Rejected requests per second.
    pub(crate) rejected: Vec<f32>,
    /// The total that weir has found, in seats; 0 where it is a number of the configuration.
    pub(crate) total: Vec<u32>,
    /// Other values by name: [`Column`](crate::observe::status::history::Column).
    pub(crate) values: BTreeMap<String, Vec<f32>>,
    /// The history of each level by its name.
    pub(crate) levels: BTreeMap<String, LevelHistory>,
    /// What has changed, oldest first. Snapshots have it, too.
    pub(crate) marks: Vec<MarkStatus>,
}

/// The history of one level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LevelHistory {
    /// Current seats; 0 without a limit.
    pub(crate) limit: Vec<u32>,
    /// Seats in use.
    pub(crate) seats: Vec<u32>,
    /// Queued requests.
    pub(crate) waiting: Vec<u32>,
    /// Rejected requests per second.
    pub(crate) rejected: Vec<f32>,
}

impl LevelStatus {
    /// Returns the rejections of all reasons.
    #[must_use]
    pub(crate) fn rejected_total(&self) -> u64 {
        self.rejected.values().sum()
    }

    /// Returns the seats borrowed from other levels; negative if more are lent.
    #[must_use]
    pub(crate) fn borrowed_seats(&self) -> i64 {
        match (self.current_limit, self.nominal_limit) {
            (Some(current), Some(nominal)) => i64::from(current) - i64::from(nominal),
            _ => 0,
        }
    }
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
