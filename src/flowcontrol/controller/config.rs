//! The settings of the controller, and the times of a request.

use clap::ValueEnum;

use std::time::{Duration, Instant};

use weir_flowcontrol::fairqueuing::longest_queue_wait;

/// The settings of the controller, besides its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// The seats of all levels together: the sum of `--max-requests-inflight` and
    /// `--max-mutating-requests-inflight`.
    pub server_concurrency_limit: u32,
    /// The longest duration of a request without a deadline, and the assumed duration of a watch:
    /// `--request-timeout`.
    pub request_timeout: Duration,
    /// Whether decisions are enforced.
    pub enforcement: Enforcement,
    /// Whether the API server answers consistent lists from its watch cache, as 1.31 and later do.
    pub consistent_reads_from_cache: bool,
}

/// The times that admission uses.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimes {
    /// The current time.
    pub(crate) now: Instant,
    /// The arrival. The time in a queue counts from here.
    pub(crate) arrived: Instant,
    /// The deadline, if the request has one.
    pub(crate) deadline: Option<Instant>,
}

impl RequestTimes {
    /// The end of the longest time in a queue, of a request that may take so long unless it has a
    /// deadline. The time counts from its arrival.
    pub(crate) fn queue_deadline(self, request_timeout: Duration) -> Instant {
        let time = self.deadline.map_or(request_timeout, |deadline| {
            deadline.saturating_duration_since(self.arrived)
        });
        self.arrived + longest_queue_wait(time)
    }

    /// The times of a request that has just arrived and has no deadline.
    #[must_use]
    pub const fn at(now: Instant) -> Self {
        Self {
            now,
            arrived: now,
            deadline: None,
        }
    }
}

/// The effect of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Enforcement {
    /// Requests execute at once. The decisions are only counted.
    #[value(name = "DryRun")]
    DryRun,
    /// Requests are queued and rejected, but for those of flow schemas and priority levels whose
    /// annotation says DryRun.
    #[value(name = "Enforce")]
    Enforce,
    /// All requests are queued and rejected: an operator overrides the annotations.
    #[value(skip)]
    EnforceAll,
}

impl Enforcement {
    /// Whether requests of a flow schema execute at once, of which the objects say so or not.
    #[must_use]
    pub(crate) const fn is_dry_run(self, by_annotation: bool) -> bool {
        match self {
            Self::DryRun => true,
            Self::Enforce => by_annotation,
            Self::EnforceAll => false,
        }
    }
}
