//! The components that a snapshot is read from. Only status codes are counted for the snapshot
//! alone; all other numbers are those of the components.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;

use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::level;
use crate::flowcontrol::level::LevelOccupants;
use crate::flowcontrol::sources::{EffectiveObject, LiveObjects};
use crate::limits::Admission;
use crate::limits::levers::Levers;
use crate::limits::memory_limit::MemoryLimit;
use crate::limits::total_finder::{FoundTotal, TotalFinder};
use crate::observe::alarm_board::AlarmBoard;
use crate::observe::dry_run::DryRunCounts;
use crate::observe::readiness::Readiness;
use crate::observe::readiness::config_status::ConfigStatus;
use crate::observe::status::outcome_counts::OutcomeCounts;
use crate::pipeline::reject::delay::RejectionDelay;
use crate::pipeline::trace::RequestMetrics;
use crate::replicas::metrics::standing_name;
use crate::replicas::state::ReplicaReport;
use crate::upstream;
use crate::upstream::connection::connection_budget::{ConnectionBudget, SlotUsage};
use crate::upstream::requester::SlotHolder;
use crate::upstream::servers::server_set::ServerSnapshot;
use weir_agreement::message::POOL_NAMES;
use weir_base::drain::Drain;
use weir_base::process_metrics;
use weir_flowcontrol::fairqueuing::queue_set::Queuing;
use weir_kubernetes::numeric::saturating_u64;
use weir_limits::levers::{Lever, LeverSnapshot};
use weir_limits::max_in_flight;
use weir_limits::rate::RateLimits;
use weir_limits::rate::top_keys::RateLimitSnapshot;
use weir_status::headline::RejectedMost;
use weir_status::marks::MarkedState;
use weir_status::snapshot::{
    AdmissionMode, ConnectionsStatus, DurationHistogram, ExpiryStatus, FailureStatus,
    FlowcontrolObjectStatus, FlowcontrolStatus, HoldsStatus, LevelKind, LevelStatus,
    OtherReplicaStatus, ProcessStatus, QueueStatus, ReplicaPoolStatus, ReplicasStatus,
    RequestsStatus, SeatsStatus, ServerStatus, SlotHolderStatus, SlotsStatus, StatusSnapshot,
    TotalStatus, UpstreamStatus, UserCount,
};
use weir_talkers::{Dimension, TopTalkers, TopTalkersQuery, UsageMeasure, Window};

/// Listed keys per rate limit: those rejected most.
const MAX_TOP_KEYS: usize = 5;

/// Listed holders of slots per kind.
const MAX_TOP_HOLDERS: usize = 10;

/// Listed flow schemas and priority levels. A cluster has some tens.
const MAX_OBJECTS: usize = 500;

/// Listed certificates and credentials: those that end first. A CA file may have hundreds.
const MAX_EXPIRIES: usize = 20;

/// Characters of a holder's name that are kept: a token can have a user name of any length.
const MAX_HOLDER_NAME_CHARS: usize = 128;

/// Characters of a lever's target: it may have 64 values.
const MAX_LEVER_TARGET_CHARS: usize = 200;

/// The components that a snapshot is read from.
#[derive(Debug)]
pub(crate) struct StatusSources {
    /// The name of the machine that weir runs on.
    pub(crate) host: String,
    /// The time at which weir started.
    pub(crate) start_time: Instant,
    /// The shutdown state, and the requests in flight.
    pub(crate) drain: Arc<Drain>,
    /// The last known readiness.
    pub(crate) readiness: Arc<Readiness>,
    /// What an operator has to act on.
    pub(crate) alarms: Arc<AlarmBoard>,
    /// What an operator blocks and limits.
    pub(crate) levers: Arc<Levers>,
    /// Connections and failures towards the API server.
    pub(crate) upstream: Arc<upstream::UpstreamMetrics>,
    /// Responses of the API server, and how long it takes for them.
    pub(crate) requests: Arc<RequestMetrics>,
    /// `--memory-limit`.
    pub(crate) memory_limit: Arc<MemoryLimit>,
    /// Processors that this process may use.
    pub(crate) cpus: u32,
    /// Slots for requests to the API server, and what uses them.
    pub(crate) connection_budget: ConnectionBudget,
    /// The total, while weir finds it by itself.
    pub(crate) total: Arc<TotalFinder>,
    /// Requests by outcome.
    pub(crate) outcomes: Arc<OutcomeCounts>,
    /// What limits that only count would have rejected.
    pub(crate) dry_run_counts: Arc<DryRunCounts>,
    /// The top talkers.
    pub(crate) top_talkers: Arc<TopTalkers>,
    /// What a reload replaces.
    pub(crate) configured: Arc<ArcSwap<ConfiguredSources>>,
    /// Which configuration is in force.
    pub(crate) config: Arc<ConfigStatus>,
}

/// The sources that a reload replaces.
#[derive(Debug)]
pub(crate) struct ConfiguredSources {
    /// The configured API servers as HOST:PORT, separated by commas.
    pub(crate) upstream_address: String,
    /// Event limits and client limits.
    pub(crate) rate_limits: Arc<RateLimits>,
    /// Rejections that are delayed.
    pub(crate) rejection_delay: Arc<RejectionDelay>,
    /// The limit of open client connections.
    pub(crate) max_connections: usize,
    /// Whether the listener for probes serves metrics.
    pub(crate) health_metrics: bool,
    /// Priority levels or max-in-flight counters.
    pub(crate) admission: Admission,
    /// The flow schemas and priority levels. `None` without priority and fairness.
    pub(crate) flowcontrol: Option<Arc<LiveObjects>>,
}

impl StatusSources {
    /// Reads all components at nearly one moment. Waits for none of them.
    #[must_use]
    pub(crate) fn snapshot(&self, now: Instant, wall: SystemTime) -> StatusSnapshot {
        let configured = self.configured.load();
        let (mode, dry_run, levels): (_, _, Vec<_>) = match &configured.admission {
            Admission::Fairness(controller) => (
                AdmissionMode::PriorityAndFairness,
                controller.is_dry_run(),
                levels_of(controller, now),
            ),
            Admission::MaxInFlight(limit) => {
                let kinds = limit.snapshot().map(in_flight_status);
                (
                    AdmissionMode::MaxInFlight,
                    limit.is_dry_run(),
                    kinds.to_vec(),
                )
            }
        };
        let mut would_be_rejected = self.dry_run_counts.top_users();
        let would_be_rejected_users = saturating_u64(would_be_rejected.len());
        would_be_rejected.truncate(MAX_TOP_KEYS);
        StatusSnapshot {
            host: self.host.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            unix_ms: unix_ms(wall),
            uptime_seconds: now.saturating_duration_since(self.start_time).as_secs_f64(),
            readiness: self.readiness.snapshot(now),
            alarms: self.alarms.alarms(),
            levers: self
                .levers
                .in_force()
                .iter()
                .map(|lever| lever_status(lever, now))
                .collect(),
            config: self.config.snapshot(),
            upstream: self.upstream_status(now, wall),
            replicas: self.readiness.replicas().map(replicas_status),
            requests: RequestsStatus {
                in_flight: saturating_u64(self.drain.open_requests()),
                watches: saturating_u64(self.drain.open_watches()),
                by_code: self.outcomes.by_code(),
                aborted: self.outcomes.aborted(),
            },
            rejections: self.outcomes.by_limit(),
            mode,
            total: self.total.found().map(total_status),
            seats: SeatsStatus {
                own: self.total.total(),
                server: self.total.server_seats(),
            },
            process: self.process_status(),
            losses: self.alarms.losses(),
            expiries: self.expiries(now, wall),
            dry_run,
            would_be_rejections: self.dry_run_counts.by_limit(),
            would_be_rejected,
            would_be_rejected_users,
            levels,
            flowcontrol: configured
                .flowcontrol
                .as_ref()
                .map(|live| flowcontrol_status(live))
                .unwrap_or_default(),
            rate_limits: configured
                .rate_limits
                .snapshot()
                .into_iter()
                .map(truncate_top_keys)
                .collect(),
            holds: holds_status(&configured.rejection_delay),
            connections: ConnectionsStatus {
                open: saturating_u64(self.drain.open_connections()),
                most: saturating_u64(configured.max_connections),
            },
            ..StatusSnapshot::default()
        }
    }

    /// The state whose changes are marked on the plots.
    #[must_use]
    pub(crate) fn marked_state(&self, now: Instant) -> MarkedState {
        let config = self.config.snapshot();
        let servers = self.readiness.servers(now).into_iter();
        let is_known = self.readiness.snapshot(now).ready.is_some();
        let levers = self.levers.in_force();
        let configured = self.configured.load();
        let live = configured.flowcontrol.as_ref();
        MarkedState {
            generation: config.generation,
            refused: config
                .errors
                .first()
                .map(|why| (config.last_failure_unix_ms, why.clone())),
            flowcontrol: live.map(|live| live.changes()).unwrap_or_default(),
            // Before the first answer of a server, none is missing.
            silent_servers: servers
                .filter(|server| !server.healthy && is_known)
                .filter_map(|server| Some((server.address, server.why?)))
                .collect(),
            levers: levers
                .iter()
                .map(|lever| lever_status(lever, now))
                .map(|lever| (lever.id, lever.summary()))
                .collect(),
        }
    }

    /// The user with most rejections of the last minute.
    #[must_use]
    pub(crate) fn rejected_most(&self) -> Option<RejectedMost> {
        let top = self.top_talkers.top(&TopTalkersQuery {
            window: Window::OneMinute,
            by: Dimension::User,
            sort: UsageMeasure::Rejections,
            limit: 1,
        });
        let all = top.total.rejections;
        top.rows.into_iter().next().map(|row| RejectedMost {
            user: row.name,
            rejections: row.usage.rejections,
            all,
        })
    }

    fn process_status(&self) -> ProcessStatus {
        let (used, memory_bytes) = process_metrics::usage();
        ProcessStatus {
            cpu_seconds: used.as_secs_f64(),
            cpus: self.cpus,
            memory_bytes,
            memory_limit_bytes: self.memory_limit.limit(),
        }
    }

    fn expiries(&self, now: Instant, wall: SystemTime) -> Vec<ExpiryStatus> {
        let expiries = self.alarms.expiries(now, wall).into_iter();
        let mut expiries: Vec<_> = expiries
            .map(|(name, unix_seconds)| ExpiryStatus {
                name,
                unix_seconds,
                replica: None,
            })
            .collect();
        expiries.sort_by(|a, b| {
            let order = a.unix_seconds.cmp(&b.unix_seconds);
            order.then_with(|| a.name.cmp(&b.name))
        });
        expiries.truncate(MAX_EXPIRIES);
        expiries
    }

    fn upstream_status(&self, now: Instant, wall: SystemTime) -> UpstreamStatus {
        let recorded = self.upstream.failures().snapshot();
        let (responses, errors) = self.requests.upstream_response_counts();
        let latency = self.requests.stages.upstream_latency();
        let failures = recorded.by_cause.into_iter();
        UpstreamStatus {
            address: self.configured.load().upstream_address.clone(),
            servers: self
                .readiness
                .servers(now)
                .into_iter()
                .map(server_status)
                .collect(),
            connections: self.upstream.open_connections(),
            failures: failures.map(|(cause, n)| (cause.to_owned(), n)).collect(),
            responses,
            errors,
            latency: DurationHistogram {
                count: latency.count,
                seconds: latency.seconds,
                buckets: latency.buckets,
            },
            places: self
                .connection_budget
                .snapshot(MAX_TOP_HOLDERS)
                .map(|(kind, usage)| slots_status(kind, usage))
                .into(),
            last_failure: recorded.last.map(|(at, why)| {
                let age = now.saturating_duration_since(at);
                FailureStatus {
                    unix_ms: unix_ms(wall.checked_sub(age).unwrap_or(wall)),
                    why: why.to_string(),
                }
            }),
        }
    }
}

fn lever_status(lever: &Lever, now: Instant) -> LeverSnapshot {
    let mut status = lever.snapshot(now);
    if let Some((end, _)) = status.target.char_indices().nth(MAX_LEVER_TARGET_CHARS) {
        status.target.truncate(end);
        status.target.push('…');
    }
    status
}

fn holds_status(delay: &RejectionDelay) -> HoldsStatus {
    let (delayed, flows, ended) = delay.snapshot();
    HoldsStatus {
        now: saturating_u64(delayed),
        flows: saturating_u64(flows),
        ended,
        paced_seconds: delay.pacing_backlog().as_secs_f64(),
    }
}

fn replicas_status(report: ReplicaReport) -> ReplicasStatus {
    let failure = report.failure();
    let pools = || POOL_NAMES.iter().zip(report.pools).enumerate();
    let in_force = || pools().filter(|(_, (_, (total, _)))| *total > 0);
    ReplicasStatus {
        state: standing_name(report.standing).to_owned(),
        failure,
        pools: in_force()
            .map(|(_, (name, (total, share)))| ReplicaPoolStatus {
                name: (*name).to_owned(),
                total,
                share,
            })
            .collect(),
        others: report
            .peers
            .iter()
            .map(|peer| OtherReplicaStatus {
                name: peer.name.clone(),
                state: peer.state().to_owned(),
                held: in_force()
                    .filter_map(|(place, _)| peer.claims.get(place).map(|claim| claim.held))
                    .collect(),
            })
            .collect(),
        name: report.name,
    }
}

fn flowcontrol_status(live: &LiveObjects) -> FlowcontrolStatus {
    let cluster = live.cluster_status();
    let object = |one: &EffectiveObject| {
        let (kind, name) = one.key();
        FlowcontrolObjectStatus {
            kind: kind.to_owned(),
            name: name.to_owned(),
            origin: one.origin.to_string(),
        }
    };
    let objects = live.objects();
    FlowcontrolStatus {
        cluster: cluster.name().to_owned(),
        failure: cluster.failure().map(str::to_owned),
        objects: objects.iter().take(MAX_OBJECTS).map(object).collect(),
    }
}

fn server_status(state: ServerSnapshot) -> ServerStatus {
    ServerStatus {
        address: state.address,
        healthy: state.healthy,
        refused: state.refused,
        why: state.why,
        in_flight: saturating_u64(state.in_flight),
        long_running: saturating_u64(state.long_running),
        requests: state.requests,
        ejections: state.ejections,
    }
}

fn total_status(found: FoundTotal) -> TotalStatus {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    TotalStatus {
        seats: found.total,
        most: found.most,
        server_seats: found.server_seats,
        read_ms: found.median.map(milliseconds),
        target_ms: milliseconds(found.target),
        reason: found.reason.to_owned(),
    }
}

fn levels_of(controller: &Controller, now: Instant) -> Vec<LevelStatus> {
    let mut occupants: BTreeMap<_, _> = controller.occupants(now).into_iter().collect();
    let dry_run = controller.dry_run_levels();
    let levels = controller
        .summaries()
        .into_iter()
        .map(|summary| LevelStatus {
            dry_run: dry_run.contains(&summary.name),
            queue: occupants
                .remove(&summary.name)
                .map(queue_status)
                .unwrap_or_default(),
            ..level_status(summary)
        });
    levels.collect()
}

fn queue_status(occupants: LevelOccupants) -> QueueStatus {
    let users = |counts: Vec<(String, u64)>| {
        let counts = counts.into_iter();
        counts
            .map(|(user, count)| UserCount { user, count })
            .collect()
    };
    QueueStatus {
        waited_seconds: occupants.waited.as_secs_f64(),
        waiting: users(occupants.waiting),
        seats: users(occupants.seats),
    }
}

fn level_status(summary: level::LevelSummary) -> LevelStatus {
    let level::LevelSummary {
        name,
        totals,
        seats,
        active_queues,
        is_quiescing,
        rejected,
        waits,
    } = summary;
    let queuing = seats.as_ref().map(|seats| seats.spec.queuing);
    let (kind, queues, queue_length_limit) = match queuing {
        Some(Queuing::Queue {
            dealer,
            queue_length_limit,
        }) => (LevelKind::Queue, dealer.deck_size(), queue_length_limit),
        Some(Queuing::Exempt) => (LevelKind::Exempt, 0, 0),
        Some(Queuing::Reject) | None => (LevelKind::Reject, 0, 0),
    };
    let seats = seats.as_ref();
    LevelStatus {
        dry_run: false,
        name,
        kind,
        quiescing: is_quiescing,
        seats_in_use: totals.seats_in_use,
        executing: saturating_u64(totals.requests_executing),
        current_limit: seats
            .map(|seats| seats.current_limit)
            .filter(|_| kind != LevelKind::Exempt),
        nominal_limit: seats.map(|seats| seats.limits.nominal),
        lower_limit: seats.map(|seats| seats.limits.lower),
        upper_limit: seats.map(|seats| seats.limits.upper),
        waiting: saturating_u64(totals.requests_waiting),
        waiting_seats: totals.seats_waiting,
        queues: saturating_u64(queues),
        active_queues: saturating_u64(active_queues),
        queue_length_limit: saturating_u64(queue_length_limit),
        dispatched: totals.dispatched,
        rejected: rejected
            .into_iter()
            .filter(|(_, times)| *times > 0)
            .map(|(reason, times)| (reason.label().to_owned(), times))
            .collect(),
        waits: waits.map_or_else(DurationHistogram::default, |waits| DurationHistogram {
            count: waits.count(),
            seconds: waits.sum(),
            buckets: waits.buckets().collect(),
        }),
        queue: QueueStatus::default(),
    }
}

fn in_flight_status(snapshot: max_in_flight::MaxInFlightSnapshot) -> LevelStatus {
    let limit = snapshot.limit.map(std::num::NonZeroU32::get);
    let rejected = (snapshot.rejected > 0).then(|| ("max-in-flight".to_owned(), snapshot.rejected));
    LevelStatus {
        name: snapshot.kind.label().to_owned(),
        kind: LevelKind::InFlight,
        seats_in_use: snapshot.in_use.into(),
        executing: snapshot.in_use.into(),
        current_limit: limit,
        nominal_limit: limit,
        lower_limit: limit,
        upper_limit: limit,
        dispatched: snapshot.admitted,
        rejected: rejected.into_iter().collect(),
        ..LevelStatus::default()
    }
}

fn slots_status(kind: &str, usage: SlotUsage) -> SlotsStatus {
    let holder = |(holder, taken)| {
        let (by, name) = match holder {
            SlotHolder::User(name) if name.is_empty() => ("watches", name),
            SlotHolder::User(name) => ("user", name.chars().take(MAX_HOLDER_NAME_CHARS).collect()),
            SlotHolder::Network(address) => ("sourceAddress", address.to_string()),
        };
        SlotHolderStatus {
            by: by.to_owned(),
            name,
            taken: saturating_u64(taken),
        }
    };
    SlotsStatus {
        kind: kind.to_owned(),
        total: saturating_u64(usage.total),
        taken: saturating_u64(usage.used),
        holders: usage.holders.into_iter().map(holder).collect(),
    }
}

fn truncate_top_keys(mut limit: RateLimitSnapshot) -> RateLimitSnapshot {
    limit.top.truncate(MAX_TOP_KEYS);
    limit
}

/// Milliseconds since 1970.
pub(super) fn unix_ms(wall: SystemTime) -> u64 {
    let since_1970 = wall.duration_since(SystemTime::UNIX_EPOCH);
    since_1970.map_or(0, |since_1970| saturating_u64(since_1970.as_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_holders_have_a_kind_and_long_names_are_truncated() {
        let long = "x".repeat(1000);
        let usage = SlotUsage {
            total: 8,
            used: 7,
            holders: vec![
                (SlotHolder::User(long), 4),
                (SlotHolder::Network([192, 0, 2, 1].into()), 2),
                (SlotHolder::User(String::new()), 1),
            ],
        };
        let slots = slots_status("long-running", usage);
        assert_eq!((slots.total, slots.taken), (8, 7));
        let holders = slots.holders.iter();
        let holders: Vec<_> = holders
            .map(|holder| (holder.by.as_str(), holder.name.as_str(), holder.taken))
            .collect();
        let truncated = "x".repeat(MAX_HOLDER_NAME_CHARS);
        assert_eq!(
            holders,
            [
                ("user", truncated.as_str(), 4),
                ("sourceAddress", "192.0.2.1", 2),
                ("watches", "", 1)
            ]
        );
    }
}
