//! What all connections and answers share.

use crate::playground::authentication::Authenticator;
use crate::playground::authentication::User;
use crate::playground::authorization;
use crate::playground::authorization::Attributes;
use crate::playground::authorization::Changes;
use crate::playground::capacity::Capacity;
use crate::playground::fairness::Fairness;
use crate::playground::journal::Journal;
use crate::playground::settings::Settings;
use crate::playground::storage::Storage;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::RwLock;
use tokio::sync::watch;

/// The server's inside.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) storage: Storage,
    pub(crate) journal: Arc<Journal>,
    pub(crate) authenticator: Authenticator,
    /// What was granted and denied since the start; read for a look.
    pub(crate) rights: RwLock<Changes>,
    /// `None`: no priority and fairness.
    pub(crate) fairness: Option<Arc<dyn Fairness>>,
    /// `None`: a service time of zero.
    pub(crate) capacity: Option<Arc<Capacity>>,
    /// Turns true when the server stops.
    pub(crate) stopping: watch::Sender<bool>,
}

impl State {
    /// Whether a user may do something.
    pub(crate) fn allows(&self, user: &User, attributes: &Attributes) -> bool {
        let rights = self.rights.read().unwrap_or_else(PoisonError::into_inner);
        authorization::allowed(user, attributes, &rights)
    }
}
