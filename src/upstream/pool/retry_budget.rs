//! How many requests may be sent again: one for ten that are sent. An upstream that refuses streams because it has too much to
//! do is not helped by getting them three times.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

/// What a retry costs, in what a request earns.
const RETRY_COST: u32 = 10;

/// Most that is saved: a hundred retries, as when a connection with all its streams is told to go.
const MAX_BALANCE: u32 = 100 * RETRY_COST;

/// Earned by requests, spent by retries; full at the start.
#[derive(Debug)]
pub(in crate::upstream) struct RetryBudget(AtomicU32);

impl Default for RetryBudget {
    fn default() -> Self {
        Self(AtomicU32::new(MAX_BALANCE))
    }
}

impl RetryBudget {
    /// A request is sent.
    pub(in crate::upstream) fn deposit(&self) {
        // Relaxed: a sum, which orders nothing else. A load first: it is full almost always.
        if self.0.load(Ordering::Relaxed) < MAX_BALANCE {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether one may be sent again.
    pub(in crate::upstream) fn try_withdraw(&self) -> bool {
        self.0
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |saved| {
                saved.checked_sub(RETRY_COST)
            })
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_ten_requests_is_retried_once_the_balance_is_spent() {
        let budget = RetryBudget::default();
        let saved = (0..1000).filter(|_| budget.try_withdraw()).count();
        assert_eq!(saved, 100);
        let mut again = 0;
        for _ in 0..1000 {
            budget.deposit();
            again += u32::from(budget.try_withdraw());
        }
        assert_eq!(again, 100);
    }

    #[test]
    fn the_balance_is_at_most_a_hundred_retries() {
        let budget = RetryBudget::default();
        for _ in 0..100_000 {
            budget.deposit();
        }
        assert!((0..1000).filter(|_| budget.try_withdraw()).count() <= 101);
    }
}
