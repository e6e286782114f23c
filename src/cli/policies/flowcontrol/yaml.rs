//! The manifests of `weir flowcontrol show -o yaml`.

use serde_json::Value;

use weir_kubernetes::encoding::yaml::{comment, write_value};

/// Renders the response of the admin listener: a document for each object, with its origin in a
/// comment.
pub(super) fn render(objects: &Value) -> String {
    let mut text = String::new();
    let listed = objects.get("objects").and_then(Value::as_array);
    for object in listed.into_iter().flatten() {
        let at = |key| object.get(key).and_then(Value::as_str);
        let origin = at("location").or_else(|| at("origin")).unwrap_or_default();
        text.push_str("---\n");
        text.push_str(&comment(&[format!("origin: {origin}")]));
        if let Some(manifest) = object.get("manifest") {
            write_value(&without_identity(manifest.clone()), 0, &mut text);
        }
    }
    text
}

/// The manifest without what belongs to the object in one cluster: with it kubectl applies to that
/// object only, and only as long as it does not change.
fn without_identity(mut manifest: Value) -> Value {
    if let Some(metadata) = manifest.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("uid");
        metadata.remove("resourceVersion");
    }
    manifest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use weir_flowcontrol::bootstrap;
    use weir_kubernetes::api::flowcontrol;
    use weir_kubernetes::api::flowcontrol::{Object, to_manifest};
    use weir_kubernetes::document;
    use weir_kubernetes::document::{Content, Diagnostics};
    use weir_kubernetes::encoding::printable::HOSTILE_NAMES;

    #[test]
    fn names_and_origins_stay_in_their_scalars_and_comments() {
        let listed: Value = HOSTILE_NAMES
            .iter()
            .map(|name| json!({"location": name, "manifest": {"kind": name, *name: [name]}}))
            .collect();
        let text = render(&json!({"objects": listed}));
        let mut diagnostics = Diagnostics::default();
        let documents = document::parse_all("shown", &text, &mut diagnostics);
        assert_eq!(diagnostics.to_string(), "", "{text}");
        assert_eq!(documents.len(), HOSTILE_NAMES.len(), "{text}");
        for (document, name) in documents.iter().zip(HOSTILE_NAMES) {
            let kind = document.field("kind").and_then(|kind| kind.as_str());
            assert_eq!(kind, Some(name));
            let of_name = document.field(name).map(|node| &node.content);
            let Some(Content::Sequence(items)) = of_name else {
                panic!("{name:?}: {text}");
            };
            assert_eq!(items[0].as_str(), Some(name));
        }
    }

    #[test]
    fn the_manifests_are_read_as_the_same_objects() {
        let objects = bootstrap::add_missing(Vec::new());
        let of_cluster = |object: &Object| {
            let mut object = object.clone();
            object.metadata_mut().uid = "u".to_owned();
            object.metadata_mut().resource_version = "1".to_owned();
            to_manifest(&object)
        };
        let listed: Value = objects
            .iter()
            .map(|object| json!({"origin": "built-in", "manifest": of_cluster(object)}))
            .collect();
        let text = render(&json!({"objects": listed}));
        let mut diagnostics = Diagnostics::default();
        let documents = document::parse_all("shown", &text, &mut diagnostics);
        let read = flowcontrol::read(&documents, &mut diagnostics);
        assert_eq!(diagnostics.to_string(), "", "{text}");
        assert_eq!(read, objects);
        assert!(
            text.starts_with(
                "---\n# origin: built-in\napiVersion: flowcontrol.apiserver.k8s.io/v1\n"
            )
        );
    }
}
