//! How many requests have begun on a connection, and how many of them are over.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

/// What was counted on a connection. Relaxed, as the counts stand for nothing but themselves.
#[derive(Debug, Default)]
pub struct Requests {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Requests {
    /// A request has come.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> Begun {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Begun(Arc::clone(self))
    }

    /// How many have begun.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// How many are over: answered to the last byte, or cut off.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }
}

/// A request that is under way until this is dropped.
#[derive(Debug)]
pub struct Begun(Arc<Requests>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}
