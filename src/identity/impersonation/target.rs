//! Whom a request wants to be taken for (`Impersonate-User`, `-Group`, `-Uid`, `-Extra-*`), and what it must be allowed for that. Pure.
//!
//! Read as `impersonation.WithImpersonation` (Kubernetes 1.36) reads it, and checked in the order of its classic mode. The constrained
//! modes of `ConstrainedImpersonation` depend on the request and on rules that name it: they are the API server's to decide. What can
//! be read in two ways is not read at all ([`Unclear`]): who decides by it must not see another user than who is sent on.

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use http::HeaderName;
use http::HeaderValue;

use crate::api::UserInfo;
use crate::api::user::ANONYMOUS;
use crate::api::user::GROUP_UNAUTHENTICATED;
use crate::identity::request_header::unescape_extra_key;

const HEADER_PREFIX: &str = "impersonate-";
const USER_HEADER: &str = "impersonate-user";
const GROUP_HEADER: &str = "impersonate-group";
const UID_HEADER: &str = "impersonate-uid";
const EXTRA_PREFIX: &str = "impersonate-extra-";

/// The API group of uids and extra values; users, groups and service accounts are of the core group.
const AUTHENTICATION_GROUP: &str = "authentication.k8s.io";

/// Most things that a request may impersonate at once, each of which takes a review of its own. People are in some hundreds of
/// groups at most; in 1 MiB of headers there is room for 40,000.
const MAX_PERMISSIONS: usize = 500;

/// The user that a request wants to be taken for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImpersonationTarget {
    /// Who that is, with the groups that the API server adds.
    pub user: Arc<UserInfo>,
    /// What who asks must be allowed, in the order in which the API server looks at it. Never empty.
    pub required_permissions: Vec<ImpersonationPermission>,
}

/// A thing that may be impersonated, as the API server's authorizer is asked about it (verb `impersonate`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImpersonationPermission {
    /// `authentication.k8s.io`, or the core group.
    pub group: &'static str,
    /// `users`, `serviceaccounts`, `groups`, `uids` or `userextras`.
    pub resource: &'static str,
    /// The key of an extra value.
    pub subresource: String,
    /// The namespace of a service account.
    pub namespace: String,
    /// Its name or value.
    pub name: String,
}

/// What a request wants cannot be told for certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidImpersonation {
    /// A group, uid or extra value, and no user.
    MissingUser,
    /// A header that may come once only.
    Repeated(&'static str),
    /// The key of an extra value that is no key: empty, with capitals, or not to be decoded.
    InvalidExtraKey(HeaderName),
    /// More than anybody needs.
    TooMany,
    /// A header of this family that the API server does not know, or one of another spelling.
    UnknownHeader(HeaderName),
    /// A value that others than weir may read otherwise: not UTF-8, or with space around it.
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
                "{name} does not end in the key of an extra value, in lower case and percent-encoded"
            ),
            Self::TooMany => write!(
                f,
                "a request may impersonate {MAX_PERMISSIONS} users, groups, uids and extra values at most"
            ),
            Self::UnknownHeader(name) => write!(f, "{name} is no header that impersonates"),
            Self::InvalidValue(name) => write!(
                f,
                "the value of {name} must be UTF-8, without space around it"
            ),
        }
    }
}

/// Whether a request may want to be taken for somebody else's, in any spelling.
#[must_use]
pub fn has_impersonation(headers: &HeaderMap) -> bool {
    headers.keys().any(is_impersonation_header)
}

/// Whether a header of this name is of this family, in any spelling: a hop behind may take underscores for dashes.
#[must_use]
pub fn is_impersonation_header(name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    name.len() >= HEADER_PREFIX.len()
        && HEADER_PREFIX
            .bytes()
            .zip(name)
            .all(|(p, n)| p == *n || (p == b'-' && *n == b'_'))
}

/// Whom a request wants to be taken for, if for anybody else.
///
/// # Errors
/// [`Unclear`]: it cannot be told.
pub fn impersonation_target(
    headers: &HeaderMap,
) -> Result<Option<ImpersonationTarget>, InvalidImpersonation> {
    let mut user = UserInfo::default();
    let mut extra_given = false;
    for name in headers.keys().filter(|name| is_impersonation_header(name)) {
        match name.as_str() {
            USER_HEADER => user.name = single_value(headers, USER_HEADER, name)?,
            UID_HEADER => user.uid = single_value(headers, UID_HEADER, name)?,
            GROUP_HEADER => user.groups = all_values(headers, name)?,
            other => {
                let Some(key) = other.strip_prefix(EXTRA_PREFIX) else {
                    return Err(InvalidImpersonation::UnknownHeader(name.clone()));
                };
                if user.extra.len() > MAX_PERMISSIONS {
                    return Err(InvalidImpersonation::TooMany);
                }
                extra_given = true;
                let key = parse_extra_key(key)
                    .ok_or_else(|| InvalidImpersonation::InvalidExtraKey(name.clone()))?;
                let values = all_values(headers, name)?;
                match user.extra.iter_mut().find(|(known, _)| *known == key) {
                    Some((_, known)) => known.extend(values),
                    None => user.extra.push((key, values)),
                }
            }
        }
    }
    if user.name.is_empty() {
        let others = extra_given || !user.groups.is_empty() || !user.uid.is_empty();
        return if others {
            Err(InvalidImpersonation::MissingUser)
        } else {
            Ok(None)
        };
    }
    let rights = required_permissions(&user);
    if rights.len() > MAX_PERMISSIONS {
        return Err(InvalidImpersonation::TooMany);
    }
    let user = Arc::new(with_implied_groups(user));
    Ok(Some(ImpersonationTarget {
        user,
        required_permissions: rights,
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
    let mut texts = Vec::new();
    for value in headers.get_all(name) {
        if texts.len() > MAX_PERMISSIONS {
            return Err(InvalidImpersonation::TooMany);
        }
        texts.push(
            header_text(value).ok_or_else(|| InvalidImpersonation::InvalidValue(name.clone()))?,
        );
    }
    Ok(texts)
}

/// Go's server takes space off around the values of HTTP/1.1, and not off those of HTTP/2.
fn header_text(value: &HeaderValue) -> Option<String> {
    let text = str::from_utf8(value.as_bytes()).ok()?;
    (text.trim_ascii() == text).then(|| text.to_owned())
}

/// One that is the same when it is written and read again.
fn parse_extra_key(escaped: &str) -> Option<String> {
    let key = unescape_extra_key(escaped);
    let clean = !key.is_empty()
        && !key.contains('%')
        && !key.bytes().any(|byte| byte.is_ascii_uppercase())
        && !key.contains(char::is_control);
    clean.then_some(key)
}

fn required_permissions(user: &UserInfo) -> Vec<ImpersonationPermission> {
    let of = |group, resource, name: &str| ImpersonationPermission {
        group,
        resource,
        subresource: String::new(),
        namespace: String::new(),
        name: name.to_owned(),
    };
    let mut rights = vec![match split_service_account(&user.name) {
        Some((namespace, name)) => ImpersonationPermission {
            namespace: namespace.to_owned(),
            ..of("", "serviceaccounts", name)
        },
        None => of("", "users", &user.name),
    }];
    if !user.uid.is_empty() {
        rights.push(of(AUTHENTICATION_GROUP, "uids", &user.uid));
    }
    rights.extend(user.groups.iter().map(|group| of("", "groups", group)));
    for (key, values) in &user.extra {
        rights.extend(values.iter().map(|value| ImpersonationPermission {
            subresource: key.clone(),
            ..of(AUTHENTICATION_GROUP, "userextras", value)
        }));
    }
    rights
}

/// With what the API server adds: the groups of a service account that was named without any, and whether it is somebody.
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

/// Namespace and name of a service account's user (`serviceaccount.SplitUsername`).
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
    /// How the API server says that `who` has not got it (`responsewriters.ForbiddenStatusError`).
    #[must_use]
    pub fn forbidden_message(&self, who: &str, reason: &str) -> String {
        let Self {
            group,
            resource,
            subresource,
            namespace,
            name,
        } = self;
        let mut message = (*resource).to_owned();
        if !group.is_empty() {
            message = format!("{message}.{group}");
        }
        if !name.is_empty() {
            message = format!("{message} {name:?}");
        }
        let what = if subresource.is_empty() {
            (*resource).to_owned()
        } else {
            format!("{resource}/{subresource}")
        };
        let place = if namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {namespace:?}")
        };
        message = format!(
            "{message} is forbidden: User {who:?} cannot impersonate resource {what:?} in API group {group:?} {place}"
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
