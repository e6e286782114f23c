//! Keyed pseudonyms, so that a record can be shared. Pure.
//!
//! A pseudonym is an HMAC of the name: the same key gives the same pseudonym everywhere, and without
//! the key no name can be tried. What decides which flow schema matches stays: `system:` names, and
//! the users, groups and namespaces that flow schemas name. API groups, resources, verbs and the
//! parameters that decide about the cost of a list stay, too.

use std::collections::BTreeSet;
use std::fmt;
use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr};

use aws_lc_rs::hmac;
use serde::{Deserialize, Serialize};

use weir_kubernetes::api::flowcontrol::Object;
use weir_kubernetes::encoding::percent;
use weir_kubernetes::encoding::percent::PlusMode;
use weir_kubernetes::request_info::RequestInfo;

/// Least length of a key in bytes: shorter ones could be tried.
const MIN_KEY_BYTES: usize = 16;

/// The bytes of an HMAC that a pseudonym shows. Among a million names two share a pseudonym with a
/// probability of 3 in 100 million.
const PSEUDONYM_BYTES: usize = 8;

/// Namespaces that every cluster has.
const COMMON_NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// The `system:` names whose end is the name of an object.
const OBJECT_PREFIXES: [&str; 2] = ["system:node:", "system:bootstrap:"];
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
const SERVICE_ACCOUNT_GROUP_PREFIX: &str = "system:serviceaccounts:";

/// The first segments of kube-apiserver's own paths outside of its resources.
const SERVER_PATHS: [&str; 19] = [
    "",
    ".well-known",
    "api",
    "apis",
    "configz",
    "debug",
    "flagz",
    "healthz",
    "livez",
    "logs",
    "metrics",
    "openapi",
    "openid",
    "readyz",
    "statusz",
    "swagger-2.0.0.json",
    "swagger.json",
    "swaggerapi",
    "version",
];

/// Query parameters whose values say nothing about objects. The work estimate reads the first ones.
const PLAIN_PARAMETERS: [&str; 17] = [
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "watch",
    "allowWatchBookmarks",
    "timeout",
    "timeoutSeconds",
    "dryRun",
    "follow",
    "force",
    "gracePeriodSeconds",
    "pretty",
    "propagationPolicy",
    "stdin",
    "tailLines",
    "tty",
];

/// Values of these parameters, besides numbers and durations.
const PLAIN_VALUES: [&str; 11] = [
    "All",
    "Background",
    "Exact",
    "False",
    "Foreground",
    "NotOlderThan",
    "Orphan",
    "True",
    "false",
    "true",
    "t",
];

/// The programs whose user agents stay.
const COMMON_AGENTS: [&str; 8] = [
    "curl",
    "Go-http-client",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
];

/// The secret of pseudonyms.
#[derive(Clone, PartialEq, Eq)]
pub struct PseudonymKey(Vec<u8>);

/// A key that is too short.
#[derive(Debug)]
pub struct ShortKeyError;

/// The names that flow schemas decide by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptNames {
    users: BTreeSet<String>,
    groups: BTreeSet<String>,
    namespaces: BTreeSet<String>,
    /// Paths outside of resources, with or without a `*` at their end.
    paths: BTreeSet<String>,
}

/// Replaces names by their pseudonyms.
pub(crate) struct Pseudonyms {
    key: hmac::Key,
    kept: KeptNames,
}

/// What a name names. Equal texts of two kinds have different pseudonyms.
#[derive(Clone, Copy)]
enum NameKind {
    User,
    Group,
    Namespace,
    /// An object, or a part of a path.
    Object,
    Value,
    Agent,
}

impl NameKind {
    const fn prefix(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Namespace => "ns",
            Self::Object => "name",
            Self::Value => "value",
            Self::Agent => "agent",
        }
    }
}

impl PseudonymKey {
    /// The content of a key file, without space at its ends.
    ///
    /// # Errors
    /// The key is too short.
    pub fn parse(content: &[u8]) -> Result<Self, ShortKeyError> {
        let key = content.trim_ascii();
        if key.len() < MIN_KEY_BYTES {
            return Err(ShortKeyError);
        }
        Ok(Self(key.to_owned()))
    }
}

impl fmt::Debug for PseudonymKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PseudonymKey")
    }
}

impl fmt::Display for ShortKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the key is shorter than {MIN_KEY_BYTES} bytes")
    }
}

impl KeptNames {
    /// The names in these objects.
    pub(crate) fn of<'o>(objects: impl IntoIterator<Item = &'o Object>) -> Self {
        let mut kept = Self {
            namespaces: COMMON_NAMESPACES.map(str::to_owned).into(),
            ..Self::default()
        };
        for object in objects {
            let Object::FlowSchema(schema) = object else {
                continue;
            };
            for rule in &schema.spec.rules {
                for subject in &rule.subjects {
                    kept.users.extend(subject.user.clone());
                    kept.groups.extend(subject.group.clone());
                    if let Some(account) = &subject.service_account {
                        kept.namespaces.insert(account.namespace.clone());
                        kept.users.insert(format!(
                            "{SERVICE_ACCOUNT_PREFIX}{}:{}",
                            account.namespace, account.name
                        ));
                    }
                }
                for resources in &rule.resource_rules {
                    kept.namespaces.extend(resources.namespaces.iter().cloned());
                }
                for paths in &rule.non_resource_rules {
                    let paths = paths.non_resource_urls.iter();
                    kept.paths
                        .extend(paths.filter(|path| *path != "*").cloned());
                }
            }
        }
        kept
    }
}

impl Pseudonyms {
    /// Pseudonyms by `key`, of all names but these.
    pub(crate) fn new(key: &PseudonymKey, kept: KeptNames) -> Self {
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, &key.0),
            kept,
        }
    }

    /// Keeps other names from now on.
    pub(crate) fn set_kept(&mut self, kept: KeptNames) {
        self.kept = kept;
    }

    /// A user's name.
    pub(crate) fn user(&self, name: &str) -> String {
        if self.kept.users.contains(name) || name.is_empty() {
            return name.to_owned();
        }
        if let Some(account) = name.strip_prefix(SERVICE_ACCOUNT_PREFIX) {
            let (namespace, account) = account.split_once(':').unwrap_or((account, ""));
            let namespace = self.namespace(namespace);
            let account = self.object(account);
            return format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{account}");
        }
        for prefix in OBJECT_PREFIXES {
            if let Some(object) = name.strip_prefix(prefix) {
                return format!("{prefix}{}", self.object(object));
            }
        }
        if name.starts_with("system:") {
            return name.to_owned();
        }
        self.pseudonym(NameKind::User, name.as_bytes())
    }

    /// A group's name.
    pub(crate) fn group(&self, name: &str) -> String {
        if self.kept.groups.contains(name) {
            return name.to_owned();
        }
        if let Some(namespace) = name.strip_prefix(SERVICE_ACCOUNT_GROUP_PREFIX) {
            let namespace = self.namespace(namespace);
            return format!("{SERVICE_ACCOUNT_GROUP_PREFIX}{namespace}");
        }
        if name.starts_with("system:") {
            return name.to_owned();
        }
        self.pseudonym(NameKind::Group, name.as_bytes())
    }

    /// A user agent: of a well-known program its name and version.
    pub(crate) fn user_agent(&self, agent: &str) -> String {
        let product = agent.split(' ').next().unwrap_or_default();
        let program = product.split('/').next().unwrap_or_default();
        if COMMON_AGENTS.contains(&program) {
            return product.to_owned();
        }
        self.pseudonym(NameKind::Agent, agent.as_bytes())
    }

    /// An address. Addresses of one IPv6 network (/64) stay in one network.
    pub(crate) fn address(&self, address: IpAddr) -> IpAddr {
        let (network, host) = match address.to_canonical() {
            IpAddr::V4(address) => (self.tag(b"ip", &address.octets()), [0, 0, 0, 0, 0, 0, 0, 1]),
            IpAddr::V6(address) => {
                let octets = address.octets();
                let (network, host) = octets.split_at(8);
                (self.tag(b"ip", network), self.tag(b"host", host))
            }
        };
        let mut octets = [0; 16];
        octets
            .iter_mut()
            .zip(network.into_iter().chain(host))
            .for_each(|(to, from)| *to = from);
        if let Some(first) = octets.first_mut() {
            *first = 0xfd; // unique local addresses
        }
        IpAddr::V6(Ipv6Addr::from(octets))
    }

    /// A request target: the same verb, resource and scope, with pseudonyms for namespaces, objects
    /// and values.
    pub(crate) fn target(&self, method: &str, target: &str) -> String {
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let is_resource = RequestInfo::parse(method, target.as_bytes())
            .is_ok_and(|info| info.is_resource_request());
        let mut replaced = if is_resource {
            self.resource_path(path)
        } else {
            self.other_path(path)
        };
        if let Some(query) = query {
            let parameters = query.split('&').map(|parameter| self.parameter(parameter));
            replaced.push('?');
            replaced.push_str(&parameters.collect::<Vec<_>>().join("&"));
        }
        replaced
    }

    /// Any other name, such as what distinguishes a flow.
    pub(crate) fn value(&self, text: &str) -> String {
        self.pseudonym(NameKind::Value, text.as_bytes())
    }

    fn namespace(&self, name: &str) -> String {
        if self.kept.namespaces.contains(name) || name.is_empty() {
            return name.to_owned();
        }
        self.pseudonym(NameKind::Namespace, name.as_bytes())
    }

    fn object(&self, name: &str) -> String {
        if name.is_empty() {
            return String::new();
        }
        self.pseudonym(NameKind::Object, name.as_bytes())
    }

    /// `/api/VERSION/…` or `/apis/GROUP/VERSION/…`, split as `RequestInfo` splits it: after decoding.
    fn resource_path(&self, path: &str) -> String {
        let decoded = decode(path, PlusMode::Literal).unwrap_or_else(|| path.to_owned());
        let mut segments = decoded.trim_matches('/').split('/').peekable();
        let is_grouped = segments.peek() == Some(&"apis");
        let mut replaced = vec![String::new()];
        let head = segments.by_ref().take(if is_grouped { 3 } else { 2 });
        replaced.extend(head.map(encode_segment));
        let verb = segments.next_if(|segment| matches!(*segment, "watch" | "proxy"));
        replaced.extend(verb.map(encode_segment));
        if let Some(namespaces) = segments.next_if_eq(&"namespaces") {
            replaced.push(namespaces.to_owned());
            let namespace = segments.next().map(|name| self.namespace(name));
            replaced.extend(namespace.as_deref().map(encode_segment));
        }
        // The resource, the object, the subresource.
        replaced.extend(segments.next().map(encode_segment));
        replaced.extend(segments.next().map(|name| self.object(name)));
        replaced.extend(segments.next().map(encode_segment));
        replaced.extend(segments.map(|rest| self.object(rest)));
        replaced.join("/")
    }

    /// What a flow schema names stays, and what is below it is replaced.
    fn other_path(&self, path: &str) -> String {
        let first = path.split('/').nth(1).unwrap_or_default();
        if SERVER_PATHS.contains(&first) {
            return path.to_owned();
        }
        let kept = self.kept.paths.iter();
        let kept = kept.filter_map(|kept| kept_prefix(kept, path)).max();
        let (kept, rest) = path
            .split_at_checked(kept.unwrap_or(0))
            .unwrap_or(("", path));
        let segments = rest.split('/').map(|segment| self.object(segment));
        format!("{kept}{}", segments.collect::<Vec<_>>().join("/"))
    }

    fn parameter(&self, raw: &str) -> String {
        let (raw_name, raw_value) = raw.split_once('=').unwrap_or((raw, ""));
        let decoded = decode(raw_name, PlusMode::Space).zip(decode(raw_value, PlusMode::Space));
        // kube-apiserver drops parameters that it cannot decode.
        let decoded = decoded.filter(|_| !raw.contains(';'));
        let Some((name, value)) = decoded.filter(|(name, _)| is_plain_name(name)) else {
            return self.value(raw);
        };
        if PLAIN_PARAMETERS.contains(&name.as_str()) && is_plain_value(raw_value) {
            return raw.to_owned();
        }
        if raw_value.is_empty() {
            return if raw.ends_with('=') {
                raw.to_owned()
            } else {
                self.value(raw)
            };
        }
        let value = match name.as_str() {
            "fieldSelector" => self.field_selector(&value),
            _ => self.value(&value),
        };
        format!("{name}={value}")
    }

    /// Terms such as `metadata.name=x`: a list of one object stays one.
    fn field_selector(&self, selector: &str) -> String {
        let term = |term: &str| {
            let at = term.find(['=', '!'])?;
            let (field, rest) = term.split_at(at);
            let value = rest.trim_start_matches(['=', '!']);
            let operator = rest.strip_suffix(value)?;
            let mut letters = field.bytes();
            if !letters.all(|byte| byte.is_ascii_alphanumeric() || b".-_/".contains(&byte)) {
                return None;
            }
            let value = if field == "metadata.namespace" {
                self.namespace(value)
            } else {
                self.object(value)
            };
            let operator = operator.replace('=', "%3D").replace('!', "%21");
            Some(format!("{field}{operator}{value}"))
        };
        let terms: Option<Vec<_>> = selector.split(',').map(term).collect();
        terms.map_or_else(|| self.value(selector), |terms| terms.join("%2C"))
    }

    fn pseudonym(&self, kind: NameKind, name: &[u8]) -> String {
        let prefix = kind.prefix();
        let mut text = format!("{prefix}-");
        for byte in self.tag(prefix.as_bytes(), name) {
            let _ = write!(text, "{byte:02x}"); // a string takes everything
        }
        text
    }

    fn tag(&self, kind: &[u8], name: &[u8]) -> [u8; PSEUDONYM_BYTES] {
        let tag = hmac::sign(&self.key, &[kind, b"\0", name].concat());
        tag.as_ref().first_chunk().copied().unwrap_or_default()
    }
}

impl fmt::Debug for Pseudonyms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pseudonyms")
            .field("kept", &self.kept)
            .finish_non_exhaustive()
    }
}

/// The bytes of a path by which it matches a path of a flow schema, as the matcher compares them: a
/// plain path also matches everything below it. `None`: it does not match.
fn kept_prefix(kept: &str, path: &str) -> Option<usize> {
    if path == kept {
        return Some(path.len());
    }
    let stem = kept.strip_suffix('*').unwrap_or(kept);
    let stem = stem.strip_suffix('/').unwrap_or(stem);
    let below = path.strip_prefix(stem)?;
    below.starts_with('/').then_some(stem.len() + 1)
}

/// Whether a parameter's name needs no escapes.
fn is_plain_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Whether a value is a number, a duration or one of the API's own words.
fn is_plain_value(text: &str) -> bool {
    let mut bytes = text.bytes();
    PLAIN_VALUES.contains(&text)
        || bytes.all(|byte| byte.is_ascii_digit() || b".hmnsu".contains(&byte))
}

/// A segment of a path with the escapes that it needs.
fn encode_segment(segment: &str) -> String {
    let mut encoded = String::with_capacity(segment.len());
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}"); // a string takes everything
        }
    }
    encoded
}

/// A part of a target without its percent-escapes. What is not UTF-8 is replaced.
fn decode(raw: &str, plus: PlusMode) -> Option<String> {
    let decoded = percent::decode(raw.as_bytes(), plus)?;
    Some(String::from_utf8_lossy(&decoded).into_owned())
}
