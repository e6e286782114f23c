//! Drift: the API server classified a request by other objects than weir.
//!
//! kube-apiserver names the objects that classified a request by their UIDs in its response. If
//! they are those that weir chose, nothing is looked up. Objects that weir has from a file, and
//! built-in ones that the cluster does not have, differ on purpose and are no drift.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use http::HeaderMap;
use http::HeaderName;
use http::HeaderValue;
use prometheus::IntCounter;
use tracing::warn;

use super::origin::EffectiveObject;
use super::origin::Origin;
use crate::flowcontrol::controller::FlowControlDecision;
use crate::flowcontrol::level::ObjectId;
use crate::metrics::Registry;
use crate::throttling::log_limiter::LogLimiter;

const FLOW_SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// How long drift is reported after it was seen.
const REPORTED_FOR: Duration = Duration::from_secs(60);

/// How the classifications of a request differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drift {
    /// weir does not have the API server's object.
    UnknownObject,
    /// weir has both objects, and chose the other one.
    OtherObject,
}

/// Whether an object is the cluster's, by UID.
#[derive(Debug, Default)]
struct UidIndex(HashMap<Box<[u8]>, bool>);

impl UidIndex {
    fn new(objects: &[EffectiveObject]) -> Self {
        let with_uid = objects.iter().filter_map(|one| {
            let uid = one.object.metadata().uid.as_bytes();
            (!uid.is_empty()).then(|| (uid.into(), one.origin == Origin::Cluster))
        });
        Self(with_uid.collect())
    }

    /// `None` if there is no object with this UID.
    fn is_of_cluster(&self, uid: &HeaderValue) -> Option<bool> {
        self.0.get(uid.as_bytes()).copied()
    }
}

/// The UIDs of the objects in force, and of those in force before them. A response may be to a
/// request that was classified before the last change.
#[derive(Debug)]
struct KnownUids {
    current: Arc<UidIndex>,
    before: Arc<UidIndex>,
}

impl KnownUids {
    fn compare(&self, chosen: &ObjectId, theirs: &HeaderValue) -> Option<Drift> {
        if chosen.uid == theirs || theirs.is_empty() {
            return None;
        }
        let is_of_cluster = |uid| {
            let current = self.current.is_of_cluster(uid);
            current.or_else(|| self.before.is_of_cluster(uid))
        };
        match (is_of_cluster(theirs), is_of_cluster(&chosen.uid)) {
            (None, _) => Some(Drift::UnknownObject),
            (Some(true), Some(true)) => Some(Drift::OtherObject),
            (Some(_), _) => None,
        }
    }
}

/// Compares, counts and reports.
#[derive(Debug)]
pub struct DriftMonitor {
    /// `None` until the cluster's objects are known.
    known: ArcSwapOption<KnownUids>,
    unknown_objects: IntCounter,
    other_objects: IntCounter,
    /// The time of the last drift in milliseconds after `start`, plus one. 0 if there was none.
    /// Relaxed: no other value depends on it.
    last_seen: AtomicU64,
    start: Instant,
    log: LogLimiter,
}

impl DriftMonitor {
    /// Registers the metric.
    #[must_use]
    pub(crate) fn new(now: Instant, registry: &Registry) -> Arc<Self> {
        let counters = registry.counters(
            "weir_flowcontrol_drift_total",
            "Requests that the API server classified by other flow schemas or priority levels than weir, by reason: unknown-object (weir does not have the API server's object), other-object (weir has both, and chose the other one). Compared only while weir has the cluster's objects, and not for objects from files.",
            &["reason"],
        );
        Arc::new(Self {
            known: ArcSwapOption::empty(),
            unknown_objects: counters.with_label_values(&["unknown-object"]),
            other_objects: counters.with_label_values(&["other-object"]),
            last_seen: AtomicU64::new(0),
            start: now,
            log: LogLimiter::default(),
        })
    }

    /// The objects that are in force from now on, among them those of the cluster.
    pub(super) fn set_objects(&self, objects: &[EffectiveObject]) {
        let before = self.known.load();
        let before = before.as_ref().map(|known| Arc::clone(&known.current));
        self.known.store(Some(Arc::new(KnownUids {
            current: Arc::new(UidIndex::new(objects)),
            before: before.unwrap_or_default(),
        })));
    }

    /// The cluster's objects are not known any more: nothing is compared.
    pub(super) fn forget_objects(&self) {
        self.known.store(None);
    }

    /// Compares the objects that classified a request at the API server, if its response names
    /// them, with weir's decision.
    pub(crate) fn check(&self, now: Instant, decision: &FlowControlDecision, response: &HeaderMap) {
        let known = self.known.load();
        let Some(known) = known.as_ref() else {
            return;
        };
        let theirs = (
            response.get(FLOW_SCHEMA_UID),
            response.get(PRIORITY_LEVEL_UID),
        );
        let (Some(schema), Some(level)) = theirs else {
            return;
        };
        if decision.flow_schema().uid == schema && decision.priority_level().uid == level {
            return;
        }
        let drift = known
            .compare(decision.flow_schema(), schema)
            .or_else(|| known.compare(decision.priority_level(), level));
        if let Some(drift) = drift {
            self.record(now, drift, decision, (schema, level));
        }
    }

    #[cold]
    fn record(
        &self,
        now: Instant,
        drift: Drift,
        decision: &FlowControlDecision,
        (schema, level): (&HeaderValue, &HeaderValue),
    ) {
        let (counter, why) = match drift {
            Drift::UnknownObject => (&self.unknown_objects, "weir does not have these objects"),
            Drift::OtherObject => (&self.other_objects, "weir chose other objects"),
        };
        counter.inc();
        let age = now.saturating_duration_since(self.start).as_millis();
        let seen = u64::try_from(age).unwrap_or(u64::MAX).saturating_add(1);
        self.last_seen.store(seen, Ordering::Relaxed);
        if let Some(suppressed) = self.log.try_log(now) {
            warn!(
                flow_schema_uid = ?schema,
                priority_level_uid = ?level,
                flow_schema = decision.flow_schema().name,
                priority_level = decision.priority_level().name,
                suppressed,
                "the API server classified a request differently: {why}"
            );
        }
    }

    /// What the API server and weir disagree about, if they did in the last minute.
    #[must_use]
    pub(crate) fn recent(&self, now: Instant) -> Option<String> {
        let seen = self.last_seen.load(Ordering::Relaxed).checked_sub(1)?;
        let seen = self.start + Duration::from_millis(seen);
        if now.saturating_duration_since(seen) >= REPORTED_FOR {
            return None;
        }
        Some(format!(
            "the API server classifies requests differently: since the start, {} by flow schemas or priority levels that weir does not have, {} by others than weir chose",
            self.unknown_objects.get(),
            self.other_objects.get(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::flowcontrol::FlowSchema;
    use crate::api::flowcontrol::Object;
    use crate::api::flowcontrol::ObjectMeta;
    use crate::document::SourceLocation;

    fn object(uid: &str, origin: Origin) -> EffectiveObject {
        let metadata = ObjectMeta {
            name: uid.to_owned(),
            uid: uid.to_owned(),
            ..ObjectMeta::default()
        };
        let schema = FlowSchema {
            metadata,
            ..FlowSchema::default()
        };
        EffectiveObject {
            object: Object::FlowSchema(schema),
            origin,
            replaces: None,
        }
    }

    fn compare(known: &KnownUids, chosen: &str, theirs: &'static str) -> Option<Drift> {
        let chosen = ObjectId {
            name: "chosen".to_owned(),
            uid: HeaderValue::from_str(chosen).unwrap(),
        };
        known.compare(&chosen, &HeaderValue::from_static(theirs))
    }

    #[test]
    fn only_objects_of_the_cluster_can_drift() {
        let file = Origin::File(SourceLocation::whole_file("f"));
        let known = KnownUids {
            current: Arc::new(UidIndex::new(&[
                object("a", Origin::Cluster),
                object("b", Origin::Cluster),
                object("f", file),
                object("", Origin::BuiltIn),
            ])),
            before: Arc::new(UidIndex::new(&[object("old", Origin::Cluster)])),
        };
        assert_eq!(compare(&known, "a", "a"), None);
        assert_eq!(compare(&known, "a", "b"), Some(Drift::OtherObject));
        assert_eq!(compare(&known, "a", "new"), Some(Drift::UnknownObject));
        assert_eq!(
            compare(&known, "derived", "new"),
            Some(Drift::UnknownObject)
        );
        assert_eq!(compare(&known, "derived", "a"), None, "a built-in object");
        assert_eq!(compare(&known, "a", "f"), None, "replaced by a file");
        assert_eq!(compare(&known, "f", "a"), None, "replaced by a file");
        assert_eq!(compare(&known, "a", ""), None, "imagined by the server");
        assert_eq!(compare(&known, "a", "old"), Some(Drift::OtherObject));
    }

    #[test]
    fn drift_is_reported_for_a_minute() {
        let start = Instant::now();
        let monitor = DriftMonitor::new(start, &Registry::new());
        assert_eq!(monitor.recent(start), None);
        monitor.unknown_objects.inc();
        monitor.last_seen.store(1 + 5_000, Ordering::Relaxed);
        let after = |seconds| monitor.recent(start + Duration::from_secs(seconds));
        assert!(after(64).unwrap().contains("1 by flow schemas"));
        assert_eq!(after(65), None);
    }
}
