//! weir's own calls to the API server, and its checks of itself there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::app::cluster::flowcontrol::ClusterFlowcontrol;
use crate::app::cluster::object_counts::ObjectCountPolls;
use crate::app::cluster::server_facts::ServerFacts;
use crate::app::cluster::total::TotalTask;
use crate::app::self_checks::self_access::SelfAccess;
use crate::app::start_error::StartError;
use crate::app::tasks::{TaskSlot, Tasks};
use crate::config::{AdmissionConfig, ClusterSourceConfig, Config};
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::sources::LiveObjects;
use crate::identity::transport::ApiTransport;
use crate::limits::limiters::{LimiterInForce, Limiters};
use crate::limits::total_finder::TotalFinder;
use crate::observe::readiness::Readiness;
use crate::observe::readiness::config_status::ConfigStatus;
use crate::observe::readiness::front_proxy::{FrontProxyHealth, FrontProxyProbe};
use crate::pipeline::trace::request_metrics::limit_rejections;
use crate::upstream;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::forward::api_server_client::ApiServerClient;
use crate::upstream::forward::endpoint_slices;
use crate::upstream::forward::latency_probe::LatencyProbe;
use crate::upstream::forward::server_pools::ServerPools;
use crate::upstream::forward::server_probes::ServerProbes;
use crate::upstream::headers::auth_mode::Internal;
use crate::upstream::loop_detection::LoopDetector;
use crate::upstream::servers::resolver;
use crate::upstream::servers::server_set::ServerSet;
use crate::upstream::{UpstreamConfig, UpstreamMetrics};
use weir_base::clock::Clock;
use weir_base::drain::Drain;
use weir_base::metrics::Registry;

/// Longest time that the first probes delay the first request.
const FIRST_PROBES_TIMEOUT: Duration = Duration::from_secs(2);

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
    pub(super) transport: Arc<dyn ApiTransport>,
    metrics: Arc<UpstreamMetrics>,
    registry: Registry,
    /// Reads the cluster's flow schemas and priority levels, if something does.
    cluster: ArcSwapOption<ClusterFlowcontrol>,
    /// The controller that estimates seats by the number of objects, if there is one.
    controller: ArcSwapOption<Controller>,
    cluster_task: TaskSlot,
    polls: TaskSlot,
    /// Finds the total, if it is to be found.
    pub(super) finder: Arc<TotalFinder>,
    limiters: Arc<Limiters>,
    total: TaskSlot,
    server_facts: TaskSlot,
    /// Changes the period of the polls; zero pauses them.
    poll_period: watch::Sender<Duration>,
    probe: TaskSlot,
    access: TaskSlot,
}

impl OwnCalls {
    /// Prepares the calls; [`restart`](Self::restart) starts them.
    ///
    /// # Errors
    /// weir's own credentials cannot be loaded.
    pub(super) async fn start(
        config: &Config,
        drain: &Arc<Drain>,
        limiters: &Arc<Limiters>,
        config_status: &Arc<ConfigStatus>,
        metrics: &Arc<UpstreamMetrics>,
        registry: &Registry,
        tasks: &mut Tasks,
    ) -> Result<Arc<Self>, StartError> {
        let upstream = &config.upstream;
        let (credentials, renewal) = OwnCredentials::start(config.own_credentials.clone(), Clock)
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
            Arc::clone(drain),
            Arc::clone(&loop_detector),
            Arc::clone(config_status),
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
            finder: TotalFinder::new(limiters, registry),
            limiters: Arc::clone(limiters),
            total: TaskSlot::default(),
            server_facts: TaskSlot::default(),
            poll_period: watch::Sender::default(),
            probe: TaskSlot::default(),
            access: TaskSlot::default(),
        };
        tasks.push(renewal.run());
        tasks.push(resolver::run(Arc::clone(&calls.servers)));
        if let Some(probes) = &calls.probes {
            tasks.push(Arc::clone(probes).run());
        }
        let pools = Arc::clone(&calls.pools);
        let mut changes = calls.credentials.certificate_changes();
        tasks.push(async move {
            while changes.changed().await.is_ok() {
                pools.retire_all();
            }
        });
        Ok(Arc::new(calls))
    }

    /// The API server, if weir has credentials: an anonymous client may not create reviews of other
    /// users.
    pub(super) fn api_server(&self, config: &Config) -> Option<Arc<dyn ApiTransport>> {
        Some(Arc::clone(&self.transport)).filter(|_| !config.own_credentials.is_anonymous())
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

    /// Starts the calls of `config`, except for those that are the same as `earlier` and go on.
    /// Must be called within a runtime.
    pub(super) fn restart(&self, config: &Config, earlier: Option<&Config>) {
        let is_other = |differs: &dyn Fn(&Config) -> bool| earlier.is_none_or(differs);
        let (upstream, own) = (&config.upstream, &config.own_credentials);
        let are_other_servers = is_other(&|one| !upstream.has_same_servers(&one.upstream));
        let is_other_access =
            is_other(&|one| own.is_anonymous() != one.own_credentials.is_anonymous());
        self.poll_period.send_if_modified(|period| {
            let new = config.object_count_poll_period;
            std::mem::replace(period, new) != new
        });
        if let Some(cluster) = &*self.cluster.load() {
            cluster.set_upstream(upstream);
        }
        if is_other(&|one| upstream.endpoint_slices != one.upstream.endpoint_slices) {
            let follows = || endpoint_slices::run(self.client.clone(), Arc::clone(&self.servers));
            self.slices.start(upstream.endpoint_slices.then(follows));
        }
        if is_other_access || is_other(&|one| feeds_other_limiter(config, one)) {
            self.start_polls(config);
            self.start_cluster(config);
        }
        if are_other_servers
            || is_other(&|one| {
                !upstream.has_same_front_proxy(&one.upstream)
                    || config.identity.headers != one.identity.headers
                    || config.admin.self_check_interval != one.admin.self_check_interval
            })
        {
            self.start_probe(config);
        }
        if is_other_access {
            self.start_total(config);
        }
        let access = SelfAccess::from_config(config);
        if are_other_servers
            || is_other_access
            || is_other(&|one| access != SelfAccess::from_config(one))
        {
            let api_server = self.api_server(config);
            self.access
                .start(api_server.map(|api_server| access.check(api_server)));
        }
    }

    /// The limiter whose objects are read and shown from now on. Tasks that run stay as they are.
    pub(super) fn set_limiter(&self, limiter: &LimiterInForce) {
        self.readiness.set_flowcontrol(limiter.flowcontrol.clone());
        self.controller
            .store(limiter.admission.controller().cloned());
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

    /// Polls the number of objects and the API server's seats, unless weir is anonymous.
    fn start_polls(&self, config: &Config) {
        let polls = || {
            let (calls, controller) = (self.client.clone(), self.controller.load_full());
            let (finder, period) = (Arc::clone(&self.finder), self.poll_period.subscribe());
            ObjectCountPolls::new(calls, controller, finder, period).run()
        };
        let has_credentials = !config.own_credentials.is_anonymous();
        self.polls.start(has_credentials.then(polls));
    }

    /// Finds the total while it is to be found, and counts the API servers.
    fn start_total(&self, config: &Config) {
        let task = TotalTask {
            finder: Arc::clone(&self.finder),
            limiters: Arc::clone(&self.limiters),
            probe: LatencyProbe {
                pools: upstream::internal_pools(
                    &config.upstream,
                    &self.servers,
                    &self.credentials,
                    &self.metrics,
                ),
                credentials: Arc::clone(&self.credentials),
                loop_detector: Arc::clone(&self.loop_detector),
                pings: AtomicBool::new(config.own_credentials.is_anonymous()),
            },
            rejections: limit_rejections(&self.registry),
            upstream: Arc::clone(&self.metrics),
        };
        self.total.start(Some(task.run()));
        let facts = ServerFacts {
            finder: Arc::clone(&self.finder),
            servers: Arc::clone(&self.servers),
            calls: self.client.clone(),
        };
        let has_credentials = !config.own_credentials.is_anonymous();
        self.server_facts
            .start(has_credentials.then(|| facts.run()));
    }

    /// Reads the cluster's flow schemas and priority levels, unless weir is anonymous.
    fn start_cluster(&self, config: &Config) {
        let cluster = self.cluster.load_full();
        let cluster = cluster.filter(|_| !config.own_credentials.is_anonymous());
        let calls = || self.client.clone();
        self.cluster_task
            .start(cluster.map(|cluster| cluster.run(calls())));
    }

    /// Probes the front-proxy certificate, if there is one and probes are configured.
    fn start_probe(&self, config: &Config) {
        let probe = self.new_probe(config);
        let health = probe.as_ref().map(|probe| Arc::clone(&probe.health));
        self.readiness.set_front_proxy(health);
        self.servers.front_proxy_trust().set_probed(probe.is_some());
        self.probe.start(probe.map(FrontProxyProbe::run));
    }

    fn new_probe(&self, config: &Config) -> Option<FrontProxyProbe> {
        let interval = config.admin.self_check_interval?;
        Some(FrontProxyProbe {
            pools: upstream::front_proxy_pools(&config.upstream, &self.servers, &self.metrics)?,
            headers: Arc::new(config.identity.headers.clone()),
            health: FrontProxyHealth::register(&self.registry),
            interval,
        })
    }
}

/// Whether the tasks that feed the limiter have to be restarted: the limiter is another one, or the
/// cluster's objects are read in another way.
pub(super) fn feeds_other_limiter(config: &Config, earlier: &Config) -> bool {
    let is_fairness =
        |config: &Config| matches!(config.admission, AdmissionConfig::Fairness { .. });
    is_fairness(config) != is_fairness(earlier)
        || config.admission.cluster() != earlier.admission.cluster()
}
