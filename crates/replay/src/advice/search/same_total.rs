//! Other shares of priority levels, with which objectives hold at the same total.
//!
//! A hill climb finds shares with which they hold. Then the change is made smaller: first that of all
//! levels together, then that of one level after the other, until less of any does not do. A search
//! among few levels and whole shares, so it need not find the least change of all, but what it finds
//! was tried.

use std::collections::BTreeMap;
use std::convert::identity;

use super::runs::{Held, Runner, all_hold};
use super::shares::{Climbed, climb};
use super::smallest::smallest;
use crate::advice::variants::{shares_of, with_shares};
use crate::reader::merge::ReadError;
use crate::simulation::ReplayedPolicies;
use weir_kubernetes::numeric::saturating_u64;

/// The steps in which the change of all levels together is made smaller.
const STEPS: u32 = 32;

/// How often all levels are gone through, unless nothing changes any more.
const MAX_PASSES: u32 = 3;

/// A change that is surer is looked for at these multiples of a change, in quarters.
const SURER_QUARTERS: [u32; 7] = [5, 6, 8, 12, 16, 24, 32];

/// The shares of levels, by name.
type Shares = BTreeMap<String, i32>;

/// Shares with which objectives hold in drawn logs, and in how many of them.
#[derive(Debug)]
pub(super) struct SurerShares {
    pub(super) policies: ReplayedPolicies,
    pub(super) held: Held,
}

/// The search at the total of the configuration.
struct AtTotal<'a> {
    runner: &'a Runner<'a>,
    policies: &'a ReplayedPolicies,
    configured: Shares,
    runs: &'a mut u64,
}

/// The policies with the shares that differ the least from these, of those that were tried, with which
/// the objectives hold. If they hold with none: those that come closest.
///
/// # Errors
/// The log cannot be read again.
pub(super) fn least_change(
    runner: &Runner<'_>,
    policies: &ReplayedPolicies,
    runs: &mut u64,
) -> Result<Climbed, ReadError> {
    let climbed = climb(runner, policies, runner.flags.total(), runs)?;
    if !climbed.holds {
        return Ok(climbed);
    }
    let mut search = AtTotal {
        runner,
        policies,
        configured: shares_of(policies),
        runs,
    };
    let shares = search.shrink(shares_of(&climbed.policies))?;
    Ok(Climbed {
        policies: with_shares(policies, &shares),
        holds: true,
    })
}

/// The same change, but so much more of it that the objectives hold in nine of ten drawn logs.
///
/// # Errors
/// The log cannot be read again.
pub(super) fn surer_shares(
    runner: &Runner<'_>,
    configured: &ReplayedPolicies,
    found: &ReplayedPolicies,
    resamples: u32,
    runs: &mut u64,
) -> Result<Option<SurerShares>, ReadError> {
    let (before, after) = (shares_of(configured), shares_of(found));
    if before == after {
        return Ok(None);
    }
    for quarters in SURER_QUARTERS {
        let shares = between(&before, &after, quarters, 4);
        let policies = with_shares(configured, &shares);
        let variant = runner.at_total(&policies, runner.flags.total());
        *runs += u64::from(resamples);
        let held = runner.judge_resampled(&variant, resamples)?;
        if !held.is_sure() {
            continue;
        }
        *runs += 1;
        let judged = runner.judge(&[variant])?;
        if judged.iter().all(|judged| all_hold(judged)) {
            return Ok(Some(SurerShares { policies, held }));
        }
    }
    Ok(None)
}

impl AtTotal<'_> {
    /// Makes the change smaller as long as the objectives hold.
    fn shrink(&mut self, found: Shares) -> Result<Shares, ReadError> {
        let mut shares = found;
        if self.changed(&shares).len() > 1 {
            let most = shares.clone();
            let configured = self.configured.clone();
            let step = |step| between(&configured, &most, step, STEPS);
            let least = self.least(STEPS, step)?;
            shares = between(&configured, &most, least, STEPS);
        }
        for _ in 0..MAX_PASSES {
            let before = shares.clone();
            for level in self.changed(&shares) {
                shares = self.shrink_level(shares, &level)?;
            }
            if shares == before {
                break;
            }
        }
        Ok(shares)
    }

    /// Makes the change of one level smaller.
    fn shrink_level(&mut self, shares: Shares, level: &str) -> Result<Shares, ReadError> {
        let of = |shares: &Shares| shares.get(level).copied().unwrap_or_default();
        let (before, after) = (of(&self.configured), of(&shares));
        let change = after.abs_diff(before);
        let with_change = |part: u32| {
            let part = i32::try_from(part).unwrap_or(i32::MAX);
            let mut shares = shares.clone();
            let shares_of_level = if after > before {
                before.saturating_add(part)
            } else {
                before.saturating_sub(part)
            };
            shares.insert(level.to_owned(), shares_of_level);
            shares
        };
        if self.holds(&[with_change(0)])?.into_iter().all(identity) {
            return Ok(with_change(0));
        }
        let least = self.least(change, with_change)?;
        Ok(with_change(least))
    }

    /// The smallest part of a change for which the objectives hold, as they do for `most`.
    fn least(&mut self, most: u32, change: impl Fn(u32) -> Shares) -> Result<u32, ReadError> {
        let result = smallest(1, most, |parts| {
            let tried = parts.iter().filter(|part| **part < most);
            let tried: Vec<Shares> = tried.map(|part| change(*part)).collect();
            let mut holds = self.holds(&tried)?.into_iter();
            let all = parts.iter().map(|part| {
                let is_known = *part >= most;
                is_known || holds.next().unwrap_or_default()
            });
            Ok::<_, ReadError>(all.collect())
        })?;
        Ok(result.found.unwrap_or(most).min(most))
    }

    /// Whether the objectives hold with each of these shares.
    fn holds(&mut self, shares: &[Shares]) -> Result<Vec<bool>, ReadError> {
        *self.runs += saturating_u64(shares.len());
        let total = self.runner.flags.total();
        let variants = shares.iter().map(|shares| {
            let policies = with_shares(self.policies, shares);
            self.runner.at_total(&policies, total)
        });
        let judged = self.runner.judge(&variants.collect::<Vec<_>>())?;
        Ok(judged.iter().map(|judged| all_hold(judged)).collect())
    }

    /// The levels whose shares differ from the configured ones, those that differ most first.
    fn changed(&self, shares: &Shares) -> Vec<String> {
        let change = |(level, before): (&String, &i32)| {
            let after = shares.get(level).copied().unwrap_or(*before);
            (after.abs_diff(*before), level.clone())
        };
        let mut changed: Vec<_> = self.configured.iter().map(change).collect();
        changed.retain(|(change, _)| *change > 0);
        changed.sort_by(|(a, _), (b, _)| b.cmp(a));
        changed.into_iter().map(|(_, level)| level).collect()
    }
}

/// The shares at a part of the way from one to the other, or beyond. At least 1 of what is not 0.
fn between(from: &Shares, to: &Shares, part: u32, of: u32) -> Shares {
    let shares = from.iter().map(|(level, before)| {
        let after = to.get(level).copied().unwrap_or(*before);
        let (before, change) = (i64::from(*before), i64::from(after) - i64::from(*before));
        let part = change.abs() * i64::from(part);
        let part = (part + i64::from(of) / 2) / i64::from(of);
        let shares = (before + change.signum() * part).max(before.min(1));
        (level.clone(), i32::try_from(shares).unwrap_or(i32::MAX))
    });
    shares.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_change_is_rounded_and_leaves_a_share() {
        let shares = |a, b| Shares::from([("a".to_owned(), a), ("b".to_owned(), b)]);
        let (before, after) = (shares(10, 20), shares(40, 5));
        assert_eq!(between(&before, &after, 0, 32), before);
        assert_eq!(between(&before, &after, 32, 32), after);
        assert_eq!(between(&before, &after, 16, 32), shares(25, 12));
        assert_eq!(between(&before, &after, 8, 4), shares(70, 1));
        assert_eq!(between(&shares(0, 1), &shares(3, 1), 1, 32), shares(0, 1));
    }
}
