//! Rules with subjects outside a FlowSchema, for other settings that select requests in the same
//! way.

use super::field_error::FieldErrors;
use super::types::PolicyRulesWithSubjects;
use super::{fields, validation};
use crate::document::MappingDecoder;

/// Reads the field `name` as a FlowSchema's `spec.rules`, and reports what Kubernetes would reject
/// in it.
pub fn read_rules(
    fields: &mut MappingDecoder<'_>,
    name: &'static str,
) -> Vec<PolicyRulesWithSubjects> {
    let rules = fields
        .objects(name, fields::decode_rule)
        .unwrap_or_default();
    let mut errors = FieldErrors::default();
    for (n, rule) in rules.iter().enumerate() {
        validation::flow_schema::validate_rule(&format!("[{n}]"), rule, &mut errors);
    }
    if let Some(mut value) = fields.value(name) {
        let (node, path) = (value.node(), value.path().to_owned());
        for error in errors.into_vec() {
            let within = error.field.strip_prefix('[').unwrap_or(&error.field);
            let location = node.locate(within);
            let field = format!("{path}{}", error.field);
            value
                .diagnostics()
                .report_error(location, &field, error.body());
        }
    }
    rules
}
