//! The user of a request, with the names and groups that Kubernetes reserves.

use std::collections::BTreeMap;

pub(super) const GROUP_AUTHENTICATED: &str = "system:authenticated";
pub(super) const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
pub(super) const GROUP_MASTERS: &str = "system:masters";
pub(super) const ANONYMOUS: &str = "system:anonymous";
pub(super) const GROUP_SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

/// A user, as `user.Info`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiUser {
    /// The user name.
    pub name: String,
    /// The uid, or empty.
    pub uid: String,
    /// The groups, in the order in which they were asserted.
    pub groups: Vec<String>,
    /// Further attributes by key.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl ApiUser {
    /// The user of a request without credentials.
    pub(super) fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            groups: vec![GROUP_UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// Adds the group of all authenticated users, unless the user is unauthenticated.
    pub(super) fn with_authenticated_group(mut self) -> Self {
        if !self.in_group(GROUP_AUTHENTICATED) && !self.in_group(GROUP_UNAUTHENTICATED) {
            self.groups.push(GROUP_AUTHENTICATED.to_owned());
        }
        self
    }

    pub(super) fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS || self.in_group(GROUP_UNAUTHENTICATED)
    }

    pub(crate) fn is_privileged(&self) -> bool {
        self.in_group(GROUP_MASTERS)
    }
}
