//! The report of a search: what `-o json` prints. Pure.

use serde::Serialize;
use serde_json::Value;

use crate::replay::advice::variants::InFlightFlags;
use crate::replay::report::model::{ChangesReport, InputReport, ModelReport};

/// The report of a search.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SearchReport {
    /// What was read.
    pub(crate) input: InputReport,
    /// The assumptions of the simulation.
    pub(crate) model: ModelReport,
    /// The objectives, in the order of the command line.
    pub(crate) objectives: Vec<ObjectiveReport>,
    /// The total concurrency of the configuration.
    pub(crate) configured: SearchTotals,
    /// The smallest total at which all objectives hold, or the shares with which they hold at the
    /// configured one. `None`: there is none up to `largest`, or none were found.
    pub(crate) found: Option<FoundReport>,
    /// The largest total that was tried.
    pub(crate) largest: u32,
    /// All totals that were tried with the shares of the result, with the log as it is.
    pub(crate) tried: Vec<TriedTotal>,
    /// If shares were looked for at the configured total: how many different ones were tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tried_shares: Option<u64>,
    /// Totals at which the objectives do not hold although they hold at a smaller one. Empty: what was
    /// tried is monotone.
    pub(crate) contradictions: Vec<u32>,
    /// The number of simulations.
    pub(crate) runs: u64,
    /// Whether the log was kept in memory, or read again for each run.
    pub(crate) kept_in_memory: bool,
}

/// A total and its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SearchTotals {
    /// The seats of all levels, or the slots of both kinds.
    pub(crate) total: u32,
    /// What gives them.
    #[serde(flatten)]
    pub(crate) flags: InFlightFlags,
}

/// An objective, with the configuration and with the result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ObjectiveReport {
    /// As it was given.
    pub(crate) objective: String,
    /// With the configuration.
    pub(crate) configured: JudgementReport,
    /// With the result; without one, at the largest total, or with the shares that come closest.
    pub(crate) found: JudgementReport,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct JudgementReport {
    /// Whether the objective holds.
    pub(crate) holds: bool,
    /// What was measured, in words.
    pub(crate) value: String,
}

/// A total that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct TriedTotal {
    /// The total.
    pub(crate) total: u32,
    /// Whether all objectives hold.
    pub(crate) holds: bool,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct FoundReport {
    /// The total.
    #[serde(flatten)]
    pub(crate) totals: SearchTotals,
    /// Levels whose shares are others.
    pub(crate) shares: Vec<SharesChange>,
    /// The objects that change, as manifests.
    pub(crate) objects: Vec<Value>,
    /// How often the objectives held at this total in logs that were drawn from the log. `None` if none
    /// were drawn.
    pub(crate) resampled: Option<ResampledReport>,
    /// The smallest total at which they held in nine of ten such logs. `None` if none were drawn, or
    /// there is none up to eight times the result.
    pub(crate) surer: Option<ResampledReport>,
    /// If shares were looked for at the configured total: those of `surer`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) surer_shares: Vec<SharesChange>,
    /// If shares were looked for at the configured total: all levels that have more or fewer seats.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) seats: Vec<SeatsChange>,
    /// The users who fare worse and better than with the configuration.
    pub(crate) changes: ChangesReport,
}

/// The shares of a level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SharesChange {
    /// Its name.
    pub(crate) level: String,
    /// With the configuration.
    pub(crate) configured: i32,
    /// With the result.
    pub(crate) found: i32,
}

/// The nominal seats of a level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SeatsChange {
    /// Its name.
    pub(crate) level: String,
    /// With the configuration.
    pub(crate) configured: u32,
    /// With the result.
    pub(crate) found: u32,
}

/// How often objectives held in drawn logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ResampledReport {
    /// The total.
    #[serde(flatten)]
    pub(crate) totals: SearchTotals,
    /// In so many logs they held.
    pub(crate) held: u32,
    /// Of so many in which the objectives are about any request. 0: it is not known how sure the result
    /// is.
    pub(crate) of: u32,
}
