//! The flags of several weirs that divide their totals.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::flag_values::parse_duration;

/// The shortest lease. A replica drops to its floor two seconds before its end, and renews it three
/// times.
const MIN_LEASE_DURATION: Duration = Duration::from_secs(6);

/// The longest lease: for so long the seats of a replica that was killed are not used.
const MAX_LEASE_DURATION: Duration = Duration::from_secs(300);

/// Several weirs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Replicas")]
pub(crate) struct ReplicaArgs {
    /// How weirs that stand in front of the same API servers know each other, to divide the totals (--max-requests-inflight and
    /// --max-mutating-requests-inflight) among themselves. leases: each has a Lease in --replica-namespace, which weir's own user must be
    /// allowed to get, list, create, update and delete. auto: leases, where weir has credentials and a namespace, and all of the totals where
    /// it is not allowed to use Leases. none: each weir uses all of the totals.
    #[arg(long, value_name = "WAY", value_enum, default_value_t = ReplicaMembership::Auto)]
    pub(crate) replica_membership: ReplicaMembership,
    /// The namespace of the replicas' Leases; the Pod's own if not given.
    #[arg(long, value_name = "NAME")]
    pub(crate) replica_namespace: Option<String>,
    /// Which weirs divide the totals, where others have Leases in the same namespace.
    #[arg(long, value_name = "NAME", default_value = "weir")]
    pub(crate) replica_group: String,
    /// The name of this weir, which no other one of the group has and a restart keeps; the host's if not given (in a Pod, the Pod's).
    #[arg(long, value_name = "NAME")]
    pub(crate) replica_name: Option<String>,
    /// How long a Lease lasts, of 6s to 5m; the same for all replicas. The share of a replica that is gone is used by the others after this
    /// time.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_lease_duration)]
    pub(crate) replica_lease_duration: Duration,
    /// The address on which this weir talks to the others, by mutual TLS; no address, no connections: the totals are then divided evenly and
    /// not by demand.
    #[arg(long, value_name = "IP")]
    pub(crate) peer_bind_address: Option<IpAddr>,
    /// The port of --peer-bind-address.
    #[arg(long, value_name = "PORT", default_value_t = 6445)]
    pub(crate) peer_secure_port: u16,
    /// The address at which the others reach --peer-secure-port; --peer-bind-address if not given or, where that is every address, the one
    /// from which this weir connects to the API server.
    #[arg(long, value_name = "IP")]
    pub(crate) peer_advertise_address: Option<IpAddr>,
    /// The certificate of this weir towards the others, both as a server and as a client.
    #[arg(long, value_name = "FILE")]
    pub(crate) peer_cert_file: Option<PathBuf>,
    /// Key of --peer-cert-file.
    #[arg(long, value_name = "FILE")]
    pub(crate) peer_key_file: Option<PathBuf>,
    /// CA of the others' certificates (PEM).
    #[arg(long, value_name = "FILE")]
    pub(crate) peer_ca_file: Option<PathBuf>,
    /// The names of the others: each must have a certificate with one of them as its common name or as a DNS name, exactly. A CA alone is
    /// not enough: that of a cluster has signed for every kubelet.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) peer_allowed_names: Vec<String>,
}

/// How replicas know each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReplicaMembership {
    /// By Leases, where weir can and may.
    #[default]
    Auto,
    /// By Leases.
    Leases,
    /// Not at all.
    None,
}

fn parse_lease_duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    if !(MIN_LEASE_DURATION..=MAX_LEASE_DURATION).contains(&duration) {
        return Err("it must be from 6s to 5m".to_owned());
    }
    if duration.subsec_nanos() != 0 {
        return Err("it must be whole seconds, which is what a Lease has".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_lasts_whole_seconds_within_bounds() {
        assert_eq!(parse_lease_duration("30s"), Ok(Duration::from_secs(30)));
        for text in ["5s", "301s", "6500ms", "x"] {
            assert!(parse_lease_duration(text).is_err(), "{text}");
        }
    }
}
