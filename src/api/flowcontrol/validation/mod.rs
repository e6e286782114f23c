//! What Kubernetes 1.36 refuses in these objects, in its words, its order and with its field paths
//! (`pkg/apis/flowcontrol/validation`).
//!
//! Of the metadata, name, labels and annotations are judged; owner references, finalizers and
//! managed fields are not, for weir does nothing with them. A `generateName` is no name, because
//! nobody would generate one. Where upstream shows a whole spec in Go's internal form, the value is
//! left out.

pub(super) mod flow_schema;
mod priority_level;

use std::collections::HashSet;

use super::Object;
use super::ObjectMeta;
use super::field_error::FieldError;
use super::field_error::FieldErrors;
use super::field_error::quoted;
use super::manifest::Manifest;
use super::names;

/// `TotalAnnotationSizeLimitB`, keys and values together.
const ANNOTATIONS_MAX: usize = 256 * 1024;

impl Manifest<'_> {
    /// What `create` would refuse, in order. The status does not count: an ordinary write drops it.
    #[must_use]
    pub fn validate(&self) -> Vec<FieldError> {
        let mut errors = FieldErrors::default();
        metadata(self.object.metadata(), &mut errors);
        match &self.object {
            Object::FlowSchema(schema) => flow_schema::validate(schema, &mut errors),
            Object::PriorityLevelConfiguration(level) => {
                priority_level::validate(level, self.version, &mut errors);
            }
        }
        errors.into_vec()
    }

    /// What an update of the status would refuse, in order.
    #[must_use]
    pub fn validate_status(&self) -> Vec<FieldError> {
        let types = match &self.object {
            Object::FlowSchema(schema) => &schema.condition_types,
            Object::PriorityLevelConfiguration(level) => &level.condition_types,
        };
        let mut errors = FieldErrors::default();
        let mut seen = HashSet::new();
        for (n, condition) in types.iter().enumerate() {
            let field = format!("status.conditions[{n}].type");
            if !seen.insert(condition) {
                errors.duplicate(field.clone(), quoted(condition));
            }
            if condition.is_empty() {
                errors.required(field, "");
            }
        }
        errors.into_vec()
    }
}

fn metadata(metadata: &ObjectMeta, errors: &mut FieldErrors) {
    if metadata.name.is_empty() {
        errors.required(
            "metadata.name".to_owned(),
            "name or generateName is required",
        );
    } else {
        let broken = names::dns_subdomain(&metadata.name);
        errors.invalid_string("metadata.name", &metadata.name, broken);
    }
    for (key, value) in &metadata.labels {
        errors.invalid_string("metadata.labels", key, names::label_key(key));
        errors.invalid_string("metadata.labels", value, names::label_value(value));
    }
    for (key, _) in &metadata.annotations {
        let broken = names::label_key(&key.to_lowercase());
        errors.invalid_string("metadata.annotations", key, broken);
    }
    let size: usize = metadata
        .annotations
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if size > ANNOTATIONS_MAX {
        errors.too_long("metadata.annotations".to_owned(), ANNOTATIONS_MAX);
    }
}
