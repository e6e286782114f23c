//! What of a request may be a label's value before the API server has shown that it exists.

use crate::request_info::RequestInfo;

/// The label value of what is not known.
pub(in crate::pipeline) const OTHER: &str = "other";

/// Resources that are known before the upstream has confirmed them, so that a refusal in the first second has its label.
const BUILT_IN_RESOURCES: [&str; 30] = [
    "bindings",
    "configmaps",
    "cronjobs",
    "customresourcedefinitions",
    "daemonsets",
    "deployments",
    "endpoints",
    "endpointslices",
    "events",
    "flowschemas",
    "horizontalpodautoscalers",
    "ingresses",
    "jobs",
    "leases",
    "limitranges",
    "namespaces",
    "networkpolicies",
    "nodes",
    "persistentvolumeclaims",
    "persistentvolumes",
    "pods",
    "prioritylevelconfigurations",
    "replicasets",
    "resourcequotas",
    "secrets",
    "serviceaccounts",
    "services",
    "statefulsets",
    "subjectaccessreviews",
    "tokenreviews",
];

/// The API groups of those. A client can make up groups that end like them.
const BUILT_IN_GROUPS: [&str; 13] = [
    "",
    "apiextensions.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "networking.k8s.io",
    "policy",
];

/// Non-resource paths that may be a label, where upstream has the path as `subresource`.
const ALLOWED_PATHS: [&str; 9] = [
    "/api",
    "/apis",
    "/healthz",
    "/livez",
    "/metrics",
    "/openapi/v2",
    "/openapi/v3",
    "/readyz",
    "/version",
];

/// What kube-apiserver's own handlers of a path call it in `subresource`, with an empty `component`
/// (`InstrumentHandlerFunc`, 1.36: `healthz.InstallPathHandler`, the aggregator's `openapiv3`).
const HANDLER_LABELS: [(&str, &str); 4] = [
    ("/healthz", "/healthz"),
    ("/livez", "/livez"),
    ("/readyz", "/readyz"),
    ("/openapi/v3", "openapi/v3"),
];

/// And what it calls each of the documents below that.
const OPENAPI_DOCUMENT_LABEL: (&str, &str) = ("/openapi/v3/", "openapi/v3/");

/// Whether every API server has this resource.
pub(in crate::pipeline) fn is_built_in(info: &RequestInfo<'_>) -> bool {
    let resource = BUILT_IN_RESOURCES
        .iter()
        .any(|name| name.as_bytes() == info.resource());
    let subresource = [
        &b""[..],
        b"status",
        b"scale",
        b"log",
        b"exec",
        b"attach",
        b"portforward",
        b"proxy",
        b"binding",
        b"eviction",
        b"token",
        b"finalize",
    ]
    .contains(&info.subresource());
    let version = [&b"v1"[..], b"v2", b"v1beta1"].contains(&info.api_version());
    let group = BUILT_IN_GROUPS
        .iter()
        .any(|name| name.as_bytes() == info.api_group());
    resource && subresource && version && group
}

/// The path, where it is one of those that every API server has.
pub(in crate::pipeline) fn path_label(info: &RequestInfo<'_>) -> &'static str {
    ALLOWED_PATHS
        .iter()
        .find(|path| path.as_bytes() == info.path())
        .copied()
        .unwrap_or(OTHER)
}

/// What the handler calls it, where it is one that counts by itself.
pub(in crate::pipeline) fn handler_label(info: &RequestInfo<'_>) -> Option<&'static str> {
    if info.is_resource_request() {
        return None;
    }
    let path = info.path();
    let (below, document) = OPENAPI_DOCUMENT_LABEL;
    HANDLER_LABELS
        .iter()
        .find(|(handled, _)| handled.as_bytes() == path)
        .map(|(_, label)| *label)
        .or_else(|| path.starts_with(below.as_bytes()).then_some(document))
}
