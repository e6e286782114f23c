//! Looks for the smallest total, says how sure it is, and compares it with the configuration.

use std::fmt;

use serde_json::Value;

use super::model::{
    FoundReport, JudgementReport, ObjectiveReport, ResampledReport, SearchReport, SeatsChange,
    SharesChange, TriedTotal,
};
use super::runs::{Held, Runner, all_hold};
use super::same_total::{SurerShares, least_change, surer_shares};
use super::shares::{Climbed, shares_for_less};
use super::smallest::{MAX_NUMBER, Smallest, smallest};
use crate::advice::objective::{Judgement, Objective};
use crate::advice::repeatable_log::RepeatableLog;
use crate::advice::trials::{TrialModel, run_one};
use crate::advice::variants::{InFlightFlags, changed_objects, shares_of};
use crate::reader::merge::ReadError;
use crate::run::report;
use crate::simulation::measure::GroupSelector;
use crate::simulation::{Measured, ReplayedPolicies, SimulationOutcome};
use weir_kubernetes::api::flowcontrol::to_manifest;

/// The names that an error lists.
const MAX_LISTED: usize = 10;

/// The name of the policies with the shares that were found.
const OTHER_SHARES: &str = "other shares";

/// The runs of the configuration and of the result.
const CONFIGURED_AND_FOUND: u64 = 2;

/// A total that is surer is looked for up to so many times the result.
const MAX_SURER: u32 = 8;

/// Which shares of priority levels are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharesSearch {
    /// Those of the configuration.
    Configured,
    /// Others, with which a smaller total is enough.
    ForSmallerTotal,
    /// Others, with which the total of the configuration is enough.
    AtSameTotal,
}

/// What is looked for.
#[derive(Debug)]
pub struct SearchRequest<'s> {
    /// The configuration.
    pub policies: &'s ReplayedPolicies,
    /// Its total.
    pub flags: InFlightFlags,
    /// What shall hold. Not empty.
    pub objectives: &'s [Objective],
    /// Which shares of priority levels are tried.
    pub shares: SharesSearch,
    /// The logs that are drawn from the log, to say how sure the result is. 0: none.
    pub resamples: u32,
    /// The assumptions.
    pub model: TrialModel,
}

/// Why there is no report.
#[derive(Debug)]
pub enum SearchError {
    /// The log cannot be read again.
    Read(ReadError),
    /// An objective is about no request.
    NoRequests {
        /// The objective.
        objective: String,
        /// What it selects.
        selector: GroupSelector,
        /// What it could select.
        names: Vec<String>,
    },
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(why) => why.fmt(f),
            Self::NoRequests {
                objective,
                selector,
                names,
            } => {
                let kind = selector.kind.name();
                write!(
                    f,
                    "--search '{objective}': no request of the log has the {kind} {:?}, so it would hold whatever the total; ",
                    selector.name
                )?;
                let listed = names
                    .iter()
                    .take(MAX_LISTED)
                    .map(|name| format!("{name:?}"));
                let listed: Vec<String> = listed.collect();
                write!(f, "there are requests of {}", listed.join(", "))?;
                match names.len().saturating_sub(MAX_LISTED) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
        }
    }
}

impl From<ReadError> for SearchError {
    fn from(why: ReadError) -> Self {
        Self::Read(why)
    }
}

/// A run with its report.
struct FullRun {
    judgements: Vec<Judgement>,
    measured: Vec<Measured>,
    names: Vec<Vec<String>>,
    outcome: SimulationOutcome,
}

/// Looks for the smallest total concurrency at which the objectives hold, or for the shares with which
/// they hold at the configured one.
///
/// # Errors
/// The log cannot be read again, or an objective is about no request.
pub fn search(
    log: &RepeatableLog,
    request: &SearchRequest<'_>,
) -> Result<SearchReport, SearchError> {
    let runner = Runner {
        log,
        model: request.model,
        objectives: request.objectives,
        flags: request.flags,
    };
    let configured = run_fully(&runner, request.policies)?;
    check_requests(&runner, &configured)?;
    match request.shares {
        SharesSearch::AtSameTotal => search_shares(&runner, request, configured),
        SharesSearch::Configured | SharesSearch::ForSmallerTotal => {
            search_total(&runner, request, configured)
        }
    }
}

/// Looks for the smallest total.
fn search_total(
    runner: &Runner<'_>,
    request: &SearchRequest<'_>,
    configured: FullRun,
) -> Result<SearchReport, SearchError> {
    let (log, mut runs) = (runner.log, CONFIGURED_AND_FOUND);
    let mut policies = request.policies.clone();
    let mut smallest = smallest_total(runner, &policies, request.flags.total(), &mut runs)?;
    if request.shares == SharesSearch::ForSmallerTotal {
        let most = smallest.found.unwrap_or(MAX_NUMBER);
        if let Some(other) = shares_for_less(runner, &policies, most, &mut runs)? {
            let other_smallest = smallest_total(runner, &other, most, &mut runs)?;
            if other_smallest.found.is_some_and(|total| total < most) {
                (policies, smallest) = (other, other_smallest);
            }
        }
    }
    let best = runner.at_total(&policies, smallest.found.unwrap_or(MAX_NUMBER));
    let full = run_fully(runner, &best)?;
    let objectives = objective_reports(request.objectives, &configured, &full);
    let outcomes = vec![configured.outcome, full.outcome];
    let replayed = report(log.summary(), log.options(), request.model.model, outcomes);
    let mut found = None;
    if let Some(total) = smallest.found {
        let sureness = how_sure(runner, &policies, total, request.resamples, &mut runs)?;
        found = Some(FoundReport {
            totals: runner.totals(total),
            shares: shares_changes(request.policies, &best),
            objects: manifests(request.policies, &best),
            resampled: sureness.resampled,
            surer: sureness.surer,
            surer_shares: Vec::new(),
            seats: Vec::new(),
            changes: replayed.changes,
        });
    }
    Ok(SearchReport {
        input: replayed.input,
        model: replayed.model,
        objectives,
        configured: runner.totals(request.flags.total()),
        found,
        largest: MAX_NUMBER,
        tried_shares: None,
        contradictions: smallest.contradictions(),
        tried: smallest
            .tested
            .into_iter()
            .map(|(total, holds)| TriedTotal { total, holds })
            .collect(),
        runs,
        kept_in_memory: log.kept().is_some(),
    })
}

/// Looks for the shares with which the objectives hold at the total of the configuration.
fn search_shares(
    runner: &Runner<'_>,
    request: &SearchRequest<'_>,
    configured: FullRun,
) -> Result<SearchReport, SearchError> {
    let (log, total) = (runner.log, request.flags.total());
    let mut tried = 0;
    let found = least_change(runner, request.policies, &mut tried)?;
    let mut runs = CONFIGURED_AND_FOUND + tried;
    let Climbed { policies, holds } = found;
    let policies = ReplayedPolicies {
        name: OTHER_SHARES.to_owned(),
        ..policies
    };
    let full = run_fully(runner, &policies)?;
    let objectives = objective_reports(request.objectives, &configured, &full);
    let seats = seats_changes(&configured.outcome, &full.outcome);
    let outcomes = vec![configured.outcome, full.outcome];
    let replayed = report(log.summary(), log.options(), request.model.model, outcomes);
    let mut found = None;
    if holds {
        let (resampled, surer) = how_sure_of_shares(runner, request, &policies, &mut runs)?;
        let of_total = |held: Held| ResampledReport {
            totals: runner.totals(total),
            held: held.held,
            of: held.of,
        };
        found = Some(FoundReport {
            totals: runner.totals(total),
            shares: shares_changes(request.policies, &policies),
            objects: manifests(request.policies, &policies),
            resampled: resampled.map(of_total),
            surer_shares: surer.as_ref().map_or_else(Vec::new, |surer| {
                shares_changes(request.policies, &surer.policies)
            }),
            surer: surer.map(|surer| of_total(surer.held)),
            seats,
            changes: replayed.changes,
        });
    }
    Ok(SearchReport {
        input: replayed.input,
        model: replayed.model,
        objectives,
        configured: runner.totals(total),
        found,
        largest: total,
        tried_shares: Some(tried),
        contradictions: Vec::new(),
        tried: Vec::new(),
        runs,
        kept_in_memory: log.kept().is_some(),
    })
}

/// The objects that change.
fn manifests(before: &ReplayedPolicies, after: &ReplayedPolicies) -> Vec<Value> {
    let changed = changed_objects(before, after);
    changed.iter().map(to_manifest).collect()
}

/// How often the objectives hold with some shares in drawn logs, and shares with which they hold in
/// nine of ten.
fn how_sure_of_shares(
    runner: &Runner<'_>,
    request: &SearchRequest<'_>,
    policies: &ReplayedPolicies,
    runs: &mut u64,
) -> Result<(Option<Held>, Option<SurerShares>), ReadError> {
    let resamples = request.resamples;
    if resamples == 0 {
        return Ok((None, None));
    }
    *runs += u64::from(resamples);
    let held = runner.judge_resampled(policies, resamples)?;
    if held.of == 0 {
        return Ok((Some(held), None));
    }
    if held.is_sure() {
        let policies = policies.clone();
        return Ok((Some(held), Some(SurerShares { policies, held })));
    }
    let surer = surer_shares(runner, request.policies, policies, resamples, runs)?;
    Ok((Some(held), surer))
}

/// The levels that have more or fewer seats.
fn seats_changes(before: &SimulationOutcome, after: &SimulationOutcome) -> Vec<SeatsChange> {
    let levels = before.run.levels.iter().filter_map(|configured| {
        let name = &configured.requests.name;
        let mut levels = after.run.levels.iter();
        let found = levels.find(|level| level.requests.name == *name)?;
        (found.nominal_seats != configured.nominal_seats).then(|| SeatsChange {
            level: name.clone(),
            configured: configured.nominal_seats,
            found: found.nominal_seats,
        })
    });
    levels.collect()
}

/// The smallest total at which the objectives hold, around `near`.
fn smallest_total(
    runner: &Runner<'_>,
    policies: &ReplayedPolicies,
    near: u32,
    runs: &mut u64,
) -> Result<Smallest, ReadError> {
    smallest(runner.least_total(policies), near, |totals| {
        *runs += weir_kubernetes::numeric::saturating_u64(totals.len());
        let variants = totals.iter().map(|total| runner.at_total(policies, *total));
        let judged = runner.judge(&variants.collect::<Vec<_>>())?;
        Ok(judged.iter().map(|judged| all_hold(judged)).collect())
    })
}

fn run_fully(runner: &Runner<'_>, policies: &ReplayedPolicies) -> Result<FullRun, ReadError> {
    let mut simulation = run_one(runner.log, runner.model, policies)?;
    let selectors = runner.selectors();
    let measured = simulation.measure(&selectors);
    let names = selectors.iter().map(|selector| match selector {
        Some(selector) => simulation.names_with_requests(selector.kind),
        None => Vec::new(),
    });
    Ok(FullRun {
        judgements: runner.judgements(&measured),
        names: names.collect(),
        measured,
        outcome: simulation.finish(),
    })
}

/// An objective about no request would hold at any total, and hide a misspelt name.
fn check_requests(runner: &Runner<'_>, run: &FullRun) -> Result<(), SearchError> {
    let objectives = runner.objectives.iter().zip(&run.measured).zip(&run.names);
    for ((objective, measured), names) in objectives {
        if let Some(selector) = objective.selector()
            && measured.arrivals == 0
        {
            return Err(SearchError::NoRequests {
                objective: objective.to_string(),
                selector: selector.clone(),
                names: names.clone(),
            });
        }
    }
    Ok(())
}

fn objective_reports(
    objectives: &[Objective],
    configured: &FullRun,
    found: &FullRun,
) -> Vec<ObjectiveReport> {
    let judged = configured.judgements.iter().zip(&found.judgements);
    let reports = objectives.iter().zip(judged);
    let reports = reports.map(|(objective, (configured, found))| ObjectiveReport {
        objective: objective.to_string(),
        configured: judgement_report(configured),
        found: judgement_report(found),
    });
    reports.collect()
}

fn judgement_report(judgement: &Judgement) -> JudgementReport {
    JudgementReport {
        holds: judgement.holds,
        value: judgement.value.clone(),
    }
}

fn shares_changes(before: &ReplayedPolicies, after: &ReplayedPolicies) -> Vec<SharesChange> {
    let after = shares_of(after);
    let levels = shares_of(before).into_iter();
    let changes = levels.filter_map(|(level, configured)| {
        let found = *after.get(&level)?;
        (found != configured).then_some(SharesChange {
            level,
            configured,
            found,
        })
    });
    changes.collect()
}

#[derive(Debug, Default)]
struct Sureness {
    resampled: Option<ResampledReport>,
    surer: Option<ResampledReport>,
}

/// How often the objectives hold at a total in drawn logs, and the smallest total at which they hold
/// in nine of ten: to 1/32 of it.
fn how_sure(
    runner: &Runner<'_>,
    policies: &ReplayedPolicies,
    total: u32,
    resamples: u32,
    runs: &mut u64,
) -> Result<Sureness, ReadError> {
    if resamples == 0 {
        return Ok(Sureness::default());
    }
    let mut judge = |total: u32| {
        *runs += u64::from(resamples);
        runner.judge_resampled(&runner.at_total(policies, total), resamples)
    };
    let at = |total, held: Held| ResampledReport {
        totals: runner.totals(total),
        held: held.held,
        of: held.of,
    };
    let first = judge(total)?;
    let resampled = Some(at(total, first));
    if first.of == 0 {
        return Ok(Sureness {
            resampled,
            surer: None,
        });
    }
    let (mut below, mut sure) = (total, first.is_sure().then_some((total, first)));
    let most = total.saturating_mul(MAX_SURER).min(MAX_NUMBER);
    while sure.is_none() && below < most {
        let next = below.saturating_add(below.div_ceil(2)).min(most);
        let held = judge(next)?;
        if held.is_sure() {
            sure = Some((next, held));
        } else {
            below = next;
        }
    }
    while let Some((above, _)) = sure
        && above - below > (above / 32).max(1)
    {
        let middle = below + (above - below) / 2;
        let held = judge(middle)?;
        if held.is_sure() {
            sure = Some((middle, held));
        } else {
            below = middle;
        }
    }
    Ok(Sureness {
        resampled,
        surer: sure.map(|(total, held)| at(total, held)),
    })
}
