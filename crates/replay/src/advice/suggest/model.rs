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
    /// A level for a user of its own. `None`: none would help.
    pub own_level: Option<OwnLevelReport>,
    /// The flow schemas and priority levels that change or are new, as manifests.
    pub objects: Vec<Value>,
    /// Those of the configuration that stay as they are and are not built in, as manifests.
    pub unchanged: Vec<Value>,
    /// Why events are limited, and what is not suggested, and why.
    pub notes: Vec<String>,
    /// The rules of `clientLimits`.
    pub client_limits: Vec<Value>,
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
