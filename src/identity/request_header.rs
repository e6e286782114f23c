//! A user from the headers of a trusted front proxy, and the names of those headers.
//!
//! Only who presents a certificate of `--requestheader-client-ca-file`, with a name of `--requestheader-allowed-names`, is
//! believed; from everybody else these headers are removed (`upstream::headers`). Read as `headerrequest` and
//! `x509.NewDynamicCAVerifier` (Kubernetes 1.36) do it: the first name that is not empty, all groups that are not, extra keys
//! in lower case and percent-decoded; a proxy that names nobody is no opinion, and the next method is asked.

use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderMap;
use http::HeaderName;

use crate::api::UserInfo;
use crate::identity::client_certificate::CertificateFault;
use crate::identity::client_certificate::ClientCertificates;
use crate::identity::client_certificate::PeerCertificate;

/// The standard names, removed from every client whatever else is configured.
const IDENTITY_PREFIX: &str = "x-remote-";

/// The front proxies that are believed.
#[derive(Debug)]
pub struct FrontProxies {
    authority: ClientCertificates,
    /// `--requestheader-allowed-names`; empty is any name.
    allowed: Vec<String>,
    names: Arc<IdentityHeaders>,
}

impl FrontProxies {
    /// Believes whom `authority` vouches for and `allowed` names.
    #[must_use]
    pub fn new(
        authority: ClientCertificates,
        allowed: Vec<String>,
        names: Arc<IdentityHeaders>,
    ) -> Self {
        Self {
            authority,
            allowed,
            names,
        }
    }

    /// The user that a believed front proxy names, if it names one.
    pub(super) fn user(
        &self,
        presented: &PeerCertificate,
        headers: &HeaderMap,
        wall: SystemTime,
    ) -> Result<Option<UserInfo>, CertificateFault> {
        presented.front_proxy(&self.authority, wall, |name| {
            self.allowed.is_empty() || self.allowed.iter().any(|allowed| allowed == name)
        })?;
        Ok(self.names.user(headers).map(UserInfo::authenticated))
    }
}

/// The names by which a front proxy tells the upstream who asks: kube-apiserver's `--requestheader-*-headers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityHeaders {
    /// Removed from clients, all of them; the first is the one written.
    pub username: Vec<HeaderName>,
    /// Likewise.
    pub uid: Vec<HeaderName>,
    /// Likewise.
    pub group: Vec<HeaderName>,
    /// Prefixes, lower-case; likewise.
    pub extra_prefix: Vec<String>,
}

impl Default for IdentityHeaders {
    fn default() -> Self {
        Self {
            username: vec![HeaderName::from_static("x-remote-user")],
            uid: vec![HeaderName::from_static("x-remote-uid")],
            group: vec![HeaderName::from_static("x-remote-group")],
            extra_prefix: vec!["x-remote-extra-".to_owned()],
        }
    }
}

impl IdentityHeaders {
    /// Whether a header of this name could pass for an identity. Underscores count as dashes, since a hop behind may
    /// take them for such.
    #[must_use]
    pub fn covers(&self, name: &HeaderName) -> bool {
        let mapped;
        let name = if name.as_str().contains('_') {
            mapped = name.as_str().replace('_', "-");
            mapped.as_str()
        } else {
            name.as_str()
        };
        let listed = |names: &[HeaderName]| names.iter().any(|n| dashed_eq(n.as_str(), name));
        name.starts_with(IDENTITY_PREFIX)
            || listed(&self.username)
            || listed(&self.uid)
            || listed(&self.group)
            || self
                .extra_prefix
                .iter()
                .any(|p| starts_with_dashed(name, p))
    }

    /// Removes every header that could pass for an identity.
    pub fn remove_from(&self, headers: &mut HeaderMap) {
        remove_where(headers, |name| self.covers(name));
    }

    /// The user that `headers` name; whoever asks has made sure that they may.
    #[must_use]
    pub fn user(&self, headers: &HeaderMap) -> Option<UserInfo> {
        Some(UserInfo {
            name: first(headers, &self.username)?.to_owned(),
            uid: first(headers, &self.uid).unwrap_or_default().to_owned(),
            groups: self
                .group
                .iter()
                .flat_map(|name| texts(headers, name))
                .map(str::to_owned)
                .collect(),
            extra: self.extra(headers),
        })
    }

    fn extra(&self, headers: &HeaderMap) -> Vec<(String, Vec<String>)> {
        let mut extra: Vec<(String, Vec<String>)> = Vec::new();
        for name in headers.keys() {
            let prefix = self
                .extra_prefix
                .iter()
                .find(|prefix| name.as_str().starts_with(prefix.as_str()));
            let Some(key) = prefix.and_then(|prefix| name.as_str().get(prefix.len()..)) else {
                continue;
            };
            let key = unescape_extra_key(key);
            let values = headers
                .get_all(name)
                .iter()
                .filter_map(|value| std::str::from_utf8(value.as_bytes()).ok())
                .map(str::to_owned);
            match extra.iter_mut().find(|(known, _)| *known == key) {
                Some((_, known)) => known.extend(values),
                None => extra.push((key, values.collect())),
            }
        }
        extra
    }
}

/// The values that are text and not empty.
fn texts<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| std::str::from_utf8(value.as_bytes()).ok())
        .filter(|value| !value.is_empty())
}

fn first<'h>(headers: &'h HeaderMap, names: &[HeaderName]) -> Option<&'h str> {
    names.iter().find_map(|name| texts(headers, name).next())
}

/// Percent-decodes as `url.PathUnescape`; what cannot be decoded stays as it is.
pub(super) fn unescape_extra_key(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
            }
            _ => return key.to_owned(),
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| key.to_owned())
}

fn dashed_eq(configured: &str, dashed: &str) -> bool {
    configured.len() == dashed.len() && starts_with_dashed(dashed, configured)
}

fn starts_with_dashed(dashed: &str, configured: &str) -> bool {
    dashed.len() >= configured.len()
        && configured
            .bytes()
            .zip(dashed.bytes())
            .all(|(c, d)| c == d || (c == b'_' && d == b'-'))
}

fn remove_where(headers: &mut HeaderMap, doomed: impl Fn(&HeaderName) -> bool) {
    // Almost never is there anything to remove; nothing is allocated then.
    let mut names: Vec<HeaderName> = Vec::new();
    for name in headers.keys() {
        if doomed(name) {
            names.push(name.clone());
        }
    }
    for name in names {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_user_is_read_from_headers_as_upstream_reads_it() {
        let user = IdentityHeaders::default()
            .user(&headers(&[
                ("x-remote-user", ""),
                ("x-remote-user", "alice"),
                ("x-remote-user", "mallory"),
                ("x-remote-uid", "u-1"),
                ("x-remote-group", "dev"),
                ("x-remote-group", ""),
                ("x-remote-group", "ops"),
                ("x-remote-extra-scopes%2fof", "a"),
                ("x-remote-extra-scopes%2fof", ""),
                ("x-remote-extra-bad%2", "b"),
            ]))
            .unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("alice", "u-1"));
        assert_eq!(user.groups, ["dev", "ops"]);
        let extra = |key: &str, values: &[&str]| {
            let values = values.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
            assert!(
                user.extra.contains(&(key.to_owned(), values)),
                "{:?}",
                user.extra
            );
        };
        extra("scopes/of", &["a", ""]);
        extra("bad%2", &["b"]);
    }

    #[test]
    fn a_proxy_that_names_nobody_has_no_opinion() {
        let names = IdentityHeaders::default();
        assert_eq!(names.user(&headers(&[("x-remote-group", "dev")])), None);
        assert_eq!(names.user(&headers(&[("x-remote-user", "")])), None);
    }

    #[test]
    fn thousands_of_groups_are_no_trouble() {
        let mut headers = headers(&[("x-remote-user", "alice")]);
        for n in 0..5000 {
            headers.append(
                "x-remote-group",
                HeaderValue::from_str(&format!("group-{n}")).unwrap(),
            );
        }
        let user = IdentityHeaders::default().user(&headers).unwrap();
        assert_eq!(user.groups.len(), 5000);
        assert_eq!(user.groups[4999], "group-4999");
    }
}
