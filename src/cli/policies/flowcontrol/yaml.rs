//! The manifests of `weir flowcontrol show -o yaml`.

use serde_json::Value;

/// Renders the response of the admin listener: a document for each object, with its origin in a
/// comment.
pub(super) fn render(objects: &Value) -> String {
    let mut text = String::new();
    let listed = objects.get("objects").and_then(Value::as_array);
    for object in listed.into_iter().flatten() {
        let at = |key| object.get(key).and_then(Value::as_str);
        let origin = at("location").or_else(|| at("origin")).unwrap_or_default();
        let origin = origin.replace(char::is_control, "\u{fffd}");
        text.push_str(&format!("---\n# origin: {origin}\n"));
        if let Some(manifest) = object.get("manifest") {
            write_value(manifest, 0, &mut text);
        }
    }
    text
}

/// Writes a value in block style, at this indentation, at the begin of a line. The recursion ends
/// with the nesting of a manifest.
fn write_value(value: &Value, indentation: usize, text: &mut String) {
    let indent = " ".repeat(indentation);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                text.push_str(&format!("{indent}{}:", scalar(&Value::from(key.as_str()))));
                write_nested(value, indentation, text);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                text.push_str(&format!("{indent}-"));
                write_nested(item, indentation, text);
            }
        }
        Value::Object(_)
        | Value::Array(_)
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_) => text.push_str(&format!("{indent}{}\n", scalar(value))),
    }
}

/// Writes the value of a key or an item: on the same line if it is a scalar or empty.
fn write_nested(value: &Value, indentation: usize, text: &mut String) {
    let is_nested = match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    if is_nested {
        text.push('\n');
        write_value(value, indentation + 2, text);
    } else {
        text.push_str(&format!(" {}\n", scalar(value)));
    }
}

/// A scalar or an empty collection. Text that is more than a plain word is quoted as in JSON, which
/// YAML reads alike.
fn scalar(value: &Value) -> String {
    let plain = value.as_str().filter(|text| is_plain_word(text));
    plain.map_or_else(|| value.to_string(), str::to_owned)
}

/// Whether YAML reads the text as this text without quotes.
fn is_plain_word(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '/' | '_');
    let reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(is_word)
        && !reserved.contains(&text.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::flowcontrol;
    use crate::api::flowcontrol::to_manifest;
    use crate::document;
    use crate::document::Diagnostics;
    use crate::flowcontrol::bootstrap;

    #[test]
    fn the_manifests_are_read_as_the_same_objects() {
        let objects = bootstrap::add_missing(Vec::new());
        let listed: Value = objects
            .iter()
            .map(|object| json!({"origin": "built-in", "manifest": to_manifest(object)}))
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

    #[test]
    fn text_that_yaml_would_read_otherwise_is_quoted() {
        for (text, written) in [
            ("workload-low", "workload-low"),
            ("system:nodes", "\"system:nodes\""),
            ("*", "\"*\""),
            ("", "\"\""),
            ("No", "\"No\""),
            ("1", "\"1\""),
            ("1e3", "\"1e3\""),
            ("a b", "\"a b\""),
            ("a\n- b", "\"a\\n- b\""),
        ] {
            assert_eq!(scalar(&json!(text)), written);
        }
        let mut text = String::new();
        write_value(
            &json!({"a": [], "b": {}, "c": [1, {"d": null}]}),
            0,
            &mut text,
        );
        assert_eq!(text, "a: []\nb: {}\nc:\n  - 1\n  -\n    d: null\n");
    }
}
