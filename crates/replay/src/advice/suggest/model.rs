//! The report of a suggestion: what `-o json` prints. Pure.

use serde::Serialize;
use serde_json::Value;

use crate::report::model::{ChangesReport, InputReport, ModelReport};

/// The report of a suggestion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SuggestReport {
    /// What was read.
    pub input: InputReport,
    /// The assumptions of the simulation.
    pub model: ModelReport,
    /// Levels for users of their own.
    pub own_levels: Vec<OwnLevelReport>,
    /// The flow schemas and priority levels that change or are new, as manifests.
    pub objects: Vec<Value>,
    /// Those of the configuration that stay as they are and are not built in, as manifests.
    pub unchanged: Vec<Value>,
    /// What is not suggested, and why.
    pub notes: Vec<String>,
    /// What no request of the log reaches.
    pub never_reached: Vec<UnusedReport>,
    /// The configuration of EventRateLimit. `None`: none is suggested.
    pub event_limits: Option<Value>,
    /// Why events are limited, by it or by rules of `clientLimits`, or why they are not.
    pub event_reasons: Vec<String>,
    /// The rules of `clientLimits`.
    pub client_limits: Vec<Value>,
    /// What a limit at the p99.9 of the rate of each user, with a burst of a second, would have cost:
    /// the users with the most rejections first.
    pub rate_costs: Vec<RateCost>,
    /// The users who lost something with the configuration and are no worse with all that is
    /// suggested, sorted.
    pub protected: Vec<String>,
    /// The users who fare worse and better with all that is suggested.
    pub changes: ChangesReport,
}

/// A level for a user of its own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OwnLevelReport {
    /// The name of the level and of its schema.
    pub name: String,
    /// The user.
    pub user: String,
    /// The schema and the level of its requests until now.
    pub schema: String,
    /// See `schema`.
    pub level: String,
    /// Its part of the seat-seconds of that level, in percent.
    pub percent_of_seat_seconds: f64,
    /// The shares of the new level, and of the other one before and after.
    pub shares: i32,
    /// See `shares`.
    pub level_shares: [i32; 2],
    /// What the requests of other users lost in that level: rejected requests.
    pub others_rejected: u64,
    /// Seconds that they waited.
    pub others_wait_s: f64,
    /// Rejected requests of all other users, before and after.
    pub rejected: [u64; 2],
    /// Seconds that they waited, before and after.
    pub wait_s: [f64; 2],
}

/// A schema or a level that no request reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnusedReport {
    /// `FlowSchema` or `PriorityLevelConfiguration`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Whether kube-apiserver maintains an object of this name.
    pub built_in: bool,
    /// Of a level: its nominal seats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seats: Option<u32>,
    /// Of a level: those of them that it lends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lendable_seats: Option<u32>,
}

/// What a rate limit would have cost a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RateCost {
    /// The user.
    pub user: String,
    /// Its requests.
    pub requests: u64,
    /// The p99.9 of the requests in a second, of the seconds in which it sent any.
    pub p999_per_second: u32,
    /// The most in a second.
    pub most_per_second: u32,
    /// The requests that a limit with this rate and burst would have rejected.
    pub rejected: u64,
}
