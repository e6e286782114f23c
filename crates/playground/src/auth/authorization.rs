//! Authorization by a few fixed rules, in RBAC's words. Pure.
//!
//! Authenticated users may do everything, with two exceptions: `alice` and `bob` have no access to
//! `kube-system`, and only `system:masters` and users with a grant may impersonate. Anonymous users
//! may only read health and version, as the role `system:public-info-viewer` allows.

use crate::auth::user::ApiUser;
use crate::status::{StatusDetails, StatusError};

/// The attributes of an access, as `authorizer.Attributes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AccessAttributes {
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

/// Allows a user an access that the fixed rules deny.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The name of the user.
    pub user: String,
    /// The verb: `impersonate`.
    pub verb: String,
    /// The resource: `users`, `groups`, `userextras/scopes`.
    pub resource: String,
    /// The namespace; empty for any.
    pub namespace: String,
    /// The name of the object; empty for any.
    pub name: String,
}

/// Denies a user an access that the fixed rules allow. Members of `system:masters` keep it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The name of the user.
    pub user: String,
    /// The verb: `get`, `list`.
    pub verb: String,
    /// The plural name of a resource (`pods`), or a path (`/metrics`).
    pub target: String,
}

impl Denial {
    fn covers(&self, user: &ApiUser, attributes: &AccessAttributes) -> bool {
        let (verb, what) = match attributes {
            AccessAttributes::Path { verb, path } => (verb, path),
            AccessAttributes::Resource { verb, resource, .. } => (verb, resource),
        };
        self.user == user.name && self.verb == *verb && self.target == *what
    }
}

impl Grant {
    fn covers(&self, user: &ApiUser, attributes: &AccessAttributes) -> bool {
        let AccessAttributes::Resource {
            verb,
            resource,
            namespace,
            name,
            group: _,
        } = attributes
        else {
            return false;
        };
        let any_or = |own: &str, requested: &str| own.is_empty() || own == requested;
        self.user == user.name
            && self.verb == *verb
            && self.resource == *resource
            && any_or(&self.namespace, namespace)
            && any_or(&self.name, name)
    }
}

impl AccessAttributes {
    /// The same access with `prefix` before the verb.
    pub(crate) fn with_verb_prefix(mut self, prefix: &str) -> Self {
        match &mut self {
            Self::Path { verb, .. } | Self::Resource { verb, .. } => verb.insert_str(0, prefix),
        }
        self
    }
}

/// The users without access to the forbidden namespace.
const RESTRICTED_USERS: [&str; 2] = ["alice", "bob"];
const FORBIDDEN_NAMESPACE: &str = "kube-system";

/// The paths that any user may GET.
const PUBLIC_PATHS: [&str; 4] = ["/healthz", "/livez", "/readyz", "/version"];

/// The grants and denials since the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicyChanges {
    pub(crate) grants: Vec<Grant>,
    pub(crate) denials: Vec<Denial>,
}

pub(crate) fn is_allowed(
    user: &ApiUser,
    attributes: &AccessAttributes,
    changes: &PolicyChanges,
) -> bool {
    let PolicyChanges { grants, denials } = changes;
    let denied = denials.iter().any(|denial| denial.covers(user, attributes));
    if denied && !user.is_privileged() {
        return false;
    }
    if user.is_privileged() || grants.iter().any(|grant| grant.covers(user, attributes)) {
        return true;
    }
    match attributes {
        AccessAttributes::Path { verb, path } => {
            !user.is_anonymous()
                || (verb == "get" && PUBLIC_PATHS.contains(&path.trim_end_matches('/')))
        }
        AccessAttributes::Resource {
            verb, namespace, ..
        } => {
            let restricted =
                RESTRICTED_USERS.contains(&user.name.as_str()) && namespace == FORBIDDEN_NAMESPACE;
            !user.is_anonymous() && !restricted && !verb.starts_with("impersonate")
        }
    }
}

/// The 403 of an access that is not allowed; `details` describe the object.
pub(crate) fn forbidden_status(
    user: &ApiUser,
    attributes: &AccessAttributes,
    details: StatusDetails,
) -> StatusError {
    let user_name = &user.name;
    match attributes {
        AccessAttributes::Path { verb, path } => StatusError::forbidden(
            format!("forbidden: User {user_name:?} cannot {verb} path {path:?}"),
            details,
        ),
        AccessAttributes::Resource {
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
            let scope = if namespace.is_empty() {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace {namespace:?}")
            };
            let message = format!(
                "{what} is forbidden: User {user_name:?} cannot {verb} resource {resource:?} in API group \
                 {group:?} {scope}"
            );
            StatusError::forbidden(message, details)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AccessAttributes, Denial, Grant, PolicyChanges, forbidden_status, is_allowed};
    use crate::auth::user::ApiUser;
    use crate::status::StatusDetails;

    fn user(name: &str, group: &str) -> ApiUser {
        ApiUser {
            name: name.into(),
            groups: vec![group.into()],
            ..ApiUser::default()
        }
    }

    fn pod(namespace: &str) -> AccessAttributes {
        AccessAttributes::Resource {
            verb: "get".into(),
            group: String::new(),
            resource: "pods".into(),
            namespace: namespace.into(),
            name: "foo".into(),
        }
    }

    fn path(path: &str) -> AccessAttributes {
        AccessAttributes::Path {
            verb: "get".into(),
            path: path.into(),
        }
    }

    #[test]
    fn alice_is_denied_kube_system_only() {
        let alice = user("alice", "dev");
        assert!(is_allowed(
            &alice,
            &pod("team-b"),
            &PolicyChanges::default()
        ));
        assert!(!is_allowed(
            &alice,
            &pod("kube-system"),
            &PolicyChanges::default()
        ));
        assert!(is_allowed(
            &user("alice", "system:masters"),
            &pod("kube-system"),
            &PolicyChanges::default()
        ));
        assert_eq!(
            forbidden_status(&alice, &pod("kube-system"), StatusDetails::default()).message,
            "pods \"foo\" is forbidden: User \"alice\" cannot get resource \"pods\" in API group \
             \"\" in the namespace \"kube-system\""
        );
    }

    #[test]
    fn anonymous_users_may_get_health_and_version() {
        let anonymous = user("system:anonymous", "system:unauthenticated");
        for public in ["/livez", "/readyz", "/healthz", "/version", "/version/"] {
            assert!(is_allowed(
                &anonymous,
                &path(public),
                &PolicyChanges::default()
            ));
        }
        assert!(!is_allowed(
            &anonymous,
            &path("/metrics"),
            &PolicyChanges::default()
        ));
        assert!(!is_allowed(
            &anonymous,
            &pod("default"),
            &PolicyChanges::default()
        ));
        assert_eq!(
            forbidden_status(&anonymous, &path("/metrics"), StatusDetails::default()).message,
            "forbidden: User \"system:anonymous\" cannot get path \"/metrics\""
        );
    }

    #[test]
    fn a_grant_covers_one_user_and_what_it_names() {
        let alice = user("alice", "dev");
        let grant = Grant {
            user: "alice".into(),
            verb: "impersonate".into(),
            resource: "users".into(),
            namespace: String::new(),
            name: "carol".into(),
        };
        let impersonate = |resource: &str, name: &str| AccessAttributes::Resource {
            verb: "impersonate".into(),
            group: String::new(),
            resource: resource.into(),
            namespace: String::new(),
            name: name.into(),
        };
        let grants = PolicyChanges {
            grants: vec![grant],
            denials: Vec::new(),
        };
        assert!(is_allowed(&alice, &impersonate("users", "carol"), &grants));
        assert!(!is_allowed(&alice, &impersonate("users", "admin"), &grants));
        assert!(!is_allowed(
            &alice,
            &impersonate("groups", "carol"),
            &grants
        ));
        assert!(!is_allowed(
            &user("bob", "dev"),
            &impersonate("users", "carol"),
            &grants
        ));
    }

    #[test]
    fn a_denial_covers_one_user_and_what_it_names() {
        let denial = |verb: &str, what: &str| Denial {
            user: "carol".into(),
            verb: verb.into(),
            target: what.into(),
        };
        let changes = PolicyChanges {
            grants: Vec::new(),
            denials: vec![denial("get", "/metrics"), denial("get", "pods")],
        };
        let carol = user("carol", "dev");
        assert!(!is_allowed(&carol, &path("/metrics"), &changes));
        assert!(!is_allowed(&carol, &pod("team-b"), &changes));
        assert!(is_allowed(&carol, &path("/livez"), &changes));
        assert!(is_allowed(&user("alice", "dev"), &pod("team-b"), &changes));
        let master = user("carol", "system:masters");
        assert!(is_allowed(&master, &path("/metrics"), &changes));
    }
}
