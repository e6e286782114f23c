//! Probes of the API servers' `/readyz`: each every two seconds, and at once after a failed request.
//!
//! A probe shows, too, whether a weir answers: each weir adds its ID to answers to probes of weirs.
//! Addresses alone cannot tell: a load balancer has one of its own.
//!
//! There is one prober for the choice of a server and for weir's readiness. `/readyz` is a function
//! of what the probes found and of the time (`upstream::servers::health`), so nothing waits for the
//! API server to report that it hangs.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::uri::PathAndQuery;
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use tokio::time::timeout;

use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::response_body::ResponseBody;
use crate::upstream::connection::error::ForwardError;
use crate::upstream::connection::http_settings::MaxFields;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::forward::send::{AttemptError, Outgoing, SendAttempt, SendContext};
use crate::upstream::forward::server_pools::ServerPools;
use crate::upstream::headers;
use crate::upstream::headers::auth_mode::Internal;
use crate::upstream::headers::request_head::RequestHead;
use crate::upstream::loop_detection::{LoopDetector, cdn_loop};
use crate::upstream::pool::connection_class::ConnectionClass;
use crate::upstream::pool::stream_guard::StreamGuard;
use crate::upstream::requester::Requester;
use crate::upstream::servers::api_server::ApiServer;
use crate::upstream::servers::health::{ProbeOutcome, WeirServer};
use weir_base::clock::Clock;

/// The interval of probes: no load for a server, and short enough to see a restart.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// Longest time of a probe. A server that takes longer for `/readyz` hangs.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// The shortest time between two probes of a server, however often its requests fail.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Longest response in bytes; more than `/readyz` has.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Probes all API servers.
#[derive(Debug)]
pub(crate) struct ServerProbes {
    /// Connections with weir's own credentials.
    pub(crate) pools: Arc<ServerPools<Internal>>,
    /// weir's own credentials.
    pub(crate) credentials: Arc<OwnCredentials>,
    /// Records probes that come back.
    pub(crate) loop_detector: Arc<LoopDetector>,
    /// The interval of probes.
    pub(crate) interval: Duration,
}

impl ServerProbes {
    /// Probes each of several servers once.
    ///
    /// # Cancel safety
    /// Probes in progress are not counted.
    pub(crate) async fn run_once(&self) {
        let list = self.pools.servers().list().clone();
        if list.has_choice() {
            join_all(list.servers.iter().map(|server| self.probe(server))).await;
        }
    }

    /// Probes until the future is dropped.
    ///
    /// # Cancel safety
    /// Probes in tasks of removed servers end by themselves.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut changes = self.pools.servers().changes();
        let mut tasks: Vec<Weak<ApiServer>> = Vec::new();
        loop {
            let list = self.pools.servers().list().clone();
            tasks.retain(|server| server.strong_count() > 0);
            for server in &list.servers {
                if !tasks
                    .iter()
                    .any(|task| std::ptr::eq(task.as_ptr(), Arc::as_ptr(server)))
                {
                    tasks.push(Arc::downgrade(server));
                    tokio::spawn(Arc::clone(&self).run_server(Arc::clone(server)));
                }
            }
            drop(list);
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn run_server(self: Arc<Self>, server: Arc<ApiServer>) {
        if server.probes() > 0 {
            self.wait_until_due(&server, self.interval).await; // it has just been probed
        }
        while !server.is_removed() {
            let responds = self.probe(&server).await;
            tokio::time::sleep(MIN_INTERVAL.min(self.interval)).await;
            let interval = match responds && !server.is_gated(Clock.now()) {
                true => self.interval,
                false => self.interval / 4, // a server that is back gets requests soon
            };
            self.wait_until_due(&server, interval).await;
        }
    }

    /// Waits until the next probe is due, or requested.
    async fn wait_until_due(&self, server: &ApiServer, interval: Duration) {
        let wait = interval.mul_f64(fastrand::f64().mul_add(0.2, 0.9));
        let _ = timeout(wait, server.wait_for_probe_request()).await;
    }

    /// Probes a server and records the outcome. Returns whether it responds.
    async fn probe(&self, server: &Arc<ApiServer>) -> bool {
        if server.is_own() {
            return true;
        }
        server.record_probe_sent(Clock.now());
        let outcome = timeout(PROBE_TIMEOUT, self.send_probe(server)).await;
        let outcome = outcome.unwrap_or_else(|_| {
            // The connection may be stuck while the server is well: the next probe has another.
            if let Some(pool) = self.pools.pool_of(server) {
                pool.retire_all();
            }
            let limit = PROBE_TIMEOUT.as_secs();
            ProbeOutcome::NoResponse(format!("no response within {limit}s"))
        });
        let responds = outcome.is_response();
        if !server.is_removed() {
            self.pools.servers().record_probe(server, outcome);
        }
        responds
    }

    async fn send_probe(&self, server: &Arc<ApiServer>) -> ProbeOutcome {
        let sent = self
            .pools
            .probe(server, "/readyz", &self.credentials, &self.loop_detector);
        let Some(sent) = sent.await else {
            return ProbeOutcome::NoResponse("it was removed".to_owned());
        };
        let response = match sent.result {
            Ok(response) => response,
            Err(error) => return failure(error),
        };
        self.credentials.record_response(response.status());
        let outcome = self.classify(server, &response);
        read_to_end(response, sent.guard).await;
        outcome
    }

    /// Several servers exclude those that are a weir. A single one may be another weir; if it leads
    /// back to this one, that fails readiness.
    fn classify(&self, server: &ApiServer, response: &Response<ResponseBody>) -> ProbeOutcome {
        let own_id = self.loop_detector.instance_id().as_bytes();
        let weirs = response.headers().get_all(cdn_loop::INSTANCE).iter();
        let mut weirs = weirs.flat_map(|ids| ids.as_bytes().split(|byte| *byte == b','));
        let has_returned = weirs.any(|id| id.trim_ascii() == own_id);
        let is_weir = response.headers().contains_key(cdn_loop::INSTANCE);
        let (code, is_verified) = (response.status(), self.pools.servers().list().is_verified());
        if !server.is_removed() {
            self.loop_detector
                .record_probe(has_returned && !is_verified, code);
        }
        match (is_verified, has_returned, is_weir) {
            (false, true, _) => ProbeOutcome::Ready,
            (true, true, _) => ProbeOutcome::Weir(WeirServer::OwnProbe),
            (true, false, true) => ProbeOutcome::Weir(WeirServer::Peer),
            (_, false, _) => classify_status(code),
        }
    }
}

/// A request of weir's own that was sent to one API server.
pub(super) struct SentRequest {
    pub(super) result: Result<Response<ResponseBody>, ForwardError>,
    pub(super) guard: Option<Box<dyn StreamGuard>>,
    /// When the request was handed to a connection, if it was.
    pub(super) sent_at: Option<Instant>,
    /// When the head of the response, or the error, came.
    pub(super) answered_at: Instant,
}

impl ServerPools<Internal> {
    /// Sends GET for `path` to `server`, marked as a probe of this weir. `None`: the server was
    /// removed.
    ///
    /// # Cancel safety
    /// The server may answer; the probe is not counted.
    pub(super) async fn probe(
        &self,
        server: &Arc<ApiServer>,
        path: &'static str,
        credentials: &OwnCredentials,
        loop_detector: &LoopDetector,
    ) -> Option<SentRequest> {
        let authorization = credentials.authorization().unwrap_or_default();
        let path = PathAndQuery::from_static(path);
        let head = headers::internal_head(Method::GET, path, authorization);
        let probe = loop_detector.instance_id().probe_entry();
        self.send_to(server, head.with_cdn_loop(probe)).await
    }

    /// Sends a request without a body to `server`, once. `None`: the server was removed.
    ///
    /// # Cancel safety
    /// The request may have been executed; it is not counted.
    pub(super) async fn send_to(
        &self,
        server: &Arc<ApiServer>,
        head: RequestHead<Internal>,
    ) -> Option<SentRequest> {
        let pool = self.pool_of(server)?;
        let method = head.method().clone();
        let request = Outgoing {
            head,
            body: RequestBody::empty(),
        };
        let attempt = SendAttempt {
            class: ConnectionClass::Shared,
            max_fields: MaxFields::Usual,
            counted: None,
            patience: None,
        };
        let (mut guard, mut sent_at) = (None, None);
        let mut context = SendContext {
            requester: &Requester::default(),
            guard: &mut guard,
            sent_at: &mut sent_at,
        };
        let result = pool.attempt(request, attempt, &mut context).await;
        let answered_at = Clock.now();
        let code = result.as_ref().map(Response::status);
        let code = code.as_ref().map_or("<error>", StatusCode::as_str);
        self.count_internal_request(code, method.as_str());
        Some(SentRequest {
            result: result.map_err(AttemptError::into_error),
            guard,
            sent_at,
            answered_at,
        })
    }
}

/// Reads the body of a probe's response to its end, so that the connection can be reused.
pub(super) async fn read_to_end(
    response: Response<ResponseBody>,
    guard: Option<Box<dyn StreamGuard>>,
) {
    let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES);
    if body.collect().await.is_ok()
        && let Some(mut guard) = guard
    {
        guard.complete();
    }
}

/// A single connection that breaks is no sign that the server is gone: the next one shows it.
fn failure(error: ForwardError) -> ProbeOutcome {
    if matches!(
        error,
        ForwardError::Connect(_)
            | ForwardError::Proxy(_)
            | ForwardError::ProxyRejected(_)
            | ForwardError::Tls(_)
    ) {
        ProbeOutcome::Unreachable(error)
    } else {
        ProbeOutcome::NoResponse(error.to_string())
    }
}

/// What `/readyz` says. A response that is no answer of it (401 without anonymous authentication,
/// 429) shows that the server responds, and counts as ready.
fn classify_status(code: StatusCode) -> ProbeOutcome {
    match code {
        StatusCode::INTERNAL_SERVER_ERROR
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT
        | StatusCode::LOOP_DETECTED => {
            ProbeOutcome::NotReady(format!("its /readyz answers {code}"))
        }
        _ => ProbeOutcome::Ready,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::upstream::connection::address::{ServerAddress, parse_server};
    use crate::upstream::credentials::CredentialSource;
    use crate::upstream::loop_detection::cdn_loop::InstanceId;
    use crate::upstream::servers::health::UpstreamReadiness;
    use crate::upstream::{UpstreamConfig, UpstreamMetrics, UpstreamProtocol};
    use weir_base::metrics::Registry;
    use weir_x509::CertificatePool;

    #[tokio::test(start_paused = true)]
    async fn a_single_server_is_probed_and_not_ready_within_eight_seconds_after_it_hangs() {
        // It accepts connections, and answers nothing.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let (authority, name) = parse_server(&url).unwrap();
        let id = InstanceId::from_bytes([1; 16]);
        let config = UpstreamConfig {
            servers: vec![ServerAddress::new(authority, name)],
            endpoint_slices: false,
            roots: CertificatePool::default(),
            front_proxy: None,
            max_http2_connections: 1,
            protocol: UpstreamProtocol::Auto,
            max_connections: 10,
            instance_id: id.clone(),
            probe_interval: Some(PROBE_INTERVAL),
        };
        let registry = Registry::new();
        let source = CredentialSource::Configured {
            certificate: None,
            token: None,
        };
        let (credentials, _renewal) = OwnCredentials::start(source, Clock).await.unwrap();
        let servers = crate::upstream::server_set(&config, &registry);
        let metrics = UpstreamMetrics::register(&registry);
        let probes = Arc::new(ServerProbes {
            pools: crate::upstream::internal_pools(&config, &servers, &credentials, &metrics),
            credentials,
            loop_detector: LoopDetector::register(id, &registry),
            interval: PROBE_INTERVAL,
        });
        // It has just answered.
        let only = Arc::clone(&servers.list().servers[0]);
        servers.record_probe(&only, ProbeOutcome::Ready);
        let hangs_since = Clock.now();
        tokio::spawn(probes.run());
        let readiness = || servers.list().readiness(Clock.now());
        while !matches!(readiness(), UpstreamReadiness::NotReady(_)) {
            let seconds = (Clock.now() - hangs_since).as_secs_f64();
            assert!(seconds < 8.0, "{:?}", readiness());
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        let seconds = (Clock.now() - hangs_since).as_secs_f64();
        assert!(seconds > 5.0, "{seconds}");
    }

    #[test]
    fn a_connection_that_breaks_during_a_probe_is_not_a_server_that_cannot_be_reached() {
        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let broken = failure(ForwardError::reset(refused()));
        assert!(matches!(broken, ProbeOutcome::NoResponse(_)));
        let unreachable = failure(ForwardError::Connect(Arc::new(refused())));
        assert!(matches!(unreachable, ProbeOutcome::Unreachable(_)));
    }

    #[test]
    fn a_server_is_ready_unless_its_readyz_fails() {
        for (code, ready) in [
            (200, true),
            (401, true),
            (403, true),
            (404, true),
            (429, true),
            (500, false),
            (502, false),
            (503, false),
            (504, false),
            (508, false),
        ] {
            let outcome = classify_status(StatusCode::from_u16(code).unwrap());
            assert_eq!(matches!(outcome, ProbeOutcome::Ready), ready, "{code}");
        }
    }
}
