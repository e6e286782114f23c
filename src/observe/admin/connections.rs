//! The open connections of a listener for operators.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::pipeline::connection::request_count::RequestCount;

/// Most connections at a time. Probes and scrapers are few, and these listeners must not take the
/// file descriptors of clients.
const MAX_CONNECTIONS: usize = 64;

/// How long requests may take when another process has taken over.
const CLOSE_DELAY: Duration = Duration::from_secs(5);

/// The open connections, oldest first. A new connection is always accepted: if there are too many,
/// it replaces the oldest connection without a request in progress, so that idle connections cannot
/// keep a probe out.
#[derive(Debug, Default)]
pub(super) struct AdminConnections(VecDeque<(Arc<RequestCount>, AbortHandle)>);

impl AdminConnections {
    /// Closes the connections without a request (event streams among them), and a moment later the
    /// others.
    pub(super) async fn close(self) {
        let is_idle = |requests: &RequestCount| requests.started() == requests.ended();
        for (_, task) in self.0.iter().filter(|(requests, _)| is_idle(requests)) {
            task.abort();
        }
        tokio::time::sleep(CLOSE_DELAY).await;
        for (_, task) in &self.0 {
            task.abort();
        }
    }

    pub(super) fn spawn<F>(&mut self, serve: impl FnOnce(Arc<RequestCount>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.0.retain(|(_, task)| !task.is_finished());
        if self.0.len() >= MAX_CONNECTIONS {
            let is_idle = |requests: &RequestCount| requests.started() == requests.ended();
            let position = self.0.iter().position(|(requests, _)| is_idle(requests));
            if let Some((_, task)) = self.0.remove(position.unwrap_or(0)) {
                task.abort();
            }
        }
        let requests = Arc::new(RequestCount::default());
        let task = tokio::spawn(serve(Arc::clone(&requests)));
        self.0.push_back((requests, task.abort_handle()));
    }
}
