//! The objects that kube-apiserver 1.36 creates for itself. weir uses them where no configuration
//! replaces them.
//!
//! They are in `suggested.yaml` in this folder and in the `mandatory.yaml` of `api::flowcontrol`.
//! This module does not maintain them in a cluster: kube-apiserver does that.

use std::sync::LazyLock;

use weir_kubernetes::api::flowcontrol::{Object, mandatory};

/// Whether the object must exist in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootstrapClass {
    /// It always exists, with a fixed spec.
    Mandatory,
    /// It is created again when it is missing, but an operator may change it.
    Suggested,
}

static SUGGESTED: LazyLock<Vec<Object>> =
    LazyLock::new(|| mandatory::decode_embedded("suggested.yaml", include_str!("suggested.yaml")));

/// The built-in objects of a class.
#[must_use]
pub fn objects(class: BootstrapClass) -> &'static [Object] {
    match class {
        BootstrapClass::Mandatory => mandatory::objects(),
        BootstrapClass::Suggested => &SUGGESTED,
    }
}

/// Adds the built-in objects whose kind and name are not among the configured ones.
#[must_use]
pub fn add_missing(configured: Vec<Object>) -> Vec<Object> {
    let mut all = configured;
    for class in [BootstrapClass::Mandatory, BootstrapClass::Suggested] {
        for object in objects(class) {
            let same = |other: &Object| {
                other.kind() == object.kind() && other.metadata().name == object.metadata().name
            };
            if !all.iter().any(same) {
                all.push(object.clone());
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{BootstrapClass, add_missing, objects};
    use weir_kubernetes::api::flowcontrol;
    use weir_kubernetes::api::flowcontrol::Object;
    use weir_kubernetes::document;
    use weir_kubernetes::document::{Diagnostics, Strictness};

    #[test]
    fn the_built_in_manifests_are_complete_and_valid() {
        let mut diagnostics = Diagnostics::default();
        let mut documents = document::parse_all(
            "suggested.yaml",
            include_str!("suggested.yaml"),
            &mut diagnostics,
        );
        let mandatory = include_str!("../../kubernetes/src/api/flowcontrol/mandatory.yaml");
        documents.extend(document::parse_all(
            "mandatory.yaml",
            mandatory,
            &mut diagnostics,
        ));
        assert_eq!(flowcontrol::read(&documents, &mut diagnostics).len(), 19);
        assert_eq!(diagnostics.to_string(), "");
        assert_eq!(objects(BootstrapClass::Mandatory).len(), 4);
        assert_eq!(objects(BootstrapClass::Suggested).len(), 15);
    }

    #[test]
    fn configured_objects_replace_built_in_objects_of_the_same_name() {
        let Some(Object::PriorityLevelConfiguration(built_in)) =
            objects(BootstrapClass::Suggested).first()
        else {
            panic!("levels come first");
        };
        let mut own = built_in.clone();
        own.metadata.uid = "given".to_owned();
        let mut other = own.clone();
        other.metadata.name = "other".to_owned();
        let all = add_missing([own, other].map(Object::PriorityLevelConfiguration).into());
        assert_eq!((all.len(), add_missing(Vec::new()).len()), (20, 19));
        assert_eq!(all[0].metadata().uid, "given");
    }

    #[test]
    fn the_shares_add_up_to_those_of_kubernetes() {
        let shares = |object: &Object| match object {
            Object::PriorityLevelConfiguration(level) => level
                .spec
                .limited
                .as_ref()
                .map(|limited| limited.nominal_concurrency_shares),
            Object::FlowSchema(_) => None,
        };
        let all = objects(BootstrapClass::Mandatory)
            .iter()
            .chain(objects(BootstrapClass::Suggested));
        assert_eq!(all.filter_map(shares).sum::<i32>(), 245);
    }

    #[test]
    fn a_written_object_reads_as_the_same_object() {
        for object in add_missing(Vec::new()) {
            let text = flowcontrol::to_manifest(&object).to_string();
            let mut diagnostics = Diagnostics::default();
            let nodes = document::parse_all("written", &text, &mut diagnostics);
            let read = flowcontrol::decode(&nodes[0], Strictness::Strict, &mut diagnostics);
            assert_eq!(diagnostics.to_string(), "", "{text}");
            assert_eq!(read[0].object, object, "{text}");
        }
    }
}
