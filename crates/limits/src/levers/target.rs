//! Which requests a lever is for.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::admission_attributes::{AdmissionAttributes, RequestSource};
use weir_kubernetes::api::UserInfo;

/// Before the namespace and the name of a service account in the name of its user.
pub(super) const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// The most values of a target. Each is compared with every request.
pub const MAX_VALUES: usize = 64;

/// The longest value in bytes. A header may have a million.
pub const MAX_VALUE_BYTES: usize = 1024;

/// At the end of a name that top talkers have truncated.
const ELLIPSIS: char = '…';

/// A shorter name has not been truncated: top talkers show 189 bytes at least of a longer one, verb or
/// `system:serviceaccount:` included.
const LEAST_TRUNCATED_BYTES: usize = 160;

/// The requests that a lever is for. A request has to match every field that has values, and one
/// value of each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LeverTarget {
    /// Names of users.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<NamePattern>,
    /// Groups of users.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<NamePattern>,
    /// Service accounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub service_accounts: Vec<ServiceAccountPattern>,
    /// `User-Agent` headers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub user_agents: Vec<NamePattern>,
    /// Namespaces of requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<NamePattern>,
    /// Resources as `pods`, `deployments.apps` or `pods/log`; the path of any other request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<NamePattern>,
    /// Verbs, as Kubernetes spells them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verbs: Vec<NamePattern>,
    /// Addresses of clients.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceRange>,
}

/// What a value of a target is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPattern(String);

impl fmt::Display for InvalidPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidPattern {}

/// A name, or with `*` at its end the beginning of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NamePattern {
    /// Without the `*`.
    text: String,
    is_prefix: bool,
}

impl NamePattern {
    pub(super) fn exact(name: &str) -> Self {
        Self {
            text: name.to_owned(),
            is_prefix: false,
        }
    }

    pub(super) fn prefix(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            is_prefix: true,
        }
    }

    /// Whether it matches `name`.
    #[must_use]
    pub fn matches(&self, name: &[u8]) -> bool {
        self.matches_joined(&[name])
    }

    /// Whether it matches the name that these parts make together.
    fn matches_joined(&self, parts: &[&[u8]]) -> bool {
        let mut rest = self.text.as_bytes();
        for part in parts {
            if rest.len() < part.len() {
                return self.is_prefix && part.starts_with(rest);
            }
            let Some(after) = rest.strip_prefix(*part) else {
                return false;
            };
            rest = after;
        }
        rest.is_empty()
    }

    /// Whether there is a name that both match.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        match (self.is_prefix, other.is_prefix) {
            (false, _) => other.matches(self.text.as_bytes()),
            (true, false) => self.matches(other.text.as_bytes()),
            (true, true) => {
                self.text.starts_with(&other.text) || other.text.starts_with(&self.text)
            }
        }
    }
}

impl FromStr for NamePattern {
    type Err = InvalidPattern;

    /// A truncated name of the top talkers is the beginning of one, too. A client may call itself so,
    /// but only by as long a name: a short one would be the beginning of others' names.
    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        check_text(text)?;
        let truncated = text.strip_suffix(ELLIPSIS);
        let truncated = truncated.filter(|_| text.len() >= LEAST_TRUNCATED_BYTES);
        Ok(match text.strip_suffix('*').or(truncated) {
            Some(prefix) => Self::prefix(prefix),
            None => Self::exact(text),
        })
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        f.write_str(if self.is_prefix { "*" } else { "" })
    }
}

/// A service account as `NAMESPACE:NAME`, each with `*` at its end or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceAccountPattern(NamePattern);

impl ServiceAccountPattern {
    /// The names of its users.
    pub(super) const fn user(&self) -> &NamePattern {
        &self.0
    }

    /// Whether it matches the user of this name.
    #[must_use]
    pub fn matches_user(&self, name: &[u8]) -> bool {
        self.0.matches(name)
    }
}

impl FromStr for ServiceAccountPattern {
    type Err = InvalidPattern;

    /// Also the name of its user, and with a `/` in place of the `:`.
    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        let account = text.strip_prefix(SERVICE_ACCOUNT_PREFIX).unwrap_or(text);
        check_text(account)?;
        let name = account.split_once([':', '/']);
        let user = match name {
            Some((namespace, name))
                if is_name(namespace) && is_name(name.trim_end_matches('*')) =>
            {
                format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}")
            }
            Some((namespace, "*")) if is_name(namespace) => {
                format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:*")
            }
            None if account.ends_with('*') => format!("{SERVICE_ACCOUNT_PREFIX}{account}"),
            Some(_) | None => {
                let message = format!("{text:?} is no service account: give it as NAMESPACE:NAME");
                return Err(InvalidPattern(message));
            }
        };
        user.parse().map(Self)
    }
}

/// Whether it may be a part of a service account's name.
fn is_name(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    !text.is_empty() && text.chars().all(is_allowed)
}

impl fmt::Display for ServiceAccountPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.0.to_string();
        f.write_str(user.strip_prefix(SERVICE_ACCOUNT_PREFIX).unwrap_or(&user))
    }
}

/// An address, or a network as `ADDRESS/BITS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SourceRange(IpNet);

impl SourceRange {
    /// Whether the address is in it. One of IPv4 may be written as one of IPv6.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for SourceRange {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        let address = text
            .parse()
            .map(|ip: IpAddr| IpNet::from(ip.to_canonical()));
        let network = address.or_else(|_| text.parse::<IpNet>());
        network.map(|network| Self(network.trunc())).map_err(|_| {
            InvalidPattern(format!(
                "{text:?} is no address and no network such as 10.0.0.0/8"
            ))
        })
    }
}

impl fmt::Display for SourceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            return self.0.addr().fmt(f);
        }
        self.0.fmt(f)
    }
}

fn check_text(text: &str) -> Result<(), InvalidPattern> {
    if text.is_empty() {
        return Err(InvalidPattern("a value is empty".to_owned()));
    }
    if text.len() > MAX_VALUE_BYTES {
        let message = format!("a value has more than {MAX_VALUE_BYTES} bytes");
        return Err(InvalidPattern(message));
    }
    if text.chars().any(char::is_control) {
        return Err(InvalidPattern(format!("{text:?} has control characters")));
    }
    Ok(())
}

/// Serde's conversions, by the text of a value.
macro_rules! as_text {
    ($($pattern:ty),*) => {$(
        impl TryFrom<String> for $pattern {
            type Error = InvalidPattern;

            fn try_from(text: String) -> Result<Self, InvalidPattern> {
                text.parse()
            }
        }

        impl From<$pattern> for String {
            fn from(pattern: $pattern) -> Self {
                pattern.to_string()
            }
        }
    )*};
}

as_text!(NamePattern, ServiceAccountPattern, SourceRange);

impl LeverTarget {
    /// Whether it has no field with values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it names users: by their names, groups or service accounts.
    #[must_use]
    pub fn names_users(&self) -> bool {
        !(self.users.is_empty() && self.groups.is_empty() && self.service_accounts.is_empty())
    }

    /// The number of values of all fields.
    #[must_use]
    pub fn value_count(&self) -> usize {
        [
            self.users.len(),
            self.groups.len(),
            self.service_accounts.len(),
            self.user_agents.len(),
            self.namespaces.len(),
            self.resources.len(),
            self.verbs.len(),
            self.sources.len(),
        ]
        .iter()
        .sum()
    }

    /// Whether a user of this name could match.
    #[must_use]
    pub fn may_match_user(&self, name: &[u8]) -> bool {
        any(&self.users, |pattern| pattern.matches(name))
            && any(&self.service_accounts, |pattern| pattern.matches_user(name))
    }

    /// Whether `RESOURCE[.GROUP][/SUBRESOURCE]` or another path matches.
    #[must_use]
    pub fn matches_resource(&self, text: &str) -> bool {
        let (name, subresource) = match text.find('/') {
            Some(0) | None => (text, ""), // a path
            Some(slash) => text.split_at(slash),
        };
        let without_group = name.split_once('.').map_or(name, |(name, _)| name);
        any(&self.resources, |resource| {
            resource.matches(text.as_bytes())
                || resource.matches_joined(&[without_group.as_bytes(), subresource.as_bytes()])
        })
    }

    /// Whether a request matches.
    #[must_use]
    pub fn matches(&self, attributes: &AdmissionAttributes<'_>, source: RequestSource<'_>) -> bool {
        let info = attributes.info;
        self.matches_user(attributes.user)
            && any(&self.user_agents, |agent| agent.matches(source.user_agent))
            && any(&self.namespaces, |name| name.matches(info.namespace()))
            && any(&self.verbs, |verb| {
                verb.matches(info.verb().as_str().as_bytes())
            })
            && any(&self.resources, |resource| {
                if !info.is_resource_request() {
                    return resource.matches(info.path());
                }
                let slash: &[u8] = if info.subresource().is_empty() {
                    b""
                } else {
                    b"/"
                };
                let (name, group) = (info.resource(), info.api_group());
                resource.matches_joined(&[name, slash, info.subresource()])
                    || (!group.is_empty()
                        && resource.matches_joined(&[name, b".", group, slash, info.subresource()]))
            })
            && any(&self.sources, |range| range.contains(source.address))
    }

    /// Whether all requests of a client match, whatever they are: by its user and its address.
    #[must_use]
    pub fn matches_client(&self, user: &UserInfo, address: IpAddr) -> bool {
        self.user_agents.is_empty()
            && self.namespaces.is_empty()
            && self.resources.is_empty()
            && self.verbs.is_empty()
            && self.matches_user(user)
            && any(&self.sources, |range| range.contains(address))
    }

    /// A client whose token nothing has verified has no user that a target could name.
    fn matches_user(&self, user: &UserInfo) -> bool {
        if !self.names_users() {
            return true;
        }
        let name = user.name.as_bytes();
        !user.is_unverified()
            && self.may_match_user(name)
            && any(&self.groups, |pattern| {
                let mut groups = user.groups.iter();
                groups.any(|group| pattern.matches(group.as_bytes()))
            })
    }
}

/// Whether a value is met. A field without values is.
fn any<T>(values: &[T], is_met: impl FnMut(&T) -> bool) -> bool {
    values.is_empty() || values.iter().any(is_met)
}

impl fmt::Display for LeverTarget {
    /// As the flags of `weir ctl`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            users,
            groups,
            service_accounts,
            user_agents,
            namespaces,
            resources,
            verbs,
            sources,
        } = self;
        let mut separator = "";
        let mut write = |flag: &str, value: &dyn fmt::Display| {
            let text = value.to_string();
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@*".contains(c);
            let result = if text.chars().all(is_plain) {
                write!(f, "{separator}{flag}={text}")
            } else {
                write!(f, "{separator}{flag}={text:?}")
            };
            separator = " ";
            result
        };
        users.iter().try_for_each(|one| write("user", one))?;
        groups.iter().try_for_each(|one| write("group", one))?;
        service_accounts
            .iter()
            .try_for_each(|one| write("service-account", one))?;
        user_agents
            .iter()
            .try_for_each(|one| write("user-agent", one))?;
        namespaces
            .iter()
            .try_for_each(|one| write("namespace", one))?;
        resources
            .iter()
            .try_for_each(|one| write("resource", one))?;
        verbs.iter().try_for_each(|one| write("verb", one))?;
        sources.iter().try_for_each(|one| write("source", one))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_kubernetes::request_info::RequestInfo;

    fn pattern(text: &str) -> NamePattern {
        text.parse().unwrap()
    }

    fn user(name: &str, groups: &[&str]) -> UserInfo {
        UserInfo {
            name: name.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..UserInfo::default()
        }
    }

    fn matches(target: &LeverTarget, user: &UserInfo, line: &str, agent: &str) -> bool {
        let (method, path) = line.split_once(' ').unwrap();
        let info = RequestInfo::parse(method, path.as_bytes()).unwrap();
        let attributes = AdmissionAttributes { info: &info, user };
        let source = RequestSource {
            address: "::ffff:10.1.2.3".parse().unwrap(),
            user_agent: agent.as_bytes(),
        };
        target.matches(&attributes, source)
    }

    /// The resource as the top talkers show it.
    fn shown_resource(line: &str) -> String {
        let (method, path) = line.split_once(' ').unwrap();
        let info = RequestInfo::parse(method, path.as_bytes()).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        if !info.is_resource_request() {
            return text(info.path());
        }
        let mut shown = text(info.resource());
        for (separator, part) in [(".", info.api_group()), ("/", info.subresource())] {
            if !part.is_empty() {
                shown = format!("{shown}{separator}{}", text(part));
            }
        }
        shown
    }

    #[test]
    fn a_name_matches_itself_and_a_star_what_begins_alike() {
        for (text, name, expected) in [
            ("alice", "alice", true),
            ("alice", "alice2", false),
            ("alice", "alic", false),
            ("ali*", "alice", true),
            ("alice*", "alice", true),
            ("ali*", "bob", false),
            ("*", "", true),
            ("…", "alice", false),
            ("curl/8…", "curl/8.1", false),
            ("curl/8…", "curl/8…", true),
        ] {
            assert_eq!(
                pattern(text).matches(name.as_bytes()),
                expected,
                "{text} {name}"
            );
        }
        let long = "x".repeat(LEAST_TRUNCATED_BYTES);
        assert!(pattern(&format!("{long}…")).matches(format!("{long}y").as_bytes()));
        let joined = pattern("pods/lo*");
        assert!(joined.matches_joined(&[b"pods", b"/", b"log"]));
        assert!(!joined.matches_joined(&[b"pods"]));
    }

    #[test]
    fn patterns_overlap_if_one_name_can_match_both() {
        for (a, b, expected) in [
            ("a", "a", true),
            ("a", "b", false),
            ("a*", "ab", true),
            ("ab*", "a", false),
            ("a*", "ab*", true),
            ("ac*", "ab*", false),
        ] {
            assert_eq!(pattern(a).overlaps(&pattern(b)), expected, "{a} {b}");
            assert_eq!(pattern(b).overlaps(&pattern(a)), expected, "{b} {a}");
        }
    }

    #[test]
    fn fields_are_joined_by_and_and_their_values_by_or() {
        let alice = user("alice", &["devs", "system:authenticated"]);
        let mut target = LeverTarget {
            users: vec![pattern("bob"), pattern("alice")],
            ..LeverTarget::default()
        };
        let list = "GET /apis/apps/v1/namespaces/web/deployments";
        assert!(matches(&target, &alice, list, ""));
        target.groups = vec![pattern("ops"), pattern("dev*")];
        target.verbs = vec![pattern("list")];
        target.namespaces = vec![pattern("web")];
        target.sources = vec!["10.0.0.0/8".parse().unwrap()];
        target.user_agents = vec![pattern("curl/*")];
        assert!(matches(&target, &alice, list, "curl/8"));
        assert!(!matches(&target, &alice, list, "wget"));
        assert!(!matches(&target, &alice, &format!("{list}/a"), "curl/8"));
        target.sources = vec!["10.1.2.4".parse().unwrap()];
        assert!(!matches(&target, &alice, list, "curl/8"));
    }

    #[test]
    fn a_resource_is_named_with_or_without_its_group() {
        let alice = user("alice", &[]);
        for (resource, line, expected) in [
            ("deployments", "GET /apis/apps/v1/deployments", true),
            ("deployments.apps", "GET /apis/apps/v1/deployments", true),
            (
                "deployments.extensions",
                "GET /apis/apps/v1/deployments",
                false,
            ),
            (
                "deployments.apps/scale",
                "GET /apis/apps/v1/namespaces/a/deployments/b/scale",
                true,
            ),
            ("pods", "GET /api/v1/pods", true),
            ("pods", "GET /api/v1/namespaces/a/pods/b/log", false),
            ("pods/log", "GET /api/v1/namespaces/a/pods/b/log", true),
            ("pods*", "GET /api/v1/namespaces/a/pods/b/log", true),
            ("/version", "GET /version", true),
        ] {
            let target = LeverTarget {
                resources: vec![pattern(resource)],
                ..LeverTarget::default()
            };
            assert_eq!(
                matches(&target, &alice, line, ""),
                expected,
                "{resource} {line}"
            );
            let shown = shown_resource(line);
            assert_eq!(
                target.matches_resource(&shown),
                expected,
                "{resource} {shown}"
            );
        }
    }

    #[test]
    fn service_accounts_are_given_as_kubectl_gives_them() {
        let builder = user("system:serviceaccount:ci:builder", &[]);
        for (text, expected) in [
            ("ci:builder", true),
            ("ci/builder", true),
            ("ci:*", true),
            ("ci:b*", true),
            ("*", true),
            ("system:serviceaccount:ci:builder", true),
            ("ci:other", false),
            ("c:*", false),
        ] {
            let target = LeverTarget {
                service_accounts: vec![text.parse().unwrap()],
                ..LeverTarget::default()
            };
            assert_eq!(
                matches(&target, &builder, "GET /version", ""),
                expected,
                "{text}"
            );
        }
        for text in ["builder", "", "a:b:c", ":a", "a:", "*:a"] {
            assert!(text.parse::<ServiceAccountPattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_unverified_user_is_matched_by_no_name() {
        let stranger = UserInfo::unverified("10.1.2.3".to_owned());
        let all = LeverTarget {
            users: vec![pattern("*")],
            ..LeverTarget::default()
        };
        assert!(!matches(&all, &stranger, "GET /version", ""));
        let by_agent = LeverTarget {
            user_agents: vec![pattern("curl*")],
            ..LeverTarget::default()
        };
        assert!(matches(&by_agent, &stranger, "GET /version", "curl/8"));
    }

    #[test]
    fn a_target_is_the_same_after_json_and_prints_as_flags() {
        let target = LeverTarget {
            users: vec![pattern("alice"), pattern("b o*")],
            service_accounts: vec!["ci:*".parse().unwrap()],
            sources: vec!["10.0.0.1/8".parse().unwrap(), "fd00::1".parse().unwrap()],
            ..LeverTarget::default()
        };
        assert_eq!(
            target.to_string(),
            r#"user=alice user="b o*" service-account=ci:* source=10.0.0.0/8 source=fd00::1"#
        );
        let text = serde_json::to_string(&target).unwrap();
        assert_eq!(serde_json::from_str::<LeverTarget>(&text).unwrap(), target);
        for invalid in [
            r#"{"user":["a"]}"#,
            r#"{"users":[""]}"#,
            r#"{"sources":["a"]}"#,
        ] {
            assert!(
                serde_json::from_str::<LeverTarget>(invalid).is_err(),
                "{invalid}"
            );
        }
    }
}
