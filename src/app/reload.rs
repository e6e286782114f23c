//! Replaces the configuration of a running proxy.
//!
//! Everything that can fail is done first. Then each part is replaced in place, or a new one is
//! built that takes over what the old one has counted. Last, each worker gets a new pipeline.
//! Requests under way keep the pipeline that they started with.
//!
//! A request loads the pipeline once and keeps it to its end, so it never sees two configurations.
//! Two parts are kept rather than replaced: both limiters (`limits::limiters`), and an `Upstream`
//! whose way of asserting users has changed, for the requests that have it
//! (`Upstream::with_other_assertion`). So each decision about an identity, from authentication to
//! the connection, is of one generation.
//!
//! A new process for each change would lose queues and buckets.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;

use crate::app::admin_listeners::ShownConfig;
use crate::app::api_server_tasks::{OwnCallSettings, OwnCalls};
use crate::app::authentication::{AuthDependencies, PreparedAuth};
use crate::app::info_metrics;
use crate::app::lifecycle::shutdown::ShutdownTimes;
use crate::app::observers::{Observers, PreparedObservers};
use crate::app::shared_components::{
    ConfiguredWorker, SharedComponents, apply_limits, listener_settings,
};
use crate::app::start_error::StartError;
use crate::config::{ClusterSourceConfig, Config, ShutdownConfig};
use crate::flowcontrol::sources::ClusterStatus;
use crate::identity::request_header::IdentityHeaders;
use crate::observe::readiness::config_status::ConfigStatus;
use crate::pipeline::Pipeline;
use crate::replicas::coordinator::{PreparedPeerTls, Replicas};
use crate::server::settings::ListenerSettings;
use crate::upstream;
use crate::upstream::UpstreamConfig;
use crate::upstream::credentials::{CredentialSource, PreparedCredentials};
use crate::x509::CertificatePool;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;

/// The configuration in force, as far as a new one is compared with it.
#[derive(Debug)]
pub(super) struct InForce {
    /// The CAs of clients and of front proxies.
    client_ca: Option<CertificatePool>,
    own_credentials: CredentialSource,
    shutdown: ShutdownConfig,
    request_timeout: Duration,
    assert_by_impersonation: bool,
    identity_headers: IdentityHeaders,
    /// The reading of the cluster's flow schemas and priority levels.
    cluster: Option<ClusterSourceConfig>,
}

impl InForce {
    pub(super) fn from_config(config: &Config) -> Self {
        Self {
            client_ca: config.serving.tls.client_ca.clone(),
            own_credentials: config.own_credentials.clone(),
            shutdown: config.shutdown,
            request_timeout: config.request_timeout,
            assert_by_impersonation: config.assert_by_impersonation,
            identity_headers: config.identity.headers.clone(),
            cluster: config.admission.cluster().cloned(),
        }
    }

    pub(super) const fn shutdown_times(&self) -> ShutdownTimes {
        ShutdownTimes {
            config: self.shutdown,
            request_timeout: self.request_timeout,
        }
    }

    /// Whether users are asserted in the same way, by headers of the same names.
    fn has_same_assertion(&self, other: &Self) -> bool {
        (self.assert_by_impersonation, &self.identity_headers)
            == (other.assert_by_impersonation, &other.identity_headers)
    }

    /// Whether the sessions of clients may be resumed: a session contains a client certificate.
    fn has_same_client_ca(&self, other: &Self) -> bool {
        self.client_ca == other.client_ca
    }
}

/// Replaces the configuration of a running proxy.
pub(crate) struct Reloader {
    pub(super) in_force: InForce,
    pub(super) shared: SharedComponents,
    pub(super) workers: Vec<ConfiguredWorker>,
    pub(super) settings: Arc<ArcSwap<ListenerSettings>>,
    pub(super) shown: ShownConfig,
    pub(super) own_calls: Arc<OwnCalls>,
    pub(super) own_call_settings: OwnCallSettings,
    pub(super) replicas: Option<Replicas>,
    pub(super) registry: Registry,
    pub(super) provider: Arc<CryptoProvider>,
    pub(super) observers: Arc<ArcSwap<Observers>>,
    pub(super) shutdown: Arc<ArcSwap<ShutdownTimes>>,
}

/// The parts of a new configuration that can fail.
struct PreparedConfiguration {
    settings: ListenerSettings,
    auth: PreparedAuth,
    observers: PreparedObservers,
    /// `None` if the certificates of the peer connections stay.
    peer_tls: Option<PreparedPeerTls>,
    /// `None` if weir's own credentials stay.
    credentials: Option<PreparedCredentials>,
}

/// Why a configuration is not in force.
#[derive(Debug)]
pub(crate) struct ReloadError {
    /// What is wrong.
    pub message: String,
    /// Whether a key belongs to another certificate: one of the two files may be new already, and
    /// the other not yet.
    pub(crate) is_key_mismatch: bool,
}

impl From<StartError> for ReloadError {
    fn from(error: StartError) -> Self {
        Self {
            message: error.to_string(),
            is_key_mismatch: false,
        }
    }
}

impl Reloader {
    /// Where attempts are recorded.
    #[must_use]
    pub(crate) fn status(&self) -> &Arc<ConfigStatus> {
        &self.shared.config_status
    }

    /// Opens the file of the audit log again, which another program may have moved.
    pub(crate) fn reopen_logs(&self) {
        self.shared.observers.reopen_logs();
    }

    /// Puts `config` in force, except for the addresses and the number of workers.
    ///
    /// # Errors
    /// What is wrong. Nothing has changed.
    pub(crate) async fn apply(&mut self, mut config: Config) -> Result<(), ReloadError> {
        // Requests list the same id before and after.
        config.upstream.instance_id = self.shared.upstream.instance_id.clone();
        self.check_server(&config.upstream)?;
        let headers = &mut config.identity.headers;
        headers.succeed(&self.in_force.identity_headers);
        let in_force = InForce::from_config(&config);
        let own_call_settings = OwnCallSettings::from_config(&config);
        let prepared = self.prepare(&mut config, &in_force, &own_call_settings);
        let prepared = prepared.await?;
        let observers = &self.shared.observers;
        self.shared.observers = observers.replaced_by(prepared.observers, &self.registry)?;
        if let (Some(replicas), Some(peer_tls)) = (&self.replicas, prepared.peer_tls) {
            replicas.reload(peer_tls);
        }
        self.replace_auth(prepared.auth);
        if let Some(credentials) = prepared.credentials {
            self.own_calls.credentials.replace_source(credentials);
        }
        self.replace_upstream(&config, &in_force);
        let is_restarted = self.replace_limits(&config, in_force.cluster.as_ref());
        self.shared.request_timeout = config.request_timeout;
        self.publish(prepared.settings, &config);
        self.restart_own_calls(own_call_settings, &config.upstream, is_restarted);
        self.shared.upstream = config.upstream;
        self.in_force = in_force;
        self.shutdown
            .store(Arc::new(self.in_force.shutdown_times()));
        Ok(())
    }

    /// Rejects API servers of which none stays, since they may be of another cluster: what was learned of one cluster (verified tokens, keys, decisions
    /// about impersonation, flow schemas) is not true of another, and requests that wait would be
    /// sent there with credentials for the old one.
    fn check_server(&self, config: &UpstreamConfig) -> Result<(), ReloadError> {
        let old = &self.shared.upstream;
        if config.has_server_in_common(old) {
            return Ok(());
        }
        let (old, new) = (old.authorities(), config.authorities());
        Err(ReloadError {
            message: format!(
                "other API servers need a restart, unless one of them stays: {old} is in use, {new} \
                 is configured"
            ),
            is_key_mismatch: false,
        })
    }

    async fn prepare(
        &self,
        config: &mut Config,
        in_force: &InForce,
        own_call_settings: &OwnCallSettings,
    ) -> Result<PreparedConfiguration, ReloadError> {
        let credentials = self.load_credentials(&config.own_credentials).await?;
        let current = self.settings.load();
        let resumable = self.in_force.has_same_client_ca(in_force);
        let resumable = resumable.then_some(&**current);
        let dependencies = AuthDependencies::new(
            self.own_calls.api_server(own_call_settings),
            &self.shared.upstream_metrics,
            &self.registry,
            &self.provider,
        );
        let identity = config.identity.clone();
        let auth = &self.shared.auth;
        let replicas = self.replicas.as_ref();
        let peer_tls = replicas.map(|one| one.prepare_reload(config.replicas.as_ref()));
        let peer_tls = peer_tls.transpose();
        let peer_tls =
            peer_tls.map_err(|why| StartError::new("connections to the other replicas", why))?;
        Ok(PreparedConfiguration {
            settings: listener_settings(&config.serving, &self.provider, resumable)?,
            auth: auth.prepare(identity, config.assert_by_impersonation, &dependencies)?,
            observers: PreparedObservers::open(std::mem::take(&mut config.reporting))?,
            peer_tls: peer_tls.flatten(),
            credentials,
        })
    }

    /// The credentials of another source, or those that files have now. The credentials of a plugin
    /// stay until they are due.
    async fn load_credentials(
        &self,
        source: &CredentialSource,
    ) -> Result<Option<PreparedCredentials>, ReloadError> {
        if *source == self.in_force.own_credentials && !source.is_in_files() {
            return Ok(None);
        }
        let loaded = PreparedCredentials::load(source.clone(), Clock).await;
        loaded.map(Some).map_err(|why| ReloadError {
            message: format!("weir's own credentials: {why}"),
            is_key_mismatch: why.is_key_mismatch(),
        })
    }

    fn replace_auth(&mut self, prepared: PreparedAuth) {
        let (auth, authorizer) = self.shared.auth.replaced_by(prepared);
        if let Some(authorizer) = authorizer {
            tokio::spawn(authorizer.run());
        }
        self.shared.auth = auth;
    }

    fn replace_upstream(&mut self, config: &Config, in_force: &InForce) {
        let own = &self.own_calls.credentials;
        self.shared.impersonator = config.assert_by_impersonation.then(|| Arc::clone(own));
        if !self.in_force.has_same_assertion(in_force) {
            // Before the certificate is replaced: requests that wait assert their users as before.
            let (budget, own) = (
                &self.shared.budgets.connection_budget,
                &self.shared.impersonator,
            );
            for worker in &mut self.workers {
                let other =
                    worker
                        .upstream
                        .with_other_assertion(&config.upstream, budget, own.as_ref());
                worker.upstream = Arc::new(other);
            }
        }
        let (new, earlier) = (&config.upstream, &self.shared.upstream);
        if !new.has_same_servers(earlier) || !new.has_same_front_proxy(earlier) {
            upstream::reconfigure(&self.shared.servers, new);
        }
        for worker in &self.workers {
            worker.upstream.set_pool_limits(new);
        }
    }

    /// Returns whether the tasks that feed the limiter have to be restarted: the limiter is
    /// another one, or the cluster's objects are read in another way.
    fn replace_limits(&mut self, config: &Config, cluster: Option<&ClusterSourceConfig>) -> bool {
        let limiter = apply_limits(&self.shared.limiters, &config.admission);
        if let Some(controller) = &limiter.started {
            let controller = Arc::clone(controller);
            tokio::spawn(async move { controller.run().await });
        }
        let earlier = self.shared.flowcontrol.take();
        let is_other_mode = earlier.is_some() != limiter.flowcontrol.is_some();
        let is_restarted = is_other_mode || cluster != self.in_force.cluster.as_ref();
        if is_restarted {
            let calls = &self.own_calls;
            calls.set_limiter(&limiter);
            calls.set_cluster(
                limiter.flowcontrol.as_ref(),
                cluster.cloned(),
                &config.upstream,
            );
            if let (None, Some(live)) = (cluster, earlier) {
                live.set_cluster_status(ClusterStatus::NotRead);
            }
        }
        let talkers = &self.shared.talkers;
        talkers.set_seats_without_decision(limiter.admission.seats_without_decision());
        self.shared.admission = limiter.admission;
        let recorder = &self.shared.observers.recorder;
        recorder.set_objects(limiter.flowcontrol.clone());
        self.shared.flowcontrol = limiter.flowcontrol;
        self.replace_rates(config);
        is_restarted
    }

    fn replace_rates(&mut self, config: &Config) {
        let registry = &self.registry;
        self.shared.rates = Arc::new(self.shared.rates.replaced_by(&config.rates, registry));
        let delay = &self.shared.rejection_delay;
        delay.set_max_hold(config.rejection_hold);
        delay.set_max_millicores(config.max_rejection_millicores);
        let budgets = &mut self.shared.budgets;
        let upgrades = config.transfers.upgrades_per_second;
        budgets.upgrade_rate = budgets.upgrade_rate.replaced_by(upgrades, registry);
        budgets.memory_limit.set_limit(config.memory_limit);
        budgets.transfers = config.transfers;
        for worker in &self.workers {
            let deadlines = &worker.context.worker.deadlines;
            deadlines.set_rate(config.transfers.minimum_rate);
        }
    }

    /// Gives new requests and connections the new settings, and operators the new values.
    fn publish(&self, settings: ListenerSettings, config: &Config) {
        let pipelines: Vec<Pipeline> = self
            .workers
            .iter()
            .map(|worker| self.shared.pipeline(worker))
            .collect();
        let max_connections = settings.max_connections;
        self.settings.store(Arc::new(settings));
        for (worker, pipeline) in self.workers.iter().zip(pipelines) {
            worker.context.pipeline.store(Arc::new(pipeline));
            worker.context.metrics.set_max_connections(max_connections);
        }
        self.shared.auth.authenticator.announce_trust();
        let (sources, effective) = &self.shown;
        let health_metrics = config.admin.health_metrics;
        let shared = &self.shared;
        let mut configured = shared.configured_sources(max_connections, health_metrics);
        configured.upstream_address = config.upstream.authorities();
        sources.store(Arc::new(configured));
        effective.store(Arc::new(config.admin.effective.clone()));
        self.observers
            .store(Arc::new(self.shared.observers.clone()));
        let certificate = &config.serving.tls.certificate;
        info_metrics::register_dry_run(&config.admission, &self.registry);
        info_metrics::register(
            (certificate, config.upstream.front_proxy.as_ref()),
            &self.own_calls.credentials,
            &self.own_calls.readiness,
            &self.registry,
        );
    }

    /// Restarts the tasks of weir's own calls whose settings have changed.
    fn restart_own_calls(
        &mut self,
        settings: OwnCallSettings,
        upstream: &UpstreamConfig,
        is_restarted: bool,
    ) {
        let earlier = std::mem::replace(&mut self.own_call_settings, settings);
        let (calls, settings) = (&self.own_calls, &self.own_call_settings);
        let same_servers = upstream.has_same_servers(&self.shared.upstream);
        calls.set_poll_period(settings);
        calls.set_upstream(upstream);
        if upstream.endpoint_slices != self.shared.upstream.endpoint_slices {
            calls.start_slices(upstream);
        }
        if is_restarted || settings.is_anonymous() != earlier.is_anonymous() {
            calls.start_polls(settings);
            calls.start_cluster(settings);
        }
        let same_certificate = upstream.has_same_front_proxy(&self.shared.upstream);
        if !same_servers || !same_certificate || !settings.has_same_probe(&earlier) {
            calls.start_probe(settings, upstream);
        }
        if !same_servers || !settings.has_same_access(&earlier) {
            calls.start_access_check(settings);
        }
    }
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader")
            .field("in_force", &self.in_force)
            .finish_non_exhaustive()
    }
}
