//! Runs a log under many policies: side by side on the processors if it is in memory, a few at a time
//! if it is read again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use super::repeatable_log::RepeatableLog;
use super::resampling::Resampled;
use crate::logged::LogItem;
use crate::reader::merge::ReadError;
use crate::simulation::{ReplayModel, ReplayedPolicies, Simulation};

/// The simulations that share one reading of a log. Each has counts of all users and flows: some
/// 10 MiB for 10,000 users.
const MAX_TOGETHER: usize = 4;

/// How a log is replayed.
#[derive(Clone, Copy, Debug)]
pub struct TrialModel {
    /// The assumptions of the simulation.
    pub model: ReplayModel,
    /// Any moment.
    pub base: Instant,
}

/// A run of a log.
#[derive(Debug)]
pub struct Trial<'t> {
    /// The policies.
    pub policies: &'t ReplayedPolicies,
    /// The seed of the log that is drawn from the log. `None`: the log itself.
    pub resample: Option<u64>,
}

/// A run that has begun.
struct Running {
    simulation: Simulation,
    resampled: Option<Resampled>,
}

impl Running {
    fn new(trial: &Trial<'_>, log: &RepeatableLog, model: TrialModel) -> Self {
        let TrialModel { model, base } = model;
        Self {
            simulation: Simulation::new(trial.policies, model, log.table(), base),
            resampled: trial.resample.map(|seed| Resampled::new(seed, log.table())),
        }
    }

    fn offer(&mut self, item: &LogItem) {
        let simulation = &mut self.simulation;
        match &mut self.resampled {
            None => simulation.offer(item.clone()),
            Some(resampled) => resampled.offer(item, &mut |item| simulation.offer(item)),
        }
    }
}

/// Runs all trials. `finish` makes the result of a simulation that all requests were offered to.
///
/// # Errors
/// The log cannot be read again.
pub fn run_trials<T: Send>(
    log: &RepeatableLog,
    model: TrialModel,
    trials: &[Trial<'_>],
    finish: impl Fn(Simulation) -> T + Sync,
) -> Result<Vec<T>, ReadError> {
    if let Some(items) = log.kept() {
        return Ok(run_side_by_side(trials.len(), |n| {
            let mut running = Running::new(trials.get(n)?, log, model);
            items.iter().for_each(|item| running.offer(item));
            Some(finish(running.simulation))
        }));
    }
    let mut results = Vec::new();
    for trials in trials.chunks(MAX_TOGETHER) {
        let running = trials.iter().map(|trial| Running::new(trial, log, model));
        let mut running: Vec<Running> = running.collect();
        log.replay(&mut |item| running.iter_mut().for_each(|one| one.offer(item)))?;
        results.extend(running.into_iter().map(|one| finish(one.simulation)));
    }
    Ok(results)
}

/// Runs the log itself under one configuration, and keeps the usage of schemas by users.
///
/// # Errors
/// The log cannot be read again.
pub fn run_one(
    log: &RepeatableLog,
    model: TrialModel,
    policies: &ReplayedPolicies,
) -> Result<Simulation, ReadError> {
    let TrialModel { model, base } = model;
    let mut simulation = Simulation::new(policies, model, log.table(), base).with_usage();
    log.replay(&mut |item| simulation.offer(item.clone()))?;
    Ok(simulation)
}

/// The results of `run` for 0 to `count` - 1, in this order, by one thread a processor.
fn run_side_by_side<T: Send>(count: usize, run: impl Fn(usize) -> Option<T> + Sync) -> Vec<T> {
    let threads = thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    if threads.min(count) <= 1 {
        return (0..count).filter_map(run).collect();
    }
    let next = AtomicUsize::new(0);
    let take_all = || {
        let numbers = std::iter::from_fn(|| {
            let number = next.fetch_add(1, Ordering::Relaxed);
            (number < count).then_some(number)
        });
        let results = numbers.filter_map(|number| Some((number, run(number)?)));
        results.collect::<Vec<_>>()
    };
    let mut results: Vec<(usize, T)> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.min(count))
            .map(|_| scope.spawn(take_all))
            .collect();
        let results = handles.into_iter().map(|handle| match handle.join() {
            Ok(results) => results,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        results.flatten().collect()
    });
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}
