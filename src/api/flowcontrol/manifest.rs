//! Objects as they come: alone or in lists, in any version.

use std::collections::HashMap;

use super::GROUP;
use super::Object;
use super::fields::decode_flow_schema;
use super::fields::decode_priority_level;
use super::names;
use crate::document::Content;
use crate::document::Diagnostics;
use crate::document::Node;
use crate::document::SourceLocation;
use crate::document::Strictness;

/// The versions of the API group, all that were ever served in beta or better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `v1`, since Kubernetes 1.29.
    V1,
    /// `v1beta1`, from 1.20 to 1.25.
    V1Beta1,
    /// `v1beta2`, from 1.23 to 1.28.
    V1Beta2,
    /// `v1beta3`, from 1.26 to 1.31.
    V1Beta3,
}

impl Version {
    /// The version of an `apiVersion`, if it is of this group.
    fn from_api_version(api_version: &str) -> Option<Self> {
        match api_version.strip_prefix(GROUP)? {
            "/v1" => Some(Self::V1),
            "/v1beta1" => Some(Self::V1Beta1),
            "/v1beta2" => Some(Self::V1Beta2),
            "/v1beta3" => Some(Self::V1Beta3),
            _ => None,
        }
    }

    /// What the shares of a limited level are called.
    pub(super) fn shares_field(self) -> &'static str {
        match self {
            Self::V1 | Self::V1Beta3 => "nominalConcurrencyShares",
            Self::V1Beta1 | Self::V1Beta2 => "assuredConcurrencyShares",
        }
    }
}

/// An object that has been read, and where it was read from.
#[derive(Clone, Debug)]
pub struct Manifest<'n> {
    /// The object.
    pub object: Object,
    /// The version that it was written in.
    pub version: Version,
    node: &'n Node,
    path: String,
}

impl Manifest<'_> {
    /// Names an object that gives only a `generateName`, as the API server does before it validates. `count` is the number of
    /// objects before it with the same kind and `generateName`.
    fn generate_name(&mut self, count: &mut HashMap<(&'static str, String), u64>) {
        let kind = self.object.kind();
        let metadata = self.object.metadata_mut();
        if !metadata.name.is_empty() || metadata.generate_name.is_empty() {
            return;
        }
        let count = count
            .entry((kind, metadata.generate_name.clone()))
            .or_default();
        metadata.name = names::generate_name(&metadata.generate_name, *count);
        *count += 1;
    }

    /// Reports what Kubernetes would refuse in a manifest, at the places of the fields. Whether it
    /// would accept.
    fn report_errors(&self, faults: &mut Diagnostics) -> bool {
        let errors = self.validate();
        for error in &errors {
            let field = join_path(&self.path, &error.field);
            faults.report_error(self.node.locate(&error.field), &field, error.body());
        }
        errors.is_empty()
    }
}

/// Reads manifests as the API server would with `fieldValidation=Warn`, and reports whatever it
/// would refuse or warn of. Objects with errors are left out, and so is the second of two with the
/// same kind and name.
pub fn read(documents: &[Node], faults: &mut Diagnostics) -> Vec<Object> {
    let read = read_with_locations(documents, faults);
    read.into_iter().map(|(object, _)| object).collect()
}

/// As [`read`], each object with a place: where a flow schema names its priority level, where a priority level begins.
pub fn read_with_locations(
    documents: &[Node],
    faults: &mut Diagnostics,
) -> Vec<(Object, SourceLocation)> {
    let mut first: HashMap<(&'static str, String), SourceLocation> = HashMap::new();
    let mut objects = Vec::new();
    let decoded = documents
        .iter()
        .flat_map(|node| decode(node, Strictness::Warn, faults));
    let mut generated = HashMap::new();
    for mut manifest in decoded.collect::<Vec<_>>() {
        manifest.generate_name(&mut generated);
        let sound = manifest.report_errors(faults);
        let name = (
            manifest.object.kind(),
            manifest.object.metadata().name.clone(),
        );
        if let Some(place) = first.get(&name) {
            let message = format!("{} {:?} is given twice, first at {place}", name.0, name.1);
            let field = join_path(&manifest.path, "metadata.name");
            faults.report_error(manifest.node.locate("metadata.name"), &field, message);
        } else {
            first.insert(name, manifest.node.location.clone());
            let field = match &manifest.object {
                Object::FlowSchema(_) => "spec.priorityLevelConfiguration.name",
                Object::PriorityLevelConfiguration(_) => "",
            };
            let place = manifest.node.locate(field).clone();
            objects.extend(sound.then_some((manifest.object, place)));
        }
    }
    objects
}

/// Reads one object, or the objects of a list (`List`, as kubectl prints it, or the API's own),
/// with defaults filled in but without judging. An object that cannot be read, as kube-apiserver
/// would answer 400, is a fault and left out.
pub fn decode<'n>(
    node: &'n Node,
    strictness: Strictness,
    faults: &mut Diagnostics,
) -> Vec<Manifest<'n>> {
    let mut found = Vec::new();
    collect_manifests(node, "", None, &mut found, faults);
    let read = |UndecodedManifest {
                    node,
                    path,
                    kind,
                    version,
                }| {
        let before = faults.errors().count();
        let kept = faults.iter().len();
        let object = Node::decode(node, faults, &path, strictness, |fields| match kind {
            ManifestKind::FlowSchema => Object::FlowSchema(decode_flow_schema(fields)),
            ManifestKind::PriorityLevelConfiguration => {
                Object::PriorityLevelConfiguration(decode_priority_level(fields, version))
            }
        });
        faults.sort_from(kept);
        let object = object?;
        let sound = faults.errors().count() == before;
        sound.then_some(Manifest {
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

/// An object that is yet to be read.
struct UndecodedManifest<'n> {
    node: &'n Node,
    path: String,
    kind: ManifestKind,
    version: Version,
}

/// What a node says that it is.
enum DeclaredType {
    /// A list, with what its items are if they do not say.
    List(Option<(ManifestKind, Version)>),
    Object(ManifestKind, Version),
}

/// Items of the API's own lists do not say what they are, so it is `inherited` from the list.
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

/// Finds the objects in lists. Documents do not nest deep, so neither does this.
fn collect_manifests<'n>(
    node: &'n Node,
    path: &str,
    inherited: Option<(ManifestKind, Version)>,
    found: &mut Vec<UndecodedManifest<'n>>,
    faults: &mut Diagnostics,
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
        None => return report_unexpected(node, path, faults),
    };
    let path = join_path(path, "items");
    match node.field("items").map(|items| (items, &items.content)) {
        Some((_, Content::Sequence(items))) => {
            for (n, item) in items.iter().enumerate() {
                collect_manifests(item, &format!("{path}[{n}]"), inherited, found, faults);
            }
        }
        Some((items, _)) if !items.is_null() => {
            let message = format!("expected a list, got {}", items.kind());
            faults.report_error(&items.location, &path, message);
        }
        Some(_) | None => {}
    }
}

/// Reports that a document is not one of those that are read here.
fn report_unexpected(node: &Node, path: &str, faults: &mut Diagnostics) {
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
    faults.report_error(node.locate("kind"), path, message);
}

fn join_path(path: &str, field: &str) -> String {
    if path.is_empty() {
        field.to_owned()
    } else {
        format!("{path}.{field}")
    }
}
