//! The values that may be labels before the API server has shown that they exist.

use http::{HeaderMap, StatusCode, header};

use weir_kubernetes::request_info::{RequestInfo, is_built_in_group};

/// kube-apiserver's name for itself in these metrics.
pub(crate) const COMPONENT: &str = "apiserver";

/// The label value of everything unknown.
pub(crate) const OTHER: &str = "other";

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

/// The labels of a handler that counts the requests of a non-resource path
/// (`InstrumentHandlerFunc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HandlerLabels {
    pub(crate) subresource: &'static str,
    pub(crate) component: &'static str,
}

/// Paths with such a handler in kube-apiserver 1.36: `healthz.InstallPathHandler` and the
/// aggregator's `openapiv3`.
const HANDLER_PATHS: [(&str, &str); 4] = [
    ("/healthz", "/healthz"),
    ("/livez", "/livez"),
    ("/readyz", "/readyz"),
    ("/openapi/v3", "openapi/v3"),
];

/// The documents below that path.
const OPENAPI_DOCUMENTS: (&str, &str) = ("/openapi/v3/", "openapi/v3/");

/// Paths of discovery. Only its aggregated form has such a handler (`resourceDiscoveryManager`).
const DISCOVERY_PATHS: [&str; 2] = ["/api", "/apis"];

/// A parameter of the media type of aggregated discovery.
const AGGREGATED_DISCOVERY: &[u8] = b"as=APIGroupDiscoveryList";

/// Whether every API server has this resource.
pub(crate) fn is_built_in(info: &RequestInfo<'_>) -> bool {
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
    resource && subresource && version && is_built_in_group(info.api_group())
}

/// The path, if every API server has it; else `other`.
pub(crate) fn path_label(info: &RequestInfo<'_>) -> &'static str {
    ALLOWED_PATHS
        .iter()
        .find(|path| path.as_bytes() == info.path())
        .copied()
        .unwrap_or(OTHER)
}

/// The labels of the handler that has sent a response with this code and these headers, if it is a
/// handler of a non-resource path that counts its requests.
pub(crate) fn handler_labels(
    info: &RequestInfo<'_>,
    code: StatusCode,
    headers: &HeaderMap,
) -> Option<HandlerLabels> {
    if info.is_resource_request() {
        return None;
    }
    let path = info.path();
    let (below, document) = OPENAPI_DOCUMENTS;
    let by_path = HANDLER_PATHS
        .iter()
        .find(|(handled, _)| handled.as_bytes() == path)
        .map(|(_, label)| *label)
        .or_else(|| path.starts_with(below.as_bytes()).then_some(document))
        .map(|subresource| HandlerLabels {
            subresource,
            component: "",
        });
    by_path.or_else(|| {
        let is_aggregated = code == StatusCode::NOT_MODIFIED
            || headers.get(header::CONTENT_TYPE).is_some_and(|of| {
                memchr::memmem::find(of.as_bytes(), AGGREGATED_DISCOVERY).is_some()
            });
        DISCOVERY_PATHS
            .into_iter()
            .find(|root| root.as_bytes() == path && is_aggregated)
            .map(|subresource| HandlerLabels {
                subresource,
                component: COMPONENT,
            })
    })
}
