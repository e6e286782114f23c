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
/// it replaces the oldest that has never had a request, or else the oldest without a request in progress,
/// so that idle connections cannot keep a probe out, nor connections without requests end streams.
#[derive(Debug, Default)]
pub(super) struct AdminConnections(VecDeque<(Arc<RequestCount>, AbortHandle)>);

impl AdminConnections {
    /// Closes the connections without a request (event streams among them), and a moment later the
    /// others.
    pub(super) async fn close(self) {
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
            let oldest = |is_it: fn(&RequestCount) -> bool| {
                self.0.iter().position(|(requests, _)| is_it(requests))
            };
            let unused = oldest(|requests| requests.started() == 0);
            let position = unused.or_else(|| oldest(is_idle));
            if let Some((_, task)) = self.0.remove(position.unwrap_or(0)) {
                task.abort();
            }
        }
        let requests = Arc::new(RequestCount::default());
        let task = tokio::spawn(serve(Arc::clone(&requests)));
        self.0.push_back((requests, task.abort_handle()));
    }
}

/// Whether no request is in progress. Streams count as answered.
fn is_idle(requests: &RequestCount) -> bool {
    requests.started() == requests.ended()
}
