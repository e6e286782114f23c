//! The users that the configured authenticators yield.

use super::subject_set::{ACCOUNT_PREFIX, ACCOUNTS};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::flowcontrol::{Subject, SubjectKind};
use weir_kubernetes::api::user::{ANONYMOUS, GROUP_AUTHENTICATED, GROUP_UNAUTHENTICATED};

/// Names and groups that an issuer of tokens yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerPrefixes {
    /// What the names of its users begin with. They never begin with `system:`.
    pub user: String,
    /// What groups begin with. `None`: it yields none.
    pub group: Option<String>,
}

/// All authenticators of a configuration that can yield only some users. Where any of them can
/// yield any user, there is no such value.
#[derive(Clone, Debug, Default)]
pub struct Authenticators {
    /// The users of the token file.
    pub users: Vec<UserInfo>,
    /// Whether tokens of service accounts are verified.
    pub service_accounts: bool,
    /// The issuers of other tokens.
    pub issuers: Vec<IssuerPrefixes>,
}

impl Authenticators {
    /// Why no user is the subject, if that is certain.
    pub(super) fn unknown_subject(&self, subject: &Subject) -> Option<String> {
        match subject.kind {
            SubjectKind::User => {
                let name = subject.user.as_deref()?;
                (!self.yields_user(name)).then(|| {
                    format!(
                        "no configured authenticator yields the user {name:?}; {}",
                        self.list()
                    )
                })
            }
            SubjectKind::Group => {
                let name = subject.group.as_deref()?;
                (!self.yields_group(name)).then(|| {
                    format!(
                        "no configured authenticator yields the group {name:?}; {}",
                        self.list()
                    )
                })
            }
            SubjectKind::ServiceAccount => {
                let account = subject.service_account.as_ref()?;
                let prefix = format!("{ACCOUNT_PREFIX}{}:", account.namespace);
                let is_listed = self.users.iter().any(|user| user.name.starts_with(&prefix));
                (!self.service_accounts && !is_listed).then(|| {
                    format!(
                        "no configured authenticator yields service accounts; {}",
                        self.list()
                    )
                })
            }
            SubjectKind::Other(_) => None,
        }
    }

    fn yields_user(&self, name: &str) -> bool {
        name == "*"
            || name == ANONYMOUS
            || self.users.iter().any(|user| user.name == name)
            || (self.service_accounts && name.starts_with(ACCOUNT_PREFIX))
            || self
                .issuers
                .iter()
                .any(|issuer| name.starts_with(&issuer.user) && !name.starts_with("system:"))
    }

    /// Whether a user can be in this group.
    pub(super) fn yields_group(&self, name: &str) -> bool {
        let is_account_group = name
            .strip_prefix(ACCOUNTS)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'));
        ["*", GROUP_AUTHENTICATED, GROUP_UNAUTHENTICATED].contains(&name)
            || self.users.iter().any(|user| user.in_group(name))
            || (self.service_accounts && is_account_group)
            || self.issuers.iter().any(|issuer| {
                let prefix = issuer.group.as_ref();
                prefix.is_some_and(|prefix| name.starts_with(prefix))
            })
    }

    /// The authenticators, for a message.
    fn list(&self) -> String {
        let mut found = Vec::new();
        if !self.users.is_empty() {
            found.push(format!("the token file has {} users", self.users.len()));
        }
        if self.service_accounts {
            found.push("service accounts' tokens are verified".to_owned());
        }
        for IssuerPrefixes { user, group } in &self.issuers {
            let groups = match group {
                Some(prefix) => format!("groups {prefix:?}..."),
                None => "no groups".to_owned(),
            };
            found.push(format!("an issuer yields users {user:?}... and {groups}"));
        }
        if found.is_empty() {
            found.push("all users are anonymous".to_owned());
        }
        found.join(", ")
    }
}
