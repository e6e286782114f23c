//! weir's own calls to the API server, and its checks of itself there.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::app::cluster::flowcontrol::ClusterFlowcontrol;
use crate::app::cluster::object_counts::ObjectCountPolls;
use crate::app::info_metrics;
use crate::app::self_checks::self_access::SelfAccess;
use crate::app::start_error::StartError;
use crate::config::{ClusterSourceConfig, Config};
use crate::drain::Drain;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::sources::LiveObjects;
use crate::identity::request_header::IdentityHeaders;
use crate::identity::transport::ApiTransport;
use crate::limits::Admission;
use crate::limits::limiters::LimiterInForce;
use crate::observe::readiness::Readiness;
use crate::observe::readiness::config_status::ConfigStatus;
use crate::observe::readiness::front_proxy::{FrontProxyHealth, FrontProxyProbe};
use crate::upstream;
use crate::upstream::credentials::{CredentialSource, OwnCredentials, RefreshTask};
use crate::upstream::forward::api_server_client::ApiServerClient;
use crate::upstream::forward::endpoint_slices;
use crate::upstream::forward::server_pools::ServerPools;
use crate::upstream::forward::server_probes::ServerProbes;
use crate::upstream::headers::auth_mode::Internal;
use crate::upstream::loop_detection::LoopDetector;
use crate::upstream::servers::resolver;
use crate::upstream::servers::server_set::ServerSet;
use crate::upstream::{UpstreamConfig, UpstreamMetrics};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;

/// Longest time that the first probes delay the first request.
const FIRST_PROBES_TIMEOUT: Duration = Duration::from_secs(2);

/// A task of which there is one at a time.
#[derive(Debug, Default)]
pub(super) struct TaskSlot(Mutex<Option<AbortHandle>>);

impl TaskSlot {
    /// Starts `task` after the one before it, which is aborted.
    pub(super) fn start(&self, task: Option<impl Future<Output = ()> + Send + 'static>) {
        let task = task.map(|task| tokio::spawn(task).abort_handle());
        let earlier = std::mem::replace(&mut *self.0.lock(), task);
        if let Some(earlier) = earlier {
            earlier.abort();
        }
    }
}

/// The settings of weir's own calls.
#[derive(Clone, Debug)]
pub(super) struct OwnCallSettings {
    /// No calls need weir's credentials, since it has none.
    is_anonymous: bool,
    access: SelfAccess,
    /// The headers in which probes assert a user.
    identity_headers: IdentityHeaders,
    /// The interval of the front-proxy certificate's probes, if there are any.
    probe_interval: Option<Duration>,
    /// `--object-count-poll-period`; zero disables the polls.
    poll_period: Duration,
}

impl OwnCallSettings {
    pub(super) fn from_config(config: &Config) -> Self {
        Self {
            is_anonymous: config.own_credentials.is_anonymous(),
            access: SelfAccess::from_config(config),
            identity_headers: config.identity.headers.clone(),
            probe_interval: config.admin.self_check_interval,
            poll_period: config.object_count_poll_period,
        }
    }

    pub(super) const fn is_anonymous(&self) -> bool {
        self.is_anonymous
    }

    pub(super) fn has_same_probe(&self, other: &Self) -> bool {
        (&self.identity_headers, self.probe_interval)
            == (&other.identity_headers, other.probe_interval)
    }

    pub(super) fn has_same_access(&self, other: &Self) -> bool {
        (self.is_anonymous, &self.access) == (other.is_anonymous, &other.access)
    }
}

/// What weir's own calls are started with.
pub(super) struct OwnCallsConfig {
    /// The credentials of the calls.
    pub(super) credentials: CredentialSource,
    pub(super) drain: Arc<Drain>,
    pub(super) config_status: Arc<ConfigStatus>,
    pub(super) limiter: LimiterInForce,
    /// The reading of the cluster's flow schemas and priority levels.
    pub(super) cluster: Option<ClusterSourceConfig>,
}

/// weir's own calls to the API server.
#[derive(Debug)]
pub(super) struct OwnCalls {
    /// The credentials of the calls.
    pub(super) credentials: Arc<OwnCredentials>,
    /// Detects calls that come back to weir.
    pub(super) loop_detector: Arc<LoopDetector>,
    pub(super) readiness: Arc<Readiness>,
    /// The API servers.
    pub(super) servers: Arc<ServerSet>,
    pools: Arc<ServerPools<Internal>>,
    /// Probes of the API servers, if they are probed.
    probes: Option<Arc<ServerProbes>>,
    /// Follows the EndpointSlices, if they are followed.
    slices: TaskSlot,
    client: ApiServerClient,
    transport: Arc<dyn ApiTransport>,
    metrics: Arc<UpstreamMetrics>,
    registry: Registry,
    /// Reads the cluster's flow schemas and priority levels, if something does.
    cluster: ArcSwapOption<ClusterFlowcontrol>,
    /// The controller that estimates seats by the number of objects, if there is one.
    controller: ArcSwapOption<Controller>,
    cluster_task: TaskSlot,
    polls: TaskSlot,
    /// Changes the period of the polls; zero pauses them.
    poll_period: watch::Sender<Duration>,
    probe: TaskSlot,
    access: TaskSlot,
}

impl OwnCalls {
    /// Registers the metrics of the process, of readiness, and of the certificates that weir
    /// presents.
    pub(super) fn register_info_metrics(
        &self,
        serving: &Arc<CertifiedKey>,
        front_proxy: Option<&Arc<CertifiedKey>>,
        registry: &Registry,
    ) {
        let keys = (serving, front_proxy);
        info_metrics::register(keys, &self.credentials, &self.readiness, registry);
    }

    pub(super) async fn start(
        config: OwnCallsConfig,
        upstream: &UpstreamConfig,
        metrics: &Arc<UpstreamMetrics>,
        registry: &Registry,
    ) -> Result<(Arc<Self>, RefreshTask), StartError> {
        let OwnCallsConfig {
            credentials,
            drain,
            config_status,
            limiter,
            cluster,
        } = config;
        let (credentials, renewal) = OwnCredentials::start(credentials, Clock)
            .await
            .map_err(|why| StartError::new("weir's own credentials", why))?;
        let servers = upstream::server_set(upstream, registry);
        resolver::resolve_once(&servers).await;
        let pools = upstream::internal_pools(upstream, &servers, &credentials, metrics);
        let client = ApiServerClient::new(Arc::clone(&pools), Arc::clone(&credentials));
        let loop_detector = LoopDetector::register(upstream.instance_id.clone(), registry);
        let readiness = Readiness::new(
            Arc::clone(&servers),
            Arc::clone(&credentials),
            drain,
            Arc::clone(&loop_detector),
            config_status,
        );
        let readiness = Arc::new(readiness);
        let probes = upstream.probe_interval.map(|interval| {
            Arc::new(ServerProbes {
                pools: Arc::clone(&pools),
                credentials: Arc::clone(&credentials),
                loop_detector: Arc::clone(&loop_detector),
                interval,
            })
        });
        let calls = Self {
            credentials,
            loop_detector,
            readiness,
            servers,
            pools,
            probes,
            slices: TaskSlot::default(),
            transport: Arc::new(client.clone()),
            client,
            metrics: Arc::clone(metrics),
            registry: registry.clone(),
            cluster: ArcSwapOption::empty(),
            controller: ArcSwapOption::empty(),
            cluster_task: TaskSlot::default(),
            polls: TaskSlot::default(),
            poll_period: watch::Sender::default(),
            probe: TaskSlot::default(),
            access: TaskSlot::default(),
        };
        calls.set_limiter(&limiter);
        calls.set_cluster(limiter.flowcontrol.as_ref(), cluster, upstream);
        Ok((Arc::new(calls), renewal))
    }

    /// The API server, if weir has credentials: an anonymous client may not create reviews of other
    /// users.
    pub(super) fn api_server(&self, settings: &OwnCallSettings) -> Option<Arc<dyn ApiTransport>> {
        Some(Arc::clone(&self.transport)).filter(|_| !settings.is_anonymous)
    }

    /// Sends requests with weir's own credentials.
    pub(super) const fn client(&self) -> &ApiServerClient {
        &self.client
    }

    /// Where the metrics of weir's own calls are.
    pub(super) const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Refuses servers at weir's own address, and probes each of several once, for at most a moment:
    /// a server gets no request before it has answered a probe.
    pub(super) async fn verify_servers(&self, listener: SocketAddr) {
        self.servers.set_listener(listener);
        if let Some(probes) = &self.probes {
            let _ = timeout(FIRST_PROBES_TIMEOUT, probes.run_once()).await;
        }
    }

    /// Starts the tasks.
    pub(super) fn run(self: &Arc<Self>, settings: &OwnCallSettings, upstream: &UpstreamConfig) {
        self.start_polls(settings);
        self.start_cluster(settings);
        self.start_probe(settings, upstream);
        self.start_access_check(settings);
        self.start_slices(upstream);
        tokio::spawn(resolver::run(Arc::clone(&self.servers)));
        if let Some(probes) = &self.probes {
            tokio::spawn(Arc::clone(probes).run());
        }
        let (pools, mut changes) = (
            Arc::clone(&self.pools),
            self.credentials.certificate_changes(),
        );
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                pools.retire_all();
            }
        });
    }

    /// Follows the EndpointSlices, if `upstream` says so.
    pub(super) fn start_slices(&self, upstream: &UpstreamConfig) {
        let follows = || endpoint_slices::run(self.client.clone(), Arc::clone(&self.servers));
        self.slices.start(upstream.endpoint_slices.then(follows));
    }

    /// The limiter whose objects are read and shown from now on. Tasks that run stay as they are.
    pub(super) fn set_limiter(&self, limiter: &LimiterInForce) {
        self.readiness.set_flowcontrol(limiter.flowcontrol.clone());
        self.controller.store(match &limiter.admission {
            Admission::Fairness(controller) => Some(Arc::clone(controller)),
            Admission::MaxInFlight(_) => None,
        });
    }

    /// Reads the cluster's objects as `config` says, from the next start of the task on. The last
    /// known ones are in force at once.
    pub(super) fn set_cluster(
        &self,
        live: Option<&Arc<LiveObjects>>,
        config: Option<ClusterSourceConfig>,
        upstream: &UpstreamConfig,
    ) {
        let restore = |(live, config): (&Arc<LiveObjects>, _)| {
            let live = Arc::clone(live);
            Arc::new(ClusterFlowcontrol::restore(live, config, upstream))
        };
        self.cluster.store(live.zip(config).map(restore));
    }

    /// Polls the number of objects, unless weir is anonymous.
    pub(super) fn start_polls(&self, settings: &OwnCallSettings) {
        self.set_poll_period(settings);
        let controller = self.controller.load_full();
        let polls = controller.filter(|_| !settings.is_anonymous);
        let polls = polls.map(|controller| {
            let calls = self.client.clone();
            ObjectCountPolls::new(calls, controller, self.poll_period.subscribe()).run()
        });
        self.polls.start(polls);
    }

    /// Reads the cluster's flow schemas and priority levels, unless weir is anonymous.
    pub(super) fn start_cluster(&self, settings: &OwnCallSettings) {
        let cluster = self.cluster.load_full();
        let cluster = cluster.filter(|_| !settings.is_anonymous);
        let calls = || self.client.clone();
        self.cluster_task
            .start(cluster.map(|cluster| cluster.run(calls())));
    }

    /// The API servers, or the CAs of their certificates, have changed.
    pub(super) fn set_upstream(&self, upstream: &UpstreamConfig) {
        if let Some(cluster) = &*self.cluster.load() {
            cluster.set_upstream(upstream);
        }
    }

    /// Changes the period of the polls.
    pub(super) fn set_poll_period(&self, settings: &OwnCallSettings) {
        self.poll_period.send_if_modified(|period| {
            std::mem::replace(period, settings.poll_period) != settings.poll_period
        });
    }

    /// Probes the front-proxy certificate, if there is one and probes are configured.
    pub(super) fn start_probe(&self, settings: &OwnCallSettings, upstream: &UpstreamConfig) {
        let probe = self.new_probe(settings, upstream);
        let health = probe.as_ref().map(|probe| Arc::clone(&probe.health));
        self.readiness.set_front_proxy(health);
        self.servers.front_proxy_trust().set_probed(probe.is_some());
        self.probe.start(probe.map(FrontProxyProbe::run));
    }

    /// Checks the permissions of weir's own credentials.
    pub(super) fn start_access_check(&self, settings: &OwnCallSettings) {
        let api_server = self.api_server(settings);
        let access = settings.access.clone();
        self.access
            .start(api_server.map(|api_server| access.check(api_server)));
    }

    fn new_probe(
        &self,
        settings: &OwnCallSettings,
        upstream: &UpstreamConfig,
    ) -> Option<FrontProxyProbe> {
        let interval = settings.probe_interval?;
        Some(FrontProxyProbe {
            pools: upstream::front_proxy_pools(upstream, &self.servers, &self.metrics)?,
            headers: Arc::new(settings.identity_headers.clone()),
            health: FrontProxyHealth::register(&self.registry),
            interval,
        })
    }
}
