//! The text of the file that keeps the cluster's objects over a restart (`--state-dir`), and the
//! cluster that they are of.
//!
//! A cluster is recognised by its API servers and its CAs. A UID of the cluster would have to be
//! asked for, and the file is of use while no API server answers. Addresses alone are not enough,
//! since a cluster that is set up anew has the same ones and other CAs. CAs alone are not either:
//! one CA may sign for several clusters.

use serde_json::{Value, json};

use weir_kubernetes::api::flowcontrol;
use weir_kubernetes::api::flowcontrol::{Object, to_manifest};
use weir_kubernetes::document;
use weir_kubernetes::document::{Content, Diagnostics, Node, Strictness};

/// The name of the file in the state folder.
pub(crate) const FILE_NAME: &str = "flowcontrol.json";

/// The version of the format. A file of another version is ignored.
const VERSION: &str = "weir.state/v1";

/// What a cluster is recognized by: its API servers, and the CAs of their certificates.
///
/// The UID of an object of the cluster would say more. But it must be asked for, and a saved set is
/// of use while no API server answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterIdentity {
    /// The configured API servers, each as HOST:PORT.
    pub(crate) servers: Vec<String>,
    /// A hash of each CA's public key.
    pub(crate) authorities: Vec<String>,
}

impl ClusterIdentity {
    /// Why `saved` is of another cluster. Of the same one are identities with an API server in
    /// common, as for a reload, and with a CA in common: a cluster that is set up anew has other
    /// CAs, and one CA may sign for several clusters.
    ///
    /// # Errors
    /// What they do not have in common.
    fn check(&self, saved: &Self) -> Result<(), String> {
        let has_common = |one: &[String], other: &[String]| one.iter().any(|a| other.contains(a));
        let (old, new) = (saved.servers.join(", "), self.servers.join(", "));
        if !has_common(&self.servers, &saved.servers) {
            return Err(format!(
                "it is of another cluster: its API servers were {old}, and {new} is configured"
            ));
        }
        if !has_common(&self.authorities, &saved.authorities) {
            return Err(format!(
                "it is of another cluster: the API servers ({old}) had another CA than the configured one"
            ));
        }
        Ok(())
    }

    fn decode(node: &Node) -> Option<Self> {
        let strings = |name| match node.field(name).map(|list| &list.content) {
            Some(Content::Sequence(items)) => items
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect(),
            _ => None,
        };
        Some(Self {
            servers: strings("servers")?,
            authorities: strings("authorities")?,
        })
    }
}

/// The text of the file.
#[must_use]
pub(crate) fn encode(cluster: &ClusterIdentity, objects: &[Object]) -> String {
    let items: Value = objects.iter().map(to_manifest).collect();
    let ClusterIdentity {
        servers,
        authorities,
    } = cluster;
    let mut text = json!({
        "version": VERSION,
        "cluster": {"servers": servers, "authorities": authorities},
        "objects": {"apiVersion": "v1", "kind": "List", "items": items},
    })
    .to_string();
    text.push('\n');
    text
}

/// The objects in the text of a file that was saved for `cluster`.
///
/// # Errors
/// The text is damaged, of another version, or of another cluster. A part of a set is not used:
/// objects would be missing unseen.
pub(crate) fn decode(
    cluster: &ClusterIdentity,
    file: &str,
    text: &str,
) -> Result<Vec<Object>, String> {
    let mut diagnostics = Diagnostics::default();
    let node = document::parse_json(file, text, &mut diagnostics);
    let Some(node) = node.filter(|_| !diagnostics.has_errors()) else {
        return Err(diagnostics.to_string());
    };
    let version = node.field("version").and_then(Node::as_str);
    if version != Some(VERSION) {
        return Err(format!("{file}: its version is not {VERSION}"));
    }
    let Some(saved) = node.field("cluster").and_then(ClusterIdentity::decode) else {
        return Err(format!("{file}: it does not name its cluster"));
    };
    cluster
        .check(&saved)
        .map_err(|why| format!("{file}: {why}"))?;
    let Some(list) = node.field("objects") else {
        return Err(format!("{file}: it has no objects"));
    };
    let items = match list.field("items").map(|items| &items.content) {
        Some(Content::Sequence(items)) => items.len(),
        _ => 0,
    };
    let decoded = flowcontrol::decode(list, Strictness::Lenient, &mut diagnostics);
    if diagnostics.has_errors() || decoded.len() != items {
        return Err(format!("{file}: {diagnostics}"));
    }
    Ok(decoded.into_iter().map(|one| one.object).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_flowcontrol::bootstrap;

    fn cluster(servers: &[&str], authorities: &[&str]) -> ClusterIdentity {
        let owned = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        ClusterIdentity {
            servers: owned(servers),
            authorities: owned(authorities),
        }
    }

    fn own() -> ClusterIdentity {
        cluster(&["10.0.0.1:6443", "10.0.0.2:6443"], &["ca", "next-ca"])
    }

    #[test]
    fn a_set_is_read_as_it_was_written() {
        let objects = bootstrap::add_missing(Vec::new());
        assert_eq!(decode(&own(), "f", &encode(&own(), &objects)), Ok(objects));
    }

    #[test]
    fn a_set_of_another_cluster_is_an_error_that_says_why() {
        let objects = bootstrap::add_missing(Vec::new());
        let decoded = |saved: ClusterIdentity| decode(&own(), "f", &encode(&saved, &objects));
        for same in [
            cluster(&["10.0.0.2:6443"], &["next-ca"]),
            cluster(&["10.0.0.9:6443", "10.0.0.1:6443"], &["old-ca", "ca"]),
        ] {
            assert_eq!(decoded(same), Ok(objects.clone()));
        }
        for (other, why) in [
            (
                cluster(&["10.1.0.1:6443"], &["ca"]),
                "f: it is of another cluster: its API servers were 10.1.0.1:6443, and 10.0.0.1:6443, 10.0.0.2:6443 is configured",
            ),
            (
                cluster(&["10.0.0.1:6443"], &["ca-of-a-new-cluster"]),
                "f: it is of another cluster: the API servers (10.0.0.1:6443) had another CA than the configured one",
            ),
        ] {
            assert_eq!(decoded(other), Err(why.to_owned()));
        }
        let unnamed = encode(&own(), &objects).replace("\"cluster\"", "\"other\"");
        let why = decode(&own(), "f", &unnamed).unwrap_err();
        assert_eq!(why, "f: it does not name its cluster");
    }

    #[test]
    fn a_damaged_file_and_one_of_another_version_are_errors() {
        let text = encode(&own(), &bootstrap::add_missing(Vec::new()));
        let decode = |text: &str| decode(&own(), "f", text);
        for cut in [0, 1, text.len() / 2, text.len() - 3] {
            assert!(decode(&text[..cut]).is_err(), "{cut}");
        }
        let other = text.replace("weir.state/v1", "weir.state/v2");
        let why = decode(&other).unwrap_err();
        assert_eq!(why, "f: its version is not weir.state/v1");
        let broken = text.replacen(
            "\"matchingPrecedence\":",
            "\"matchingPrecedence\":\"x\"+",
            1,
        );
        assert!(decode(&broken).is_err());
        let broken = text.replacen("\"kind\":\"FlowSchema\"", "\"kind\":\"Other\"", 1);
        assert!(decode(&broken).is_err());
    }
}
