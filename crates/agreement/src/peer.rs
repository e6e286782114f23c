//! What a replica knows of another one. Pure.

use std::time::{Duration, Instant};

use crate::message::{POOLS, PoolClaim, ReplicaId, ReplicaMessage};
use weir_limits::auto_total::ProposedTotal;

/// A replica's Lease, as a list of them has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseEntry {
    /// The replica and the process that holds the Lease.
    pub id: ReplicaId,
    /// Changes when the Lease is renewed.
    pub version: String,
    /// Whether it names an address for peer connections.
    pub has_address: bool,
    /// What it says, if it says something.
    pub message: Option<ReplicaMessage>,
}

/// Another replica.
#[derive(Clone, Debug)]
pub(crate) struct PeerRecord {
    pub(crate) instance: String,
    /// Whether a connection has brought a message of this process: from then on, those in its Lease
    /// do not count.
    pub(crate) is_connected: bool,
    /// The number of its last message; `None` before the first one of its process.
    pub(crate) number: Option<u64>,
    pub(crate) claims: [PoolClaim; POOLS],
    /// What it proposes as the total of all, if it finds one.
    pub(crate) proposed: Option<ProposedTotal>,
    /// When its last message was received, or it was first known.
    pub(crate) heard: Instant,
    /// The last of this replica's messages that it has received.
    pub(crate) acknowledged: Option<u64>,
    pub(crate) lease: String,
    /// When the Lease was first seen as it is.
    pub(crate) lease_changed: Instant,
    /// Whether a list that began a lease time later had the same Lease.
    pub(crate) lease_ended: bool,
    /// Whether it has surely dropped to its floor.
    pub(crate) expired: bool,
    pub(crate) leaving: bool,
    /// Whether it answers requests for snapshots.
    pub(crate) snapshots: bool,
    /// Whether it takes levers.
    pub(crate) levers: bool,
}

impl PeerRecord {
    /// A replica that is known since `now`, and has sent nothing yet.
    pub(crate) fn new(instance: &str, now: Instant) -> Self {
        Self {
            instance: instance.to_owned(),
            is_connected: false,
            number: None,
            claims: [PoolClaim::default(); POOLS],
            proposed: None,
            heard: now,
            acknowledged: None,
            lease: String::new(),
            lease_changed: now,
            lease_ended: false,
            expired: false,
            leaving: false,
            snapshots: false,
            levers: false,
        }
    }

    /// The process that holds the Lease. The claims of the one before stay until this one says what
    /// it holds.
    pub(crate) fn set_instance(&mut self, instance: String, now: Instant) {
        if self.instance == instance {
            return;
        }
        self.instance = instance;
        self.is_connected = false;
        self.number = None;
        self.acknowledged = None;
        self.leaving = false;
        self.snapshots = false;
        self.levers = false;
        self.expired = false;
        self.heard = now;
    }

    /// The state of the Lease. Returns whether it has changed.
    pub(crate) fn set_lease(&mut self, version: String, now: Instant) -> bool {
        if self.lease == version {
            return false;
        }
        self.lease = version;
        self.lease_changed = now;
        self.lease_ended = false;
        if self.expired {
            // It is at its floor, and takes no more before it has received an acknowledgement.
            self.expired = false;
            self.heard = now;
        }
        true
    }

    /// It has surely dropped to its floor.
    pub(crate) fn expire(&mut self) {
        self.expired = true;
        for claim in &mut self.claims {
            claim.held = claim.floor;
            claim.wanted = claim.floor;
            claim.demand = 0;
        }
    }

    /// What is shown of it, under this name.
    #[must_use]
    pub(crate) fn status(&self, name: &str, silent: bool, now: Instant) -> PeerStatus {
        PeerStatus {
            name: name.to_owned(),
            claims: self.claims,
            finds_total: self.proposed.is_some(),
            silent,
            expired: self.expired,
            leaving: self.leaving,
            takes_levers: self.levers,
            lease_unchanged: now.saturating_duration_since(self.lease_changed),
        }
    }
}

/// Another replica, for the pages.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Its last claims.
    pub claims: [PoolClaim; POOLS],
    /// Whether it finds the total by itself.
    pub finds_total: bool,
    /// Whether it has sent nothing for a while.
    pub silent: bool,
    /// Whether it has dropped to its floor, which is reserved.
    pub expired: bool,
    /// Whether it is shutting down.
    pub leaving: bool,
    /// Whether it takes levers of others.
    pub takes_levers: bool,
    /// How long its Lease is as it is.
    pub lease_unchanged: Duration,
}

impl PeerStatus {
    /// The word for its state.
    #[must_use]
    pub const fn state(&self) -> &'static str {
        match (self.expired, self.leaving, self.silent) {
            (true, _, _) => "expired",
            (_, true, _) => "leaving",
            (_, _, true) => "silent",
            _ => "live",
        }
    }
}

/// The replica at the other end of a connection, once it has said its name.
#[derive(Debug, Default)]
pub struct PeerName(Option<String>);

impl PeerName {
    /// Accepts one name: a connection is that of one replica.
    ///
    /// # Errors
    /// It is another name than before.
    pub fn check(&mut self, name: &str) -> Result<(), String> {
        let first = self.0.get_or_insert_with(|| name.to_owned());
        match first == name {
            true => Ok(()),
            false => Err(format!("{first} gives another name: {name}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_that_of_one_replica() {
        let mut peer = PeerName::default();
        assert_eq!(peer.check("weir-0"), Ok(()));
        assert_eq!(peer.check("weir-0"), Ok(()));
        let why = peer.check("weir-1").unwrap_err();
        assert_eq!(why, "weir-0 gives another name: weir-1");
    }
}
