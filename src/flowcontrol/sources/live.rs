//! The objects in force: applies each change of a source to the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGauge, IntGaugeVec};
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use super::merge::FlowcontrolSources;
use super::origin::{EffectiveObject, Origin};
use crate::flowcontrol::controller::{Controller, ControllerConfig};
use weir_base::metrics::Registry;
use weir_kubernetes::api::flowcontrol::{Object, to_manifest};
use weir_kubernetes::document::SourceLocation;
use weir_limits::in_flight::InFlightMetrics;
use weir_limits::throttling::log_limiter::LogLimiter;

/// Changed objects that are named.
const NAMED_CHANGES: usize = 3;

/// What weir knows about the cluster's objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ClusterStatus {
    /// weir does not read them: by `--flowcontrol-source`, or because it has no credentials.
    #[default]
    NotRead,
    /// They were not read yet.
    Pending,
    /// They are watched.
    Synced,
    /// They cannot be read now. What is known of them stays in force.
    Failed(String),
}

impl ClusterStatus {
    /// One word for JSON.
    #[must_use]
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::NotRead => "not-read",
            Self::Pending => "pending",
            Self::Synced => "synced",
            Self::Failed(_) => "failed",
        }
    }

    /// The reason of a failure.
    #[must_use]
    pub(crate) fn failure(&self) -> Option<&str> {
        match self {
            Self::Failed(why) => Some(why),
            Self::NotRead | Self::Pending | Self::Synced => None,
        }
    }
}

/// The sources, and the controller that acts on them.
pub struct LiveObjects {
    controller: Arc<Controller>,
    /// Held for one change; nothing is awaited under it.
    state: Mutex<LiveState>,
    by_origin: IntGaugeVec,
    changes: IntCounterVec,
    synced: IntGauge,
    log: LogLimiter,
}

#[derive(Debug, Default)]
struct LiveState {
    sources: FlowcontrolSources,
    effective: Arc<[EffectiveObject]>,
    cluster: ClusterStatus,
    /// The flow schemas that are left out because their level does not exist.
    dangling: BTreeSet<String>,
    /// Whether the cluster's objects were among those in force before.
    sources_had_cluster: bool,
    /// The number of changes so far, and what the last one changed.
    changes: (u64, String),
}

impl LiveObjects {
    /// The controller with the objects of `sources`.
    #[must_use]
    pub fn start(
        config: ControllerConfig,
        sources: FlowcontrolSources,
        registry: &Registry,
    ) -> Arc<Self> {
        Self::with_in_flight(config, sources, &InFlightMetrics::new(registry), registry)
    }

    /// As [`start`](Self::start), with metrics that the controller shares with the limiter of the
    /// other mode.
    #[must_use]
    pub(crate) fn with_in_flight(
        config: ControllerConfig,
        sources: FlowcontrolSources,
        in_flight: &Arc<InFlightMetrics>,
        registry: &Registry,
    ) -> Arc<Self> {
        let effective = sources.merge();
        let objects = effective.iter().map(|one| &one.object);
        let controller = Controller::with_in_flight(config, objects, in_flight, registry);
        let live = Self {
            controller,
            state: Mutex::default(),
            by_origin: registry.gauges(
                "weir_flowcontrol_objects",
                "Flow schemas and priority levels in force, by origin: built-in, cluster, file.",
                &["origin"],
            ),
            changes: registry.counters(
                "weir_flowcontrol_changes_total",
                "Changes of the flow schemas and priority levels while weir runs, by the source that changed: cluster, file.",
                &["source"],
            ),
            synced: registry.gauge(
                "weir_flowcontrol_cluster_synced",
                "1 while weir watches the cluster's flow schemas and priority levels; 0 while it cannot, or does not.",
            ),
            log: LogLimiter::default(),
        };
        for source in ["cluster", "file"] {
            live.changes.with_label_values(&[source]);
        }
        live.publish(&mut live.state.lock(), sources, effective);
        Arc::new(live)
    }

    /// The controller that the objects are applied to.
    #[must_use]
    pub(crate) const fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Replaces the objects of files, each with its location. Levels that stay keep their queues
    /// and seats.
    pub(crate) fn set_files(&self, now: Instant, files: Vec<(Object, SourceLocation)>) {
        self.change(now, "file", |sources| sources.set_files(files));
    }

    /// Replaces the objects of the cluster. Levels that stay keep their queues and seats.
    pub(crate) fn set_cluster(&self, now: Instant, objects: Vec<Object>) {
        self.change(now, "cluster", |sources| sources.set_cluster(objects));
    }

    /// Removes the objects of the cluster: they are no source any more.
    pub(crate) fn remove_cluster(&self, now: Instant) {
        if self.state.lock().sources.cluster().is_some() {
            self.change(now, "cluster", FlowcontrolSources::remove_cluster);
        }
    }

    /// The objects of the cluster, if they are known.
    #[must_use]
    pub(crate) fn cluster_objects(&self) -> Option<Vec<Object>> {
        self.state.lock().sources.cluster().map(<[Object]>::to_vec)
    }

    /// Whether the objects decide about new requests. While they do not, the controller keeps the
    /// seats and queues of earlier requests, and no object is shown to be in force.
    pub(crate) fn set_in_force(&self, now: Instant, in_force: bool) {
        self.controller.set_in_force(now, in_force);
        if in_force {
            self.count_by_origin(&self.objects());
        } else {
            self.by_origin.reset();
        }
    }

    /// Records what is known about the cluster's objects. Returns whether that is news.
    pub(crate) fn set_cluster_status(&self, status: ClusterStatus) -> bool {
        self.synced.set((status == ClusterStatus::Synced).into());
        let mut state = self.state.lock();
        let is_news = state.cluster != status;
        state.cluster = status;
        is_news
    }

    /// What is known about the cluster's objects.
    #[must_use]
    pub(crate) fn cluster_status(&self) -> ClusterStatus {
        self.state.lock().cluster.clone()
    }

    /// The number of changes while weir runs, and what the last one changed.
    #[must_use]
    pub(crate) fn changes(&self) -> (u64, String) {
        self.state.lock().changes.clone()
    }

    /// The objects in force, sorted by kind and name.
    #[must_use]
    pub(crate) fn objects(&self) -> Arc<[EffectiveObject]> {
        Arc::clone(&self.state.lock().effective)
    }

    /// The objects in force and where each comes from, without their specs.
    #[must_use]
    pub(crate) fn summary(&self) -> Value {
        self.render(false)
    }

    /// As [`summary`](Self::summary), with each object as a manifest.
    #[must_use]
    pub(crate) fn dump(&self) -> Value {
        self.render(true)
    }

    fn render(&self, manifests: bool) -> Value {
        let (objects, cluster, dangling) = {
            let state = self.state.lock();
            let objects = Arc::clone(&state.effective);
            (objects, state.cluster.clone(), state.dangling.clone())
        };
        let object = |one: &EffectiveObject| {
            let (kind, name) = one.key();
            let mut fields = BTreeMap::from([
                ("kind", Value::from(kind)),
                ("name", name.into()),
                ("origin", one.origin.name().into()),
            ]);
            if let Some(location) = one.origin.location() {
                fields.insert("location", location.to_string().into());
            }
            if let Some(replaced) = one.replaces {
                fields.insert("replaces", replaced.into());
            }
            if matches!(one.object, Object::FlowSchema(_)) && dangling.contains(name) {
                fields.insert("dangling", true.into());
            }
            if manifests {
                fields.insert("manifest", to_manifest(&one.object));
            }
            json!(fields)
        };
        let mut value = json!({
            "cluster": {"state": cluster.name()},
            "objects": objects.iter().map(object).collect::<Value>(),
        });
        if let (Some(why), Some(cluster)) = (cluster.failure(), value.get_mut("cluster")) {
            *cluster = json!({"state": "failed", "message": why});
        }
        value
    }

    fn change(
        &self,
        now: Instant,
        source: &'static str,
        change: impl FnOnce(&mut FlowcontrolSources),
    ) {
        let mut state = self.state.lock();
        let mut sources = std::mem::take(&mut state.sources);
        change(&mut sources);
        let effective = sources.merge();
        self.controller
            .configure(now, effective.iter().map(|one| &one.object));
        let changed = changed_names(&state.effective, &effective);
        self.publish(&mut state, sources, effective);
        let count = state.effective.len();
        if changed.is_empty() {
            return; // a reload reads the files again, whatever has changed
        }
        state.changes.0 += 1;
        state.changes.1 = describe_change(source, &changed);
        drop(state);
        self.changes.with_label_values(&[source]).inc();
        if let Some(suppressed) = self.log.try_log(now) {
            info!(
                source,
                objects = count,
                suppressed,
                "flow schemas and priority levels have changed"
            );
        }
    }

    fn count_by_origin(&self, effective: &[EffectiveObject]) {
        for name in Origin::NAMES {
            let count = effective.iter().filter(|one| one.origin.name() == name);
            let count = i64::try_from(count.count()).unwrap_or(i64::MAX);
            self.by_origin.with_label_values(&[name]).set(count);
        }
    }

    /// Makes the objects visible to all but the controller.
    fn publish(
        &self,
        state: &mut LiveState,
        sources: FlowcontrolSources,
        effective: Vec<EffectiveObject>,
    ) {
        self.count_by_origin(&effective);
        let dangling: BTreeSet<String> = self.controller.dangling_schemas().into_iter().collect();
        // Without the cluster, the reader of the files warns.
        if sources.has_cluster() {
            let is_new =
                |name: &&String| !state.sources_had_cluster || !state.dangling.contains(*name);
            let news = dangling.iter().filter(is_new).cloned().collect();
            log_missing_levels(&effective, &news);
        }
        *state = LiveState {
            sources_had_cluster: sources.has_cluster(),
            sources,
            effective: effective.into(),
            cluster: std::mem::take(&mut state.cluster),
            dangling,
            changes: std::mem::take(&mut state.changes),
        };
    }
}

/// The kinds and names of the objects that differ, or are from other sources. Their places in files
/// may differ.
fn changed_names(before: &[EffectiveObject], after: &[EffectiveObject]) -> Vec<String> {
    let by_key = |objects: &[EffectiveObject]| -> BTreeMap<(String, String), usize> {
        let keys = objects.iter().map(|one| {
            let (kind, name) = one.key();
            (kind.to_owned(), name.to_owned())
        });
        keys.zip(0..).collect()
    };
    let (old, new) = (by_key(before), by_key(after));
    let is_same = |key: &(String, String)| {
        let a = old.get(key).and_then(|place| before.get(*place));
        let b = new.get(key).and_then(|place| after.get(*place));
        a.zip(b).is_some_and(|(a, b)| {
            a.object.is_equivalent(&b.object)
                && a.origin.name() == b.origin.name()
                && a.replaces == b.replaces
        })
    };
    let all: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let changed = all.into_iter().filter(|key| !is_same(key));
    changed
        .map(|(kind, name)| format!("{kind} {name}"))
        .collect()
}

/// A change as a mark on a plot shows it.
fn describe_change(source: &str, changed: &[String]) -> String {
    let named = changed.iter().take(NAMED_CHANGES).map(String::as_str);
    let named = named.collect::<Vec<_>>().join(", ");
    let more = match changed.len().saturating_sub(NAMED_CHANGES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("changed by the {source}: {named}{more}")
}

/// Logs flow schemas that are left out and were not before. Those of files are warnings. A schema of
/// the cluster may arrive before its level, and the API server shows it as dangling itself.
fn log_missing_levels(effective: &[EffectiveObject], names: &BTreeSet<String>) {
    for one in effective {
        if let Object::FlowSchema(schema) = &one.object
            && names.contains(&schema.metadata.name)
        {
            let text = format!(
                "{}: FlowSchema {:?} is left out: there is no priority level {:?}",
                one.origin, schema.metadata.name, schema.spec.priority_level_configuration
            );
            match one.origin {
                Origin::File(_) => warn!("{text}"),
                Origin::BuiltIn | Origin::Cluster => debug!("{text}"),
            }
        }
    }
}

impl fmt::Debug for LiveObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveObjects")
            .field("controller", &self.controller)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_flowcontrol::bootstrap;

    #[test]
    fn objects_that_only_move_in_their_file_have_not_changed() {
        let objects = bootstrap::add_missing(Vec::new());
        let merged = |line: u32, shares: i32| {
            let located = objects.iter().cloned().map(|mut object| {
                if let Object::PriorityLevelConfiguration(level) = &mut object
                    && let Some(limited) = &mut level.spec.limited
                {
                    limited.nominal_concurrency_shares = shares;
                }
                let location = SourceLocation {
                    line,
                    ..SourceLocation::whole_file("objects.yaml")
                };
                (object, location)
            });
            FlowcontrolSources::from_files(located.collect()).merge()
        };
        assert_eq!(changed_names(&merged(1, 7), &merged(2, 7)), [""; 0]);
        let changed = changed_names(&merged(1, 7), &merged(1, 8));
        let is_level = |name: &String| name.starts_with("PriorityLevelConfiguration ");
        assert!(
            !changed.is_empty() && changed.iter().all(is_level),
            "{changed:?}"
        );
        let text = describe_change("file", &changed);
        let first = format!("changed by the file: {}, ", changed[0]);
        assert!(text.starts_with(&first), "{text}");
        assert!(
            text.ends_with(&format!(" and {} more", changed.len() - 3)),
            "{text}"
        );
        let all = merged(1, 7);
        let (kind, name) = all[0].key();
        assert_eq!(changed_names(&all, &all[1..]), [format!("{kind} {name}")]);
        let built_in = FlowcontrolSources::from_files(Vec::new()).merge();
        assert_eq!(changed_names(&all, &built_in).len(), all.len());
    }
}
