//! Whom rules are about: users, groups and service accounts.
//!
//! Many lists of subjects are looked through at once. A list is a bit, and each name is kept with
//! the lists that it stands in, so the time for a request depends on how many groups the user has,
//! and not on how many lists there are. The rules are those of `matchesSubject` (Kubernetes 1.36,
//! `util/flowcontrol/rule.go`): for service accounts only the user's name counts, not the groups.

use std::collections::HashMap;

use super::names::ByName;
use super::names::bytes;
use crate::api::UserInfo;
use crate::api::flowcontrol::ServiceAccountSubject;
use crate::api::flowcontrol::Subject;
use crate::api::flowcontrol::SubjectKind;

/// What the name of a service account's user begins with.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Some lists, by number.
pub type Lists = u64;

/// Up to [`Subjects::MOST`] lists of subjects.
#[derive(Clone, Debug)]
pub struct Subjects {
    everybody: Lists,
    users: ByName<Lists>,
    groups: ByName<Lists>,
    /// Those of which all service accounts are meant.
    namespaces: ByName<Lists>,
    /// The length of the longest of these names; none if there is no namespace.
    longest_namespace: Option<usize>,
}

impl Subjects {
    /// The most lists that there can be.
    pub const MOST: usize = 64;

    /// The n-th list becomes the n-th bit; lists after the last possible one are ignored.
    #[must_use]
    pub fn new<'s>(lists: impl IntoIterator<Item = &'s [Subject]>) -> Self {
        let mut collected = Collected::default();
        for (n, list) in lists.into_iter().take(Self::MOST).enumerate() {
            for subject in list {
                collected.add(subject, 1 << n);
            }
        }
        let Collected {
            everybody,
            users,
            groups,
            namespaces,
        } = collected;
        Self {
            everybody,
            users: users.into(),
            groups: groups.into(),
            longest_namespace: namespaces.keys().map(|name| name.len()).max(),
            namespaces: namespaces.into(),
        }
    }

    /// The lists in which `user` is, by name or by group.
    #[must_use]
    pub fn of(&self, user: &UserInfo) -> Lists {
        let name = user.name.as_bytes();
        let mut found = self.everybody | lists(&self.users, name);
        for group in &user.groups {
            found |= lists(&self.groups, group.as_bytes());
        }
        found | self.by_namespace(name)
    }

    fn by_namespace(&self, name: &[u8]) -> Lists {
        let account = self
            .longest_namespace
            .zip(name.strip_prefix(SERVICE_ACCOUNT.as_bytes()));
        let Some((longest, account)) = account else {
            return 0;
        };
        // A namespace has no colon and ends at the first. Upstream, however, looks only at the
        // beginning of the name.
        let colons = (0..=longest).filter(|&at| account.get(at) == Some(&b':'));
        colons
            .filter_map(|at| account.get(..at))
            .fold(0, |found, namespace| {
                found | lists(&self.namespaces, namespace)
            })
    }
}

fn lists(by_name: &ByName<Lists>, name: &[u8]) -> Lists {
    by_name.get(name).copied().unwrap_or_default()
}

#[derive(Default)]
struct Collected {
    everybody: Lists,
    users: HashMap<Box<[u8]>, Lists>,
    groups: HashMap<Box<[u8]>, Lists>,
    namespaces: HashMap<Box<[u8]>, Lists>,
}

impl Collected {
    /// Notes that `list` holds `subject`. One whose kind and member do not go together is nobody.
    fn add(&mut self, subject: &Subject, list: Lists) {
        let (kind, name) = match subject.kind {
            SubjectKind::Group => (&mut self.groups, subject.group.as_deref()),
            SubjectKind::ServiceAccount => return self.add_service_account(subject, list),
            SubjectKind::User => (&mut self.users, subject.user.as_deref()),
            SubjectKind::Other(_) => return,
        };
        match name {
            Some("*") => self.everybody |= list,
            Some(name) => *kind.entry(bytes(name)).or_default() |= list,
            None => {}
        }
    }

    fn add_service_account(&mut self, subject: &Subject, list: Lists) {
        let Some(ServiceAccountSubject { namespace, name }) = &subject.service_account else {
            return;
        };
        let (kind, name) = if name == "*" {
            (&mut self.namespaces, bytes(namespace))
        } else {
            let user = format!("{SERVICE_ACCOUNT}{namespace}:{name}");
            (&mut self.users, bytes(&user))
        };
        *kind.entry(name).or_default() |= list;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Subject {
        Subject {
            kind: SubjectKind::User,
            user: Some(name.to_owned()),
            ..Subject::default()
        }
    }

    fn group(name: &str) -> Subject {
        Subject {
            kind: SubjectKind::Group,
            group: Some(name.to_owned()),
            ..Subject::default()
        }
    }

    fn account(namespace: &str, name: &str) -> Subject {
        Subject {
            kind: SubjectKind::ServiceAccount,
            service_account: Some(ServiceAccountSubject {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            ..Subject::default()
        }
    }

    fn matches(subject: Subject, name: &str, groups: &[&str]) -> bool {
        let user = UserInfo {
            name: name.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..UserInfo::default()
        };
        Subjects::new([&[subject][..]]).of(&user) == 1
    }

    #[test]
    fn users_and_groups_go_by_their_names_or_a_star() {
        assert!(matches(user("alice"), "alice", &[]));
        assert!(!matches(user("alice"), "Alice", &["alice"]));
        assert!(matches(user("*"), "", &[]));
        assert!(matches(group("devs"), "alice", &["ops", "devs"]));
        assert!(!matches(group("devs"), "devs", &["dev", "devs2"]));
        assert!(matches(group("*"), "alice", &[]));
    }

    #[test]
    fn service_accounts_go_by_the_name_of_the_user() {
        let name = "system:serviceaccount:ns:builder";
        assert!(matches(account("ns", "builder"), name, &[]));
        assert!(matches(account("ns", "*"), name, &[]));
        assert!(matches(
            account("ns", "*"),
            "system:serviceaccount:ns:",
            &[]
        ));
        assert!(matches(
            account("ns", "*"),
            "system:serviceaccount:ns:a:b",
            &[]
        ));
        assert!(!matches(
            account("ns", "*"),
            "system:serviceaccount:ns",
            &[]
        ));
        assert!(!matches(account("n", "*"), name, &[]));
        assert!(!matches(account("ns", "build"), name, &[]));
        assert!(!matches(account("*", "builder"), name, &[]));
        assert!(!matches(
            account("ns", "*"),
            "alice",
            &["system:serviceaccounts:ns"]
        ));
    }

    #[test]
    fn odd_namespaces_are_prefixes_as_upstream_has_them() {
        assert!(matches(account("", "*"), "system:serviceaccount::x", &[]));
        assert!(matches(
            account("a:b", "*"),
            "system:serviceaccount:a:b:x",
            &[]
        ));
        assert!(matches(
            account("a", "*"),
            "system:serviceaccount:a:b:x",
            &[]
        ));
    }

    #[test]
    fn a_member_of_another_kind_counts_for_nothing() {
        let mismatched = Subject {
            kind: SubjectKind::Group,
            ..user("*")
        };
        assert!(!matches(mismatched, "alice", &["*"]));
        assert!(!matches(
            Subject {
                kind: SubjectKind::default(),
                ..user("*")
            },
            "alice",
            &[]
        ));
    }

    #[test]
    fn each_list_is_a_bit_and_those_past_the_last_are_ignored() {
        let lists = vec![[group("devs"), user("alice")]; Subjects::MOST + 1];
        let subjects = Subjects::new(lists.iter().map(|list| &list[..]));
        let alice = UserInfo {
            name: "alice".to_owned(),
            ..UserInfo::default()
        };
        assert_eq!(subjects.of(&alice), Lists::MAX);
        assert_eq!(subjects.of(&UserInfo::anonymous()), 0);
    }
}
