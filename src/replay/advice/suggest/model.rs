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
    /// A level for a user of its own. `None`: none would help.
    pub(crate) own_level: Option<OwnLevelReport>,
    /// The flow schemas and priority levels that change or are new, as manifests.
    pub(crate) objects: Vec<Value>,
    /// Those of the configuration that stay as they are and are not built in, as manifests.
    pub(crate) unchanged: Vec<Value>,
    /// Why events are limited, and what is not suggested, and why.
    pub(crate) notes: Vec<String>,
    /// The rules of `clientLimits`.
    pub(crate) client_limits: Vec<Value>,
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
