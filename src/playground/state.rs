//! What all connections and answers share.

use crate::playground::authentication::Authenticator;
use crate::playground::capacity::Capacity;
use crate::playground::journal::Journal;
use crate::playground::settings::Settings;
use crate::playground::storage::Storage;
use std::sync::Arc;
use tokio::sync::watch;

/// The server's inside.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) storage: Storage,
    pub(crate) journal: Arc<Journal>,
    pub(crate) authenticator: Authenticator,
    /// `None`: a service time of zero.
    pub(crate) capacity: Option<Arc<Capacity>>,
    /// Turns true when the server stops.
    pub(crate) stopping: watch::Sender<bool>,
}
