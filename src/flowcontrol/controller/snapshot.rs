//! The configuration that requests are classified by: immutable, built on each change.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use http::HeaderValue;
use sha2::{Digest, Sha256};

use crate::flowcontrol::level::{ObjectId, PriorityLevel, SchemaRoute, SchemaSlot};
use weir_flowcontrol::concurrency::level_limits::LevelSpec;
use weir_flowcontrol::matching::Matcher;
use weir_kubernetes::api::flowcontrol::GROUP;

/// The compiled schemas and their routes.
#[derive(Debug)]
pub(super) struct ConfigSnapshot {
    pub(super) matcher: Arc<Matcher>,
    /// By the index of the schema.
    pub(super) routes: Box<[Arc<SchemaRoute>]>,
}

#[derive(Debug)]
pub(super) struct LevelEntry {
    pub(super) level: Arc<PriorityLevel>,
    /// The UID of the level's object. Empty without one.
    pub(super) uid: String,
    /// The spec of the level's object, or of its last one.
    pub(super) spec: LevelSpec,
    /// When the level was closed.
    pub(super) closed_at: Option<Instant>,
}

impl ConfigSnapshot {
    /// `levels` must contain all levels of the matcher.
    pub(super) fn new(matcher: &Arc<Matcher>, levels: &BTreeMap<String, LevelEntry>) -> Self {
        let routes = matcher.schemas().iter().filter_map(|schema| {
            let level = matcher.levels().get(schema.level)?;
            let entry = levels.get(&level.spec.name)?;
            Some(Arc::new(SchemaRoute {
                flow_schema: object_id("FlowSchema", &schema.name, &schema.uid),
                distinguisher_method: schema.distinguisher_method(),
                priority_level: object_id(
                    "PriorityLevelConfiguration",
                    &level.spec.name,
                    &entry.uid,
                ),
                counters: entry.level.register_schema(&schema.name),
                level: Arc::clone(&entry.level),
                is_dry_run: schema.is_dry_run || level.is_dry_run,
            }))
        });
        Self {
            routes: routes.collect(),
            matcher: Arc::clone(matcher),
        }
    }
}

impl ConfigSnapshot {
    /// The counters of the schemas that lead to a level.
    pub(super) fn slots_of(&self, level: &Arc<PriorityLevel>) -> Vec<SchemaSlot> {
        let routes = self.routes.iter();
        let own = routes.filter(|route| Arc::ptr_eq(&route.level, level));
        own.map(|route| route.counters).collect()
    }
}

/// An object from a file has no UID. It gets a derived one, which is always the same for the same
/// object: a UUID of version 8 of its kind and name.
fn object_id(kind: &str, name: &str, uid: &str) -> ObjectId {
    let configured = Some(uid).filter(|uid| !uid.is_empty());
    let configured = configured.and_then(|uid| HeaderValue::from_str(uid).ok());
    ObjectId {
        name: name.to_owned(),
        uid: configured.unwrap_or_else(|| derive_uid(kind, name)),
    }
}

fn derive_uid(kind: &str, name: &str) -> HeaderValue {
    let digest = Sha256::digest(format!("{GROUP}/{kind}/{name}"));
    let mut uid = String::new();
    for (at, byte) in digest.iter().take(16).enumerate() {
        let byte = match at {
            6 => byte & 0x0f | 0x80, // version 8
            8 => byte & 0x3f | 0x80, // the variant of RFC 9562
            _ => *byte,
        };
        let dash = if matches!(at, 4 | 6 | 8 | 10) {
            "-"
        } else {
            ""
        };
        let _ = write!(uid, "{dash}{byte:02x}"); // writing to a string never fails
    }
    HeaderValue::try_from(uid).unwrap_or_else(|_| HeaderValue::from_static("")) // never: hex and dashes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_uid_is_a_uuid_and_each_object_has_its_own() {
        let derived = derive_uid("FlowSchema", "exempt");
        let uid = derived.to_str().unwrap();
        let lengths: Vec<_> = uid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!((&uid[14..15], "89ab".contains(&uid[19..20])), ("8", true));
        assert_eq!(derived, derive_uid("FlowSchema", "exempt"));
        assert_ne!(derived, derive_uid("PriorityLevelConfiguration", "exempt"));
        assert_eq!(object_id("FlowSchema", "exempt", "u").uid, "u");
    }
}
