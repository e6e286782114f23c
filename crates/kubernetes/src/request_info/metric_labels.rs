//! The labels of a request in kube-apiserver's request metrics.
//!
//! Follows `CleanScope`, `CanonicalVerb`, `cleanVerb` and `cleanDryRun` (Kubernetes 1.36,
//! `endpoints/metrics`). Every value is one of a fixed set, for any input.

use super::info::RequestInfo;
use super::list_options;
use super::query::Query;
use super::verb::Verb;

/// The labels that are not fields of the [`RequestInfo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MetricLabels {
    /// `verb`: the method rather than the API verb, except for lists, watches, connections and
    /// applies.
    pub verb: &'static str,
    /// `scope`: `resource`, `namespace`, `cluster` or empty.
    pub scope: &'static str,
    /// `dry_run`: `All`, `invalid` or empty.
    pub dry_run: &'static str,
}

impl MetricLabels {
    /// The labels of a request with the given method and the first `Content-Type` header, if it has
    /// one.
    #[must_use]
    pub fn from_request(method: &str, info: &RequestInfo<'_>, content_type: Option<&[u8]>) -> Self {
        let scope = scope_label(info);
        Self {
            verb: verb_label(method, info, scope, content_type),
            scope,
            dry_run: dry_run_label(info.query()),
        }
    }
}

impl MetricLabels {
    /// The labels of a request that a handler has answered: the route determines verb and scope
    /// (`InstrumentRouteFunc`), where filters guess them from the request. A list of one name is a
    /// list, and `/watch/` before the resource is a watch. Custom resources have no routes: their
    /// handler guesses as filters do (`crdHandler.ServeHTTP`).
    #[must_use]
    pub fn for_route(self, info: &RequestInfo<'_>) -> Self {
        let collection = matches!(
            info.verb(),
            Verb::List | Verb::Watch | Verb::DeleteCollection
        );
        if !info.is_resource_request() || !collection || !is_built_in_group(info.api_group()) {
            return self;
        }
        let watches = has_watch_prefix(info);
        let scope = if watches && !info.name().is_empty() {
            self.scope
        } else if info.namespace().is_empty() {
            "cluster"
        } else {
            "namespace"
        };
        let verb = match self.verb {
            "GET" | "LIST" if watches => "WATCH",
            "GET" if scope != "resource" => "LIST",
            verb => verb,
        };
        Self {
            verb,
            scope,
            ..self
        }
    }
}

/// The API groups of kube-apiserver 1.36's own resources.
const BUILT_IN_GROUPS: [&str; 23] = [
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// Whether the API group is kube-apiserver's own. Others belong to custom resources or to aggregated
/// API servers.
#[must_use]
pub fn is_built_in_group(group: &[u8]) -> bool {
    BUILT_IN_GROUPS.iter().any(|name| name.as_bytes() == group)
}

/// Whether upstream measures the size of such a response (`MonitorRequest`): of routes that get or
/// list, not of those that watch. The route of a built-in list also serves its watches.
#[must_use]
pub fn measures_response_size(labels: MetricLabels, info: &RequestInfo<'_>) -> bool {
    let is_watch_route = has_watch_prefix(info)
        || *info.verb() == Verb::Watch && !is_built_in_group(info.api_group());
    matches!(labels.verb, "GET" | "LIST" | "WATCH") && !is_watch_route
}

/// Whether the path is of the deprecated watches: `/api/v1/watch/…`, `/apis/GROUP/VERSION/watch/…`.
fn has_watch_prefix(info: &RequestInfo<'_>) -> bool {
    let mut parts = info.path().split(|byte| *byte == b'/');
    let behind = match parts.nth(1) {
        Some(b"api") => parts.nth(1),
        Some(b"apis") => parts.nth(2),
        _ => None,
    };
    behind == Some(b"watch")
}

fn scope_label(info: &RequestInfo<'_>) -> &'static str {
    if !info.name().is_empty() || *info.verb() == Verb::Create {
        "resource"
    } else if !info.namespace().is_empty() {
        "namespace"
    } else if info.is_resource_request() {
        "cluster"
    } else {
        ""
    }
}

fn verb_label(
    method: &str,
    info: &RequestInfo<'_>,
    scope: &str,
    content_type: Option<&[u8]>,
) -> &'static str {
    if info.connects {
        return "CONNECT";
    }
    let verb = clean_verb(method);
    match verb {
        // A HEAD is never labelled as a watch, although it is one.
        "GET" | "LIST" if !method.eq_ignore_ascii_case("HEAD") && is_watch_query(info.query()) => {
            "WATCH"
        }
        "GET" if matches!(scope, "cluster" | "namespace") => "LIST",
        "PATCH" if content_type == Some(b"application/apply-patch+yaml") => "APPLY",
        "WATCHLIST" => "WATCH",
        _ => verb,
    }
}

/// The methods and verbs that a label may have. Unlike elsewhere, a method is recognized in any
/// case.
fn clean_verb(method: &str) -> &'static str {
    const VALID_VERBS: [&str; 14] = [
        "APPLY",
        "CONNECT",
        "CREATE",
        "DELETE",
        "DELETECOLLECTION",
        "GET",
        "LIST",
        "PATCH",
        "POST",
        "PROXY",
        "PUT",
        "UPDATE",
        "WATCH",
        "WATCHLIST",
    ];
    if method.eq_ignore_ascii_case("HEAD") {
        return "GET";
    }
    let valid_verb = VALID_VERBS
        .into_iter()
        .find(|valid_verb| method.eq_ignore_ascii_case(valid_verb));
    valid_verb.unwrap_or("other")
}

fn is_watch_query(query: Query<'_>) -> bool {
    query
        .first("watch")
        .is_some_and(|value| list_options::is_true_lower_cased(&value))
}

/// `All` is the only dry run of Kubernetes. Upstream first searches the raw query for the name, so
/// it does not find an escaped one.
fn dry_run_label(query: Query<'_>) -> &'static str {
    const NAME: &str = "dryRun";
    if !query
        .raw()
        .windows(NAME.len())
        .any(|window| window == NAME.as_bytes())
    {
        return "";
    }
    let mut label = "";
    for value in query.all(NAME) {
        if *value != *b"All" {
            return "invalid";
        }
        label = "All";
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels_of(method: &str, target: &str) -> MetricLabels {
        labels_with_content_type(method, target, None)
    }

    fn labels_with_content_type(
        method: &str,
        target: &str,
        content_type: Option<&[u8]>,
    ) -> MetricLabels {
        let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
        MetricLabels::from_request(method, &info, content_type)
    }

    #[test]
    fn verb_and_scope_equal_those_of_kube_apiserver() {
        let cases = [
            ("GET", "/api/v1/pods", "LIST", "cluster"),
            ("HEAD", "/api/v1/pods", "LIST", "cluster"),
            ("GET", "/api/v1/namespaces/a/pods", "LIST", "namespace"),
            ("GET", "/api/v1/namespaces/a/pods/b", "GET", "resource"),
            ("GET", "/api/v1/namespaces/a", "GET", "resource"),
            (
                "GET",
                "/api/v1/pods?fieldSelector=metadata.name%3Da",
                "GET",
                "resource",
            ),
            ("GET", "/api/v1/pods?watch=1", "WATCH", "cluster"),
            ("GET", "/api/v1/pods/a?watch=1", "WATCH", "resource"),
            ("GET", "/healthz?watch=1", "WATCH", ""),
            ("HEAD", "/api/v1/pods?watch=1", "LIST", "cluster"),
            ("GET", "/api/v1/pods?watch=False", "LIST", "cluster"),
            ("GET", "/api/v1/pods?watch=fal%C5%BFe", "WATCH", "cluster"),
            ("GET", "/api/v1/watch/pods", "LIST", "cluster"),
            ("POST", "/api/v1/namespaces/a/pods", "POST", "resource"),
            ("PUT", "/api/v1/namespaces/a/pods/b", "PUT", "resource"),
            ("DELETE", "/api/v1/namespaces/a/pods", "DELETE", "namespace"),
            ("DELETE", "/api/v1/pods", "DELETE", "cluster"),
            (
                "POST",
                "/api/v1/namespaces/a/pods/b/exec",
                "CONNECT",
                "resource",
            ),
            (
                "GET",
                "/api/v1/namespaces/a/pods/b/log?watch=1",
                "CONNECT",
                "resource",
            ),
            (
                "FOO",
                "/api/v1/namespaces/a/pods/b/proxy/x",
                "CONNECT",
                "resource",
            ),
            ("GET", "/x/y/z/log", "GET", ""),
            ("GET", "/healthz", "GET", ""),
            ("HEAD", "/healthz", "GET", ""),
            ("POST", "/healthz", "POST", ""),
            ("OPTIONS", "/healthz", "other", ""),
            ("OPTIONS", "/api/v1/pods", "other", "cluster"),
            ("CREATE", "/healthz", "CREATE", "resource"),
            ("get", "/healthz", "GET", ""),
            ("LIST", "/healthz?watch", "WATCH", ""),
            ("WATCHLIST", "/healthz", "WATCH", ""),
        ];
        for (method, target, verb, scope) in cases {
            let labels = labels_of(method, target);
            assert_eq!(
                (labels.verb, labels.scope),
                (verb, scope),
                "{method} {target}"
            );
        }
    }

    #[test]
    fn a_handled_request_has_the_verb_and_scope_of_its_route() {
        for (target, verb, scope) in [
            (
                "/api/v1/pods?fieldSelector=metadata.name%3Da",
                "LIST",
                "cluster",
            ),
            (
                "/api/v1/namespaces/a/pods?fieldSelector=metadata.name=b",
                "LIST",
                "namespace",
            ),
            (
                "/api/v1/namespaces/a/pods?watch=1&fieldSelector=metadata.name=b",
                "WATCH",
                "namespace",
            ),
            ("/api/v1/watch/pods", "WATCH", "cluster"),
            (
                "/api/v1/watch/namespaces/a/configmaps",
                "WATCH",
                "namespace",
            ),
            (
                "/api/v1/watch/namespaces/a/configmaps/x",
                "WATCH",
                "resource",
            ),
            (
                "/apis/apps/v1/watch/namespaces/a/deployments/x",
                "WATCH",
                "resource",
            ),
            ("/api/v1/namespaces/a/pods/b", "GET", "resource"),
            ("/api/v1/namespaces/a/pods", "LIST", "namespace"),
            ("/api/v1/namespaces/watch", "GET", "resource"),
            ("/healthz", "GET", ""),
        ] {
            let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
            let labels = MetricLabels::from_request("GET", &info, None).for_route(&info);
            assert_eq!((labels.verb, labels.scope), (verb, scope), "{target}");
        }
        let target = "/api/v1/namespaces/a/pods?fieldSelector=metadata.name=b";
        let info = RequestInfo::parse("DELETE", target.as_bytes()).unwrap();
        let labels = MetricLabels::from_request("DELETE", &info, None).for_route(&info);
        assert_eq!((labels.verb, labels.scope), ("DELETE", "namespace"));
    }

    #[test]
    fn an_apply_is_a_patch_of_one_content_type() {
        let verb = |content_type| {
            labels_with_content_type("PATCH", "/api/v1/namespaces/a", content_type).verb
        };
        assert_eq!(verb(Some(b"application/apply-patch+yaml")), "APPLY");
        assert_eq!(
            verb(Some(b"application/apply-patch+yaml; charset=utf-8")),
            "PATCH"
        );
        assert_eq!(verb(None), "PATCH");
    }

    #[test]
    fn a_dry_run_is_all_or_invalid() {
        let cases = [
            ("", ""),
            ("dryRun=All", "All"),
            ("dryRun=All&dryRun=All", "All"),
            ("dryRun=All&dryRun=", "invalid"),
            ("dryRun", "invalid"),
            ("dryRun=all", "invalid"),
            ("dryRun=%41ll", "All"),
            ("dry%52un=All", ""),
            ("dry%52un=x&x=dryRun", "invalid"),
            ("nodryRun=x", ""),
            ("dryRun=%zz", ""),
            ("dryRun=a;b", ""),
        ];
        for (query, dry_run) in cases {
            let labels = labels_of("POST", &format!("/api/v1/pods?{query}"));
            assert_eq!(labels.dry_run, dry_run, "{query}");
        }
    }
}
