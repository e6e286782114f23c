//! A log that is replayed many times.
//!
//! It is read again for each pass, in which several simulations run, so memory does not grow with it.
//! The standard input and pipes cannot be read again.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::clients::ClientTable;
use crate::logged::LogItem;
use crate::reader::input::LogSource;
use crate::reader::merge::{ReadError, ReadOptions, read_log};
use crate::report::model::Report;
use crate::run::log_checks::LogChecks;
use crate::run::{ReadSummary, report};
use crate::simulation::{ReplayModel, ReplayedPolicies, Simulation, SimulationOutcome};

/// The simulations that share one reading of a log. Each has counts of all users and flows: some
/// 10 MiB for 10,000 users.
const MAX_TOGETHER: usize = 8;

/// A log that has been read, and can be replayed again.
#[derive(Debug)]
pub struct RepeatableLog {
    sources: Vec<LogSource>,
    options: ReadOptions,
    /// The assumptions of each simulation.
    model: ReplayModel,
    /// Any moment.
    base: Instant,
    table: Arc<ClientTable>,
    summary: ReadSummary,
}

/// Why a log cannot be replayed many times.
#[derive(Debug)]
pub enum RepeatError {
    /// It cannot be read.
    Read(ReadError),
    /// This part of it can be read only once.
    ReadOnce(LogSource),
}

/// A run of a log, or of one of its parts.
#[derive(Debug)]
pub(super) struct Trial<'t> {
    pub(super) policies: &'t ReplayedPolicies,
    /// `None`: all of the log.
    pub(super) part: Option<LogPart>,
}

/// One of so many parts of a log, which take the same time.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogPart {
    /// The first is 0.
    pub(super) number: u32,
    pub(super) of: u32,
}

impl fmt::Display for RepeatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(why) => why.fmt(f),
            Self::ReadOnce(source) => write!(
                f,
                "{source}: --search and --suggest read a log several times, and this one can be read only once: give a file"
            ),
        }
    }
}

impl From<ReadError> for RepeatError {
    fn from(why: ReadError) -> Self {
        Self::Read(why)
    }
}

impl RepeatableLog {
    /// Reads the log for the first time. `policies` are those of the configuration.
    ///
    /// # Errors
    /// It cannot be read, or not be read again.
    pub fn read(
        sources: &[LogSource],
        options: &ReadOptions,
        policies: &ReplayedPolicies,
        model: ReplayModel,
        base: Instant,
    ) -> Result<Self, RepeatError> {
        if let Some(source) = sources.iter().find(|source| source.is_read_once()) {
            return Err(RepeatError::ReadOnce(source.clone()));
        }
        let table = Arc::new(ClientTable::default());
        let mut check = LogChecks::new(Some(policies), &table);
        let counts = read_log(sources, options, &table, &mut |item| check.check(&item))?;
        Ok(Self {
            sources: sources.to_vec(),
            options: options.clone(),
            model,
            base,
            table,
            summary: ReadSummary {
                counts,
                checked: check.report(),
            },
        })
    }

    /// Hands on all requests, in the order of their times.
    ///
    /// # Errors
    /// The log cannot be read again.
    pub(super) fn replay(&self, each: &mut dyn FnMut(LogItem)) -> Result<(), ReadError> {
        read_log(&self.sources, &self.options, &self.table, each)?;
        Ok(())
    }

    /// Runs the log under each of some configurations. The results are in the order of the trials.
    ///
    /// # Errors
    /// The log cannot be read again.
    pub(super) fn run<T>(
        &self,
        trials: &[Trial<'_>],
        finish: impl Fn(Simulation) -> T,
    ) -> Result<Vec<T>, ReadError> {
        let mut results = Vec::new();
        for trials in trials.chunks(MAX_TOGETHER) {
            let running = trials.iter();
            let running = running.map(|trial| (trial.part, self.simulation(trial.policies)));
            let mut running: Vec<_> = running.collect();
            self.replay(&mut |item| {
                for (part, simulation) in &mut running {
                    if part.is_none_or(|part| self.is_in(part, item.at_us())) {
                        simulation.offer(item.clone());
                    }
                }
            })?;
            results.extend(
                running
                    .into_iter()
                    .map(|(_, simulation)| finish(simulation)),
            );
        }
        Ok(results)
    }

    /// Runs the log under one configuration, and keeps the usage of schemas by users.
    ///
    /// # Errors
    /// The log cannot be read again.
    pub(super) fn run_one(&self, policies: &ReplayedPolicies) -> Result<Simulation, ReadError> {
        let mut simulation = self.simulation(policies).with_usage();
        self.replay(&mut |item| simulation.offer(item))?;
        Ok(simulation)
    }

    fn simulation(&self, policies: &ReplayedPolicies) -> Simulation {
        Simulation::new(policies, self.model, &self.table, self.base)
    }

    fn is_in(&self, part: LogPart, at_us: i64) -> bool {
        let (first, last) = self.summary.counts.times_us.unwrap_or_default();
        let length = i128::from(last) - i128::from(first) + 1;
        let since = (i128::from(at_us) - i128::from(first)).clamp(0, length - 1);
        since * i128::from(part.of) / length == i128::from(part.number)
    }

    /// The report of simulations of this log.
    pub(super) fn report(&self, outcomes: Vec<SimulationOutcome>) -> Report {
        report(&self.summary, &self.options, self.model, outcomes)
    }

    /// The clients of the log.
    #[must_use]
    pub(super) const fn table(&self) -> &Arc<ClientTable> {
        &self.table
    }
}
