//! Replaces the configuration of a running proxy.
//!
//! The [components](crate::app::components) are built as at the start. Last, each worker gets a new
//! pipeline. Requests under way keep the pipeline that they started with.
//!
//! A request loads the pipeline once and keeps it to its end, so it never sees two configurations.
//! Two parts are kept rather than replaced: both limiters (`limits::limiters`), and an `Upstream`
//! whose way of asserting users has changed, for the requests that have it
//! (`Upstream::build`). So each decision about an identity, from authentication to
//! the connection, is of one generation.
//!
//! A new process for each change would lose queues and buckets.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::app::admin_access::check_exposure;
use crate::app::admin_listeners::ShownConfig;
use crate::app::components::{Components, Prepared, replace_servers};
use crate::app::listener::ConfiguredWorker;
use crate::app::permanent::Permanent;
use crate::app::start_error::StartError;
use crate::app::tasks::Tasks;
use crate::config::Config;
use crate::observe::readiness::config_status::ConfigStatus;
use crate::server::settings::ListenerSettings;
use crate::upstream::UpstreamConfig;

/// Replaces the configuration of a running proxy.
pub(crate) struct Reloader {
    pub(super) permanent: Arc<Permanent>,
    /// Those in force.
    pub(super) components: Arc<ArcSwap<Components>>,
    pub(super) workers: Vec<ConfiguredWorker>,
    pub(super) settings: Arc<ArcSwap<ListenerSettings>>,
    pub(super) shown: ShownConfig,
    /// Where the admin listener is, and stays.
    pub(super) admin_address: SocketAddr,
}

impl Reloader {
    /// Where attempts are recorded.
    #[must_use]
    pub(crate) fn status(&self) -> &Arc<ConfigStatus> {
        &self.permanent.config_status
    }

    /// Opens the file of the audit log again, which another program may have moved.
    pub(crate) fn reopen_logs(&self) {
        self.components.load().observers.reopen_logs();
    }

    /// Puts `config` in force, except for the addresses and the number of workers.
    ///
    /// # Errors
    /// What is wrong. Nothing has changed.
    pub(crate) async fn apply(&mut self, mut config: Config) -> Result<(), StartError> {
        let (permanent, earlier) = (&*self.permanent, self.components.load_full());
        let upstream = &earlier.config.upstream;
        // Requests list the same id before and after.
        config.upstream.instance_id = upstream.instance_id.clone();
        check_server(&config.upstream, upstream)?;
        check_exposure(self.admin_address, &config.admin.access)?;
        let listener = self.settings.load_full();
        let prepared = Prepared::new(config, permanent, Some(&earlier), Some(&listener)).await?;
        let mut tasks = Tasks::default();
        let (components, listener) =
            Components::build(prepared, permanent, Some(&earlier), &mut tasks)?;
        tasks.start();
        let components = Arc::new(components);
        for worker in &mut self.workers {
            worker.replace_upstream(permanent, &components, &earlier.config);
        }
        replace_servers(permanent, &components.config, &earlier.config);
        self.settings.store(Arc::new(listener));
        for worker in &mut self.workers {
            worker.replace_pipeline(permanent, &components);
        }
        components.auth.authenticator.announce_trust();
        self.shown.replace(&components);
        permanent.delegated_auth.end_backoff();
        components.register_info_metrics(permanent);
        permanent
            .own_calls
            .restart(&components.config, Some(&earlier.config));
        self.components.store(components);
        Ok(())
    }
}

/// Rejects API servers of which none stays, since they may be of another cluster: what was learned
/// of one cluster (verified tokens, keys, decisions about impersonation, flow schemas) is not true of
/// another, and requests that wait would be sent there with credentials for the old one.
fn check_server(new: &UpstreamConfig, earlier: &UpstreamConfig) -> Result<(), StartError> {
    if new.has_server_in_common(earlier) {
        return Ok(());
    }
    let (earlier, new) = (earlier.authorities(), new.authorities());
    Err(StartError::new(
        "other API servers need a restart, unless one of them stays",
        format!("{earlier} is in use, {new} is configured"),
    ))
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").finish_non_exhaustive()
    }
}
