//! What became of requests, by group: level, schema, flow, user, user agent and address.

use crate::histogram::DurationHistogram;
use crate::report::model::GroupLoss;
use crate::report::model::{GroupReport, GroupsReport, RecordedReport, WaitReport};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// The groups that a report names; the others are added up.
const MAX_REPORTED: usize = 100;

/// The requests of a group in a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Requests, with those that clients repeated.
    pub arrivals: u64,
    /// Rejected requests.
    pub rejected: u64,
    /// The waits of the requests that were dispatched.
    pub waits: DurationHistogram,
}

impl Measured {
    /// The wait that `per_mille` of 1000 requests do not exceed. A rejected request counts as one
    /// that waits for ever: `None` if the quantile is one of these. Otherwise fewer dispatched
    /// requests could make the waits look shorter.
    #[must_use]
    pub fn wait_quantile(&self, per_mille: u64) -> Option<Duration> {
        let dispatched = u128::from(self.waits.count());
        let all = dispatched + u128::from(self.rejected);
        let rank = (all * u128::from(per_mille)).div_ceil(1000);
        (rank <= dispatched).then(|| self.waits.at_rank(rank))
    }
}

/// The limit that has rejected a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RejectedBy {
    ClientLimit,
    ConcurrencyLimit,
    EventRateLimit,
    MaxInFlight,
    Policy,
    QueueFull,
    TimeOut,
}

impl RejectedBy {
    const ALL: [Self; 7] = [
        Self::ClientLimit,
        Self::ConcurrencyLimit,
        Self::EventRateLimit,
        Self::MaxInFlight,
        Self::Policy,
        Self::QueueFull,
        Self::TimeOut,
    ];

    /// The label in weir's metrics.
    const fn label(self) -> &'static str {
        match self {
            Self::ClientLimit => "client-limit",
            Self::ConcurrencyLimit => "concurrency-limit",
            Self::EventRateLimit => "event-rate-limit",
            Self::MaxInFlight => "max-in-flight",
            Self::Policy => "policy",
            Self::QueueFull => "queue-full",
            Self::TimeOut => "time-out",
        }
    }

    #[expect(clippy::as_conversions, reason = "a variant's position")]
    const fn index(self) -> usize {
        self as usize
    }
}

/// The groups of a request, by their numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GroupIds {
    pub level: u32,
    pub schema: u32,
    pub flow: u32,
    pub user: u32,
    pub user_agent: u32,
    pub source: u32,
}

/// How an attempt of a request has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Executed,
    Rejected(RejectedBy),
    Cancelled,
    Unfinished,
}

/// What is counted of an attempt that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settled {
    pub outcome: Outcome,
    /// Nanoseconds before its dispatch, or before it left.
    pub wait_ns: u64,
    /// Whether it was dispatched.
    pub dispatched: bool,
    /// Seats times nanoseconds.
    pub seat_ns: u128,
    /// Whether it repeats a rejected request.
    pub is_retry: bool,
    /// Whether the client gives up after it.
    pub gave_up: bool,
    /// Whether its rejection was held.
    pub held: bool,
    /// What the log says. Counted for the first attempt only.
    pub recorded_rejected: bool,
    /// See `recorded_rejected`.
    pub recorded_wait_ns: u64,
}

/// The counts of a group.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupStats {
    arrivals: u64,
    executed: u64,
    rejected: [u64; RejectedBy::ALL.len()],
    cancelled: u64,
    unfinished: u64,
    retries: u64,
    gave_up: u64,
    held: u64,
    waits: DurationHistogram,
    seat_ns: u128,
    recorded_rejected: u64,
    recorded_wait_ns: u128,
}

impl GroupStats {
    fn settle(&mut self, settled: &Settled) {
        self.arrivals += 1;
        match settled.outcome {
            Outcome::Executed => self.executed += 1,
            Outcome::Rejected(by) => {
                if let Some(count) = self.rejected.get_mut(by.index()) {
                    *count += 1;
                }
            }
            Outcome::Cancelled => self.cancelled += 1,
            Outcome::Unfinished => self.unfinished += 1,
        }
        if settled.dispatched {
            self.waits.record(settled.wait_ns);
        }
        self.retries += u64::from(settled.is_retry);
        self.gave_up += u64::from(settled.gave_up);
        self.held += u64::from(settled.held);
        self.seat_ns += settled.seat_ns;
        self.recorded_rejected += u64::from(settled.recorded_rejected);
        self.recorded_wait_ns += u128::from(settled.recorded_wait_ns);
    }

    /// Adds the counts of another group.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.arrivals += other.arrivals;
        self.executed += other.executed;
        for (count, more) in self.rejected.iter_mut().zip(other.rejected) {
            *count += more;
        }
        self.cancelled += other.cancelled;
        self.unfinished += other.unfinished;
        self.retries += other.retries;
        self.gave_up += other.gave_up;
        self.held += other.held;
        self.waits.merge(&other.waits);
        self.seat_ns += other.seat_ns;
        self.recorded_rejected += other.recorded_rejected;
        self.recorded_wait_ns += other.recorded_wait_ns;
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.arrivals == 0
    }

    /// What objectives are about.
    pub(crate) fn measured(&self) -> Measured {
        Measured {
            arrivals: self.arrivals,
            rejected: self.rejected.iter().sum(),
            waits: self.waits.clone(),
        }
    }

    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "a report needs no more"
    )]
    pub(crate) fn report(&self, name: String) -> GroupReport {
        let rejected_by = RejectedBy::ALL.iter().zip(self.rejected);
        let rejected_by = rejected_by.filter(|(_, count)| *count > 0);
        GroupReport {
            name,
            priority_level: None,
            flow_schema: None,
            arrivals: self.arrivals,
            executed: self.executed,
            rejected: self.rejected.iter().sum(),
            rejected_by: rejected_by.map(|(by, count)| (by.label(), count)).collect(),
            cancelled: self.cancelled,
            unfinished: self.unfinished,
            retries: self.retries,
            gave_up: self.gave_up,
            held: self.held,
            wait: wait_report(&self.waits),
            seat_seconds: rounded(self.seat_ns as f64 / 1e9),
            recorded: RecordedReport {
                rejected: self.recorded_rejected,
                wait_s: rounded(self.recorded_wait_ns as f64 / 1e9),
            },
        }
    }
}

fn wait_report(waits: &DurationHistogram) -> WaitReport {
    let milliseconds = |time: Duration| rounded(time.as_secs_f64() * 1e3);
    WaitReport {
        waited: waits.above_zero(),
        p50_ms: milliseconds(waits.quantile(500)),
        p99_ms: milliseconds(waits.quantile(990)),
        max_ms: milliseconds(waits.max()),
        total_s: rounded(waits.sum_seconds()),
    }
}

/// Groups by their numbers. Numbers are dense.
#[derive(Debug, Default)]
pub(crate) struct GroupTable(Vec<GroupStats>);

impl GroupTable {
    fn settle(&mut self, group: u32, settled: &Settled) {
        let group = usize::try_from(group).unwrap_or(usize::MAX);
        if group >= self.0.len() {
            self.0
                .resize_with(group.saturating_add(1), GroupStats::default);
        }
        if let Some(stats) = self.0.get_mut(group) {
            stats.settle(settled);
        }
    }

    pub(crate) fn get(&self, group: usize) -> GroupStats {
        self.0.get(group).cloned().unwrap_or_default()
    }

    /// The groups, with names by their numbers: those that lost most first. Groups of one name are
    /// one.
    pub(crate) fn report(&self, mut name: impl FnMut(usize) -> GroupReport) -> GroupsReport {
        let groups = self.0.iter().enumerate();
        let groups = groups.filter(|(_, stats)| !stats.is_empty());
        let mut all: Vec<(GroupReport, &GroupStats)> = groups
            .map(|(n, stats)| {
                let named = name(n);
                let report = GroupReport {
                    priority_level: named.priority_level,
                    flow_schema: named.flow_schema,
                    ..stats.report(named.name)
                };
                (report, stats)
            })
            .collect();
        all.sort_by(|(a, _), (b, _)| loss_order(a, b));
        let count = u64::try_from(all.len()).unwrap_or(u64::MAX);
        let others = all.split_off(all.len().min(MAX_REPORTED));
        let others = (!others.is_empty()).then(|| {
            let mut sum = GroupStats::default();
            others.iter().for_each(|(_, stats)| sum.merge(stats));
            sum.report(format!("({} others)", others.len()))
        });
        GroupsReport {
            count,
            top: all.into_iter().map(|(report, _)| report).collect(),
            others,
        }
    }

    /// All groups, by number: arrivals, rejected, and seconds of waiting, in the simulation and in
    /// the record.
    pub(crate) fn losses(&self) -> impl Iterator<Item = (usize, GroupLoss)> {
        let groups = self.0.iter().enumerate();
        groups
            .filter(|(_, stats)| !stats.is_empty())
            .map(|(n, stats)| (n, stats.loss()))
    }
}

impl GroupStats {
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "a report needs no more"
    )]
    fn loss(&self) -> GroupLoss {
        GroupLoss {
            arrivals: self.arrivals,
            rejected: self.rejected.iter().sum(),
            wait_s: self.waits.sum_seconds(),
            recorded_rejected: self.recorded_rejected,
            recorded_wait_s: self.recorded_wait_ns as f64 / 1e9,
        }
    }
}

fn loss_order(a: &GroupReport, b: &GroupReport) -> std::cmp::Ordering {
    let by_loss = Reverse(a.rejected).cmp(&Reverse(b.rejected));
    by_loss
        .then(b.wait.total_s.total_cmp(&a.wait.total_s))
        .then(Reverse(a.arrivals).cmp(&Reverse(b.arrivals)))
        .then_with(|| a.flow_schema.cmp(&b.flow_schema))
        .then_with(|| a.name.cmp(&b.name))
}

/// The counts by all groupings.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// By the numbers of the schema and the user, if that is wanted: it is one table more.
    pub by_schema_and_user: Option<BTreeMap<(u32, u32), GroupStats>>,
    pub levels: GroupTable,
    pub schemas: GroupTable,
    pub flows: GroupTable,
    pub users: GroupTable,
    pub user_agents: GroupTable,
    pub sources: GroupTable,
}

impl Groups {
    pub(crate) fn settle(&mut self, ids: &GroupIds, settled: &Settled) {
        if let Some(table) = &mut self.by_schema_and_user {
            let stats = table.entry((ids.schema, ids.user)).or_default();
            stats.settle(settled);
        }
        self.levels.settle(ids.level, settled);
        self.schemas.settle(ids.schema, settled);
        self.flows.settle(ids.flow, settled);
        self.users.settle(ids.user, settled);
        self.user_agents.settle(ids.user_agent, settled);
        self.sources.settle(ids.source, settled);
    }

    /// All requests.
    pub(crate) fn total(&self) -> GroupReport {
        let mut sum = GroupStats::default();
        self.levels.0.iter().for_each(|level| sum.merge(level));
        sum.report("total".to_owned())
    }
}

/// To a millionth: a report says no more than is known.
pub(crate) fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_requests_wait_for_ever() {
        let mut measured = Measured::default();
        assert_eq!(measured.wait_quantile(990), Some(Duration::ZERO));
        for n in 1..=98 {
            measured.waits.record(n * 1_000_000);
        }
        measured.rejected = 2;
        assert!(measured.wait_quantile(500).unwrap() >= Duration::from_millis(50));
        assert_eq!(
            measured.wait_quantile(980),
            Some(Duration::from_millis(98)),
            "the last that was dispatched"
        );
        assert_eq!(measured.wait_quantile(990), None);
        assert_eq!(measured.wait_quantile(1000), None);
    }
}
