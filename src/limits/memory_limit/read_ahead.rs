//! Memory for responses that are read ahead of slow clients.
//!
//! The API server cuts a response off at its own deadline, however little a slow client has read by
//! then. So weir takes what the server gives. The memory for that is a part of the memory limit, in
//! chunks, which users share fairly
//! ([`fair_shares`](crate::upstream::connection::fair_shares)). Where it is scarce, or a user has its
//! share, responses are read as fast as their clients read.
//!
//! It is an eighth of the memory limit, and only for proven users.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::upstream::connection::fair_shares::FairShares;
use crate::upstream::requester::SlotHolder;
use weir_kubernetes::numeric::saturating_usize;

/// The bytes of a chunk: as much as a client's stream buffers.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// The budget is this part of the memory limit. A single user gets half of it: 25 MiB where a
/// container has 512 MiB.
const LIMIT_DIVISOR: u64 = 8;

/// The budget without a memory limit, in bytes.
const UNLIMITED: u64 = 128 << 20;

/// The chunks that all responses share.
#[derive(Debug)]
pub(super) struct ReadAheadBudget {
    /// Locked for one chunk, never across an await.
    shares: Mutex<FairShares<SlotHolder>>,
    /// Whether memory is scarce: no more is taken then. Relaxed: an estimate.
    is_scarce: AtomicBool,
}

/// The chunks of one response. Released on drop.
#[derive(Debug)]
pub(crate) struct ReadAheadAccount {
    budget: Arc<ReadAheadBudget>,
    holder: [SlotHolder; 1],
    chunks: usize,
}

impl ReadAheadBudget {
    /// The budget under a memory limit of this many bytes; 0 is no limit.
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            shares: Mutex::new(FairShares::new(total_chunks(limit))),
            is_scarce: AtomicBool::new(false),
        })
    }

    /// Changes the memory limit.
    pub(super) fn set_limit(&self, limit: u64) {
        self.shares.lock().set_total(total_chunks(limit));
    }

    /// Sets whether memory is scarce.
    pub(super) fn set_scarce(&self, scarce: bool) {
        self.is_scarce.store(scarce, Ordering::Relaxed);
    }

    /// The bytes in use.
    pub(super) fn used(&self) -> usize {
        let (_, used) = self.shares.lock().counts();
        used.saturating_mul(CHUNK_BYTES)
    }

    /// An empty account of this user.
    pub(super) fn account(self: &Arc<Self>, holder: SlotHolder) -> ReadAheadAccount {
        ReadAheadAccount {
            budget: Arc::clone(self),
            holder: [holder],
            chunks: 0,
        }
    }
}

fn total_chunks(limit: u64) -> usize {
    let bytes = match limit {
        0 => UNLIMITED,
        limit => limit / LIMIT_DIVISOR,
    };
    saturating_usize(bytes) / CHUNK_BYTES
}

impl ReadAheadAccount {
    /// Grows to this many chunks. Returns whether it has them.
    pub(crate) fn try_grow_to(&mut self, chunks: usize) -> bool {
        if self.chunks < chunks && self.budget.is_scarce.load(Ordering::Relaxed) {
            return false;
        }
        while self.chunks < chunks {
            if self.budget.shares.lock().acquire(&self.holder).is_err() {
                return false;
            }
            self.chunks += 1;
        }
        true
    }

    /// Releases what it has beyond this many chunks.
    pub(crate) fn shrink_to(&mut self, chunks: usize) {
        while self.chunks > chunks {
            self.budget.shares.lock().release(&self.holder);
            self.chunks -= 1;
        }
    }
}

impl Drop for ReadAheadAccount {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many chunks as one more response of this user gets.
    fn grow(budget: &Arc<ReadAheadBudget>, name: &str) -> (usize, ReadAheadAccount) {
        let mut account = budget.account(SlotHolder::User(name.to_owned()));
        while account.try_grow_to(account.chunks + 1) {}
        (account.chunks, account)
    }

    #[test]
    fn a_single_user_gets_half_of_an_eighth_of_the_limit_and_others_a_share() {
        let limit = 1000 * 8 * u64::try_from(CHUNK_BYTES).unwrap();
        let budget = ReadAheadBudget::new(limit);
        let (alice, one) = grow(&budget, "alice");
        assert_eq!(alice, 500);
        assert_eq!(grow(&budget, "alice").0, 0);
        let (bob, other) = grow(&budget, "bob");
        assert_eq!(bob, 250);
        assert_eq!(budget.used(), 750 * CHUNK_BYTES);
        drop((one, other));
        assert_eq!(budget.used(), 0);
        budget.set_limit(limit / 2);
        assert_eq!(grow(&budget, "alice").0, 250);
    }

    #[test]
    fn nothing_more_is_taken_while_memory_is_scarce() {
        let budget = ReadAheadBudget::new(0);
        let (chunks, mut account) = grow(&budget, "alice");
        account.shrink_to(chunks / 2);
        budget.set_scarce(true);
        assert!(account.try_grow_to(chunks / 2), "it has these");
        assert!(!account.try_grow_to(chunks / 2 + 1));
        budget.set_scarce(false);
        assert!(account.try_grow_to(chunks / 2 + 1));
    }
}
