//! The counts as they are handed over to another process of weir. Pure data.

use serde::{Deserialize, Serialize};

/// The usage of one name or of all: one number for each measure.
pub(crate) type SavedWeights = [u64; 6];

/// The counts of all dimensions.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedTalkers {
    /// In the order of the dimensions.
    pub(crate) dimensions: Vec<SavedWindows>,
}

/// The counts of one dimension.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedWindows {
    /// Milliseconds since the windows began.
    pub(crate) elapsed_ms: u64,
    pub(crate) current_tick: u64,
    pub(crate) current: SavedTable,
    /// Shortest first.
    pub(crate) windows: Vec<SavedWindow>,
}

/// The buckets of one window.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedWindow {
    pub(crate) open: SavedTable,
    /// Each with the tick at which it ended, oldest first.
    pub(crate) closed: Vec<(u64, SavedTable)>,
}

/// The usage by name in a period of time.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedTable {
    pub(crate) cutoff: SavedWeights,
    pub(crate) total: SavedWeights,
    /// Name, count and error.
    pub(crate) entries: Vec<(String, SavedWeights, SavedWeights)>,
}
