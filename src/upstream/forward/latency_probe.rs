//! Times small reads of the API servers: how long urgent work takes inside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use tokio::time::timeout;
use tracing::info;

use crate::upstream::connection::error::ForwardError;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::forward::server_pools::ServerPools;
use crate::upstream::forward::server_probes::read_to_end;
use crate::upstream::headers::auth_mode::Internal;
use crate::upstream::loop_detection::LoopDetector;
use crate::upstream::servers::api_server::ApiServer;

/// A read that the API server answers from etcd, as every read without a resource version.
const QUORUM_READ: &str = "/api/v1/namespaces/default";

/// What is read without the right to read the Namespace.
const PING: &str = "/livez/ping";

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
        let path = match self.pings.load(Ordering::Relaxed) {
            true => PING,
            false => QUORUM_READ,
        };
        let sent = self
            .pools
            .probe(server, path, &self.credentials, &self.loop_detector);
        let Some(sent) = sent.await else {
            return ProbeTime::Unknown;
        };
        let response = match sent.result {
            Ok(response) => response,
            Err(ForwardError::Connect(_)) => return ProbeTime::Refused,
            Err(_) => return ProbeTime::Unknown,
        };
        let status = response.status();
        read_to_end(response, sent.guard).await;
        self.classify(status, sent.sent_at, sent.answered_at)
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
