//! Readiness of weir: it is not shutting down, and the API server responds.
//!
//! The probes of the API servers decide
//! ([`server_probes`](crate::upstream::forward::server_probes)). The health of the API server itself
//! is the subject of its own `/readyz`, which a load balancer requests through weir. The same probes
//! detect whether the upstream leads back to this weir
//! ([`loop_detection`](crate::upstream::loop_detection)).
//!
//! Promises: reading the state never waits.

pub mod config_status;
pub mod front_proxy;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;

use crate::flowcontrol::sources::LiveObjects;
use crate::observe::readiness::config_status::ConfigStatus;
use crate::observe::readiness::front_proxy::FrontProxyHealth;
use crate::replicas::coordinator::Replicas;
use crate::replicas::state::ReplicaReport;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::loop_detection::LoopDetector;
use crate::upstream::servers::health::{HANG_TIME, UpstreamReadiness};
use crate::upstream::servers::server_set::{ServerSet, ServerSnapshot};
use weir_base::clock::Clock;
use weir_base::drain::Drain;
use weir_kubernetes::numeric::saturating_u64;
use weir_limits::shared_limits::status::SharedLimitsStatus;
use weir_status::snapshot::ReadinessStatus;

/// A program that asks for readiness gets a probe that is at most this old: requests of any number
/// cost the API server one a second.
const MAX_AGE: Duration = Duration::from_secs(1);

/// What decides about readiness, and what is shown with it.
#[derive(Debug)]
pub struct Readiness {
    servers: Arc<ServerSet>,
    own_credentials: Arc<OwnCredentials>,
    drain: Arc<Drain>,
    /// Whether the API server accepts weir's front-proxy certificate, if there is one.
    front_proxy: ArcSwapOption<FrontProxyHealth>,
    /// The last attempt to replace the configuration.
    config: Arc<ConfigStatus>,
    /// The flow schemas and priority levels. `None` without priority and fairness.
    flowcontrol: ArcSwapOption<LiveObjects>,
    /// The division of the totals among replicas, if there is one.
    replicas: ArcSwapOption<Replicas>,
    /// Whether rates are shared with other replicas, if that is configured.
    shared_limits: ArcSwapOption<SharedLimitsStatus>,
    /// Detects probes that come back to this weir.
    loop_detector: Arc<LoopDetector>,
}

impl Readiness {
    /// Creates the readiness of a weir in front of `servers`.
    #[must_use]
    pub(crate) fn new(
        servers: Arc<ServerSet>,
        own_credentials: Arc<OwnCredentials>,
        drain: Arc<Drain>,
        loop_detector: Arc<LoopDetector>,
        config: Arc<ConfigStatus>,
    ) -> Self {
        Self {
            servers,
            own_credentials,
            drain,
            front_proxy: ArcSwapOption::empty(),
            config,
            flowcontrol: ArcSwapOption::empty(),
            replicas: ArcSwapOption::empty(),
            shared_limits: ArcSwapOption::empty(),
            loop_detector,
        }
    }

    /// The check of the front-proxy certificate, if there is one.
    pub(crate) fn set_front_proxy(&self, health: Option<Arc<FrontProxyHealth>>) {
        self.front_proxy.store(health);
    }

    /// The flow schemas and priority levels in force. Warnings about those of the cluster never
    /// fail readiness.
    pub(crate) fn set_flowcontrol(&self, objects: Option<Arc<LiveObjects>>) {
        self.flowcontrol.store(objects);
    }

    /// The division of the totals among replicas. It never fails readiness: a replica that is cut
    /// off serves with its floor.
    pub(crate) fn set_replicas(&self, replicas: Option<Replicas>) {
        self.replicas.store(replicas.map(Arc::new));
    }

    /// The division of the totals among replicas, if there is one.
    #[must_use]
    pub(crate) fn division(&self) -> Option<Arc<Replicas>> {
        self.replicas.load_full()
    }

    /// What is shown of the division, if there is one.
    #[must_use]
    pub(crate) fn replicas(&self) -> Option<ReplicaReport> {
        self.replicas
            .load()
            .as_ref()
            .map(|replicas| replicas.report())
    }

    /// The state of shared rate limits. It never fails readiness: each replica has its share.
    pub(crate) fn set_shared_limits(&self, status: Option<Arc<SharedLimitsStatus>>) {
        self.shared_limits.store(status);
    }

    /// Why the cluster's flow schemas and priority levels cannot be read.
    pub(crate) fn flowcontrol_failure(&self) -> Option<String> {
        let status = self.flowcontrol.load().as_ref()?.cluster_status();
        status.failure().map(str::to_owned)
    }

    /// weir's own credential.
    pub(crate) const fn own_credentials(&self) -> &Arc<OwnCredentials> {
        &self.own_credentials
    }

    /// The first error of the last configuration, if it was refused.
    pub(crate) fn config_error(&self) -> Option<String> {
        self.config.first_error()
    }

    fn shared_limits_failure(&self) -> Option<String> {
        self.shared_limits.load().as_ref()?.failure()
    }

    fn front_proxy_failure(&self) -> Option<String> {
        self.front_proxy.load().as_ref()?.failure()
    }

    /// The checks that decide about readiness, by the last known state of the API server. Waits for
    /// nothing.
    #[must_use]
    pub(crate) fn checks(&self) -> Vec<(&'static str, Result<(), String>)> {
        let shutdown = if self.drain.is_ready() {
            Ok(())
        } else {
            Err("weir is shutting down".to_owned())
        };
        let upstream = match self.upstream(Clock.now()) {
            UpstreamReadiness::Late(_) | UpstreamReadiness::Ready => Ok(()),
            UpstreamReadiness::NotReady(why) => Err(why),
            UpstreamReadiness::Unknown => Err("not probed yet".to_owned()),
        };
        vec![
            ("shutdown", shutdown),
            ("upstream", upstream),
            (
                "loop",
                self.loop_detector.readiness_failure().map_or(Ok(()), Err),
            ),
        ]
    }

    /// Whether all checks pass.
    #[must_use]
    pub(crate) fn is_ready(&self) -> bool {
        self.checks().iter().all(|(_, check)| check.is_ok())
    }

    fn upstream(&self, now: Instant) -> UpstreamReadiness {
        self.servers.list().readiness(now)
    }

    /// The state of each API server at `now`.
    #[must_use]
    pub(crate) fn servers(&self, now: Instant) -> Vec<ServerSnapshot> {
        self.servers.states(now)
    }

    /// The states of several API servers, of which one that is ready is enough. Empty for a single
    /// one.
    #[must_use]
    pub(crate) fn several_servers(&self, now: Instant) -> Vec<ServerSnapshot> {
        match self.servers.has_choice() {
            true => self.servers.states(now),
            false => Vec::new(),
        }
    }

    /// Returns the last known readiness.
    #[must_use]
    pub(crate) fn snapshot(&self, now: Instant) -> ReadinessStatus {
        let shutting_down = !self.drain.is_ready();
        let loop_failure = self.loop_detector.readiness_failure();
        let (responds, upstream_failure) = match self.upstream(now) {
            UpstreamReadiness::Late(why) => (Some(true), Some(why)),
            UpstreamReadiness::NotReady(why) => (Some(false), Some(why)),
            UpstreamReadiness::Ready => (Some(true), None),
            UpstreamReadiness::Unknown => (None, None),
        };
        let others_pass = loop_failure.is_none() && !shutting_down;
        let age = |at| saturating_u64(now.saturating_duration_since(at).as_millis());
        ReadinessStatus {
            ready: responds.map(|responds| responds && others_pass),
            shutting_down,
            front_proxy_failure: self.front_proxy_failure(),
            loop_failure,
            shared_limits_failure: self.shared_limits_failure(),
            upstream_failure,
            age_ms: self.servers.list().probed_at().map(age),
        }
    }

    /// Whether all checks pass, or that of the API server is still to come.
    #[must_use]
    pub(crate) fn last_known_ready(&self) -> bool {
        let is_unknown = self.upstream(Clock.now()) == UpstreamReadiness::Unknown;
        let mut checks = self.checks().into_iter();
        checks.all(|(name, check)| check.is_ok() || (name == "upstream" && is_unknown))
    }

    /// Waits for a probe, unless the last one ended less than [`MAX_AGE`] ago, but no longer than
    /// until it shows that the API server hangs.
    ///
    /// # Cancel safety
    /// The probe goes on.
    pub(crate) async fn refreshed(&self) {
        let is_recent = |at| Clock.now().saturating_duration_since(at) < MAX_AGE;
        if !self.servers.list().probed_at().is_some_and(is_recent) {
            self.servers.wait_for_probe(HANG_TIME).await;
        }
    }
}
