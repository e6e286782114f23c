//! The values that may be labels before the API server has shown that they exist.

use crate::request_info::RequestInfo;

/// The label value of everything unknown.
pub(in crate::pipeline) const OTHER: &str = "other";

/// Resources that are known before the upstream has confirmed them, so that a rejection in the
/// first second has its label.
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

/// The API groups of these resources. A client can make up groups with the same suffix.
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

/// The `subresource` label of paths with their own handler in kube-apiserver, with an empty
/// `component` (`InstrumentHandlerFunc`, 1.36: `healthz.InstallPathHandler`, the aggregator's
/// `openapiv3`).
const HANDLER_LABELS: [(&str, &str); 4] = [
    ("/healthz", "/healthz"),
    ("/livez", "/livez"),
    ("/readyz", "/readyz"),
    ("/openapi/v3", "openapi/v3"),
];

/// The label of the documents below that path.
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

/// The path, if every API server has it; else `other`.
pub(in crate::pipeline) fn path_label(info: &RequestInfo<'_>) -> &'static str {
    ALLOWED_PATHS
        .iter()
        .find(|path| path.as_bytes() == info.path())
        .copied()
        .unwrap_or(OTHER)
}

/// The handler's label for the path, if the handler counts its requests itself.
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
