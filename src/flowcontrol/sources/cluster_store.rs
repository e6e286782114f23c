//! The cluster's objects: what lists and watches say, and the last set that is complete.
//!
//! A set is complete if both kinds were listed and the four mandatory objects are there.
//! kube-apiserver creates these last when it starts with an empty storage, and creates them again
//! when they are missing. A set without them is that of a server that has just come up: it never
//! replaces a complete one.

use std::collections::BTreeMap;

use weir_kubernetes::api::flowcontrol;
use weir_kubernetes::api::flowcontrol::{GROUP, Object, mandatory};
use weir_kubernetes::document;
use weir_kubernetes::document::{Diagnostics, Node, Strictness};

/// The code of a watch's error if its resource version is too old.
const GONE: &str = "410";

/// One of the two resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClusterResource {
    /// `flowschemas`.
    FlowSchemas,
    /// `prioritylevelconfigurations`.
    PriorityLevels,
}

impl ClusterResource {
    /// Both, with those first that the others refer to.
    pub(crate) const ALL: [Self; 2] = [Self::PriorityLevels, Self::FlowSchemas];

    /// The name in a URL.
    #[must_use]
    pub(crate) const fn plural(self) -> &'static str {
        match self {
            Self::FlowSchemas => "flowschemas",
            Self::PriorityLevels => "prioritylevelconfigurations",
        }
    }

    /// The kind of its objects.
    #[must_use]
    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Self::FlowSchemas => "FlowSchema",
            Self::PriorityLevels => "PriorityLevelConfiguration",
        }
    }

    /// The path of the list, in a version of the group.
    #[must_use]
    pub(crate) fn path(self, version: &str) -> String {
        format!("/apis/{GROUP}/{version}/{}", self.plural())
    }

    const fn index(self) -> usize {
        match self {
            Self::FlowSchemas => 0,
            Self::PriorityLevels => 1,
        }
    }
}

/// The rule of a ClusterRole by which weir may read both resources, as in its manifest.
#[must_use]
pub(crate) fn rbac_rule() -> String {
    let [levels, schemas] = ClusterResource::ALL.map(ClusterResource::plural);
    format!("{{apiGroups: [{GROUP}], resources: [{schemas}, {levels}], verbs: [list, watch]}}")
}

/// The response to a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedObjects {
    /// The objects that can be read.
    pub(crate) objects: Vec<Object>,
    /// Where a watch continues.
    pub(crate) resource_version: String,
    /// What is wrong with each of the others.
    pub(crate) unreadable: Vec<String>,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchEvent {
    /// An object was added or changed.
    Stored(Box<Object>),
    /// An object was deleted.
    Deleted(Box<Object>),
    /// Nothing changed; a watch may continue here.
    Bookmark(String),
    /// The watch cannot continue from where it started: its version is too old.
    Expired,
    /// The watch ended with an error.
    Failed(String),
    /// An object that cannot be read, with its resource version.
    Unreadable(String, String),
}

/// What a change of the store means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreChange {
    /// The complete set is the same.
    Unchanged,
    /// There is a new complete set.
    Changed,
    /// The set is incomplete, and the last complete one is kept. What is missing.
    Incomplete(Vec<String>),
}

/// Reads the body of a list.
///
/// # Errors
/// It is not a list of this resource.
pub(crate) fn parse_list(resource: ClusterResource, body: &str) -> Result<ListedObjects, String> {
    let (node, _) = parse(body)?;
    let kind = node.field("kind").and_then(Node::as_str);
    if kind != Some(&format!("{}List", resource.kind())) {
        return Err(format!("not a list of {}", resource.plural()));
    }
    let mut diagnostics = Diagnostics::default();
    let decoded = flowcontrol::decode(&node, Strictness::Lenient, &mut diagnostics);
    Ok(ListedObjects {
        objects: decoded.into_iter().map(|one| one.object).collect(),
        resource_version: resource_version(&node),
        unreadable: diagnostics.errors().map(describe).collect(),
    })
}

/// Reads a line of a watch.
///
/// # Errors
/// It is not an event.
pub(crate) fn parse_event(line: &str) -> Result<WatchEvent, String> {
    let (node, _) = parse(line)?;
    let kind = node.field("type").and_then(Node::as_str);
    let (Some(kind), Some(object)) = (kind, node.field("object")) else {
        return Err("an event without a type or an object".to_owned());
    };
    match kind {
        "BOOKMARK" => return Ok(WatchEvent::Bookmark(resource_version(object))),
        "ERROR" => return Ok(error_event(object)),
        "ADDED" | "MODIFIED" | "DELETED" => {}
        other => return Err(format!("an event of the unknown type {other:?}")),
    }
    let mut diagnostics = Diagnostics::default();
    let decoded = flowcontrol::decode(object, Strictness::Lenient, &mut diagnostics);
    let Some(decoded) = decoded.into_iter().next() else {
        if kind != "ADDED" {
            // The object is in force as it was. A list tells what is left.
            return Ok(WatchEvent::Expired);
        }
        let why = diagnostics.errors().map(describe).collect::<Vec<_>>();
        return Ok(WatchEvent::Unreadable(
            why.join("; "),
            resource_version(object),
        ));
    };
    let object = Box::new(decoded.object);
    Ok(match kind {
        "DELETED" => WatchEvent::Deleted(object),
        _ => WatchEvent::Stored(object),
    })
}

fn parse(text: &str) -> Result<(Node, Diagnostics), String> {
    let mut diagnostics = Diagnostics::default();
    match document::parse_json("the API server's response", text, &mut diagnostics) {
        Some(node) => Ok((node, diagnostics)),
        None => Err(diagnostics.to_string()),
    }
}

/// A diagnostic without its location: a response is one line.
fn describe(error: &document::Diagnostic) -> String {
    format!("{}: {}", error.field, error.message)
}

fn error_event(status: &Node) -> WatchEvent {
    let scalar = |name| match status.field(name).map(|node| &node.content) {
        Some(document::Content::Scalar(scalar)) => scalar.text.clone(),
        _ => String::new(),
    };
    match &*scalar("code") {
        GONE => WatchEvent::Expired,
        code => WatchEvent::Failed(format!("{code}: {}", scalar("message"))),
    }
}

fn resource_version(node: &Node) -> String {
    let metadata = node.field("metadata");
    let version = metadata.and_then(|metadata| metadata.field("resourceVersion")?.as_str());
    version.unwrap_or_default().to_owned()
}

/// The objects of both resources.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterStore {
    /// By name; `None` before the first list.
    tables: [Option<BTreeMap<String, Object>>; 2],
    /// The last complete set.
    accepted: Option<Vec<Object>>,
}

impl ClusterStore {
    /// Starts with the last complete set of another process. Nothing is listed yet.
    pub(crate) fn restore(&mut self, objects: Vec<Object>) {
        self.accepted = Some(objects);
    }

    /// The last complete set, sorted by kind and name.
    #[must_use]
    pub(crate) fn accepted(&self) -> Option<&[Object]> {
        self.accepted.as_deref()
    }

    /// Replaces a resource by a list.
    pub(crate) fn replace(
        &mut self,
        resource: ClusterResource,
        objects: Vec<Object>,
    ) -> StoreChange {
        let named = objects
            .into_iter()
            .filter(|object| object.kind() == resource.kind());
        let named = named.map(|object| (object.metadata().name.clone(), object));
        if let Some(table) = self.tables.get_mut(resource.index()) {
            *table = Some(named.collect());
        }
        self.settle()
    }

    /// Applies an event of a watch. Those that are not about an object change nothing.
    pub(crate) fn apply(&mut self, resource: ClusterResource, event: WatchEvent) -> StoreChange {
        let Some(table) = self
            .tables
            .get_mut(resource.index())
            .and_then(Option::as_mut)
        else {
            return StoreChange::Unchanged;
        };
        match event {
            WatchEvent::Stored(object) if object.kind() == resource.kind() => {
                table.insert(object.metadata().name.clone(), *object);
            }
            WatchEvent::Deleted(object) => {
                table.remove(&object.metadata().name);
            }
            WatchEvent::Stored(_)
            | WatchEvent::Bookmark(_)
            | WatchEvent::Expired
            | WatchEvent::Failed(_)
            | WatchEvent::Unreadable(..) => return StoreChange::Unchanged,
        }
        self.settle()
    }

    /// Accepts the current set if it is complete.
    fn settle(&mut self) -> StoreChange {
        let missing = self.missing();
        if !missing.is_empty() {
            return StoreChange::Incomplete(missing);
        }
        let current: Vec<&Object> = self
            .tables
            .iter()
            .flatten()
            .flat_map(BTreeMap::values)
            .collect();
        if self.accepted.as_ref().is_some_and(|accepted| {
            accepted.len() == current.len()
                && accepted
                    .iter()
                    .zip(&current)
                    .all(|(a, b)| a.is_equivalent(b))
        }) {
            return StoreChange::Unchanged;
        }
        self.accepted = Some(current.into_iter().cloned().collect());
        StoreChange::Changed
    }

    /// Whether both resources were listed.
    #[must_use]
    pub(crate) fn is_listed(&self) -> bool {
        self.tables.iter().all(Option::is_some)
    }

    /// What the current set lacks.
    #[must_use]
    pub(crate) fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for resource in ClusterResource::ALL {
            if self.table(resource).is_none() {
                missing.push(format!("the list of {}", resource.plural()));
            }
        }
        let has = |object: &&Object| {
            let mut tables = self.tables.iter().flatten();
            tables.any(|table| {
                table
                    .get(&object.metadata().name)
                    .is_some_and(|found| found.kind() == object.kind())
            })
        };
        if missing.is_empty() {
            let lacking = mandatory::objects().iter().filter(|object| !has(object));
            missing.extend(lacking.map(|one| format!("{} {}", one.kind(), one.metadata().name)));
        }
        missing
    }

    fn table(&self, resource: ClusterResource) -> Option<&BTreeMap<String, Object>> {
        self.tables.get(resource.index())?.as_ref()
    }
}

#[cfg(test)]
#[path = "cluster_store_tests.rs"]
mod cluster_store_tests;
