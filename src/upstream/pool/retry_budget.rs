//! The retry budget: one retry for ten requests. Sending requests three times does not help an
//! upstream that refuses streams because it is overloaded.

use std::sync::atomic::{AtomicU32, Ordering};

/// The cost of a retry, in deposits of one request each.
const RETRY_COST: u32 = 10;

/// The largest balance: a hundred retries, as needed when the peer closes a connection with all
/// streams in use.
const MAX_BALANCE: u32 = 100 * RETRY_COST;

/// Filled by requests, spent by retries; full at the start.
#[derive(Debug)]
pub(crate) struct RetryBudget(AtomicU32);

impl Default for RetryBudget {
    fn default() -> Self {
        Self(AtomicU32::new(MAX_BALANCE))
    }
}

impl RetryBudget {
    /// Records that a request is sent.
    pub(crate) fn deposit(&self) {
        // Relaxed: a sum, which orders nothing else. The load comes first because the budget is
        // nearly always full.
        if self.0.load(Ordering::Relaxed) < MAX_BALANCE {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a request may be retried.
    pub(crate) fn try_withdraw(&self) -> bool {
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
