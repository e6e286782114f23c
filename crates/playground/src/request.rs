//! Parses path, query and `Accept` of a request. Pure.
//!
//! Follows `RequestInfoFactory` for paths of resources. A path that is not served has a route of
//! its own, so that it gets the right kind of 404.

use crate::auth::authorization::AccessAttributes;
use crate::objects::resources::{ApiResource, GROUPS};
use crate::percent::percent_decode;
use crate::status::StatusError;
use http::Method;

/// The decoded parameters of a query, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueryParameters(Vec<(String, String)>);

/// The route of a path.
#[derive(Clone, Debug)]
pub(crate) enum ApiRoute {
    /// `/apis`: the groups.
    ApiGroups,
    /// `/api`: the versions of the core group.
    ApiVersions,
    /// `/apis/<group>`.
    Group(&'static str),
    /// `/api/v1`, `/apis/<group>/<version>`: its resources.
    GroupVersion(&'static str, &'static str),
    /// `/healthz`, `/livez`, `/readyz` and their single checks.
    Health(&'static str),
    /// `/metrics`.
    Metrics,
    NotFound,
    OpenApiV2,
    /// The index.
    OpenApiV3,
    OpenApiV3Document(&'static str, &'static str),
    Resource(ResourceTarget),
    /// The path has the form of a resource that is not served.
    UnknownResource,
    Version,
}

/// A resource and the parts of its path.
#[derive(Clone, Debug)]
pub(crate) struct ResourceTarget {
    pub(crate) resource: &'static ApiResource,
    /// Empty for cluster-scoped resources and for all namespaces.
    pub(crate) namespace: String,
    /// Empty for the collection.
    pub(crate) name: String,
    /// Empty for the object itself.
    pub(crate) subresource: String,
    /// Whether the path has the old `/watch/` prefix.
    pub(crate) watch: bool,
}

/// The form of the objects in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseForm {
    /// The aggregated discovery of all groups and versions.
    AggregatedDiscovery,
    Object,
    /// `PartialObjectMetadata`.
    PartialMetadata,
    /// With the version of `meta.k8s.io`.
    Table(&'static str),
}

/// Marks a request, in its extensions, whose body was read to the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyReadToEnd;

impl QueryParameters {
    pub(crate) fn parse(query: Option<&str>) -> Self {
        let pairs = query
            .unwrap_or_default()
            .split('&')
            .filter(|p| !p.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    let decode = |text: &str| percent_decode(&text.replace('+', " "));
                    (decode(key), decode(value))
                })
                .collect(),
        )
    }

    /// The first value of a parameter that is not empty.
    pub(crate) fn first(&self, key: &str) -> Option<&str> {
        self.all(key).find(|value| !value.is_empty())
    }

    pub(crate) fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter(move |(k, _)| k == key)
            .map(|(_, v)| v.as_str())
    }

    /// A boolean parameter, as Go's conversion reads it: present, and neither `false` nor `0`.
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.0
            .iter()
            .find(|(k, _)| k == key)
            .is_some_and(|(_, value)| !matches!(value.to_lowercase().as_str(), "false" | "0"))
    }

    /// A number; the error is a 400.
    pub(crate) fn number<T: std::str::FromStr>(&self, key: &str) -> Result<Option<T>, StatusError> {
        self.first(key)
            .map(|text| {
                text.parse().map_err(|_| {
                    StatusError::bad_request(format!("invalid value {text:?} for {key}"))
                })
            })
            .transpose()
    }
}

impl ApiRoute {
    pub(crate) fn parse(path: &str) -> Self {
        let parts: Vec<String> = path
            .split('/')
            .filter(|part| !part.is_empty())
            .map(percent_decode)
            .collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts.as_slice() {
            ["api"] => Self::ApiVersions,
            ["apis"] => Self::ApiGroups,
            ["api", version, rest @ ..] => Self::parse_group_version("", version, rest),
            ["apis", group] => GROUPS
                .iter()
                .find(|(g, _)| g == group && !g.is_empty())
                .map_or(Self::NotFound, |(g, _)| Self::Group(g)),
            ["apis", group, version, rest @ ..] => Self::parse_group_version(group, version, rest),
            ["version"] => Self::Version,
            ["openapi", "v2"] => Self::OpenApiV2,
            ["openapi", "v3"] => Self::OpenApiV3,
            ["openapi", "v3", "api", version] => Self::parse_openapi_document("", version),
            ["openapi", "v3", "apis", group, version] => {
                Self::parse_openapi_document(group, version)
            }
            ["healthz", ..] => Self::Health("healthz"),
            ["livez", ..] => Self::Health("livez"),
            ["readyz", ..] => Self::Health("readyz"),
            ["metrics"] => Self::Metrics,
            _ => Self::NotFound,
        }
    }

    fn parse_openapi_document(group: &str, version: &str) -> Self {
        served_group_version(group, version)
            .map_or(Self::NotFound, |(g, v)| Self::OpenApiV3Document(g, v))
    }

    fn parse_group_version(group: &str, version: &str, rest: &[&str]) -> Self {
        let Some((group, version)) = served_group_version(group, version) else {
            return Self::NotFound;
        };
        if rest.is_empty() {
            return Self::GroupVersion(group, version);
        }
        let (watch, rest) = match rest {
            ["watch", rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let (namespace, rest) = match rest {
            // `namespaces/<name>` and its subresources are for the namespace itself.
            ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => ("", rest),
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            rest => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (plural, "", ""),
            [plural, name] => (plural, *name, ""),
            [plural, name, subresource] => (plural, *name, *subresource),
            _ => return Self::UnknownResource,
        };
        let Some(resource) = ApiResource::find(group, version, plural) else {
            return Self::UnknownResource;
        };
        let misplaced = if resource.namespaced {
            namespace.is_empty() && !name.is_empty()
        } else {
            !namespace.is_empty()
        };
        let supported = subresource.is_empty()
            || resource
                .subresources()
                .iter()
                .any(|s| s.name == subresource);
        if misplaced || !supported {
            return Self::UnknownResource;
        }
        Self::Resource(ResourceTarget {
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: subresource.to_owned(),
            watch,
        })
    }

    /// Whether the request is long-running, by kube-apiserver's test.
    pub(crate) fn is_long_running(&self, method: &Method, query: &QueryParameters) -> bool {
        match self {
            Self::Resource(target) => {
                matches!(target.verb(method, query), "watch")
                    || matches!(
                        target.subresource.as_str(),
                        "attach" | "exec" | "log" | "portforward"
                    )
            }
            Self::ApiGroups
            | Self::ApiVersions
            | Self::Group(_)
            | Self::GroupVersion(..)
            | Self::Health(_)
            | Self::Metrics
            | Self::NotFound
            | Self::OpenApiV2
            | Self::OpenApiV3
            | Self::OpenApiV3Document(..)
            | Self::UnknownResource
            | Self::Version => false,
        }
    }

    /// The attributes of the request for authorization.
    pub(crate) fn attributes(
        &self,
        method: &Method,
        path: &str,
        query: &QueryParameters,
    ) -> AccessAttributes {
        if let Self::Resource(target) = self {
            let ResourceTarget {
                resource,
                namespace,
                name,
                subresource,
                ..
            } = target;
            // `GET /api/v1/namespaces/x` is a request in namespace x, as in RequestInfo.
            let namespace = if resource.plural == "namespaces" && !name.is_empty() {
                name
            } else {
                namespace
            };
            return AccessAttributes::Resource {
                verb: target.verb(method, query).to_owned(),
                group: resource.group.to_owned(),
                resource: if subresource.is_empty() {
                    resource.plural.to_owned()
                } else {
                    format!("{}/{subresource}", resource.plural)
                },
                namespace: namespace.clone(),
                name: name.clone(),
            };
        }
        AccessAttributes::Path {
            verb: method.as_str().to_lowercase(),
            path: path.to_owned(),
        }
    }
}

/// The group and version, if they are served.
fn served_group_version(group: &str, version: &str) -> Option<(&'static str, &'static str)> {
    GROUPS
        .iter()
        .find(|(g, v)| *g == group && *v == version)
        .copied()
}

impl ResourceTarget {
    /// The verb, as in `RequestInfo`; empty for a method without one.
    pub(crate) fn verb(&self, method: &Method, query: &QueryParameters) -> &'static str {
        let collection = self.name.is_empty();
        match method.as_str() {
            "GET" | "HEAD" if self.watch || (collection && query.flag("watch")) => "watch",
            "GET" | "HEAD" if collection => "list",
            "GET" | "HEAD" => "get",
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" if collection => "deletecollection",
            "DELETE" => "delete",
            _ => "",
        }
    }
}

impl ResponseForm {
    /// The first supported form of `Accept`; `None` if there is none.
    pub(crate) fn negotiate(accept: Option<&str>) -> Option<Self> {
        let accept = accept.unwrap_or_default();
        if accept.trim().is_empty() {
            return Some(Self::Object);
        }
        accept.split(',').find_map(Self::from_media_range)
    }

    fn from_media_range(offer: &str) -> Option<Self> {
        let mut parts = offer.split(';').map(str::trim);
        let media = parts.next()?;
        if !matches!(
            media,
            "application/json" | "application/yaml" | "application/*" | "*/*"
        ) {
            return None;
        }
        let parameter = |wanted: &str| {
            parts.clone().find_map(|part| {
                let (key, value) = part.split_once('=')?;
                (key.trim() == wanted).then_some(value.trim())
            })
        };
        match (parameter("as"), parameter("g"), parameter("v")) {
            (None, ..) => Some(Self::Object),
            (Some("Table"), Some("meta.k8s.io"), Some("v1")) => Some(Self::Table("v1")),
            (Some("Table"), Some("meta.k8s.io"), Some("v1beta1")) => Some(Self::Table("v1beta1")),
            (
                Some("PartialObjectMetadata" | "PartialObjectMetadataList"),
                Some("meta.k8s.io"),
                Some("v1"),
            ) => Some(Self::PartialMetadata),
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) => {
                Some(Self::AggregatedDiscovery)
            }
            (Some(_), ..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ApiRoute, QueryParameters, ResourceTarget, ResponseForm};
    use http::Method;

    fn target(path: &str) -> Option<ResourceTarget> {
        if let ApiRoute::Resource(target) = ApiRoute::parse(path) {
            return Some(target);
        }
        None
    }

    #[test]
    fn paths_are_resolved_to_resources() {
        for (path, expected) in [
            ("/api/v1/nodes", ("nodes", "", "", "", false)),
            ("/api/v1/pods", ("pods", "", "", "", false)),
            (
                "/api/v1/namespaces/x/pods/p/log",
                ("pods", "x", "p", "log", false),
            ),
            ("/api/v1/namespaces/x", ("namespaces", "", "x", "", false)),
            (
                "/api/v1/namespaces/x/status",
                ("namespaces", "", "x", "status", false),
            ),
            (
                "/api/v1/watch/namespaces/x/pods",
                ("pods", "x", "", "", true),
            ),
            (
                "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node%2D1",
                ("leases", "kube-node-lease", "node-1", "", false),
            ),
        ] {
            let found = target(path).unwrap();
            let found = (
                found.resource.plural,
                found.namespace.as_str(),
                found.name.as_str(),
                found.subresource.as_str(),
                found.watch,
            );
            assert_eq!(found, expected, "{path}");
        }
        for path in [
            "/api/v1/things",
            "/api/v1/pods/p",
            "/api/v1/namespaces/x/nodes",
            "/api/v1/namespaces/x/pods/p/scale",
            "/api/v1/namespaces/x/pods/p/log/more",
        ] {
            assert!(
                matches!(ApiRoute::parse(path), ApiRoute::UnknownResource),
                "{path}"
            );
        }
        for path in [
            "/nope",
            "/apis/apps",
            "/apis/apps/v1/deployments",
            "/api/v2",
            "/",
        ] {
            assert!(
                matches!(ApiRoute::parse(path), ApiRoute::NotFound),
                "{path}"
            );
        }
    }

    #[test]
    fn verbs_follow_method_name_and_query() {
        let verb = |method: Method, path: &str, query: &str| {
            target(path)
                .unwrap()
                .verb(&method, &QueryParameters::parse(Some(query)))
        };
        let pods = "/api/v1/namespaces/x/pods";
        assert_eq!(verb(Method::GET, pods, ""), "list");
        assert_eq!(verb(Method::GET, pods, "watch=1"), "watch");
        assert_eq!(verb(Method::GET, pods, "watch=false"), "list");
        assert_eq!(verb(Method::GET, "/api/v1/watch/pods", ""), "watch");
        assert_eq!(verb(Method::DELETE, pods, ""), "deletecollection");
        assert_eq!(verb(Method::GET, "/api/v1/namespaces/x/pods/p", ""), "get");
    }

    #[test]
    fn queries_are_decoded() {
        let query =
            QueryParameters::parse(Some("labelSelector=a%3Db%2Cc&x=1+2&command=a&command=b%"));
        assert_eq!(query.first("labelSelector"), Some("a=b,c"));
        assert_eq!(query.first("x"), Some("1 2"));
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["a", "b%"]);
        assert!(query.number::<u32>("x").is_err());
    }

    #[test]
    fn the_first_supported_form_is_negotiated() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;\
                       v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(
            ResponseForm::negotiate(Some(kubectl)),
            Some(ResponseForm::Table("v1"))
        );
        assert_eq!(ResponseForm::negotiate(None), Some(ResponseForm::Object));
        let typed = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(
            ResponseForm::negotiate(Some(typed)),
            Some(ResponseForm::Object)
        );
        assert_eq!(
            ResponseForm::negotiate(Some("application/vnd.kubernetes.protobuf")),
            None
        );
        let discovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                         application/json";
        assert_eq!(
            ResponseForm::negotiate(Some(discovery)),
            Some(ResponseForm::AggregatedDiscovery)
        );
    }
}
