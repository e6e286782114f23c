//! The runs of a search.

use super::model::SearchTotals;
use crate::advice::objective::{Judgement, Objective};
use crate::advice::repeatable_log::RepeatableLog;
use crate::advice::trials::{Trial, TrialModel, run_trials};
use crate::advice::variants::{InFlightFlags, with_total};
use crate::reader::merge::ReadError;
use crate::simulation::measure::GroupSelector;
use crate::simulation::{Measured, ReplayedPolicies, Simulation};
use weir_explain::explainer::ConcurrencyPolicy;

/// In so many of ten drawn logs objectives shall hold.
const SURE_OF_TEN: u32 = 9;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runner<'r> {
    pub(super) log: &'r RepeatableLog,
    pub(super) model: TrialModel,
    pub(super) objectives: &'r [Objective],
    /// The flags of the configuration.
    pub(super) flags: InFlightFlags,
}

/// How often objectives held in drawn logs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub(super) held: u32,
    pub(super) of: u32,
}

impl Held {
    /// Whether they held often enough.
    pub(super) const fn is_sure(self) -> bool {
        self.of > 0 && self.held * 10 >= self.of * SURE_OF_TEN
    }
}

impl Runner<'_> {
    /// The least total that is tried. With max-in-flight one of two limits would be 0 at less, which is
    /// no limit.
    pub(super) const fn least_total(&self, policies: &ReplayedPolicies) -> u32 {
        let InFlightFlags {
            max_requests_inflight,
            max_mutating_requests_inflight,
        } = self.flags;
        match policies.limits.concurrency {
            ConcurrencyPolicy::MaxInFlight(_)
                if max_requests_inflight > 0 && max_mutating_requests_inflight > 0 =>
            {
                2
            }
            ConcurrencyPolicy::MaxInFlight(_) | ConcurrencyPolicy::Fairness { .. } => 1,
        }
    }

    /// A total and the flags that give it.
    pub(super) fn totals(&self, total: u32) -> SearchTotals {
        let flags = self.flags.with_total(total);
        SearchTotals { total, flags }
    }

    /// The policies with a total.
    pub(super) fn at_total(&self, policies: &ReplayedPolicies, total: u32) -> ReplayedPolicies {
        let name = format!("{total} at a time");
        with_total(policies, self.flags.with_total(total), name)
    }

    /// Judges all objectives under each of some policies.
    ///
    /// # Errors
    /// The log cannot be read again.
    pub(super) fn judge(
        &self,
        variants: &[ReplayedPolicies],
    ) -> Result<Vec<Vec<Judgement>>, ReadError> {
        let trials = variants.iter().map(|policies| Trial {
            policies,
            resample: None,
        });
        let trials: Vec<Trial<'_>> = trials.collect();
        let selectors = self.selectors();
        let finish = |mut simulation: Simulation| self.judgements(&simulation.measure(&selectors));
        run_trials(self.log, self.model, &trials, finish)
    }

    /// Judges all objectives in drawn logs: those of the seeds 1 to `count`.
    ///
    /// # Errors
    /// The log cannot be read again.
    pub(super) fn judge_resampled(
        &self,
        policies: &ReplayedPolicies,
        count: u32,
    ) -> Result<Held, ReadError> {
        let trials = (1..=count).map(|seed| Trial {
            policies,
            resample: Some(seed.into()),
        });
        let trials: Vec<Trial<'_>> = trials.collect();
        let selectors = self.selectors();
        let finish = |mut simulation: Simulation| {
            let measured = simulation.measure(&selectors);
            let is_about_any = measured.iter().any(|measured| measured.arrivals > 0);
            is_about_any.then(|| all_hold(&self.judgements(&measured)))
        };
        let results = run_trials(self.log, self.model, &trials, finish)?;
        let mut held = Held::default();
        for holds in results.into_iter().flatten() {
            held.held += u32::from(holds);
            held.of += 1;
        }
        Ok(held)
    }

    /// The groups of the objectives, in their order.
    pub(super) fn selectors(&self) -> Vec<Option<GroupSelector>> {
        let objectives = self.objectives.iter();
        objectives
            .map(|objective| objective.selector().cloned())
            .collect()
    }

    /// The judgements of what was measured of the groups of the objectives.
    pub(super) fn judgements(&self, measured: &[Measured]) -> Vec<Judgement> {
        let objectives = self.objectives.iter().zip(measured);
        objectives
            .map(|(objective, measured)| objective.judge(measured))
            .collect()
    }
}

/// Whether all objectives hold.
pub(super) fn all_hold(judgements: &[Judgement]) -> bool {
    judgements.iter().all(|judgement| judgement.holds)
}
