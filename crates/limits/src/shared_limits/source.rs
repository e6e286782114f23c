//! What the tables of buckets and the task that refills them know of each other.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use crate::shared_limits::bucket::{RefillAnswer, RefillCall};
use crate::throttling::token_bucket::Rate;

/// A call for a key of a source.
#[derive(Clone, Debug)]
pub struct SourceCall {
    /// Which table of the source.
    pub table: u64,
    /// What the table's buckets are named by in the server, together with the key.
    pub scope: Arc<str>,
    /// The key in the table.
    pub key: u128,
    /// The rate and burst of all replicas together.
    pub rate: Rate,
    /// The call.
    pub call: RefillCall,
}

/// Tables with shared buckets, behind their own lock.
pub trait RefillSource: fmt::Debug + Send + Sync {
    /// Adds the calls that are due, for `max_keys` keys at most. Called once in each interval of
    /// calls.
    fn collect(&self, now: Instant, max_keys: usize, calls: &mut Vec<SourceCall>);

    /// Applies the answer to a call.
    fn apply(&self, call: &SourceCall, answer: RefillAnswer, now: Instant);
}

/// What a limit needs in order to share its buckets. Clones are the same.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// The number of replicas.
    replicas: Arc<AtomicU32>,
    secret: [u64; 2],
    /// Locked for a reload, and once in each interval of calls.
    sources: Arc<Mutex<Vec<Weak<dyn RefillSource>>>>,
}

impl Sharing {
    /// Nothing is shared yet. `secret` is that of the tables' keys.
    #[must_use]
    pub fn new(secret: [u64; 2], replicas: u32) -> Self {
        Self {
            replicas: Arc::new(AtomicU32::new(replicas.max(1))),
            secret,
            sources: Arc::default(),
        }
    }

    /// The secret of the hashes of keys, which is the same in all replicas.
    #[must_use]
    pub const fn secret(&self) -> [u64; 2] {
        self.secret
    }

    /// The last known number of replicas; at least 1.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        self.replicas.load(Ordering::Relaxed)
    }

    /// Sets the number of replicas.
    pub fn set_replicas(&self, replicas: u32) {
        self.replicas.store(replicas.max(1), Ordering::Relaxed);
    }

    /// Adds tables, until they are dropped.
    pub fn add_source(&self, source: Weak<dyn RefillSource>) {
        self.sources.lock().push(source);
    }

    /// The tables that still exist.
    #[must_use]
    pub fn sources(&self) -> Vec<Arc<dyn RefillSource>> {
        let mut sources = self.sources.lock();
        sources.retain(|source| source.strong_count() > 0);
        sources.iter().filter_map(Weak::upgrade).collect()
    }
}
