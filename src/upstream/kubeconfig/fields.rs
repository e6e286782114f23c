//! Fields of a kubeconfig: empty ones that count as absent, secrets that no diagnostic may quote,
//! paths relative to the file, and PEM inline or in a file.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::upstream::tls::Pem;
use weir_kubernetes::document::{MappingDecoder, Node, ValueDecoder};

/// Whether the field is present and not the empty string, which counts as absent in Go.
pub(super) fn is_set(fields: &mut MappingDecoder<'_>, name: &'static str) -> bool {
    fields
        .node(name)
        .is_some_and(|node| node.as_str() != Some(""))
}

/// An optional string.
pub(super) fn optional_string(
    fields: &mut MappingDecoder<'_>,
    name: &'static str,
) -> Option<String> {
    fields.string(name).filter(|text| !text.is_empty())
}

/// A required string.
pub(super) fn required_string(
    fields: &mut MappingDecoder<'_>,
    name: &'static str,
) -> Option<String> {
    if !is_set(fields, name) {
        fields.report_error(name, "required, but not given");
    }
    optional_string(fields, name)
}

/// A string that no diagnostic may quote.
pub(super) fn secret_string<'n>(
    fields: &mut MappingDecoder<'n>,
    name: &'static str,
) -> Option<&'n str> {
    let node = fields.node(name)?;
    if node.as_str().is_none() {
        fields.report_error(name, "expected a string; quote it");
    }
    node.as_str().filter(|text| !text.is_empty())
}

/// A string in a list, which no diagnostic may quote.
pub(super) fn secret_item(mut item: ValueDecoder<'_>) -> Option<String> {
    let node = item.node();
    if node.as_str().is_none() {
        let path = item.path().to_owned();
        item.diagnostics()
            .report_error(&node.location, &path, "expected a string; quote it");
    }
    node.as_str().map(str::to_owned)
}

/// A path, resolved against the directory of the kubeconfig.
pub(super) fn resolve_path(
    fields: &mut MappingDecoder<'_>,
    dir: &Path,
    name: &'static str,
) -> Option<PathBuf> {
    optional_string(fields, name).map(|path| dir.join(path))
}

/// PEM, in base64 in the field `data` or in the file that the field `file` names.
pub(super) fn read_pem(
    fields: &mut MappingDecoder<'_>,
    dir: &Path,
    data: &'static str,
    file: &'static str,
) -> Option<Pem> {
    let encoded = secret_string(fields, data);
    let path = resolve_path(fields, dir, file);
    if encoded.is_some() && path.is_some() {
        fields.report_error(
            file,
            format!("given together with {data}, and only one of them can count"),
        );
    }
    let Some(encoded) = encoded else {
        return path.map(Pem::File);
    };
    // Go's decoder ignores line ends, which a block scalar has.
    let encoded: String = encoded
        .chars()
        .filter(|c| !matches!(c, '\r' | '\n'))
        .collect();
    let Ok(bytes) = BASE64_STANDARD.decode(encoded) else {
        fields.report_error(data, "not base64");
        return None;
    };
    Some(Pem::Data {
        location: fields.location(data).clone(),
        field: fields.path(data),
        bytes,
    })
}

/// The name of an entry or an extension.
pub(super) fn entry_name(item: &Node) -> Option<&str> {
    item.field("name").and_then(Node::as_str)
}
