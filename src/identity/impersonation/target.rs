//! Parses the impersonation headers (`Impersonate-User`, `-Group`, `-Uid`, `-Extra-*`), and lists
//! the permissions that they require. Pure.
//!
//! Headers are read like `impersonation.WithImpersonation` (Kubernetes 1.36) reads them, and
//! permissions are checked in the order of its classic mode. The constrained modes of
//! `ConstrainedImpersonation` depend on the request and on rules that name it, so the API server
//! decides about them. Headers that can be read in two ways are rejected
//! ([`InvalidImpersonation`]): the authorization must not be about another user than the one that
//! is forwarded.

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::identity::request_header::unescape_extra_key;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::user::{ANONYMOUS, GROUP_UNAUTHENTICATED};
use weir_kubernetes::encoding::go_text;

const HEADER_PREFIX: &str = "impersonate-";
const USER_HEADER: &str = "impersonate-user";
const GROUP_HEADER: &str = "impersonate-group";
const UID_HEADER: &str = "impersonate-uid";
const EXTRA_PREFIX: &str = "impersonate-extra-";

/// The API group of uids and extra values. Users, groups and service accounts are in the core
/// group.
const AUTHENTICATION_GROUP: &str = "authentication.k8s.io";

/// The most permissions that a request may require, each of which takes a review. Users are in some
/// hundreds of groups at most. 1 MiB of headers has room for 40,000.
const MAX_PERMISSIONS: usize = 500;

/// The most bytes of a name, a value or a key: each is held until its review is complete, when the
/// request may have ended.
const MAX_TEXT_BYTES: usize = 4 << 10;

/// The user that a request impersonates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImpersonationTarget {
    /// The impersonated user, with the groups that the API server adds.
    pub(crate) user: Arc<UserInfo>,
    /// The permissions that the requester needs, in the order in which the API server checks them.
    /// Never empty.
    pub(crate) required_permissions: Vec<ImpersonationPermission>,
}

/// A permission to impersonate, as the attributes of an access review (verb `impersonate`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImpersonationPermission {
    /// `authentication.k8s.io`, or the core group.
    pub(crate) group: &'static str,
    /// `users`, `serviceaccounts`, `groups`, `uids` or `userextras`.
    pub(crate) resource: &'static str,
    /// The key of an extra value.
    pub(crate) subresource: String,
    /// The namespace of a service account.
    pub(crate) namespace: String,
    /// The name of the user, service account or group, or the value of the uid or extra field.
    pub(crate) name: String,
}

/// How impersonation headers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderRules {
    /// weir decides and asserts the target: headers that a hop may read in another way, or that
    /// change when encoded again, are invalid.
    Asserted,
    /// The headers are forwarded and the API server decides: unknown headers are ignored, and every
    /// key of an extra value is valid, as there.
    Forwarded,
}

/// Why impersonation headers are rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvalidImpersonation {
    /// A group, uid or extra value without a user.
    MissingUser,
    /// A header that may be present only once.
    Repeated(&'static str),
    /// An invalid key of an extra value: empty, too long, with upper-case letters, or not decodable.
    InvalidExtraKey(HeaderName),
    /// More permissions than `MAX_PERMISSIONS`.
    TooMany,
    /// An impersonation header that the API server does not know, or one in another spelling.
    UnknownHeader(HeaderName),
    /// A value that the API server may read differently, not UTF-8 or surrounded by white space, or
    /// that is too long.
    InvalidValue(HeaderName),
}

impl fmt::Display for InvalidImpersonation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingUser => f.write_str(
                "requested groups, a uid or extra values without impersonating a user name",
            ),
            Self::Repeated(name) => write!(f, "{name} must be given once"),
            Self::InvalidExtraKey(name) => write!(
                f,
                "{name} does not end in the key of an extra value: lower case, percent-encoded, of {MAX_TEXT_BYTES} bytes at most"
            ),
            Self::TooMany => write!(
                f,
                "a request may impersonate {MAX_PERMISSIONS} users, groups, uids and extra values at most"
            ),
            Self::UnknownHeader(name) => write!(f, "{name} is no header that impersonates"),
            Self::InvalidValue(name) => write!(
                f,
                "the value of {name} must be UTF-8 of {MAX_TEXT_BYTES} bytes at most, without space around it"
            ),
        }
    }
}

/// Whether a request has impersonation headers, in any spelling.
#[must_use]
pub(crate) fn has_impersonation(headers: &HeaderMap) -> bool {
    headers.keys().any(is_impersonation_header)
}

/// Whether this is an impersonation header, in any spelling: a later hop may treat underscores as
/// dashes.
#[must_use]
pub(crate) fn is_impersonation_header(name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    name.len() >= HEADER_PREFIX.len()
        && HEADER_PREFIX
            .bytes()
            .zip(name)
            .all(|(p, n)| p == *n || (p == b'-' && *n == b'_'))
}

/// The target of the impersonation; `None` if the request does not impersonate.
///
/// # Errors
/// [`InvalidImpersonation`] if the headers are invalid or ambiguous.
pub(crate) fn impersonation_target(
    headers: &HeaderMap,
    rules: HeaderRules,
) -> Result<Option<ImpersonationTarget>, InvalidImpersonation> {
    let mut user = UserInfo::default();
    let mut has_extra = false;
    for name in headers.keys().filter(|name| is_impersonation_header(name)) {
        match name.as_str() {
            USER_HEADER => user.name = single_value(headers, USER_HEADER, name)?,
            UID_HEADER => user.uid = single_value(headers, UID_HEADER, name)?,
            GROUP_HEADER => user.groups = all_values(headers, name)?,
            other => {
                let Some(key) = other.strip_prefix(EXTRA_PREFIX) else {
                    if rules == HeaderRules::Forwarded {
                        continue;
                    }
                    return Err(InvalidImpersonation::UnknownHeader(name.clone()));
                };
                if user.extra.len() > MAX_PERMISSIONS {
                    return Err(InvalidImpersonation::TooMany);
                }
                has_extra = true;
                let key = parse_extra_key(key, rules)
                    .ok_or_else(|| InvalidImpersonation::InvalidExtraKey(name.clone()))?;
                let values = all_values(headers, name)?;
                match user.extra.iter_mut().find(|(existing, _)| *existing == key) {
                    Some((_, existing)) => existing.extend(values),
                    None => user.extra.push((key, values)),
                }
            }
        }
    }
    if user.name.is_empty() {
        let has_others = has_extra || !user.groups.is_empty() || !user.uid.is_empty();
        return if has_others {
            Err(InvalidImpersonation::MissingUser)
        } else {
            Ok(None)
        };
    }
    let permissions = required_permissions(&user);
    if permissions.len() > MAX_PERMISSIONS {
        return Err(InvalidImpersonation::TooMany);
    }
    let user = Arc::new(with_implied_groups(user));
    Ok(Some(ImpersonationTarget {
        user,
        required_permissions: permissions,
    }))
}

fn single_value(
    headers: &HeaderMap,
    header: &'static str,
    name: &HeaderName,
) -> Result<String, InvalidImpersonation> {
    let mut values = all_values(headers, name)?.into_iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        _ => Err(InvalidImpersonation::Repeated(header)),
    }
}

fn all_values(headers: &HeaderMap, name: &HeaderName) -> Result<Vec<String>, InvalidImpersonation> {
    let mut values = Vec::new();
    for value in headers.get_all(name) {
        if values.len() > MAX_PERMISSIONS {
            return Err(InvalidImpersonation::TooMany);
        }
        values.push(
            header_text(value).ok_or_else(|| InvalidImpersonation::InvalidValue(name.clone()))?,
        );
    }
    Ok(values)
}

/// The text of a value. `None` if it is too long, or ambiguous: Go's server trims white space from
/// values in HTTP/1.1, but not in HTTP/2.
fn header_text(value: &HeaderValue) -> Option<String> {
    let bytes = value.as_bytes();
    if bytes.len() > MAX_TEXT_BYTES {
        return None;
    }
    let text = str::from_utf8(bytes).ok()?;
    (text.trim_ascii() == text).then(|| text.to_owned())
}

/// A key that weir asserts has to stay the same when encoded and decoded again.
fn parse_extra_key(escaped: &str, rules: HeaderRules) -> Option<String> {
    if escaped.len() > MAX_TEXT_BYTES {
        return None;
    }
    let key = unescape_extra_key(escaped);
    if rules == HeaderRules::Forwarded {
        return Some(key);
    }
    let clean = !key.is_empty()
        && !key.contains('%')
        && !key.bytes().any(|byte| byte.is_ascii_uppercase())
        && !key.contains(char::is_control);
    clean.then_some(key)
}

fn required_permissions(user: &UserInfo) -> Vec<ImpersonationPermission> {
    let permission = |group, resource, name: &str| ImpersonationPermission {
        group,
        resource,
        subresource: String::new(),
        namespace: String::new(),
        name: name.to_owned(),
    };
    let mut permissions = vec![match split_service_account(&user.name) {
        Some((namespace, name)) => ImpersonationPermission {
            namespace: namespace.to_owned(),
            ..permission("", "serviceaccounts", name)
        },
        None => permission("", "users", &user.name),
    }];
    if !user.uid.is_empty() {
        permissions.push(permission(AUTHENTICATION_GROUP, "uids", &user.uid));
    }
    permissions.extend(
        user.groups
            .iter()
            .map(|group| permission("", "groups", group)),
    );
    for (key, values) in &user.extra {
        permissions.extend(values.iter().map(|value| ImpersonationPermission {
            subresource: key.clone(),
            ..permission(AUTHENTICATION_GROUP, "userextras", value)
        }));
    }
    permissions
}

/// Adds the groups that the API server adds: those of a service account without groups, and the
/// group of authenticated or unauthenticated users.
fn with_implied_groups(mut user: UserInfo) -> UserInfo {
    if user.groups.is_empty()
        && let Some((namespace, _)) = split_service_account(&user.name)
    {
        user.groups = vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
        ];
    }
    if user.name == ANONYMOUS && !user.in_group(GROUP_UNAUTHENTICATED) {
        user.groups.push(GROUP_UNAUTHENTICATED.to_owned());
    }
    user.with_authenticated_group()
}

/// The namespace and name of a service account's user name (`serviceaccount.SplitUsername`).
fn split_service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user
        .strip_prefix("system:serviceaccount:")?
        .split_once(':')?;
    let label = |text: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        text.bytes().all(|byte| inner(byte) || byte == b'-')
            && text.bytes().next().is_some_and(inner)
            && text.bytes().next_back().is_some_and(inner)
    };
    let valid = namespace.len() <= 63
        && label(namespace)
        && name.len() <= 253
        && name.split('.').all(label);
    valid.then_some((namespace, name))
}

impl ImpersonationPermission {
    /// The API server's message for a denied permission (`responsewriters.ForbiddenStatusError`).
    #[must_use]
    pub(crate) fn forbidden_message(&self, user: &str, reason: &str) -> String {
        let Self {
            group,
            resource,
            subresource,
            namespace,
            name,
        } = self;
        let quote = |text: &str| go_text::quote(text.as_bytes());
        let mut message = (*resource).to_owned();
        if !group.is_empty() {
            message = format!("{message}.{group}");
        }
        if !name.is_empty() {
            message = format!("{message} {}", quote(name));
        }
        let full_resource = if subresource.is_empty() {
            (*resource).to_owned()
        } else {
            format!("{resource}/{subresource}")
        };
        let scope = if namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {}", quote(namespace))
        };
        message = format!(
            "{message} is forbidden: User {} cannot impersonate resource {} in API group {} {scope}",
            quote(user),
            quote(&full_resource),
            quote(group)
        );
        if reason.is_empty() {
            message
        } else {
            format!("{message}: {reason}")
        }
    }
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
