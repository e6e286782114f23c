//! What limits concurrent requests: priority and fairness, or max-in-flight.

use std::time::{Duration, Instant};

use super::fairness::{Classified, SimFairness};
use super::level::{LevelArrival, Started};
use crate::simulation::agenda::SimTime;
use crate::simulation::statistics::groups::RejectedBy;
use crate::simulation::statistics::series::LevelNow;
use weir_base::metrics::Registry;
use weir_explain::explainer::ConcurrencyPolicy;
use weir_flowcontrol::fairqueuing::queue_set::{RejectReason, RequestKey};
use weir_kubernetes::request_info::RequestKind;
use weir_limits::AdmissionAttributes;
use weir_limits::max_in_flight::{
    InFlightLimit, InFlightPermit, MaxInFlight, MaxInFlightConfig, MaxInFlightRejection,
};

/// The limiter of concurrent requests that is configured.
#[derive(Debug)]
pub(crate) enum Limiter {
    Fairness(Box<SimFairness>),
    MaxInFlight(MaxInFlight, MaxInFlightConfig),
}

/// What a request holds of its limiter.
#[derive(Debug)]
pub(crate) enum Held {
    /// A place in a queue, then seats.
    Level(usize, RequestKey),
    /// A slot.
    Slot(InFlightPermit),
    /// Nothing: it is not limited.
    Nothing,
}

/// A rejection by a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitRejection {
    pub by: RejectedBy,
    /// The `Retry-After` of the response. `None` without the header.
    pub retry_after: Option<Duration>,
    /// Of a rate: when it has a token.
    pub rate_wait: Option<Duration>,
}

impl LimitRejection {
    /// Of a limit of concurrent requests.
    pub(crate) fn of_seats(by: RejectedBy, retry_after_seconds: u32) -> Self {
        Self {
            by,
            retry_after: Some(Duration::from_secs(retry_after_seconds.into())),
            rate_wait: None,
        }
    }
}

impl Limiter {
    pub(crate) fn new(now: Instant, policy: &ConcurrencyPolicy) -> Self {
        match policy {
            ConcurrencyPolicy::Fairness {
                server_concurrency_limit,
                objects,
                dry_run: _, // what it would do, if it were enforced
            } => Self::Fairness(Box::new(SimFairness::new(
                now,
                objects,
                *server_concurrency_limit,
            ))),
            ConcurrencyPolicy::MaxInFlight(config) => {
                Self::MaxInFlight(MaxInFlight::new(*config, &Registry::new()), *config)
            }
        }
    }

    /// The number of levels, or of request kinds. The group after these has what is not limited.
    pub(crate) fn level_count(&self) -> usize {
        match self {
            Self::Fairness(fairness) => fairness.levels().len(),
            Self::MaxInFlight(..) => RequestKind::ALL.len(),
        }
    }

    pub(crate) fn schema_count(&self) -> usize {
        match self {
            Self::Fairness(fairness) => fairness.schema_count(),
            Self::MaxInFlight(..) => 0,
        }
    }

    /// The state of a level.
    pub(crate) fn level_now(&self, level: usize) -> LevelNow {
        match self {
            Self::Fairness(fairness) => fairness.levels().get(level).map(|level| {
                let load = level.load();
                LevelNow {
                    seats_in_use: load.seats_in_use,
                    limit: level.limit(),
                    waiting: u64::try_from(load.requests_waiting).unwrap_or(u64::MAX),
                }
            }),
            Self::MaxInFlight(limiter, _) => limiter.snapshot().get(level).map(|kind| LevelNow {
                seats_in_use: kind.in_use.into(),
                limit: kind.limit.map_or(0, std::num::NonZeroU32::get),
                waiting: 0,
            }),
        }
        .unwrap_or_default()
    }

    pub(crate) fn adjust(&mut self, now: Instant) {
        match self {
            Self::Fairness(fairness) => fairness.adjust(now),
            Self::MaxInFlight(..) => {}
        }
    }

    /// Lets a request arrive at its level.
    pub(crate) fn arrive_at_level(
        &mut self,
        now: Instant,
        unix_second: i64,
        classified: &Classified,
        request: usize,
    ) -> Result<Held, LimitRejection> {
        let Self::Fairness(fairness) = self else {
            return Ok(Held::Nothing); // unreachable: without fairness nothing is classified
        };
        let Classified {
            level,
            flow_hash,
            work,
            ..
        } = *classified;
        let Some(at) = fairness.level_mut(level) else {
            return Ok(Held::Nothing); // unreachable: each schema has its level
        };
        match at.arrive(now, unix_second, flow_hash, work, request) {
            LevelArrival::Admitted(key) => Ok(Held::Level(level, key)),
            LevelArrival::Rejected {
                reason,
                retry_after,
            } => Err(LimitRejection::of_seats(rejected_by(reason), retry_after)),
        }
    }

    /// Takes a slot of max-in-flight.
    pub(crate) fn take_slot(
        &self,
        attributes: &AdmissionAttributes<'_>,
    ) -> Result<Held, LimitRejection> {
        let Self::MaxInFlight(limiter, _) = self else {
            return Ok(Held::Nothing);
        };
        match limiter.admit(attributes) {
            Ok(slot) => Ok(slot.map_or(Held::Nothing, Held::Slot)),
            Err(_) => Err(LimitRejection::of_seats(
                RejectedBy::MaxInFlight,
                MaxInFlightRejection::RETRY_AFTER,
            )),
        }
    }

    /// Appends the requests that the last step of a level has started.
    pub(crate) fn take_started(&mut self, level: usize, started: &mut Vec<Started>) {
        if let Self::Fairness(fairness) = self
            && let Some(level) = fairness.level_mut(level)
        {
            level.take_started(started);
        }
    }

    /// The seats of all levels, or slots of both kinds. 0: not limited.
    pub(crate) fn total_seats(&self) -> u64 {
        match self {
            Self::Fairness(fairness) => {
                let seats = fairness.seats().iter();
                seats.map(|level| u64::from(level.limits.nominal)).sum()
            }
            Self::MaxInFlight(_, config) => [config.read_only, config.mutating]
                .into_iter()
                .map(|limit| match limit {
                    InFlightLimit::Limited(limit) => u64::from(limit.get()),
                    InFlightLimit::Unlimited => 0,
                })
                .sum(),
        }
    }
}

pub(crate) const fn rejected_by(reason: RejectReason) -> RejectedBy {
    match reason {
        RejectReason::ConcurrencyLimit => RejectedBy::ConcurrencyLimit,
        RejectReason::QueueFull => RejectedBy::QueueFull,
        RejectReason::TimeOut => RejectedBy::TimeOut,
    }
}

/// A moment of virtual time, as the engine takes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch {
    /// The time 0.
    pub base: Instant,
    /// The same in microseconds since the Unix epoch.
    pub first_us: i64,
}

impl Epoch {
    pub(crate) fn instant(&self, at: SimTime) -> Instant {
        let later = self.base.checked_add(Duration::from_nanos(at.0));
        later.unwrap_or(self.base) // unreachable: 584 years from now
    }

    pub(crate) fn unix_second(&self, at: SimTime) -> i64 {
        let since = i64::try_from(at.0 / 1000).unwrap_or(i64::MAX);
        self.first_us.saturating_add(since).div_euclid(1_000_000)
    }
}
