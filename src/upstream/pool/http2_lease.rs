//! A stream of a shared HTTP/2 connection, leased to one request.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::timeout;

use crate::upstream::connection::connection_budget::RequestSlot;
use crate::upstream::connection::http2::{Http2Connection, PendingHttp2};
use crate::upstream::pool::connection_class::{ConnectionClass, PerClass};
use crate::upstream::pool::stream_guard::CancelOutcome;
use crate::upstream::pool::wait_queue::WaitQueue;
use crate::upstream::servers::api_server::ServerRequest;

/// A stream of an HTTP/2 connection. Dropping it wakes one of the requests that wait for a stream.
pub(crate) struct Http2Lease {
    connection: Arc<Http2Connection>,
    class: ConnectionClass,
    queues: Arc<PerClass<WaitQueue>>,
    /// The slot of a watch.
    pub(super) slot: Option<RequestSlot>,
    /// Counts the request as in flight on its server.
    pub(super) counted: Option<ServerRequest>,
    /// The request, until its response begins.
    pub(crate) pending: Option<PendingHttp2>,
}

impl Http2Lease {
    /// Leases a stream that has been counted in the connection's `active_streams` already.
    pub(super) const fn new(
        connection: Arc<Http2Connection>,
        class: ConnectionClass,
        queues: Arc<PerClass<WaitQueue>>,
    ) -> Self {
        Self {
            connection,
            class,
            queues,
            slot: None,
            counted: None,
            pending: None,
        }
    }

    pub(crate) fn connection(&self) -> Arc<Http2Connection> {
        Arc::clone(&self.connection)
    }

    /// Cancels the request: lets it finish within `grace`. Otherwise the stream is reset, and the
    /// future ends once the peer has seen the reset.
    pub(super) fn cancel(
        &mut self,
        grace: Duration,
    ) -> impl Future<Output = CancelOutcome> + Send + use<> {
        let (pending, connection) = (self.pending.take(), self.connection());
        let has_end = !self.class.is_long_running();
        async move {
            if let Some(pending) = pending
                && let Ok(true) = timeout(grace, pending.finish(has_end)).await
            {
                return CancelOutcome::Finished;
            }
            // The runtime ends a body pump that is still running when it next polls the task: the
            // pump's reset goes out before it is counted.
            tokio::task::yield_now().await;
            connection.record_reset().await;
            CancelOutcome::Reset
        }
    }
}

impl Drop for Http2Lease {
    fn drop(&mut self) {
        self.connection
            .active_streams
            .fetch_sub(1, Ordering::AcqRel);
        let queue = self.queues.get(self.class);
        if !queue.is_empty() {
            queue.wake_next();
        }
    }
}
