//! The users that a subject of a rule includes, and which subjects include others.

use weir_kubernetes::api::flowcontrol::{Subject, SubjectKind};
use weir_kubernetes::api::user::{GROUP_AUTHENTICATED, GROUP_UNAUTHENTICATED};

/// The prefix of the user name of a service account.
pub(super) const ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// The group of all service accounts, and the prefix of those of a namespace with a colon.
pub(super) const ACCOUNTS: &str = "system:serviceaccounts";

/// The users that a subject includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SubjectSet {
    /// All users.
    Everyone,
    /// The members of a group.
    Group(String),
    /// Users whose names begin so.
    Prefix(String),
    /// The user of this name.
    User(String),
}

impl SubjectSet {
    /// `None` if the subject matches no user: its kind and member differ.
    pub(super) fn new(subject: &Subject) -> Option<Self> {
        match subject.kind {
            SubjectKind::Group => subject.group.as_deref().map(Self::from_group),
            SubjectKind::User => subject.user.as_deref().map(Self::from_user),
            SubjectKind::ServiceAccount => {
                let account = subject.service_account.as_ref()?;
                let prefix = format!("{ACCOUNT_PREFIX}{}:", account.namespace);
                Some(match account.name.as_str() {
                    "*" => Self::Prefix(prefix),
                    name => Self::User(prefix + name),
                })
            }
            SubjectKind::Other(_) => None,
        }
    }

    fn from_group(name: &str) -> Self {
        if name == "*" {
            Self::Everyone
        } else {
            Self::Group(name.to_owned())
        }
    }

    fn from_user(name: &str) -> Self {
        if name == "*" {
            Self::Everyone
        } else {
            Self::User(name.to_owned())
        }
    }

    /// Whether each user of `other` is in this set, whatever groups users have.
    pub(super) fn includes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Everyone, _) => true,
            (Self::Prefix(prefix), Self::User(name) | Self::Prefix(name)) => {
                name.starts_with(prefix.as_str())
            }
            (Self::Group(a), Self::Group(b)) | (Self::User(a), Self::User(b)) => a == b,
            _ => false,
        }
    }

    /// Groups that users of this set have when an authenticator has identified them. Each entry is
    /// sufficient: every user of this set is in one of its groups.
    pub(super) fn implied_groups(&self) -> Vec<Vec<Self>> {
        let group = |name: &str| Self::Group(name.to_owned());
        let mut implied = vec![vec![
            group(GROUP_AUTHENTICATED),
            group(GROUP_UNAUTHENTICATED),
        ]];
        if let Self::User(name) | Self::Prefix(name) = self
            && let Some((namespace, _)) = name
                .strip_prefix(ACCOUNT_PREFIX)
                .and_then(|account| account.split_once(':'))
        {
            implied.push(vec![group(ACCOUNTS)]);
            implied.push(vec![group(&format!("{ACCOUNTS}:{namespace}"))]);
        }
        if let Self::Group(name) = self
            && name
                .strip_prefix(ACCOUNTS)
                .is_some_and(|rest| rest.starts_with(':'))
        {
            implied.push(vec![group(ACCOUNTS)]);
        }
        implied
    }
}
