//! The mandatory objects, whose specs are fixed: `exempt` and `catch-all` of both kinds.
//!
//! They are here and not with the suggested objects because validation compares with them.

use std::sync::LazyLock;

use super::manifest::decode;
use super::types::{FlowSchema, Object, PriorityLevelConfiguration};
use crate::document;
use crate::document::{Diagnostics, Strictness};

static OBJECTS: LazyLock<Vec<Object>> =
    LazyLock::new(|| decode_embedded("mandatory.yaml", include_str!("mandatory.yaml")));

/// All four objects, schemas first.
#[must_use]
pub fn objects() -> &'static [Object] {
    &OBJECTS
}

/// The mandatory schema `name`.
#[must_use]
pub fn flow_schema(name: &str) -> Option<&'static FlowSchema> {
    objects().iter().find_map(|object| match object {
        Object::FlowSchema(schema) if schema.metadata.name == name => Some(schema),
        Object::FlowSchema(_) | Object::PriorityLevelConfiguration(_) => None,
    })
}

/// The mandatory level `name`.
#[must_use]
pub fn priority_level(name: &str) -> Option<&'static PriorityLevelConfiguration> {
    objects().iter().find_map(|object| match object {
        Object::PriorityLevelConfiguration(level) if level.metadata.name == name => Some(level),
        Object::FlowSchema(_) | Object::PriorityLevelConfiguration(_) => None,
    })
}

/// Decodes the objects of an embedded file. An object that cannot be read is left out, so a test
/// must count them.
#[must_use]
pub fn decode_embedded(file: &str, text: &str) -> Vec<Object> {
    let mut diagnostics = Diagnostics::default();
    let documents = document::parse_all(file, text, &mut diagnostics);
    let decoded = documents
        .iter()
        .flat_map(|node| decode(node, Strictness::Warn, &mut diagnostics));
    decoded.map(|manifest| manifest.object).collect()
}
