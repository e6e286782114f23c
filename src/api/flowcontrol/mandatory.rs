//! The objects that always exist, and whose specs are fixed: `exempt` and `catch-all` of both
//! kinds.
//!
//! They stand here and not with the suggested ones because validation compares with them.

use std::sync::LazyLock;

use super::FlowSchema;
use super::Object;
use super::PriorityLevelConfiguration;
use super::manifest::decode;
use crate::document;
use crate::document::Diagnostics;
use crate::document::Strictness;

static OBJECTS: LazyLock<Vec<Object>> =
    LazyLock::new(|| decode_embedded("mandatory.yaml", include_str!("mandatory.yaml")));

/// All four, schemas first.
#[must_use]
pub fn objects() -> &'static [Object] {
    &OBJECTS
}

/// The mandatory schema of that name.
#[must_use]
pub fn flow_schema(name: &str) -> Option<&'static FlowSchema> {
    objects().iter().find_map(|object| match object {
        Object::FlowSchema(schema) if schema.metadata.name == name => Some(schema),
        Object::FlowSchema(_) | Object::PriorityLevelConfiguration(_) => None,
    })
}

/// The mandatory level of that name.
#[must_use]
pub fn priority_level(name: &str) -> Option<&'static PriorityLevelConfiguration> {
    objects().iter().find_map(|object| match object {
        Object::PriorityLevelConfiguration(level) if level.metadata.name == name => Some(level),
        Object::FlowSchema(_) | Object::PriorityLevelConfiguration(_) => None,
    })
}

/// The objects of a text that is part of the program. What cannot be read is left out, so a test
/// has to count them.
#[must_use]
pub fn decode_embedded(file: &str, text: &str) -> Vec<Object> {
    let mut faults = Diagnostics::default();
    let documents = document::parse_all(file, text, &mut faults);
    let decoded = documents
        .iter()
        .flat_map(|node| decode(node, Strictness::Warn, &mut faults));
    decoded.map(|manifest| manifest.object).collect()
}
