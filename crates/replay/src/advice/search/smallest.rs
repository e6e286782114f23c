//! The smallest number for which a test holds, where the test need not be monotone. Pure.
//!
//! More seats can be worse for some request: a level that is larger borrows less, a queue that is
//! dealt otherwise collides otherwise. So a bisection alone could end anywhere. Here the powers of two
//! are tested first, then the gap below the last one above which all hold is bisected, and then
//! the neighbourhood of the result is sampled. The result is a number for which the test holds, as it
//! does for all greater numbers that were tested.

use std::collections::BTreeMap;

/// The greatest number that is tested.
pub(super) const MAX_NUMBER: u32 = 1 << 17;

/// The distances from a result at which its neighbourhood is sampled.
const NEAR: [u32; 4] = [1, 2, 3, 5];

/// The distances in percent of a result.
const NEAR_PERCENT: [u32; 5] = [5, 10, 20, 35, 50];

/// How often a neighbourhood may correct the result. Each correction raises it.
const MAX_CORRECTIONS: u32 = 8;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Smallest {
    /// The number. `None`: the test does not hold for the greatest number.
    pub(super) found: Option<u32>,
    /// All numbers that were tested.
    pub(super) tested: BTreeMap<u32, bool>,
}

impl Smallest {
    /// The numbers that contradict a monotone test: those below the result for which it holds, and
    /// those above a number for which it holds for which it does not.
    pub(super) fn contradictions(&self) -> Vec<u32> {
        let first = self.tested.iter().find(|(_, holds)| **holds);
        let Some((first, _)) = first else {
            return Vec::new();
        };
        let above = self.tested.range(first..);
        above
            .filter(|(_, holds)| !**holds)
            .map(|(n, _)| *n)
            .collect()
    }
}

/// Looks for the smallest number from `least` on, around `near`. `test` says of each of some numbers
/// whether the test holds.
///
/// # Errors
/// Those of `test`.
pub(super) fn smallest<E>(
    least: u32,
    near: u32,
    mut test: impl FnMut(&[u32]) -> Result<Vec<bool>, E>,
) -> Result<Smallest, E> {
    let mut search = Search {
        least: least.clamp(1, MAX_NUMBER),
        test: &mut test,
        tested: BTreeMap::new(),
    };
    search.test_grid(near.clamp(search.least, MAX_NUMBER))?;
    let mut found = search.settle()?;
    for _ in 0..MAX_CORRECTIONS {
        let Some(number) = found else {
            break;
        };
        search.test_neighbours(number)?;
        let corrected = search.settle()?;
        if corrected == found {
            break;
        }
        found = corrected;
    }
    Ok(Smallest {
        found,
        tested: search.tested,
    })
}

struct Search<'t, T> {
    least: u32,
    test: &'t mut T,
    tested: BTreeMap<u32, bool>,
}

impl<E, T: FnMut(&[u32]) -> Result<Vec<bool>, E>> Search<'_, T> {
    /// Tests numbers that were not tested yet.
    fn test(&mut self, numbers: impl IntoIterator<Item = u32>) -> Result<(), E> {
        let mut new: Vec<u32> = numbers
            .into_iter()
            .filter(|number| (self.least..=MAX_NUMBER).contains(number))
            .filter(|number| !self.tested.contains_key(number))
            .collect();
        new.sort_unstable();
        new.dedup();
        if !new.is_empty() {
            let holds = (self.test)(&new)?;
            self.tested.extend(new.into_iter().zip(holds));
        }
        Ok(())
    }

    /// Tests `near` and the powers of two up to twice of it, and on until the test holds for two in
    /// succession.
    fn test_grid(&mut self, near: u32) -> Result<(), E> {
        let powers = (0..=MAX_NUMBER.ilog2()).map(|bit| 1 << bit);
        let (below, above): (Vec<u32>, Vec<u32>) =
            powers.partition(|power| *power <= near.saturating_mul(2));
        self.test(below.into_iter().chain([near]))?;
        for power in above {
            let mut last = self.tested.values().rev();
            if last.next() == Some(&true) && last.next() == Some(&true) {
                break;
            }
            self.test([power])?;
        }
        Ok(())
    }

    /// The smallest number above which all that were tested hold, after the gap below it was bisected.
    fn settle(&mut self) -> Result<Option<u32>, E> {
        loop {
            let Some(holding) = self.holding_from() else {
                return Ok(None);
            };
            let below = self.tested.range(..holding).next_back();
            let failing = below.map_or(self.least - 1, |(number, _)| *number);
            if holding - failing <= 1 {
                return Ok(Some(holding));
            }
            self.test([failing + (holding - failing) / 2])?;
        }
    }

    /// The smallest number that was tested from which on all hold.
    fn holding_from(&self) -> Option<u32> {
        let holding = self.tested.iter().rev().take_while(|(_, holds)| **holds);
        holding.last().map(|(number, _)| *number)
    }

    fn test_neighbours(&mut self, number: u32) -> Result<(), E> {
        let by_percent = NEAR_PERCENT.map(|percent| number.saturating_mul(percent) / 100);
        let distances = NEAR.into_iter().chain(by_percent);
        let numbers: Vec<u32> = distances
            .flat_map(|distance| {
                [
                    number.saturating_sub(distance),
                    number.saturating_add(distance),
                ]
            })
            .collect();
        self.test(numbers)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use fastrand::Rng;

    use super::*;

    fn search(near: u32, holds: impl Fn(u32) -> bool) -> (Smallest, usize) {
        search_from(1, near, holds)
    }

    fn search_from(least: u32, near: u32, holds: impl Fn(u32) -> bool) -> (Smallest, usize) {
        let mut runs = 0;
        let found = smallest::<Infallible>(least, near, |numbers| {
            runs += numbers.len();
            Ok(numbers.iter().map(|number| holds(*number)).collect())
        });
        (found.unwrap(), runs)
    }

    #[test]
    fn a_monotone_test_has_one_smallest_number() {
        for least in (1..300).chain([599, 600, 601, 1000, 65_537, MAX_NUMBER]) {
            for near in [1, 600, 90_000] {
                let (found, runs) = search(near, |number| number >= least);
                assert_eq!(found.found, Some(least), "near {near}");
                assert_eq!(found.contradictions(), [0; 0]);
                assert!(runs <= 60, "{least}, near {near}: {runs} runs");
            }
        }
    }

    #[test]
    fn no_number_below_the_least_is_tested() {
        for (holding_from, found) in [(1, 2), (2, 2), (3, 3), (700, 700)] {
            let (smallest, _) = search_from(2, 600, |number| number >= holding_from);
            assert_eq!(smallest.found, Some(found));
            assert!(!smallest.tested.contains_key(&1), "{smallest:?}");
        }
    }

    #[test]
    fn a_test_that_never_holds_has_none() {
        let (found, _) = search(600, |_| false);
        assert_eq!(found.found, None);
        let (found, _) = search(600, |number| number < 100);
        assert_eq!(found.found, None, "it does not hold for the greatest");
        assert!(!found.contradictions().is_empty());
    }

    #[test]
    fn the_result_is_above_all_failures_that_were_seen() {
        // It holds from 40 on, but for a hole that a bisection between 32 and 64 does not see.
        let (found, _) = search(600, |number| number >= 40 && !(43..=44).contains(&number));
        assert_eq!(found.found, Some(45));
        assert_eq!(found.contradictions(), [43, 44]);
    }

    #[test]
    fn whatever_the_test_the_result_holds_and_so_does_all_above_that_was_tested() {
        let seed = 0x5ea;
        let mut random = Rng::with_seed(seed);
        for round in 0..300 {
            let least = random.u32(1..2000);
            let holes: Vec<u32> = (0..random.usize(0..200))
                .map(|_| random.u32(1..4000))
                .collect();
            let holds = |number: u32| number >= least && !holes.contains(&number);
            let (smallest, runs) = search(random.u32(1..3000), holds);
            let found = smallest.found.unwrap();
            assert!(holds(found), "seed {seed}, round {round}");
            let above = smallest.tested.range(found..);
            assert!(
                above.clone().all(|(_, holds)| *holds),
                "seed {seed}, round {round}"
            );
            let below = smallest.tested.get(&(found - 1));
            assert!(
                found == 1 || below == Some(&false),
                "seed {seed}, round {round}"
            );
            assert!(runs <= 200, "seed {seed}, round {round}: {runs}");
        }
    }
}
