//! Whether weir can do its work: it has not been told to go, and the API server answers.
//!
//! The API server is asked with weir's own credentials, at most once a second whoever asks, and any answer of its counts:
//! whether the API server is well is its own `/readyz`'s to say, and a load balancer in front asks for that through weir. The
//! same request tells whether the upstream leads back to this weir ([`loops`](crate::upstream::loop_detection)).

pub mod front_proxy;

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use http::Method;
use http::uri::PathAndQuery;
use http_body_util::BodyExt;
use http_body_util::Limited;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::clock::Clock;
use crate::drain::Drain;
use crate::observe::readiness::front_proxy::FrontProxyHealth;
use crate::observe::status::snapshot;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::headers;
use crate::upstream::headers::Internal;
use crate::upstream::loop_detection::LoopDetector;
use crate::upstream::pool::Pool;

/// How long an answer is good for: probes of any frequency cost the API server one request a second.
const CACHE_TTL: Duration = Duration::from_secs(1);

/// How long an answer is shown to who does not ask: longer than an answer may take.
const STALE_AFTER: Duration = Duration::from_secs(15);

/// How long the API server may take; the kubelet's probes give up after a second or a few.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// More than `/readyz` ever says.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Asks, and remembers for a moment.
#[derive(Debug)]
pub struct Readiness {
    upstream: Arc<Pool<Internal>>,
    own_credentials: Arc<OwnCredentials>,
    drain: Arc<Drain>,
    /// What the API server takes weir's front-proxy certificate for, where there is one.
    front_proxy: Option<Arc<FrontProxyHealth>>,
    /// Whether what is asked of the API server comes back to this weir.
    loop_detector: Arc<LoopDetector>,
    /// The last answer. Held while asking, so that many askers cause one question.
    last_probe: Mutex<Option<(Instant, Result<(), String>)>>,
    /// The same, for who does not want to wait for the next.
    published_probe: ArcSwapOption<(Instant, Result<(), String>)>,
}

impl Readiness {
    /// Readiness of what `upstream` leads to.
    #[must_use]
    pub fn new(
        upstream: Arc<Pool<Internal>>,
        own: Arc<OwnCredentials>,
        drain: Arc<Drain>,
        loops: Arc<LoopDetector>,
    ) -> Self {
        Self {
            upstream,
            own_credentials: own,
            drain,
            front_proxy: None,
            loop_detector: loops,
            last_probe: Mutex::default(),
            published_probe: ArcSwapOption::empty(),
        }
    }

    /// Fails, too, where `health` does.
    #[must_use]
    pub fn with_front_proxy(mut self, health: Option<Arc<FrontProxyHealth>>) -> Self {
        self.front_proxy = health;
        self
    }

    fn front_proxy_failure(&self) -> Option<String> {
        self.front_proxy.as_ref()?.failure()
    }

    /// What `/readyz` says: the checks, and whether all is well.
    ///
    /// # Cancel safety
    /// Nothing is lost; the next asker asks again.
    pub async fn report(&self) -> (bool, String) {
        let shutdown = if self.drain.is_ready() {
            Ok(())
        } else {
            Err("weir is shutting down".to_owned())
        };
        let mut checks = vec![
            ("shutdown", shutdown),
            ("upstream", self.check_upstream().await),
            (
                "loop",
                self.loop_detector.readiness_failure().map_or(Ok(()), Err),
            ),
        ];
        if self.front_proxy.is_some() {
            let failure = self.front_proxy_failure();
            checks.push(("front-proxy", failure.map_or(Ok(()), Err)));
        }
        let ready = checks.iter().all(|(_, check)| check.is_ok());
        let mut text = String::new();
        for (name, check) in checks {
            text.push_str(&match check {
                Ok(()) => format!("[+]{name} ok\n"),
                Err(why) => format!("[-]{name} failed: {why}\n"),
            });
        }
        if self.own_credentials.is_configured() {
            text.push_str(&match self.own_credentials.health() {
                Ok(()) => "[+]own-credential ok\n".to_owned(),
                // Requests whose tokens weir need not review go on.
                Err(why) => format!("[-]own-credential failed, readiness not affected: {why}\n"),
            });
        }
        text.push_str(if ready {
            "readyz check passed\n"
        } else {
            "readyz check failed\n"
        });
        (ready, text)
    }

    /// Whether the last answer is of so long ago; none at all is.
    #[must_use]
    pub fn is_older_than(&self, age: Duration, now: Instant) -> bool {
        // Held: somebody asks at the moment.
        self.last_probe.try_lock().is_ok_and(|last| {
            last.as_ref()
                .is_none_or(|(at, _)| now.saturating_duration_since(*at) >= age)
        })
    }

    /// What is known without asking; an answer of long ago is none.
    #[must_use]
    pub fn snapshot(&self, now: Instant) -> snapshot::ReadinessStatus {
        let shutting_down = !self.drain.is_ready();
        let answer = self.published_probe.load();
        let upstream = answer
            .as_deref()
            .filter(|(at, _)| now.saturating_duration_since(*at) < STALE_AFTER)
            .map(|(_, answer)| answer);
        let front_proxy_failure = self.front_proxy_failure();
        let loop_failure = self.loop_detector.readiness_failure();
        let well = front_proxy_failure.is_none() && loop_failure.is_none() && !shutting_down;
        snapshot::ReadinessStatus {
            ready: upstream.map(|answer| answer.is_ok() && well),
            shutting_down,
            front_proxy_failure,
            loop_failure,
            upstream_failure: upstream.and_then(|answer| answer.clone().err()),
        }
    }

    /// What `/readyz` would say, as far as is known without asking: [`Status::run`] sees to it that somebody asks.
    ///
    /// [`Status::run`]: crate::observe::status::Status::run
    #[must_use]
    pub fn last_known_ready(&self) -> bool {
        let answer = self.published_probe.load();
        let failed = answer.as_deref().is_some_and(|(_, answer)| answer.is_err());
        let checks = [
            self.front_proxy_failure(),
            self.loop_detector.readiness_failure(),
        ];
        self.drain.is_ready() && !failed && checks.iter().all(Option::is_none)
    }

    async fn check_upstream(&self) -> Result<(), String> {
        let mut last = self.last_probe.lock().await;
        if let Some((at, answer)) = &*last
            && Clock.now().saturating_duration_since(*at) < CACHE_TTL
        {
            return answer.clone();
        }
        let answer = timeout(PROBE_TIMEOUT, self.probe_upstream())
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {}s", PROBE_TIMEOUT.as_secs())));
        let now = Clock.now();
        *last = Some((now, answer.clone()));
        self.published_probe
            .store(Some(Arc::new((now, answer.clone()))));
        answer
    }

    async fn probe_upstream(&self) -> Result<(), String> {
        // Without a credential the question is as good: any answer counts.
        let authorization = self.own_credentials.authorization().unwrap_or_default();
        let request = headers::internal_head(
            Method::GET,
            PathAndQuery::from_static("/readyz"),
            authorization,
        );
        let (request, nonce) = self.loop_detector.start_probe(request);
        let (response, mut turn) = self
            .upstream
            .send_internal(request, RequestBody::empty())
            .await
            .map_err(|why| why.to_string())?;
        if let Some(nonce) = nonce {
            self.loop_detector
                .record_probe_response(&nonce, response.status());
        }
        self.own_credentials.record_response(response.status());
        // Read to its end, so that the connection serves the next question.
        if Limited::new(response.into_body(), MAX_RESPONSE_BYTES)
            .collect()
            .await
            .is_ok()
            && let Some(turn) = &mut turn
        {
            turn.complete();
        }
        Ok(())
    }
}
