//! Objects as they come: alone or in lists, in any version.

use std::collections::HashMap;

use super::GROUP;
use super::Object;
use super::decode::flow_schema;
use super::decode::priority_level;
use super::names;
use crate::document::Content;
use crate::document::Faults;
use crate::document::Node;
use crate::document::Place;
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
    fn of(api_version: &str) -> Option<Self> {
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
        metadata.name = names::generated(&metadata.generate_name, *count);
        *count += 1;
    }

    /// Reports what Kubernetes would refuse in a manifest, at the places of the fields. Whether it
    /// would accept.
    fn check(&self, faults: &mut Faults) -> bool {
        let errors = self.validate();
        for error in &errors {
            let field = join(&self.path, &error.field);
            faults.error(self.node.locate(&error.field), &field, error.body());
        }
        errors.is_empty()
    }
}

/// Reads manifests as the API server would with `fieldValidation=Warn`, and reports whatever it
/// would refuse or warn of. Objects with errors are left out, and so is the second of two with the
/// same kind and name.
pub fn read(documents: &[Node], faults: &mut Faults) -> Vec<Object> {
    let read = read_with_places(documents, faults);
    read.into_iter().map(|(object, _)| object).collect()
}

/// As [`read`], each object with a place: where a flow schema names its priority level, where a priority level begins.
pub fn read_with_places(documents: &[Node], faults: &mut Faults) -> Vec<(Object, Place)> {
    let mut first: HashMap<(&'static str, String), Place> = HashMap::new();
    let mut objects = Vec::new();
    let decoded = documents
        .iter()
        .flat_map(|node| decode(node, Strictness::Warn, faults));
    let mut generated = HashMap::new();
    for mut manifest in decoded.collect::<Vec<_>>() {
        manifest.generate_name(&mut generated);
        let sound = manifest.check(faults);
        let name = (
            manifest.object.kind(),
            manifest.object.metadata().name.clone(),
        );
        if let Some(place) = first.get(&name) {
            let message = format!("{} {:?} is given twice, first at {place}", name.0, name.1);
            let field = join(&manifest.path, "metadata.name");
            faults.error(manifest.node.locate("metadata.name"), &field, message);
        } else {
            first.insert(name, manifest.node.place.clone());
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
    faults: &mut Faults,
) -> Vec<Manifest<'n>> {
    let mut found = Vec::new();
    find(node, "", None, &mut found, faults);
    let read = |Found {
                    node,
                    path,
                    kind,
                    version,
                }| {
        let before = faults.errors().count();
        let kept = faults.iter().len();
        let object = Node::decode(node, faults, &path, strictness, |fields| match kind {
            Kind::FlowSchema => Object::FlowSchema(flow_schema(fields)),
            Kind::PriorityLevelConfiguration => {
                Object::PriorityLevelConfiguration(priority_level(fields, version))
            }
        });
        faults.sort_behind(kept);
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
enum Kind {
    FlowSchema,
    PriorityLevelConfiguration,
}

/// An object that is yet to be read.
struct Found<'n> {
    node: &'n Node,
    path: String,
    kind: Kind,
    version: Version,
}

/// What a node says that it is.
enum Claim {
    /// A list, with what its items are if they do not say.
    List(Option<(Kind, Version)>),
    Object(Kind, Version),
}

/// Items of the API's own lists do not say what they are, so it is `inherited` from the list.
fn claim(node: &Node, inherited: Option<(Kind, Version)>) -> Option<Claim> {
    let api_version = node.field("apiVersion").and_then(Node::as_str);
    let kind = node.field("kind").and_then(Node::as_str);
    match (api_version, kind, inherited) {
        (None, None, Some((kind, version))) => return Some(Claim::Object(kind, version)),
        (Some("v1"), Some("List"), _) => return Some(Claim::List(None)),
        _ => {}
    }
    let version = Version::of(api_version?)?;
    match kind? {
        "FlowSchema" => Some(Claim::Object(Kind::FlowSchema, version)),
        "FlowSchemaList" => Some(Claim::List(Some((Kind::FlowSchema, version)))),
        "PriorityLevelConfiguration" => {
            Some(Claim::Object(Kind::PriorityLevelConfiguration, version))
        }
        "PriorityLevelConfigurationList" => Some(Claim::List(Some((
            Kind::PriorityLevelConfiguration,
            version,
        )))),
        _ => None,
    }
}

/// Finds the objects in lists. Documents do not nest deep, so neither does this.
fn find<'n>(
    node: &'n Node,
    path: &str,
    inherited: Option<(Kind, Version)>,
    found: &mut Vec<Found<'n>>,
    faults: &mut Faults,
) {
    let inherited = match claim(node, inherited) {
        Some(Claim::List(inherited)) => inherited,
        Some(Claim::Object(kind, version)) => {
            let path = path.to_owned();
            return found.push(Found {
                node,
                path,
                kind,
                version,
            });
        }
        None => return unexpected(node, path, faults),
    };
    let path = join(path, "items");
    match node.field("items").map(|items| (items, &items.content)) {
        Some((_, Content::Sequence(items))) => {
            for (n, item) in items.iter().enumerate() {
                find(item, &format!("{path}[{n}]"), inherited, found, faults);
            }
        }
        Some((items, _)) if !items.is_null() => {
            let message = format!("expected a list, got {}", items.kind());
            faults.error(&items.place, &path, message);
        }
        Some(_) | None => {}
    }
}

/// Reports that a document is not one of those that are read here.
fn unexpected(node: &Node, path: &str, faults: &mut Faults) {
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
    faults.error(node.locate("kind"), path, message);
}

fn join(path: &str, field: &str) -> String {
    if path.is_empty() {
        field.to_owned()
    } else {
        format!("{path}.{field}")
    }
}
