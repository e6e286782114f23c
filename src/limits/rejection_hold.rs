//! Who comes back before the time that it was told hears no again only when that time is over.
//!
//! A server that says no for nothing is asked again at once, and a storm of such questions costs more than the answers it
//! keeps from others. So a refusal of a client that did not wait is held back, for what is left of its `Retry-After`. A
//! client that waits never notices. Pure: what is held, and until when; the waiting is the pipeline's.
//!
//! "A client" is a flow (a user and what classified it) on a connection, since one connection may carry many users. Whoever
//! takes a new connection for every try is known by the flow alone, once it has used many.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::hash::Hash;
use std::mem;
use std::time::Duration;
use std::time::Instant;

use crate::hash_keys::BuildIdentityHasher;

/// A flow: a keyed hash of the user's name and of what classified the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldFlow(pub u64);

/// A user, or a source network of unauthenticated requests: a keyed hash. One owner has half of the places, so that a storm of one user is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldOwner(pub u64);

/// A flow, and whose share of the places its refusals take, if anybody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldKey {
    /// The flow.
    pub flow: HoldFlow,
    /// The owner; `None` where many clients cannot be told apart.
    pub owner: Option<HoldOwner>,
}

/// One owner has this part of the places at most.
pub const OWNER_SHARE_DIVISOR: usize = 2;

/// A flow that was refused on more connections than this is known on new ones, too: client-go opens one, a browser six,
/// and a few processes share a user.
const MAX_CONNECTIONS_TRACKED_APART: u8 = 8;

/// After this long without a refusal a flow's connections are counted anew.
const CONNECTION_COUNT_TTL: Duration = Duration::from_secs(10);

/// Most flows in a generation; two are kept. An entry takes less than 64 bytes.
const MAX_FLOWS_PER_GENERATION: usize = 32_768;

/// Times that are remembered of a flow on a connection with several requests at a time: so many of them can wait as they were
/// told, each by itself, beside one that does not. Whoever does not wait hears as many refusals in a `Retry-After`, and no more;
/// on a connection with one request at a time it is the same client that comes again, and hears one.
const MAX_TIMES_PER_FLOW: usize = 4;

/// Flows that are remembered on one connection: more users than a front proxy's connection has at a time that are all
/// refused. The oldest goes first.
const MAX_FLOWS_PER_CONNECTION: usize = 16;

/// How long a client is to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldPolicy {
    /// From when it hears the refusal.
    pub wait: Duration,
    /// Those of its flow that are held already go first, each this long after the one before.
    pub sequential: bool,
    /// Longest that it is held, whatever its flow was told before; `None`: only by what all are.
    pub max_hold: Option<Duration>,
}

impl HoldPolicy {
    /// Of a refusal with this `Retry-After`, which may be over at any moment: held for no longer than that.
    #[must_use]
    pub const fn capped_at(retry_after: Duration) -> Self {
        Self {
            wait: retry_after,
            sequential: false,
            max_hold: Some(retry_after),
        }
    }
}

/// When a refusal is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldDecision {
    /// At once: it did not come too early, or there is no more room for holding.
    Immediate,
    /// Not before this.
    Until(Instant),
}

/// What is remembered of a connection: until when each of its flows was told to wait, the earliest first.
#[derive(Debug, Default)]
pub struct ConnectionRetryTimes {
    flows: Vec<(HoldFlow, Vec<Instant>)>,
    /// Some flow is not remembered any more: one that seems to be new may have been here.
    has_evicted: bool,
    held_count: usize,
}

/// What is remembered of a flow.
#[derive(Clone, Copy, Debug)]
struct FlowRetryRecord {
    /// Until when somebody of it was told to wait.
    retry_at: Instant,
    /// On how many connections it was refused, counted up to a few more than matter.
    connections: u8,
}

/// What is held, and what is known of flows. `T` wakes who waits.
#[derive(Debug)]
pub struct RejectionHolds<T> {
    max_hold: Duration,
    capacity: usize,
    /// Those of late, and those of before: what both have lost is forgotten.
    flows: [HashMap<HoldFlow, FlowRetryRecord, BuildIdentityHasher>; 2],
    /// In the order in which they came.
    held: BTreeMap<HoldId, (FlowAndOwner, T)>,
    held_by_flow: HashMap<HoldFlow, usize, BuildIdentityHasher>,
    held_by_owner: HashMap<HoldOwner, usize, BuildIdentityHasher>,
    next_id: HoldId,
}

/// Of which flow a refusal is held, and whose share of the places it takes.
type FlowAndOwner = (HoldFlow, Option<HoldOwner>);

/// A place among the held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldId(u64);

impl<T> RejectionHolds<T> {
    /// Holds for `longest` at most, and `most` at a time.
    #[must_use]
    pub fn new(longest: Duration, most: usize) -> Self {
        Self {
            max_hold: longest,
            capacity: most,
            flows: [HashMap::default(), HashMap::default()],
            held: BTreeMap::new(),
            held_by_flow: HashMap::default(),
            held_by_owner: HashMap::default(),
            next_id: HoldId(0),
        }
    }

    /// A request of `flow` is refused at `now`, and is to wait.
    ///
    /// `told` is its connection's, on which at most `at_a_time` are held.
    pub fn schedule_rejection(
        &mut self,
        told: &mut ConnectionRetryTimes,
        flow: HoldFlow,
        now: Instant,
        wait: HoldPolicy,
        at_a_time: usize,
    ) -> HoldDecision {
        let before = match self.held_by_flow.get(&flow) {
            Some(held) if wait.sequential => u32::try_from(*held).unwrap_or(u32::MAX),
            _ => 0,
        };
        let known = self.flow_record(flow, now);
        let room = told.held_count < at_a_time;
        let is_new = told.is_new(flow);
        let times = told.retry_times(flow);
        if is_new {
            known.connections = known.connections.saturating_add(1);
        }
        let many = known.connections > MAX_CONNECTIONS_TRACKED_APART;
        let until = match times.first() {
            Some(earliest) => Some(*earliest),
            None if many => Some(known.retry_at),
            None => None,
        };
        let longest = wait
            .max_hold
            .map_or(self.max_hold, |most| most.min(self.max_hold));
        let when = match until {
            Some(until) if until > now && room => {
                let turn = now + wait.wait.saturating_mul(before).min(longest);
                HoldDecision::Until(until.max(turn).min(now + longest))
            }
            _ => HoldDecision::Immediate,
        };
        let said = match when {
            HoldDecision::Until(at) => at,
            HoldDecision::Immediate => now,
        };
        // Who waited has used up his time; who did not uses up nobody else's, as long as there is room.
        let remembered = if at_a_time > 1 { MAX_TIMES_PER_FLOW } else { 1 };
        if !times.is_empty() && (when == HoldDecision::Immediate || times.len() >= remembered) {
            times.remove(0);
        }
        insert_sorted(times, said + wait.wait);
        let known = self.flow_record(flow, now);
        known.retry_at = known.retry_at.max(said + wait.wait);
        when
    }

    /// One that was to be told at `at` to come back after `retry_after` is told at `now` already.
    pub fn record_early_response(
        told: &mut ConnectionRetryTimes,
        flow: HoldFlow,
        at: Instant,
        now: Instant,
        retry_after: Duration,
    ) {
        let times = told.retry_times(flow);
        if let Some(place) = times.iter().position(|time| *time == at + retry_after) {
            times.remove(place);
            insert_sorted(times, now + retry_after);
        }
    }

    /// Whether another refusal of this owner may be held: one has half of the places.
    #[must_use]
    pub fn has_slot(&self, owner: Option<HoldOwner>) -> bool {
        owner
            .and_then(|owner| self.held_by_owner.get(&owner))
            .is_none_or(|held| *held < (self.capacity / OWNER_SHARE_DIVISOR).max(1))
    }

    /// Holds one of a flow; what was held longest is let go if there are too many.
    pub fn hold(
        &mut self,
        told: &mut ConnectionRetryTimes,
        holder: FlowAndOwner,
        wakes: T,
    ) -> (HoldId, Option<T>) {
        let ticket = self.next_id;
        self.next_id = HoldId(ticket.0 + 1);
        self.held.insert(ticket, (holder, wakes));
        let (flow, owner) = holder;
        *self.held_by_flow.entry(flow).or_default() += 1;
        if let Some(owner) = owner {
            *self.held_by_owner.entry(owner).or_default() += 1;
        }
        told.held_count += 1;
        let let_go = (self.held.len() > self.capacity)
            .then(|| self.held.pop_first())
            .flatten();
        (
            ticket,
            let_go.map(|(_, (holder, wakes))| self.uncount(holder, wakes)),
        )
    }

    /// It is held no more: its time is over, its client has gone, or it was let go.
    pub fn release(&mut self, told: &mut ConnectionRetryTimes, ticket: HoldId) {
        told.held_count = told.held_count.saturating_sub(1);
        if let Some((holder, wakes)) = self.held.remove(&ticket) {
            self.uncount(holder, wakes);
        }
    }

    /// How many are held, and of how many flows.
    #[must_use]
    pub fn held_counts(&self) -> (usize, usize) {
        (self.held.len(), self.held_by_flow.len())
    }

    fn uncount(&mut self, (flow, owner): FlowAndOwner, wakes: T) -> T {
        decrement(&mut self.held_by_flow, flow);
        if let Some(owner) = owner {
            decrement(&mut self.held_by_owner, owner);
        }
        wakes
    }

    fn flow_record(&mut self, flow: HoldFlow, now: Instant) -> &mut FlowRetryRecord {
        let [late, before] = &mut self.flows;
        if late.len() >= MAX_FLOWS_PER_GENERATION && !late.contains_key(&flow) {
            *before = mem::take(late);
        }
        let remembered = before.remove(&flow);
        let known = late.entry(flow).or_insert_with(|| {
            remembered.unwrap_or(FlowRetryRecord {
                retry_at: now,
                connections: 0,
            })
        });
        if now.saturating_duration_since(known.retry_at) > CONNECTION_COUNT_TTL {
            known.connections = 0;
        }
        known
    }
}

impl ConnectionRetryTimes {
    /// Whether this flow was surely never refused on the connection.
    fn is_new(&self, flow: HoldFlow) -> bool {
        !self.has_evicted && self.flows.iter().all(|(told, _)| *told != flow)
    }

    fn retry_times(&mut self, flow: HoldFlow) -> &mut Vec<Instant> {
        let place = self.flows.iter().position(|(told, _)| *told == flow);
        let (_, times) = match place {
            Some(place) => {
                let known = self.flows.remove(place);
                self.flows.push_mut(known)
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

/// Counts one less; what comes to none is forgotten.
fn decrement<K: Eq + Hash>(counts: &mut HashMap<K, usize, BuildIdentityHasher>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

fn insert_sorted(times: &mut Vec<Instant>, time: Instant) {
    let place = times.partition_point(|earlier| *earlier <= time);
    times.insert(place, time);
}

#[cfg(test)]
#[path = "rejection_hold_tests.rs"]
mod tests;
