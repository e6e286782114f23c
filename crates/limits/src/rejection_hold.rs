//! Delays repeated rejections: a client that retries before its `Retry-After` has passed gets the
//! next rejection only when it has.
//!
//! A server that rejects at no cost receives retries at once, and a storm of retries takes capacity
//! from other requests. The rejection of a client that did not wait is therefore held for the rest
//! of its `Retry-After`. Clients that honour `Retry-After` see no delay. The module is pure: it
//! decides what is held and until when, and the pipeline waits.
//!
//! "A client" is a flow (a user and what classified the request) on one connection, since a
//! connection may carry many users. A flow that has used many connections is tracked across
//! connections, so that a client cannot avoid the delay with a new connection for each attempt.
//!
//! The delay follows the `Retry-After` that was sent, not the measured load:
//!
//! - It needs no threshold, and cannot affect a client that waits and has one request at a time on
//!   a connection: weir sent a time, and the client came back before it.
//! - Requests of one user that share an HTTP/2 connection, or were rejected on more than eight
//!   connections, look the same. A client that waited may then receive its rejection late because
//!   of another one, by `--rejection-hold` at most.
//! - Admission is tried first, and a delayed request always ends as a rejection. So it cannot keep
//!   a seat from another request.
//! - A client that opens a new connection for each retry is recognised by its flow, and only on
//!   connections that have carried no rejection themselves.
//! - 503s of an unreachable API server are delayed as 429s are, by their own `Retry-After` at most.
//!   A delay ends by its time and not when the server is back, so that clients do not all reach a
//!   server that has just started at once.
//! - Attempts to connect have no backoff. A rejected attempt costs the server's kernel one packet,
//!   requests that wait for an HTTP/2 connection share one, and a pause would keep waiting clients
//!   from a server that is back.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

use weir_base::generational_map::GenerationalMap;
use weir_base::hash_keys::BuildIdentityHasher;
use weir_kubernetes::numeric::saturating_u32;

/// A flow: a keyed hash of the user's name and of what classified the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldFlow(pub u64);

/// The owner of a flow: a keyed hash of a user, or of the source network of unauthenticated
/// requests. One owner gets at most half of the hold slots, so that a storm of one user cannot use
/// all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldOwner(pub u64);

/// A flow and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldKey {
    /// The flow.
    pub flow: HoldFlow,
    /// The owner whose share of the hold slots is used; `None` where many clients cannot be
    /// distinguished.
    pub owner: Option<HoldOwner>,
}

/// One owner gets at most this fraction of the hold slots.
pub const OWNER_SHARE_DIVISOR: usize = 2;

/// The number of connections that a flow's rejections are tracked on separately. A flow with
/// rejections on more of them is also recognized on new connections. client-go opens one
/// connection, a browser six, and a few processes share a user.
const MAX_CONNECTIONS_TRACKED_APART: u8 = 8;

/// After this time without a rejection, the connections of a flow are counted from zero.
const CONNECTION_COUNT_TTL: Duration = Duration::from_secs(10);

/// The most flows in a generation, of which two are kept. An entry takes less than 64 bytes.
const MAX_FLOWS_PER_GENERATION: usize = 32_768;

/// The most retry times tracked for a flow on a connection with several concurrent requests. That
/// many of its requests can wait as `Retry-After` says, each by itself, next to one that does not
/// wait. A client that does not wait gets this many rejections in a `Retry-After`, and no more. On
/// a connection with one request at a time the same client retries, and gets one.
const MAX_TIMES_PER_FLOW: usize = 4;

/// The most flows tracked on one connection: more users than a front proxy's connection carries at
/// a time that are all rejected. The oldest is evicted first.
const MAX_FLOWS_PER_CONNECTION: usize = 16;

/// How a rejected request is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldPolicy {
    /// How long the client has to wait after the rejection.
    pub wait: Duration,
    /// Whether the requests of the flow are held one after the other. Each is then rejected this
    /// wait after the previous one.
    pub sequential: bool,
    /// The longest hold, whatever earlier rejections of the flow were given; `None` if only the
    /// general limit applies.
    pub max_hold: Option<Duration>,
    /// A hold may last this long even where the general limit is shorter: the backlog of
    /// [`retry_pacing`](crate::throttling::retry_pacing).
    pub pacing_backlog: Duration,
}

/// The shortest hold of a request that a rate limit has rejected. In 10 ms a rate has tokens for as
/// many requests as the next client sends, while a client that is rejected at once retries thirty
/// times.
const MIN_RATE_HOLD: Duration = Duration::from_millis(10);

impl HoldPolicy {
    /// The policy for a rejection by a rate, which has its next token after `wait`: a fraction of a
    /// second, which `Retry-After` cannot express. A client that does not wait is held for that
    /// fraction only, and the requests of a flow are held one after the other. With a longer hold,
    /// the tokens of that time would not be used.
    #[must_use]
    pub fn for_rate(wait: Duration) -> Self {
        Self {
            wait: wait.max(MIN_RATE_HOLD),
            sequential: true,
            max_hold: None,
            pacing_backlog: Duration::ZERO,
        }
    }

    /// The policy for a rejection for lack of a seat or slot: when one becomes free is unknown.
    #[must_use]
    pub const fn for_seats(retry_after: Duration) -> Self {
        Self {
            wait: retry_after,
            sequential: false,
            max_hold: None,
            pacing_backlog: Duration::ZERO,
        }
    }

    /// The policy for a rejection whose cause may end at any moment: held for at most this
    /// `Retry-After`.
    #[must_use]
    pub const fn capped_at(retry_after: Duration) -> Self {
        Self {
            wait: retry_after,
            sequential: false,
            max_hold: Some(retry_after),
            pacing_backlog: Duration::ZERO,
        }
    }
}

/// When a rejection is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldDecision {
    /// At once: the request did not come too early, or there is no free hold slot.
    Immediate,
    /// Not before this time.
    Until(Instant),
}

/// The retry times of the flows on one connection, earliest first.
#[derive(Debug, Default)]
pub struct ConnectionRetryTimes {
    flows: Vec<(HoldFlow, Vec<Instant>)>,
    /// Whether a flow was evicted. A flow that seems new may then have been here before.
    has_evicted: bool,
    held_count: usize,
}

/// What is tracked of a flow across connections.
#[derive(Clone, Copy, Debug)]
struct FlowRetryRecord {
    /// The latest retry time that one of its requests was given.
    retry_at: Instant,
    /// The number of connections on which it was rejected, counted to a few more than matter.
    connections: u8,
}

/// The held rejections and the tracked flows. `T` wakes a held request.
#[derive(Debug)]
pub struct RejectionHolds<T> {
    max_hold: Duration,
    capacity: usize,
    flows: GenerationalMap<HoldFlow, FlowRetryRecord>,
    /// The held rejections in the order of their arrival.
    held: BTreeMap<HoldId, (HoldKey, T)>,
    held_by_flow: HashMap<HoldFlow, usize, BuildIdentityHasher>,
    held_by_owner: HashMap<HoldOwner, usize, BuildIdentityHasher>,
    next_id: HoldId,
}

/// The id of a held rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldId(u64);

impl<T> RejectionHolds<T> {
    /// Holds at most `capacity` rejections at a time, each for at most `max_hold`.
    #[must_use]
    pub fn new(max_hold: Duration, capacity: usize) -> Self {
        Self {
            max_hold,
            capacity,
            flows: GenerationalMap::new(MAX_FLOWS_PER_GENERATION, usize::MAX),
            held: BTreeMap::new(),
            held_by_flow: HashMap::default(),
            held_by_owner: HashMap::default(),
            next_id: HoldId(0),
        }
    }

    /// Changes the longest hold. Rejections that are held keep their times.
    pub fn set_max_hold(&mut self, max_hold: Duration) {
        self.max_hold = max_hold;
    }

    /// Decides when the rejection of a request of `flow` at `now` is sent.
    ///
    /// `connection` has the retry times of its connection, on which at most `max_concurrent`
    /// rejections are held.
    pub fn schedule_rejection(
        &mut self,
        connection: &mut ConnectionRetryTimes,
        flow: HoldFlow,
        now: Instant,
        policy: HoldPolicy,
        max_concurrent: usize,
    ) -> HoldDecision {
        let held_before = match self.held_by_flow.get(&flow) {
            Some(held) if policy.sequential => saturating_u32(*held),
            _ => 0,
        };
        let record = self.flow_record(flow, now);
        let has_capacity = connection.held_count < max_concurrent;
        let is_new = connection.is_new(flow);
        let times = connection.retry_times(flow);
        if is_new {
            record.connections = record.connections.saturating_add(1);
        }
        let many_connections = record.connections > MAX_CONNECTIONS_TRACKED_APART;
        let until = match times.first() {
            Some(earliest) => Some(*earliest),
            None if many_connections => Some(record.retry_at),
            None => None,
        };
        let max_hold = policy
            .max_hold
            .map_or(self.max_hold, |limit| limit.min(self.max_hold))
            .max(policy.pacing_backlog);
        let decision = match until {
            Some(until) if until > now && has_capacity => {
                let sequential_at = now + policy.wait.saturating_mul(held_before).min(max_hold);
                HoldDecision::Until(until.max(sequential_at).min(now + max_hold))
            }
            _ => HoldDecision::Immediate,
        };
        let sent_at = match decision {
            HoldDecision::Until(at) => at,
            HoldDecision::Immediate => now,
        };
        // A request that waited uses up its retry time. One that did not wait uses up none of the
        // others' as long as there is space.
        let max_times = if max_concurrent > 1 {
            MAX_TIMES_PER_FLOW
        } else {
            1
        };
        if !times.is_empty() && (decision == HoldDecision::Immediate || times.len() >= max_times) {
            times.remove(0);
        }
        insert_sorted(times, sent_at + policy.wait);
        let record = self.flow_record(flow, now);
        record.retry_at = record.retry_at.max(sent_at + policy.wait);
        decision
    }

    /// Corrects the retry time of a rejection that was scheduled for `at` and is sent at `now`.
    pub fn record_early_response(
        connection: &mut ConnectionRetryTimes,
        flow: HoldFlow,
        at: Instant,
        now: Instant,
        retry_after: Duration,
    ) {
        let times = connection.retry_times(flow);
        if let Some(index) = times.iter().position(|time| *time == at + retry_after) {
            times.remove(index);
            insert_sorted(times, now + retry_after);
        }
    }

    /// Postpones the retry time of a rejection that is sent at `now` from `now + wait` to
    /// `now + paced_wait`.
    pub fn postpone_retry(
        &mut self,
        connection: &mut ConnectionRetryTimes,
        flow: HoldFlow,
        now: Instant,
        wait: Duration,
        paced_wait: Duration,
    ) {
        let retry_at = now + paced_wait;
        let times = connection.retry_times(flow);
        // The times of one flow on one connection are interchangeable, so the latest one that was
        // known by now is as good as the rejection's own.
        let known = times.partition_point(|time| *time <= now + wait);
        if let Some(index) = known.checked_sub(1) {
            times.remove(index);
            insert_sorted(times, retry_at);
        }
        let record = self.flow_record(flow, now);
        record.retry_at = record.retry_at.max(retry_at);
    }

    /// Whether another rejection of this owner may be held. One owner gets at most half of the
    /// slots.
    #[must_use]
    pub fn has_slot(&self, owner: Option<HoldOwner>) -> bool {
        owner
            .and_then(|owner| self.held_by_owner.get(&owner))
            .is_none_or(|held| *held < (self.capacity / OWNER_SHARE_DIVISOR).max(1))
    }

    /// Holds a rejection. If there are too many, the one that was held longest is released and
    /// returned.
    pub fn hold(
        &mut self,
        connection: &mut ConnectionRetryTimes,
        key: HoldKey,
        waker: T,
    ) -> (HoldId, Option<T>) {
        let id = self.next_id;
        self.next_id = HoldId(id.0 + 1);
        self.held.insert(id, (key, waker));
        let HoldKey { flow, owner } = key;
        *self.held_by_flow.entry(flow).or_default() += 1;
        if let Some(owner) = owner {
            *self.held_by_owner.entry(owner).or_default() += 1;
        }
        connection.held_count += 1;
        let released = (self.held.len() > self.capacity)
            .then(|| self.held.pop_first())
            .flatten();
        (
            id,
            released.map(|(_, (key, waker))| self.uncount(key, waker)),
        )
    }

    /// Ends a hold: its time is over, its client is gone, or it was released in favour of another.
    pub fn release(&mut self, connection: &mut ConnectionRetryTimes, id: HoldId) {
        connection.held_count = connection.held_count.saturating_sub(1);
        if let Some((key, waker)) = self.held.remove(&id) {
            self.uncount(key, waker);
        }
    }

    /// The number of held rejections and of their flows.
    #[must_use]
    pub fn held_counts(&self) -> (usize, usize) {
        (self.held.len(), self.held_by_flow.len())
    }

    fn uncount(&mut self, key: HoldKey, waker: T) -> T {
        let HoldKey { flow, owner } = key;
        decrement(&mut self.held_by_flow, flow);
        if let Some(owner) = owner {
            decrement(&mut self.held_by_owner, owner);
        }
        waker
    }

    fn flow_record(&mut self, flow: HoldFlow, now: Instant) -> &mut FlowRetryRecord {
        let record = self.flows.get_or_insert_with(flow, || FlowRetryRecord {
            retry_at: now,
            connections: 0,
        });
        if now.saturating_duration_since(record.retry_at) > CONNECTION_COUNT_TTL {
            record.connections = 0;
        }
        record
    }
}

impl ConnectionRetryTimes {
    /// Whether the flow was certainly never rejected on the connection.
    fn is_new(&self, flow: HoldFlow) -> bool {
        !self.has_evicted && self.flows.iter().all(|(tracked, _)| *tracked != flow)
    }

    fn retry_times(&mut self, flow: HoldFlow) -> &mut Vec<Instant> {
        let index = self.flows.iter().position(|(tracked, _)| *tracked == flow);
        let (_, times) = match index {
            Some(index) => {
                let tracked = self.flows.remove(index);
                self.flows.push_mut(tracked)
            }
            None => {
                if self.flows.len() >= MAX_FLOWS_PER_CONNECTION {
                    self.flows.remove(0);
                    self.has_evicted = true;
                }
                self.flows.push_mut((flow, Vec::new()))
            }
        };
        times
    }
}

/// Decrements a count and removes it at zero.
fn decrement<K: Eq + Hash>(counts: &mut HashMap<K, usize, BuildIdentityHasher>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

fn insert_sorted(times: &mut Vec<Instant>, time: Instant) {
    let index = times.partition_point(|earlier| *earlier <= time);
    times.insert(index, time);
}

#[cfg(test)]
#[path = "rejection_hold_tests.rs"]
mod tests;
