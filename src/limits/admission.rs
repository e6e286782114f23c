//! Admission: a request gets a permit or is rejected by a limit.

use std::sync::Arc;
use std::time::Instant;

use crate::flowcontrol::controller::{Controller, RequestTimes};
use crate::flowcontrol::level::{FlowControlDecision, SeatPermit, SimulatedRequest};
use crate::limits::list_bytes::CountedList;
use crate::limits::rejection::Rejection;
use crate::limits::watch_starts::WatchStart;
use weir_base::clock::Clock;
use weir_flowcontrol::matching::bypasses_fairness;
use weir_flowcontrol::work_estimator::depends_on_count;
use weir_kubernetes::api::user::{GROUP_MASTERS, GROUP_NODES};
use weir_limits::AdmissionAttributes;
use weir_limits::levers::LeverPermit;
use weir_limits::max_in_flight::{InFlightPermit, MaxInFlight, MaxInFlightRejection};
use weir_limits::rate::clients::enforcer::ClientLimitPermit;
use weir_limits::rate::policies::enforcer::PolicyPermit;

/// The limiter of concurrent requests that is configured.
#[derive(Clone, Debug)]
pub enum Admission {
    /// API Priority and Fairness.
    Fairness(Arc<Controller>),
    /// Two counters, as with `--enable-priority-and-fairness=false`.
    MaxInFlight(Arc<MaxInFlight>),
}

impl Admission {
    /// The controller of priority and fairness, if it is in force.
    #[must_use]
    pub(crate) const fn controller(&self) -> Option<&Arc<Controller>> {
        match self {
            Self::Fairness(controller) => Some(controller),
            Self::MaxInFlight(_) => None,
        }
    }

    /// Admits a request, after a time in a queue if necessary. Long-running requests are admitted
    /// at once, except that API Priority and Fairness charges a watch for its initialization.
    ///
    /// # Errors
    /// The [`Rejection`] of the limit.
    ///
    /// # Cancel safety
    /// A request that is cancelled leaves its queue.
    pub async fn admit(
        &self,
        attributes: &AdmissionAttributes<'_>,
        times: RequestTimes,
    ) -> Result<AdmissionPermit, Rejection> {
        let concurrency = match self {
            Self::Fairness(controller) => {
                if bypasses_fairness(attributes.info) {
                    None
                } else {
                    let admitted = controller
                        .admit(attributes.info, attributes.user, times)
                        .await;
                    Some(ConcurrencyPermit::Seats(
                        admitted.map_err(Rejection::Fairness)?,
                    ))
                }
            }
            Self::MaxInFlight(limit) => match limit.admit(attributes) {
                Ok(slot) => slot.map(ConcurrencyPermit::Slot),
                Err(rejection) if limit.is_dry_run() => {
                    Some(ConcurrencyPermit::SparedBy(rejection))
                }
                Err(rejection) => return Err(Rejection::MaxInFlight(rejection)),
            },
        };
        Ok(AdmissionPermit {
            concurrency,
            ..AdmissionPermit::default()
        })
    }

    /// The number of seats that a request counts as if no priority level decided on it: with
    /// max-in-flight, requests are only counted.
    #[must_use]
    pub(crate) const fn seats_without_decision(&self) -> u64 {
        match self {
            Self::Fairness(_) => 0,
            Self::MaxInFlight(_) => 1,
        }
    }

    /// The bytes that a list, or the initial events of a watch, is expected to have; 0 if nothing is
    /// known of them. `None` if it is neither, if it is of a level that serves the control plane, or if
    /// limits only count.
    #[must_use]
    pub(crate) fn expected_list_bytes(&self, attributes: &AdmissionAttributes<'_>) -> Option<u64> {
        let AdmissionAttributes { info, user, .. } = attributes;
        if !depends_on_count(info) || bypasses_fairness(info) || self.is_dry_run() {
            return None;
        }
        match self {
            Self::Fairness(controller) => controller.expected_list_bytes(info, user),
            Self::MaxInFlight(_) => {
                let is_critical = [GROUP_MASTERS, GROUP_NODES].map(|group| user.in_group(group));
                (is_critical == [false; 2]).then_some(0)
            }
        }
    }

    /// Whether the limiter only counts.
    #[must_use]
    pub(crate) fn is_dry_run(&self) -> bool {
        match self {
            Self::Fairness(controller) => controller.is_dry_run(),
            Self::MaxInFlight(limit) => limit.is_dry_run(),
        }
    }

    /// Whether the request takes seats, and is queued or rejected where there are none.
    #[must_use]
    pub(crate) fn is_queued(&self, attributes: &AdmissionAttributes<'_>) -> bool {
        match self {
            Self::Fairness(controller) => {
                !bypasses_fairness(attributes.info)
                    && controller.is_enforced(attributes.info, attributes.user)
            }
            Self::MaxInFlight(_) => false,
        }
    }

    /// Whether the request is exempt from the limiter and never rejected by it.
    #[must_use]
    pub(crate) fn is_exempt(&self, attributes: &AdmissionAttributes<'_>) -> bool {
        match self {
            Self::Fairness(controller) => controller.is_exempt(attributes.info, attributes.user),
            Self::MaxInFlight(_) => attributes.user.in_group(GROUP_MASTERS),
        }
    }
}

/// The permit of an admitted request, held until the end of its response. Drop releases what it
/// holds.
#[derive(Debug, Default)]
pub struct AdmissionPermit {
    /// What the limiter of concurrent requests granted; `None` if it does not count the request.
    concurrency: Option<ConcurrencyPermit>,
    /// The permit of the client limits.
    client_limits: Option<Box<ClientLimitPermit>>,
    /// The slots of policies' limits.
    policies: Option<PolicyPermit>,
    /// What levers have counted.
    levers: LeverPermit,
    /// The start of a watch, as long as it holds its seats.
    watch_start: Option<Box<WatchStart>>,
    /// The bytes of a list, as long as the API server works on them.
    list: Option<Box<CountedList>>,
    /// When the request was forwarded to the upstream.
    forwarded_at: Option<Instant>,
}

#[derive(Debug)]
enum ConcurrencyPermit {
    Seats(SeatPermit),
    Slot(#[expect(dead_code, reason = "kept for its drop")] InFlightPermit),
    /// No slot: max-in-flight would have rejected the request, but it is a dry run.
    SparedBy(MaxInFlightRejection),
}

impl AdmissionPermit {
    /// Adds the permit of the client limits.
    #[must_use]
    pub(crate) fn with_client_limits(
        mut self,
        client_limits: Option<Box<ClientLimitPermit>>,
    ) -> Self {
        self.client_limits = client_limits;
        self
    }

    /// Adds the slots of policies' limits.
    #[must_use]
    pub(crate) fn with_policies(mut self, policies: Option<PolicyPermit>) -> Self {
        self.policies = policies;
        self
    }

    /// Adds what levers have counted.
    #[must_use]
    pub(crate) fn with_levers(mut self, levers: LeverPermit) -> Self {
        self.levers = levers;
        self
    }

    /// Adds the start of a watch.
    #[must_use]
    pub(crate) fn with_watch_start(mut self, watch_start: Option<Box<WatchStart>>) -> Self {
        self.watch_start = watch_start;
        self
    }

    /// Adds a list whose bytes count.
    #[must_use]
    pub(crate) fn with_list(mut self, list: Option<Box<CountedList>>) -> Self {
        self.list = list;
        self
    }

    /// The list whose bytes count, if it is one.
    pub(crate) fn list_mut(&mut self) -> Option<&mut CountedList> {
        self.list.as_deref_mut()
    }

    /// Records the status code of the upstream's response for the client limits.
    pub(crate) fn record_response(&mut self, code: u16) {
        if let Some(client_limits) = &mut self.client_limits {
            let now = Clock.now();
            client_limits.record_response(code, self.forwarded_at.unwrap_or(now), now);
        }
    }

    /// When the request was forwarded to the upstream.
    pub(crate) const fn forwarded_at(&self) -> Option<Instant> {
        self.forwarded_at
    }

    /// Records that the request is forwarded to the upstream now.
    pub(crate) fn record_forwarding(&mut self, now: Instant) {
        self.forwarded_at = Some(now);
    }

    /// Releases the seat or slot after a protocol upgrade. The permit of the client limits, which
    /// counts tunnels too, is held to the end.
    pub(crate) fn release_concurrency(&mut self) {
        self.concurrency = None;
    }

    /// The rejection that a dry run has spared the request.
    #[must_use]
    pub(crate) fn dry_run_rejection(&self) -> Option<Rejection> {
        match &self.concurrency {
            Some(ConcurrencyPermit::Seats(seats)) => {
                seats.dry_run_rejection().map(Rejection::Fairness)
            }
            Some(ConcurrencyPermit::SparedBy(rejection)) => {
                Some(Rejection::MaxInFlight(*rejection))
            }
            Some(ConcurrencyPermit::Slot(_)) | None => None,
        }
    }

    /// The handle of a request that waits in the simulation of a dry run, and may still be rejected.
    pub(crate) const fn simulated_mut(&mut self) -> Option<&mut SimulatedRequest> {
        match &mut self.concurrency {
            Some(ConcurrencyPermit::Seats(seats)) => seats.simulated_mut(),
            Some(ConcurrencyPermit::Slot(_) | ConcurrencyPermit::SparedBy(_)) | None => None,
        }
    }

    /// Whether the permit holds a seat or slot.
    #[must_use]
    pub(crate) const fn holds_concurrency(&self) -> bool {
        self.concurrency.is_some()
    }

    /// Releases the seats of a watch whose initial events have been sent. From then on the watch is
    /// only counted. No effect if it has released them already.
    pub(crate) fn release_watch_seats(&mut self) {
        self.watch_start = None;
        self.list = None;
        if let Some(ConcurrencyPermit::Seats(seats)) = &mut self.concurrency {
            seats.release();
        }
    }

    /// The decision of API Priority and Fairness, if that is configured.
    #[must_use]
    pub(crate) const fn decision(&self) -> Option<&FlowControlDecision> {
        match &self.concurrency {
            Some(ConcurrencyPermit::Seats(seats)) => Some(seats.decision()),
            Some(ConcurrencyPermit::Slot(_) | ConcurrencyPermit::SparedBy(_)) | None => None,
        }
    }
}
