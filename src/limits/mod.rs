//! May a request go on? Which limit decides, what it gives (a [`Permit`]) and what it says no with (a [`Rejection`]).
//!
//! A permit is held until the last byte of the answer has gone, and gives itself back when it is dropped. A rejection is
//! a decision, not an error: it names the limit, and the client is told which.

pub mod bucket;
pub mod clients;
pub mod events;
pub mod hold;
pub mod lock;
pub mod lru;
pub mod max_in_flight;
pub mod rates;
pub mod service_times;
pub mod top_keys;
pub mod upgrades;

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use crate::api::UserInfo;
use crate::api::user::GROUP_MASTERS;
use crate::clock::Clock;
use crate::flowcontrol::controller::Admitted;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::controller::Decision;
use crate::flowcontrol::controller::Rejected;
use crate::flowcontrol::controller::Times;
use crate::limits::clients::enforce::Hold;
use crate::limits::clients::enforce::TooMany;
use crate::limits::events::enforce::TooManyEvents;
use crate::limits::hold::Wait;
use crate::limits::max_in_flight::InFlightPermit;
use crate::request_info::RequestInfo;
use crate::request_info::RequestKind;
use crate::request_info::Verb;

pub use max_in_flight::MaxInFlight;

/// `Retry-After` for a wait: whole seconds, at least one.
#[must_use]
pub fn retry_after(wait: Duration) -> u32 {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    u32::try_from(seconds).unwrap_or(u32::MAX).max(1)
}

/// A limit's no.
#[derive(Clone, Debug)]
pub enum Rejection {
    /// A client does more than a rule of `clientLimits` allows.
    Clients(TooMany),
    /// EventRateLimit has no token for the event.
    Events(TooManyEvents),
    /// The request's priority level has neither a seat nor a place in a queue for it, or none came free in time.
    Fairness(Rejected),
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
const RETRY_MAX_IN_FLIGHT: u32 = 1;

/// How long one that is refused by a rate is held at least: in 10 ms a rate has tokens for as many requests as whoever goes
/// next makes of them, and who is refused at once comes back thirty times in it.
const LEAST_TURN: Duration = Duration::from_millis(10);

impl Rejection {
    /// The seconds of `Retry-After`; at least 1.
    #[must_use]
    pub const fn retry_after(&self) -> u32 {
        match self {
            Self::Clients(rejected) => rejected.retry_after,
            Self::Events(rejected) => match rejected.retry_after {
                Some(seconds) => seconds,
                None => 1,
            },
            Self::Fairness(rejected) => rejected.retry_after,
            Self::MaxInFlight { .. } => RETRY_MAX_IN_FLIGHT,
            Self::UnprovenUpgrade { retry_after } => *retry_after,
        }
    }

    /// When it is worth coming back, and how to hold who comes back before. A rate has a token after a part of a second, which
    /// `Retry-After` cannot say: who does not wait is held for that long only, and one after the other, or the tokens that
    /// come meanwhile would be nobody's. When a place comes free nobody knows.
    #[must_use]
    pub fn patience(&self) -> Wait {
        match self {
            Self::Clients(TooMany { wait, .. }) | Self::Events(TooManyEvents { wait, .. })
                if !wait.is_zero() =>
            {
                Wait {
                    time: (*wait).max(LEAST_TURN),
                    in_turn: true,
                    most: None,
                }
            }
            Self::Clients(_)
            | Self::Events(_)
            | Self::Fairness(_)
            | Self::MaxInFlight { .. }
            | Self::UnprovenUpgrade { .. } => Wait {
                time: Duration::from_secs(self.retry_after().into()),
                in_turn: false,
                most: None,
            },
        }
    }

    /// Whether the client is told when to come back: not by EventRateLimit, where upstream's silence is wanted.
    #[must_use]
    pub const fn says_when(&self) -> bool {
        !matches!(self, Self::Events(rejected) if rejected.retry_after.is_none())
    }

    /// What fairness decided, where it did.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        match self {
            Self::Fairness(rejected) => Some(rejected.decision()),
            Self::Clients(_)
            | Self::Events(_)
            | Self::MaxInFlight { .. }
            | Self::UnprovenUpgrade { .. } => None,
        }
    }

    /// The limit, in a word: of fairness, the reason as Kubernetes spells it.
    #[must_use]
    pub const fn limit(&self) -> &'static str {
        match self {
            Self::Clients(_) => "client-limit",
            Self::Events(_) => "event-rate-limit",
            Self::Fairness(rejected) => rejected.reason.label(),
            Self::MaxInFlight { .. } => "max-in-flight",
            Self::UnprovenUpgrade { .. } => upgrades::UNPROVEN_UPGRADES,
        }
    }

    /// Who said no, in a word: fairness is one, for whatever reason.
    #[must_use]
    pub const fn limiter(&self) -> &'static str {
        match self {
            Self::Fairness(_) => "fairness",
            Self::Clients(_)
            | Self::Events(_)
            | Self::MaxInFlight { .. }
            | Self::UnprovenUpgrade { .. } => self.limit(),
        }
    }

    /// What classified the request: together with its user, its flow.
    #[must_use]
    pub fn class(&self) -> &str {
        match self {
            Self::Clients(rejected) => &rejected.rule,
            Self::Events(_) => "events",
            Self::Fairness(rejected) => &rejected.flow_schema().name,
            Self::MaxInFlight { kind, .. } => kind.label(),
            Self::UnprovenUpgrade { .. } => "upgrades",
        }
    }
}

/// What admission looks at.
#[derive(Clone, Copy, Debug)]
pub struct RequestDigest<'a> {
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
        digest: &RequestDigest<'_>,
        times: Times,
    ) -> Result<Permit, Rejection> {
        let held = match self {
            Self::Fairness(controller) => {
                if digest.info.long_running() && *digest.info.verb() != Verb::Watch {
                    Held::Nothing
                } else {
                    let admitted = controller.admit(digest.info, digest.user, times).await;
                    Held::Seat(admitted.map_err(Rejection::Fairness)?)
                }
            }
            Self::MaxInFlight(limit) => limit.admit(digest)?.map_or(Held::Nothing, Held::Slot),
        };
        Ok(Permit {
            held,
            client: None,
            forwarded: None,
        })
    }

    /// Whether the request is one that is never refused here.
    #[must_use]
    pub fn exempts(&self, digest: &RequestDigest<'_>) -> bool {
        match self {
            Self::Fairness(controller) => controller.exempts(digest.info, digest.user),
            Self::MaxInFlight(_) => digest.user.in_group(GROUP_MASTERS),
        }
    }
}

/// What an admitted request holds until its end; dropping it gives back what it holds.
#[derive(Debug)]
pub struct Permit {
    held: Held,
    /// What client limits hold.
    client: Option<Box<Hold>>,
    /// When the request went to the upstream.
    forwarded: Option<Instant>,
}

#[derive(Debug)]
enum Held {
    Nothing,
    Seat(Admitted),
    Slot(#[expect(dead_code, reason = "kept for its drop")] InFlightPermit),
}

impl Permit {
    /// Holds this as well.
    #[must_use]
    pub fn with(mut self, client: Option<Box<Hold>>) -> Self {
        self.client = client;
        self
    }

    /// The upstream has answered with this code, which client limits are told.
    pub fn answered_with(&mut self, code: u16) {
        if let Some(client) = &mut self.client {
            let now = Clock.now();
            client.answered(code, self.forwarded.unwrap_or(now), now);
        }
    }

    /// The request is about to be sent to the upstream.
    pub fn forwarding(&mut self, now: Instant) {
        self.forwarded = Some(now);
    }

    /// The protocol has changed: what limits how many requests there are at a time goes back; what client limits hold, a client's
    /// tunnels among it, stays to the end.
    pub fn switched(&mut self) {
        self.held = Held::Nothing;
    }

    /// Whether it holds anything that can be given back.
    #[must_use]
    pub const fn holds(&self) -> bool {
        !matches!(self.held, Held::Nothing)
    }

    /// A watch has sent what there was when it began: its seats go back, and it is only counted from here on.
    pub fn initialized(&mut self) {
        if let Held::Seat(admitted) = &mut self.held {
            admitted.initialized();
        }
    }

    /// What fairness decided, where it did.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        match &self.held {
            Held::Seat(admitted) => Some(admitted.decision()),
            Held::Nothing | Held::Slot(_) => None,
        }
    }

    /// How long it was in a queue, where fairness decided.
    #[must_use]
    pub const fn queue_wait(&self) -> Option<Duration> {
        match &self.held {
            Held::Seat(admitted) => Some(admitted.queue_wait()),
            Held::Nothing | Held::Slot(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flowcontrol::controller::tests::POD;
    use crate::flowcontrol::controller::tests::one_level;
    use crate::flowcontrol::controller::tests::reject;
    use crate::flowcontrol::queue_set::Reason;

    #[tokio::test(start_paused = true)]
    async fn a_flow_is_one_for_whatever_reason_fairness_refuses_it() {
        let world = one_level(1, reject());
        let _held = world.get_now("alice");
        let refused = world.admit("bob", "GET", POD).await.unwrap_err();
        let mut late = refused.clone();
        late.reason = Reason::TimeOut;
        let [one, other] = [refused, late].map(Rejection::Fairness);
        assert_ne!(one.limit(), other.limit());
        let flow = |no: &Rejection| (no.limiter(), no.class().to_owned());
        assert_eq!(flow(&one), flow(&other));
    }
}
