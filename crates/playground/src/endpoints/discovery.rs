//! Discovery of groups, versions and resources, in both forms.

use crate::endpoints::response;
use crate::endpoints::response::HandlerResult;
use crate::objects::resources::{ApiResource, GROUPS, RESOURCES, group_version};
use crate::request::ResponseForm;
use crate::serving::response_body::PlaygroundBody;
use crate::status::StatusError;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, VARY};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

fn json_response(value: &Value) -> Response<PlaygroundBody> {
    response::json(StatusCode::OK, value.to_string().into_bytes())
}

/// `/api`.
pub(crate) fn versions(form: ResponseForm) -> HandlerResult {
    if form == ResponseForm::AggregatedDiscovery {
        return Ok(aggregated(|group| group.is_empty()));
    }
    Ok(json_response(&json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [],
    })))
}

/// `/apis`.
pub(crate) fn groups(form: ResponseForm) -> HandlerResult {
    if form == ResponseForm::AggregatedDiscovery {
        return Ok(aggregated(|group| !group.is_empty()));
    }
    let groups: Vec<Value> = named_groups()
        .map(|(group, version)| api_group(group, version))
        .collect();
    Ok(json_response(
        &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}),
    ))
}

/// `/apis/<group>`.
pub(crate) fn group(name: &str) -> HandlerResult {
    let (group, version) = named_groups()
        .find(|(group, _)| *group == name)
        .ok_or_else(StatusError::no_such_resource)?;
    let mut value = api_group(group, version);
    if let Some(value) = value.as_object_mut() {
        value.insert("kind".to_owned(), "APIGroup".into());
        value.insert("apiVersion".to_owned(), "v1".into());
    }
    Ok(json_response(&value))
}

fn named_groups() -> impl Iterator<Item = (&'static str, &'static str)> {
    GROUPS
        .iter()
        .copied()
        .filter(|(group, _)| !group.is_empty())
}

fn api_group(group: &str, version: &str) -> Value {
    let version = json!({"groupVersion": group_version(group, version), "version": version});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

fn resources_of(group: &str) -> impl Iterator<Item = &'static ApiResource> {
    RESOURCES
        .iter()
        .filter(move |resource| resource.group == group)
}

/// `/api/v1` and `/apis/<group>/<version>`.
pub(crate) fn resources(group: &str, version: &str) -> HandlerResult {
    let mut list = Vec::new();
    for resource in resources_of(group) {
        let mut entry = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": resource.verbs(),
        });
        add_names(&mut entry, resource);
        list.push(entry);
        for part in resource.subresources() {
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, part.name),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": part.kind,
                "verbs": part.verbs,
            });
            if let (Some((group, version)), Some(entry)) =
                (part.kind_group_version, entry.as_object_mut())
            {
                entry.insert("group".to_owned(), group.into());
                entry.insert("version".to_owned(), version.into());
            }
            list.push(entry);
        }
    }
    Ok(json_response(&json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version(group, version),
        "resources": list,
    })))
}

fn add_names(entry: &mut Value, resource: &ApiResource) {
    let Some(entry) = entry.as_object_mut() else {
        return;
    };
    for (key, names) in [
        ("shortNames", resource.short_names),
        ("categories", resource.categories),
    ] {
        if !names.is_empty() {
            entry.insert(key.to_owned(), names.into());
        }
    }
}

/// All groups and versions, as `apidiscovery.k8s.io/v2`.
fn aggregated(wanted: impl Fn(&str) -> bool) -> Response<PlaygroundBody> {
    let items: Vec<Value> = GROUPS
        .iter()
        .filter(|(group, _)| wanted(group))
        .map(|(group, version)| {
            let metadata = if group.is_empty() {
                json!({})
            } else {
                json!({"name": group})
            };
            let resources: Vec<Value> = resources_of(group).map(aggregated_resource).collect();
            json!({
                "metadata": metadata,
                "versions": [{
                    "version": version, "resources": resources, "freshness": "Current",
                }],
            })
        })
        .collect();
    let mut response = json_response(&json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }));
    let headers = response.headers_mut();
    let form = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(form));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    response
}

fn aggregated_resource(resource: &'static ApiResource) -> Value {
    let own = (resource.group, resource.version);
    let kind = |(group, version): (&str, &str), kind: &str| json!({"group": group, "version": version, "kind": kind});
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": kind(own, resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs(),
    });
    add_names(&mut entry, resource);
    let parts: Vec<Value> = resource
        .subresources()
        .iter()
        .map(|part| {
            json!({
                "subresource": part.name,
                "responseKind": kind(part.kind_group_version.unwrap_or(own), part.kind),
                "verbs": part.verbs,
            })
        })
        .collect();
    if let (false, Some(entry)) = (parts.is_empty(), entry.as_object_mut()) {
        entry.insert("subresources".to_owned(), parts.into());
    }
    entry
}
