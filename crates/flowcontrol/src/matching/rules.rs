//! The attributes of a request, and rules that match them without looking at its user.
//!
//! Follows `matchesResourcePolicyRule` and `matchesNonResourcePolicyRule` (Kubernetes 1.36,
//! `util/flowcontrol/rule.go`). The rules are compiled so that matching a request joins, splits and
//! allocates nothing.

use super::mismatch::Mismatch;
use super::names::{NameSet, boxed_bytes, is_wildcard};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::flowcontrol::{
    NonResourcePolicyRule, PolicyRulesWithSubjects, ResourcePolicyRule,
};
use weir_kubernetes::request_info::{RequestInfo, Verb};

/// The attributes of a request that rules and subjects match. Strings are bytes, as in
/// [`RequestInfo`].
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "as the methods of the same names explain")]
pub struct RequestDigest<'r> {
    pub is_resource_request: bool,
    pub verb: &'r Verb,
    pub path: &'r [u8],
    pub api_group: &'r [u8],
    pub resource: &'r [u8],
    pub subresource: &'r [u8],
    pub namespace: &'r [u8],
    pub user: &'r UserInfo,
}

/// The rules of a [`PolicyRulesWithSubjects`]. A request matches if any rule of its kind matches.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    resource: Box<[ResourceRule]>,
    non_resource: Box<[NonResourceRule]>,
}

#[derive(Clone, Debug)]
struct ResourceRule {
    verbs: Verbs,
    api_groups: NameSet,
    resources: Resources,
    cluster_scope: bool,
    namespaces: NameSet,
}

#[derive(Clone, Debug)]
struct NonResourceRule {
    verbs: Verbs,
    paths: Paths,
}

impl<'r> RequestDigest<'r> {
    /// The digest of a request and its user.
    #[must_use]
    pub fn new(info: &'r RequestInfo<'_>, user: &'r UserInfo) -> Self {
        Self {
            is_resource_request: info.is_resource_request(),
            verb: info.verb(),
            path: info.path(),
            api_group: info.api_group(),
            resource: info.resource(),
            subresource: info.subresource(),
            namespace: info.namespace(),
            user,
        }
    }
}

impl Rules {
    /// Compiles the rules. The subjects are ignored.
    #[must_use]
    pub(super) fn new(rules: &PolicyRulesWithSubjects) -> Self {
        let resource = rules.resource_rules.iter().map(ResourceRule::new);
        let non_resource = rules.non_resource_rules.iter().map(NonResourceRule::new);
        Self {
            resource: resource.collect(),
            non_resource: non_resource.collect(),
        }
    }

    /// Whether any of the rules matches the request.
    #[must_use]
    pub(super) fn matches(&self, request: &RequestDigest<'_>) -> bool {
        if request.is_resource_request {
            self.resource.iter().any(|rule| rule.matches(request))
        } else {
            self.non_resource.iter().any(|rule| rule.matches(request))
        }
    }

    /// Why none of the rules matches the request. `Ok` if one does.
    pub(super) fn explain(&self, request: &RequestDigest<'_>) -> Result<(), Mismatch> {
        if request.is_resource_request {
            let rules = self.resource.iter().map(|rule| rule.explain(request));
            Mismatch::furthest(Mismatch::NoResourceRules, rules)
        } else {
            let rules = self.non_resource.iter().map(|rule| rule.explain(request));
            Mismatch::furthest(Mismatch::NoNonResourceRules, rules)
        }
    }
}

impl ResourceRule {
    fn new(rule: &ResourcePolicyRule) -> Self {
        Self {
            verbs: Verbs::new(&rule.verbs),
            api_groups: NameSet::new(&rule.api_groups),
            resources: Resources::new(&rule.resources),
            cluster_scope: rule.cluster_scope,
            namespaces: NameSet::new(&rule.namespaces),
        }
    }

    fn matches(&self, request: &RequestDigest<'_>) -> bool {
        self.verbs.contains(request.verb)
            && self
                .resources
                .contains(request.resource, request.subresource)
            && self.api_groups.contains(request.api_group)
            && if request.namespace.is_empty() {
                self.cluster_scope
            } else {
                self.namespaces.contains(request.namespace)
            }
    }

    /// The first check of [`matches`](Self::matches) that fails.
    fn explain(&self, request: &RequestDigest<'_>) -> Result<(), Mismatch> {
        let RequestDigest {
            resource,
            subresource,
            namespace,
            ..
        } = *request;
        if !self.verbs.contains(request.verb) {
            Err(Mismatch::Verb)
        } else if !self.resources.contains(resource, subresource) {
            Err(Mismatch::Resource)
        } else if !self.api_groups.contains(request.api_group) {
            Err(Mismatch::ApiGroup)
        } else if namespace.is_empty() && !self.cluster_scope {
            Err(Mismatch::ClusterScope)
        } else if !namespace.is_empty() && !self.namespaces.contains(namespace) {
            Err(Mismatch::Namespace)
        } else {
            Ok(())
        }
    }
}

impl NonResourceRule {
    fn new(rule: &NonResourcePolicyRule) -> Self {
        Self {
            verbs: Verbs::new(&rule.verbs),
            paths: Paths::new(&rule.non_resource_urls),
        }
    }

    fn matches(&self, request: &RequestDigest<'_>) -> bool {
        self.verbs.contains(request.verb) && self.paths.contains(request.path)
    }

    /// The first check of [`matches`](Self::matches) that fails.
    fn explain(&self, request: &RequestDigest<'_>) -> Result<(), Mismatch> {
        if !self.verbs.contains(request.verb) {
            Err(Mismatch::Verb)
        } else if !self.paths.contains(request.path) {
            Err(Mismatch::NonResourceUrl)
        } else {
            Ok(())
        }
    }
}

/// A list of verbs: a bit for each verb with a variant, text for the others.
#[derive(Clone, Debug)]
enum Verbs {
    Any,
    Listed {
        standard: u32,
        others: Box<[Box<str>]>,
    },
}

impl Verbs {
    fn new(verbs: &[String]) -> Self {
        if is_wildcard(verbs) {
            return Self::Any;
        }
        let (mut standard, mut others) = (0, Vec::new());
        for text in verbs {
            match STANDARD_VERBS.iter().find(|verb| verb.as_str() == text) {
                Some(verb) => standard |= verb_bit(verb),
                None => others.push(text.as_str().into()),
            }
        }
        Self::Listed {
            standard,
            others: others.into(),
        }
    }

    fn contains(&self, verb: &Verb) -> bool {
        match (self, verb) {
            (Self::Any, _) => true,
            (Self::Listed { others, .. }, Verb::Other(text)) => others.contains(text),
            (Self::Listed { standard, .. }, verb) => standard & verb_bit(verb) != 0,
        }
    }
}

const STANDARD_VERBS: [Verb; 16] = [
    Verb::Connect,
    Verb::Create,
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::Head,
    Verb::List,
    Verb::None,
    Verb::Options,
    Verb::Patch,
    Verb::Post,
    Verb::Proxy,
    Verb::Put,
    Verb::Trace,
    Verb::Update,
    Verb::Watch,
];

/// The number of values of [`verb_index`].
pub(super) const VERB_COUNT: usize = OTHER_VERB + 1;

/// The index of all verbs without a variant.
pub(super) const OTHER_VERB: usize = STANDARD_VERBS.len();

/// An index for each verb with a variant, and one for all others.
#[expect(clippy::as_conversions, reason = "at most 32")]
pub(super) fn verb_index(verb: &Verb) -> usize {
    (verb_bit(verb).trailing_zeros() as usize).min(OTHER_VERB)
}

/// The verb's bit. 0 for a verb without a variant.
const fn verb_bit(verb: &Verb) -> u32 {
    match verb {
        Verb::Connect => 1,
        Verb::Create => 1 << 1,
        Verb::Delete => 1 << 2,
        Verb::DeleteCollection => 1 << 3,
        Verb::Get => 1 << 4,
        Verb::Head => 1 << 5,
        Verb::List => 1 << 6,
        Verb::None => 1 << 7,
        Verb::Options => 1 << 8,
        Verb::Other(_) => 0,
        Verb::Patch => 1 << 9,
        Verb::Post => 1 << 10,
        Verb::Proxy => 1 << 11,
        Verb::Put => 1 << 12,
        Verb::Trace => 1 << 13,
        Verb::Update => 1 << 14,
        Verb::Watch => 1 << 15,
    }
}

/// A list of resources, each as `resource` or `resource/subresource`. They are compared one by one
/// even in long lists: most differ in length, and the number of resources is limited.
#[derive(Clone, Debug)]
enum Resources {
    Any,
    Listed(Box<[Box<[u8]>]>),
}

impl Resources {
    fn new(resources: &[String]) -> Self {
        if is_wildcard(resources) {
            return Self::Any;
        }
        Self::Listed(resources.iter().map(|name| boxed_bytes(name)).collect())
    }

    fn contains(&self, resource: &[u8], subresource: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(names) if subresource.is_empty() => {
                names.iter().any(|name| **name == *resource)
            }
            Self::Listed(names) => names
                .iter()
                .any(|name| is_joined(name, resource, subresource)),
        }
    }
}

/// Whether `name` is `resource`, a slash and `subresource`.
fn is_joined(name: &[u8], resource: &[u8], subresource: &[u8]) -> bool {
    let rest = name.strip_prefix(resource);
    rest.and_then(|rest| rest.strip_prefix(b"/")) == Some(subresource)
}

/// A list of non-resource URLs. Unlike elsewhere, a wildcard may be among other elements.
#[derive(Clone, Debug)]
enum Paths {
    Any,
    Listed(Box<[PathPattern]>),
}

#[derive(Clone, Debug)]
struct PathPattern {
    exact: Box<[u8]>,
    /// Ends with a slash.
    prefix: Box<[u8]>,
}

impl Paths {
    fn new(urls: &[String]) -> Self {
        if urls.iter().any(|url| url == "*") {
            return Self::Any;
        }
        Self::Listed(urls.iter().map(|url| PathPattern::new(url)).collect())
    }

    fn contains(&self, path: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(patterns) => patterns
                .iter()
                .any(|pattern| *pattern.exact == *path || path.starts_with(&pattern.prefix)),
        }
    }
}

impl PathPattern {
    /// A plain path also matches everything below it.
    fn new(url: &str) -> Self {
        let stem = url.strip_suffix('*').unwrap_or(url);
        let slash = if stem.ends_with('/') { "" } else { "/" };
        Self {
            exact: boxed_bytes(url),
            prefix: boxed_bytes(&format!("{stem}{slash}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn every_verb_has_a_bit_of_its_own() {
        let together = STANDARD_VERBS.iter().fold(0, |bits, verb| {
            assert_eq!(
                (verb_bit(verb).count_ones(), bits & verb_bit(verb)),
                (1, 0),
                "{verb:?}"
            );
            bits | verb_bit(verb)
        });
        assert_eq!(together.count_ones(), 16);
    }

    #[test]
    fn verbs_match_by_their_text() {
        let other = |text: &str| Verb::Other(text.into());
        let verbs = Verbs::new(&list(&["get", "", "propfind", "*"]));
        assert!(verbs.contains(&Verb::Get) && verbs.contains(&Verb::None));
        assert!(verbs.contains(&other("propfind")) && verbs.contains(&other("*")));
        assert!(!verbs.contains(&Verb::List) && !verbs.contains(&other("search")));
        let any = Verbs::new(&list(&["*"]));
        assert!(any.contains(&Verb::None) && any.contains(&other("search")));
    }

    #[test]
    fn a_resource_matches_neither_its_subresources_nor_patterns() {
        let resources = Resources::new(&list(&["pods", "nodes/status", "jobs/*", "*/scale", "a/"]));
        assert!(resources.contains(b"pods", b""));
        assert!(!resources.contains(b"pods", b"log"));
        assert!(resources.contains(b"nodes", b"status"));
        assert!(!resources.contains(b"nodes", b""));
        assert!(!resources.contains(b"nodesxstatus", b""));
        assert!(!resources.contains(b"jobs", b"status"));
        assert!(resources.contains(b"jobs", b"*"));
        assert!(!resources.contains(b"deployments", b"scale"));
        assert!(!resources.contains(b"a", b""));
        assert!(Resources::new(&list(&["*"])).contains(b"pods", b"log"));
    }

    #[test]
    fn a_path_matches_the_paths_below_it() {
        let cases: [(&str, &[&str], &[&str]); 5] = [
            ("/a", &["/a", "/a/", "/a/b/c"], &["/ab", "", "/"]),
            ("/a/", &["/a/", "/a/b"], &["/a"]),
            ("/a/*", &["/a/", "/a/b", "/a/*"], &["/a"]),
            ("/a*", &["/a/b", "/a*"], &["/a", "/ab", "/a*/b"]),
            ("/", &["/", "/a", "//"], &["a", ""]),
        ];
        for (url, matched, others) in cases {
            let paths = Paths::new(&list(&[url]));
            for path in matched {
                assert!(paths.contains(path.as_bytes()), "{path} of {url}");
            }
            for path in others {
                assert!(!paths.contains(path.as_bytes()), "{path} of {url}");
            }
        }
        assert!(Paths::new(&list(&["/a", "*"])).contains(b"anything"));
        let none = Paths::new(&list(&[""]));
        assert!(none.contains(b"") && none.contains(b"/a") && !none.contains(b"a"));
    }

    #[test]
    fn namespaces_match_namespaced_requests_and_the_cluster_scope_all_others() {
        let rule = |cluster_scope, namespaces: &[&str]| {
            Rules::new(&PolicyRulesWithSubjects {
                resource_rules: vec![ResourcePolicyRule {
                    verbs: list(&["*"]),
                    api_groups: list(&["*"]),
                    resources: list(&["*"]),
                    cluster_scope,
                    namespaces: list(namespaces),
                }],
                ..PolicyRulesWithSubjects::default()
            })
        };
        let user = UserInfo::default();
        let request = |namespace| RequestDigest {
            is_resource_request: true,
            verb: &Verb::Get,
            path: b"",
            api_group: b"",
            resource: b"pods",
            subresource: b"",
            namespace,
            user: &user,
        };
        assert!(rule(true, &[]).matches(&request(b"")));
        assert!(!rule(true, &[]).matches(&request(b"ns")));
        assert!(rule(false, &["*"]).matches(&request(b"ns")));
        assert!(!rule(false, &["*"]).matches(&request(b"")));
        assert!(!rule(true, &["ns"]).matches(&request(b"n")));
    }
}
