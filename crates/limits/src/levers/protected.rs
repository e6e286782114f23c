//! The requesters that a cluster cannot be without: the control plane, its nodes, and its
//! administrators. A lever spares them unless it is forced.

use serde::{Deserialize, Serialize};

use crate::admission_attributes::AdmissionAttributes;
use crate::levers::target::{LeverTarget, NamePattern};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::user::{GROUP_AUTHENTICATED, GROUP_MASTERS, GROUP_NODES};
use weir_kubernetes::request_info::RequestInfo;

const GROUP_SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
const GROUP_KUBE_SYSTEM: &str = "system:serviceaccounts:kube-system";

const CONTROL_PLANE: &str = "the control plane";
const MASTERS: &str = "system:masters";
const NODES: &str = "nodes";
const KUBE_SYSTEM: &str = "service accounts of kube-system";

/// Beginnings of protected users' names, as they are called in a message.
const USER_PREFIXES: [(&str, &str); 4] = [
    ("system:apiserver", CONTROL_PLANE),
    ("system:kube-", CONTROL_PLANE),
    ("system:node:", NODES),
    ("system:serviceaccount:kube-system:", KUBE_SYSTEM),
];

/// A protected user that the prefixes do not have.
const CLOUD_CONTROLLER_MANAGER: &str = "system:cloud-controller-manager";

/// Groups with protected members only.
const GROUPS: [(&str, &str); 3] = [
    (GROUP_MASTERS, MASTERS),
    (GROUP_NODES, NODES),
    (GROUP_KUBE_SYSTEM, KUBE_SYSTEM),
];

/// Groups with protected members among others.
const WIDE_GROUPS: [(&str, &str); 2] = [
    (GROUP_AUTHENTICATED, "every authenticated user"),
    (GROUP_SERVICE_ACCOUNTS, "every service account"),
];

/// Where probes look. Load balancers stop sending requests to a weir whose probe fails.
const PROBE_PATHS: [&[u8]; 3] = [b"/healthz", b"/livez", b"/readyz"];

/// The requesters that levers spare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProtectedRequesters {
    /// weir's own user, if it is known.
    pub own_user: Option<String>,
}

impl ProtectedRequesters {
    /// Whether a request is spared: one of a protected requester, and a probe.
    #[must_use]
    pub fn spares(&self, attributes: &AdmissionAttributes<'_>) -> bool {
        self.is_protected(attributes.user) || is_probe(attributes.info)
    }

    /// Whether a requester is protected.
    #[must_use]
    pub(super) fn is_protected(&self, user: &UserInfo) -> bool {
        if user.is_unverified() {
            return false; // weir does not know whose it is
        }
        let mut prefixes = USER_PREFIXES.iter();
        let mut groups = GROUPS.iter();
        groups.any(|(group, _)| user.in_group(group))
            || prefixes.any(|(prefix, _)| user.name.starts_with(prefix))
            || user.name == CLOUD_CONTROLLER_MANAGER
            || self.own_user.as_ref() == Some(&user.name)
    }

    /// A line for each value of the target that names or covers a protected requester.
    #[must_use]
    pub fn named_by(&self, target: &LeverTarget) -> Vec<String> {
        let accounts = target.service_accounts.iter();
        let users = target
            .users
            .iter()
            .map(|user| ("user", user.to_string(), user));
        let accounts = accounts.map(|one| ("service account", one.to_string(), one.user()));
        let mut lines = Vec::new();
        for (what, value, pattern) in users.chain(accounts) {
            if let Some(named) = self.user_named_by(pattern) {
                lines.push(format!("{what} {value:?} names or covers {named}"));
            }
        }
        for pattern in &target.groups {
            let mut all = GROUPS.iter().chain(&WIDE_GROUPS);
            let named = all.find(|(group, _)| pattern.overlaps(&NamePattern::exact(group)));
            if let Some((_, named)) = named {
                let value = pattern.to_string();
                lines.push(format!("group {value:?} names or covers {named}"));
            }
        }
        lines
    }

    fn user_named_by(&self, pattern: &NamePattern) -> Option<&'static str> {
        let mut prefixes = USER_PREFIXES.iter();
        let overlaps = |name: &str| pattern.overlaps(&NamePattern::exact(name));
        let named = prefixes.find(|(prefix, _)| pattern.overlaps(&NamePattern::prefix(prefix)));
        if let Some((_, named)) = named {
            return Some(named);
        }
        if overlaps(CLOUD_CONTROLLER_MANAGER) {
            return Some(CONTROL_PLANE);
        }
        let own_user = self.own_user.as_ref();
        own_user
            .is_some_and(|own| overlaps(own))
            .then_some("weir's own user")
    }
}

/// Whether a probe sends such requests.
fn is_probe(info: &RequestInfo<'_>) -> bool {
    let path = info.path();
    let is_below = |probe: &&[u8]| {
        let rest = path.strip_prefix(*probe);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    PROBE_PATHS.iter().any(is_below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protected() -> ProtectedRequesters {
        ProtectedRequesters {
            own_user: Some("system:serviceaccount:weir:weir".to_owned()),
        }
    }

    #[test]
    fn a_target_that_names_or_covers_a_protected_requester_is_found() {
        let target = |users: &[&str], groups: &[&str], accounts: &[&str]| LeverTarget {
            users: users.iter().map(|text| text.parse().unwrap()).collect(),
            groups: groups.iter().map(|text| text.parse().unwrap()).collect(),
            service_accounts: accounts.iter().map(|text| text.parse().unwrap()).collect(),
            ..LeverTarget::default()
        };
        for (found, expected) in [
            (
                target(&["system:kube-scheduler"], &[], &[]),
                "the control plane",
            ),
            (
                target(&["system:cloud-controller-manager"], &[], &[]),
                "the control plane",
            ),
            (target(&["system:node:a"], &[], &[]), "nodes"),
            (target(&["system:node:*"], &[], &[]), "nodes"),
            (target(&["*"], &[], &[]), "the control plane"),
            (
                target(&["system:serviceaccount:weir:*"], &[], &[]),
                "weir's own user",
            ),
            (target(&[], &["system:masters"], &[]), "system:masters"),
            (target(&[], &["system:node*"], &[]), "nodes"),
            (
                target(&[], &["system:authenticated"], &[]),
                "every authenticated user",
            ),
            (
                target(&[], &["system:serviceaccounts"], &[]),
                "every service account",
            ),
            (
                target(&[], &[], &["kube-system:*"]),
                "service accounts of kube-system",
            ),
            (
                target(&[], &[], &["kube-system:a"]),
                "service accounts of kube-system",
            ),
            (target(&[], &[], &["*"]), "service accounts of kube-system"),
            (target(&[], &[], &["weir:weir"]), "weir's own user"),
        ] {
            let lines = protected().named_by(&found);
            assert_eq!(lines.len(), 1, "{found}: {lines:?}");
            assert!(lines[0].ends_with(expected), "{found}: {lines:?}");
        }
        let harmless = target(
            &["alice", "a*"],
            &["devs", "system:serviceaccounts:ci"],
            &["ci:*"],
        );
        assert_eq!(protected().named_by(&harmless), [""; 0]);
    }

    #[test]
    fn requests_of_protected_requesters_and_probes_are_spared() {
        let user = |name: &str, group: &str| UserInfo {
            name: name.to_owned(),
            groups: vec![group.to_owned()],
            ..UserInfo::default()
        };
        let spared = |user: &UserInfo, path: &str| {
            let info = RequestInfo::parse("GET", path.as_bytes()).unwrap();
            protected().spares(&AdmissionAttributes { info: &info, user })
        };
        for (user, path, expected) in [
            (user("alice", "devs"), "/api/v1/pods", false),
            (user("alice", "system:masters"), "/api/v1/pods", true),
            (user("a", "system:nodes"), "/api/v1/pods", true),
            (user("system:node:a", ""), "/api/v1/pods", true),
            (
                user("system:kube-controller-manager", ""),
                "/api/v1/pods",
                true,
            ),
            (
                user("system:serviceaccount:kube-system:a", ""),
                "/api/v1/pods",
                true,
            ),
            (
                user("system:serviceaccount:weir:weir", ""),
                "/api/v1/pods",
                true,
            ),
            (
                user("system:serviceaccount:kube-systems:a", ""),
                "/api/v1/pods",
                false,
            ),
            (UserInfo::anonymous(), "/readyz", true),
            (UserInfo::anonymous(), "/livez/ping", true),
            (UserInfo::anonymous(), "/readyzz", false),
        ] {
            assert_eq!(spared(&user, path), expected, "{} {path}", user.name);
        }
    }
}
