//! The `coordination.k8s.io/v1` Lease of a replica, as JSON. Pure.
//!
//! It says that the replica is there, and where its peers reach it. It is not a lock: each replica
//! has its own.
//!
//! It says nothing else where there are peer connections. State in Leases would cost etcd a write
//! for each replica and second under load, and would be gone together with the API server. For the
//! same reason acknowledgements of all other replicas are as good as a renewed Lease.
//!
//! A replica's name survives its process. A container that restarts takes its Lease over and has
//! its share again in seconds; a new name would leave the old share unused for a lease time.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::message::{ReplicaId, ReplicaMessage, check_name};

/// The label of the Leases of replicas that divide a total. Its value is their group.
const GROUP_LABEL: &str = "weir/replica-group";

/// The annotation with the replica's name.
const NAME_ANNOTATION: &str = "weir/replica-name";

/// The annotation with the address of its peer port.
const ADDRESS_ANNOTATION: &str = "weir/peer-address";

/// The annotation with its last message, where there are no peer connections.
const MESSAGE_ANNOTATION: &str = "weir/replica-message";

/// Where the Leases of a group are, and how long they last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseScope {
    /// The namespace.
    pub namespace: String,
    /// The replicas that divide a total.
    pub group: String,
    /// `spec.leaseDurationSeconds`.
    pub seconds: u64,
}

impl LeaseScope {
    /// The path of the namespace's Leases.
    #[must_use]
    pub fn path(&self) -> String {
        let namespace = &self.namespace;
        format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
    }

    /// The target that lists the group's Leases.
    #[must_use]
    pub fn list_target(&self) -> String {
        let (path, group) = (self.path(), &self.group);
        format!("{path}?labelSelector=weir%2Freplica-group%3D{group}")
    }

    /// The path of a replica's Lease.
    #[must_use]
    pub fn lease_path(&self, replica: &str) -> String {
        format!("{}/{}", self.path(), self.lease_name(replica))
    }

    /// The name of a replica's Lease.
    #[must_use]
    pub fn lease_name(&self, replica: &str) -> String {
        format!("{}.{replica}", self.group)
    }
}

/// What a replica writes into its Lease.
#[derive(Clone, Debug)]
pub struct LeaseContent<'a> {
    /// The process.
    pub id: &'a ReplicaId,
    /// Where its peers reach it.
    pub address: Option<SocketAddr>,
    /// Its last message, where there are no peer connections.
    pub message: Option<&'a ReplicaMessage>,
    /// The time, as a `metav1.MicroTime`.
    pub now: &'a str,
    /// When this process acquired the Lease, likewise.
    pub acquired: &'a str,
    /// How many processes have held it before.
    pub transitions: u64,
    /// The version that this one replaces; `None` to create it.
    pub replaces: Option<&'a str>,
}

impl LeaseContent<'_> {
    /// The object.
    #[must_use]
    pub fn to_object(&self, scope: &LeaseScope) -> Value {
        let name = &self.id.name;
        let mut annotations = Map::new();
        annotations.insert(NAME_ANNOTATION.to_owned(), name.as_str().into());
        if let Some(address) = self.address {
            annotations.insert(ADDRESS_ANNOTATION.to_owned(), address.to_string().into());
        }
        if let Some(message) = self.message {
            annotations.insert(MESSAGE_ANNOTATION.to_owned(), message.to_text().into());
        }
        let labels = json!({
            "app.kubernetes.io/managed-by": "weir",
            GROUP_LABEL: scope.group,
        });
        let mut metadata = Map::new();
        metadata.insert("name".to_owned(), scope.lease_name(name).into());
        metadata.insert("namespace".to_owned(), scope.namespace.as_str().into());
        metadata.insert("labels".to_owned(), labels);
        metadata.insert("annotations".to_owned(), annotations.into());
        if let Some(version) = self.replaces {
            metadata.insert("resourceVersion".to_owned(), version.into());
        }
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder(self.id),
                "leaseDurationSeconds": scope.seconds,
                "acquireTime": self.acquired,
                "renewTime": self.now,
                "leaseTransitions": self.transitions,
            },
        })
    }
}

fn holder(id: &ReplicaId) -> String {
    format!("{}_{}", id.name, id.instance)
}

/// A Lease as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLease {
    /// The process that holds it.
    pub id: ReplicaId,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `spec.renewTime`.
    pub renewed: String,
    /// `spec.leaseTransitions`.
    pub transitions: u64,
    /// Where the replica's peers reach it.
    pub address: Option<SocketAddr>,
    /// Its last message, if it is in the Lease.
    pub message: Option<ReplicaMessage>,
}

#[derive(Deserialize)]
struct LeaseList {
    #[serde(default)]
    items: Vec<Value>,
}

#[derive(Deserialize)]
struct RawLease {
    metadata: RawMetadata,
    #[serde(default)]
    spec: RawSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMetadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    holder_identity: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<u64>,
}

/// A Lease of a replica.
///
/// # Errors
/// The text is not a Lease that a weir has written.
pub fn parse_lease(scope: &LeaseScope, text: &[u8]) -> Result<StoredLease, String> {
    let lease: RawLease = serde_json::from_slice(text).map_err(|why| why.to_string())?;
    stored(scope, lease)
}

/// The Leases of a list, one for each replica, and what is wrong with those that are left out.
///
/// # Errors
/// The text is not a list.
pub fn parse_list(
    scope: &LeaseScope,
    text: &[u8],
) -> Result<(Vec<StoredLease>, Vec<String>), String> {
    let list: LeaseList = serde_json::from_slice(text).map_err(|why| why.to_string())?;
    let (mut leases, mut wrong) = (Vec::new(), Vec::new());
    for item in list.items {
        let lease = serde_json::from_value(item).map_err(|why| why.to_string());
        match lease.and_then(|lease| stored(scope, lease)) {
            Ok(lease) => leases.push(lease),
            Err(why) => wrong.push(why),
        }
    }
    Ok((leases, wrong))
}

fn stored(scope: &LeaseScope, lease: RawLease) -> Result<StoredLease, String> {
    let RawLease { metadata, spec } = lease;
    let annotation = |name: &str| metadata.annotations.get(name);
    let name = annotation(NAME_ANNOTATION).ok_or("no annotation weir/replica-name")?;
    check_name(name)?;
    // A replica has one Lease, which the others can delete when it is gone.
    let expected = scope.lease_name(name);
    if metadata.name != expected {
        let found = metadata.name;
        return Err(format!(
            "{found:?} is not the Lease of {name}, which is {expected}"
        ));
    }
    let holder = spec.holder_identity.unwrap_or_default();
    let instance = holder
        .strip_prefix(&**name)
        .and_then(|rest| rest.strip_prefix('_'))
        .ok_or_else(|| format!("the holder {holder:?} is no process of {name}"))?;
    let address = match annotation(ADDRESS_ANNOTATION) {
        Some(text) => {
            let address = text.parse();
            Some(address.map_err(|_| format!("{name}: the peer address {text:?} is not IP:PORT"))?)
        }
        None => None,
    };
    // One that another version wrote is as none: its writer counts as silent.
    let message = annotation(MESSAGE_ANNOTATION)
        .and_then(|text| ReplicaMessage::parse(text.as_bytes()).ok())
        .filter(|message| message.name == *name && message.instance == instance);
    Ok(StoredLease {
        id: ReplicaId {
            name: name.clone(),
            instance: instance.to_owned(),
        },
        resource_version: metadata.resource_version,
        renewed: spec.renew_time.unwrap_or_default(),
        transitions: spec.lease_transitions.unwrap_or_default(),
        address,
        message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> LeaseScope {
        LeaseScope {
            namespace: "weir-system".to_owned(),
            group: "weir".to_owned(),
            seconds: 30,
        }
    }

    fn id() -> ReplicaId {
        ReplicaId {
            name: "weir-0".to_owned(),
            instance: "a1".to_owned(),
        }
    }

    fn object() -> Value {
        let content = LeaseContent {
            id: &id(),
            address: "10.0.0.7:6445".parse().ok(),
            message: None,
            now: "2026-01-02T03:04:05.000006Z",
            acquired: "2026-01-02T03:04:00.000000Z",
            transitions: 2,
            replaces: Some("17"),
        };
        content.to_object(&scope())
    }

    #[test]
    fn a_lease_is_read_as_it_was_written() {
        let lease = parse_lease(&scope(), object().to_string().as_bytes()).unwrap();
        assert_eq!(lease.id, id());
        assert_eq!((&*lease.resource_version, lease.transitions), ("17", 2));
        assert_eq!(lease.renewed, "2026-01-02T03:04:05.000006Z");
        assert_eq!(lease.address, "10.0.0.7:6445".parse().ok());
        assert_eq!(object()["metadata"]["name"], "weir.weir-0");
        assert_eq!(object()["metadata"]["labels"][GROUP_LABEL], "weir");
    }

    #[test]
    fn foreign_leases_are_left_out_with_a_reason() {
        let mut foreign = object();
        foreign["spec"]["holderIdentity"] = "someone".into();
        let mut nameless = object();
        nameless["metadata"]["annotations"] = json!({});
        let mut lost = object();
        lost["metadata"]["annotations"][ADDRESS_ANNOTATION] = "there".into();
        let list = json!({ "items": [foreign, object(), nameless, lost, 7] });
        let (leases, wrong) = parse_list(&scope(), list.to_string().as_bytes()).unwrap();
        assert_eq!(leases.len(), 1);
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        assert!(wrong[0].contains("\"someone\" is no process of weir-0"));
        assert!(parse_list(&scope(), b"7").is_err());
    }

    #[test]
    fn a_lease_of_another_name_than_its_replicas_is_left_out() {
        let mut second = object();
        second["metadata"]["name"] = "anything".into();
        second["spec"]["holderIdentity"] = "weir-0_b2".into();
        let mut of_other_group = object();
        of_other_group["metadata"]["name"] = "staging.weir-0".into();
        let list = json!({ "items": [object(), second, of_other_group] });
        let (leases, wrong) = parse_list(&scope(), list.to_string().as_bytes()).unwrap();
        assert_eq!(leases.len(), 1);
        assert_eq!(leases[0].id, id(), "not the instance of the second one");
        assert_eq!(
            wrong[0],
            "\"anything\" is not the Lease of weir-0, which is weir.weir-0"
        );
    }
}
