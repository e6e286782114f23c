//! Matches the user of a request with users, groups and service accounts.
//!
//! Many lists of subjects are searched at once. A list is a bit, and each name is stored with the
//! bits of its lists. The time for a request depends on the number of the user's groups, not on the
//! number of lists. The rules are those of `matchesSubject` (Kubernetes 1.36,
//! `util/flowcontrol/rule.go`): for service accounts only the user's name counts, not the groups.

use std::collections::HashMap;

use super::names::{NameMap, boxed_bytes};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::flowcontrol::{ServiceAccountSubject, Subject, SubjectKind};

/// The prefix of the user name of a service account.
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// A set of lists, one bit per list.
pub(super) type ListBits = u64;

/// Up to [`Subjects::MAX_LISTS`] lists of subjects.
#[derive(Clone, Debug)]
pub struct Subjects {
    wildcard: ListBits,
    users: NameMap<ListBits>,
    groups: NameMap<ListBits>,
    /// The namespaces whose service accounts all match.
    namespaces: NameMap<ListBits>,
    /// The length of the longest of these names. `None` without namespaces.
    max_namespace_length: Option<usize>,
}

impl Subjects {
    /// The most lists.
    pub const MAX_LISTS: usize = 64;

    /// The n-th list becomes the n-th bit. Lists beyond [`MAX_LISTS`](Self::MAX_LISTS) are ignored.
    #[must_use]
    pub fn new<'s>(lists: impl IntoIterator<Item = &'s [Subject]>) -> Self {
        let mut collected = SubjectCollector::default();
        for (n, list) in lists.into_iter().take(Self::MAX_LISTS).enumerate() {
            for subject in list {
                collected.add(subject, 1 << n);
            }
        }
        let SubjectCollector {
            wildcard,
            users,
            groups,
            namespaces,
        } = collected;
        Self {
            wildcard,
            users: users.into(),
            groups: groups.into(),
            max_namespace_length: namespaces.keys().map(|name| name.len()).max(),
            namespaces: namespaces.into(),
        }
    }

    /// The lists that contain `user`, by name or by group.
    #[must_use]
    pub fn lists_of(&self, user: &UserInfo) -> ListBits {
        let name = user.name.as_bytes();
        let mut found = self.wildcard | lookup(&self.users, name);
        for group in &user.groups {
            found |= lookup(&self.groups, group.as_bytes());
        }
        found | self.lists_of_namespace(name)
    }

    fn lists_of_namespace(&self, name: &[u8]) -> ListBits {
        let account = self
            .max_namespace_length
            .zip(name.strip_prefix(SERVICE_ACCOUNT_PREFIX.as_bytes()));
        let Some((longest, account)) = account else {
            return 0;
        };
        // A namespace has no colon and ends at the first one. Upstream, however, only compares the
        // prefix of the name.
        let colons = (0..=longest).filter(|&at| account.get(at) == Some(&b':'));
        colons
            .filter_map(|at| account.get(..at))
            .fold(0, |found, namespace| {
                found | lookup(&self.namespaces, namespace)
            })
    }
}

fn lookup(by_name: &NameMap<ListBits>, name: &[u8]) -> ListBits {
    by_name.get(name).copied().unwrap_or_default()
}

#[derive(Default)]
struct SubjectCollector {
    wildcard: ListBits,
    users: HashMap<Box<[u8]>, ListBits>,
    groups: HashMap<Box<[u8]>, ListBits>,
    namespaces: HashMap<Box<[u8]>, ListBits>,
}

impl SubjectCollector {
    /// Records that `list` contains `subject`. A subject whose kind and member do not match is
    /// ignored.
    fn add(&mut self, subject: &Subject, list: ListBits) {
        let (kind, name) = match subject.kind {
            SubjectKind::Group => (&mut self.groups, subject.group.as_deref()),
            SubjectKind::ServiceAccount => return self.add_service_account(subject, list),
            SubjectKind::User => (&mut self.users, subject.user.as_deref()),
            SubjectKind::Other(_) => return,
        };
        match name {
            Some("*") => self.wildcard |= list,
            Some(name) => *kind.entry(boxed_bytes(name)).or_default() |= list,
            None => {}
        }
    }

    fn add_service_account(&mut self, subject: &Subject, list: ListBits) {
        let Some(ServiceAccountSubject { namespace, name }) = &subject.service_account else {
            return;
        };
        let (kind, name) = if name == "*" {
            (&mut self.namespaces, boxed_bytes(namespace))
        } else {
            let user = format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}");
            (&mut self.users, boxed_bytes(&user))
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
        Subjects::new([&[subject][..]]).lists_of(&user) == 1
    }

    #[test]
    fn users_and_groups_match_by_name_or_wildcard() {
        assert!(matches(user("alice"), "alice", &[]));
        assert!(!matches(user("alice"), "Alice", &["alice"]));
        assert!(matches(user("*"), "", &[]));
        assert!(matches(group("devs"), "alice", &["ops", "devs"]));
        assert!(!matches(group("devs"), "devs", &["dev", "devs2"]));
        assert!(matches(group("*"), "alice", &[]));
    }

    #[test]
    fn service_accounts_match_by_user_name() {
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
    fn malformed_namespaces_match_as_prefixes_as_upstream() {
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
    fn a_subject_whose_member_is_of_another_kind_matches_nothing() {
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
    fn each_list_is_a_bit_and_surplus_lists_are_ignored() {
        let lists = vec![[group("devs"), user("alice")]; Subjects::MAX_LISTS + 1];
        let subjects = Subjects::new(lists.iter().map(|list| &list[..]));
        let alice = UserInfo {
            name: "alice".to_owned(),
            ..UserInfo::default()
        };
        assert_eq!(subjects.lists_of(&alice), ListBits::MAX);
        assert_eq!(subjects.lists_of(&UserInfo::anonymous()), 0);
    }
}
