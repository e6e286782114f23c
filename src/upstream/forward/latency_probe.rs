//! Times small reads of the API servers: how long urgent work takes inside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use tokio::time::timeout;
use tracing::info;

use crate::upstream::body::request_body::RequestBody;
use crate::upstream::connection::error::ForwardError;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::forward::send::{AttemptError, Outgoing, SendAttempt, SendContext};
use crate::upstream::forward::server_pools::ServerPools;
use crate::upstream::headers;
use crate::upstream::headers::auth_mode::Internal;
use crate::upstream::loop_detection::LoopDetector;
use crate::upstream::pool::connection_class::ConnectionClass;
use crate::upstream::requester::Requester;
use crate::upstream::servers::api_server::ApiServer;
use weir_base::clock::Clock;

/// A read that the API server answers from etcd, as every read without a resource version.
const QUORUM_READ: &str = "/api/v1/namespaces/default";

/// A read for whoever may read nothing.
const PING: &str = "/livez/ping";

/// More than a Namespace has.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// What a probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeTime {
    /// From the last byte of the request to the first of the answer.
    Answered(Duration),
    /// The API server rejected the probe: 429.
    Rejected,
    /// The API server refused the connection.
    Refused,
    /// No answer in time.
    NoAnswer,
    /// Nothing was found out: the server is gone, or the connection broke.
    Unknown,
}

/// Times reads over connections of their own.
#[derive(Debug)]
pub(crate) struct LatencyProbe {
    pub(crate) pools: Arc<ServerPools<Internal>>,
    pub(crate) credentials: Arc<OwnCredentials>,
    pub(crate) loop_detector: Arc<LoopDetector>,
    /// Whether the Namespace may not be read, as without credentials.
    pub(crate) pings: AtomicBool,
}

impl LatencyProbe {
    /// The servers to probe.
    pub(crate) fn servers(&self) -> Vec<Arc<ApiServer>> {
        let list = self.pools.servers().list();
        let mut servers = list.servers.clone();
        servers.retain(|server| !server.is_own() && !server.is_removed());
        servers
    }

    /// Times a read of `server`, for at most `limit`.
    ///
    /// # Cancel safety
    /// The server may execute the read.
    pub(crate) async fn time(&self, server: &Arc<ApiServer>, limit: Duration) -> ProbeTime {
        match timeout(limit, self.send(server)).await {
            Ok(time) => time,
            Err(_) => {
                // The connection may be stuck while the server is well: the next probe has another.
                if let Some(pool) = self.pools.pool_of(server) {
                    pool.retire_all();
                }
                ProbeTime::NoAnswer
            }
        }
    }

    async fn send(&self, server: &Arc<ApiServer>) -> ProbeTime {
        let Some(pool) = self.pools.pool_of(server) else {
            return ProbeTime::Unknown;
        };
        let authorization = self.credentials.authorization().unwrap_or_default();
        let path = match self.pings.load(Ordering::Relaxed) {
            true => PING,
            false => QUORUM_READ,
        };
        let head =
            headers::internal_head(Method::GET, PathAndQuery::from_static(path), authorization);
        let request = Outgoing {
            head: head.with_cdn_loop(self.loop_detector.instance_id().probe_entry()),
            body: RequestBody::empty(),
        };
        let attempt = SendAttempt {
            class: ConnectionClass::Shared,
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
        self.pools
            .count_internal_request(code, Method::GET.as_str());
        let response = match result.map_err(AttemptError::into_error) {
            Ok(response) => response,
            Err(ForwardError::Connect(_)) => return ProbeTime::Refused,
            Err(_) => return ProbeTime::Unknown,
        };
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES);
        if body.collect().await.is_ok()
            && let Some(guard) = &mut guard
        {
            guard.complete();
        }
        self.classify(status, sent_at, answered_at)
    }

    fn classify(&self, status: StatusCode, sent: Option<Instant>, answered: Instant) -> ProbeTime {
        if status == StatusCode::TOO_MANY_REQUESTS {
            return ProbeTime::Rejected;
        }
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
            && !self.pings.swap(true, Ordering::Relaxed)
        {
            info!(
                "may not read the Namespace default (namespaces, get): the total follows from the time of {PING}, which does not reach etcd"
            );
            return ProbeTime::Unknown;
        }
        sent.map_or(ProbeTime::Unknown, |sent| {
            ProbeTime::Answered(answered.saturating_duration_since(sent))
        })
    }
}
