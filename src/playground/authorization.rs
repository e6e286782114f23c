//! Who may do what: a few fixed rules in RBAC's words.
//!
//! Everyone who is known may do everything, but `alice` and `bob` nothing in `kube-system`, and
//! impersonation is for `system:masters`. Nobody in particular may ask for health and version only,
//! as the role `system:public-info-viewer` allows. Pure.

use crate::playground::authentication::User;
use crate::playground::status::Details;
use crate::playground::status::Status;

/// What is to be done, as `authorizer.Attributes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attributes {
    Path {
        verb: String,
        path: String,
    },
    Resource {
        verb: String,
        group: String,
        /// `pods`, or `pods/log`.
        resource: String,
        namespace: String,
        name: String,
    },
}

impl Attributes {
    /// The same, to be done by a verb of another name.
    pub(crate) fn with_verb_prefix(mut self, prefix: &str) -> Self {
        match &mut self {
            Self::Path { verb, .. } | Self::Resource { verb, .. } => verb.insert_str(0, prefix),
        }
        self
    }
}

/// Whose requests are refused in the forbidden namespace.
const RESTRICTED: [&str; 2] = ["alice", "bob"];
const FORBIDDEN_NAMESPACE: &str = "kube-system";

/// What anyone may GET.
const PUBLIC: [&str; 4] = ["/healthz", "/livez", "/readyz", "/version"];

pub(crate) fn allowed(user: &User, attributes: &Attributes) -> bool {
    if user.is_master() {
        return true;
    }
    match attributes {
        Attributes::Path { verb, path } => {
            !user.is_anonymous() || (verb == "get" && PUBLIC.contains(&path.trim_end_matches('/')))
        }
        Attributes::Resource {
            verb, namespace, ..
        } => {
            let restricted =
                RESTRICTED.contains(&user.name.as_str()) && namespace == FORBIDDEN_NAMESPACE;
            !user.is_anonymous() && !restricted && !verb.starts_with("impersonate")
        }
    }
}

/// The refusal of what is not allowed; `details` says what it was about.
pub(crate) fn refusal(user: &User, attributes: &Attributes, details: Details) -> Status {
    let who = &user.name;
    match attributes {
        Attributes::Path { verb, path } => Status::forbidden(
            format!("forbidden: User {who:?} cannot {verb} path {path:?}"),
            details,
        ),
        Attributes::Resource {
            verb,
            group,
            resource,
            namespace,
            name,
        } => {
            let plural = resource.split('/').next().unwrap_or_default();
            let plural = if group.is_empty() {
                plural.to_owned()
            } else {
                format!("{plural}.{group}")
            };
            let what = if name.is_empty() {
                plural
            } else {
                format!("{plural} {name:?}")
            };
            let place = if namespace.is_empty() {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace {namespace:?}")
            };
            let message = format!(
                "{what} is forbidden: User {who:?} cannot {verb} resource {resource:?} in API group \
                 {group:?} {place}"
            );
            Status::forbidden(message, details)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Attributes;
    use super::allowed;
    use super::refusal;
    use crate::playground::authentication::User;
    use crate::playground::status::Details;

    fn user(name: &str, group: &str) -> User {
        User {
            name: name.into(),
            groups: vec![group.into()],
            ..User::default()
        }
    }

    fn pod(namespace: &str) -> Attributes {
        Attributes::Resource {
            verb: "get".into(),
            group: String::new(),
            resource: "pods".into(),
            namespace: namespace.into(),
            name: "foo".into(),
        }
    }

    fn path(path: &str) -> Attributes {
        Attributes::Path {
            verb: "get".into(),
            path: path.into(),
        }
    }

    #[test]
    fn alice_is_kept_out_of_kube_system_only() {
        let alice = user("alice", "dev");
        assert!(allowed(&alice, &pod("team-b")));
        assert!(!allowed(&alice, &pod("kube-system")));
        assert!(allowed(
            &user("alice", "system:masters"),
            &pod("kube-system")
        ));
        assert_eq!(
            refusal(&alice, &pod("kube-system"), Details::default()).message,
            "pods \"foo\" is forbidden: User \"alice\" cannot get resource \"pods\" in API group \
             \"\" in the namespace \"kube-system\""
        );
    }

    #[test]
    fn anyone_may_ask_for_health_and_version() {
        let nobody = user("system:anonymous", "system:unauthenticated");
        for public in ["/livez", "/readyz", "/healthz", "/version", "/version/"] {
            assert!(allowed(&nobody, &path(public)));
        }
        assert!(!allowed(&nobody, &path("/metrics")));
        assert!(!allowed(&nobody, &pod("default")));
        assert_eq!(
            refusal(&nobody, &path("/metrics"), Details::default()).message,
            "forbidden: User \"system:anonymous\" cannot get path \"/metrics\""
        );
    }
}
