//! The counts as they are handed over to another process of weir. Pure data.

use serde::{Deserialize, Serialize};

/// The usage of one name or of all: one number for each measure.
pub(super) type SavedWeights = [u64; 6];

/// The counts of all dimensions.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedTalkers {
    /// In the order of the dimensions.
    pub(super) dimensions: Vec<SavedWindows>,
}

/// The counts of one dimension.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedWindows {
    /// Milliseconds since the windows began.
    pub(super) elapsed_ms: u64,
    pub(super) current_tick: u64,
    pub(super) current: SavedTable,
    /// Shortest first.
    pub(super) windows: Vec<SavedWindow>,
}

/// The buckets of one window.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedWindow {
    pub(super) open: SavedTable,
    /// Each with the tick at which it ended, oldest first.
    pub(super) closed: Vec<(u64, SavedTable)>,
}

/// The usage by name in a period of time.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedTable {
    pub(super) cutoff: SavedWeights,
    pub(super) total: SavedWeights,
    /// Name, count and error.
    pub(super) entries: Vec<(String, SavedWeights, SavedWeights)>,
}
