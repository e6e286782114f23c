//! `--replica-*` and `--peer-*`: the weirs that divide their totals.

use std::net::SocketAddr;
use std::path::Path;

use crate::cli::config_resolver::certificates::CertificateUse;
use crate::cli::config_resolver::flag_resolver::{FlagFile, FlagResolver};
use crate::cli::flags::replica_args::{ReplicaArgs, ReplicaMembership};
use crate::replicas::config::{Membership, PeerConfig, PeerTls, ReplicaConfig};
use crate::upstream::credentials::CredentialSource;
use crate::upstream::tls::parse_roots;
use weir_agreement::message::check_name;
use weir_status::replica_view::ALL_REPLICAS;

const MEMBERSHIP: &str = "replica-membership";

impl FlagResolver {
    /// The division among replicas, if there is one: `credentials` are weir's own.
    pub(crate) fn resolve_replicas(
        &mut self,
        args: &ReplicaArgs,
        credentials: Option<&CredentialSource>,
    ) -> Option<ReplicaConfig> {
        let peers = self.resolve_peers(args);
        let namespace = args
            .replica_namespace
            .clone()
            .or_else(|| self.pod_namespace());
        let has_credentials = credentials.is_some_and(|source| !source.is_anonymous());
        let membership = match args.replica_membership {
            ReplicaMembership::None => None,
            ReplicaMembership::Auto => {
                (has_credentials && namespace.is_some()).then_some(Membership::Auto)
            }
            ReplicaMembership::Leases => Some(Membership::Leases),
        };
        let Some(membership) = membership else {
            if peers.is_some() {
                self.add(
                    "peer-bind-address",
                    "only where replicas know each other: with --replica-membership=leases, a --kubeconfig (or a Pod's service account) and a namespace",
                );
            }
            return None;
        };
        if !has_credentials && credentials.is_some() {
            self.add(
                MEMBERSHIP,
                "leases needs credentials of weir's own: a --kubeconfig, or the service account of a Pod",
            );
        }
        let Some(namespace) = namespace else {
            self.add(
                "replica-namespace",
                format!("needed for --{MEMBERSHIP}=leases: weir is in no Pod whose namespace it could use"),
            );
            return None;
        };
        self.check("replica-namespace", check_name(&namespace))?;
        self.check("replica-group", check_name(&args.replica_group))?;
        let name = args.replica_name.clone().unwrap_or_else(host_name);
        self.check("replica-name", check_replica_name(&name))?;
        Some(ReplicaConfig {
            membership,
            name,
            group: args.replica_group.clone(),
            namespace,
            lease_time: args.replica_lease_duration,
            peers,
        })
    }

    fn pod_namespace(&self) -> Option<String> {
        let file = self.environment().pod()?.service_account.join("namespace");
        let text = self.files().read(&file).ok()?;
        let text = String::from_utf8(text).ok()?;
        Some(text.trim().to_owned()).filter(|name| !name.is_empty())
    }

    /// The connections to the others; `None` without them, and after an error.
    fn resolve_peers(&mut self, args: &ReplicaArgs) -> Option<PeerConfig> {
        const FILES: [&str; 3] = ["peer-cert-file", "peer-key-file", "peer-ca-file"];
        let files = [
            &args.peer_cert_file,
            &args.peer_key_file,
            &args.peer_ca_file,
        ];
        let Some(address) = args.peer_bind_address else {
            let given = FILES.iter().zip(files).find(|(_, file)| file.is_some());
            let names = Some("peer-allowed-names").filter(|_| !args.peer_allowed_names.is_empty());
            let advertised = args
                .peer_advertise_address
                .map(|_| "peer-advertise-address");
            if let Some(flag) = given.map(|(flag, _)| *flag).or(names).or(advertised) {
                self.add(flag, "only together with --peer-bind-address");
            }
            return None;
        };
        for (flag, file) in FILES.iter().zip(files) {
            if file.is_none() {
                self.add(flag, "needed with --peer-bind-address");
            }
        }
        if args.peer_allowed_names.is_empty() {
            self.add(
                "peer-allowed-names",
                "needed with --peer-bind-address: a CA alone would admit everything that it has signed",
            );
        }
        let [certificate, key, ca] = files.map(Option::as_deref);
        let (certificate, key, ca): (&Path, &Path, &Path) = (certificate?, key?, ca?);
        let certificate = self.read_certified_key(
            FlagFile {
                flag: "peer-cert-file",
                path: certificate,
            },
            FlagFile {
                flag: "peer-key-file",
                path: key,
            },
            CertificateUse::Client,
        );
        let roots = self.read_root_certificates("peer-ca-file", ca, parse_roots);
        Some(PeerConfig {
            address: SocketAddr::new(address, args.peer_secure_port),
            advertised: args.peer_advertise_address,
            tls: PeerTls {
                certificate: certificate?,
                roots: roots?,
                allowed_names: args.peer_allowed_names.clone(),
            },
        })
    }
}

fn check_replica_name(name: &str) -> Result<(), String> {
    check_name(name)?;
    match name == ALL_REPLICAS {
        true => Err(format!(
            "{name:?} stands for all replicas on the status page and in weir top: a replica needs another name"
        )),
        false => Ok(()),
    }
}

/// The name of this host, as a replica's name.
fn host_name() -> String {
    let uname = rustix::system::uname();
    uname.nodename().to_string_lossy().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_replica_has_the_name_that_stands_for_all() {
        assert_eq!(check_replica_name("all-in-one"), Ok(()));
        let why = check_replica_name("all").unwrap_err();
        assert!(why.contains("stands for all replicas"), "{why}");
        assert!(check_replica_name("All").is_err());
    }
}
