//! Decodes objects from manifests: single or in lists, in any version.

use super::fields::{decode_flow_schema, decode_priority_level};
use super::types::{GROUP, Object, Version};
use crate::document::{Content, Diagnostics, Node, Strictness};

/// A decoded object and its place in the document.
#[derive(Clone, Debug)]
pub struct Manifest<'n> {
    /// The object.
    pub object: Object,
    /// The version in which the manifest is written.
    pub version: Version,
    pub(super) node: &'n Node,
    pub(super) path: String,
}

/// Decodes one object, or the objects of a list (`List`, as kubectl prints it, or the API's own).
/// Defaults are filled in; nothing is validated. An object that cannot be decoded, so that
/// kube-apiserver would answer 400, is reported as an error and left out.
pub fn decode<'n>(
    node: &'n Node,
    strictness: Strictness,
    diagnostics: &mut Diagnostics,
) -> Vec<Manifest<'n>> {
    let mut found = Vec::new();
    collect_manifests(node, "", None, &mut found, diagnostics);
    let read = |UndecodedManifest {
                    node,
                    path,
                    kind,
                    version,
                }| {
        let before = diagnostics.error_count();
        let first_new = diagnostics.iter().len();
        let object = Node::decode(node, diagnostics, &path, strictness, |fields| match kind {
            ManifestKind::FlowSchema => Object::FlowSchema(decode_flow_schema(fields)),
            ManifestKind::PriorityLevelConfiguration => {
                Object::PriorityLevelConfiguration(decode_priority_level(fields, version))
            }
        });
        diagnostics.sort_from(first_new);
        let object = object?;
        let is_valid = diagnostics.error_count() == before;
        is_valid.then_some(Manifest {
            object,
            version,
            node,
            path,
        })
    };
    found.into_iter().filter_map(read).collect()
}

#[derive(Clone, Copy)]
enum ManifestKind {
    FlowSchema,
    PriorityLevelConfiguration,
}

/// An object that is not decoded yet.
struct UndecodedManifest<'n> {
    node: &'n Node,
    path: String,
    kind: ManifestKind,
    version: Version,
}

/// The type that a node declares.
enum DeclaredType {
    /// A list, with the type of its items if they do not declare one.
    List(Option<(ManifestKind, Version)>),
    Object(ManifestKind, Version),
}

/// The type that `node` declares. Items of the API's own lists declare none, so they have the type
/// `inherited` from the list.
fn declared_type(node: &Node, inherited: Option<(ManifestKind, Version)>) -> Option<DeclaredType> {
    let api_version = node.field("apiVersion").and_then(Node::as_str);
    let kind = node.field("kind").and_then(Node::as_str);
    match (api_version, kind, inherited) {
        (None, None, Some((kind, version))) => return Some(DeclaredType::Object(kind, version)),
        (Some("v1"), Some("List"), _) => return Some(DeclaredType::List(None)),
        _ => {}
    }
    let version = Version::from_api_version(api_version?)?;
    match kind? {
        "FlowSchema" => Some(DeclaredType::Object(ManifestKind::FlowSchema, version)),
        "FlowSchemaList" => Some(DeclaredType::List(Some((
            ManifestKind::FlowSchema,
            version,
        )))),
        "PriorityLevelConfiguration" => Some(DeclaredType::Object(
            ManifestKind::PriorityLevelConfiguration,
            version,
        )),
        "PriorityLevelConfigurationList" => Some(DeclaredType::List(Some((
            ManifestKind::PriorityLevelConfiguration,
            version,
        )))),
        _ => None,
    }
}

/// Collects the objects of lists. The nesting of documents is bounded, so the recursion is too.
fn collect_manifests<'n>(
    node: &'n Node,
    path: &str,
    inherited: Option<(ManifestKind, Version)>,
    found: &mut Vec<UndecodedManifest<'n>>,
    diagnostics: &mut Diagnostics,
) {
    let inherited = match declared_type(node, inherited) {
        Some(DeclaredType::List(inherited)) => inherited,
        Some(DeclaredType::Object(kind, version)) => {
            let path = path.to_owned();
            return found.push(UndecodedManifest {
                node,
                path,
                kind,
                version,
            });
        }
        None => return report_unexpected(node, path, diagnostics),
    };
    let path = join_path(path, "items");
    match node.field("items").map(|items| (items, &items.content)) {
        Some((_, Content::Sequence(items))) => {
            for (n, item) in items.iter().enumerate() {
                collect_manifests(item, &format!("{path}[{n}]"), inherited, found, diagnostics);
            }
        }
        Some((items, _)) if !items.is_null() => {
            let message = format!("expected a list, got {}", items.kind());
            diagnostics.report_error(&items.location, &path, message);
        }
        Some(_) | None => {}
    }
}

/// Reports a document that is neither a FlowSchema, a PriorityLevelConfiguration nor a list of
/// them.
fn report_unexpected(node: &Node, path: &str, diagnostics: &mut Diagnostics) {
    let field = |name| {
        node.field(name)
            .map_or_else(|| "nothing".to_owned(), Node::describe)
    };
    let message = match node.content {
        Content::Mapping(_) => format!(
            "expected a FlowSchema or PriorityLevelConfiguration of {GROUP}/v1 (or v1beta1 to \
             v1beta3) or a list of them, got for kind {} and for apiVersion {}",
            field("kind"),
            field("apiVersion"),
        ),
        Content::Scalar(_) | Content::Sequence(_) => {
            format!("expected a mapping, got {}", node.kind())
        }
    };
    diagnostics.report_error(node.locate("kind"), path, message);
}

pub(super) fn join_path(path: &str, field: &str) -> String {
    if path.is_empty() {
        field.to_owned()
    } else {
        format!("{path}.{field}")
    }
}
