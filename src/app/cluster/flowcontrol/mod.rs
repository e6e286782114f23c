//! Reads the cluster's flow schemas and priority levels: lists and watches them with weir's own
//! credentials, and keeps them over a restart. weir writes none of them.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `backoff` `state_file` |
//! | 1 | `persistent_store` |
//! | 2 | `reflector` |

mod backoff;
mod persistent_store;
mod reflector;
mod state_file;

use std::sync::Arc;
use std::time::Duration;

use crate::app::cluster::flowcontrol::persistent_store::PersistentStore;
use crate::app::cluster::flowcontrol::reflector::Reflector;
use crate::app::cluster::flowcontrol::state_file::StateFile;
use crate::config::ClusterSourceConfig;
use crate::flowcontrol::sources::ClusterResource;
use crate::flowcontrol::sources::LiveObjects;
use crate::upstream::forward::api_server_client::ApiServerClient;

/// Watches both resources.
#[derive(Debug)]
pub(in crate::app) struct ClusterFlowcontrol {
    store: Arc<PersistentStore>,
    retry_after_denial: Duration,
}

impl ClusterFlowcontrol {
    /// Puts the objects of the state folder in force, if there are any.
    pub(in crate::app) fn restore(live: Arc<LiveObjects>, config: ClusterSourceConfig) -> Self {
        let ClusterSourceConfig {
            state_dir,
            retry_after_denial,
        } = config;
        let store = PersistentStore::restore(live, state_dir.map(StateFile::new));
        Self {
            store: Arc::new(store),
            retry_after_denial,
        }
    }

    /// Runs until it is dropped.
    pub(in crate::app) async fn run(self: Arc<Self>, calls: ApiServerClient) {
        let [levels, schemas] = ClusterResource::ALL.map(|resource| Reflector {
            calls: calls.clone(),
            resource,
            store: Arc::clone(&self.store),
            retry_after_denial: self.retry_after_denial,
        });
        tokio::join!(levels.run(), schemas.run(), self.store.save_changes());
    }
}
