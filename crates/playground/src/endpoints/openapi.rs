//! The minimal OpenAPI documents that `kubectl apply` accepts.
//!
//! Version 2 is empty: `kubectl` does not validate a kind that it does not find there, and merges
//! it by its built-in types. Version 3 declares for every kind that its PATCH accepts
//! `fieldValidation` and `dryRun`, for which newer versions look, and describes no fields.

use crate::endpoints::response;
use crate::endpoints::response::HandlerResult;
use crate::objects::resources::{ApiResource, GROUPS, RESOURCES, ResourceBackend, group_version};
use http::StatusCode;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

const TITLE: &str = "Kubernetes";
const VERSION: &str = "v1.36.2";

/// `/openapi/v2`, in JSON or in protobuf.
pub(crate) fn v2(accept: Option<&str>) -> HandlerResult {
    const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    if accept.is_some_and(|accept| accept.contains("proto-openapi.spec.v2")) {
        return Ok(response::full(StatusCode::OK, PROTOBUF, v2_protobuf()));
    }
    let document = json!({
        "swagger": "2.0",
        "info": {"title": TITLE, "version": VERSION},
        "paths": {},
        "definitions": {},
    });
    Ok(response::json(
        StatusCode::OK,
        document.to_string().into_bytes(),
    ))
}

/// `openapi_v2.Document`: `swagger` is field 1, `info` field 2 (`title` 1, `version` 2), `paths` 8,
/// `definitions` 9; all are of wire type 2, and short.
fn v2_protobuf() -> Vec<u8> {
    let mut info = Vec::new();
    push_field(&mut info, 1, TITLE.as_bytes());
    push_field(&mut info, 2, VERSION.as_bytes());
    let mut document = Vec::new();
    push_field(&mut document, 1, b"2.0");
    push_field(&mut document, 2, &info);
    push_field(&mut document, 8, b"");
    push_field(&mut document, 9, b"");
    document
}

/// A length-delimited field of fewer than 128 bytes.
fn push_field(message: &mut Vec<u8>, number: u8, content: &[u8]) {
    message.push(number << 3 | 2);
    message.push(u8::try_from(content.len()).unwrap_or(0));
    message.extend_from_slice(content);
}

/// `/openapi/v3`.
pub(crate) fn v3_index() -> HandlerResult {
    let paths: Map<String, Value> = GROUPS
        .iter()
        .map(|(group, version)| {
            let path = prefix(group, version);
            let hash: String = Sha256::digest(document(group, version).to_string())
                .iter()
                .map(|byte| format!("{byte:02X}"))
                .collect();
            let url = format!("/openapi/v3/{path}?hash={hash}");
            (path, json!({"serverRelativeURL": url}))
        })
        .collect();
    let index = json!({"paths": paths});
    Ok(response::json(
        StatusCode::OK,
        index.to_string().into_bytes(),
    ))
}

/// `/openapi/v3/api/v1`, `/openapi/v3/apis/<group>/<version>`.
pub(crate) fn v3_document(group: &str, version: &str) -> HandlerResult {
    let document = document(group, version).to_string();
    Ok(response::json(StatusCode::OK, document.into_bytes()))
}

fn prefix(group: &str, version: &str) -> String {
    let root = if group.is_empty() { "api" } else { "apis" };
    format!("{root}/{}", group_version(group, version))
}

fn document(group: &str, version: &str) -> Value {
    let mut paths = Map::new();
    let mut schemas = Map::new();
    let resources = RESOURCES.iter().filter(|resource| resource.group == group);
    for resource in resources.filter(|r| matches!(r.backend, ResourceBackend::Objects(_))) {
        let gvk = json!({"group": group, "version": version, "kind": resource.kind});
        paths.insert(path(resource), json!({"patch": patch_operation(&gvk)}));
        let name = if group.is_empty() { "core" } else { group };
        schemas.insert(
            format!("io.k8s.api.{name}.{version}.{}", resource.kind),
            json!({"type": "object", "x-kubernetes-group-version-kind": [gvk]}),
        );
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": TITLE, "version": VERSION},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

fn path(resource: &ApiResource) -> String {
    let prefix = prefix(resource.group, resource.version);
    let namespace = if resource.namespaced {
        "namespaces/{namespace}/"
    } else {
        ""
    };
    format!("/{prefix}/{namespace}{}/{{name}}", resource.plural)
}

fn patch_operation(gvk: &Value) -> Value {
    let parameters: Vec<Value> = ["dryRun", "fieldManager", "fieldValidation"]
        .iter()
        .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}}))
        .collect();
    json!({
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": gvk,
    })
}

#[cfg(test)]
mod tests {
    use super::{document, v2_protobuf};

    #[test]
    fn the_protobuf_document_is_encoded_field_by_field() {
        let expected = b"\x0a\x032.0\x12\x15\x0a\x0aKubernetes\x12\x07v1.36.2\x42\x00\x4a\x00";
        assert_eq!(v2_protobuf(), expected);
    }

    #[test]
    fn every_patch_operation_has_field_validation() {
        let core = document("", "v1");
        let patch = &core["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
        assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Pod");
        assert_eq!(patch["parameters"][2]["name"], "fieldValidation");
        assert!(core["paths"]["/api/v1/nodes/{name}"].is_object());
    }
}
