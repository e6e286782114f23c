//! The components that a configuration decides.
//!
//! They are built from the configuration and, in a reload, from those before them, whose counts,
//! caches and queues they take over. [`Prepared::new`] reads and opens what the configuration names,
//! and changes nothing; [`Components::build`] puts it in force. The start and a reload use the same
//! two functions.

use std::sync::Arc;

use crate::app::admin_access::admin_access;
use crate::app::api_server_tasks::feeds_other_limiter;
use crate::app::authentication::{AuthComponents, PreparedAuth};
use crate::app::info_metrics;
use crate::app::limits::apply_limits;
use crate::app::observers::{Observers, PreparedObservers};
use crate::app::permanent::Permanent;
use crate::app::start_error::StartError;
use crate::app::tasks::Tasks;
use crate::config::Config;
use crate::flowcontrol::sources::{ClusterStatus, LiveObjects};
use crate::limits::limiters::LimiterInForce;
use crate::limits::upgrade_rate::UpgradeRateLimit;
use crate::observe::admin::access::AdminAccess;
use crate::observe::dry_run::DryRunCounts;
use crate::observe::status::outcome_counts::OutcomeCounts;
use crate::observe::status::sources::ConfiguredSources;
use crate::pipeline::dependencies::{PipelineSettings, SharedDependencies};
use crate::pipeline::trace::record::{RequestObserver, RequestObservers};
use crate::replicas::coordinator::PreparedPeerTls;
use crate::server::settings::ListenerSettings;
use crate::server::tls;
use crate::upstream;
use crate::upstream::credentials::{CredentialSource, OwnCredentials, PreparedCredentials};
use weir_base::clock::Clock;

/// A configuration and what could fail in it, not in force yet.
pub(super) struct Prepared {
    config: Config,
    pub(super) listener: ListenerSettings,
    auth: PreparedAuth,
    observers: PreparedObservers,
    /// `None` if the certificates of the peer connections stay.
    peer_tls: Option<PreparedPeerTls>,
    /// `None` if weir's own credentials stay.
    credentials: Option<PreparedCredentials>,
    admin_access: AdminAccess,
}

impl Prepared {
    /// Reads and opens what `config` names, if it takes the place of `earlier`. Changes nothing.
    ///
    /// # Errors
    /// What is wrong: a file, a certificate, a credential.
    pub(super) async fn new(
        mut config: Config,
        permanent: &Permanent,
        earlier: Option<&Components>,
        listener: Option<&ListenerSettings>,
    ) -> Result<Self, StartError> {
        if let Some(earlier) = earlier {
            let headers = &mut config.identity.headers;
            headers.succeed(&earlier.config.identity.headers);
        }
        let credentials = match earlier {
            Some(earlier) => load_credentials(&config, &earlier.config).await?,
            None => None, // just loaded
        };
        // A session contains a client certificate.
        let has_same_client_ca = earlier.is_some_and(|earlier| {
            earlier.config.serving.tls.client_ca == config.serving.tls.client_ca
        });
        let resumable = listener.filter(|_| has_same_client_ca);
        let replicas = permanent.replicas.as_ref();
        let peer_tls = replicas.map(|one| one.prepare_reload(config.replicas.as_ref()));
        let peer_tls = peer_tls
            .transpose()
            .map_err(|why| StartError::new("connections to the other replicas", why))?;
        let earlier = earlier.map(|earlier| &earlier.auth);
        Ok(Self {
            listener: listener_settings(&config, resumable)?,
            auth: PreparedAuth::new(&config, earlier, permanent)?,
            observers: PreparedObservers::open(config.reporting.clone())?,
            peer_tls: peer_tls.flatten(),
            credentials,
            admin_access: admin_access(&config, permanent)?,
            config,
        })
    }
}

/// The credentials of another source, or those that files have now. The credentials of a plugin stay
/// until they are due.
async fn load_credentials(
    config: &Config,
    earlier: &Config,
) -> Result<Option<PreparedCredentials>, StartError> {
    let source: &CredentialSource = &config.own_credentials;
    if *source == earlier.own_credentials && !source.is_in_files() {
        return Ok(None);
    }
    let loaded = PreparedCredentials::load(source.clone(), Clock).await;
    loaded.map(Some).map_err(|why| {
        let is_key_mismatch = why.is_key_mismatch();
        let mut error = StartError::new("weir's own credentials", why);
        error.is_key_mismatch = is_key_mismatch;
        error
    })
}

/// What a configuration decides.
pub(super) struct Components {
    /// The configuration.
    pub(super) config: Config,
    /// What requests use.
    pub(super) pipeline: Arc<SharedDependencies>,
    pub(super) auth: AuthComponents,
    pub(super) observers: Observers,
    /// The flow schemas and priority levels. `None` without priority and fairness.
    pub(super) flowcontrol: Option<Arc<LiveObjects>>,
    /// Which requests the admin listener answers.
    pub(super) admin_access: Arc<AdminAccess>,
}

impl Components {
    /// Puts a configuration in force that takes the place of `earlier`.
    ///
    /// # Errors
    /// The thread of an audit log that is switched on cannot be started. Nothing has changed.
    pub(super) fn build(
        prepared: Prepared,
        permanent: &Permanent,
        earlier: Option<&Self>,
        tasks: &mut Tasks,
    ) -> Result<(Self, ListenerSettings), StartError> {
        let Prepared {
            config,
            listener,
            auth,
            observers,
            peer_tls,
            credentials,
            admin_access,
        } = prepared;
        let registry = &permanent.registry;
        let before = earlier.map(|earlier| &earlier.observers);
        let observers = Observers::build(observers, before, registry)?;
        if earlier.is_none() {
            tasks.push(Arc::clone(observers.rejections()).run());
        }
        if let (Some(replicas), Some(peer_tls)) = (&permanent.replicas, peer_tls) {
            replicas.reload(peer_tls);
        }
        let auth = AuthComponents::build(auth, earlier.map(|earlier| &earlier.auth), tasks);
        if let Some(credentials) = credentials {
            permanent.own_calls.credentials.replace_source(credentials);
        }
        let finder = &permanent.own_calls.finder;
        let (now, is_auto) = (Clock.now(), config.is_auto_total);
        let limiter = finder.configure(now, config.total_finder, is_auto, |total| {
            apply_limits(&permanent.limiters, &config.admission, total)
        });
        finder.log_warning();
        if let Some(controller) = &limiter.started {
            let controller = Arc::clone(controller);
            tasks.push(async move { controller.run().await });
        }
        follow_cluster(permanent, &config, &limiter, earlier);
        let seats = limiter.admission.seats_without_decision();
        permanent.talkers.set_seats_without_decision(seats);
        observers.recorder.set_objects(limiter.flowcontrol.clone());
        permanent.rejection_delay.set_config(config.rejections);
        permanent.memory_limit.set_limit(config.memory_limit);
        permanent.list_bytes.set_budget(config.list_bytes.budget());
        let rates = earlier.map(|earlier| &*earlier.pipeline.rates);
        let upgrades = config.transfers.unproven_upgrades_per_second;
        let pipeline = SharedDependencies {
            authenticator: Arc::clone(&auth.authenticator),
            impersonation_authorizer: auth.impersonation_authorizer.clone(),
            identity_headers: Arc::clone(&auth.identity_headers),
            rates: permanent.build_rates(&config, rates),
            admission: limiter.admission,
            upgrade_rate: match earlier {
                Some(earlier) => earlier
                    .pipeline
                    .upgrade_rate
                    .replaced_by(upgrades, registry),
                None => UpgradeRateLimit::new(upgrades, registry),
            },
            memory_limit: Arc::clone(&permanent.memory_limit),
            abandoned_backlog: Arc::clone(&permanent.abandoned_backlog),
            levers: Arc::clone(&permanent.levers),
            list_bytes: Arc::clone(&permanent.list_bytes),
            watch_starts: Arc::clone(&permanent.watch_starts),
            head_budget: Arc::clone(&permanent.head_budget),
            request_body_budget: Arc::clone(&permanent.request_body_budget),
            body_drain_budget: Arc::clone(&permanent.body_drain_budget),
            loop_detector: Arc::clone(&permanent.own_calls.loop_detector),
            rejection_responses: Arc::clone(&permanent.rejection_responses),
            rejection_delay: Arc::clone(&permanent.rejection_delay),
            drain: Arc::clone(&permanent.drain),
            metrics: Arc::clone(&permanent.metrics),
            upstream_log_limiter: Arc::clone(&permanent.upstream_log_limiter),
            settings: PipelineSettings {
                request_timeout: config.request_timeout,
                transfers: config.transfers,
                classify_impersonated: config.identity.impersonation.classify,
                sampler: observers.sampler,
                has_audit_log: observers.has_audit_log(),
                explain_responses: config.reporting.explain,
            },
        };
        let components = Self {
            pipeline: Arc::new(pipeline),
            flowcontrol: limiter.flowcontrol,
            admin_access: Arc::new(admin_access),
            auth,
            observers,
            config,
        };
        Ok((components, listener))
    }

    /// The credentials that assert a certificate's user, if no front-proxy certificate does.
    pub(super) fn impersonator<'p>(
        &self,
        permanent: &'p Permanent,
    ) -> Option<&'p Arc<OwnCredentials>> {
        let own = &permanent.own_calls.credentials;
        self.config.assert_by_impersonation.then_some(own)
    }

    /// The observers of a worker with this shard of the top talkers.
    pub(super) fn request_observers(
        &self,
        permanent: &Permanent,
        talkers_shard: &Arc<dyn RequestObserver>,
    ) -> RequestObservers {
        let counts: Arc<dyn RequestObserver> =
            Arc::<OutcomeCounts>::clone(&permanent.outcome_counts);
        let dry_run: Arc<dyn RequestObserver> =
            Arc::<DryRunCounts>::clone(&permanent.dry_run_counts);
        self.observers
            .request_observers([Arc::clone(talkers_shard), counts, dry_run])
    }

    /// What the status page shows of the configuration.
    pub(super) fn configured_sources(&self) -> ConfiguredSources {
        ConfiguredSources {
            upstream_address: self.config.upstream.authorities(),
            rate_limits: Arc::clone(&self.pipeline.rates),
            rejection_delay: Arc::clone(&self.pipeline.rejection_delay),
            max_connections: self.config.serving.max_connections,
            health_metrics: self.config.admin.health_metrics,
            admission: self.pipeline.admission.clone(),
            flowcontrol: self.flowcontrol.clone(),
        }
    }

    /// Registers the metrics of the process, of readiness, and of the certificates that weir
    /// presents.
    pub(super) fn register_info_metrics(&self, permanent: &Permanent) {
        let certificate = &self.config.serving.tls.certificate;
        let calls = &permanent.own_calls;
        info_metrics::register(
            (certificate, self.config.upstream.front_proxy.as_ref()),
            &calls.credentials,
            &calls.readiness,
            &permanent.registry,
        );
    }
}

/// Has weir's own calls feed `limiter`, if they feed another one.
fn follow_cluster(
    permanent: &Permanent,
    config: &Config,
    limiter: &LimiterInForce,
    earlier: Option<&Components>,
) {
    if earlier.is_some_and(|earlier| !feeds_other_limiter(config, &earlier.config)) {
        return;
    }
    let (calls, cluster) = (&permanent.own_calls, config.admission.cluster());
    calls.set_limiter(limiter);
    calls.set_cluster(
        limiter.flowcontrol.as_ref(),
        cluster.cloned(),
        &config.upstream,
    );
    let live = earlier.and_then(|earlier| earlier.flowcontrol.as_ref());
    if let (None, Some(live)) = (cluster, live) {
        live.set_cluster_status(ClusterStatus::NotRead);
    }
}

/// Takes over the API servers of a configuration, and their certificates, for all workers and weir's
/// own calls.
pub(super) fn replace_servers(permanent: &Permanent, config: &Config, earlier: &Config) {
    let (new, earlier) = (&config.upstream, &earlier.upstream);
    if !new.has_same_servers(earlier) || !new.has_same_front_proxy(earlier) {
        upstream::reconfigure(&permanent.own_calls.servers, new);
    }
}

/// The settings of new connections. With `resumable`, clients can resume its TLS sessions.
///
/// # Errors
/// TLS cannot be set up.
fn listener_settings(
    config: &Config,
    resumable: Option<&ListenerSettings>,
) -> Result<ListenerSettings, StartError> {
    let resumable = resumable.map(|settings| &*settings.tls);
    let (serving, provider) = (config.serving.clone(), &config.crypto_provider);
    let tls = tls::server_config(serving.tls.clone(), Arc::clone(provider), resumable)
        .map_err(|why| StartError::new("TLS towards clients", why))?;
    Ok(ListenerSettings {
        tls: Arc::new(tls),
        serving,
    })
}
