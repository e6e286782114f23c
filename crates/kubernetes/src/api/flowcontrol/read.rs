//! Reads and validates manifests, as the API server does for `create`.

use std::collections::HashMap;

use super::field_error::FieldErrors;
use super::manifest::{Manifest, decode, join_path};
use super::types::{
    ENFORCEMENT_ANNOTATION, ENFORCEMENT_VALUES, Object, PolicyRulesWithSubjects, Version,
};
use super::{fields, names, validation};
use crate::document::{Diagnostics, MappingDecoder, Node, SourceLocation, Strictness};

/// Reads manifests as the API server would with `fieldValidation=Warn`, and reports everything that
/// it would reject or warn of. Objects with errors are left out, and so is the second of two
/// objects with the same kind and name.
pub fn read(documents: &[Node], diagnostics: &mut Diagnostics) -> Vec<Object> {
    let read = read_with_locations(documents, diagnostics);
    read.into_iter().map(|(object, _)| object).collect()
}

/// As [`read`], with a location for each object: of a flow schema, the field that names its
/// priority level; of a priority level, its beginning.
pub fn read_with_locations(
    documents: &[Node],
    diagnostics: &mut Diagnostics,
) -> Vec<(Object, SourceLocation)> {
    let located = read_located(documents, diagnostics).into_iter();
    let with_location = |located: LocatedObject<'_>| {
        let field = match &located.object {
            Object::FlowSchema(_) => "spec.priorityLevelConfiguration.name",
            Object::PriorityLevelConfiguration(_) => "",
        };
        let location = located.locate(field).clone();
        (located.object, location)
    };
    located.map(with_location).collect()
}

/// A valid object and its place.
#[derive(Clone, Debug)]
pub struct LocatedObject<'n> {
    /// The object, with its defaults.
    pub object: Object,
    version: Version,
    node: &'n Node,
    path: String,
}

impl LocatedObject<'_> {
    /// The location of a field, or of the innermost existing value on its path. An empty path is
    /// the object's.
    #[must_use]
    pub fn locate(&self, field: &str) -> &SourceLocation {
        self.node.locate(field)
    }

    /// The path of a field in the document, in which the object may be an item of a list.
    #[must_use]
    pub fn field_path(&self, field: &str) -> String {
        join_path(&self.path, field)
    }

    /// The name of the shares field of a limited level, which depends on the version.
    #[must_use]
    pub fn shares_field(&self) -> &'static str {
        self.version.shares_field()
    }
}

/// As [`read`], with the place of each object.
pub fn read_located<'n>(
    documents: impl IntoIterator<Item = &'n Node>,
    diagnostics: &mut Diagnostics,
) -> Vec<LocatedObject<'n>> {
    let mut first: HashMap<(&'static str, String), SourceLocation> = HashMap::new();
    let mut objects = Vec::new();
    let decoded = documents
        .into_iter()
        .flat_map(|node| decode(node, Strictness::Warn, diagnostics));
    let mut generated = HashMap::new();
    for mut manifest in decoded.collect::<Vec<_>>() {
        manifest.generate_name(&mut generated);
        let is_valid = manifest.report_errors(diagnostics);
        let name = (
            manifest.object.kind(),
            manifest.object.metadata().name.clone(),
        );
        if let Some(location) = first.get(&name) {
            let message = format!(
                "{} {:?} is defined twice, first at {location}",
                name.0, name.1
            );
            let field = join_path(&manifest.path, "metadata.name");
            diagnostics.report_error(manifest.node.locate("metadata.name"), &field, message);
        } else {
            first.insert(name, manifest.node.location.clone());
            let Manifest {
                object,
                version,
                node,
                path,
            } = manifest;
            objects.extend(is_valid.then_some(LocatedObject {
                object,
                version,
                node,
                path,
            }));
        }
    }
    objects
}

/// Reads the field `name` as a FlowSchema's `spec.rules`, and reports what Kubernetes would reject
/// in it: for other settings that select requests in the same way.
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

impl Manifest<'_> {
    /// Generates the name of an object that has only a `generateName`, as the API server does
    /// before it validates. `count` is the number of objects before it with the same kind and
    /// `generateName`.
    fn generate_name(&mut self, count: &mut HashMap<(&'static str, String), u64>) {
        let kind = self.object.kind();
        let metadata = self.object.metadata_mut();
        if !metadata.name.is_empty() || metadata.generate_name.is_empty() {
            return;
        }
        let count = count
            .entry((kind, metadata.generate_name.clone()))
            .or_default();
        metadata.name = names::generate_name(&metadata.generate_name, *count);
        *count += 1;
    }

    /// Reports what Kubernetes would reject in a manifest, and an annotation that weir would not
    /// understand, at the locations of the fields. Returns whether there is nothing to report.
    fn report_errors(&self, diagnostics: &mut Diagnostics) -> bool {
        let errors = self.validate();
        for error in &errors {
            let field = join_path(&self.path, &error.field);
            diagnostics.report_error(self.node.locate(&error.field), &field, error.body());
        }
        let enforcement = self.object.metadata().annotations.iter();
        let unknown: Vec<_> = enforcement
            .filter(|(name, value)| {
                name == ENFORCEMENT_ANNOTATION && !ENFORCEMENT_VALUES.contains(&value.as_str())
            })
            .collect();
        for (name, value) in &unknown {
            let [enforce, dry_run] = ENFORCEMENT_VALUES;
            let field = join_path(&self.path, &format!("metadata.annotations[{name}]"));
            let message = format!("must be {enforce} or {dry_run}, got {value:?}");
            diagnostics.report_error(self.node.locate("metadata.annotations"), &field, message);
        }
        errors.is_empty() && unknown.is_empty()
    }
}
