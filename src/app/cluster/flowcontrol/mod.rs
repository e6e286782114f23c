//! Reads the cluster's flow schemas and priority levels: lists and watches them with weir's own
//! credentials, and keeps them over a restart. weir writes none of them.
//!
//! It uses weir's own API client and not the runtime of `kube`:
//!
//! - `kube` has a kubeconfig loader, a TLS set-up and an HTTP client of its own. There would be two
//!   of each, with different answers to the same kubeconfig, and watches outside of weir's pools,
//!   budgets and metrics. A watch needs a longer time limit than weir's other calls, and the
//!   connections that watches share.
//! - The objects are decoded as those of files are (`weir_kubernetes::api::flowcontrol`).
//!   k8s-openapi has one type for each version, and is lenient in other ways.
//! - A reflector for two small resources is a list, a watch and a pause. What it must not do wrong,
//!   to replace a good set by an incomplete one, is a pure store (`flowcontrol::sources`).
//! - After any failure the resource is listed again, and not watched from the last version: another
//!   server may answer, with other versions. A list has some twenty objects.
//! - The right to read is not reviewed first. The list says the same in one request instead of
//!   four, also where reviews are not allowed.

mod persistent_store;
mod reflector;
mod state_file;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::app::cluster::flowcontrol::persistent_store::PersistentStore;
use crate::app::cluster::flowcontrol::reflector::Reflector;
use crate::app::cluster::flowcontrol::state_file::StateFile;
use crate::config::ClusterSourceConfig;
use crate::flowcontrol::sources::saved_state::ClusterIdentity;
use crate::flowcontrol::sources::{ClusterResource, LiveObjects};
use crate::upstream::UpstreamConfig;
use crate::upstream::forward::api_server_client::ApiServerClient;

/// Watches both resources.
#[derive(Debug)]
pub(crate) struct ClusterFlowcontrol {
    store: Arc<PersistentStore>,
    retry_after_denial: Duration,
}

impl ClusterFlowcontrol {
    /// Keeps the cluster's objects that are in force. If there are none, puts those of the state
    /// folder in force, if it is of the cluster of `upstream`.
    pub(crate) fn restore(
        live: Arc<LiveObjects>,
        config: ClusterSourceConfig,
        upstream: &UpstreamConfig,
    ) -> Self {
        let ClusterSourceConfig {
            state_dir,
            retry_after_denial,
        } = config;
        let file = state_dir.map(StateFile::new);
        let store = PersistentStore::restore(live, file, identity_of(upstream));
        Self {
            store: Arc::new(store),
            retry_after_denial,
        }
    }

    /// The configuration of the cluster's API servers has changed.
    pub(crate) fn set_upstream(&self, upstream: &UpstreamConfig) {
        self.store.set_cluster(identity_of(upstream));
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(self: Arc<Self>, calls: ApiServerClient) {
        let [levels, schemas] = ClusterResource::ALL.map(|resource| Reflector {
            calls: calls.clone(),
            resource,
            store: Arc::clone(&self.store),
            retry_after_denial: self.retry_after_denial,
        });
        tokio::join!(levels.run(), schemas.run(), self.store.save_changes());
    }
}

/// What the cluster of `upstream` is recognized by.
fn identity_of(upstream: &UpstreamConfig) -> ClusterIdentity {
    let servers = upstream.servers.iter();
    let roots = upstream.roots.iter();
    ClusterIdentity {
        servers: servers.map(|server| server.authority.to_string()).collect(),
        authorities: roots
            .map(|root| BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(root.public_key_info())))
            .collect(),
    }
}
