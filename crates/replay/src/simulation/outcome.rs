//! The end of a simulation: its report.

use std::time::Duration;

use jiff::Timestamp;

use super::auto_total::SimTotal;
use super::engine::Simulation;
use super::limits::limiter::Limiter;
use super::statistics::groups::GroupTable;
use super::statistics::groups::rounded;
use crate::report::model::GroupLoss;
use crate::report::model::{
    ClosedLoopReport, GroupReport, GroupsReport, LevelReport, RunReport, SeriesReport,
};
use weir_flowcontrol::concurrency::LevelSeats;
use weir_flowcontrol::fairqueuing::queue_set::Queuing;
use weir_limits::max_in_flight::InFlightLimit;

/// The group of requests that are not limited.
const NOT_LIMITED: &str = "(not limited)";

/// The name of the flow of a schema without a distinguisher.
const ONE_FLOW: &str = "(all)";

/// The outcome of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationOutcome {
    /// Its report.
    pub run: RunReport,
    /// What each user lost, by name.
    pub users: Vec<(String, GroupLoss)>,
    /// Requests that weir would answer with an error before all limits.
    pub malformed: u64,
    /// Recorded rejections that were left out.
    pub left_out_retries: u64,
}

/// The kind, the seats by configuration (nominal, least, most) of a level.
struct LevelFacts {
    name: String,
    kind: &'static str,
    seats: [u32; 3],
}

impl Simulation {
    /// Lets all requests end, and reports.
    #[must_use]
    pub fn finish(mut self) -> SimulationOutcome {
        self.run_to_the_end();
        let names = self.table.names();
        let named = |table: &GroupTable, names: &[std::sync::Arc<str>], missing: &str| {
            table.report(|n| {
                let name = names.get(n).map_or("", |name| &**name);
                named_group(if name.is_empty() { missing } else { name })
            })
        };
        let mut users: Vec<(String, GroupLoss)> = self
            .groups
            .users
            .losses()
            .map(|(n, loss)| {
                (
                    names.users.get(n).map_or("", |name| &**name).to_owned(),
                    loss,
                )
            })
            .collect();
        users.sort_by(|(a, _), (b, _)| a.cmp(b));
        let run = RunReport {
            policies: self.name.clone(),
            limiter: match self.limiter {
                Limiter::Fairness(_) => "fairness",
                Limiter::MaxInFlight(..) => "max-in-flight",
            },
            seats: self.limiter.total_seats(),
            total: self.groups.total(),
            schemas: self.schemas(),
            flows: self.flows(),
            users: named(&self.groups.users, &names.users, "(none)"),
            user_agents: named(&self.groups.user_agents, &names.user_agents, "(not known)"),
            sources: named(&self.groups.sources, &names.sources, "(not known)"),
            levels: self.levels(),
            series: self.series_report(),
            closed_loop: self.closed_loop_report(),
            auto_total: self.auto_total.as_ref().map(SimTotal::report),
        };
        SimulationOutcome {
            run,
            users,
            malformed: self.malformed,
            left_out_retries: self.left_out_retries,
        }
    }

    fn closed_loop_report(&self) -> Option<ClosedLoopReport> {
        let seconds = |ns: u64| rounded(Duration::from_nanos(ns).as_secs_f64());
        let delays = self.workers.delays();
        self.model
            .clients
            .is_closed_loop()
            .then(|| ClosedLoopReport {
                sent_later: delays.requests,
                mean_s: seconds(delays.mean_ns()),
                longest_s: seconds(delays.longest_ns),
                log_paused_s: seconds(self.paused_ns),
            })
    }

    fn levels(&self) -> Vec<LevelReport> {
        let facts = self.level_facts();
        let levels = facts.into_iter().enumerate().map(|(n, facts)| {
            let most = self.series.extremes(n);
            let [nominal_seats, min_seats, max_seats] = facts.seats;
            LevelReport {
                requests: self.groups.levels.get(n).report(facts.name),
                kind: facts.kind,
                nominal_seats,
                min_seats,
                max_seats,
                least_limit: most.least_limit.unwrap_or_default(),
                greatest_limit: most.greatest_limit,
                most_seats_in_use: most.seats_in_use,
                most_waiting: most.waiting,
            }
        });
        let exists =
            |level: &LevelReport| level.requests.name != NOT_LIMITED || level.requests.arrivals > 0;
        levels.filter(exists).collect()
    }

    /// All levels, and what is not limited.
    fn level_facts(&self) -> Vec<LevelFacts> {
        let mut facts: Vec<LevelFacts> = match &self.limiter {
            Limiter::Fairness(fairness) => fairness.seats().iter().map(level_facts).collect(),
            Limiter::MaxInFlight(_, config) => {
                let kinds = [
                    ("readOnly", config.read_only),
                    ("mutating", config.mutating),
                ];
                let facts = kinds.map(|(name, limit)| {
                    let seats = match limit {
                        InFlightLimit::Limited(limit) => limit.get(),
                        InFlightLimit::Unlimited => 0,
                    };
                    LevelFacts {
                        name: name.to_owned(),
                        kind: "MaxInFlight",
                        seats: [seats; 3],
                    }
                });
                facts.into()
            }
        };
        facts.push(LevelFacts {
            name: NOT_LIMITED.to_owned(),
            kind: "None",
            seats: [0; 3],
        });
        facts
    }

    fn schemas(&self) -> GroupsReport {
        let Limiter::Fairness(fairness) = &self.limiter else {
            return GroupsReport::default();
        };
        self.groups
            .schemas
            .report(|n| match fairness.schema_names(n) {
                Some((schema, level)) => GroupReport {
                    priority_level: Some(level.to_owned()),
                    ..named_group(schema)
                },
                None => named_group(NOT_LIMITED),
            })
    }

    fn flows(&self) -> GroupsReport {
        let Limiter::Fairness(fairness) = &self.limiter else {
            return GroupsReport::default();
        };
        self.groups.flows.report(|n| {
            let flow = n.checked_sub(1).and_then(|n| fairness.flow(n));
            let Some((schema, flow)) = flow else {
                return named_group(NOT_LIMITED);
            };
            let (schema, level) = fairness.schema_names(schema).unwrap_or_default();
            GroupReport {
                priority_level: Some(level.to_owned()),
                flow_schema: Some(schema.to_owned()),
                ..named_group(if flow.is_empty() { ONE_FLOW } else { &flow })
            }
        })
    }

    fn series_report(&mut self) -> SeriesReport {
        let names: Vec<String> = self
            .levels()
            .into_iter()
            .map(|level| level.requests.name)
            .collect();
        let end = self.now;
        let levels: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(n, name)| self.series.report(end, n, name))
            .collect();
        SeriesReport {
            start: self.has_begun.then(|| format_time(self.epoch.first_us)),
            step_s: self.series.step_seconds(),
            levels,
        }
    }
}

fn level_facts(seats: &LevelSeats) -> LevelFacts {
    LevelFacts {
        name: seats.spec.name.clone(),
        kind: match seats.spec.queuing {
            Queuing::Exempt => "Exempt",
            Queuing::Queue { .. } => "Queue",
            Queuing::Reject => "Reject",
        },
        seats: [seats.limits.nominal, seats.limits.lower, seats.limits.upper],
    }
}

fn named_group(name: &str) -> GroupReport {
    GroupReport {
        name: name.to_owned(),
        ..GroupReport::default()
    }
}

/// RFC 3339 with microseconds.
#[must_use]
pub fn format_time(microseconds: i64) -> String {
    let time = Timestamp::from_microsecond(microseconds).unwrap_or_default();
    format!("{time:.6}")
}
