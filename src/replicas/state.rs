//! What the tasks of the replicas share: the agreement, the addresses of the others, and what is
//! shown.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use crate::limits::levers::Levers;
use crate::limits::limiters::{Limiters, PoolUse};
use crate::limits::total_finder::TotalFinder;
use crate::replicas::config::{Membership, ReplicaConfig};
use crate::replicas::metrics::ReplicaMetrics;
use weir_agreement::agreement::{Agreement, Division, PoolInput, Standing};
use weir_agreement::message::{POOLS, ReplicaId, ReplicaMessage};
use weir_agreement::peer::PeerStatus;
use weir_limits::levers::LimitShare;

/// The demand of a replica is the most of its last samples, of which there are four a second: a
/// share that followed each pause of a client would never be there when the client goes on.
const DEMAND_SAMPLES: usize = 20;

/// What the tasks share. Locks are held for one step; nothing is awaited under them.
#[derive(Debug)]
pub(crate) struct ReplicaState {
    pub(super) config: ReplicaConfig,
    pub(super) id: ReplicaId,
    limiters: Arc<Limiters>,
    finder: Arc<TotalFinder>,
    levers: Arc<Levers>,
    metrics: ReplicaMetrics,
    inner: Mutex<Inner>,
    /// Notified when the Leases are to be read now.
    pub(super) list_now: Notify,
    /// Changes when the others should learn of this replica's claims at once.
    pub(super) pulse: watch::Sender<u64>,
    /// Where the other replicas are reached, by name.
    pub(super) addresses: watch::Sender<BTreeMap<String, SocketAddr>>,
}

#[derive(Debug)]
struct Inner {
    agreement: Agreement,
    demands: [Demand; POOLS],
    /// Why the Leases cannot be read or written.
    lease_failure: Option<String>,
    /// Whether weir may not use Leases, and uses all of the totals as if it were alone.
    is_off: bool,
    shown: Option<Standing>,
}

/// The last samples of what a limiter could use.
#[derive(Debug, Default)]
struct Demand {
    samples: VecDeque<u32>,
    rejected: u64,
}

impl Demand {
    /// Adds a sample, and returns the most of the last ones.
    fn sample(&mut self, pool: &PoolUse) -> u32 {
        let rejected = pool.rejected.saturating_sub(self.rejected);
        self.rejected = pool.rejected;
        // A rejected request could have used a slot.
        let rejected = u32::try_from(rejected).unwrap_or(u32::MAX);
        let demand = pool.in_use.saturating_add(pool.waiting);
        self.samples.push_back(demand.saturating_add(rejected));
        if self.samples.len() > DEMAND_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.iter().copied().max().unwrap_or_default()
    }
}

/// The division as one replica sees it, for operators.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaReport {
    /// The name of this replica.
    pub(crate) name: String,
    /// Its standing; `None` if it may not use Leases.
    pub(crate) standing: Option<Standing>,
    /// Why the Leases cannot be read or written.
    pub(crate) lease_failure: Option<String>,
    /// Whether weir finds the total by itself.
    pub(crate) finds_total: bool,
    /// For each total: what is in force of all replicas, and what this replica may use.
    pub(crate) pools: [(u32, u32); POOLS],
    /// The others.
    pub(crate) peers: Vec<PeerStatus>,
    /// The replica that claims most, if the others leave this one no more than its floor.
    pub(crate) most_greedy: Option<String>,
}

impl ReplicaReport {
    /// What keeps this replica from sharing the totals with all others.
    #[must_use]
    pub(crate) fn failure(&self) -> Option<String> {
        let lease = self.lease_failure.clone().unwrap_or_default();
        let silent = self.peers.iter().filter(|peer| peer.silent);
        let silent: Vec<_> = silent.map(|peer| &*peer.name).collect();
        let why = match self.standing {
            Some(Standing::Member) => match &self.most_greedy {
                Some(name) => format!(
                    "the others, {name} most of all, claim so much that this one has no more than its floor"
                ),
                None => return self.lease_failure.clone(),
            },
            None => "this one uses all of the totals".to_owned(),
            Some(Standing::Joining) => {
                "this one has not read the Leases yet and uses its floor".to_owned()
            }
            Some(Standing::Waiting) => {
                let silent = silent.join(", ");
                format!("no message of {silent}; shares do not grow until their Leases end")
            }
            Some(Standing::CutOff) => {
                "this one is cut off from its Lease and from others and uses its floor".to_owned()
            }
            Some(Standing::Superseded) => {
                "another process has this replica's Lease; this one uses its floor".to_owned()
            }
        };
        Some(match lease.is_empty() {
            true => why,
            false => format!("{why}: {lease}"),
        })
    }
}

impl ReplicaState {
    /// The state of a replica that has just started, whose limiters have no more than its floor.
    pub(super) fn new(
        config: ReplicaConfig,
        id: ReplicaId,
        limiters: &Arc<Limiters>,
        finder: &Arc<TotalFinder>,
        levers: &Arc<Levers>,
        metrics: ReplicaMetrics,
    ) -> Arc<Self> {
        let division = match config.peers {
            Some(_) => Division::ByDemand,
            None => Division::Even,
        };
        let state = Self {
            inner: Mutex::new(Inner {
                agreement: Agreement::new(id.clone(), config.lease_time, division),
                demands: <[Demand; POOLS]>::default(),
                lease_failure: None,
                is_off: false,
                shown: None,
            }),
            config,
            id,
            limiters: Arc::clone(limiters),
            finder: Arc::clone(finder),
            levers: Arc::clone(levers),
            metrics,
            list_now: Notify::new(),
            pulse: watch::Sender::new(0),
            addresses: watch::Sender::default(),
        };
        Arc::new(state)
    }

    /// Moves the shares on, and applies them.
    pub(super) fn step(&self, now: Instant) {
        let others = self.inner.lock().agreement.proposals();
        self.finder.set_others(now, others);
        let pools = self.limiters.pools();
        let mut inner = self.inner.lock();
        let mut inputs = [PoolInput::default(); POOLS];
        for ((input, pool), demand) in inputs.iter_mut().zip(pools).zip(&mut inner.demands) {
            *input = PoolInput {
                total: pool.total,
                demand: demand.sample(&pool).min(pool.total),
                in_use: pool.in_use.saturating_sub(pool.rounding),
            };
        }
        if inner.agreement.step(now, inputs) {
            self.pulse.send_modify(|pulse| *pulse += 1);
        }
        let standing = inner.agreement.standing(now);
        let limits = inner.agreement.limits();
        let shares = (!inner.is_off).then_some(limits);
        self.limiters.set_shares(now, shares);
        let peers = inner.agreement.peers(now);
        self.levers.set_share(limit_share(&self.id.name, &peers));
        let standing = (!inner.is_off).then_some(standing);
        self.metrics.show(standing, &peers, limits, inputs);
        if standing != inner.shown {
            log_standing(standing, &peers);
            inner.shown = standing;
        }
    }

    /// Takes in a message of another replica.
    pub(super) fn receive(&self, message: &ReplicaMessage, now: Instant) {
        if !self.inner.lock().agreement.receive(message, now) {
            self.list_now.notify_one(); // perhaps another process has its Lease now
        }
    }

    /// The next message to the others.
    pub(super) fn next_message(&self, now: Instant) -> ReplicaMessage {
        let proposed = self.finder.proposal(now);
        self.inner.lock().agreement.next_message(now, proposed)
    }

    /// Whether a replica has said that it answers requests for snapshots.
    pub(super) fn sends_snapshots(&self, name: &str) -> bool {
        self.inner.lock().agreement.sends_snapshots(name)
    }

    /// The process of a replica that has said that it takes levers.
    pub(super) fn process_with_levers(&self, name: &str) -> Option<String> {
        let inner = self.inner.lock();
        let process = inner.agreement.process_with_levers(name);
        process.map(ToOwned::to_owned)
    }

    /// Counts an exchange that this replica began.
    pub(super) fn exchanged(&self, ok: bool) {
        self.metrics.exchanged(ok);
    }

    /// Counts a snapshot that this replica requested.
    pub(super) fn snapshot_requested(&self, ok: bool) {
        self.metrics.snapshot_requested(ok);
    }

    /// Changes the agreement.
    pub(super) fn update(&self, change: impl FnOnce(&mut Agreement)) {
        change(&mut self.inner.lock().agreement);
    }

    /// The Leases were read and written.
    pub(super) fn lease_succeeded(&self) {
        let mut inner = self.inner.lock();
        if inner.lease_failure.take().is_some() {
            info!("the Leases of replicas can be read and written again");
        }
        inner.is_off = false;
    }

    /// The Leases cannot be read or written. `denied`: weir may not, whenever it tries. Returns
    /// whether the totals are not divided therefore.
    pub(super) fn lease_failed(&self, why: String, denied: bool) -> bool {
        let mut inner = self.inner.lock();
        self.metrics.lease_failed();
        let is_new = inner.lease_failure.as_ref() != Some(&why);
        let is_first = !inner.agreement.has_joined();
        if denied && is_first && self.config.membership == Membership::Auto {
            if !inner.is_off {
                warn!(
                    "the totals are not divided among replicas, each of which uses all of them: {why}"
                );
            }
            inner.is_off = true;
        } else if is_new {
            warn!("membership of the replicas: {why}");
        }
        inner.lease_failure = Some(why);
        inner.is_off
    }

    /// What is shown.
    #[must_use]
    pub(crate) fn report(&self, now: Instant) -> ReplicaReport {
        let totals = self.limiters.pools().map(|pool| pool.total);
        let inner = self.inner.lock();
        let mut pools = [(0, 0); POOLS];
        for ((pool, total), limit) in pools.iter_mut().zip(totals).zip(inner.agreement.limits()) {
            *pool = match inner.is_off {
                true => (total, total),
                false => (total, limit),
            };
        }
        let standing = inner.agreement.standing(now);
        ReplicaReport {
            name: self.id.name.clone(),
            standing: (!inner.is_off).then_some(standing),
            lease_failure: inner.lease_failure.clone(),
            finds_total: self.finder.found().is_some(),
            pools,
            peers: inner.agreement.peers(now),
            most_greedy: inner.agreement.most_greedy(now).map(ToOwned::to_owned),
        }
    }
}

/// How what levers admit is divided: among this replica and those that take its levers.
fn limit_share(own: &str, peers: &[PeerStatus]) -> LimitShare {
    let others = peers.iter().filter(|peer| {
        let is_there = !peer.expired && !peer.leaving;
        is_there && peer.takes_levers
    });
    let (mut replicas, mut rank) = (1, 0);
    for peer in others {
        replicas += 1;
        rank += u32::from(*peer.name < *own);
    }
    LimitShare { replicas, rank }
}

fn log_standing(standing: Option<Standing>, peers: &[PeerStatus]) {
    let others = peers.len();
    match standing {
        None => {}
        Some(Standing::Joining) => info!("replicas: reading the Leases; this one uses its floor"),
        Some(Standing::Member) => info!(others, "replicas: the totals are divided"),
        Some(Standing::Waiting) => {
            let silent = peers.iter().filter(|peer| peer.silent);
            let silent: Vec<_> = silent.map(|peer| &*peer.name).collect();
            let silent = silent.join(", ");
            warn!(%silent, "replicas: some are silent; shares do not grow until their Leases end");
        }
        Some(Standing::CutOff) => warn!(
            others,
            "replicas: this one is cut off from its Lease and from others, and uses its floor"
        ),
        Some(Standing::Superseded) => warn!(
            "replicas: another process has this replica's Lease; this one uses its floor. Without \
             a hand-over: give each replica a --replica-name of its own"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_whose_floor_others_claim_has_a_failure() {
        let mut report = ReplicaReport {
            name: "weir-0".to_owned(),
            standing: Some(Standing::Member),
            lease_failure: None,
            finds_total: false,
            pools: [(600, 50); POOLS],
            peers: Vec::new(),
            most_greedy: None,
        };
        assert_eq!(report.failure(), None);
        report.most_greedy = Some("weir-1".to_owned());
        let failure = report.failure().unwrap();
        assert!(failure.contains("weir-1 most of all"), "{failure}");
    }
}
