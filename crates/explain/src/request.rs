//! A request to explain, as a line of JSON or the command line describes it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::user::{ANONYMOUS, GROUP_AUTHENTICATED, GROUP_UNAUTHENTICATED};
use weir_kubernetes::request_info::Verb;

/// The prefix of the user names of service accounts.
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// The group of every service account.
const GROUP_SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

/// A request to explain: `method` and `url`, or `request_info`. What is not given is not known.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "the names are those of the JSON")]
pub struct ExplainRequest<'r> {
    #[serde(borrow)]
    pub method: Option<Cow<'r, str>>,
    /// The target of the request line.
    #[serde(borrow)]
    pub url: Option<RequestUrl<'r>>,
    /// In place of `method` and `url`: what schemas match.
    pub request_info: Option<GivenRequestInfo>,
    /// Anonymous if not given.
    pub user: Option<String>,
    /// Those of the user's name if not given: see [`ExplainRequest::user_info`].
    pub groups: Option<Vec<String>>,
    pub uid: String,
    pub extra: BTreeMap<String, Vec<String>>,
    pub user_agent: Option<String>,
    pub source_address: Option<IpAddr>,
    pub content_type: Option<String>,
    pub body: Option<Cow<'r, str>>,
    /// The number of objects of the resource, for lists.
    pub object_count: Option<u64>,
    /// Bytes in storage; 0 if unknown.
    pub average_object_size_bytes: u64,
    /// The number of watches that receive the write.
    pub watch_count: usize,
    /// The most seats of a request, in place of the level's own bound. 0: no bound.
    pub max_seats: Option<u32>,
    /// Whether kube-apiserver answers consistent lists from its watch cache. It does if not given.
    pub consistent_read_supported: Option<bool>,
}

/// The target of a request line. It need not be UTF-8: JSON has it as text or as `{"hex": "..."}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestUrl<'r>(pub Cow<'r, [u8]>);

/// The attributes of a request that flow schemas match.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the names are those of the JSON")]
pub struct GivenRequestInfo {
    pub is_resource_request: bool,
    pub path: String,
    #[serde(deserialize_with = "deserialize_verb")]
    pub verb: GivenVerb,
    pub api_group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
}

/// A verb as in an audit event.
#[derive(Clone, Debug)]
pub struct GivenVerb(pub Verb);

impl Default for GivenVerb {
    fn default() -> Self {
        Self(Verb::None)
    }
}

fn deserialize_verb<'de, D: Deserializer<'de>>(from: D) -> Result<GivenVerb, D::Error> {
    Ok(GivenVerb(Verb::from_text(&String::deserialize(from)?)))
}

impl ExplainRequest<'_> {
    /// The user of the request.
    ///
    /// Given groups are the user's groups. Without any, the user gets the groups that
    /// kube-apiserver adds by name: for a service account those of its namespace, and
    /// `system:authenticated` for everyone but the anonymous user.
    #[must_use]
    pub fn user_info(&self) -> UserInfo {
        let Some(name) = &self.user else {
            let anonymous = UserInfo::anonymous();
            return UserInfo {
                groups: self.groups.clone().unwrap_or(anonymous.groups),
                ..anonymous
            };
        };
        let given = self.groups.clone();
        UserInfo {
            name: name.clone(),
            uid: self.uid.clone(),
            groups: given.unwrap_or_else(|| implied_groups(name)),
            extra: self.extra.clone().into_iter().collect(),
        }
    }

    /// Adds the group of every authenticated user to the given groups, unless it or that of
    /// unauthenticated users is among them.
    pub fn authenticate(&mut self) {
        let (Some(name), Some(groups)) = (&self.user, &mut self.groups) else {
            return;
        };
        let is_implied =
            |group: &String| group == GROUP_AUTHENTICATED || group == GROUP_UNAUTHENTICATED;
        if !groups.iter().any(is_implied) {
            groups.push(implied_group(name).to_owned());
        }
    }
}

/// The groups that kube-apiserver adds to a user by its name.
#[must_use]
pub fn implied_groups(user: &str) -> Vec<String> {
    let mut groups = Vec::new();
    let account = user.strip_prefix(SERVICE_ACCOUNT_PREFIX);
    if let Some((namespace, _)) = account.and_then(|account| account.split_once(':')) {
        groups.push(GROUP_SERVICE_ACCOUNTS.to_owned());
        groups.push(format!("{GROUP_SERVICE_ACCOUNTS}:{namespace}"));
    }
    groups.push(implied_group(user).to_owned());
    groups
}

/// The group that follows from whether a user is authenticated.
fn implied_group(user: &str) -> &'static str {
    match user {
        ANONYMOUS => GROUP_UNAUTHENTICATED,
        _ => GROUP_AUTHENTICATED,
    }
}

impl<'de: 'r, 'r> Deserialize<'de> for RequestUrl<'r> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(UrlVisitor)
    }
}

struct UrlVisitor;

impl<'de> Visitor<'de> for UrlVisitor {
    type Value = RequestUrl<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a URL, or {\"hex\": its bytes}")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(RequestUrl(Cow::Borrowed(text.as_bytes())))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(RequestUrl(Cow::Owned(text.as_bytes().to_vec())))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut url = None;
        while let Some((key, digits)) = fields.next_entry::<String, String>()? {
            if key != "hex" {
                return Err(A::Error::unknown_field(&key, &["hex"]));
            }
            url = decode_hex(&digits);
        }
        let bytes = url.ok_or_else(|| {
            A::Error::custom("hex: an even number of hexadecimal digits is expected")
        })?;
        Ok(RequestUrl(Cow::Owned(bytes)))
    }
}

fn decode_hex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| {
        let is_hex = pair.iter().all(u8::is_ascii_hexdigit);
        let text = str::from_utf8(pair).ok().filter(|_| is_hex)?;
        u8::from_str_radix(text, 16).ok()
    };
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(request: &str) -> Vec<String> {
        let request: ExplainRequest<'_> = serde_json::from_str(request).unwrap();
        request.user_info().groups
    }

    #[test]
    fn groups_follow_from_the_name_unless_they_are_given() {
        assert_eq!(groups("{}"), ["system:unauthenticated"]);
        assert_eq!(groups(r#"{"user":"alice"}"#), ["system:authenticated"]);
        assert_eq!(
            groups(r#"{"user":"system:anonymous"}"#),
            ["system:unauthenticated"]
        );
        assert_eq!(
            groups(r#"{"user":"system:serviceaccount:ns:a"}"#),
            [
                "system:serviceaccounts",
                "system:serviceaccounts:ns",
                "system:authenticated"
            ]
        );
        assert_eq!(groups(r#"{"user":"alice","groups":["a"]}"#), ["a"]);
        assert_eq!(groups(r#"{"user":"alice","groups":[]}"#).len(), 0);
    }

    #[test]
    fn the_command_line_s_users_are_authenticated() {
        let authenticated = |user: &str, groups: &[&str]| {
            let mut request = ExplainRequest {
                user: Some(user.to_owned()),
                groups: Some(groups.iter().map(|&group| group.to_owned()).collect()),
                ..ExplainRequest::default()
            };
            request.authenticate();
            request.user_info().groups.join(" ")
        };
        assert_eq!(authenticated("a", &["g"]), "g system:authenticated");
        assert_eq!(
            authenticated("a", &["system:unauthenticated"]),
            "system:unauthenticated"
        );
        assert_eq!(
            authenticated("system:anonymous", &["g"]),
            "g system:unauthenticated"
        );
    }

    #[test]
    fn a_url_is_text_or_hexadecimal() {
        let url = |text: &str| {
            let request = serde_json::from_str::<ExplainRequest<'_>>(text);
            request.map(|request| request.url.unwrap().0.into_owned())
        };
        assert_eq!(url(r#"{"url":"/a\u00e9"}"#).unwrap(), "/aé".as_bytes());
        assert_eq!(url(r#"{"url":{"hex":"2fFf"}}"#).unwrap(), b"/\xff");
        for wrong in [
            r#"{"hex":"2"}"#,
            r#"{"hex":"+1"}"#,
            r#"{"text":"2f"}"#,
            "{}",
            "1",
        ] {
            assert!(url(&format!("{{\"url\":{wrong}}}")).is_err(), "{wrong}");
        }
    }
}
