//! The text of the file that keeps the cluster's objects over a restart (`--state-dir`).

use serde_json::Value;
use serde_json::json;

use crate::api::flowcontrol;
use crate::api::flowcontrol::Object;
use crate::api::flowcontrol::to_manifest;
use crate::document;
use crate::document::Content;
use crate::document::Diagnostics;
use crate::document::Strictness;

/// The name of the file in the state folder.
pub(crate) const FILE_NAME: &str = "flowcontrol.json";

/// The version of the format. A file of another version is ignored.
const VERSION: &str = "weir.state/v1";

/// The text of the file.
#[must_use]
pub fn encode(objects: &[Object]) -> String {
    let items: Value = objects.iter().map(to_manifest).collect();
    let mut text = json!({"version": VERSION, "objects": {
        "apiVersion": "v1", "kind": "List", "items": items,
    }})
    .to_string();
    text.push('\n');
    text
}

/// The objects in the text of a file.
///
/// # Errors
/// The text is damaged, or of another version. A part of a set is not used: objects would be
/// missing unseen.
pub fn decode(file: &str, text: &str) -> Result<Vec<Object>, String> {
    let mut diagnostics = Diagnostics::default();
    let node = document::parse_json(file, text, &mut diagnostics);
    let Some(node) = node.filter(|_| !diagnostics.has_errors()) else {
        return Err(diagnostics.to_string());
    };
    let version = node.field("version").and_then(document::Node::as_str);
    if version != Some(VERSION) {
        return Err(format!("{file}: its version is not {VERSION}"));
    }
    let Some(list) = node.field("objects") else {
        return Err(format!("{file}: it has no objects"));
    };
    let items = match list.field("items").map(|items| &items.content) {
        Some(Content::Sequence(items)) => items.len(),
        _ => 0,
    };
    let decoded = flowcontrol::decode(list, Strictness::Lenient, &mut diagnostics);
    if diagnostics.has_errors() || decoded.len() != items {
        return Err(format!("{file}: {diagnostics}"));
    }
    Ok(decoded.into_iter().map(|one| one.object).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flowcontrol::bootstrap;

    #[test]
    fn a_set_is_read_as_it_was_written() {
        let objects = bootstrap::add_missing(Vec::new());
        assert_eq!(decode("f", &encode(&objects)), Ok(objects));
    }

    #[test]
    fn a_damaged_file_and_one_of_another_version_are_errors() {
        let text = encode(&bootstrap::add_missing(Vec::new()));
        for cut in [0, 1, text.len() / 2, text.len() - 3] {
            assert!(decode("f", &text[..cut]).is_err(), "{cut}");
        }
        let other = text.replace("weir.state/v1", "weir.state/v2");
        let why = decode("f", &other).unwrap_err();
        assert_eq!(why, "f: its version is not weir.state/v1");
        let broken = text.replacen(
            "\"matchingPrecedence\":",
            "\"matchingPrecedence\":\"x\"+",
            1,
        );
        assert!(decode("f", &broken).is_err());
        let broken = text.replacen("\"kind\":\"FlowSchema\"", "\"kind\":\"Other\"", 1);
        assert!(decode("f", &broken).is_err());
    }
}
