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

const PREFIX: &str = "impersonate-";
const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// The API group of uids and extra values; users, groups and service accounts are of the core group.
const AUTHENTICATION: &str = "authentication.k8s.io";

/// Most things that a request may impersonate at once, each of which takes a review of its own. People are in some hundreds of
/// groups at most; in 1 MiB of headers there is room for 40,000.
const MOST: usize = 500;

/// The user that a request wants to be taken for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Who that is, with the groups that the API server adds.
    pub user: Arc<UserInfo>,
    /// What who asks must be allowed, in the order in which the API server looks at it. Never empty.
    pub rights: Vec<Right>,
}

/// A thing that may be impersonated, as the API server's authorizer is asked about it (verb `impersonate`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
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
pub enum Unclear {
    /// A group, uid or extra value, and no user.
    NoUser,
    /// A header that may come once only.
    Repeated(&'static str),
    /// The key of an extra value that is no key: empty, with capitals, or not to be decoded.
    Key(HeaderName),
    /// More than anybody needs.
    TooMany,
    /// A header of this family that the API server does not know, or one of another spelling.
    Unknown(HeaderName),
    /// A value that others than weir may read otherwise: not UTF-8, or with space around it.
    Value(HeaderName),
}

impl fmt::Display for Unclear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUser => f.write_str(
                "requested groups, a uid or extra values without impersonating a user name",
            ),
            Self::Repeated(name) => write!(f, "{name} must be given once"),
            Self::Key(name) => write!(
                f,
                "{name} does not end in the key of an extra value, in lower case and percent-encoded"
            ),
            Self::TooMany => write!(
                f,
                "a request may impersonate {MOST} users, groups, uids and extra values at most"
            ),
            Self::Unknown(name) => write!(f, "{name} is no header that impersonates"),
            Self::Value(name) => write!(
                f,
                "the value of {name} must be UTF-8, without space around it"
            ),
        }
    }
}

/// Whether a request may want to be taken for somebody else's, in any spelling.
#[must_use]
pub fn impersonates(headers: &HeaderMap) -> bool {
    headers.keys().any(is_impersonation)
}

/// Whether a header of this name is of this family, in any spelling: a hop behind may take underscores for dashes.
#[must_use]
pub fn is_impersonation(name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    name.len() >= PREFIX.len()
        && PREFIX
            .bytes()
            .zip(name)
            .all(|(p, n)| p == *n || (p == b'-' && *n == b'_'))
}

/// Whom a request wants to be taken for, if for anybody else.
///
/// # Errors
/// [`Unclear`]: it cannot be told.
pub fn wish(headers: &HeaderMap) -> Result<Option<Wish>, Unclear> {
    let mut user = UserInfo::default();
    let mut extra_given = false;
    for name in headers.keys().filter(|name| is_impersonation(name)) {
        match name.as_str() {
            USER => user.name = once(headers, USER, name)?,
            UID => user.uid = once(headers, UID, name)?,
            GROUP => user.groups = all(headers, name)?,
            other => {
                let Some(key) = other.strip_prefix(EXTRA) else {
                    return Err(Unclear::Unknown(name.clone()));
                };
                if user.extra.len() > MOST {
                    return Err(Unclear::TooMany);
                }
                extra_given = true;
                let key = extra_key(key).ok_or_else(|| Unclear::Key(name.clone()))?;
                let values = all(headers, name)?;
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
            Err(Unclear::NoUser)
        } else {
            Ok(None)
        };
    }
    let rights = rights(&user);
    if rights.len() > MOST {
        return Err(Unclear::TooMany);
    }
    let user = Arc::new(with_groups(user));
    Ok(Some(Wish { user, rights }))
}

fn once(headers: &HeaderMap, header: &'static str, name: &HeaderName) -> Result<String, Unclear> {
    let mut values = all(headers, name)?.into_iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        _ => Err(Unclear::Repeated(header)),
    }
}

fn all(headers: &HeaderMap, name: &HeaderName) -> Result<Vec<String>, Unclear> {
    let mut texts = Vec::new();
    for value in headers.get_all(name) {
        if texts.len() > MOST {
            return Err(Unclear::TooMany);
        }
        texts.push(text(value).ok_or_else(|| Unclear::Value(name.clone()))?);
    }
    Ok(texts)
}

/// Go's server takes space off around the values of HTTP/1.1, and not off those of HTTP/2.
fn text(value: &HeaderValue) -> Option<String> {
    let text = str::from_utf8(value.as_bytes()).ok()?;
    (text.trim_ascii() == text).then(|| text.to_owned())
}

/// One that is the same when it is written and read again.
fn extra_key(escaped: &str) -> Option<String> {
    let key = unescape_extra_key(escaped);
    let clean = !key.is_empty()
        && !key.contains('%')
        && !key.bytes().any(|byte| byte.is_ascii_uppercase())
        && !key.contains(char::is_control);
    clean.then_some(key)
}

fn rights(user: &UserInfo) -> Vec<Right> {
    let of = |group, resource, name: &str| Right {
        group,
        resource,
        subresource: String::new(),
        namespace: String::new(),
        name: name.to_owned(),
    };
    let mut rights = vec![match service_account(&user.name) {
        Some((namespace, name)) => Right {
            namespace: namespace.to_owned(),
            ..of("", "serviceaccounts", name)
        },
        None => of("", "users", &user.name),
    }];
    if !user.uid.is_empty() {
        rights.push(of(AUTHENTICATION, "uids", &user.uid));
    }
    rights.extend(user.groups.iter().map(|group| of("", "groups", group)));
    for (key, values) in &user.extra {
        rights.extend(values.iter().map(|value| Right {
            subresource: key.clone(),
            ..of(AUTHENTICATION, "userextras", value)
        }));
    }
    rights
}

/// With what the API server adds: the groups of a service account that was named without any, and whether it is somebody.
fn with_groups(mut user: UserInfo) -> UserInfo {
    if user.groups.is_empty()
        && let Some((namespace, _)) = service_account(&user.name)
    {
        user.groups = vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
        ];
    }
    if user.name == ANONYMOUS && !user.in_group(GROUP_UNAUTHENTICATED) {
        user.groups.push(GROUP_UNAUTHENTICATED.to_owned());
    }
    user.authenticated()
}

/// Namespace and name of a service account's user (`serviceaccount.SplitUsername`).
fn service_account(user: &str) -> Option<(&str, &str)> {
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

impl Right {
    /// How the API server says that `who` has not got it (`responsewriters.ForbiddenStatusError`).
    #[must_use]
    pub fn refusal(&self, who: &str, reason: &str) -> String {
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
#[path = "impersonation_tests.rs"]
mod tests;
