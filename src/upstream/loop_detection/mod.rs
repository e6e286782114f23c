//! Loop detection: an upstream that leads back to this weir.
//!
//! Promises: a request that lists this weir's ID ([`cdn_loop`]) is never forwarded. Readiness fails
//! only if a probe of weir's own returned ([`probes`]). The ID reaches Pods and aggregated servers,
//! where anything may read and repeat it; the nonces of probes reach none of them.

pub mod cdn_loop;
pub(crate) mod probes;

use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, StatusCode};
use prometheus::{IntCounterVec, IntGauge};
use tracing::{error, info, warn};

use crate::upstream::loop_detection::cdn_loop::{
    CdnLoopStatus, ID_BYTES, InstanceId, MAX_BYTES, MAX_ENTRIES, Nonce,
};
use crate::upstream::loop_detection::probes::{LoopEvent, LoopProbes};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_limits::throttling::log_limiter::LogLimiter;

impl InstanceId {
    /// A new random ID.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn generate() -> Result<Self, String> {
        random_bytes().map(Self::from_bytes)
    }
}

fn random_bytes() -> Result<[u8; ID_BYTES], String> {
    let mut bytes = [0; ID_BYTES];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| "the system has no randomness to give".to_owned())?;
    Ok(bytes)
}

/// Why a request is rejected because of its `CDN-Loop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopRejection {
    /// It lists this weir.
    OwnId,
    /// It lists too many proxies.
    TooManyIds,
}

impl LoopRejection {
    /// The value of the metric label `reason`.
    const fn label(self) -> &'static str {
        match self {
            Self::OwnId => "own-id",
            Self::TooManyIds => "too-many-ids",
        }
    }
}

impl fmt::Display for LoopRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnId => f.write_str(
                "weir has forwarded this request before (its id is in CDN-Loop): the upstream of weir, or of a proxy behind it, leads back to weir",
            ),
            Self::TooManyIds => write!(
                f,
                "the request has been through too many proxies: CDN-Loop lists {MAX_ENTRIES} or more, or is longer than {MAX_BYTES} bytes"
            ),
        }
    }
}

/// Detects loops, and remembers whether weir's upstream is one.
#[derive(Debug)]
pub struct LoopDetector {
    instance_id: InstanceId,
    /// The lock is held for one operation. A client's request takes it only with a nonce beside
    /// this weir's ID.
    probes: Mutex<LoopProbes>,
    /// The probes of several servers. A returned one shows nothing about the others, so it only is
    /// no client's request.
    server_probes: Mutex<LoopProbes>,
    looping: IntGauge,
    rejected: IntCounterVec,
    log_limiter: LogLimiter,
}

impl LoopDetector {
    /// A detector for the process `id`; registers its metrics.
    #[must_use]
    pub fn register(id: InstanceId, registry: &Registry) -> Arc<Self> {
        Arc::new(Self {
            instance_id: id,
            probes: Mutex::default(),
            server_probes: Mutex::default(),
            looping: registry.gauge(
                "weir_upstream_loop",
                "1 while the upstream's address leads back to this weir: its last conclusive probe came back to it; 0 otherwise.",
            ),
            rejected: registry.counters(
                "weir_looped_requests_total",
                "Requests rejected with 508 because of their CDN-Loop header, by reason: it has the id of this weir (own-id), or too many ids (too-many-ids). weir's own probes are not counted.",
                &["reason"],
            ),
            log_limiter: LogLimiter::default(),
        })
    }

    /// Checks whether a request with `headers` may be forwarded. Counts and logs a rejected one,
    /// and records a probe that returned.
    ///
    /// # Errors
    /// The request was forwarded by this weir before, or by too many proxies.
    pub(crate) fn check(
        &self,
        headers: &HeaderMap,
        client: SocketAddr,
    ) -> Result<(), LoopRejection> {
        let rejection = match cdn_loop::inspect(headers, &self.instance_id) {
            CdnLoopStatus::Absent => return Ok(()),
            CdnLoopStatus::TooMany => LoopRejection::TooManyIds,
            CdnLoopStatus::Present(nonce) => {
                let returned = |nonce: &Nonce| {
                    let now = Clock.now();
                    self.update(|probes| probes.record_returned(nonce, now))
                        .is_some()
                        || self
                            .server_probes
                            .lock()
                            .record_returned(nonce, now)
                            .is_some()
                };
                if nonce.as_ref().is_some_and(returned) {
                    // weir's own probe: reported by its effect, not counted.
                    return Err(LoopRejection::OwnId);
                }
                LoopRejection::OwnId
            }
        };
        self.rejected.with_label_values(&[rejection.label()]).inc();
        if let Some(more) = self.log_limiter.try_log(Clock.now()) {
            warn!(
                %client,
                reason = rejection.label(),
                more,
                "a request gets 508: its CDN-Loop header has the id of this weir, or too many ids"
            );
        }
        Err(rejection)
    }

    /// Starts a probe. Returns its nonce, and the first `CDN-Loop` entry that its request must
    /// carry. `None` if the system has no randomness to give.
    pub(crate) fn start_probe(&self) -> Option<(Nonce, HeaderValue)> {
        let nonce = random_bytes().map(Nonce::from_bytes).ok()?;
        self.probes().record_sent(nonce.clone(), Clock.now());
        let entry = self.instance_id.probe_entry(&nonce);
        Some((nonce, entry))
    }

    /// Starts a probe of one of several servers. Returns the first `CDN-Loop` entry that its request
    /// must carry. `None` if the system has no randomness to give.
    pub(crate) fn start_server_probe(&self) -> Option<HeaderValue> {
        let nonce = random_bytes().map(Nonce::from_bytes).ok()?;
        let entry = self.instance_id.probe_entry(&nonce);
        self.server_probes.lock().record_sent(nonce, Clock.now());
        Some(entry)
    }

    /// The id of this weir.
    pub(crate) const fn instance_id(&self) -> &InstanceId {
        &self.instance_id
    }

    /// Records the response to the probe with `nonce`.
    pub(crate) fn record_probe_response(&self, nonce: &Nonce, code: StatusCode) {
        self.update(|probes| probes.record_response(nonce, code));
    }

    /// Why readiness fails, if it does.
    #[must_use]
    pub(crate) fn readiness_failure(&self) -> Option<String> {
        let looping = self.probes().looping();
        looping.then(|| {
            "weir's own probe came back to it: the upstream's address leads back to this weir"
                .to_owned()
        })
    }

    fn update(
        &self,
        change: impl FnOnce(&mut LoopProbes) -> Option<LoopEvent>,
    ) -> Option<LoopEvent> {
        // The gauge is set under the lock, so that it ends up in the same state.
        let mut probes = self.probes();
        let event = change(&mut probes);
        self.looping.set(probes.looping().into());
        match event {
            Some(LoopEvent::Started) => error!(
                "weir's own probe came back to it: the upstream's address leads back to this weir, so that /readyz fails and \
                 requests that come back get 508. Give --upstream, or the kubeconfig's server, an address that leads to \
                 the API server and not to weir or to a load balancer before it"
            ),
            Some(LoopEvent::Ended) => info!("the upstream leads to an API server again"),
            Some(LoopEvent::Continued) | None => {}
        }
        event
    }

    fn probes(&self) -> MutexGuard<'_, LoopProbes> {
        self.probes.lock()
    }
}
