//! The open connections of a listener for operators.

use std::collections::VecDeque;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::pipeline::connection::request_count::RequestCount;
use weir_base::source_network::source_network;

/// Most connections at a time. Probes and scrapers are few, and these listeners must not take the
/// file descriptors of clients.
const MAX_CONNECTIONS: usize = 64;

/// How long requests may take when another process has taken over.
const CLOSE_DELAY: Duration = Duration::from_secs(5);

/// The open connections, oldest first. A new connection is always accepted: if there are too many,
/// it replaces one of the source with the most connections. So no source can keep others out.
#[derive(Debug, Default)]
pub(super) struct AdminConnections(VecDeque<AdminConnection>);

#[derive(Debug)]
struct AdminConnection {
    /// The network of its client.
    source: IpAddr,
    requests: Arc<RequestCount>,
    task: AbortHandle,
}

impl AdminConnections {
    /// Closes the connections without a request (event streams among them), and a moment later the
    /// others.
    pub(super) async fn close(self) {
        for connection in self.0.iter().filter(|open| is_idle(&open.requests)) {
            connection.task.abort();
        }
        tokio::time::sleep(CLOSE_DELAY).await;
        for connection in &self.0 {
            connection.task.abort();
        }
    }

    pub(super) fn spawn<F>(&mut self, client: IpAddr, serve: impl FnOnce(Arc<RequestCount>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.0.retain(|open| !open.task.is_finished());
        if self.0.len() >= MAX_CONNECTIONS
            && let Some(replaced) = self.0.remove(self.replaceable())
        {
            replaced.task.abort();
        }
        let requests = Arc::new(RequestCount::default());
        let task = tokio::spawn(serve(Arc::clone(&requests)));
        self.0.push_back(AdminConnection {
            source: source_network(client),
            requests,
            task: task.abort_handle(),
        });
    }

    /// Of the source with the most connections, the oldest that has never had a request, or else the
    /// oldest without a request in progress: connections without requests end no streams.
    fn replaceable(&self) -> usize {
        let count_of = |source| self.0.iter().filter(|open| open.source == source).count();
        let most = self.0.iter().map(|open| count_of(open.source)).max();
        let oldest = |is_it: fn(&RequestCount) -> bool| {
            self.0
                .iter()
                .position(|open| Some(count_of(open.source)) == most && is_it(&open.requests))
        };
        let unused = oldest(|requests| requests.started() == 0);
        unused.or_else(|| oldest(is_idle)).unwrap_or(0)
    }
}

/// Whether no request is in progress. Streams count as answered.
fn is_idle(requests: &RequestCount) -> bool {
    requests.started() == requests.ended()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_source_with_many_connections_replaces_its_own() {
        let mut connections = AdminConnections::default();
        let (many, few) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        connections.spawn(few, |_| std::future::pending());
        for _ in 0..2 * MAX_CONNECTIONS {
            connections.spawn(many, |_| std::future::pending());
        }
        connections.spawn(few, |_| std::future::pending());
        let of_few = connections.0.iter().filter(|open| open.source == few);
        assert_eq!(of_few.count(), 2);
        assert_eq!(connections.0.len(), MAX_CONNECTIONS);
    }
}
