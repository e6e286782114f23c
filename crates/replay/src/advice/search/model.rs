//! The report of a search: what `-o json` prints. Pure.

use serde::Serialize;
use serde_json::Value;

use crate::advice::variants::InFlightFlags;
use crate::report::model::{ChangesReport, InputReport, ModelReport};

/// The report of a search.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SearchReport {
    /// What was read.
    pub input: InputReport,
    /// The assumptions of the simulation.
    pub model: ModelReport,
    /// The objectives, in the order of the command line.
    pub objectives: Vec<ObjectiveReport>,
    /// The total concurrency of the configuration.
    pub configured: SearchTotals,
    /// The smallest total at which all objectives hold, or the shares with which they hold at the
    /// configured one. `None`: there is none up to `largest`, or none were found.
    pub found: Option<FoundReport>,
    /// The largest total that was tried.
    pub largest: u32,
    /// All totals that were tried with the shares of the result, with the log as it is.
    pub tried: Vec<TriedTotal>,
    /// If shares were looked for at the configured total: how many different ones were tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tried_shares: Option<u64>,
    /// Totals at which the objectives do not hold although they hold at a smaller one. Empty: what was
    /// tried is monotone.
    pub contradictions: Vec<u32>,
    /// The number of simulations.
    pub runs: u64,
    /// Whether the log was kept in memory, or read again for each run.
    pub kept_in_memory: bool,
}

/// A total and its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SearchTotals {
    /// The seats of all levels, or the slots of both kinds.
    pub total: u32,
    /// What gives them.
    #[serde(flatten)]
    pub flags: InFlightFlags,
}

/// An objective, with the configuration and with the result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectiveReport {
    /// As it was given.
    pub objective: String,
    /// With the configuration.
    pub configured: JudgementReport,
    /// With the result; without one, at the largest total, or with the shares that come closest.
    pub found: JudgementReport,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JudgementReport {
    /// Whether the objective holds.
    pub holds: bool,
    /// What was measured, in words.
    pub value: String,
}

/// A total that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TriedTotal {
    /// The total.
    pub total: u32,
    /// Whether all objectives hold.
    pub holds: bool,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FoundReport {
    /// The total.
    #[serde(flatten)]
    pub totals: SearchTotals,
    /// Levels whose shares are others.
    pub shares: Vec<SharesChange>,
    /// The objects that change, as manifests.
    pub objects: Vec<Value>,
    /// How often the objectives held at this total in logs that were drawn from the log. `None` if none
    /// were drawn.
    pub resampled: Option<ResampledReport>,
    /// The smallest total at which they held in nine of ten such logs. `None` if none were drawn, or
    /// there is none up to eight times the result.
    pub surer: Option<ResampledReport>,
    /// If shares were looked for at the configured total: those of `surer`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub surer_shares: Vec<SharesChange>,
    /// If shares were looked for at the configured total: all levels that have more or fewer seats.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub seats: Vec<SeatsChange>,
    /// The users who fare worse and better than with the configuration.
    pub changes: ChangesReport,
}

/// The shares of a level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharesChange {
    /// Its name.
    pub level: String,
    /// With the configuration.
    pub configured: i32,
    /// With the result.
    pub found: i32,
}

/// The nominal seats of a level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SeatsChange {
    /// Its name.
    pub level: String,
    /// With the configuration.
    pub configured: u32,
    /// With the result.
    pub found: u32,
}

/// How often objectives held in drawn logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ResampledReport {
    /// The total.
    #[serde(flatten)]
    pub totals: SearchTotals,
    /// In so many logs they held.
    pub held: u32,
    /// Of so many in which the objectives are about any request. 0: it is not known how sure the result
    /// is.
    pub of: u32,
}
