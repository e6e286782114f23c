//! Which flow schema a request falls under, and hence which priority level and which flow.
//!
//! A [`Matcher`] is made from the configuration objects when they change, and never changes itself.
//! It is `digestFlowSchemasLocked` and the matching of `startRequest` (Kubernetes 1.36,
//! `apf_controller.go`): schemas in the order of their precedence, of those the first that matches,
//! and the mandatory ones imagined where they are missing. For a request nothing is allocated, and
//! nothing is computed that could have been before.
//!
//! [`Policies`] and what it is made of know nothing of schemas, and serve whatever else picks
//! requests by such rules.
//!
//! Not here: keeping levels alive that are gone from the configuration but still have requests, and
//! writing to the objects' status, which stays kube-apiserver's own.

mod flow_distinguisher;
mod levels;
mod names;
mod policies;
mod rules;
mod subjects;
#[cfg(test)]
mod tests;

use flow_distinguisher::FlowDistinguisher;

pub use flow_distinguisher::FlowDistinguisherMethod;
pub use levels::CompiledLevel;
pub use policies::Policies;
pub use rules::Rules;
pub use subjects::ListBits;
pub use subjects::Subjects;

use crate::api::UserInfo;
use crate::api::flowcontrol::CATCH_ALL;
use crate::api::flowcontrol::EXEMPT;
use crate::api::flowcontrol::FlowSchema;
use crate::api::flowcontrol::Object;
use crate::api::flowcontrol::PriorityLevelConfiguration;
use crate::api::flowcontrol::mandatory;
use crate::request_info::RequestInfo;
use crate::request_info::Verb;

/// What matching looks at. Strings are bytes, as in [`RequestInfo`].
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "as the methods of the same names explain")]
pub struct RequestDigest<'r> {
    pub is_resource_request: bool,
    pub verb: &'r Verb,
    pub path: &'r [u8],
    pub api_group: &'r [u8],
    pub resource: &'r [u8],
    pub subresource: &'r [u8],
    pub namespace: &'r [u8],
    pub user: &'r UserInfo,
}

impl<'r> RequestDigest<'r> {
    /// Of a request and who makes it.
    #[must_use]
    pub fn new(info: &'r RequestInfo<'_>, user: &'r UserInfo) -> Self {
        Self {
            is_resource_request: info.is_resource_request(),
            verb: info.verb(),
            path: info.path(),
            api_group: info.api_group(),
            resource: info.resource(),
            subresource: info.subresource(),
            namespace: info.namespace(),
            user,
        }
    }
}

/// A configuration, ready to classify requests.
#[derive(Clone, Debug)]
pub struct Matcher {
    levels: Box<[CompiledLevel]>,
    schemas: Box<[CompiledSchema]>,
    policies: Policies,
    /// The schema for what none matches.
    catch_all: usize,
    dangling: Box<[String]>,
}

/// A flow schema that leads to a level.
#[derive(Clone, Debug)]
pub struct CompiledSchema {
    /// Its name.
    pub name: String,
    /// Its object's; empty if it is imagined.
    pub uid: String,
    /// The index of its level in [`Matcher::levels`].
    pub level: usize,
    distinguisher: FlowDistinguisher,
}

/// Where a request belongs.
#[derive(Clone, Copy, Debug)]
pub struct Classification<'m, 'r> {
    /// The index of the schema in [`Matcher::schemas`].
    pub index: usize,
    /// The schema.
    pub schema: &'m CompiledSchema,
    /// The level that the schema leads to.
    pub level: &'m CompiledLevel,
    /// What tells the flow from others of the schema; empty where that does not matter.
    pub flow_distinguisher: &'r [u8],
    /// What the flow is dealt its queues by; 0 if the level has no more than one.
    pub flow_hash: u64,
}

impl Matcher {
    /// Takes in all objects there are, in any order.
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
    fn compile(schemas: Vec<&FlowSchema>, levels: Vec<&PriorityLevelConfiguration>) -> Self {
        let mut levels = levels::valid_levels(levels);
        // A mandatory level without an object is imagined only later: until then, references to it
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

    /// Finds the schema of a request, and what follows from it. What no schema matches is the
    /// catch-all's.
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

    /// The schemas, in the order in which they are tried.
    #[must_use]
    pub fn schemas(&self) -> &[CompiledSchema] {
        &self.schemas
    }

    /// The levels that exist or must exist, by name.
    #[must_use]
    pub fn levels(&self) -> &[CompiledLevel] {
        &self.levels
    }

    /// The names of the schemas that were left out because they lead nowhere.
    #[must_use]
    pub fn dangling(&self) -> &[String] {
        &self.dangling
    }
}

impl CompiledSchema {
    /// What tells its flows apart.
    #[must_use]
    pub const fn distinguisher_method(&self) -> FlowDistinguisherMethod {
        self.distinguisher.method()
    }

    /// `None` if it leads nowhere.
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
            distinguisher: flows,
        })
    }
}

/// By precedence, then by name. What is imagined stands outside of that: the exempt schema first,
/// the catch-all last.
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
