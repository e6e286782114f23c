//! What Kubernetes 1.36 rejects in these objects, with its words, order and field paths
//! (`pkg/apis/flowcontrol/validation`).
//!
//! The metadata is validated except for managed fields. Where upstream prints a whole spec or list
//! in Go's internal form, the value is left out.

pub(super) mod flow_schema;
mod metadata;
mod priority_level;

use std::collections::HashSet;

use super::field_error::{FieldError, FieldErrors};
use super::manifest::Manifest;
use super::types::Object;
use crate::encoding::go_text;

impl Manifest<'_> {
    /// The errors for which `create` would be rejected, in order. The status is not validated: an
    /// ordinary write drops it.
    #[must_use]
    pub fn validate(&self) -> Vec<FieldError> {
        let mut errors = FieldErrors::default();
        metadata::validate(self.object.metadata(), &mut errors);
        match &self.object {
            Object::FlowSchema(schema) => flow_schema::validate(schema, &mut errors),
            Object::PriorityLevelConfiguration(level) => {
                priority_level::validate(level, self.version, &mut errors);
            }
        }
        errors.into_vec()
    }

    /// The errors for which an update of the status would be rejected, in order.
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
                errors.duplicate(field.clone(), go_text::quote(condition.as_bytes()));
            }
            if condition.is_empty() {
                errors.required(field, "");
            }
        }
        errors.into_vec()
    }
}
