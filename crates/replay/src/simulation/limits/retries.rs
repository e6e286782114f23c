//! What a rejection does to its client: when it is sent, and whether the request comes again.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;

use super::limiter::LimitRejection;
use crate::clients::ClientId;
use crate::simulation::agenda::SimTime;
use crate::simulation::model::Retries;
use crate::simulation::statistics::groups::RejectedBy;
use weir_limits::rejection_hold::{
    ConnectionRetryTimes, HoldDecision, HoldFlow, HoldId, HoldKey, HoldOwner, HoldPolicy,
    RejectionHolds,
};

/// As in the proxy.
const MAX_HELD_REJECTIONS: usize = 10_000;

/// The rejections that are held on one connection: half of the streams of an HTTP/2 connection.
/// Each client is taken to have one connection.
const MAX_HELD_ON_A_CONNECTION: usize = 125;

/// How often client-go repeats a request (`rest.Request`, `maxRetries`).
const CLIENT_GO_RETRIES: u32 = 10;

/// The time after which an impatient client repeats a request.
const ROUND_TRIP_NS: u64 = 1_000_000;

/// The rejections that are held.
#[derive(Debug)]
pub(crate) struct Holds {
    holds: RejectionHolds<()>,
    enabled: bool,
    connections: HashMap<ClientId, ConnectionRetryTimes, FixedState>,
    hasher: FixedState,
}

impl Holds {
    pub(crate) fn new(max_hold: Duration) -> Self {
        Self {
            holds: RejectionHolds::new(max_hold, MAX_HELD_REJECTIONS),
            enabled: !max_hold.is_zero(),
            connections: HashMap::default(),
            hasher: FixedState::default(),
        }
    }

    /// When the rejection is sent, if not at once. `class` is what classified the request.
    pub(crate) fn hold(
        &mut self,
        now: Instant,
        client: ClientId,
        user: &str,
        class: (RejectedBy, u32),
        rejection: &LimitRejection,
    ) -> Option<(Instant, HoldId)> {
        if !self.enabled {
            return None;
        }
        let (by, schema) = class;
        let owner = HoldOwner(self.hasher.hash_one(user));
        let key = HoldKey {
            flow: HoldFlow(self.hasher.hash_one((user, limiter(by), schema))),
            owner: Some(owner),
        };
        let policy = hold_policy(rejection);
        let connection = self.connections.entry(client).or_default();
        let at_a_time = if self.holds.has_slot(Some(owner)) {
            MAX_HELD_ON_A_CONNECTION
        } else {
            0
        };
        let decision = self
            .holds
            .schedule_rejection(connection, key.flow, now, policy, at_a_time);
        let HoldDecision::Until(until) = decision else {
            return None;
        };
        let (id, _) = self.holds.hold(connection, key, ());
        Some((until, id))
    }

    /// A held rejection is sent.
    pub(crate) fn release(&mut self, client: ClientId, hold: HoldId) {
        if let Some(connection) = self.connections.get_mut(&client) {
            self.holds.release(connection, hold);
        }
    }
}

/// All reasons of fairness are one limiter.
const fn limiter(by: RejectedBy) -> u8 {
    match by {
        RejectedBy::ClientLimit => 0,
        RejectedBy::ConcurrencyLimit | RejectedBy::QueueFull | RejectedBy::TimeOut => 1,
        RejectedBy::EventRateLimit => 2,
        RejectedBy::MaxInFlight => 3,
        RejectedBy::Policy => 4,
    }
}

fn hold_policy(rejection: &LimitRejection) -> HoldPolicy {
    match rejection.rate_wait {
        Some(wait) if !wait.is_zero() => HoldPolicy::for_rate(wait),
        Some(_) | None => {
            HoldPolicy::for_seats(rejection.retry_after.unwrap_or(Duration::from_secs(1)))
        }
    }
}

/// When the client sends the request again that was rejected for the `number`-th time, counted from
/// 0, and received the rejection `at`. `None`: it does not.
pub(crate) fn retry_at(
    retries: Retries,
    number: u32,
    rejection: &LimitRejection,
    at: SimTime,
    deadline: SimTime,
) -> Option<SimTime> {
    match retries {
        Retries::Never => None,
        Retries::ClientGo => {
            let wait = rejection
                .retry_after
                .filter(|_| number < CLIENT_GO_RETRIES)?;
            Some(at.plus(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)))
        }
        Retries::Impatient => Some(at.plus(ROUND_TRIP_NS)).filter(|&at| at < deadline),
    }
}
