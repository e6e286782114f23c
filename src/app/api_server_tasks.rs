//! weir's own calls to the API server, and what it asks about itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::app::StartError;
use crate::app::object_counts::ObjectCountPolls;
use crate::app::self_access::SelfAccess;
use crate::clock::Clock;
use crate::config::Config;
use crate::drain::Drain;
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
use crate::upstream::headers::IdentityHeaders;
use crate::upstream::headers::Internal;
use crate::upstream::loop_detection::LoopDetector;
use crate::upstream::pool::Pool;

/// weir's own calls to the API server, and what keeps their credentials good.
#[derive(Debug)]
pub(super) struct ApiServerTasks {
    /// What they carry.
    pub(super) credentials: Arc<OwnCredentials>,
    /// Whether they come back to weir.
    pub(super) loop_detector: Arc<LoopDetector>,
    /// What asks for object counts, where there is a credential, and how often.
    count_calls: Option<(api_server_client::ApiServerClient, Duration)>,
    pool: Arc<Pool<Internal>>,
    certificate_changes: watch::Receiver<u64>,
    renewal: RefreshTask,
    checks: SelfChecks,
    /// None where weir has no credential of its own.
    api_server: Option<Arc<dyn ApiTransport>>,
}

impl ApiServerTasks {
    pub(super) async fn start(
        (own, period): (CredentialSource, Duration),
        upstream: &upstream::UpstreamConfig,
        metrics: &Arc<upstream::UpstreamMetrics>,
        drain: &Arc<Drain>,
        checks: SelfChecks,
    ) -> Result<(Self, Arc<Readiness>, Option<Arc<dyn ApiTransport>>), StartError> {
        let nobody = own.is_anonymous();
        let (own, renewal) = OwnCredentials::start(own, Clock)
            .await
            .map_err(|why| StartError::new("weir's own credentials", why))?;
        let pool = upstream::internal_pool(upstream, &own, metrics);
        let certificate_changes = own.certificate_changes();
        let calls = api_server_client::ApiServerClient::new(Arc::clone(&pool), Arc::clone(&own));
        let server: Arc<dyn ApiTransport> = Arc::new(calls.clone());
        // An anonymous caller may not ask about others.
        let server = Some(server).filter(|_| !nobody);
        let probe = checks.probe.as_ref();
        let health = probe.map(|probe| Arc::clone(&probe.health));
        let loops = Arc::clone(&checks.loop_detector);
        let (ask, with) = (Arc::clone(&pool), Arc::clone(&own));
        let readiness = Readiness::new(ask, with, Arc::clone(drain), Arc::clone(&loops));
        let readiness = Arc::new(readiness.with_front_proxy(health));
        let calls = Self {
            credentials: own,
            loop_detector: loops,
            count_calls: Some((calls, period)).filter(|_| !nobody && !period.is_zero()),
            pool,
            certificate_changes,
            renewal,
            checks,
            api_server: server.clone(),
        };
        Ok((calls, readiness, server))
    }

    pub(super) fn run(self, admission: &Admission) {
        let Self {
            credentials: _,
            loop_detector: _,
            count_calls: counts,
            pool,
            mut certificate_changes,
            renewal,
            checks:
                SelfChecks {
                    probe,
                    access: rights,
                    loop_detector: _,
                },
            api_server: server,
        } = self;
        if let (Some((calls, period)), Admission::Fairness(controller)) = (counts, admission) {
            let polls = ObjectCountPolls::new(calls, Arc::clone(controller), period);
            tokio::spawn(polls.run());
        }
        tokio::spawn(renewal.run());
        if let Some(probe) = probe {
            tokio::spawn(probe.run());
        }
        if let Some(server) = server {
            tokio::spawn(rights.check(server));
        }
        tokio::spawn(async move {
            while certificate_changes.changed().await.is_ok() {
                pool.retire_all();
            }
        });
    }
}

/// What weir is to ask the API server about itself.
pub(super) struct SelfCheckConfig {
    access: SelfAccess,
    /// Which headers name the user that probes assert.
    identity_headers: IdentityHeaders,
    /// How often the front-proxy certificate is probed, if it is.
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

/// What weir asks the API server about itself.
#[derive(Debug)]
pub(super) struct SelfChecks {
    /// Where there is a front-proxy certificate, and it is to be probed.
    probe: Option<FrontProxyProbe>,
    access: SelfAccess,
    /// Whether the way to the API server leads back to weir.
    loop_detector: Arc<LoopDetector>,
}
