//! Replicas in a simulation that loses and delays messages, cuts links and the way to the Leases,
//! stops and kills processes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::agreement::{Agreement, Division, PoolInput, Standing};
use crate::message::{POOLS, PoolClaim, Received, ReplicaId, ReplicaMessage};
use crate::peer::{LeaseEntry, PeerStatus};
use crate::shares::floor_share;
use weir_limits::auto_total::ProposedTotal;

const LEASE_TIME: Duration = Duration::from_secs(30);
const RENEWAL: u64 = 10_000;
const STEP: u64 = 250;

/// What arrives somewhere at a time.
enum MessageArrival {
    ReplicaMessage {
        from: usize,
        to: usize,
        message: Box<ReplicaMessage>,
    },
    /// The server renews the Lease.
    Renewal {
        from: usize,
        lease: Box<LeaseEntry>,
        sent: u64,
    },
    Renewed {
        to: usize,
        instance: String,
        sent: u64,
    },
    ListRequest {
        from: usize,
        sent: u64,
    },
    List {
        to: usize,
        sent: u64,
        leases: Vec<LeaseEntry>,
    },
}

struct SimulatedReplica {
    view: Agreement,
    demand: u32,
    in_use: u32,
    running: bool,
    paused: bool,
    /// Whether it reaches the Leases.
    has_server: bool,
    next_renewal: u64,
    /// When the last renewal was sent that it knows of.
    renewed: Option<u64>,
    has_both_faults: bool,
    restarts: u32,
}

struct ReplicaSimulation {
    rng: fastrand::Rng,
    start: Instant,
    now: u64,
    total: u32,
    replicas: Vec<SimulatedReplica>,
    cut: BTreeMap<(usize, usize), bool>,
    loss: f64,
    max_delay: u64,
    leases: BTreeMap<String, LeaseEntry>,
    versions: u64,
    arrivals: Vec<(u64, MessageArrival)>,
    division: Division,
}

fn name(replica: usize) -> String {
    format!("weir-{replica}")
}

impl ReplicaSimulation {
    fn new(seed: u64, total: u32, replicas: usize) -> Self {
        Self::with_division(seed, total, replicas, Division::ByDemand)
    }

    fn with_division(seed: u64, total: u32, replicas: usize, division: Division) -> Self {
        let mut simulation = Self {
            rng: fastrand::Rng::with_seed(seed),
            start: Instant::now(),
            now: 0,
            total,
            replicas: Vec::new(),
            cut: BTreeMap::new(),
            loss: 0.0,
            max_delay: 20,
            leases: BTreeMap::new(),
            versions: 0,
            arrivals: Vec::new(),
            division,
        };
        for _ in 0..replicas {
            simulation.add();
        }
        simulation
    }

    fn add(&mut self) {
        let id = ReplicaId {
            name: name(self.replicas.len()),
            instance: "0".to_owned(),
        };
        self.replicas.push(SimulatedReplica {
            view: Agreement::new(id, LEASE_TIME, self.division),
            demand: 0,
            in_use: 0,
            running: true,
            paused: false,
            has_server: true,
            next_renewal: self.now,
            renewed: None,
            has_both_faults: false,
            restarts: 0,
        });
    }

    fn kill(&mut self, replica: usize) {
        self.replicas[replica].running = false;
    }

    /// Shuts down, and deletes its Lease.
    fn end(&mut self, replica: usize) {
        self.replicas[replica].view.leave();
        self.run(Duration::from_secs(4));
        self.kill(replica);
        self.leases.remove(&name(replica));
    }

    /// Writes a Lease that is no replica's.
    fn forge(&mut self, message: ReplicaMessage) {
        let lease = LeaseEntry {
            id: ReplicaId {
                name: message.name.clone(),
                instance: message.instance.clone(),
            },
            version: self.now.to_string(),
            has_address: false,
            message: Some(message),
        };
        self.leases.insert(lease.id.name.clone(), lease);
    }

    fn restart(&mut self, replica: usize) {
        let one = &mut self.replicas[replica];
        one.restarts += 1;
        let id = ReplicaId {
            name: name(replica),
            instance: one.restarts.to_string(),
        };
        one.view = Agreement::new(id, LEASE_TIME, self.division);
        (one.running, one.paused, one.in_use) = (true, false, 0);
        (one.next_renewal, one.renewed, one.has_both_faults) = (self.now, None, false);
    }

    fn cut(&mut self, one: usize, other: usize, cut: bool) {
        self.cut.insert((one, other), cut);
        self.cut.insert((other, one), cut);
    }

    fn at(&self, time: u64) -> Instant {
        self.start + Duration::from_millis(time)
    }

    fn deliver(&mut self, arrival: MessageArrival) {
        if self.rng.f64() >= self.loss {
            let at = self.now + self.rng.u64(0..=self.max_delay);
            self.arrivals.push((at, arrival));
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + u64::try_from(time.as_millis()).unwrap();
        while self.now < end {
            self.step();
            for replica in 0..self.replicas.len() {
                self.replicas[replica].has_both_faults = self.has_both_faults(replica);
            }
            self.check();
            self.now += STEP;
        }
    }

    fn step(&mut self) {
        let mut due: Vec<(u64, MessageArrival)> = Vec::new();
        for arrival in std::mem::take(&mut self.arrivals) {
            match arrival.0 <= self.now {
                true => due.push(arrival),
                false => self.arrivals.push(arrival),
            }
        }
        due.sort_by_key(|(at, _)| *at);
        for (_, arrival) in due {
            self.arrive(arrival);
        }
        for replica in 0..self.replicas.len() {
            let one = &self.replicas[replica];
            if one.running && !one.paused {
                self.step_replica(replica);
            }
        }
    }

    fn step_replica(&mut self, replica: usize) {
        let (now, total) = (self.at(self.now), self.total);
        let one = &mut self.replicas[replica];
        let mut inputs = [PoolInput::default(); POOLS];
        // Requests end slowly: a fifth of them in a step.
        one.in_use = one.demand.min(one.view.limits()[0]).max(one.in_use * 4 / 5);
        inputs[0] = PoolInput {
            total,
            demand: one.demand,
            in_use: one.in_use,
        };
        let changed = one.view.step(now, inputs);
        if self.division == Division::ByDemand && (changed || self.now.is_multiple_of(1000)) {
            self.send(replica);
        }
        let division = self.division;
        let one = &mut self.replicas[replica];
        if self.now >= one.next_renewal {
            let id = one.view.id().clone();
            // Sooner after a failure, which is not known here.
            one.next_renewal = self.now + RENEWAL / 4;
            if one.has_server {
                let sent = self.now;
                // Without connections, the Lease has the message.
                let message =
                    (division == Division::Even).then(|| one.view.next_message(now, None));
                let lease = Box::new(LeaseEntry {
                    id,
                    version: String::new(),
                    has_address: division == Division::ByDemand,
                    message,
                });
                self.deliver(MessageArrival::Renewal {
                    from: replica,
                    lease,
                    sent,
                });
                self.deliver(MessageArrival::ListRequest {
                    from: replica,
                    sent,
                });
            }
        }
    }

    fn send(&mut self, from: usize) {
        let now = self.at(self.now);
        let message = Box::new(self.replicas[from].view.next_message(now, None));
        for to in 0..self.replicas.len() {
            let cut = self.cut.get(&(from, to)).copied().unwrap_or_default();
            // It knows the addresses from the Leases.
            if to != from && !cut && self.leases.contains_key(&name(to)) {
                self.deliver(MessageArrival::ReplicaMessage {
                    from,
                    to,
                    message: message.clone(),
                });
            }
        }
    }

    fn arrive(&mut self, arrival: MessageArrival) {
        let now = self.at(self.now);
        match arrival {
            MessageArrival::ReplicaMessage { from, to, message } => {
                let one = &mut self.replicas[to];
                if one.running && !one.paused {
                    one.view.receive(&message, now);
                } else if one.running {
                    // It is read when the process continues.
                    self.arrivals.push((
                        self.now + STEP,
                        MessageArrival::ReplicaMessage { from, to, message },
                    ));
                }
            }
            MessageArrival::Renewal {
                from,
                mut lease,
                sent,
            } => {
                if self.replicas[from].view.id().instance == lease.id.instance {
                    let instance = lease.id.instance.clone();
                    self.versions += 1;
                    lease.version = self.versions.to_string();
                    self.leases.insert(name(from), *lease);
                    self.deliver(MessageArrival::Renewed {
                        to: from,
                        instance,
                        sent,
                    });
                }
            }
            MessageArrival::Renewed { to, instance, sent } => {
                let sent_at = self.at(sent);
                let one = &mut self.replicas[to];
                if one.running && !one.paused && one.view.id().instance == instance {
                    one.view.renewed(sent_at, now);
                    one.renewed = Some(sent);
                }
            }
            MessageArrival::ListRequest { from, sent } => {
                let leases = self.leases.values().cloned().collect();
                self.deliver(MessageArrival::List {
                    to: from,
                    sent,
                    leases,
                });
            }
            MessageArrival::List { to, sent, leases } => {
                let sent = self.at(sent);
                let one = &mut self.replicas[to];
                if one.running && !one.paused {
                    one.view.set_leases(sent, now, leases);
                }
            }
        }
    }

    /// All may use the total, the floors of those that the others may not know, and one share where
    /// two faults come together: what docs/replicas.md states.
    fn check(&self) {
        let now = self.at(self.now);
        let (mut sum, mut bound, mut share) = (0, self.total, 0);
        for one in self.active() {
            let limit = one.view.limits()[0];
            sum += limit;
            let cut_off = matches!(one.view.standing(now), Standing::Joining | Standing::CutOff);
            let most = floor_share(self.total, 1);
            // One that has no more than its floor has claimed it.
            let claimed = if limit <= most { limit } else { 0 };
            let mut floor = limit.min(most);
            if !cut_off && self.is_known_to_all(&one.view.id().name, claimed) {
                floor = 0;
            }
            bound += floor;
            if !cut_off && one.has_both_faults {
                share = share.max(limit - floor);
            }
        }
        bound += share;
        assert!(
            sum <= bound,
            "{sum} of {bound} after {} ms: {}",
            self.now,
            self.show()
        );
    }

    fn active(&self) -> impl Iterator<Item = &SimulatedReplica> {
        let replicas = self.replicas.iter();
        replicas.filter(|one| one.running && !one.paused)
    }

    /// Whether this replica could not renew its Lease for a lease time while there was another one
    /// that it does not know: one that has started meanwhile and cannot reach it. This is over when
    /// they know each other and what this one claims.
    fn has_both_faults(&self, replica: usize) -> bool {
        let one = &self.replicas[replica];
        let name = &one.view.id().name;
        let lease_time = u64::try_from(LEASE_TIME.as_millis()).unwrap();
        let lease_ended = one.renewed.is_none_or(|sent| self.now >= sent + lease_time);
        let known = one.view.peers(self.at(self.now));
        let misses_one = self.active().any(|other| {
            let other = &other.view.id().name;
            other != name && known.iter().all(|peer| peer.name != *other)
        });
        let goes_on = misses_one || !self.is_known_to_all(name, one.view.limits()[0]);
        (lease_ended && misses_one) || (one.has_both_faults && goes_on)
    }

    /// Whether all others have received a message of this replica, and its last claim is as large.
    fn is_known_to_all(&self, name: &str, claimed: u32) -> bool {
        self.active().all(|one| {
            let peers = one.view.peers(self.at(self.now));
            let known = |peer: &PeerStatus| {
                let claim = peer.claims[0];
                peer.name == name && claim.total > 0 && claim.claimed() >= claimed
            };
            one.view.id().name == name || peers.iter().any(known)
        })
    }

    fn show(&self) -> String {
        let replicas = self.replicas.iter();
        let shown = replicas.map(|one| {
            let (limit, now) = (one.view.limits()[0], self.at(self.now));
            let standing = one.view.standing(now);
            format!("{limit} ({standing:?}, running {})", one.running)
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    fn limits(&self) -> Vec<u32> {
        self.replicas
            .iter()
            .map(|one| one.view.limits()[0])
            .collect()
    }
}

/// A message of the first process of a replica, with the same claim of each total.
fn message_of(name: &str, number: u64, claim: PoolClaim) -> ReplicaMessage {
    let id = ReplicaId {
        name: name.to_owned(),
        instance: "0".to_owned(),
    };
    let proposed = ProposedTotal {
        seats: 1,
        is_measured: true,
    };
    let pools = [claim; POOLS];
    ReplicaMessage::new(id, number, pools, BTreeMap::new(), false, Some(proposed))
}

fn claim_of(total: u32, seats: u32) -> PoolClaim {
    PoolClaim {
        total,
        demand: seats,
        held: seats,
        wanted: seats,
        floor: 1,
    }
}

/// What is off by one seat in these totals is left as it is.
fn assert_even(limits: &[u32], share: u32) {
    let near = |limit: &u32| limit.abs_diff(share) <= 1;
    assert!(limits.iter().all(near), "{limits:?}");
}

#[test]
fn three_replicas_follow_a_skewed_demand_within_three_seconds() {
    let mut simulation = ReplicaSimulation::new(1, 60, 3);
    simulation.run(Duration::from_secs(20));
    assert_even(&simulation.limits(), 20);
    for (one, demand) in simulation.replicas.iter_mut().zip([90, 5, 5]) {
        one.demand = demand;
    }
    simulation.run(Duration::from_secs(3));
    let limits = simulation.limits();
    assert!(limits[0] >= 45, "{}", simulation.show());
    assert!(limits.iter().sum::<u32>() <= 60);
}

#[test]
fn the_share_of_a_killed_replica_goes_to_the_others_after_a_lease_time_but_for_its_floor() {
    let mut simulation = ReplicaSimulation::new(2, 60, 3);
    simulation.run(Duration::from_secs(20));
    simulation.kill(2);
    simulation.run(LEASE_TIME - Duration::from_secs(1));
    assert_even(&simulation.limits()[..2], 20);
    simulation.run(RENEWAL_AND_A_BIT);
    let floor = floor_share(60, 3);
    let limits = simulation.limits();
    assert!(
        limits[0] + limits[1] >= 60 - floor - 1,
        "{}",
        simulation.show()
    );
    simulation.restart(2);
    simulation.run(Duration::from_secs(6));
    assert_even(&simulation.limits(), 20);
}

const RENEWAL_AND_A_BIT: Duration = Duration::from_secs(14);

#[test]
fn a_replica_without_leases_keeps_its_share_while_all_others_answer() {
    let mut simulation = ReplicaSimulation::new(3, 60, 3);
    simulation.run(Duration::from_secs(20));
    for one in &mut simulation.replicas {
        one.has_server = false;
    }
    simulation.run(Duration::from_secs(300));
    assert_even(&simulation.limits(), 20);
}

#[test]
fn a_replica_without_leases_and_without_one_of_the_others_falls_to_its_floor_in_time() {
    let mut simulation = ReplicaSimulation::new(4, 60, 3);
    simulation.run(Duration::from_secs(20));
    simulation.replicas[2].has_server = false;
    simulation.cut(0, 2, true);
    simulation.run(LEASE_TIME);
    assert_eq!(simulation.limits()[2], floor_share(60, 3));
    assert_eq!(
        simulation.replicas[2]
            .view
            .standing(simulation.at(simulation.now)),
        Standing::CutOff
    );
    simulation.run(RENEWAL_AND_A_BIT);
    simulation.replicas[2].has_server = true;
    simulation.cut(0, 2, false);
    simulation.run(Duration::from_secs(10));
    assert_even(&simulation.limits(), 20);
}

#[test]
fn a_replica_that_has_never_seen_another_keeps_the_total() {
    let mut simulation = ReplicaSimulation::new(5, 60, 1);
    simulation.run(Duration::from_secs(20));
    simulation.replicas[0].has_server = false;
    simulation.run(Duration::from_secs(100));
    assert_eq!(simulation.limits(), [60]);
}

#[test]
fn a_replica_that_leaves_gives_its_seats_back_as_its_requests_end() {
    let mut simulation = ReplicaSimulation::new(6, 60, 2);
    for one in &mut simulation.replicas {
        one.demand = 40;
    }
    simulation.run(Duration::from_secs(20));
    assert_even(&simulation.limits(), 30);
    simulation.replicas[1].view.leave();
    simulation.replicas[1].demand = 0;
    simulation.run(Duration::from_secs(8));
    let limits = simulation.limits();
    assert_eq!(limits[1], 1);
    assert!(limits[0] >= 60 - floor_share(60, 2), "{limits:?}");
}

#[test]
fn without_connections_three_replicas_share_evenly_by_their_leases() {
    let mut simulation = ReplicaSimulation::with_division(7, 60, 3, Division::Even);
    simulation.replicas[0].demand = 90;
    simulation.run(Duration::from_secs(20));
    assert_even(&simulation.limits(), 20);
    simulation.kill(1);
    simulation.run(LEASE_TIME + RENEWAL_AND_A_BIT);
    let limits = simulation.limits();
    assert!(
        limits[0] + limits[2] >= 60 - floor_share(60, 3) - 2,
        "{limits:?}"
    );
}

#[test]
fn the_total_in_a_lease_is_not_divided_where_there_are_connections() {
    let mut simulation = ReplicaSimulation::new(8, 60, 3);
    simulation.run(Duration::from_secs(20));
    for number in 0..8 {
        simulation.forge(message_of("zz", number, claim_of(1, 1)));
        simulation.run(Duration::from_secs(5));
    }
    let limits = simulation.limits();
    assert!(limits.iter().all(|limit| *limit >= 14), "{limits:?}");
    simulation.run(LEASE_TIME + RENEWAL_AND_A_BIT);
    assert_even(&simulation.limits(), 20);
}

#[test]
fn a_claim_in_a_lease_takes_no_floor_and_is_noticed() {
    for division in [Division::ByDemand, Division::Even] {
        let mut simulation = ReplicaSimulation::with_division(9, 600, 3, division);
        simulation.run(Duration::from_secs(20));
        let total = match division {
            Division::ByDemand => 600,
            Division::Even => 1,
        };
        for number in 0_u64..12 {
            let seats = if number.is_multiple_of(2) {
                600
            } else {
                u32::MAX
            };
            simulation.forge(message_of("zz", number, claim_of(total, seats)));
            simulation.run(Duration::from_secs(5));
        }
        let floor = floor_share(600, 4);
        let limits = simulation.limits();
        assert!(limits.iter().all(|limit| *limit >= floor), "{limits:?}");
        let now = simulation.at(simulation.now);
        let greedy = simulation.replicas[0].view.most_greedy(now);
        assert_eq!(greedy, Some("zz"), "{division:?}");
        // Its Lease ends: what is left of the claim is a floor.
        simulation.run(LEASE_TIME + RENEWAL_AND_A_BIT);
        let now = simulation.at(simulation.now);
        assert_eq!(simulation.replicas[0].view.most_greedy(now), None);
        if division == Division::ByDemand {
            assert!(simulation.limits().iter().sum::<u32>() > 550);
        }
    }
}

#[test]
fn replicas_that_share_are_not_greedy() {
    for division in [Division::ByDemand, Division::Even] {
        for total in [5, 60, 600] {
            let mut simulation = ReplicaSimulation::with_division(10, total, 5, division);
            for one in &mut simulation.replicas {
                one.demand = 2 * total;
            }
            simulation.run(2 * LEASE_TIME);
            let now = simulation.at(simulation.now);
            for one in &simulation.replicas {
                assert_eq!(one.view.most_greedy(now), None, "{}", simulation.show());
            }
        }
    }
}

/// A replica that has read this Lease of another one, `weir-1`.
fn reader_of(message: Option<ReplicaMessage>, has_address: bool, now: Instant) -> Agreement {
    let id = |name: &str| ReplicaId {
        name: name.to_owned(),
        instance: "0".to_owned(),
    };
    let mut view = Agreement::new(id("weir-0"), LEASE_TIME, Division::ByDemand);
    view.renewed(now, now);
    let lease = LeaseEntry {
        id: id("weir-1"),
        version: "1".to_owned(),
        has_address,
        message,
    };
    view.set_leases(now, now, vec![lease]);
    view
}

#[test]
fn a_lease_says_only_what_a_replica_without_connections_claims() {
    let now = Instant::now();
    for (has_address, held) in [(false, 30), (true, 0)] {
        let message = message_of("weir-1", 1, claim_of(60, 30));
        let view = reader_of(Some(message), has_address, now);
        let claim = view.peers(now)[0].claims[0];
        assert_eq!((claim.held, claim.total), (held, 0));
        assert_eq!(view.proposals(), []);
        assert_eq!(view.process_with_levers("weir-1"), None);
        assert!(!view.sends_snapshots("weir-1"));
        let mut view = view;
        assert!(view.receive(&message_of("weir-1", 2, claim_of(60, 30)), now));
        assert_eq!(view.peers(now)[0].claims[0], claim_of(60, 30));
        assert_eq!(view.process_with_levers("weir-1"), Some("0"));
    }
}

#[test]
fn no_message_in_a_lease_overtakes_those_of_a_connection() {
    let now = Instant::now();
    let forged = message_of("weir-1", u64::MAX, claim_of(60, 60));
    let mut view = reader_of(Some(forged.clone()), false, now);
    for number in [7, 8] {
        assert!(view.receive(&message_of("weir-1", number, claim_of(60, 20)), now));
    }
    assert_eq!(view.peers(now)[0].claims[0].held, 20);
    let lease = LeaseEntry {
        id: ReplicaId {
            name: "weir-1".to_owned(),
            instance: "0".to_owned(),
        },
        version: "2".to_owned(),
        has_address: false,
        message: Some(forged),
    };
    view.set_leases(now, now, vec![lease]);
    assert_eq!(view.peers(now)[0].claims[0].held, 20);
}

#[test]
fn a_replica_without_a_lease_counts_only_while_the_leases_cannot_be_read() {
    let now = Instant::now();
    let mut view = reader_of(None, true, now);
    let unknown = message_of("weir-2", 1, claim_of(60, 20));
    assert!(!view.receive(&unknown, now));
    assert_eq!(view.peers(now).len(), 1);
    assert!(view.receive(&unknown, now + LEASE_TIME));
    assert_eq!(view.peers(now).len(), 2);
}

#[test]
fn the_floor_follows_fewer_replicas_once_the_others_reserve_it() {
    let mut simulation = ReplicaSimulation::new(11, 600, 6);
    simulation.run(Duration::from_secs(20));
    // One of the others receives no announcement of a higher floor.
    simulation.cut(0, 1, true);
    for replica in 3..6 {
        simulation.end(replica);
    }
    simulation.run(Duration::from_secs(20));
    assert_eq!(simulation.replicas[0].view.floor(600), floor_share(600, 6));
    simulation.cut(0, 1, false);
    simulation.run(Duration::from_secs(4));
    for replica in 0..3 {
        simulation.replicas[replica].has_server = false;
        assert_eq!(
            simulation.replicas[replica].view.floor(600),
            floor_share(600, 3)
        );
    }
    simulation.cut(0, 1, true);
    simulation.cut(1, 2, true);
    simulation.cut(0, 2, true);
    simulation.run(LEASE_TIME);
    assert_eq!(simulation.limits()[..3], [floor_share(600, 3); 3]);
}

#[test]
fn a_higher_floor_is_announced_when_the_share_is_as_large_and_used_when_that_is_acknowledged() {
    let now = Instant::now();
    let mut view = reader_of(None, true, now);
    let lease = |name: &str| LeaseEntry {
        id: ReplicaId {
            name: name.to_owned(),
            instance: "0".to_owned(),
        },
        version: "1".to_owned(),
        has_address: true,
        message: None,
    };
    let mut inputs = [PoolInput::default(); POOLS];
    inputs[0].total = 600;
    view.set_leases(now, now, vec![lease("weir-1"), lease("weir-2")]);
    view.step(now, inputs);
    view.set_leases(now, now, vec![lease("weir-1")]);
    view.step(now, inputs);
    let mut number = 0;
    // The floor that the replica announces, and the one that it uses, after an acknowledgement.
    let mut after_acknowledgement = |view: &mut Agreement| {
        let message = view.next_message(now, None);
        number += 1;
        let received = Received {
            instance: "0".to_owned(),
            number: message.number,
        };
        let mut answer = message_of("weir-1", number, claim_of(600, 300));
        answer.received.insert("weir-0".to_owned(), received);
        view.receive(&answer, now);
        view.step(now, inputs);
        (message.pools[0].floor, view.floor(600))
    };
    let (before, after) = (floor_share(600, 3), floor_share(600, 2));
    assert_eq!(view.limits()[0], 0);
    assert_eq!(after_acknowledgement(&mut view), (before, before));
    assert!(view.limits()[0] >= after, "{:?}", view.limits());
    view.step(now, inputs);
    assert_eq!(after_acknowledgement(&mut view), (after, after));
}

#[test]
fn the_floor_of_an_idle_replica_follows_although_the_others_need_everything() {
    let mut simulation = ReplicaSimulation::new(12, 600, 12);
    simulation.replicas[0].demand = 5000;
    simulation.run(Duration::from_secs(20));
    for replica in 2..12 {
        simulation.end(replica);
    }
    simulation.run(Duration::from_secs(20));
    assert_eq!(simulation.replicas[1].view.floor(600), floor_share(600, 2));
    assert!(simulation.limits()[..2].iter().sum::<u32>() <= 600);
}

#[test]
fn in_any_weather_all_together_stay_within_the_total_and_share_all_of_it_afterwards() {
    for round in 0..60 {
        let seed = fastrand::u64(..);
        println!("round {round}, seed {seed}");
        weather(seed, Division::ByDemand);
        weather(seed, Division::Even);
    }
}

fn weather(seed: u64, division: Division) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (count, total) = (rng.usize(1..7), rng.u32(40..700));
    let mut simulation = ReplicaSimulation::with_division(seed, total, count, division);
    for _ in 0..40 {
        let replica = rng.usize(..count);
        match rng.u8(..10) {
            0 => simulation.kill(replica),
            1 => simulation.restart(replica),
            2 => simulation.replicas[replica].paused ^= true,
            3 | 4 => {
                let other = rng.usize(..count);
                simulation.cut(replica, other, rng.bool());
            }
            5 => simulation.replicas[replica].has_server ^= true,
            6 => simulation.loss = rng.f64() * 0.6,
            7 => simulation.max_delay = rng.u64(0..4000),
            8 => simulation.end(replica),
            _ => {}
        }
        for one in &mut simulation.replicas {
            if rng.u8(..3) == 0 {
                one.demand = rng.u32(..total * 2);
            }
        }
        simulation.run(Duration::from_millis(rng.u64(100..40_000)));
    }
    simulation.cut.clear();
    (simulation.loss, simulation.max_delay) = (0.0, 20);
    for replica in 0..count {
        let one = &mut simulation.replicas[replica];
        (one.has_server, one.paused) = (true, false);
        if !one.running {
            simulation.restart(replica);
        }
    }
    simulation.run(Duration::from_secs(100));
    let sum: u32 = simulation.limits().iter().sum();
    let slack = u32::try_from(count).unwrap() + total / 16;
    assert!(
        sum + slack >= total,
        "{sum} of {total}: {}",
        simulation.show()
    );
}
