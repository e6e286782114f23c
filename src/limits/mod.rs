//! May a request go on? Which limit decides, what it gives (a [`Permit`]) and what it says no with (a [`Rejection`]).
//!
//! A permit is held until the last byte of the answer has gone, and gives itself back when it is dropped. A rejection is
//! a decision, not an error: it names the limit, and the client is told which.

pub mod max_in_flight;
pub mod rate;
pub mod rejection_hold;
pub mod service_times;
pub mod upgrade_rate;

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use crate::api::UserInfo;
use crate::api::user::GROUP_MASTERS;
use crate::clock::Clock;
use crate::flowcontrol::controller::AdmissionPermit;
use crate::flowcontrol::controller::AdmissionRejection;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::controller::FlowControlDecision;
use crate::flowcontrol::controller::RequestTimes;
use crate::limits::max_in_flight::InFlightPermit;
use crate::limits::rate::clients::enforcer::ClientLimitPermit;
use crate::limits::rate::clients::enforcer::ClientLimitRejection;
use crate::limits::rate::events::enforcer::EventRejection;
use crate::limits::rejection_hold::HoldPolicy;
use crate::request_info::RequestInfo;
use crate::request_info::RequestKind;
use crate::request_info::Verb;

pub use max_in_flight::MaxInFlight;

/// `Retry-After` for a wait: whole seconds, at least one.
#[must_use]
pub fn retry_after_seconds(wait: Duration) -> u32 {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    u32::try_from(seconds).unwrap_or(u32::MAX).max(1)
}

/// A limit's no.
#[derive(Clone, Debug)]
pub enum Rejection {
    /// A client does more than a rule of `clientLimits` allows.
    ClientLimit(ClientLimitRejection),
    /// EventRateLimit has no token for the event.
    EventRateLimit(EventRejection),
    /// The request's priority level has neither a seat nor a place in a queue for it, or none came free in time.
    Fairness(AdmissionRejection),
    /// As many requests of the kind are being served as `limit` allows.
    MaxInFlight {
        /// Which of the two limits.
        kind: RequestKind,
        /// The limit that was hit.
        limit: u32,
    },
    /// A source network asks for another protocol too often without a credential that the API server has accepted.
    UnprovenUpgrade {
        /// The seconds of `Retry-After`.
        retry_after: u32,
    },
}

/// The `Retry-After` of max-in-flight (`server/filters/maxinflight.go`: constant 1).
const MAX_IN_FLIGHT_RETRY_AFTER: u32 = 1;

/// How long one that is refused by a rate is held at least: in 10 ms a rate has tokens for as many requests as whoever goes
/// next makes of them, and who is refused at once comes back thirty times in it.
const MIN_RATE_HOLD: Duration = Duration::from_millis(10);

impl Rejection {
    /// The seconds of `Retry-After`; at least 1.
    #[must_use]
    pub const fn retry_after(&self) -> u32 {
        match self {
            Self::ClientLimit(rejected) => rejected.retry_after,
            Self::EventRateLimit(rejected) => match rejected.retry_after {
                Some(seconds) => seconds,
                None => 1,
            },
            Self::Fairness(rejected) => rejected.retry_after,
            Self::MaxInFlight { .. } => MAX_IN_FLIGHT_RETRY_AFTER,
            Self::UnprovenUpgrade { retry_after } => *retry_after,
        }
    }

    /// When it is worth coming back, and how to hold who comes back before. A rate has a token after a part of a second, which
    /// `Retry-After` cannot say: who does not wait is held for that long only, and one after the other, or the tokens that
    /// come meanwhile would be nobody's. When a place comes free nobody knows.
    #[must_use]
    pub fn hold_policy(&self) -> HoldPolicy {
        match self {
            Self::ClientLimit(ClientLimitRejection { wait, .. })
            | Self::EventRateLimit(EventRejection { wait, .. })
                if !wait.is_zero() =>
            {
                HoldPolicy {
                    wait: (*wait).max(MIN_RATE_HOLD),
                    sequential: true,
                    max_hold: None,
                }
            }
            Self::ClientLimit(_)
            | Self::EventRateLimit(_)
            | Self::Fairness(_)
            | Self::MaxInFlight { .. }
            | Self::UnprovenUpgrade { .. } => HoldPolicy {
                wait: Duration::from_secs(self.retry_after().into()),
                sequential: false,
                max_hold: None,
            },
        }
    }

    /// Whether the client is told when to come back: not by EventRateLimit, where upstream's silence is wanted.
    #[must_use]
    pub const fn sends_retry_after(&self) -> bool {
        !matches!(self, Self::EventRateLimit(rejected) if rejected.retry_after.is_none())
    }

    /// What fairness decided, where it did.
    #[must_use]
    pub fn decision(&self) -> Option<FlowControlDecision> {
        match self {
            Self::Fairness(rejected) => Some(rejected.decision()),
            Self::ClientLimit(_)
            | Self::EventRateLimit(_)
            | Self::MaxInFlight { .. }
            | Self::UnprovenUpgrade { .. } => None,
        }
    }

    /// The limit, in a word: of fairness, the reason as Kubernetes spells it.
    #[must_use]
    pub const fn limit_label(&self) -> &'static str {
        match self {
            Self::ClientLimit(_) => "client-limit",
            Self::EventRateLimit(_) => "event-rate-limit",
            Self::Fairness(rejected) => rejected.reason.label(),
            Self::MaxInFlight { .. } => "max-in-flight",
            Self::UnprovenUpgrade { .. } => upgrade_rate::UNPROVEN_UPGRADES,
        }
    }

    /// Who said no, in a word: fairness is one, for whatever reason.
    #[must_use]
    pub const fn limiter_label(&self) -> &'static str {
        match self {
            Self::Fairness(_) => "fairness",
            Self::ClientLimit(_)
            | Self::EventRateLimit(_)
            | Self::MaxInFlight { .. }
            | Self::UnprovenUpgrade { .. } => self.limit_label(),
        }
    }

    /// What classified the request: together with its user, its flow.
    #[must_use]
    pub fn flow_class(&self) -> &str {
        match self {
            Self::ClientLimit(rejected) => &rejected.rule,
            Self::EventRateLimit(_) => "events",
            Self::Fairness(rejected) => &rejected.flow_schema().name,
            Self::MaxInFlight { kind, .. } => kind.label(),
            Self::UnprovenUpgrade { .. } => "upgrades",
        }
    }
}

/// What admission looks at.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionAttributes<'a> {
    /// What is asked.
    pub info: &'a RequestInfo<'a>,
    /// Who asks.
    pub user: &'a UserInfo,
}

/// How many requests are let through at a time: which of the ways is configured.
#[derive(Clone, Debug)]
pub enum Admission {
    /// API Priority and Fairness.
    Fairness(Arc<Controller>),
    /// Two counters, as with `--enable-priority-and-fairness=false`.
    MaxInFlight(Arc<MaxInFlight>),
}

impl Admission {
    /// Admits a request, perhaps after a while in a queue, or says which limit it met. Long-running requests pass, but that a
    /// watch is charged for its beginning by fairness.
    ///
    /// # Errors
    /// The limit's [`Rejection`].
    ///
    /// # Cancel safety
    /// A request that waits leaves its queue.
    pub async fn admit(
        &self,
        digest: &AdmissionAttributes<'_>,
        times: RequestTimes,
    ) -> Result<Permit, Rejection> {
        let held = match self {
            Self::Fairness(controller) => {
                if digest.info.long_running() && *digest.info.verb() != Verb::Watch {
                    ConcurrencyPermit::Unlimited
                } else {
                    let admitted = controller.admit(digest.info, digest.user, times).await;
                    ConcurrencyPermit::Seat(admitted.map_err(Rejection::Fairness)?)
                }
            }
            Self::MaxInFlight(limit) => limit
                .admit(digest)?
                .map_or(ConcurrencyPermit::Unlimited, ConcurrencyPermit::Slot),
        };
        Ok(Permit {
            concurrency: held,
            client_limits: None,
            forwarded_at: None,
        })
    }

    /// Whether the request is one that is never refused here.
    #[must_use]
    pub fn is_exempt(&self, digest: &AdmissionAttributes<'_>) -> bool {
        match self {
            Self::Fairness(controller) => controller.is_exempt(digest.info, digest.user),
            Self::MaxInFlight(_) => digest.user.in_group(GROUP_MASTERS),
        }
    }
}

/// What an admitted request holds until its end; dropping it gives back what it holds.
#[derive(Debug)]
pub struct Permit {
    concurrency: ConcurrencyPermit,
    /// What client limits hold.
    client_limits: Option<Box<ClientLimitPermit>>,
    /// When the request went to the upstream.
    forwarded_at: Option<Instant>,
}

#[derive(Debug)]
enum ConcurrencyPermit {
    Unlimited,
    Seat(AdmissionPermit),
    Slot(#[expect(dead_code, reason = "kept for its drop")] InFlightPermit),
}

impl Permit {
    /// Holds this as well.
    #[must_use]
    pub fn with_client_limits(mut self, client: Option<Box<ClientLimitPermit>>) -> Self {
        self.client_limits = client;
        self
    }

    /// The upstream has answered with this code, which client limits are told.
    pub fn record_response(&mut self, code: u16) {
        if let Some(client) = &mut self.client_limits {
            let now = Clock.now();
            client.record_response(code, self.forwarded_at.unwrap_or(now), now);
        }
    }

    /// The request is about to be sent to the upstream.
    pub fn record_forwarding(&mut self, now: Instant) {
        self.forwarded_at = Some(now);
    }

    /// The protocol has changed: what limits how many requests there are at a time goes back; what client limits hold, a client's
    /// tunnels among it, stays to the end.
    pub fn release_concurrency(&mut self) {
        self.concurrency = ConcurrencyPermit::Unlimited;
    }

    /// Whether it holds anything that can be given back.
    #[must_use]
    pub const fn holds_concurrency(&self) -> bool {
        !matches!(self.concurrency, ConcurrencyPermit::Unlimited)
    }

    /// A watch has sent what there was when it began: its seats go back, and it is only counted from here on.
    pub fn signal_watch_initialized(&mut self) {
        if let ConcurrencyPermit::Seat(admitted) = &mut self.concurrency {
            admitted.mark_initialized();
        }
    }

    /// What fairness decided, where it did.
    #[must_use]
    pub fn decision(&self) -> Option<FlowControlDecision> {
        match &self.concurrency {
            ConcurrencyPermit::Seat(admitted) => Some(admitted.decision()),
            ConcurrencyPermit::Unlimited | ConcurrencyPermit::Slot(_) => None,
        }
    }

    /// How long it was in a queue, where fairness decided.
    #[must_use]
    pub const fn queue_wait(&self) -> Option<Duration> {
        match &self.concurrency {
            ConcurrencyPermit::Seat(admitted) => Some(admitted.queue_wait()),
            ConcurrencyPermit::Unlimited | ConcurrencyPermit::Slot(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flowcontrol::controller::tests::POD;
    use crate::flowcontrol::controller::tests::one_level;
    use crate::flowcontrol::controller::tests::reject;
    use crate::flowcontrol::fairqueuing::queue_set::RejectReason;

    #[tokio::test(start_paused = true)]
    async fn a_flow_is_the_same_for_all_rejection_reasons_of_fairness() {
        let world = one_level(1, reject());
        let _held = world.get_now("alice");
        let refused = world.admit("bob", "GET", POD).await.unwrap_err();
        let mut late = refused.clone();
        late.reason = RejectReason::TimeOut;
        let [one, other] = [refused, late].map(Rejection::Fairness);
        assert_ne!(one.limit_label(), other.limit_label());
        let flow = |no: &Rejection| (no.limiter_label(), no.flow_class().to_owned());
        assert_eq!(flow(&one), flow(&other));
    }
}
