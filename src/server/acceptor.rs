//! The listener: takes connections, counts them, and gives each to the worker with the fewest.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::Domain;
use socket2::Protocol;
use socket2::SockRef;
use socket2::Socket;
use socket2::Type;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tracing::debug;
use tracing::warn;

use crate::drain::Drain;
use crate::drain::DrainStage;
use crate::metrics::GaugeGuard;
use crate::server::ServerMetrics;
use crate::server::handshake_limiter::ConnectionSource;
use crate::server::keepalive;
use crate::server::pending_handshakes::PendingHandshakes;
use crate::server::worker::AcceptedConnection;
use crate::server::worker::Worker;

/// Connections that the system completes while none is accepted: a storm of new ones is answered late, not refused.
const BACKLOG: i32 = 4096;

/// The pause after a failure to accept that does not go away by trying again (no file descriptors left).
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// What the system takes of what is not sent yet, in bytes, before it says that there is no room. Without it that grows to some
/// megabytes, of which a third is free again before more is taken: a client that reads steadily but slowly would take nothing for
/// longer than the least rate's grace ([`minimum_rate`](crate::minimum_rate)), and be cut off. Less would cost fast clients a wake-up
/// for every few records.
const NOTSENT_LOWAT: u32 = 64 << 10;

/// Keeps the system from taking much more than it sends; a connection works without, if less well.
fn limit_unsent_bytes(tcp: &TcpStream) {
    #[cfg(target_os = "linux")]
    if let Err(why) = SockRef::from(tcp).set_tcp_notsent_lowat(NOTSENT_LOWAT) {
        debug!(%why, "a client's connection has no bound for what is not sent");
    }
}

/// Binds `address`; port 0 takes any free one.
///
/// # Errors
/// If the address cannot be had.
pub fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Who accepts, for whom.
#[derive(Debug)]
pub struct Acceptor {
    /// Where clients connect.
    pub listener: TcpListener,
    /// Who serves them; at least one.
    pub workers: Vec<Worker>,
    /// Most open connections (`--max-connections`).
    pub max_connections: usize,
    /// When to end.
    pub drain: Arc<Drain>,
    /// Whose handshakes are not over.
    pub pending_handshakes: Arc<PendingHandshakes>,
    /// What is counted.
    pub metrics: ServerMetrics,
}

impl Acceptor {
    /// Accepts until weir closes; gives the workers back, whose connections go on.
    pub async fn run(self) -> Vec<Worker> {
        let most = i64::try_from(self.max_connections).unwrap_or(i64::MAX);
        self.metrics.max_connections.set(most);
        let mut closing = std::pin::pin!(self.drain.reached(DrainStage::Closing));
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = closing.as_mut() => return self.workers,
            };
            match accepted {
                Ok((tcp, address)) => self.dispatch(tcp, address).await,
                // The client has gone again; there is nothing to pause for.
                Err(why) if why.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(why) => {
                    warn!(%why, "cannot accept connections; waiting a moment");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    async fn dispatch(&self, tcp: TcpStream, address: SocketAddr) {
        let origin = ConnectionSource::from_address(address.ip());
        if !self.ensure_below_limit(origin).await {
            self.metrics.rejected_connections.inc();
            return; // dropped, and so closed
        }
        let open = self.drain.track_connection();
        let pending = GaugeGuard::new(self.metrics.pending_connections.clone());
        let newcomer = self.pending_handshakes.register(origin, Some(pending));
        let _ = tcp.set_nodelay(true); // a connection without these works, if less well
        limit_unsent_bytes(&tcp);
        keepalive::enable(&tcp);
        match (
            tcp.into_std(),
            self.workers.iter().min_by_key(|worker| worker.load()),
        ) {
            (Ok(tcp), Some(worker)) => worker.assign(AcceptedConnection {
                tcp,
                address,
                open_guard: open,
                pending_guard: newcomer,
            }),
            (Err(why), _) => warn!(client = %address, %why, "a connection cannot be served"),
            (Ok(_), None) => warn!("there is no worker"),
        }
    }

    async fn ensure_below_limit(&self, origin: ConnectionSource) -> bool {
        while self.drain.open_connections() >= self.max_connections {
            if !self.pending_handshakes.evict_for(origin).await {
                return false;
            }
            self.metrics.rejected_handshakes.inc();
        }
        true
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_unsent_bytes_of_a_client_connection_are_limited() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await;
        let tcp = tcp.unwrap();
        limit_unsent_bytes(&tcp);
        let bound = SockRef::from(&tcp).tcp_notsent_lowat();
        assert_eq!(bound.unwrap(), NOTSENT_LOWAT);
    }
}
