//! The objects that kube-apiserver 1.36 makes for itself, and that weir goes by where nobody has
//! given it others.
//!
//! They stand in `suggested.yaml` beside this file and in the `mandatory.yaml` of
//! `api::flowcontrol`. Nothing here keeps them up to date in a cluster: that is kube-apiserver's
//! own task.

use std::sync::LazyLock;

use sha2::Digest;
use sha2::Sha256;

use crate::api::flowcontrol::Object;
use crate::api::flowcontrol::mandatory;

/// Whether a cluster can be without the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It always exists, with a spec that is fixed.
    Mandatory,
    /// It is made anew when it is missing, but an operator may change it.
    Suggested,
}

static SUGGESTED: LazyLock<Vec<Object>> =
    LazyLock::new(|| mandatory::embedded("suggested.yaml", include_str!("suggested.yaml")));

/// The objects of a class.
#[must_use]
pub fn objects(class: Class) -> &'static [Object] {
    match class {
        Class::Mandatory => mandatory::objects(),
        Class::Suggested => &SUGGESTED,
    }
}

/// What a cluster has whose operator has given it `objects`: those, the built-in ones of other names, and a UID for whatever
/// has none, made of kind and name, so that the same object has the same one in every weir.
#[must_use]
pub fn complete(given: Vec<Object>) -> Vec<Object> {
    let mut all = given;
    for class in [Class::Mandatory, Class::Suggested] {
        for object in objects(class) {
            let same = |other: &Object| {
                other.kind() == object.kind() && other.metadata().name == object.metadata().name
            };
            if !all.iter().any(same) {
                all.push(object.clone());
            }
        }
    }
    for object in &mut all {
        if object.metadata().uid.is_empty() {
            let uid = derived_uid(object.kind(), &object.metadata().name);
            object.metadata_mut().uid = uid;
        }
    }
    all
}

/// A UUID of version 8 (RFC 9562: made in a way of one's own) from a hash of kind and name.
fn derived_uid(kind: &str, name: &str) -> String {
    let digest = Sha256::digest(format!("weir/{kind}/{name}"));
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(digest) {
        *to = from;
    }
    let bits =
        (u128::from_be_bytes(bytes) & !(0xf << 76) & !(0x3 << 62)) | (0x8 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    let part = |from, to| hex.get(from..to).unwrap_or_default();
    [
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32),
    ]
    .join("-")
}

#[cfg(test)]
mod tests {
    use super::Class;
    use super::complete;
    use super::objects;
    use crate::api::flowcontrol;
    use crate::api::flowcontrol::Object;
    use crate::document;
    use crate::document::Faults;

    #[test]
    fn the_built_in_texts_are_read_whole_and_are_valid() {
        let mut faults = Faults::default();
        let mut documents = document::parse_all(
            "suggested.yaml",
            include_str!("suggested.yaml"),
            &mut faults,
        );
        let mandatory = include_str!("../api/flowcontrol/mandatory.yaml");
        documents.extend(document::parse_all(
            "mandatory.yaml",
            mandatory,
            &mut faults,
        ));
        assert_eq!(flowcontrol::read(&documents, &mut faults).len(), 19);
        assert_eq!(faults.to_string(), "");
        assert_eq!(objects(Class::Mandatory).len(), 4);
        assert_eq!(objects(Class::Suggested).len(), 15);
    }

    #[test]
    fn what_is_given_stands_beside_the_built_in_objects_and_in_their_place() {
        let mut own = objects(Class::Suggested).first().unwrap().clone();
        own.metadata_mut().uid = "given".to_owned();
        let mut other = own.clone();
        other.metadata_mut().name = "other".to_owned();
        other.metadata_mut().uid = String::new();
        let all = complete(vec![own, other]);
        assert_eq!(all.len(), 20);
        assert_eq!(all[0].metadata().uid, "given");
        let uid = &all[1].metadata().uid;
        assert_eq!(
            (uid.len(), uid.as_bytes()[14], complete(Vec::new()).len()),
            (36, b'8', 19)
        );
        assert!(matches!(uid.as_bytes()[19], b'8' | b'9' | b'a' | b'b'));
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
        let all = objects(Class::Mandatory)
            .iter()
            .chain(objects(Class::Suggested));
        assert_eq!(all.filter_map(shares).sum::<i32>(), 245);
    }
}
