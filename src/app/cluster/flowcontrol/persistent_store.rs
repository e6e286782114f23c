//! The store of both resources: applies its changes to the live objects, reports its status, and
//! saves it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::app::cluster::flowcontrol::state_file::StateFile;
use crate::flowcontrol::sources::saved_state::ClusterIdentity;
use crate::flowcontrol::sources::{
    ClusterResource, ClusterStatus, ClusterStore, ListedObjects, LiveObjects, StoreChange,
    WatchEvent, rbac_rule,
};
use weir_base::clock::Clock;
use weir_kubernetes::api::flowcontrol::Object;

/// Changes within this time are saved once.
const SAVE_DELAY: Duration = Duration::from_secs(1);

/// How long after a failure a state is saved once more. A full disk may stay full for a while.
const SAVE_RETRY: Duration = Duration::from_secs(10);

/// What both reflectors share.
#[derive(Debug)]
pub(super) struct PersistentStore {
    live: Arc<LiveObjects>,
    /// Held for one change; nothing is awaited under it.
    state: Mutex<StoreState>,
    file: Option<StateFile>,
    /// Signals that the file is to be written.
    changed: Notify,
}

#[derive(Debug, Default)]
struct StoreState {
    store: ClusterStore,
    /// The cluster, as the file names it.
    cluster: ClusterIdentity,
    /// What keeps each resource from being watched; `None` while it is watched.
    failures: [Option<String>; 2],
    /// What the last incomplete set lacks.
    missing: Vec<String>,
    /// Whether a missing permission was logged.
    denial_is_logged: bool,
}

impl PersistentStore {
    /// Keeps the cluster's objects that are in force, and saves them. If there are none, puts those
    /// of the file in force. A damaged file, and one of another cluster, is reported and ignored.
    pub(super) fn restore(
        live: Arc<LiveObjects>,
        file: Option<StateFile>,
        cluster: ClusterIdentity,
    ) -> Self {
        let mut state = StoreState::default();
        for failure in &mut state.failures {
            *failure = Some(String::new());
        }
        let changed = Notify::new();
        let known = live.cluster_objects();
        let restored = match (&known, &file) {
            (None, Some(file)) => file.read(&cluster),
            (Some(_), _) | (None, None) => Ok(None),
        };
        state.cluster = cluster;
        match restored {
            Ok(Some(objects)) => {
                info!(
                    objects = objects.len(),
                    "the cluster's last known flow schemas and priority levels are in force"
                );
                live.set_cluster(Clock.now(), objects.clone());
                state.store.restore(objects);
            }
            Ok(None) => {}
            Err(why) => warn!("--state-dir: {why}: it is ignored"),
        }
        if let Some(objects) = known {
            state.store.restore(objects);
            changed.notify_one();
        }
        live.set_cluster_status(ClusterStatus::Pending);
        Self {
            live,
            state: Mutex::new(state),
            file,
            changed,
        }
    }

    /// The cluster has other API servers or CAs, as the next start will have them.
    pub(super) fn set_cluster(&self, cluster: ClusterIdentity) {
        let mut state = self.state.lock();
        if state.cluster != cluster {
            state.cluster = cluster;
            self.changed.notify_one();
        }
    }

    /// A list has arrived.
    pub(super) fn replace(&self, resource: ClusterResource, listed: ListedObjects) {
        for why in &listed.unreadable {
            warn!("an object of {} is left out: {why}", resource.plural());
        }
        let mut state = self.state.lock();
        let change = state.store.replace(resource, listed.objects);
        self.settle(&mut state, change == StoreChange::Changed);
    }

    /// A watch is open.
    pub(super) fn recover(&self, resource: ClusterResource) {
        let mut state = self.state.lock();
        self.set_failure(&mut state, resource, None);
    }

    /// Events of a watch have arrived, in this order. They are applied together.
    pub(super) fn apply(
        &self,
        resource: ClusterResource,
        events: impl IntoIterator<Item = WatchEvent>,
    ) {
        let mut state = self.state.lock();
        let mut is_changed = false;
        for event in events {
            is_changed |= state.store.apply(resource, event) == StoreChange::Changed;
        }
        self.settle(&mut state, is_changed);
        self.report(&state);
    }

    /// A resource cannot be read now. What is known stays in force.
    pub(super) fn fail(&self, resource: ClusterResource, why: String) {
        let mut state = self.state.lock();
        self.set_failure(&mut state, resource, Some(why));
    }

    /// weir's own credentials may not read a resource. The rule that is missing is logged once.
    pub(super) fn deny(&self, resource: ClusterResource, verb: &str) {
        let why = format!(
            "weir's own credentials may not {verb} {}",
            resource.plural()
        );
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.denial_is_logged, true) {
            let kept = match state.store.accepted() {
                Some(_) => "the last known objects of the cluster stay in force",
                None => "the built-in objects and those of --flowcontrol-config are in force",
            };
            let rule = rbac_rule();
            warn!("{why}: {kept} until a ClusterRole of weir has the rule {rule}");
        }
        self.set_failure(&mut state, resource, Some(why));
    }

    /// Puts a new complete set in force, and records what the current set lacks.
    fn settle(&self, state: &mut StoreState, is_changed: bool) {
        if is_changed {
            let objects = state.store.accepted().unwrap_or_default().to_vec();
            self.live.set_cluster(Clock.now(), objects);
            self.changed.notify_one();
        }
        if !state.store.is_listed() {
            return; // nothing is missing before the first lists
        }
        let missing = state.store.missing();
        if !missing.is_empty() && state.missing != missing {
            let missing = missing.join(", ");
            warn!(
                %missing,
                "the cluster's flow schemas and priority levels are incomplete, as those of an API server that has just started: what was in force stays"
            );
        }
        state.missing = missing;
    }

    fn set_failure(
        &self,
        state: &mut StoreState,
        resource: ClusterResource,
        failure: Option<String>,
    ) {
        let index = match resource {
            ClusterResource::FlowSchemas => 0,
            ClusterResource::PriorityLevels => 1,
        };
        if let Some(slot) = state.failures.get_mut(index) {
            *slot = failure;
        }
        self.report(state);
    }

    /// Reports the status of both resources, and logs when it begins or ends to be a failure.
    fn report(&self, state: &StoreState) {
        let failures: Vec<&String> = state.failures.iter().flatten().collect();
        let status = match (&*failures, &*state.missing) {
            ([], []) => ClusterStatus::Synced,
            ([], missing) => ClusterStatus::Failed(format!("missing: {}", missing.join(", "))),
            (failures, _) => match failures.iter().find(|why| !why.is_empty()) {
                Some(why) => ClusterStatus::Failed((*why).clone()),
                None => ClusterStatus::Pending,
            },
        };
        let before = self.live.cluster_status();
        self.live.set_cluster_status(status.clone());
        match (&before, &status) {
            (ClusterStatus::Failed(_), ClusterStatus::Failed(_)) => {}
            (_, ClusterStatus::Failed(why)) => {
                warn!(%why, "the cluster's flow schemas and priority levels are not up to date");
            }
            (before, ClusterStatus::Synced) if *before != ClusterStatus::Synced => {
                info!("the cluster's flow schemas and priority levels are watched");
            }
            _ => {}
        }
    }

    /// What the file is to contain. `None` while there is no complete set.
    fn to_save(&self) -> Option<(ClusterIdentity, Vec<Object>)> {
        let state = self.state.lock();
        let objects = state.store.accepted()?.to_vec();
        Some((state.cluster.clone(), objects))
    }

    /// Saves each change, until it is dropped. One that cannot be saved is tried again.
    ///
    /// # Cancel safety
    /// A write that has begun is completed.
    pub(super) async fn save_changes(&self) {
        let Some(file) = &self.file else {
            return std::future::pending().await;
        };
        let mut has_failed = false;
        loop {
            match has_failed {
                true => drop(tokio::time::timeout(SAVE_RETRY, self.changed.notified()).await),
                false => self.changed.notified().await,
            }
            tokio::time::sleep(SAVE_DELAY).await;
            let Some((cluster, objects)) = self.to_save() else {
                continue;
            };
            let writer = file.clone();
            let write = move || writer.write(&cluster, &objects);
            let written = tokio::task::spawn_blocking(write).await;
            let path = file.path();
            match (&written, has_failed) {
                (Ok(Err(why)), false) => {
                    warn!(path = %path.display(), %why, "--state-dir: cannot save the cluster's flow schemas and priority levels");
                }
                (Ok(Ok(())), true) => {
                    info!(path = %path.display(), "--state-dir: the cluster's flow schemas and priority levels are saved again");
                }
                (Ok(Err(_)), true) | (Ok(Ok(())), false) | (Err(_), _) => {}
            }
            has_failed = matches!(written, Ok(Err(_)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flowcontrol::controller::{ControllerConfig, Enforcement};
    use crate::flowcontrol::sources::FlowcontrolSources;
    use weir_base::metrics::Registry;
    use weir_flowcontrol::bootstrap;

    fn restore(file: &StateFile, cluster: ClusterIdentity) -> PersistentStore {
        let config = ControllerConfig {
            server_concurrency_limit: 600,
            request_timeout: Duration::from_secs(60),
            enforcement: Enforcement::Enforce,
            consistent_reads_from_cache: true,
        };
        let sources = FlowcontrolSources::default();
        let live = LiveObjects::start(config, sources, &Registry::new());
        PersistentStore::restore(live, Some(file.clone()), cluster)
    }

    fn cluster(server: &str) -> ClusterIdentity {
        ClusterIdentity {
            servers: vec![server.to_owned()],
            authorities: vec!["ca".to_owned()],
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_file_names_the_servers_of_the_configuration_in_force() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().to_owned());
        let (old, new) = (cluster("10.0.0.1:6443"), cluster("10.0.0.2:6443"));
        let objects = bootstrap::add_missing(Vec::new());
        file.write(&old, &objects).unwrap();
        let store = restore(&file, old);
        store.set_cluster(new.clone());
        let saved = async {
            while file.read(&new).is_err() {
                tokio::time::sleep(SAVE_DELAY).await;
            }
        };
        tokio::select! {
            () = store.save_changes() => {}
            () = saved => {}
        }
        assert_eq!(file.read(&new), Ok(Some(objects)));
        assert!(restore(&file, new).to_save().is_some());
        assert!(restore(&file, cluster("10.0.0.3:6443")).to_save().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_state_that_cannot_be_saved_is_tried_again_without_another_change() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("state"));
        let cluster = cluster("10.0.0.1:6443");
        file.write(&cluster, &bootstrap::add_missing(Vec::new()))
            .unwrap();
        let store = restore(&file, cluster.clone());
        // A file in the place of the folder, as no folder can be made on a full disk.
        std::fs::remove_dir_all(folder.path().join("state")).unwrap();
        std::fs::write(folder.path().join("state"), "").unwrap();
        store.changed.notify_one();
        let freed = async {
            tokio::time::sleep(SAVE_RETRY).await; // after the first try
            std::fs::remove_file(folder.path().join("state")).unwrap();
            while !file.path().exists() {
                tokio::time::sleep(SAVE_DELAY).await;
            }
        };
        tokio::select! {
            () = store.save_changes() => {}
            () = freed => {}
            () = tokio::time::sleep(SAVE_RETRY * 10) => {}
        }
        assert!(file.read(&cluster).is_ok_and(|saved| saved.is_some()));
    }
}
