//! The state that all connections and requests share.

use crate::playground::auth::authentication::PlaygroundAuthenticator;
use crate::playground::auth::authorization;
use crate::playground::auth::authorization::AccessAttributes;
use crate::playground::auth::authorization::PolicyChanges;
use crate::playground::auth::user::ApiUser;
use crate::playground::objects::storage::shared_store::SharedStore;
use crate::playground::serving::capacity::Capacity;
use crate::playground::serving::fairness::Fairness;
use crate::playground::serving::request_log::RequestLog;
use crate::playground::settings::PlaygroundSettings;
use parking_lot::RwLock;
use std::sync::Arc;
use tokio::sync::watch;

/// The shared state of a server.
#[derive(Debug)]
pub(crate) struct ServerState {
    pub(crate) settings: PlaygroundSettings,
    pub(crate) storage: SharedStore,
    pub(crate) request_log: Arc<RequestLog>,
    pub(crate) authenticator: PlaygroundAuthenticator,
    /// The grants and denials since the start.
    pub(crate) policy: RwLock<PolicyChanges>,
    /// `None`: no priority and fairness.
    pub(crate) fairness: Option<Arc<dyn Fairness>>,
    /// `None`: a service time of zero.
    pub(crate) capacity: Option<Arc<Capacity>>,
    /// Becomes true when the server stops.
    pub(crate) stopping: watch::Sender<bool>,
}

impl ServerState {
    /// Whether `user` is allowed this access.
    pub(crate) fn allows(&self, user: &ApiUser, attributes: &AccessAttributes) -> bool {
        let policy = self.policy.read();
        authorization::is_allowed(user, attributes, &policy)
    }
}
