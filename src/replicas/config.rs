//! The configuration of the division among replicas.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::sign::CertifiedKey;

use weir_x509::CertificatePool;

/// The most connections at the peer port: for messages, snapshots and levers one of each replica, and
/// some that are being replaced.
pub const MAX_CONNECTIONS: usize = 1024;

/// The most connections at the peer port whose handshake is not complete. Until then it is not known
/// what connects, and such connections must not take the places of the others.
pub const MAX_HANDSHAKES: usize = 256;

/// The most of these from one address.
pub const MAX_HANDSHAKES_PER_ADDRESS: usize = 16;

/// How replicas learn of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membership {
    /// By Leases; where weir may not use them, it is as without replicas.
    Auto,
    /// By Leases; until they are read, a replica uses its floor.
    Leases,
}

/// The division among replicas.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// `--replica-membership`.
    pub(crate) membership: Membership,
    /// `--replica-name`.
    pub(crate) name: String,
    /// `--replica-group`.
    pub(crate) group: String,
    /// `--replica-namespace`.
    pub(crate) namespace: String,
    /// `--replica-lease-duration`.
    pub(crate) lease_time: Duration,
    /// The connections to the others, if there are any.
    pub(crate) peers: Option<PeerConfig>,
}

/// The connections between replicas.
#[derive(Clone, Debug)]
pub(crate) struct PeerConfig {
    /// `--peer-bind-address` and `--peer-secure-port`.
    pub(crate) address: SocketAddr,
    /// `--peer-advertise-address`, if it is given.
    pub(crate) advertised: Option<IpAddr>,
    /// What may be replaced while weir runs.
    pub(crate) tls: PeerTls,
}

/// The certificates of the connections between replicas.
#[derive(Clone, Debug)]
pub(crate) struct PeerTls {
    /// `--peer-cert-file` and `--peer-key-file`: both as a server and as a client.
    pub(crate) certificate: Arc<CertifiedKey>,
    /// `--peer-ca-file`.
    pub(crate) roots: CertificatePool,
    /// `--peer-allowed-names`.
    pub(crate) allowed_names: Vec<String>,
}

impl PeerTls {
    /// Whether both show and accept the same.
    #[must_use]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let chain = |tls: &Self| tls.certificate.cert.clone();
        chain(self) == chain(other)
            && self.roots == other.roots
            && self.allowed_names == other.allowed_names
    }
}
