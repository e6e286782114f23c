//! The smallest number for which a test holds. Pure.
//!
//! Powers of two are tried until the test holds for two in succession: more seats can be worse for some
//! request, since borrowing and queues change with them. Then the gap below is bisected. The test holds
//! for the result, as for all greater numbers that were tried, and not for the number before it.

use std::collections::BTreeMap;

/// The greatest number that is tried.
pub(super) const MAX_NUMBER: u32 = 1 << 17;

/// A search, one number after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Smallest {
    /// The test does not hold here, or it is the number before the least one.
    failing: u32,
    /// The least number above `failing` for which the test holds.
    holding: Option<u32>,
    /// The test holds for a number of twice that, too.
    is_confirmed: bool,
    is_given_up: bool,
    tried: BTreeMap<u32, bool>,
}

impl Smallest {
    /// A search among the numbers from `least` on.
    pub(super) const fn new(least: u32) -> Self {
        Self {
            failing: least.saturating_sub(1),
            holding: None,
            is_confirmed: false,
            is_given_up: false,
            tried: BTreeMap::new(),
        }
    }

    /// The number that is tried next. `None`: the search has ended.
    pub(super) fn next(&self) -> Option<u32> {
        let next = match self.holding {
            None => self.failing.saturating_mul(2).max(self.failing + 1),
            Some(holding) if !self.is_confirmed && holding <= MAX_NUMBER / 2 => holding * 2,
            Some(holding) => self.failing + (holding - self.failing) / 2,
        };
        let is_new = next > self.failing && next <= MAX_NUMBER;
        (is_new && !self.is_given_up).then_some(next)
    }

    /// Whether the test holds for [`next`](Self::next).
    pub(super) fn record(&mut self, number: u32, holds: bool) {
        self.tried.insert(number, holds);
        let is_above = self.holding.is_some_and(|holding| number > holding);
        match (holds, is_above) {
            (true, true) => self.is_confirmed = true,
            (true, false) => self.holding = Some(number),
            (false, true) => (self.failing, self.holding) = (number, None),
            (false, false) => self.failing = number,
        }
    }

    /// Nothing can be tried.
    pub(super) const fn give_up(&mut self) {
        self.is_given_up = true;
    }

    /// The result of a search that has ended. `None`: the test does not hold for the greatest number.
    pub(super) const fn found(&self) -> Option<u32> {
        self.holding
    }

    /// All numbers that were tried.
    pub(super) const fn tried(&self) -> &BTreeMap<u32, bool> {
        &self.tried
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    fn search(least: u32, holds: impl Fn(u32) -> bool) -> Smallest {
        let mut search = Smallest::new(least);
        while let Some(next) = search.next() {
            search.record(next, holds(next));
            assert!(search.tried.len() <= 40, "{search:?}");
        }
        search
    }

    #[test]
    fn a_monotone_test_has_one_smallest_number() {
        for least in (1..300).chain([599, 600, 601, 1000, 65_537, MAX_NUMBER]) {
            let found = search(1, |number| number >= least).found();
            assert_eq!(found, Some(least));
        }
        assert_eq!(search(1, |_| false).found(), None);
    }

    #[test]
    fn no_number_below_the_least_is_tried() {
        for (holding_from, found) in [(1, 2), (2, 2), (3, 3), (700, 700)] {
            let search = search(2, |number| number >= holding_from);
            assert_eq!(search.found(), Some(found));
            assert!(!search.tried().contains_key(&1), "{search:?}");
        }
    }

    #[test]
    fn whatever_the_test_the_result_holds_and_so_does_all_above_that_was_tried() {
        let seed = 0x5ea;
        let mut random = Rng::with_seed(seed);
        for round in 0..300 {
            let least = random.u32(1..2000);
            let holes: Vec<u32> = (0..random.usize(0..1000))
                .map(|_| random.u32(1..4000))
                .collect();
            let holds = |number: u32| number >= least && !holes.contains(&number);
            let search = search(1, holds);
            let found = search.found().unwrap();
            assert!(holds(found), "seed {seed}, round {round}");
            let mut above = search.tried().range(found..);
            assert!(above.all(|(_, holds)| *holds), "seed {seed}, round {round}");
            let below = search.tried().get(&(found - 1));
            let is_least = found == 1 || below == Some(&false);
            assert!(is_least, "seed {seed}, round {round}");
        }
    }
}
