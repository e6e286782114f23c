//! A compiled configuration, which classifies requests.

use super::flow_distinguisher::{FlowDistinguisher, FlowDistinguisherMethod};
use super::levels;
use super::levels::CompiledLevel;
use super::mismatch::Mismatch;
use super::policies::Policies;
use super::rules::RequestDigest;
use weir_kubernetes::api::flowcontrol::{
    CATCH_ALL, EXEMPT, FlowSchema, Object, PriorityLevelConfiguration, mandatory,
};

/// A compiled configuration.
#[derive(Clone, Debug)]
pub struct Matcher {
    levels: Box<[CompiledLevel]>,
    schemas: Box<[CompiledSchema]>,
    policies: Policies,
    /// The index of the schema for requests that no schema matches.
    catch_all: usize,
    dangling: Box<[String]>,
}

/// A flow schema with an existing level.
#[derive(Clone, Debug)]
pub struct CompiledSchema {
    /// The schema's name.
    pub name: String,
    /// The UID of the object. Empty if the schema is imagined.
    pub uid: String,
    /// The index of its level in [`Matcher::levels`].
    pub level: usize,
    /// Whether [an annotation](weir_kubernetes::api::flowcontrol::ObjectMeta::is_dry_run) says that it only counts.
    pub is_dry_run: bool,
    distinguisher: FlowDistinguisher,
}

/// The schema, the level and the flow of a request.
#[derive(Clone, Copy, Debug)]
pub struct Classification<'m, 'r> {
    /// The index of the schema in [`Matcher::schemas`].
    pub index: usize,
    /// The schema that matched.
    pub schema: &'m CompiledSchema,
    /// The level of the schema.
    pub level: &'m CompiledLevel,
    /// The flow distinguisher, which identifies the flow within the schema. Empty if the level has
    /// at most one queue, or the schema has no distinguisher method.
    pub flow_distinguisher: &'r [u8],
    /// The hash by which the flow is dealt its queues. 0 if the level has at most one queue.
    pub flow_hash: u64,
}

impl Matcher {
    /// Compiles all configuration objects, in any order.
    #[must_use]
    pub fn new<'o>(objects: impl IntoIterator<Item = &'o Object>) -> Self {
        let (mut schemas, mut levels) = (Vec::new(), Vec::new());
        for object in objects {
            match object {
                Object::FlowSchema(schema) => schemas.push(schema),
                Object::PriorityLevelConfiguration(level) => levels.push(level),
            }
        }
        Self::compile(schemas, levels)
    }

    #[expect(
        clippy::expect_used,
        reason = "the mandatory objects are part of the program, whatever the configuration"
    )]
    pub(super) fn compile(
        schemas: Vec<&FlowSchema>,
        levels: Vec<&PriorityLevelConfiguration>,
    ) -> Self {
        let mut levels = levels::valid_levels(levels);
        // A mandatory level without an object is imagined only later. Until then, references to it
        // dangle.
        let (good, dangling): (Vec<_>, Vec<_>) = schemas
            .into_iter()
            .partition(|schema| levels.contains_key(&schema.spec.priority_level_configuration));
        levels::imagine_missing(&mut levels);
        let levels: Box<[CompiledLevel]> = levels.into_values().collect();
        let (entries, schemas): (Vec<_>, Vec<_>) = sort_by_precedence(good)
            .into_iter()
            .filter_map(|schema| {
                Some((
                    &schema.spec.rules[..],
                    CompiledSchema::new(schema, &levels)?,
                ))
            })
            .unzip();
        Self {
            policies: Policies::new(entries),
            catch_all: schemas
                .iter()
                .position(|schema| schema.name == CATCH_ALL)
                .expect("imagined if missing"),
            schemas: schemas.into(),
            levels,
            dangling: dangling
                .iter()
                .map(|schema| schema.metadata.name.clone())
                .collect(),
        }
    }

    /// Finds the schema of a request, its level and its flow. A request that no schema matches
    /// belongs to the catch-all schema.
    #[must_use]
    #[expect(
        clippy::indexing_slicing,
        reason = "entries are numbered like schemas, and levels were found by name"
    )]
    pub fn classify<'r>(&self, request: &RequestDigest<'r>) -> Classification<'_, 'r> {
        let found = self.policies.matching_entries(request).next();
        let index = found.unwrap_or(self.catch_all);
        let schema = &self.schemas[index];
        let (flow_distinguisher, flow_hash) = schema.distinguisher.distinguish(request);
        Classification {
            index,
            schema,
            level: &self.levels[schema.level],
            flow_distinguisher,
            flow_hash,
        }
    }

    /// Why each schema that is tried before the request's own does not match it. If no schema
    /// matches, these are all schemas, and the request belongs to the catch-all schema.
    ///
    /// Slower than [`classify`](Self::classify), which finds the same schema.
    #[must_use]
    pub fn explain(&self, request: &RequestDigest<'_>) -> Vec<Mismatch> {
        let mut mismatches = vec![Mismatch::NoRules; self.schemas.len()];
        if let Some(matched) = self.policies.explain(request, &mut mismatches) {
            mismatches.truncate(matched);
        }
        mismatches
    }

    /// The schemas, in the order of matching.
    #[must_use]
    pub fn schemas(&self) -> &[CompiledSchema] {
        &self.schemas
    }

    /// The levels that exist or must exist, by name.
    #[must_use]
    pub fn levels(&self) -> &[CompiledLevel] {
        &self.levels
    }

    /// The names of the schemas that were left out because their level does not exist.
    #[must_use]
    pub fn dangling(&self) -> &[String] {
        &self.dangling
    }
}

impl CompiledSchema {
    /// The attribute that distinguishes the schema's flows.
    #[must_use]
    pub const fn distinguisher_method(&self) -> FlowDistinguisherMethod {
        self.distinguisher.method()
    }

    /// `None` if its level does not exist.
    fn new(schema: &FlowSchema, levels: &[CompiledLevel]) -> Option<Self> {
        let FlowSchema { metadata, spec, .. } = schema;
        let by_name =
            |level: &CompiledLevel| level.spec.name.cmp(&spec.priority_level_configuration);
        let at = levels.binary_search_by(by_name).ok()?;
        let flows = if levels.get(at)?.has_many_queues() {
            FlowDistinguisher::new(&metadata.name, spec.distinguisher_method.as_ref())
        } else {
            FlowDistinguisher::Single { hash: 0 }
        };
        Some(Self {
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            level: at,
            is_dry_run: metadata.is_dry_run(),
            distinguisher: flows,
        })
    }
}

/// Sorts by precedence, then by name. Imagined schemas are outside of that order: the exempt schema
/// first, the catch-all schema last.
fn sort_by_precedence(mut schemas: Vec<&FlowSchema>) -> Vec<&FlowSchema> {
    let has = |schemas: &[&FlowSchema], name| schemas.iter().any(|s| s.metadata.name == name);
    schemas.sort_by_key(|schema| (schema.spec.matching_precedence, &schema.metadata.name));
    if !has(&schemas, EXEMPT) {
        schemas.splice(..0, mandatory::flow_schema(EXEMPT));
    }
    if !has(&schemas, CATCH_ALL) {
        schemas.extend(mandatory::flow_schema(CATCH_ALL));
    }
    schemas
}
