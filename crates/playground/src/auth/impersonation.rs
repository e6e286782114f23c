//! Impersonation by headers: the requested user and the permissions that it requires.
//!
//! Whether the original user has these permissions is decided by `authorization`.

use crate::auth::authorization::AccessAttributes;
use crate::auth::user::{ANONYMOUS, ApiUser, GROUP_SERVICE_ACCOUNTS, GROUP_UNAUTHENTICATED};
use crate::percent::percent_decode;
use crate::status::StatusError;
use http::{HeaderMap, HeaderName};
use std::collections::BTreeMap;

/// The API group of uids and extra values.
const AUTHENTICATION_API_GROUP: &str = "authentication.k8s.io";

/// The full name of a service account.
struct ServiceAccountName {
    namespace: String,
    name: String,
}

/// The user that a request impersonates, if any, and the accesses that must be allowed for it.
pub(crate) fn impersonated_user(
    headers: &HeaderMap,
) -> Result<Option<(ApiUser, Vec<AccessAttributes>)>, StatusError> {
    let texts = |name: &str| -> Vec<String> {
        let values = headers.get_all(name).iter();
        values
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect()
    };
    let first = |name: &str| texts(name).into_iter().next().unwrap_or_default();
    let mut user = user_from_headers(headers, "impersonate-").unwrap_or_default();
    user.name = first("impersonate-user");
    user.groups = texts("impersonate-group");
    if user.name.is_empty() {
        let extra = |name: &HeaderName| name.as_str().starts_with("impersonate-extra-");
        let others = !user.groups.is_empty() || !first("impersonate-uid").is_empty();
        if others || headers.keys().any(extra) {
            let why = "requested groups, a uid or extra values without impersonating a user name";
            return Err(StatusError::bad_request(why));
        }
        return Ok(None);
    }
    let account = user.name.strip_prefix("system:serviceaccount:");
    let account = account.and_then(|rest| rest.split_once(':'));
    let account = account.map(|(namespace, name)| ServiceAccountName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    });
    let accesses = impersonation_attributes(&user, account.as_ref());
    if let (Some(account), true) = (&account, user.groups.is_empty()) {
        user.groups = vec![
            GROUP_SERVICE_ACCOUNTS.to_owned(),
            format!("{GROUP_SERVICE_ACCOUNTS}:{}", account.namespace),
        ];
    }
    if user.name == ANONYMOUS && !user.in_group(GROUP_UNAUTHENTICATED) {
        user.groups.push(GROUP_UNAUTHENTICATED.to_owned());
    }
    Ok(Some((user.with_authenticated_group(), accesses)))
}

/// The accesses that the impersonation of `user` requires. `account` is set if it is a service
/// account.
fn impersonation_attributes(
    user: &ApiUser,
    account: Option<&ServiceAccountName>,
) -> Vec<AccessAttributes> {
    let access =
        |group: &str, resource: &str, namespace: &str, name: &str| AccessAttributes::Resource {
            verb: "impersonate".to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
    let mut accesses = vec![match account {
        None => access("", "users", "", &user.name),
        Some(account) => access("", "serviceaccounts", &account.namespace, &account.name),
    }];
    if !user.uid.is_empty() {
        accesses.push(access(AUTHENTICATION_API_GROUP, "uids", "", &user.uid));
    }
    for group in &user.groups {
        accesses.push(access("", "groups", "", group));
    }
    for (key, values) in &user.extra {
        let resource = format!("userextras/{key}");
        accesses.extend(
            values
                .iter()
                .map(|value| access(AUTHENTICATION_API_GROUP, &resource, "", value)),
        );
    }
    accesses
}

/// The user in a set of headers (`<prefix>user`, `-group`, `-uid`, `-extra-…`).
pub(super) fn user_from_headers(headers: &HeaderMap, prefix: &str) -> Option<ApiUser> {
    let values = |name: &str| -> Vec<String> {
        headers
            .get_all(format!("{prefix}{name}"))
            .iter()
            .filter_map(|value| std::str::from_utf8(value.as_bytes()).ok())
            .filter(|value| !value.is_empty())
            .map(str::to_owned)
            .collect()
    };
    // The first value is used even if it is empty (`headerValue`).
    let name = headers.get(format!("{prefix}user"))?;
    let name = std::str::from_utf8(name.as_bytes()).ok()?;
    if name.is_empty() {
        return None;
    }
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let extra_prefix = format!("{prefix}extra-");
    for (name, value) in headers {
        if let (Some(key), Ok(value)) = (name.as_str().strip_prefix(&extra_prefix), value.to_str())
        {
            let key = percent_decode(key);
            extra.entry(key).or_default().push(value.to_owned());
        }
    }
    Some(ApiUser {
        name: name.to_owned(),
        uid: values("uid").into_iter().next().unwrap_or_default(),
        groups: values("group"),
        extra,
    })
}
