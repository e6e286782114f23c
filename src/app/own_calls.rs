//! weir's own calls to the API server, and what it asks about itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::app::StartError;
use crate::app::object_counts::ObjectCountPolls;
use crate::app::own_rights::OwnRights;
use crate::clock::Clock;
use crate::config::Config;
use crate::drain::Drain;
use crate::identity::remote::ApiServer;
use crate::limits::Admission;
use crate::metrics::Registry;
use crate::observe::front_proxy::FrontProxyHealth;
use crate::observe::front_proxy::FrontProxyProbe;
use crate::observe::readiness::Readiness;
use crate::upstream;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::credentials::Renewal;
use crate::upstream::credentials::Source;
use crate::upstream::headers::IdentityHeaders;
use crate::upstream::headers::Own;
use crate::upstream::loops::LoopDetector;
use crate::upstream::own_calls;
use crate::upstream::pool::Pool;

/// weir's own calls to the API server, and what keeps their credentials good.
#[derive(Debug)]
pub(super) struct OwnCalls {
    /// What they carry.
    pub(super) own: Arc<OwnCredentials>,
    /// Whether they come back to weir.
    pub(super) loops: Arc<LoopDetector>,
    /// What asks for object counts, where there is a credential, and how often.
    counts: Option<(own_calls::OwnCalls, Duration)>,
    pool: Arc<Pool<Own>>,
    certificate_changes: watch::Receiver<u64>,
    renewal: Renewal,
    checks: SelfChecks,
    /// None where weir has no credential of its own.
    server: Option<Arc<dyn ApiServer>>,
}

impl OwnCalls {
    pub(super) async fn start(
        (own, period): (Source, Duration),
        upstream: &upstream::Config,
        metrics: &Arc<upstream::Metrics>,
        drain: &Arc<Drain>,
        checks: SelfChecks,
    ) -> Result<(Self, Arc<Readiness>, Option<Arc<dyn ApiServer>>), StartError> {
        let nobody = own.is_nobody();
        let (own, renewal) = OwnCredentials::start(own, Clock)
            .await
            .map_err(|why| StartError::new("weir's own credentials", why))?;
        let pool = upstream::own_pool(upstream, &own, metrics);
        let certificate_changes = own.certificate_changes();
        let calls = own_calls::OwnCalls::new(Arc::clone(&pool), Arc::clone(&own));
        let server: Arc<dyn ApiServer> = Arc::new(calls.clone());
        // An anonymous caller may not ask about others.
        let server = Some(server).filter(|_| !nobody);
        let probe = checks.probe.as_ref();
        let health = probe.map(|probe| Arc::clone(&probe.health));
        let loops = Arc::clone(&checks.loops);
        let (ask, with) = (Arc::clone(&pool), Arc::clone(&own));
        let readiness = Readiness::new(ask, with, Arc::clone(drain), Arc::clone(&loops));
        let readiness = Arc::new(readiness.with_front_proxy(health));
        let calls = Self {
            own,
            loops,
            counts: Some((calls, period)).filter(|_| !nobody && !period.is_zero()),
            pool,
            certificate_changes,
            renewal,
            checks,
            server: server.clone(),
        };
        Ok((calls, readiness, server))
    }

    pub(super) fn run(self, admission: &Admission) {
        let Self {
            own: _,
            loops: _,
            counts,
            pool,
            mut certificate_changes,
            renewal,
            checks:
                SelfChecks {
                    probe,
                    rights,
                    loops: _,
                },
            server,
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
                pool.renew();
            }
        });
    }
}

/// What weir is to ask the API server about itself.
pub(super) struct AboutItself {
    rights: OwnRights,
    /// Which headers name the user that probes assert.
    names: IdentityHeaders,
    /// How often the front-proxy certificate is probed, if it is.
    every: Option<Duration>,
}

impl AboutItself {
    pub(super) fn of(config: &Config) -> Self {
        Self {
            rights: OwnRights::of(config),
            names: config.identity.headers.clone(),
            every: config.admin.self_checks,
        }
    }

    pub(super) fn checks(
        self,
        upstream: &upstream::Config,
        metrics: &Arc<upstream::Metrics>,
        registry: &Registry,
    ) -> SelfChecks {
        let pool = upstream::front_proxy_pool(upstream, metrics);
        let probe = pool.zip(self.every).map(|(pool, every)| FrontProxyProbe {
            pool,
            headers: Arc::new(self.names),
            metrics: Arc::clone(metrics),
            health: FrontProxyHealth::register(registry),
            every,
        });
        SelfChecks {
            probe,
            rights: self.rights,
            loops: LoopDetector::register(upstream.id.clone(), registry),
        }
    }
}

/// What weir asks the API server about itself.
#[derive(Debug)]
pub(super) struct SelfChecks {
    /// Where there is a front-proxy certificate, and it is to be probed.
    probe: Option<FrontProxyProbe>,
    rights: OwnRights,
    /// Whether the way to the API server leads back to weir.
    loops: Arc<LoopDetector>,
}
