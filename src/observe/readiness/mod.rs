//! Readiness of weir: it is not shutting down, and the API server responds.
//!
//! The API server is probed with weir's own credentials, at most once a second however many callers
//! there are, and any response counts. The health of the API server itself is the subject of its
//! own `/readyz`, which a load balancer requests through weir. The same probe detects whether the
//! upstream leads back to this weir ([`loop_detection`](crate::upstream::loop_detection)).
//!
//! Promises: reading the state never waits. Probes run in tasks of their own, and a server that
//! does not respond shows as such after [`HUNG_AFTER`].

pub(crate) mod config_status;
pub mod front_proxy;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use http::Method;
use http::uri::PathAndQuery;
use http_body_util::{BodyExt, Limited};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::drain::Drain;
use crate::flowcontrol::sources::LiveObjects;
use crate::observe::readiness::config_status::ConfigStatus;
use crate::observe::readiness::front_proxy::FrontProxyHealth;
use crate::replicas::coordinator::Replicas;
use crate::replicas::state::ReplicaReport;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::forward::server_pools::ServerPools;
use crate::upstream::headers;
use crate::upstream::headers::auth_mode::Internal;
use crate::upstream::loop_detection::LoopDetector;
use crate::upstream::servers::server_set::ServerSnapshot;
use weir_base::clock::Clock;
use weir_kubernetes::numeric::saturating_u64;
use weir_limits::shared_limits::status::SharedLimitsStatus;

/// How long a probe's result is reused: probes of any frequency cost the API server one request a
/// second.
pub(crate) const CACHE_TTL: Duration = Duration::from_secs(1);

/// A probe without a response for this long shows that the API server hangs.
const HUNG_AFTER: Duration = Duration::from_secs(2);

/// How long a result is shown to readers that do not probe: longer than a probe may take.
const STALE_AFTER: Duration = Duration::from_secs(15);

/// Longest time of a probe. weir is not ready after it: longer than a busy API server takes.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest response in bytes; more than `/readyz` has.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Readiness in the status snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ReadinessStatus {
    /// The last result of `/readyz`; `None` before the first probe.
    pub(crate) ready: Option<bool>,
    /// Whether weir is shutting down.
    pub(crate) shutting_down: bool,
    /// Why the API server does not accept weir's front-proxy certificate.
    pub(crate) front_proxy_failure: Option<String>,
    /// Why the upstream counts as a loop.
    pub(crate) loop_failure: Option<String>,
    /// Why rate limits are not shared with other replicas; `None` also if they need not be.
    pub(crate) shared_limits_failure: Option<String>,
    /// Why the API server does not respond.
    pub(crate) upstream_failure: Option<String>,
    /// Milliseconds since the API server's last known state. `None` before the first probe.
    pub(crate) age_ms: Option<u64>,
}

/// What is known of the API server from probes.
#[derive(Debug, Default)]
struct ProbeLog {
    /// The end and the result of the last probe.
    last: Option<(Instant, Result<(), String>)>,
    /// The start of the probe that waits for a response.
    waiting_since: Option<Instant>,
}

impl ProbeLog {
    /// Why the API server does not respond, as far as it is known at `now`.
    fn failure(&self, now: Instant) -> Option<String> {
        let waited = self
            .waiting_since
            .map(|since| now.saturating_duration_since(since))
            .filter(|waited| *waited >= HUNG_AFTER);
        match (&self.last, waited) {
            (Some((_, Err(why))), _) => Some(why.clone()),
            (_, Some(waited)) => Some(format!("no response for {}s", waited.as_secs())),
            (_, None) => None,
        }
    }

    fn age(&self, now: Instant) -> Option<Duration> {
        let (at, _) = self.last.as_ref()?;
        Some(now.saturating_duration_since(*at))
    }
}

/// Probes the API server and caches the result.
#[derive(Debug)]
pub struct Readiness {
    upstream: Arc<ServerPools<Internal>>,
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
    /// Locked during a probe, so that there is one at a time.
    probing: tokio::sync::Mutex<()>,
    /// Locked for a few instructions.
    probes: Mutex<ProbeLog>,
}

impl Readiness {
    /// Creates the readiness of the API server behind `upstream`.
    #[must_use]
    pub(crate) fn new(
        upstream: Arc<ServerPools<Internal>>,
        own_credentials: Arc<OwnCredentials>,
        drain: Arc<Drain>,
        loop_detector: Arc<LoopDetector>,
        config: Arc<ConfigStatus>,
    ) -> Self {
        Self {
            upstream,
            own_credentials,
            drain,
            front_proxy: ArcSwapOption::empty(),
            config,
            flowcontrol: ArcSwapOption::empty(),
            replicas: ArcSwapOption::empty(),
            shared_limits: ArcSwapOption::empty(),
            loop_detector,
            probing: tokio::sync::Mutex::default(),
            probes: Mutex::default(),
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
        let failure = |why: Option<String>| why.map_or(Ok(()), Err);
        vec![
            ("shutdown", shutdown),
            ("upstream", self.last_result()),
            ("loop", failure(self.loop_detector.readiness_failure())),
        ]
    }

    /// Whether all checks pass.
    #[must_use]
    pub(crate) fn is_ready(&self) -> bool {
        self.checks().iter().all(|(_, check)| check.is_ok())
    }

    /// The result of the last probe.
    fn last_result(&self) -> Result<(), String> {
        let probes = self.probes.lock();
        match &probes.last {
            Some((_, result)) => result.clone(),
            None => Err(probes
                .failure(Clock.now())
                .unwrap_or_else(|| "not probed yet".to_owned())),
        }
    }

    /// The state of each API server at `now`. A single one is healthy while it responds to the
    /// probes of readiness.
    #[must_use]
    pub(crate) fn servers(&self, now: Instant) -> Vec<ServerSnapshot> {
        let servers = self.upstream.servers();
        let mut states = servers.states(now);
        if !servers.has_choice()
            && let Some(why) = self.probes.lock().failure(now)
        {
            for server in &mut states {
                server.healthy = false;
                server.why = Some(why.clone());
            }
        }
        states
    }

    /// The states of several API servers, of which one that is ready is enough. Empty for a single
    /// one.
    #[must_use]
    pub(crate) fn several_servers(&self, now: Instant) -> Vec<ServerSnapshot> {
        let servers = self.upstream.servers();
        match servers.has_choice() {
            true => servers.states(now),
            false => Vec::new(),
        }
    }

    /// Returns the last known readiness. A result older than `STALE_AFTER` counts as none.
    #[must_use]
    pub(crate) fn snapshot(&self, now: Instant) -> ReadinessStatus {
        let shutting_down = !self.drain.is_ready();
        let front_proxy_failure = self.front_proxy_failure();
        let loop_failure = self.loop_detector.readiness_failure();
        let others_pass = loop_failure.is_none() && !shutting_down;
        let probes = self.probes.lock();
        let age = probes.age(now);
        let upstream_failure = probes.failure(now);
        let responds = match &probes.last {
            Some((_, result)) if age < Some(STALE_AFTER) => Some(result.is_ok()),
            _ => upstream_failure.is_some().then_some(false),
        };
        ReadinessStatus {
            ready: responds.map(|responds| responds && others_pass),
            shutting_down,
            front_proxy_failure,
            loop_failure,
            shared_limits_failure: self.shared_limits_failure(),
            upstream_failure,
            age_ms: age.map(|age| saturating_u64(age.as_millis())),
        }
    }

    /// Returns what `/readyz` would report. The status feed probes regularly.
    #[must_use]
    pub(crate) fn last_known_ready(&self) -> bool {
        let is_unknown = self.probes.lock().last.is_none();
        let mut checks = self.checks().into_iter();
        checks.all(|(name, check)| check.is_ok() || (name == "upstream" && is_unknown))
    }

    /// Probes the API server in a task of its own, unless the last probe ended less than `max_age`
    /// ago or one is under way. There is at most one probe a second, however many callers there are.
    pub(crate) fn refresh(self: &Arc<Self>, max_age: Duration) {
        let is_due = {
            let probes = self.probes.lock();
            let is_old = probes.age(Clock.now()).is_none_or(|age| age >= max_age);
            is_old && probes.waiting_since.is_none()
        };
        if is_due {
            let readiness = Arc::clone(self);
            tokio::spawn(async move { readiness.probe().await });
        }
    }

    /// Waits for the result of a probe that is at most a second old, but no longer than until it
    /// shows that the API server hangs.
    ///
    /// # Cancel safety
    /// The probe goes on.
    pub(crate) async fn refreshed(self: &Arc<Self>) {
        let readiness = Arc::clone(self);
        let probe = tokio::spawn(async move { readiness.probe().await });
        let _ = timeout(HUNG_AFTER, probe).await; // the last known state counts then
    }

    /// Probes the API server, unless the last probe ended less than a second ago.
    async fn probe(&self) {
        let _one = self.probing.lock().await;
        let started = Clock.now();
        {
            let mut probes = self.probes.lock();
            if probes.age(started).is_some_and(|age| age < CACHE_TTL) {
                return;
            }
            probes.waiting_since = Some(started);
        }
        let result = match self.upstream.servers().readiness() {
            Some(result) => result, // by the probes of the servers
            None => timeout(PROBE_TIMEOUT, self.probe_upstream())
                .await
                .unwrap_or_else(|_| {
                    Err(format!("no response within {}s", PROBE_TIMEOUT.as_secs()))
                }),
        };
        *self.probes.lock() = ProbeLog {
            last: Some((Clock.now(), result)),
            waiting_since: None,
        };
    }

    async fn probe_upstream(&self) -> Result<(), String> {
        // Any response counts, so that no credential is needed.
        let authorization = self.own_credentials.authorization().unwrap_or_default();
        let request = headers::internal_head(
            Method::GET,
            PathAndQuery::from_static("/readyz"),
            authorization,
        );
        let (request, nonce) = match self.loop_detector.start_probe() {
            Some((nonce, entry)) => (request.with_cdn_loop(entry), Some(nonce)),
            None => (request, None),
        };
        let (response, mut lease) = self
            .upstream
            .send_internal(request, RequestBody::empty())
            .await
            .map_err(|why| why.to_string())?;
        if let Some(nonce) = nonce {
            self.loop_detector
                .record_probe_response(&nonce, response.status());
        }
        self.own_credentials.record_response(response.status());
        // The body is read to its end, so that the connection can be reused.
        if Limited::new(response.into_body(), MAX_RESPONSE_BYTES)
            .collect()
            .await
            .is_ok()
            && let Some(lease) = &mut lease
        {
            lease.complete();
        }
        Ok(())
    }
}
