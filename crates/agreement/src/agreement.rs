//! The division of totals that replicas agree on, as one of them sees it. Pure: the caller passes
//! the time, the messages and the Leases.
//!
//! A division that each replica computed by itself would be exceeded whenever two views differ.
//! There is no leader. A lost leader looks like a partition, as any lost replica does, and asking a
//! leader takes as long as a round of messages.
//!
//! # What is promised
//!
//! What all replicas may use together is never more than the total, except for what
//! docs/replicas.md states. A replica gives up seats at once and takes seats only when
//!
//! 1. it has announced what it wants, and each other replica has acknowledged that message, and
//! 2. what it wants and what the others claim, by the messages with these acknowledgements, is not
//!    more than the total.
//!
//! Of several replicas that take seats, the one that announced last has received claims that contain
//! those of all others. So at any time, the claims of all are not more than the total, however
//! messages are lost and delayed.
//!
//! A replica that is silent keeps its claim until it is known to have dropped it. A replica drops to
//! its floor when its Lease was not renewed for a lease time, and one of the others has not
//! acknowledged a message for as long. Both times count from before the request was sent. The others
//! count a lease time from after they have received the last sign of it, so they end later.
//!
//! A floor may rise only when the others reserve it. So a replica that knows fewer others than before
//! announces its higher floor once its share is as large, and uses it when each of the others has
//! acknowledged that message.
//!
//! # Which messages count
//!
//! Not only replicas may be able to write Leases. Where there are peer connections, a Lease only shows
//! that a replica exists, and its address. A message in a Lease counts only if the Lease has no
//! address, and only what the replica holds and wants: so a fleet can change over to connections. Such
//! a claim can push the others to their floors, and no further. Without peer connections, all messages
//! are in Leases, and no replica falls below the floor of its own total.
//!
//! A message on a connection counts for the process that holds its replica's Lease. One of a replica
//! without a Lease counts only while the Leases cannot be read.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::message::{MAX_REPLICAS, POOLS, PoolClaim, Received, ReplicaId, ReplicaMessage};
use crate::peer::{LeaseEntry, PeerRecord, PeerStatus};
use crate::shares::{Claimant, divide, floor_share};
use weir_limits::auto_total::ProposedTotal;

/// A replica drops to its floor this much before its lease time ends: more than the time between
/// two calls of [`Agreement::step`].
pub const DROP_MARGIN: Duration = Duration::from_secs(2);

/// A replica that has sent nothing for so long is shown as silent.
pub const SILENT_AFTER: Duration = Duration::from_secs(3);

/// The number of replicas to assume before the others are known. It only sets the floor for this
/// time.
const ASSUMED_REPLICAS: u32 = 8;

/// The times of sending are remembered at this interval.
const SENT_INTERVAL: Duration = Duration::from_millis(100);

/// How many of them are remembered: those of a hundred seconds, more than three lease times.
const MAX_SENT: usize = 1024;

/// A share follows the demand when it is off by more than one part in `SLACK_DIVISOR` of an even
/// share.
const SLACK_DIVISOR: u32 = 16;

/// What this replica needs of one total. All numbers are seats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolInput {
    /// What is divided. Zero if nothing is.
    pub total: u32,
    /// What could be used now.
    pub demand: u32,
    /// What is in use.
    pub in_use: u32,
}

/// How a total is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    /// A replica that needs more gets more.
    ByDemand,
    /// All get the same: without peer connections, demand is not known in time.
    Even,
}

/// What this replica knows of its membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has not read the Leases yet.
    Joining,
    /// It shares the total with all others that it knows.
    Member,
    /// Some of the others are silent. Shares do not grow until they are known to have dropped
    /// theirs.
    Waiting,
    /// It was cut off for a lease time, and uses its floor.
    CutOff,
    /// Another process has taken its Lease over.
    Superseded,
}

/// What this replica holds of one total.
#[derive(Clone, Copy, Debug, Default)]
struct Claim {
    /// What it may use.
    limit: u32,
    wanted: u32,
    /// The number of the first message with this or more as `wanted`.
    announced: u64,
    held: u32,
}

/// One replica's view of the division.
#[derive(Debug)]
pub struct Agreement {
    id: ReplicaId,
    lease_time: Duration,
    number: u64,
    /// When the last messages were sent.
    sent: VecDeque<(u64, Instant)>,
    inputs: [PoolInput; POOLS],
    claims: [Claim; POOLS],
    peers: BTreeMap<String, PeerRecord>,
    /// When [`Agreement::step`] was called last.
    stepped: Option<Instant>,
    /// When the last successful renewal of the own Lease was sent.
    renewed: Option<Instant>,
    /// When it was known that the own Lease is written, for the first time since this replica was
    /// cut off.
    written: Option<Instant>,
    /// Whether the Leases were read after the own one was written: of two that start together, at
    /// least one finds the other.
    joined: bool,
    /// The replicas that the floor follows. More count at once, fewer when the others know the higher
    /// floor: one that others know is never less than the one in use.
    most_replicas: u32,
    /// The smaller number of replicas that the announced floor follows, and the number of the first
    /// message with it.
    fewer_replicas: Option<(u32, u64)>,
    /// When the last list of the Leases was requested.
    listed: Option<Instant>,
    /// Since when the others claim so much that this replica is left with less than its floor.
    crowded: Option<Instant>,
    leaving: bool,
    superseded: bool,
    division: Division,
}

impl Agreement {
    /// The view of a replica that has just started.
    #[must_use]
    pub const fn new(id: ReplicaId, lease_time: Duration, division: Division) -> Self {
        Self {
            id,
            lease_time,
            number: 0,
            sent: VecDeque::new(),
            inputs: [PoolInput {
                total: 0,
                demand: 0,
                in_use: 0,
            }; POOLS],
            claims: [Claim {
                limit: 0,
                wanted: 0,
                announced: 0,
                held: 0,
            }; POOLS],
            peers: BTreeMap::new(),
            stepped: None,
            renewed: None,
            written: None,
            joined: false,
            most_replicas: 0,
            fewer_replicas: None,
            listed: None,
            crowded: None,
            leaving: false,
            superseded: false,
            division,
        }
    }

    /// This replica.
    #[cfg(test)]
    pub const fn id(&self) -> &ReplicaId {
        &self.id
    }

    /// What this replica may use of each total.
    #[must_use]
    pub fn limits(&self) -> [u32; POOLS] {
        self.claims.map(|claim| claim.limit)
    }

    /// The own Lease was written, as is known at `now`, by a request that was sent at `sent`.
    pub fn renewed(&mut self, sent: Instant, now: Instant) {
        self.renewed = Some(sent);
        self.written.get_or_insert(now);
    }

    /// Gives its seats back as they become free, from now on.
    pub const fn leave(&mut self) {
        self.leaving = true;
    }

    /// Another process has taken the Lease over, or gave it back.
    pub const fn set_superseded(&mut self, superseded: bool) {
        self.superseded = superseded;
    }

    /// Takes in all Leases, by a list that was requested at `sent`.
    pub fn set_leases(&mut self, sent: Instant, now: Instant, leases: Vec<LeaseEntry>) {
        let mut listed: BTreeMap<String, LeaseEntry> = leases
            .into_iter()
            .filter(|lease| lease.id.name != self.id.name)
            .take(MAX_REPLICAS)
            .map(|lease| (lease.id.name.clone(), lease))
            .collect();
        // One whose Lease was deleted while it sends messages will write it again.
        self.peers.retain(|name, peer| {
            let sends = now.saturating_duration_since(peer.heard) < SILENT_AFTER;
            listed.contains_key(name) || (sends && peer.number.is_some() && !peer.leaving)
        });
        while let Some((name, lease)) = listed.pop_first() {
            let LeaseEntry {
                id,
                version,
                has_address,
                message,
            } = lease;
            let peer = self.peers.entry(name);
            let peer = peer.or_insert_with(|| PeerRecord::new(&id.instance, now));
            peer.set_instance(id.instance, now);
            if !peer.set_lease(version, now) {
                let unchanged = sent.saturating_duration_since(peer.lease_changed);
                peer.lease_ended = unchanged >= self.lease_time;
            }
            if let Some(message) = message {
                self.receive_in_lease(message, has_address, now);
            }
        }
        self.listed = Some(sent);
        self.joined |= self.written.is_some_and(|written| written <= sent);
    }

    /// Takes in a message of a connection. Returns whether it was of use: not if it is of another
    /// process than the one that holds the replica's Lease, as far as is known.
    pub fn receive(&mut self, message: &ReplicaMessage, now: Instant) -> bool {
        if message.name == self.id.name {
            return false;
        }
        let is_known = self.peers.contains_key(&message.name);
        if !is_known && !self.reads_leases(now) && self.peers.len() < MAX_REPLICAS {
            // It has joined since: its Lease will be in the next list.
            let peer = PeerRecord::new(&message.instance, now);
            self.peers.insert(message.name.clone(), peer);
        }
        let Some(peer) = self.peers.get_mut(&message.name) else {
            return false;
        };
        if peer.instance != message.instance {
            return false;
        }
        if !peer.is_connected {
            peer.is_connected = true;
            // The number in a Lease may be anything. What it claims counts until the next message.
            peer.number = peer.number.map(|number| number.min(message.number));
        }
        self.take_in(message, now)
    }

    /// Whether the Leases were read within a lease time.
    fn reads_leases(&self, now: Instant) -> bool {
        let is_recent = |sent| now.saturating_duration_since(sent) < self.lease_time;
        self.listed.is_some_and(is_recent)
    }

    /// Takes in the message of a replica's Lease.
    fn receive_in_lease(&mut self, message: ReplicaMessage, has_address: bool, now: Instant) {
        let peer = self.peers.get(&message.name);
        let is_connected = has_address || peer.is_some_and(|peer| peer.is_connected);
        match self.division {
            Division::Even => {
                self.take_in(&message, now);
            }
            Division::ByDemand if is_connected => {} // it says so on its connection
            Division::ByDemand => {
                self.take_in(&message.only_claims(), now);
            }
        }
    }

    /// Takes in a message of a process that is known. Returns whether it is that process's.
    fn take_in(&mut self, message: &ReplicaMessage, now: Instant) -> bool {
        let Some(peer) = self.peers.get_mut(&message.name) else {
            return false;
        };
        if peer.instance != message.instance {
            return false;
        }
        if peer.number.is_some_and(|number| message.number <= number) {
            return true; // it was overtaken
        }
        peer.number = Some(message.number);
        peer.claims = message.pools;
        peer.proposed = message.proposed;
        peer.heard = now;
        peer.expired = false;
        peer.leaving = message.leaving;
        peer.snapshots = message.snapshots;
        peer.levers = message.levers;
        if let Some(received) = message.received.get(&self.id.name)
            && received.instance == self.id.instance
            && received.number <= self.number
        {
            peer.acknowledged = peer.acknowledged.max(Some(received.number));
        }
        true
    }

    /// The next message to the others, with the total that this replica proposes for all.
    pub fn next_message(
        &mut self,
        now: Instant,
        proposed: Option<ProposedTotal>,
    ) -> ReplicaMessage {
        // A newcomer may have measured what it would have alone.
        let proposed = proposed.map(|own| ProposedTotal {
            is_measured: own.is_measured && self.has_heard_all(),
            ..own
        });
        self.number += 1;
        let last = self.sent.back().map(|(_, at)| *at);
        if last.is_none_or(|last| now.saturating_duration_since(last) >= SENT_INTERVAL) {
            self.sent.push_back((self.number, now));
        }
        if self.sent.len() > MAX_SENT {
            self.sent.pop_front();
        }
        let received = self.peers.iter().filter_map(|(name, peer)| {
            let received = Received {
                instance: peer.instance.clone(),
                number: peer.number?,
            };
            Some((name.clone(), received))
        });
        let received = received.collect();
        let mut pools = [PoolClaim::default(); POOLS];
        for (place, claim) in pools.iter_mut().enumerate() {
            *claim = self.own_claim(place);
        }
        let (id, leaving) = (self.id.clone(), self.leaving);
        ReplicaMessage::new(id, self.number, pools, received, leaving, proposed)
    }

    /// Whether all others that live have sent a message.
    fn has_heard_all(&self) -> bool {
        let mut others = self.peers.values();
        self.joined && others.all(|peer| peer.expired || peer.number.is_some())
    }

    /// What the others that live propose as the total of all.
    #[must_use]
    pub fn proposals(&self) -> Vec<ProposedTotal> {
        let live = self
            .peers
            .values()
            .filter(|peer| !peer.expired && !peer.leaving);
        live.filter_map(|peer| peer.proposed).collect()
    }

    fn own_claim(&self, place: usize) -> PoolClaim {
        let (input, claim) = (self.input(place), self.claim(place));
        let floor = self.floor(input.total);
        PoolClaim {
            total: input.total,
            // A share as large as the floor of so many replicas lets the floor follow.
            demand: input.demand.max(floor_share(input.total, self.replicas())),
            held: claim.held,
            wanted: claim.wanted,
            floor: match self.fewer_replicas {
                Some((replicas, _)) => floor.max(floor_share(input.total, replicas)),
                None => floor,
            },
        }
    }

    fn input(&self, place: usize) -> PoolInput {
        self.inputs.get(place).copied().unwrap_or_default()
    }

    fn claim(&self, place: usize) -> Claim {
        self.claims.get(place).copied().unwrap_or_default()
    }

    /// What is left of `total` when this replica is cut off.
    pub(crate) fn floor(&self, total: u32) -> u32 {
        let replicas = match self.most_replicas {
            0 => ASSUMED_REPLICAS,
            replicas => replicas,
        };
        floor_share(total, replicas)
    }

    /// The replicas that are known, with this one.
    fn replicas(&self) -> u32 {
        u32::try_from(self.peers.len() + 1).unwrap_or(u32::MAX)
    }

    /// Lets the floor follow the number of replicas.
    fn count_replicas(&mut self) {
        let replicas = self.replicas();
        if replicas >= self.most_replicas {
            (self.most_replicas, self.fewer_replicas) = (replicas, None);
            return;
        }
        match self.fewer_replicas {
            Some((fewer, announced)) if fewer == replicas => {
                if self.all_received(announced) {
                    (self.most_replicas, self.fewer_replicas) = (replicas, None);
                }
            }
            _ => {
                let is_covered = |place: usize| {
                    let floor = floor_share(self.input(place).total, replicas);
                    self.claim(place).limit >= floor
                };
                let are_covered = (0..POOLS).all(is_covered);
                self.fewer_replicas = are_covered.then_some((replicas, self.number + 1));
            }
        }
    }

    /// Moves the shares on. The caller calls this a few times a second. Returns whether the others
    /// should learn of a change at once.
    pub fn step(&mut self, now: Instant, inputs: [PoolInput; POOLS]) -> bool {
        self.inputs = inputs;
        if self.joined {
            self.count_replicas();
        }
        for peer in self.peers.values_mut() {
            let silent = now.saturating_duration_since(peer.heard) >= self.lease_time;
            if peer.lease_ended && silent && !peer.expired {
                peer.expire();
            }
        }
        let before = self.claims.map(|claim| (claim.held, claim.wanted));
        // Others may have joined while this one was cut off, or hung: it reads the Leases again.
        if self.has_hung(now) || !self.is_confirmed(now) {
            self.joined = false;
            self.written = None;
        }
        for place in 0..POOLS {
            let claim = self.next_claim(place);
            if let Some(current) = self.claims.get_mut(place) {
                *current = claim;
            }
        }
        self.crowded = match (0..POOLS).any(|place| self.is_crowded(place)) {
            true => self.crowded.or(Some(now)),
            false => None,
        };
        before != self.claims.map(|claim| (claim.held, claim.wanted))
    }

    /// Whether the others claim so much of a total that this replica is left with less than its floor.
    fn is_crowded(&self, place: usize) -> bool {
        let total = self.input(place).total;
        let floor = self.floor(total);
        // The floors of all may be more than a small total.
        let floors = (self.replicas() - 1).saturating_mul(floor);
        self.claimed_by_others(place) > total.saturating_sub(floor).max(floors) && total > 0
    }

    /// The replica that claims most, if the others have claimed too much for a lease time: more than
    /// this one's floor leaves.
    #[must_use]
    pub fn most_greedy(&self, now: Instant) -> Option<&str> {
        let lasts = now.saturating_duration_since(self.crowded?);
        let place = (0..POOLS).find(|place| self.is_crowded(*place))?;
        let claimed = |peer: &PeerRecord| peer.claims.get(place).map(PoolClaim::claimed);
        let most = self.peers.iter().max_by_key(|(_, peer)| claimed(peer))?;
        (lasts >= self.lease_time).then_some(most.0)
    }

    /// Whether so much time has passed since the last step that another replica may have started, and
    /// taken this one to have dropped to its floor.
    fn has_hung(&mut self, now: Instant) -> bool {
        let last = self.stepped.replace(now);
        let lasts = self.lease_time.saturating_sub(DROP_MARGIN);
        last.is_some_and(|last| now.saturating_duration_since(last) >= lasts)
    }

    /// Whether no other replica takes this one to have dropped to its floor.
    fn is_confirmed(&self, now: Instant) -> bool {
        let lasts = self.lease_time.saturating_sub(DROP_MARGIN);
        let is_recent = |at: Instant| now.saturating_duration_since(at) < lasts;
        if self.superseded {
            return false;
        }
        if self.renewed.is_some_and(is_recent) || (self.joined && self.most_replicas == 1) {
            return true;
        }
        // The time of this message, or of one before it.
        let sent_at = |number: u64| {
            let later = self.sent.partition_point(|(sent, _)| *sent <= number);
            let sent = self.sent.get(later.checked_sub(1)?)?;
            Some(sent.1)
        };
        !self.peers.is_empty()
            && self.peers.values().all(|peer| {
                let at = peer.acknowledged.and_then(sent_at);
                at.is_some_and(is_recent)
            })
    }

    fn next_claim(&self, place: usize) -> Claim {
        let (input, mut claim) = (self.input(place), self.claim(place));
        let total = self.common_total(place, input.total);
        if !self.joined {
            claim.limit = self.floor(input.total);
            claim.wanted = claim.limit;
        } else if self.leaving {
            // Requests that arrived before still wait for seats.
            claim.limit = claim.limit.min(input.demand.max(input.in_use).max(1));
            claim.wanted = claim.limit;
        } else {
            let target = self.target(place, total).min(input.total);
            let target = target.max(self.least_share(place, total));
            claim.move_to(target, self, place);
        }
        claim.held = claim.limit.max(input.in_use);
        claim
    }

    fn slack(&self, total: u32) -> u32 {
        total / self.replicas().saturating_mul(SLACK_DIVISOR)
    }

    /// What no claim of the others takes from this replica.
    fn least_share(&self, place: usize, common_total: u32) -> u32 {
        match self.division {
            // Everything is in the Leases, also the totals of the others.
            Division::Even => self.floor(self.input(place).total),
            Division::ByDemand => self.floor(common_total),
        }
    }

    /// The least total that a replica is configured with, while configurations differ.
    fn common_total(&self, place: usize, own: u32) -> u32 {
        let others = self.peers.values().filter(|peer| !peer.expired);
        let totals = others.filter_map(|peer| peer.claims.get(place).map(|claim| claim.total));
        totals.filter(|total| *total > 0).fold(own, u32::min)
    }

    /// Whether each replica that may hold more than its floor has received message `number`.
    fn all_received(&self, number: u64) -> bool {
        let mut others = self.peers.values().filter(|peer| !peer.expired);
        others.all(|peer| peer.acknowledged.is_some_and(|received| received >= number))
    }

    fn claimed_by_others(&self, place: usize) -> u32 {
        let claims = self
            .peers
            .values()
            .filter_map(|peer| peer.claims.get(place));
        claims.fold(0, |sum: u32, claim| sum.saturating_add(claim.claimed()))
    }

    fn held_by_others(&self, place: usize) -> u32 {
        let others = self.peers.values();
        let claims = others.filter_map(|peer| peer.claims.get(place));
        claims.fold(0, |sum: u32, claim| {
            sum.saturating_add(claim.held.max(claim.floor))
        })
    }

    /// The share of this replica, once all others have theirs.
    fn target(&self, place: usize, total: u32) -> u32 {
        let own = self.own_claim(place);
        let mut names = vec![&self.id.name];
        let mut claimants = vec![self.claimant(&own, total)];
        let mut reserved: u32 = 0;
        for (name, peer) in &self.peers {
            let Some(claim) = peer.claims.get(place) else {
                continue;
            };
            if peer.expired || peer.leaving {
                reserved = reserved.saturating_add(claim.claimed());
                continue;
            }
            // In the order of names, which is the same for all replicas.
            let at = names.partition_point(|other| *other < name);
            names.insert(at, name);
            claimants.insert(at, self.claimant(claim, total));
        }
        let shares = divide(total.saturating_sub(reserved), &claimants);
        let place = names.iter().position(|name| **name == self.id.name);
        let share = place.and_then(|place| shares.get(place));
        share.copied().unwrap_or_default()
    }

    fn claimant(&self, claim: &PoolClaim, total: u32) -> Claimant {
        Claimant {
            demand: match self.division {
                Division::Even => total,
                Division::ByDemand => claim.demand,
            },
            // Replicas that have just started do not know their number yet, and those that have
            // seen more of them have a lower floor. The division needs one value.
            floor: claim.floor.min(floor_share(total, self.most_replicas)),
        }
    }

    /// Whether it has ever read the Leases.
    #[must_use]
    pub const fn has_joined(&self) -> bool {
        self.most_replicas > 0
    }

    /// The standing of this replica.
    #[must_use]
    pub fn standing(&self, now: Instant) -> Standing {
        if self.superseded {
            return Standing::Superseded;
        }
        if !self.joined {
            return match self.has_joined() {
                true => Standing::CutOff,
                false => Standing::Joining,
            };
        }
        match self.silent(now).next() {
            Some(_) => Standing::Waiting,
            None => Standing::Member,
        }
    }

    /// The replicas that have sent nothing for a while and may hold more than their floors.
    fn silent(&self, now: Instant) -> impl Iterator<Item = &str> {
        let limit = match self.division {
            Division::Even => self.lease_time,
            Division::ByDemand => SILENT_AFTER,
        };
        let is_silent = move |peer: &PeerRecord| now.saturating_duration_since(peer.heard) >= limit;
        let silent = self.peers.iter();
        silent
            .filter(move |(_, peer)| !peer.expired && is_silent(peer))
            .map(|(name, _)| name.as_str())
    }

    /// The process of a replica that has said that it takes levers.
    #[must_use]
    pub fn process_with_levers(&self, name: &str) -> Option<&str> {
        let peer = self.peers.get(name).filter(|peer| peer.levers)?;
        Some(&peer.instance)
    }

    /// Whether a replica has said that it answers requests for snapshots.
    #[must_use]
    pub fn sends_snapshots(&self, name: &str) -> bool {
        self.peers.get(name).is_some_and(|peer| peer.snapshots)
    }

    /// The other replicas, for the pages.
    #[must_use]
    pub fn peers(&self, now: Instant) -> Vec<PeerStatus> {
        let silent: Vec<&str> = self.silent(now).collect();
        let peers = self.peers.iter();
        let status = |(name, peer): (&String, &PeerRecord)| {
            let is_silent = silent.contains(&&**name);
            peer.status(name, is_silent, now)
        };
        peers.map(status).collect()
    }
}

impl Claim {
    /// Moves towards `target`: down at once, and up as far as the others have given up.
    fn move_to(&mut self, target: u32, view: &Agreement, place: usize) {
        let total = view.common_total(place, view.input(place).total);
        let room = total.saturating_sub(view.held_by_others(place));
        if target > self.limit {
            // Two that do not reach each other may both count on more: a third one that starts has
            // its floor nevertheless.
            self.limit = self.limit.min(room.max(view.least_share(place, total)));
            if target > self.wanted {
                self.announced = view.number + 1;
            }
            self.wanted = target;
            if view.all_received(self.announced) {
                let free = total.saturating_sub(view.claimed_by_others(place));
                self.limit = self.limit.max(target.min(free));
            }
            return;
        }
        // What is off by little stays, and moves nothing, as long as the total has room for it.
        let is_steady = self.wanted == self.limit && self.limit <= room;
        if !is_steady || self.limit - target > view.slack(total) {
            self.limit = target;
        }
        self.wanted = self.limit;
    }
}
