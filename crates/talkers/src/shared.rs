//! The state that all worker shards share.

use parking_lot::Mutex;
use std::hash::RandomState;
use std::time::Instant;

use super::query::Dimension;
use super::sliding_windows::SlidingWindows;
use weir_base::hash_keys::HashSecret;

/// The number of dimensions.
pub(crate) const DIMENSIONS: usize = Dimension::ALL.len();

/// The tables that shards are flushed into, and the hash secrets.
pub(crate) struct SharedState {
    /// Random per process, so that clients cannot search for names with equal hashes.
    pub(crate) name_hasher: RandomState,
    /// Key of the fingerprints by which a shard recognises requests with equal names.
    pub(crate) fingerprint_secret: HashSecret,
    /// All counts, in the order of [`Dimension::ALL`]. Locked while a shard is flushed, a bucket is
    /// closed, or a window is read.
    pub(crate) windows: Mutex<[SlidingWindows; DIMENSIONS]>,
}

impl SharedState {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            name_hasher: RandomState::new(),
            fingerprint_secret: HashSecret::default(),
            windows: Mutex::new(Dimension::ALL.map(|_| SlidingWindows::new(now))),
        }
    }
}
