//! The objects of files, and all objects that are in force with them.

use super::rule::{LintFinding, Rule};
use weir_flowcontrol::bootstrap;
use weir_flowcontrol::bootstrap::BootstrapClass;
use weir_flowcontrol::matching::Matcher;
use weir_kubernetes::api::flowcontrol::{
    FlowSchema, LocatedObject, Object, PriorityLevelConfiguration,
};

/// Objects of files, over the built-in ones by name.
pub struct ObjectSet<'n> {
    files: Vec<LocatedObject<'n>>,
    in_force: Vec<Object>,
    matcher: Matcher,
    scope: Scope,
}

/// What is known besides the files.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// The seats of all levels together, as configured.
    pub server_concurrency_limit: u32,
    /// Whether there are more objects: in a cluster, or in files with errors.
    pub has_unknown_objects: bool,
}

impl<'n> ObjectSet<'n> {
    /// The set that is in force with these files.
    pub fn new(files: Vec<LocatedObject<'n>>, scope: Scope) -> Self {
        let configured = files.iter().map(|file| file.object.clone());
        let mut in_force = bootstrap::add_missing(configured.collect());
        if scope.has_unknown_objects {
            // Suggested schemas may have been changed, and mandatory ones cannot be.
            let suggested = bootstrap::objects(BootstrapClass::Suggested);
            in_force.retain(|object| {
                let is_file = files.iter().any(|file| file.object == *object);
                let is_schema = matches!(object, Object::FlowSchema(_));
                is_file || !(is_schema && suggested.contains(object))
            });
        }
        Self {
            matcher: Matcher::new(&in_force),
            files,
            in_force,
            scope,
        }
    }

    /// Whether all objects are known.
    pub(super) const fn is_complete(&self) -> bool {
        !self.scope.has_unknown_objects
    }

    /// The schemas of files, without those that are built in.
    pub(super) fn own_schemas(&self) -> impl Iterator<Item = (&LocatedObject<'n>, &FlowSchema)> {
        self.files.iter().filter_map(|file| match &file.object {
            Object::FlowSchema(schema) if !is_built_in(&file.object) => Some((file, schema)),
            Object::FlowSchema(_) | Object::PriorityLevelConfiguration(_) => None,
        })
    }

    /// The levels of files, without those that are built in.
    pub(super) fn own_levels(
        &self,
    ) -> impl Iterator<Item = (&LocatedObject<'n>, &PriorityLevelConfiguration)> {
        self.files.iter().filter_map(|file| match &file.object {
            Object::PriorityLevelConfiguration(level) if !is_built_in(&file.object) => {
                Some((file, level))
            }
            Object::FlowSchema(_) | Object::PriorityLevelConfiguration(_) => None,
        })
    }

    /// All schemas in force, also those without a level.
    pub(super) fn schemas(&self) -> impl Iterator<Item = &FlowSchema> {
        self.in_force.iter().filter_map(|object| match object {
            Object::FlowSchema(schema) => Some(schema),
            Object::PriorityLevelConfiguration(_) => None,
        })
    }

    /// The schemas that are tried before this one, in that order. `None` if it is never tried.
    pub(super) fn schemas_before(&self, name: &str) -> Option<Vec<&FlowSchema>> {
        let tried = self.matcher.schemas();
        let at = tried.iter().position(|schema| schema.name == name)?;
        let before = tried.iter().take(at);
        let schema = |name: &str| self.schemas().find(|schema| schema.metadata.name == name);
        Some(before.filter_map(|tried| schema(&tried.name)).collect())
    }

    /// Which schemas lead to which levels.
    pub(super) const fn matcher(&self) -> &Matcher {
        &self.matcher
    }

    /// The seats of all levels together, as configured.
    pub(super) const fn server_concurrency_limit(&self) -> u32 {
        self.scope.server_concurrency_limit
    }
}

/// Whether kube-apiserver maintains an object of this kind and name with this spec.
fn is_built_in(object: &Object) -> bool {
    let classes = [BootstrapClass::Mandatory, BootstrapClass::Suggested];
    let mut built_in = classes.into_iter().flat_map(bootstrap::objects);
    built_in.any(|other| match (object, other) {
        (Object::FlowSchema(a), Object::FlowSchema(b)) => {
            a.metadata.name == b.metadata.name && a.spec == b.spec
        }
        (Object::PriorityLevelConfiguration(a), Object::PriorityLevelConfiguration(b)) => {
            a.metadata.name == b.metadata.name && a.spec == b.spec
        }
        _ => false,
    })
}

/// A finding about a field of an object.
pub(super) fn finding_at(
    file: &LocatedObject<'_>,
    rule: Rule,
    field: &str,
    message: String,
) -> LintFinding {
    LintFinding {
        rule,
        location: file.locate(field).clone(),
        field: file.field_path(field),
        message,
    }
}
