//! The report of a suggestion: what `-o json` prints. Pure.

use serde::Serialize;
use serde_json::Value;

use crate::replay::report::model::{ChangesReport, InputReport, ModelReport};

/// The report of a suggestion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SuggestReport {
    /// What was read.
    pub(crate) input: InputReport,
    /// The assumptions of the simulation.
    pub(crate) model: ModelReport,
    /// Levels for users of their own.
    pub(crate) own_levels: Vec<OwnLevelReport>,
    /// The flow schemas and priority levels that change or are new, as manifests.
    pub(crate) objects: Vec<Value>,
    /// Those of the configuration that stay as they are and are not built in, as manifests.
    pub(crate) unchanged: Vec<Value>,
    /// What is not suggested, and why.
    pub(crate) notes: Vec<String>,
    /// What no request of the log reaches.
    pub(crate) never_reached: Vec<UnusedReport>,
    /// The configuration of EventRateLimit. `None`: none is suggested.
    pub(crate) event_limits: Option<Value>,
    /// Why events are limited, by it or by rules of `clientLimits`, or why they are not.
    pub(crate) event_reasons: Vec<String>,
    /// The rules of `clientLimits`.
    pub(crate) client_limits: Vec<Value>,
    /// What a limit at the p99.9 of the rate of each user, with a burst of a second, would have cost:
    /// the users with the most rejections first.
    pub(crate) rate_costs: Vec<RateCost>,
    /// The users who lost something with the configuration and are no worse with all that is
    /// suggested, sorted.
    pub(crate) protected: Vec<String>,
    /// The users who fare worse and better with all that is suggested.
    pub(crate) changes: ChangesReport,
}

/// A level for a user of its own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct OwnLevelReport {
    /// The name of the level and of its schema.
    pub(crate) name: String,
    /// The user.
    pub(crate) user: String,
    /// The schema and the level of its requests until now.
    pub(crate) schema: String,
    /// See `schema`.
    pub(crate) level: String,
    /// Its part of the seat-seconds of that level, in percent.
    pub(crate) percent_of_seat_seconds: f64,
    /// The shares of the new level, and of the other one before and after.
    pub(crate) shares: i32,
    /// See `shares`.
    pub(crate) level_shares: [i32; 2],
    /// What the requests of other users lost in that level: rejected requests.
    pub(crate) others_rejected: u64,
    /// Seconds that they waited.
    pub(crate) others_wait_s: f64,
    /// Rejected requests of all other users, before and after.
    pub(crate) rejected: [u64; 2],
    /// Seconds that they waited, before and after.
    pub(crate) wait_s: [f64; 2],
}

/// A schema or a level that no request reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct UnusedReport {
    /// `FlowSchema` or `PriorityLevelConfiguration`.
    pub(crate) kind: &'static str,
    /// Its name.
    pub(crate) name: String,
    /// Whether kube-apiserver maintains an object of this name.
    pub(crate) built_in: bool,
    /// Of a level: its nominal seats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seats: Option<u32>,
    /// Of a level: those of them that it lends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lendable_seats: Option<u32>,
}

/// What a rate limit would have cost a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RateCost {
    /// The user.
    pub(crate) user: String,
    /// Its requests.
    pub(crate) requests: u64,
    /// The p99.9 of the requests in a second, of the seconds in which it sent any.
    pub(crate) p999_per_second: u32,
    /// The most in a second.
    pub(crate) most_per_second: u32,
    /// The requests that a limit with this rate and burst would have rejected.
    pub(crate) rejected: u64,
}
