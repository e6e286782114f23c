//! The objects that are in force: those of files, over those of the cluster, over the built-in
//! ones.

use std::collections::BTreeMap;

use super::origin::{EffectiveObject, Origin};
use weir_flowcontrol::bootstrap;
use weir_flowcontrol::bootstrap::BootstrapClass;
use weir_kubernetes::api::flowcontrol::Object;
use weir_kubernetes::document::SourceLocation;

/// The objects of each source.
#[derive(Clone, Debug, Default)]
pub struct FlowcontrolSources {
    cluster: Option<Vec<Object>>,
    files: Vec<(Object, SourceLocation)>,
}

impl FlowcontrolSources {
    /// The built-in objects and those of files.
    #[must_use]
    pub const fn from_files(files: Vec<(Object, SourceLocation)>) -> Self {
        Self {
            cluster: None,
            files,
        }
    }

    /// Replaces the objects of files.
    pub(crate) fn set_files(&mut self, files: Vec<(Object, SourceLocation)>) {
        self.files = files;
    }

    /// Replaces the objects of the cluster.
    pub(crate) fn set_cluster(&mut self, objects: Vec<Object>) {
        self.cluster = Some(objects);
    }

    /// The cluster is no source any more.
    pub(crate) fn remove_cluster(&mut self) {
        self.cluster = None;
    }

    /// The objects of the cluster, if they are known.
    #[must_use]
    pub(crate) fn cluster(&self) -> Option<&[Object]> {
        self.cluster.as_deref()
    }

    /// Whether the cluster's objects are known.
    #[must_use]
    pub(crate) const fn has_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// The objects that are in force, sorted by kind and name. An object of a file without a UID
    /// gets the UID of the cluster's object that it replaces: it stands in the place of that
    /// object, and both have the same name in responses.
    #[must_use]
    pub(crate) fn merge(&self) -> Vec<EffectiveObject> {
        let mut merged = BTreeMap::new();
        let classes = [BootstrapClass::Mandatory, BootstrapClass::Suggested];
        for object in classes.into_iter().flat_map(bootstrap::objects) {
            put(&mut merged, object.clone(), Origin::BuiltIn);
        }
        for object in self.cluster.iter().flatten() {
            put(&mut merged, object.clone(), Origin::Cluster);
        }
        for (object, location) in &self.files {
            put(&mut merged, object.clone(), Origin::File(location.clone()));
        }
        merged.into_values().collect()
    }
}

fn put(
    merged: &mut BTreeMap<(&'static str, String), EffectiveObject>,
    mut object: Object,
    origin: Origin,
) {
    let key = (object.kind(), object.metadata().name.clone());
    let replaced = merged.get(&key).filter(|old| old.origin != Origin::BuiltIn);
    if let Some(replaced) = replaced {
        object.adopt_uid(&replaced.object);
    }
    let replaces = replaced.map(|old| old.origin.name());
    let effective = EffectiveObject {
        object,
        origin,
        replaces,
    };
    merged.insert(key, effective);
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_kubernetes::api::flowcontrol::{FlowSchema, ObjectMeta, PriorityLevelConfiguration};

    fn metadata(name: &str, uid: &str) -> ObjectMeta {
        ObjectMeta {
            name: name.to_owned(),
            uid: uid.to_owned(),
            ..ObjectMeta::default()
        }
    }

    fn schema(name: &str, uid: &str) -> Object {
        Object::FlowSchema(FlowSchema {
            metadata: metadata(name, uid),
            ..FlowSchema::default()
        })
    }

    fn level(name: &str, uid: &str) -> Object {
        Object::PriorityLevelConfiguration(PriorityLevelConfiguration {
            metadata: metadata(name, uid),
            ..PriorityLevelConfiguration::default()
        })
    }

    fn at(line: u32) -> SourceLocation {
        SourceLocation {
            line,
            column: 1,
            ..SourceLocation::whole_file("f.yaml")
        }
    }

    /// UID, origin and replaced source of an object.
    fn found(merged: &[EffectiveObject], key: (&str, &str)) -> (String, String, &'static str) {
        let one = merged.iter().find(|one| one.key() == key).unwrap();
        let uid = one.object.metadata().uid.clone();
        (
            uid,
            one.origin.to_string(),
            one.replaces.unwrap_or_default(),
        )
    }

    fn text(uid: &str, origin: &str, replaces: &'static str) -> (String, String, &'static str) {
        (uid.to_owned(), origin.to_owned(), replaces)
    }

    #[test]
    fn without_other_sources_the_built_in_objects_are_in_force() {
        let merged = FlowcontrolSources::default().merge();
        assert_eq!(merged.len(), 19);
        assert!(merged.iter().all(|one| one.origin == Origin::BuiltIn));
        let objects = merged.into_iter().map(|one| one.object);
        let mut expected = bootstrap::add_missing(Vec::new());
        expected.sort_by_key(|one| (one.kind(), one.metadata().name.clone()));
        assert_eq!(objects.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn files_lie_over_the_cluster_and_the_cluster_over_the_built_in_objects() {
        let mut sources = FlowcontrolSources::from_files(vec![
            (schema("exempt", ""), at(3)),
            (schema("global-default", "own"), at(7)),
            (schema("mine", ""), at(9)),
        ]);
        sources.set_cluster(vec![
            schema("exempt", "u-1"),
            schema("global-default", "u-2"),
            schema("theirs", "u-3"),
        ]);
        let merged = sources.merge();
        assert_eq!(merged.len(), 21);
        let schema = |name| found(&merged, ("FlowSchema", name));
        assert_eq!(schema("exempt"), text("u-1", "f.yaml:3:1", "cluster"));
        assert_eq!(
            schema("global-default"),
            text("own", "f.yaml:7:1", "cluster")
        );
        assert_eq!(schema("mine"), text("", "f.yaml:9:1", ""));
        assert_eq!(schema("theirs"), text("u-3", "cluster", ""));
        assert_eq!(schema("catch-all"), text("", "built-in", ""));
    }

    #[test]
    fn kinds_have_names_of_their_own_and_a_removed_source_uncovers_the_next() {
        let mut sources = FlowcontrolSources::from_files(vec![(level("exempt", ""), at(1))]);
        sources.set_cluster(vec![schema("exempt", "u-1")]);
        let merged = sources.merge();
        assert_eq!(
            found(&merged, ("PriorityLevelConfiguration", "exempt")),
            text("", "f.yaml:1:1", "")
        );
        sources.set_files(Vec::new());
        let merged = sources.merge();
        assert_eq!(
            found(&merged, ("PriorityLevelConfiguration", "exempt")).1,
            "built-in"
        );
        assert_eq!(
            found(&merged, ("FlowSchema", "exempt")),
            text("u-1", "cluster", "")
        );
    }
}
