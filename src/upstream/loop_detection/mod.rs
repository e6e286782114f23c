//! Loop detection: an upstream that leads back to this weir.
//!
//! Promises: a request that lists this weir's ID ([`cdn_loop`]) is never forwarded. Readiness fails
//! only if a probe of weir's own returned, which the answer to it shows. The ID reaches Pods and
//! aggregated servers, where anything may read and repeat it; none of them answers a probe.
//!
//! The pools append the ID, since no request for the API server bypasses them. A weir that receives
//! a probe adds its ID to the answer, also to the 508 of a loop, so a probe that went round comes
//! back with this weir's. A response that a proxy on the path could have given (429, 502, 503, 504,
//! 508) changes nothing: otherwise a loop that throttles the probe would make readiness flap.
//!
//! A server at an address of weir's own listener ([`is_own_address`]) gets no request at all.

pub mod cdn_loop;

use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{StatusCode, request};
use prometheus::{IntCounterVec, IntGauge};
use tracing::{error, info, warn};

use crate::upstream::loop_detection::cdn_loop::{
    CdnLoopStatus, ID_BYTES, InstanceId, MAX_BYTES, MAX_ENTRIES,
};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_limits::throttling::log_limiter::LogLimiter;

impl InstanceId {
    /// A new random ID.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn generate() -> Result<Self, String> {
        let mut bytes = [0; ID_BYTES];
        aws_lc_rs::rand::fill(&mut bytes)
            .map_err(|_| "the system has no randomness to give".to_owned())?;
        Ok(Self::from_bytes(bytes))
    }
}

/// Whether the request is a probe of this weir or of another.
pub(crate) fn is_probe(head: &request::Parts) -> bool {
    head.uri.path() == "/readyz" && cdn_loop::is_probe(&head.headers)
}

/// Whether `server` is an address of this weir: a connection to it reaches the listener at `listener`.
pub(crate) fn is_own_address(listener: SocketAddr, server: SocketAddr) -> bool {
    let (bound, target) = (listener.ip().to_canonical(), server.ip().to_canonical());
    listener.port() == server.port()
        && (bound == target || (bound.is_unspecified() && is_local_address(target)))
}

/// Whether this machine has the address: for a destination of its own the system chooses the same
/// address as the source. Nothing is sent. (Binding to the address would not tell: load balancers'
/// hosts often allow `ip_nonlocal_bind`.)
pub(crate) fn is_local_address(address: IpAddr) -> bool {
    if address.is_loopback() {
        return true;
    }
    let any: IpAddr = match address {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    source().is_ok_and(|source| source.ip() == address)
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
    /// Whether the last conclusive probe of the single API server returned. Relaxed: nothing else
    /// depends on its order.
    is_looping: AtomicBool,
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
            is_looping: AtomicBool::new(false),
            looping: registry.gauge(
                "weir_upstream_loop",
                "1 while the upstream's address leads back to this weir: its last conclusive probe came back to it; 0 otherwise.",
            ),
            rejected: registry.counters(
                "weir_looped_requests_total",
                "Requests rejected with 508 because of their CDN-Loop header, by reason: it has the id of this weir (own-id), or too many ids (too-many-ids). Probes of weirs are not counted.",
                &["reason"],
            ),
            log_limiter: LogLimiter::default(),
        })
    }

    /// Checks whether a request may be forwarded. Counts and logs a rejected one, unless it is a
    /// probe: that shows by its effect.
    ///
    /// # Errors
    /// The request was forwarded by this weir before, or by too many proxies.
    pub(crate) fn check(
        &self,
        head: &request::Parts,
        client: SocketAddr,
    ) -> Result<(), LoopRejection> {
        let rejection = match cdn_loop::inspect(&head.headers, &self.instance_id) {
            CdnLoopStatus::Absent => return Ok(()),
            CdnLoopStatus::Present if is_probe(head) => return Err(LoopRejection::OwnId),
            CdnLoopStatus::Present => LoopRejection::OwnId,
            CdnLoopStatus::TooMany => LoopRejection::TooManyIds,
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

    /// The id of this weir.
    pub(crate) const fn instance_id(&self) -> &InstanceId {
        &self.instance_id
    }

    /// Records the response to a probe, and whether the probe returned to this weir before.
    pub(crate) fn record_probe(&self, returned: bool, code: StatusCode) {
        if !returned && !is_api_server_response(code) {
            return;
        }
        if self.is_looping.swap(returned, Ordering::Relaxed) == returned {
            return;
        }
        self.looping.set(returned.into());
        if returned {
            error!(
                "weir's own probe came back to it: the upstream's address leads back to this weir, so that /readyz fails and \
                 requests that come back get 508. Give --upstream, or the kubeconfig's server, an address that leads to \
                 the API server and not to weir or to a load balancer before it"
            );
        } else {
            info!("the upstream leads to an API server again");
        }
    }

    /// Why readiness fails, if it does.
    #[must_use]
    pub(crate) fn readiness_failure(&self) -> Option<String> {
        self.is_looping.load(Ordering::Relaxed).then(|| {
            "weir's own probe came back to it: the upstream's address leads back to this weir"
                .to_owned()
        })
    }
}

/// Whether a response to `GET /readyz` shows that the probe reached an API server. A proxy on the
/// path sends the other codes too, for example one that rejects the probe before it returns.
fn is_api_server_response(code: StatusCode) -> bool {
    !matches!(
        code,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
            | StatusCode::LOOP_DETECTED
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_probe_starts_a_loop_and_only_an_api_servers_answer_ends_it() {
        let detector =
            LoopDetector::register(InstanceId::from_bytes([7; ID_BYTES]), &Registry::new());
        let loops_after = |returned, code| {
            detector.record_probe(returned, StatusCode::from_u16(code).unwrap());
            assert_eq!(
                detector.looping.get() == 1,
                detector.readiness_failure().is_some()
            );
            detector.readiness_failure().is_some()
        };
        assert!(!loops_after(false, 508), "that of another proxy");
        for ends in [200, 401, 403, 404, 500] {
            assert!(loops_after(true, 508));
            for code in [429, 502, 503, 504, 508] {
                assert!(loops_after(false, code), "{code}");
            }
            assert!(!loops_after(false, ends), "{ends}");
        }
    }

    fn own(listener: &str, server: &str) -> bool {
        is_own_address(listener.parse().unwrap(), server.parse().unwrap())
    }

    #[test]
    fn a_listener_owns_its_address_and_port() {
        assert!(own("192.0.2.1:6443", "192.0.2.1:6443"));
        assert!(own("[::ffff:192.0.2.1]:6443", "192.0.2.1:6443"));
        assert!(!own("192.0.2.1:6443", "192.0.2.1:6444"));
        assert!(!own("192.0.2.1:6443", "192.0.2.2:6443"));
    }

    #[test]
    fn a_listener_on_all_addresses_owns_this_machine_s() {
        for any in ["0.0.0.0:6443", "[::]:6443"] {
            assert!(own(any, "127.0.0.1:6443"), "{any}");
            assert!(own(any, "127.1.2.3:6443"), "{any}");
            assert!(!own(any, "127.0.0.1:6444"), "{any}");
            assert!(!own(any, "192.0.2.1:6443"), "another machine's: {any}");
        }
    }
}
