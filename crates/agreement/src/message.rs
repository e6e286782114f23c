//! What a replica says to the others: what it needs, what it holds, and what it has received. Pure.
//!
//! The same text goes over a peer connection and, where there are none, into the annotation of the
//! replica's Lease.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::shares::floor_share;
use weir_limits::auto_total::ProposedTotal;

/// The totals that are divided: the seats of priority and fairness, and the slots of max-in-flight
/// for read-only and for mutating requests.
pub const POOLS: usize = 3;

/// The names of the totals, in metrics and on pages.
pub const POOL_NAMES: [&str; POOLS] = ["seats", "read-only", "mutating"];

/// The most replicas that divide a total. A message has an acknowledgement for each of them.
pub const MAX_REPLICAS: usize = 256;

/// The largest message in bytes: [`MAX_REPLICAS`] acknowledgements, with names of 63 bytes, take
/// half of it.
pub const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// The longest name of a replica, as of a DNS label, which a host name is.
pub const MAX_NAME_BYTES: usize = 63;

/// The version of the protocol. A message of another version is refused.
const VERSION: u32 = 1;

/// One message. Each has a higher number than those before it from the same process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaMessage {
    version: u32,
    /// The replica.
    pub name: String,
    /// Its process: another one after a restart.
    pub instance: String,
    /// The number of the message.
    pub number: u64,
    /// Whether it is shutting down.
    #[serde(default)]
    pub leaving: bool,
    /// Whether it answers requests for snapshots. Versions before these leave it out.
    #[serde(default)]
    pub snapshots: bool,
    /// Whether it takes levers. Versions before these leave it out.
    #[serde(default)]
    pub levers: bool,
    /// What it proposes as the total of all, if it finds one (`--max-requests-inflight=auto`).
    #[serde(default)]
    pub proposed: Option<ProposedTotal>,
    /// For each of [`POOL_NAMES`].
    pub pools: [PoolClaim; POOLS],
    /// The last message of each other replica that it has received, by name.
    #[serde(default)]
    pub received: BTreeMap<String, Received>,
}

/// A replica's part in one total. All numbers are seats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolClaim {
    /// What is divided, by the replica's configuration. Zero if it does not limit by it.
    pub total: u32,
    /// What it could use now.
    pub demand: u32,
    /// What it may use or still uses.
    pub held: u32,
    /// What it wants to hold.
    pub wanted: u32,
    /// What it falls back to when it is cut off.
    pub floor: u32,
}

impl PoolClaim {
    /// What others must not use.
    #[must_use]
    pub fn claimed(&self) -> u32 {
        self.held.max(self.wanted).max(self.floor)
    }
}

/// The last message that was received of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// The process.
    pub instance: String,
    /// The number of the message.
    pub number: u64,
}

impl ReplicaMessage {
    /// The message with this content.
    #[must_use]
    pub fn new(
        id: ReplicaId,
        number: u64,
        pools: [PoolClaim; POOLS],
        received: BTreeMap<String, Received>,
        leaving: bool,
        proposed: Option<ProposedTotal>,
    ) -> Self {
        Self {
            version: VERSION,
            name: id.name,
            instance: id.instance,
            number,
            leaving,
            snapshots: true,
            levers: true,
            proposed,
            pools,
            received,
        }
    }

    /// The message with nothing but what the replica claims and has received.
    #[must_use]
    pub(crate) fn only_claims(mut self) -> Self {
        for claim in &mut self.pools {
            claim.total = 0;
        }
        Self {
            proposed: None,
            snapshots: false,
            levers: false,
            ..self
        }
    }

    /// Reads a message. A floor is at most that of a replica alone.
    ///
    /// # Errors
    /// It is not a message of this version, or larger than it may be.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > MAX_MESSAGE_BYTES {
            let size = text.len();
            return Err(format!(
                "{size} bytes; a message has {MAX_MESSAGE_BYTES} at most"
            ));
        }
        let mut message: Self = serde_json::from_slice(text).map_err(|why| why.to_string())?;
        if message.version != VERSION {
            let version = message.version;
            return Err(format!(
                "version {version}; this weir speaks version {VERSION}"
            ));
        }
        let names = message.received.keys().chain([&message.name]);
        for name in names {
            check_name(name)?;
        }
        let instances = message.received.values().map(|received| &received.instance);
        if instances
            .chain([&message.instance])
            .any(|instance| instance.is_empty() || instance.len() > MAX_NAME_BYTES)
        {
            return Err(format!("an instance has 1 to {MAX_NAME_BYTES} bytes"));
        }
        if message.received.len() > MAX_REPLICAS {
            return Err(format!("more than {MAX_REPLICAS} replicas"));
        }
        for claim in &mut message.pools {
            claim.floor = claim.floor.min(floor_share(claim.total, 1));
        }
        Ok(message)
    }

    /// The message as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // strings and numbers are always valid
    }
}

/// Whether a replica can have this name: it becomes a part of the name of its Lease.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_end = |byte: Option<&u8>| byte.is_some_and(|byte| is_alphanumeric(*byte));
    let bytes = name.as_bytes();
    let is_label = bytes.len() <= MAX_NAME_BYTES
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes
            .iter()
            .all(|byte| is_alphanumeric(*byte) || matches!(byte, b'-' | b'.'));
    if is_label {
        return Ok(());
    }
    Err(format!(
        "{name:?} is not a name of a replica: 1 to {MAX_NAME_BYTES} lower-case letters, digits, \
         '-' and '.', with a letter or digit at both ends"
    ))
}

const fn is_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// A process of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaId {
    /// The replica: the same after a restart.
    pub name: String,
    /// The process.
    pub instance: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> ReplicaMessage {
        let id = ReplicaId {
            name: "weir-0".to_owned(),
            instance: "a1".to_owned(),
        };
        let received = Received {
            instance: "b7".to_owned(),
            number: 3,
        };
        let pools = [PoolClaim::default(); POOLS];
        ReplicaMessage::new(
            id,
            9,
            pools,
            [("weir-1".to_owned(), received)].into(),
            false,
            None,
        )
    }

    #[test]
    fn a_message_is_read_as_it_was_written_and_fields_of_later_versions_are_ignored() {
        let text = message().to_text();
        assert_eq!(ReplicaMessage::parse(text.as_bytes()), Ok(message()));
        let later = text.replacen('{', r#"{"more":[1],"#, 1);
        assert_eq!(ReplicaMessage::parse(later.as_bytes()), Ok(message()));
    }

    #[test]
    fn a_floor_is_at_most_that_of_a_replica_alone() {
        let text = message().to_text();
        let claim = r#"{"total":600,"demand":9,"held":300,"wanted":300,"floor":4294967295}"#;
        let claims = format!("\"pools\":[{claim},{claim},{claim}]");
        let start = text.find("\"pools\"").unwrap();
        let end = text.find(",\"received\"").unwrap();
        let text = format!("{}{claims}{}", &text[..start], &text[end..]);
        let message = ReplicaMessage::parse(text.as_bytes()).unwrap();
        assert_eq!(message.pools[0].floor, 150);
        assert_eq!(message.pools[0].claimed(), 300);
    }

    #[test]
    fn a_message_that_is_not_one_is_refused_with_a_reason() {
        let text = message().to_text();
        for (from, to, reason) in [
            ("\"version\":1", "\"version\":2", "version 2"),
            ("weir-1", "Weir-1", "not a name of a replica"),
            ("weir-0", "../x", "not a name of a replica"),
            ("\"a1\"", "\"\"", "1 to 63 bytes"),
            ("\"number\":9", "\"number\":-9", "invalid value"),
            ("\"demand\":0", "\"demand\":4294967296", "invalid value"),
        ] {
            let changed = text.replace(from, to);
            assert_ne!(changed, text, "{from}");
            let why = ReplicaMessage::parse(changed.as_bytes()).unwrap_err();
            assert!(why.contains(reason), "{why}");
        }
        let long = " ".repeat(MAX_MESSAGE_BYTES + 1);
        assert!(ReplicaMessage::parse(long.as_bytes()).is_err());
        assert!(ReplicaMessage::parse(b"").is_err());
    }
}
