//! Other shares of priority levels, with which objectives hold at a smaller total.
//!
//! At a total at which the objectives do not hold, the shares of one level after the other are doubled:
//! each time those of the level that helps most. That is a hill climb: it need not find the best shares,
//! but what it finds was tried. Totals are bisected with this.

use std::collections::BTreeMap;

use super::runs::{Runner, all_hold};
use crate::advice::objective::Judgement;
use crate::advice::variants::{shares_of, with_shares};
use crate::reader::merge::ReadError;
use crate::simulation::ReplayedPolicies;
use weir_kubernetes::api::flowcontrol::CATCH_ALL;

/// How often shares are doubled: one level to 4096 times of what it had.
const MAX_STEPS: u32 = 12;

/// The most shares of a level.
const MAX_SHARES: i32 = 1 << 20;

/// The policies with shares with which the objectives hold at a smaller total than `total`, at which
/// they hold with these. `None`: none were found.
///
/// # Errors
/// The log cannot be read again.
pub(super) fn shares_for_less(
    runner: &Runner<'_>,
    policies: &ReplayedPolicies,
    total: u32,
    runs: &mut u64,
) -> Result<Option<ReplayedPolicies>, ReadError> {
    let (mut failing, mut holding, mut best) = (0, total, None);
    // The gap is bisected to a sixteenth; the smallest total is looked for afterwards.
    while holding - failing > (holding / 16).max(1) {
        let middle = failing + (holding - failing) / 2;
        let start = best.as_ref().unwrap_or(policies);
        let climbed = climb(runner, start, middle, runs)?;
        if climbed.holds {
            (holding, best) = (middle, Some(climbed.policies));
        } else {
            failing = middle;
        }
    }
    Ok(best)
}

/// The end of a climb.
#[derive(Clone, Debug)]
pub(super) struct Climbed {
    pub(super) policies: ReplayedPolicies,
    /// Whether the objectives hold with them. If not, they come as close as any that were tried.
    pub(super) holds: bool,
}

/// Looks for shares with which the objectives hold at this total.
///
/// # Errors
/// The log cannot be read again.
pub(super) fn climb(
    runner: &Runner<'_>,
    policies: &ReplayedPolicies,
    total: u32,
    runs: &mut u64,
) -> Result<Climbed, ReadError> {
    let mut best = Climbed {
        policies: policies.clone(),
        holds: false,
    };
    let judged = runner.judge(&[runner.at_total(policies, total)])?;
    *runs += 1;
    let Some(first) = judged.into_iter().next() else {
        return Ok(best); // unreachable: one variant has one judgement
    };
    best.holds = all_hold(&first);
    if best.holds {
        return Ok(best);
    }
    let mut least = badness(&first, &first);
    for _ in 0..MAX_STEPS {
        let variants = doubled(&best.policies);
        let at_total = variants.iter().map(|one| runner.at_total(one, total));
        let judged = runner.judge(&at_total.collect::<Vec<_>>())?;
        *runs += weir_kubernetes::numeric::saturating_u64(variants.len());
        let tried = variants.into_iter().zip(judged);
        let tried = tried.map(|(variant, judged)| (badness(&judged, &first), judged, variant));
        // The first of equal ones, so that the result is always the same.
        let better = tried.min_by(|(a, ..), (b, ..)| a.total_cmp(b));
        match better {
            Some((bad, judged, variant)) if bad < least => {
                (least, best.policies) = (bad, variant);
                best.holds = all_hold(&judged);
                if best.holds {
                    return Ok(best);
                }
            }
            _ => return Ok(best),
        }
    }
    Ok(best)
}

/// The policies with the shares of one level doubled, for each level. The catch-all level is not
/// among them: kube-apiserver keeps it as it is.
fn doubled(policies: &ReplayedPolicies) -> Vec<ReplayedPolicies> {
    let levels = shares_of(policies).into_iter();
    let levels = levels.filter(|(level, _)| level != CATCH_ALL);
    levels
        .map(|(level, shares)| {
            let more = shares.saturating_mul(2).clamp(1, MAX_SHARES);
            with_shares(policies, &BTreeMap::from([(level, more)]))
        })
        .collect()
}

/// How far objectives are from holding, compared with how far they were at first: 1 for each that is as
/// far. One that held at first and does not now counts more.
fn badness(judged: &[Judgement], first: &[Judgement]) -> f64 {
    let both = judged.iter().zip(first);
    let each = both.map(|(now, first)| match (now.holds, first.holds) {
        (true, _) => 0.0,
        (false, false) => now.excess / first.excess,
        (false, true) => 1.0 + now.excess,
    });
    each.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_hold_any_more_is_worse_than_what_never_did() {
        let judgement = |excess: f64| Judgement {
            holds: excess == 0.0,
            value: String::new(),
            excess,
        };
        let first = [judgement(10.0), judgement(0.0)];
        let bad = |a, b| badness(&[judgement(a), judgement(b)], &first);
        assert_eq!(bad(10.0, 0.0), 1.0);
        assert_eq!(bad(5.0, 0.0), 0.5);
        assert_eq!(bad(0.0, 0.0), 0.0);
        assert!(bad(0.0, 0.001) > bad(10.0, 0.0));
    }
}
