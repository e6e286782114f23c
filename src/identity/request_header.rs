//! Authenticates requests by the identity headers of a trusted front proxy.
//!
//! The headers count only from a client whose certificate the CA of
//! `--requestheader-client-ca-file` signed, with a name of `--requestheader-allowed-names`. From
//! every other client they are removed (`upstream::headers`). They are read like `headerrequest`
//! and `x509.NewDynamicCAVerifier` (Kubernetes 1.36) read them:
//!
//! - The user name is the first value of the first configured header whose first value is not
//!   empty.
//! - All groups that are not empty count.
//! - Extra keys are converted to lower case and then percent-decoded.
//! - A front proxy that names no user is no opinion, and the next authenticator decides.
//!
//! Go keeps values that are not UTF-8 as they are. Here they are an error, since such a user cannot
//! be asserted.

use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::identity::client_certificate::{
    CertificateError, CertificateVerifier, FrontProxyVerifier, PeerCertificate,
};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::encoding::percent;
use weir_kubernetes::encoding::percent::PlusMode;

/// The prefix of the standard names. Such headers are removed from every client, whatever else is
/// configured.
const STANDARD_PREFIX: &str = "x-remote-";

/// Authenticates requests of front proxies.
#[derive(Debug)]
pub struct FrontProxyAuthenticator {
    pub(super) verifier: Arc<FrontProxyVerifier>,
    headers: Arc<IdentityHeaders>,
}

impl FrontProxyAuthenticator {
    /// Trusts front proxies whose certificates `verifier` accepts, with a common name of
    /// `allowed_names` (any, if empty).
    #[must_use]
    pub(crate) fn new(
        verifier: CertificateVerifier,
        allowed_names: Vec<String>,
        headers: Arc<IdentityHeaders>,
    ) -> Self {
        Self {
            verifier: Arc::new(FrontProxyVerifier::new(verifier, allowed_names)),
            headers,
        }
    }

    /// The user that a front proxy names; `None` if it names none. Fails if the certificate is not
    /// that of a trusted front proxy.
    pub(super) fn authenticate(
        &self,
        certificate: &PeerCertificate,
        headers: &HeaderMap,
        wall: SystemTime,
    ) -> Result<Option<UserInfo>, CertificateError> {
        certificate.verify_front_proxy(&self.verifier, wall)?;
        let user = self.headers.parse_user(headers)?;
        Ok(user.map(UserInfo::with_authenticated_group))
    }
}

/// The names of a front proxy's identity headers: kube-apiserver's `--requestheader-*-headers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityHeaders {
    /// The headers with the user name. All are removed from clients, and the first is the one that
    /// weir sends.
    pub username: Vec<HeaderName>,
    /// The headers with the uid, used like `username`.
    pub uid: Vec<HeaderName>,
    /// The headers with the groups, used like `username`.
    pub group: Vec<HeaderName>,
    /// The prefixes of headers with extra values, in lower case, used like `username`.
    pub extra_prefix: Vec<String>,
    /// Names that were configured before a reload. They are removed from clients and not used
    /// otherwise: the API server may still read them.
    pub former: Vec<Self>,
}

impl Default for IdentityHeaders {
    fn default() -> Self {
        Self {
            username: vec![HeaderName::from_static("x-remote-user")],
            uid: vec![HeaderName::from_static("x-remote-uid")],
            group: vec![HeaderName::from_static("x-remote-group")],
            extra_prefix: vec!["x-remote-extra-".to_owned()],
            former: Vec::new(),
        }
    }
}

impl IdentityHeaders {
    /// Removes the names of `earlier` from clients, too.
    pub(crate) fn succeed(&mut self, earlier: &Self) {
        let names = |headers: &Self| Self {
            former: Vec::new(),
            ..headers.clone()
        };
        let own = names(self);
        self.former.clear();
        for former in earlier.former.iter().chain([earlier]) {
            let former = names(former);
            if former != own && !self.former.contains(&former) {
                self.former.push(former);
            }
        }
    }

    /// Whether this could be read as an identity header. Underscores count as dashes, since a later
    /// hop may treat them as such.
    #[must_use]
    pub(crate) fn is_identity_header(&self, name: &HeaderName) -> bool {
        let mapped;
        let name = if name.as_str().contains('_') {
            mapped = name.as_str().replace('_', "-");
            mapped.as_str()
        } else {
            name.as_str()
        };
        name.starts_with(STANDARD_PREFIX)
            || self.lists(name)
            || self.former.iter().any(|former| former.lists(name))
    }

    /// Whether this is one of the names, or has one of the prefixes. `dashed` has no underscores.
    fn lists(&self, dashed: &str) -> bool {
        let listed = |names: &[HeaderName]| names.iter().any(|n| dashed_eq(n.as_str(), dashed));
        listed(&self.username)
            || listed(&self.uid)
            || listed(&self.group)
            || self
                .extra_prefix
                .iter()
                .any(|p| starts_with_dashed(dashed, p))
    }

    /// Removes every header that could be read as an identity header.
    pub(crate) fn remove_from(&self, headers: &mut HeaderMap) {
        remove_where(headers, |name| self.is_identity_header(name));
    }

    /// Parses the user that `headers` name. The caller checks that they come from a trusted front
    /// proxy.
    ///
    /// # Errors
    /// [`CertificateError::InvalidProxyHeaders`] if a value is not UTF-8.
    pub(crate) fn parse_user(
        &self,
        headers: &HeaderMap,
    ) -> Result<Option<UserInfo>, CertificateError> {
        let Some(name) = first_value(headers, &self.username)? else {
            return Ok(None);
        };
        let groups = self.group.iter().flat_map(|name| headers.get_all(name));
        let groups = groups.filter(|group| !group.is_empty());
        Ok(Some(UserInfo {
            name: name.to_owned(),
            uid: first_value(headers, &self.uid)?
                .unwrap_or_default()
                .to_owned(),
            groups: groups.map(utf8_string).collect::<Result<_, _>>()?,
            extra: self.parse_extra(headers)?,
        }))
    }

    fn parse_extra(
        &self,
        headers: &HeaderMap,
    ) -> Result<Vec<(String, Vec<String>)>, CertificateError> {
        let mut extra: Vec<(String, Vec<String>)> = Vec::new();
        // By prefix first, as upstream: a header that matches two prefixes counts for both.
        for prefix in &self.extra_prefix {
            for name in headers.keys() {
                let Some(key) = name.as_str().strip_prefix(prefix.as_str()) else {
                    continue;
                };
                let key = unescape_extra_key(key);
                let values: Vec<String> = headers
                    .get_all(name)
                    .iter()
                    .map(utf8_string)
                    .collect::<Result<_, _>>()?;
                match extra.iter_mut().find(|(existing, _)| *existing == key) {
                    Some((_, existing)) => existing.extend(values),
                    None => extra.push((key, values)),
                }
            }
        }
        Ok(extra)
    }
}

fn utf8_str(value: &HeaderValue) -> Result<&str, CertificateError> {
    str::from_utf8(value.as_bytes()).map_err(|_| CertificateError::InvalidProxyHeaders)
}

fn utf8_string(value: &HeaderValue) -> Result<String, CertificateError> {
    utf8_str(value).map(str::to_owned)
}

/// The first value of the first header of `names` whose first value is not empty (Go's
/// `Header.Get`).
fn first_value<'h>(
    headers: &'h HeaderMap,
    names: &[HeaderName],
) -> Result<Option<&'h str>, CertificateError> {
    names
        .iter()
        .filter_map(|name| headers.get(name))
        .find(|value| !value.is_empty())
        .map(utf8_str)
        .transpose()
}

/// Percent-decodes like `url.PathUnescape`. A key that cannot be decoded stays as it is.
pub(super) fn unescape_extra_key(key: &str) -> String {
    percent::decode(key.as_bytes(), PlusMode::Literal)
        .and_then(|decoded| String::from_utf8(decoded.into_owned()).ok())
        .unwrap_or_else(|| key.to_owned())
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

fn remove_where(headers: &mut HeaderMap, predicate: impl Fn(&HeaderName) -> bool) {
    // Usually there is nothing to remove, and nothing is allocated.
    let mut names: Vec<HeaderName> = Vec::new();
    for name in headers.keys() {
        if predicate(name) {
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
    fn a_user_is_parsed_from_headers_as_upstream_parses_it() {
        let user = IdentityHeaders::default()
            .parse_user(&headers(&[
                ("x-remote-user", "alice"),
                ("x-remote-user", "mallory"),
                ("x-remote-uid", "u-1"),
                ("x-remote-group", "dev"),
                ("x-remote-group", ""),
                ("x-remote-group", "ops"),
                ("x-remote-extra-scopes%2fof", "a"),
                ("x-remote-extra-scopes%2fof", ""),
                ("x-remote-extra-bad%2", "b"),
                ("x-remote-extra-%41", "c"),
            ]))
            .unwrap()
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
        extra("A", &["c"]);
    }

    #[test]
    fn the_first_value_of_a_header_decides_and_then_the_next_header() {
        let names = IdentityHeaders {
            username: ["x-remote-user", "x-name"]
                .map(HeaderName::from_static)
                .into(),
            ..IdentityHeaders::default()
        };
        let name = |pairs: &[(&'static str, &'static str)]| {
            let user = names.parse_user(&headers(pairs)).unwrap();
            user.map(|user| user.name)
        };
        let empty_first = [("x-remote-user", ""), ("x-remote-user", "alice")];
        assert_eq!(name(&empty_first), None);
        let next = [&empty_first[..], &[("x-name", "bob")]].concat();
        assert_eq!(name(&next), Some("bob".to_owned()));
        let uid = |pairs: &[(&'static str, &'static str)]| {
            let all = [&[("x-remote-user", "alice")], pairs].concat();
            names.parse_user(&headers(&all)).unwrap().unwrap().uid
        };
        assert_eq!(uid(&[("x-remote-uid", ""), ("x-remote-uid", "u")]), "");
        assert_eq!(uid(&[("x-remote-uid", "u"), ("x-remote-uid", "v")]), "u");
    }

    #[test]
    fn a_value_that_is_not_utf8_is_an_error_and_names_no_other_user() {
        for name in [
            "x-remote-user",
            "x-remote-uid",
            "x-remote-group",
            "x-remote-extra-k",
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_bytes(b"al\xffce").unwrap());
            headers.append("x-remote-user", HeaderValue::from_static("bob"));
            let user = IdentityHeaders::default().parse_user(&headers);
            assert_eq!(user, Err(CertificateError::InvalidProxyHeaders), "{name}");
        }
    }

    #[test]
    fn names_that_were_configured_before_are_still_removed_and_not_read() {
        let names = |user: &'static str| IdentityHeaders {
            username: vec![HeaderName::from_static(user)],
            ..IdentityHeaders::default()
        };
        let mut third = names("x-third");
        let mut second = names("x-second");
        second.succeed(&names("x-first"));
        third.succeed(&second);
        for name in ["x-first", "x-second", "x-third"] {
            let name = HeaderName::from_static(name);
            assert!(third.is_identity_header(&name), "{name}");
        }
        assert_eq!(third.parse_user(&headers(&[("x-second", "a")])), Ok(None));
        let mut again = names("x-third");
        again.succeed(&third);
        assert_eq!(again, third, "nothing has changed");
        let mut back = names("x-first");
        back.succeed(&third);
        assert_eq!(back.former, [names("x-second"), names("x-third")]);
    }

    #[test]
    fn a_header_that_matches_two_prefixes_counts_for_both() {
        let names = IdentityHeaders {
            extra_prefix: vec!["x-extra-".to_owned(), "x-".to_owned()],
            ..IdentityHeaders::default()
        };
        let sent = headers(&[("x-remote-user", "alice"), ("x-extra-k", "v")]);
        let extra = names.parse_user(&sent).unwrap().unwrap().extra;
        for key in ["k", "extra-k", "remote-user"] {
            assert!(extra.iter().any(|(found, _)| found == key), "{key}");
        }
    }

    #[test]
    fn headers_without_a_user_name_yield_no_user() {
        let names = IdentityHeaders::default();
        let user = |pairs| names.parse_user(&headers(pairs));
        assert_eq!(user(&[("x-remote-group", "dev")]), Ok(None));
        assert_eq!(user(&[("x-remote-user", "")]), Ok(None));
    }

    #[test]
    fn thousands_of_groups_are_accepted() {
        let mut headers = headers(&[("x-remote-user", "alice")]);
        for n in 0..5000 {
            headers.append(
                "x-remote-group",
                HeaderValue::from_str(&format!("group-{n}")).unwrap(),
            );
        }
        let user = IdentityHeaders::default().parse_user(&headers);
        let user = user.unwrap().unwrap();
        assert_eq!(user.groups.len(), 5000);
        assert_eq!(user.groups[4999], "group-4999");
    }
}
