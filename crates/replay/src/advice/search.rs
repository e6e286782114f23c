//! The smallest total concurrency at which objectives hold, for the log and for each of some equal parts
//! of it alone: how much these differ says how sure the result is.

use std::fmt;

use serde::Serialize;

use super::objective::{Judgement, Objective};
use super::repeatable_log::{LogPart, RepeatableLog, Trial};
use super::smallest::{MAX_NUMBER, Smallest};
use super::variants::{InFlightFlags, with_total};
use crate::reader::merge::ReadError;
use crate::report::model::{ChangesReport, InputReport, ModelReport};
use crate::report::table;
use crate::simulation::measure::GroupSelector;
use crate::simulation::{ReplayedPolicies, Simulation, SimulationOutcome};
use weir_explain::explainer::ConcurrencyPolicy;
use weir_kubernetes::encoding::printable::escape;

/// The parts of a log. With more, each is too short for what builds up in queues.
const PARTS: u32 = 5;

/// The names that an error lists.
const MAX_LISTED: usize = 10;

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub struct SearchRequest<'s> {
    /// The log.
    pub log: &'s RepeatableLog,
    /// The configuration.
    pub policies: &'s ReplayedPolicies,
    /// Its total.
    pub flags: InFlightFlags,
    /// What shall hold. Not empty.
    pub objectives: &'s [Objective],
}

/// The report of a search: what `-o json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SearchReport {
    /// What was read.
    pub input: InputReport,
    /// The assumptions of the simulation.
    pub model: ModelReport,
    /// The objectives, in the order of the command line.
    pub objectives: Vec<ObjectiveReport>,
    /// The total concurrency of the configuration.
    pub configured: SearchTotals,
    /// The smallest total at which all objectives hold. `None`: there is none up to `largest`.
    pub found: Option<SearchTotals>,
    /// The same for each part of the log alone. `None`: no request of the objectives is in it, or there is
    /// no such total.
    pub parts: Vec<Option<u32>>,
    /// The largest total that may be tried.
    pub largest: u32,
    /// All totals that were tried with the whole log.
    pub tried: Vec<TriedTotal>,
    /// The users who fare worse and better than with the configuration.
    pub changes: ChangesReport,
}

/// An objective, with the configuration and with the result; without one, at the largest total.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names are those of the JSON")]
pub struct ObjectiveReport {
    pub objective: String,
    pub configured: Judgement,
    pub found: Judgement,
}

/// The seats of all levels, or the slots of both kinds, and the flags that give them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are those of the JSON")]
pub struct SearchTotals {
    pub total: u32,
    #[serde(flatten)]
    pub flags: InFlightFlags,
}

/// A total, and whether all objectives hold at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are those of the JSON")]
pub struct TriedTotal {
    pub total: u32,
    pub holds: bool,
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
                let listed = names.iter().take(MAX_LISTED);
                let listed: Vec<String> = listed.map(|name| format!("{name:?}")).collect();
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

/// Looks for the smallest total concurrency at which the objectives hold.
///
/// # Errors
/// The log cannot be read again, or an objective is about no request.
pub fn search(request: SearchRequest<'_>) -> Result<SearchReport, SearchError> {
    let SearchRequest {
        log,
        policies,
        flags,
        objectives,
    } = request;
    let (judged, configured) = request.run_fully(policies)?;
    let (whole, parts) = request.smallest_totals()?;
    let best = request.at_total(whole.found().unwrap_or(MAX_NUMBER));
    let (judged_best, best) = request.run_fully(&best)?;
    let replayed = log.report(vec![configured, best]);
    let judged = judged.into_iter().zip(judged_best);
    let totals = |total| SearchTotals {
        total,
        flags: flags.with_total(total),
    };
    let objectives = objectives.iter().zip(judged);
    let tried = whole.tried().iter();
    Ok(SearchReport {
        input: replayed.input,
        model: replayed.model,
        objectives: objectives
            .map(|(objective, (configured, found))| ObjectiveReport {
                objective: objective.to_string(),
                configured,
                found,
            })
            .collect(),
        configured: totals(flags.total()),
        found: whole.found().map(totals),
        parts: parts.iter().map(Smallest::found).collect(),
        largest: MAX_NUMBER,
        tried: tried
            .map(|(&total, &holds)| TriedTotal { total, holds })
            .collect(),
        changes: replayed.changes,
    })
}

impl SearchRequest<'_> {
    /// Runs the log with a report. An objective about no request would hold at any total, and hide a
    /// misspelt name.
    fn run_fully(
        &self,
        policies: &ReplayedPolicies,
    ) -> Result<(Vec<Judgement>, SimulationOutcome), SearchError> {
        let mut simulation = self.log.run_one(policies)?;
        let measured = simulation.measure(&self.selectors());
        for (objective, measured) in self.objectives.iter().zip(&measured) {
            if let (Some(selector), 0) = (objective.selector(), measured.arrivals) {
                return Err(SearchError::NoRequests {
                    objective: objective.to_string(),
                    selector: selector.clone(),
                    names: simulation.names_with_requests(selector.kind),
                });
            }
        }
        let judged = self.objectives.iter().zip(&measured);
        let judged = judged.map(|(objective, measured)| objective.judge(measured));
        Ok((judged.collect(), simulation.finish()))
    }

    /// The searches for the whole log, and for each part: side by side, a pass for each step.
    fn smallest_totals(&self) -> Result<(Smallest, Vec<Smallest>), ReadError> {
        let has_both =
            self.flags.max_requests_inflight > 0 && self.flags.max_mutating_requests_inflight > 0;
        let least = match self.policies.limits.concurrency {
            // One of two limits would be 0 at less, which is no limit.
            ConcurrencyPolicy::MaxInFlight(_) if has_both => 2,
            ConcurrencyPolicy::MaxInFlight(_) | ConcurrencyPolicy::Fairness { .. } => 1,
        };
        let mut whole = Smallest::new(least);
        let parts = (0..PARTS).map(|number| LogPart { number, of: PARTS });
        let mut parts: Vec<_> = parts.map(|part| (part, Smallest::new(least))).collect();
        loop {
            let of_parts = parts.iter().map(|(part, search)| (Some(*part), search));
            let all = std::iter::once((None, &whole)).chain(of_parts);
            let open = all.filter_map(|(part, search)| Some((part, self.at_total(search.next()?))));
            let open: Vec<_> = open.collect();
            if open.is_empty() {
                let parts = parts.into_iter().map(|(_, search)| search);
                return Ok((whole, parts.collect()));
            }
            let trials = open.iter().map(|(part, policies)| Trial {
                policies,
                part: *part,
            });
            let trials: Vec<_> = trials.collect();
            let mut held = self.log.run(&trials, |one| self.all_hold(one))?.into_iter();
            let of_parts = parts.iter_mut().map(|(_, search)| search);
            for search in std::iter::once(&mut whole).chain(of_parts) {
                if let Some(next) = search.next() {
                    match held.next().flatten() {
                        Some(holds) => search.record(next, holds),
                        None => search.give_up(),
                    }
                }
            }
        }
    }

    /// `None`: no request of the objectives was there.
    fn all_hold(&self, mut simulation: Simulation) -> Option<bool> {
        let measured = simulation.measure(&self.selectors());
        let is_about_any = measured.iter().any(|measured| measured.arrivals > 0);
        let mut judged = self.objectives.iter().zip(&measured);
        is_about_any.then(|| judged.all(|(objective, measured)| objective.judge(measured).holds))
    }

    fn selectors(&self) -> Vec<Option<GroupSelector>> {
        let objectives = self.objectives.iter();
        let selectors = objectives.map(|objective| objective.selector().cloned());
        selectors.collect()
    }

    fn at_total(&self, total: u32) -> ReplayedPolicies {
        let name = format!("{total} at a time");
        with_total(self.policies, self.flags.with_total(total), name)
    }
}

/// The report as text.
#[must_use]
pub fn render(report: &SearchReport) -> String {
    let mut text = String::new();
    table::write_input(&mut text, &report.input);
    table::write_model(&mut text, &report.input, &report.model);
    let found = report.found.map_or(report.largest, |found| found.total);
    let at = |total: u32| format!("AT {total}");
    let (configured, best) = (at(report.configured.total), at(found));
    let titles = ["OBJECTIVE", &configured, "", &best, ""];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    for objective in &report.objectives {
        let mut row = vec![table::printable(&objective.objective)];
        for judgement in [&objective.configured, &objective.found] {
            let holds = if judgement.holds { "holds" } else { "does not" };
            row.extend([judgement.value.clone(), holds.to_owned()]);
        }
        rows.push(row);
    }
    text.push('\n');
    table::write_table(&mut text, &rows);
    text.push('\n');
    for line in result(report) {
        text.push_str(&escape(&line));
        text.push('\n');
    }
    if report.found.is_some() {
        table::write_all_changes(&mut text, &report.changes);
    }
    text
}

fn result(report: &SearchReport) -> Vec<String> {
    let Some(found) = &report.found else {
        return vec![format!(
            "The objectives hold at no total up to {}. Seats are not what the requests lack.",
            report.largest
        )];
    };
    let flags = |totals: &SearchTotals| {
        format!(
            "{} (--max-requests-inflight={} --max-mutating-requests-inflight={})",
            totals.total,
            totals.flags.max_requests_inflight,
            totals.flags.max_mutating_requests_inflight
        )
    };
    let parts = report.parts.iter();
    let parts = parts.map(|part| part.map_or_else(|| "-".to_owned(), |total| total.to_string()));
    vec![
        format!("smallest total: {}", flags(found)),
        format!("configured: {}", flags(&report.configured)),
        format!(
            "each of {} equal parts of the log alone: {}. Another day may differ from this one as much.",
            report.parts.len(),
            parts.collect::<Vec<_>>().join(", ")
        ),
    ]
}
