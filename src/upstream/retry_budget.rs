//! How many requests may be sent again: one for ten that are sent. An upstream that refuses streams because it has too much to
//! do is not helped by getting them three times.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

/// What a retry costs, in what a request earns.
const PRICE: u32 = 10;

/// Most that is saved: a hundred retries, as when a connection with all its streams is told to go.
const MOST: u32 = 100 * PRICE;

/// Earned by requests, spent by retries; full at the start.
#[derive(Debug)]
pub(super) struct RetryBudget(AtomicU32);

impl Default for RetryBudget {
    fn default() -> Self {
        Self(AtomicU32::new(MOST))
    }
}

impl RetryBudget {
    /// A request is sent.
    pub(super) fn earn(&self) {
        // Relaxed: a sum, which orders nothing else. A load first: it is full almost always.
        if self.0.load(Ordering::Relaxed) < MOST {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether one may be sent again.
    pub(super) fn spend(&self) -> bool {
        self.0
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |saved| {
                saved.checked_sub(PRICE)
            })
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_ten_requests_one_is_sent_again_once_what_was_saved_is_spent() {
        let budget = RetryBudget::default();
        let saved = (0..1000).filter(|_| budget.spend()).count();
        assert_eq!(saved, 100);
        let mut again = 0;
        for _ in 0..1000 {
            budget.earn();
            again += u32::from(budget.spend());
        }
        assert_eq!(again, 100);
    }

    #[test]
    fn no_more_is_saved_than_a_hundred_retries() {
        let budget = RetryBudget::default();
        for _ in 0..100_000 {
            budget.earn();
        }
        assert!((0..1000).filter(|_| budget.spend()).count() <= 101);
    }
}
