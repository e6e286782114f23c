//! A whole replay: reads a log, runs it under one or two configurations, and reports.

mod classification;
pub mod log_checks;
mod waiting;

use std::sync::Arc;
use std::time::Instant;

use crate::clients::ClientTable;
use crate::logged::LogItem;
use crate::reader::input::LogSource;
use crate::reader::merge::{ReadCounts, ReadError, ReadOptions, read_log};
use crate::report::changes::{changes_between, changes_from_record};
use crate::report::model::{
    ChangesReport, InputReport, ModelReport, OrderReport, Report, SkippedReport,
};
use crate::run::log_checks::{CheckedLog, LogChecks};
use crate::simulation::outcome::format_time;
use crate::simulation::{ReplayModel, ReplayedPolicies, Simulation, SimulationOutcome};

/// What was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadSummary {
    /// The lines and requests.
    pub counts: ReadCounts,
    /// What the log says about how well it can be replayed.
    pub checked: CheckedLog,
}

/// Replays a log under these configurations, side by side. `base` is any moment.
///
/// # Errors
/// The log cannot be read.
pub fn replay(
    sources: &[LogSource],
    options: &ReadOptions,
    policies: &[ReplayedPolicies],
    model: ReplayModel,
    base: Instant,
) -> Result<Report, ReadError> {
    let table = Arc::new(ClientTable::default());
    let mut simulations: Vec<Simulation> = policies
        .iter()
        .map(|policies| Simulation::new(policies, model, &table, base))
        .collect();
    let mut check = LogChecks::new(policies.first(), &table);
    let counts = read_log(sources, options, &table, &mut |item| {
        check.check(&item);
        offer_to_all(&mut simulations, item);
    })?;
    let read = ReadSummary {
        counts,
        checked: check.report(),
    };
    let outcomes: Vec<SimulationOutcome> =
        simulations.into_iter().map(Simulation::finish).collect();
    Ok(report(&read, options, model, outcomes))
}

fn offer_to_all(simulations: &mut [Simulation], item: LogItem) {
    let Some((last, others)) = simulations.split_last_mut() else {
        return;
    };
    for simulation in others {
        simulation.offer(item.clone());
    }
    last.offer(item);
}

/// The report of simulations of one log.
#[must_use]
pub fn report(
    read: &ReadSummary,
    options: &ReadOptions,
    model: ReplayModel,
    outcomes: Vec<SimulationOutcome>,
) -> Report {
    let changes = match &*outcomes {
        [] => ChangesReport::default(),
        [one] => changes_from_record(&one.run.policies, &one.users),
        [one, other, ..] => changes_between(
            (&one.run.policies, &one.users),
            (&other.run.policies, &other.users),
        ),
    };
    Report {
        input: input_report(read, options, outcomes.first()),
        model: ModelReport {
            clients: model.clients.name(),
            service_time_scale: model.service_time_scale,
            capacity: model.capacity,
        },
        runs: outcomes.into_iter().map(|outcome| outcome.run).collect(),
        changes,
    }
}

#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "a report needs no more"
)]
fn input_report(
    read: &ReadSummary,
    options: &ReadOptions,
    outcome: Option<&SimulationOutcome>,
) -> InputReport {
    let counts = &read.counts;
    let lines = &counts.lines;
    let malformed = outcome.map_or(0, |outcome| outcome.malformed);
    let left_out = outcome.map_or(0, |outcome| outcome.left_out_retries);
    let times = counts.times_us;
    InputReport {
        lines: lines.lines,
        bytes: lines.bytes,
        arrivals: counts.requests.saturating_sub(malformed + left_out),
        first: times.map(|(first, _)| format_time(first)),
        last: times.map(|(_, last)| format_time(last)),
        duration_s: times.map_or(0.0, |(first, last)| last.saturating_sub(first) as f64 / 1e6),
        received_events: lines.received,
        end_events: counts.ends,
        recorded_rejected: counts.rejected,
        recorded_wait_s: counts.wait_ns as f64 / 1e9,
        left_out_retries: left_out,
        skipped: SkippedReport {
            not_json: lines.not_json,
            truncated: lines.truncated,
            trailing: lines.trailing,
            not_events: lines.not_events,
            incomplete: lines.incomplete,
            malformed_requests: malformed,
            unknown_fields: lines.unknown_fields,
            not_recorded: lines.dropped,
        },
        order: OrderReport {
            window_s: options.window_us as f64 / 1e6,
            late: counts.late.count,
            latest_by_s: counts.late.by_us as f64 / 1e6,
        },
        classification: read.checked.classification,
        waiting: read.checked.waiting,
    }
}
