//! weir's own calls to the API server, and its checks of itself there.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::app::object_counts::ObjectCountPolls;
use crate::app::self_checks::self_access::SelfAccess;
use crate::app::start_error::StartError;
use crate::clock::Clock;
use crate::config::Config;
use crate::drain::Drain;
use crate::identity::request_header::IdentityHeaders;
use crate::identity::transport::ApiTransport;
use crate::limits::Admission;
use crate::metrics::Registry;
use crate::observe::readiness::Readiness;
use crate::observe::readiness::front_proxy::FrontProxyHealth;
use crate::observe::readiness::front_proxy::FrontProxyProbe;
use crate::upstream;
use crate::upstream::credentials::CredentialSource;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::credentials::RefreshTask;
use crate::upstream::forward::api_server_client;
use crate::upstream::headers::auth_mode::Internal;
use crate::upstream::loop_detection::LoopDetector;
use crate::upstream::pool::Pool;

/// weir's own calls to the API server, and the tasks that renew their credentials.
#[derive(Debug)]
pub(super) struct ApiServerTasks {
    /// The credentials of the calls.
    pub(super) credentials: Arc<OwnCredentials>,
    /// Detects calls that come back to weir.
    pub(super) loop_detector: Arc<LoopDetector>,
    /// The client for object counts, if there is a credential, and the period.
    count_calls: Option<(api_server_client::ApiServerClient, Duration)>,
    pool: Arc<Pool<Internal>>,
    certificate_changes: watch::Receiver<u64>,
    renewal: RefreshTask,
    checks: SelfChecks,
    /// `None` if weir has no credential of its own.
    api_server: Option<Arc<dyn ApiTransport>>,
}

/// The configuration of weir's own calls.
pub(super) struct OwnCallsConfig {
    credentials: CredentialSource,
    /// Zero if objects are not counted.
    object_count_period: Duration,
}

impl OwnCallsConfig {
    pub(super) const fn new(credentials: CredentialSource, object_count_period: Duration) -> Self {
        Self {
            credentials,
            object_count_period,
        }
    }
}

impl ApiServerTasks {
    pub(super) async fn start(
        own_calls: OwnCallsConfig,
        upstream: &upstream::UpstreamConfig,
        metrics: &Arc<upstream::UpstreamMetrics>,
        drain: &Arc<Drain>,
        checks: SelfChecks,
    ) -> Result<(Self, Arc<Readiness>, Option<Arc<dyn ApiTransport>>), StartError> {
        let OwnCallsConfig {
            credentials,
            object_count_period: period,
        } = own_calls;
        let is_anonymous = credentials.is_anonymous();
        let (credentials, renewal) = OwnCredentials::start(credentials, Clock)
            .await
            .map_err(|why| StartError::new("weir's own credentials", why))?;
        let pool = upstream::internal_pool(upstream, &credentials, metrics);
        let certificate_changes = credentials.certificate_changes();
        let calls =
            api_server_client::ApiServerClient::new(Arc::clone(&pool), Arc::clone(&credentials));
        let api_server: Arc<dyn ApiTransport> = Arc::new(calls.clone());
        // An anonymous client may not create reviews of other users.
        let api_server = Some(api_server).filter(|_| !is_anonymous);
        let probe = checks.probe.as_ref();
        let health = probe.map(|probe| Arc::clone(&probe.health));
        let loop_detector = Arc::clone(&checks.loop_detector);
        let (request_pool, request_credentials) = (Arc::clone(&pool), Arc::clone(&credentials));
        let readiness = Readiness::new(
            request_pool,
            request_credentials,
            Arc::clone(drain),
            Arc::clone(&loop_detector),
        );
        let readiness = Arc::new(readiness.with_front_proxy(health));
        let calls = Self {
            credentials,
            loop_detector,
            count_calls: Some((calls, period)).filter(|_| !is_anonymous && !period.is_zero()),
            pool,
            certificate_changes,
            renewal,
            checks,
            api_server: api_server.clone(),
        };
        Ok((calls, readiness, api_server))
    }

    pub(super) fn run(self, admission: &Admission) {
        let Self {
            credentials: _,
            loop_detector: _,
            count_calls,
            pool,
            mut certificate_changes,
            renewal,
            checks:
                SelfChecks {
                    probe,
                    access,
                    loop_detector: _,
                },
            api_server,
        } = self;
        if let (Some((calls, period)), Admission::Fairness(controller)) = (count_calls, admission) {
            let polls = ObjectCountPolls::new(calls, Arc::clone(controller), period);
            tokio::spawn(polls.run());
        }
        tokio::spawn(renewal.run());
        if let Some(probe) = probe {
            tokio::spawn(probe.run());
        }
        if let Some(api_server) = api_server {
            tokio::spawn(access.check(api_server));
        }
        tokio::spawn(async move {
            while certificate_changes.changed().await.is_ok() {
                pool.retire_all();
            }
        });
    }
}

/// The configuration of weir's self-checks.
pub(super) struct SelfCheckConfig {
    access: SelfAccess,
    /// The headers in which probes assert a user.
    identity_headers: IdentityHeaders,
    /// The interval of the front-proxy certificate's probes, if there are any.
    interval: Option<Duration>,
}

impl SelfCheckConfig {
    pub(super) fn from_config(config: &Config) -> Self {
        Self {
            access: SelfAccess::from_config(config),
            identity_headers: config.identity.headers.clone(),
            interval: config.admin.self_check_interval,
        }
    }

    pub(super) fn build(
        self,
        upstream: &upstream::UpstreamConfig,
        metrics: &Arc<upstream::UpstreamMetrics>,
        registry: &Registry,
    ) -> SelfChecks {
        let pool = upstream::front_proxy_pool(upstream, metrics);
        let probe = pool
            .zip(self.interval)
            .map(|(pool, every)| FrontProxyProbe {
                pool,
                headers: Arc::new(self.identity_headers),
                metrics: Arc::clone(metrics),
                health: FrontProxyHealth::register(registry),
                interval: every,
            });
        SelfChecks {
            probe,
            access: self.access,
            loop_detector: LoopDetector::register(upstream.instance_id.clone(), registry),
        }
    }
}

/// What weir checks about itself at the API server.
#[derive(Debug)]
pub(super) struct SelfChecks {
    /// The probe of the front-proxy certificate, if there is one and probes are configured.
    probe: Option<FrontProxyProbe>,
    access: SelfAccess,
    /// Detects an upstream that leads back to weir.
    loop_detector: Arc<LoopDetector>,
}
