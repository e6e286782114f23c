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

use crate::keyed::AsTheyAre;

/// A flow: a keyed hash of the user's name and of what classified the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow(pub u64);

/// A user, or a source network of unauthenticated requests: a keyed hash. One owner has half of the places, so that a storm of one user is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub u64);

/// A flow, and whose share of the places its refusals take, if anybody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedFlow {
    /// The flow.
    pub flow: Flow,
    /// The owner; `None` where many clients cannot be told apart.
    pub owner: Option<Owner>,
}

/// One owner has this part of the places at most.
pub const PART_OF_OWNER: usize = 2;

/// A flow that was refused on more connections than this is known on new ones, too: client-go opens one, a browser six,
/// and a few processes share a user.
const FEW_CONNECTIONS: u8 = 8;

/// After this long without a refusal a flow's connections are counted anew.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// Most flows in a generation; two are kept. An entry takes less than 64 bytes.
const FLOWS: usize = 32_768;

/// Times that are remembered of a flow on a connection with several requests at a time: so many of them can wait as they were
/// told, each by itself, beside one that does not. Whoever does not wait hears as many refusals in a `Retry-After`, and no more;
/// on a connection with one request at a time it is the same client that comes again, and hears one.
const TIMES: usize = 4;

/// Flows that are remembered on one connection: more users than a front proxy's connection has at a time that are all
/// refused. The oldest goes first.
const FLOWS_A_CONNECTION: usize = 16;

/// How long a client is to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// From when it hears the refusal.
    pub time: Duration,
    /// Those of its flow that are held already go first, each this long after the one before.
    pub in_turn: bool,
    /// Longest that it is held, whatever its flow was told before; `None`: only by what all are.
    pub most: Option<Duration>,
}

impl Wait {
    /// Of a refusal with this `Retry-After`, which may be over at any moment: held for no longer than that.
    #[must_use]
    pub const fn at_most(retry_after: Duration) -> Self {
        Self {
            time: retry_after,
            in_turn: false,
            most: Some(retry_after),
        }
    }
}

/// When a refusal is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At once: it did not come too early, or there is no more room for holding.
    AtOnce,
    /// Not before this.
    At(Instant),
}

/// What is remembered of a connection: until when each of its flows was told to wait, the earliest first.
#[derive(Debug, Default)]
pub struct Told {
    flows: Vec<(Flow, Vec<Instant>)>,
    /// Some flow is not remembered any more: one that seems to be new may have been here.
    forgot: bool,
    held: usize,
}

/// What is remembered of a flow.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Until when somebody of it was told to wait.
    until: Instant,
    /// On how many connections it was refused, counted up to a few more than matter.
    connections: u8,
}

/// What is held, and what is known of flows. `T` wakes who waits.
#[derive(Debug)]
pub struct Holds<T> {
    longest: Duration,
    most: usize,
    /// Those of late, and those of before: what both have lost is forgotten.
    flows: [HashMap<Flow, Known, AsTheyAre>; 2],
    /// In the order in which they came.
    held: BTreeMap<Ticket, (Holder, T)>,
    held_by_flow: HashMap<Flow, usize, AsTheyAre>,
    held_by_owner: HashMap<Owner, usize, AsTheyAre>,
    next: Ticket,
}

/// Of which flow a refusal is held, and whose share of the places it takes.
type Holder = (Flow, Option<Owner>);

/// A place among the held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

impl<T> Holds<T> {
    /// Holds for `longest` at most, and `most` at a time.
    #[must_use]
    pub fn new(longest: Duration, most: usize) -> Self {
        Self {
            longest,
            most,
            flows: [HashMap::default(), HashMap::default()],
            held: BTreeMap::new(),
            held_by_flow: HashMap::default(),
            held_by_owner: HashMap::default(),
            next: Ticket(0),
        }
    }

    /// A request of `flow` is refused at `now`, and is to wait.
    ///
    /// `told` is its connection's, on which at most `at_a_time` are held.
    pub fn refuse(
        &mut self,
        told: &mut Told,
        flow: Flow,
        now: Instant,
        wait: Wait,
        at_a_time: usize,
    ) -> When {
        let before = match self.held_by_flow.get(&flow) {
            Some(held) if wait.in_turn => u32::try_from(*held).unwrap_or(u32::MAX),
            _ => 0,
        };
        let known = self.known(flow, now);
        let room = told.held < at_a_time;
        let is_new = told.is_new(flow);
        let times = told.times(flow);
        if is_new {
            known.connections = known.connections.saturating_add(1);
        }
        let many = known.connections > FEW_CONNECTIONS;
        let until = match times.first() {
            Some(earliest) => Some(*earliest),
            None if many => Some(known.until),
            None => None,
        };
        let longest = wait
            .most
            .map_or(self.longest, |most| most.min(self.longest));
        let when = match until {
            Some(until) if until > now && room => {
                let turn = now + wait.time.saturating_mul(before).min(longest);
                When::At(until.max(turn).min(now + longest))
            }
            _ => When::AtOnce,
        };
        let said = match when {
            When::At(at) => at,
            When::AtOnce => now,
        };
        // Who waited has used up his time; who did not uses up nobody else's, as long as there is room.
        let remembered = if at_a_time > 1 { TIMES } else { 1 };
        if !times.is_empty() && (when == When::AtOnce || times.len() >= remembered) {
            times.remove(0);
        }
        insert(times, said + wait.time);
        let known = self.known(flow, now);
        known.until = known.until.max(said + wait.time);
        when
    }

    /// One that was to be told at `at` to come back after `retry_after` is told at `now` already.
    pub fn told_early(
        told: &mut Told,
        flow: Flow,
        at: Instant,
        now: Instant,
        retry_after: Duration,
    ) {
        let times = told.times(flow);
        if let Some(place) = times.iter().position(|time| *time == at + retry_after) {
            times.remove(place);
            insert(times, now + retry_after);
        }
    }

    /// Whether another refusal of this owner may be held: one has half of the places.
    #[must_use]
    pub fn has_place(&self, owner: Option<Owner>) -> bool {
        owner
            .and_then(|owner| self.held_by_owner.get(&owner))
            .is_none_or(|held| *held < (self.most / PART_OF_OWNER).max(1))
    }

    /// Holds one of a flow; what was held longest is let go if there are too many.
    pub fn enter(&mut self, told: &mut Told, holder: Holder, wakes: T) -> (Ticket, Option<T>) {
        let ticket = self.next;
        self.next = Ticket(ticket.0 + 1);
        self.held.insert(ticket, (holder, wakes));
        let (flow, owner) = holder;
        *self.held_by_flow.entry(flow).or_default() += 1;
        if let Some(owner) = owner {
            *self.held_by_owner.entry(owner).or_default() += 1;
        }
        told.held += 1;
        let let_go = (self.held.len() > self.most)
            .then(|| self.held.pop_first())
            .flatten();
        (
            ticket,
            let_go.map(|(_, (holder, wakes))| self.gone(holder, wakes)),
        )
    }

    /// It is held no more: its time is over, its client has gone, or it was let go.
    pub fn leave(&mut self, told: &mut Told, ticket: Ticket) {
        told.held = told.held.saturating_sub(1);
        if let Some((holder, wakes)) = self.held.remove(&ticket) {
            self.gone(holder, wakes);
        }
    }

    /// How many are held, and of how many flows.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        (self.held.len(), self.held_by_flow.len())
    }

    fn gone(&mut self, (flow, owner): Holder, wakes: T) -> T {
        one_less(&mut self.held_by_flow, flow);
        if let Some(owner) = owner {
            one_less(&mut self.held_by_owner, owner);
        }
        wakes
    }

    fn known(&mut self, flow: Flow, now: Instant) -> &mut Known {
        let [late, before] = &mut self.flows;
        if late.len() >= FLOWS && !late.contains_key(&flow) {
            *before = mem::take(late);
        }
        let remembered = before.remove(&flow);
        let known = late.entry(flow).or_insert_with(|| {
            remembered.unwrap_or(Known {
                until: now,
                connections: 0,
            })
        });
        if now.saturating_duration_since(known.until) > FORGOTTEN_AFTER {
            known.connections = 0;
        }
        known
    }
}

impl Told {
    /// Whether this flow was surely never refused on the connection.
    fn is_new(&self, flow: Flow) -> bool {
        !self.forgot && self.flows.iter().all(|(told, _)| *told != flow)
    }

    fn times(&mut self, flow: Flow) -> &mut Vec<Instant> {
        let place = self.flows.iter().position(|(told, _)| *told == flow);
        let (_, times) = match place {
            Some(place) => {
                let known = self.flows.remove(place);
                self.flows.push_mut(known)
            }
            None => {
                if self.flows.len() >= FLOWS_A_CONNECTION {
                    self.flows.remove(0);
                    self.forgot = true;
                }
                self.flows.push_mut((flow, Vec::new()))
            }
        };
        times
    }
}

/// Counts one less; what comes to none is forgotten.
fn one_less<K: Eq + Hash>(counts: &mut HashMap<K, usize, AsTheyAre>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

fn insert(times: &mut Vec<Instant>, time: Instant) {
    let place = times.partition_point(|earlier| *earlier <= time);
    times.insert(place, time);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);
    const ONE: Flow = Flow(1);
    const WAIT: Wait = Wait {
        time: SECOND,
        in_turn: false,
        most: None,
    };

    fn holds() -> Holds<u32> {
        Holds::new(SECOND, 3)
    }

    #[test]
    fn who_waits_as_told_never_notices() {
        let (mut holds, mut told, mut now) = (holds(), Told::default(), Instant::now());
        for _ in 0..100 {
            assert_eq!(holds.refuse(&mut told, ONE, now, WAIT, 1), When::AtOnce);
            now += SECOND;
        }
    }

    #[test]
    fn who_comes_back_early_is_told_when_its_time_is_over_and_not_before_every_time() {
        for (at_a_time, most) in [(1, 100), (2, 100 * TIMES)] {
            let (mut holds, mut told, now) = (holds(), Told::default(), Instant::now());
            let mut refuse = |at| holds.refuse(&mut told, ONE, at, WAIT, at_a_time);
            assert_eq!(refuse(now), When::AtOnce);
            assert_eq!(refuse(now + MS), When::At(now + SECOND));
            // Again and again at once: not told more often than those who wait would be.
            let (mut at, mut times) = (now + SECOND, 0);
            while at < now + 100 * SECOND {
                at = match refuse(at + MS) {
                    When::At(at) => at,
                    When::AtOnce => at + MS,
                };
                times += 1;
            }
            assert!(times <= most, "{times} of {most}");
        }
    }

    #[test]
    fn who_waits_is_not_held_because_another_of_his_flow_came_in_between() {
        let (mut holds, mut told, now) = (holds(), Told::default(), Instant::now());
        let refuse = |holds: &mut Holds<u32>, told: &mut Told, at| match holds
            .refuse(told, ONE, at, WAIT, 4)
        {
            When::AtOnce => at,
            When::At(at) => at,
        };
        // Three that wait as they are told, from when they first came.
        let mut next = [now, now + 100 * MS, now + 200 * MS];
        for first in &mut next {
            *first = refuse(&mut holds, &mut told, *first) + SECOND;
        }
        for _ in 0..50 {
            next.sort();
            let due = next[0] + MS;
            assert_eq!(refuse(&mut holds, &mut told, due), due, "held");
            next[0] = due + SECOND;
        }
    }

    #[test]
    fn who_was_told_early_may_come_early() {
        let (mut holds, mut told, now) = (holds(), Told::default(), Instant::now());
        holds.refuse(&mut told, ONE, now, WAIT, 2);
        let When::At(at) = holds.refuse(&mut told, ONE, now + MS, WAIT, 2) else {
            panic!("it came early");
        };
        holds.refuse(&mut told, ONE, now + SECOND, WAIT, 2); // the first one, as told
        Holds::<u32>::told_early(&mut told, ONE, at, now + 10 * MS, SECOND);
        let when = holds.refuse(&mut told, ONE, now + 10 * MS + SECOND, WAIT, 2);
        assert_eq!(when, When::AtOnce);
    }

    #[test]
    fn no_hold_is_longer_than_the_longest() {
        let (mut holds, mut told, now) = (holds(), Told::default(), Instant::now());
        let wait = Wait {
            time: 20 * SECOND,
            ..WAIT
        };
        holds.refuse(&mut told, ONE, now, wait, 1);
        let when = holds.refuse(&mut told, ONE, now + MS, wait, 1);
        assert_eq!(when, When::At(now + MS + SECOND));
    }

    #[test]
    fn what_may_be_over_at_any_moment_is_held_for_its_own_retry_after_at_most() {
        let (mut told, now) = (Told::default(), Instant::now());
        let mut holds = Holds::<u32>::new(30 * SECOND, 1000);
        let wait = Wait::at_most(SECOND);
        // More at a time than are told apart, and all of them early: the flow's times go on and on.
        let mut last = now;
        for _ in 0..50 {
            if let When::At(at) = holds.refuse(&mut told, ONE, now + MS, wait, 100) {
                last = last.max(at);
            }
        }
        assert_eq!(last, now + MS + SECOND);
        // A limit's rejection goes by what its flow was told.
        for _ in 0..50 {
            if let When::At(at) = holds.refuse(&mut told, ONE, now + MS, WAIT, 100) {
                last = last.max(at);
            }
        }
        assert!(last > now + MS + SECOND);
    }

    #[test]
    fn another_flow_of_the_connection_is_another_client() {
        let (mut holds, mut told, now) = (holds(), Told::default(), Instant::now());
        holds.refuse(&mut told, ONE, now, WAIT, 1);
        let when = holds.refuse(&mut told, Flow(2), now + MS, WAIT, 1);
        assert_eq!(when, When::AtOnce);
    }

    #[test]
    fn a_flow_is_known_on_new_connections_once_it_has_used_more_than_eight() {
        let (mut holds, now) = (holds(), Instant::now());
        for n in 0..8 {
            let when = holds.refuse(&mut Told::default(), ONE, now + n * MS, WAIT, 1);
            assert_eq!(when, When::AtOnce, "connection {n}");
        }
        let ninth = holds.refuse(&mut Told::default(), ONE, now + 8 * MS, WAIT, 1);
        assert_eq!(ninth, When::At(now + 7 * MS + SECOND));
        let other = holds.refuse(&mut Told::default(), Flow(2), now + 8 * MS, WAIT, 1);
        assert_eq!(other, When::AtOnce);
    }

    #[test]
    fn on_a_connection_of_its_own_who_waits_is_not_held_for_what_its_flow_does_elsewhere() {
        let (mut holds, mut patient, now) = (holds(), Told::default(), Instant::now());
        assert_eq!(holds.refuse(&mut patient, ONE, now, WAIT, 1), When::AtOnce);
        for n in 0..100 {
            holds.refuse(&mut Told::default(), ONE, now + n * MS, WAIT, 1);
        }
        let when = holds.refuse(&mut patient, ONE, now + SECOND, WAIT, 1);
        assert_eq!(when, When::AtOnce);
    }

    #[test]
    fn a_flow_that_was_quiet_for_long_begins_anew() {
        let (mut holds, now) = (holds(), Instant::now());
        for _ in 0..20 {
            holds.refuse(&mut Told::default(), ONE, now, WAIT, 1);
        }
        let later = now + 2 * SECOND + FORGOTTEN_AFTER + MS;
        for _ in 0..8 {
            let when = holds.refuse(&mut Told::default(), ONE, later, WAIT, 1);
            assert_eq!(when, When::AtOnce);
        }
    }

    #[test]
    fn one_connection_with_more_flows_than_are_remembered_is_not_taken_for_many() {
        let (mut holds, mut told, mut now) = (holds(), Told::default(), Instant::now());
        for _ in 0..20 {
            for flow in 0..20 {
                assert_eq!(
                    holds.refuse(&mut told, Flow(flow), now, WAIT, 1),
                    When::AtOnce
                );
            }
            now += SECOND;
        }
        for flow in 0..20 {
            let mut another = Told::default();
            let early = now - SECOND / 2;
            let when = holds.refuse(&mut another, Flow(flow), early, WAIT, 1);
            assert_eq!(when, When::AtOnce, "{flow} was refused on one connection");
        }
    }

    #[test]
    fn only_so_many_of_a_connection_are_held() {
        let (mut holds, mut told, now) = (holds(), Told::default(), Instant::now());
        holds.refuse(&mut told, ONE, now, WAIT, 2);
        let mut tickets = Vec::new();
        for n in 1..=2 {
            let when = holds.refuse(&mut told, ONE, now + MS, WAIT, 2);
            assert_ne!(when, When::AtOnce);
            tickets.push(holds.enter(&mut told, (ONE, None), n).0);
        }
        let when = holds.refuse(&mut told, ONE, now + MS, WAIT, 2);
        assert_eq!(when, When::AtOnce);
        holds.leave(&mut told, tickets[0]);
        let when = holds.refuse(&mut told, ONE, now + MS, WAIT, 2);
        assert_ne!(when, When::AtOnce);
    }

    #[test]
    fn the_longest_held_is_let_go_when_there_are_too_many_and_nothing_stays_behind() {
        let (mut holds, mut told) = (holds(), Told::default());
        let mut tickets = Vec::new();
        for n in 0..5 {
            let (ticket, let_go) = holds.enter(&mut told, (Flow(u64::from(n % 2)), None), n);
            tickets.push(ticket);
            assert_eq!(let_go, n.checked_sub(3));
            assert!(holds.held().0 <= 3);
        }
        assert_eq!(holds.held(), (3, 2));
        for ticket in tickets {
            holds.leave(&mut told, ticket);
        }
        assert_eq!((holds.held(), told.held), ((0, 0), 0));
        assert!(holds.held_by_flow.is_empty());
    }

    #[test]
    fn one_owner_has_half_of_the_places_by_whatever_flows() {
        let (mut holds, mut told) = (Holds::new(SECOND, 4), Told::default());
        let (alice, bob) = (Some(Owner(1)), Some(Owner(2)));
        let mut tickets = Vec::new();
        for flow in 0..2 {
            assert!(holds.has_place(alice));
            let (ticket, let_go) = holds.enter(&mut told, (Flow(flow), alice), 0);
            assert_eq!(let_go, None);
            tickets.push(ticket);
        }
        assert!(!holds.has_place(alice));
        assert!(holds.has_place(bob) && holds.has_place(None));
        holds.leave(&mut told, tickets[0]);
        assert!(holds.has_place(alice));
        holds.leave(&mut told, tickets[1]);
        assert!(holds.held_by_owner.is_empty(), "nothing stays behind");
    }

    #[test]
    fn of_a_rate_one_goes_after_the_other() {
        let (mut holds, now) = (Holds::new(SECOND, 100), Instant::now());
        let wait = Wait {
            time: 2 * MS,
            in_turn: true,
            ..WAIT
        };
        let mut connections: Vec<_> = (0..8).map(|_| Told::default()).collect();
        let mut said = Vec::new();
        for told in &mut connections {
            holds.refuse(told, ONE, now, wait, 1);
            match holds.refuse(told, ONE, now, wait, 1) {
                When::At(at) => said.push(at - now),
                When::AtOnce => panic!("it came early"),
            }
            holds.enter(told, (ONE, None), 0);
        }
        let expected: Vec<_> = [1, 1, 2, 3, 4, 5, 6, 7].map(|n| n * 2 * MS).into();
        assert_eq!(said, expected);
    }

    #[test]
    fn what_is_remembered_is_bounded_however_many_flows_come() {
        let (mut holds, now) = (holds(), Instant::now());
        let mut told = Told::default();
        for n in 0..200_000 {
            holds.refuse(&mut told, Flow(n), now, WAIT, 1);
        }
        let remembered: usize = holds.flows.iter().map(HashMap::len).sum();
        assert!(remembered <= 2 * FLOWS, "{remembered}");
        assert_eq!(told.flows.len(), FLOWS_A_CONNECTION);
        assert!(size_of::<(Flow, Known)>() <= 64);
    }
}
