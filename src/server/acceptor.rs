//! The acceptor: accepts connections, counts them, and assigns each to the worker with the fewest.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, warn};

use crate::limits::memory_limit::MemoryLimit;
use crate::server::connection::connection_shares::{
    ConnectionShare, ConnectionShares, ShareExceeded,
};
use crate::server::handshake_limiter::ConnectionSource;
use crate::server::keepalive;
use crate::server::metrics::ServerMetrics;
use crate::server::pending_handshakes::PendingHandshakes;
use crate::server::settings::ListenerSettings;
use crate::server::worker::{AcceptedConnection, Worker};
use weir_base::clock::Clock;
use weir_base::drain::{Drain, DrainStage};
use weir_base::metrics::GaugeGuard;

/// The listen backlog: connections that the kernel completes before weir accepts them. In a burst,
/// new connections wait here and are not refused.
const BACKLOG: i32 = 4096;

/// The pause after an error of `accept` that a retry does not fix (no file descriptors left).
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// `TCP_NOTSENT_LOWAT` in bytes: the most unsent data that the kernel accepts before it reports the
/// socket as not writable.
///
/// Without it, the send buffer grows to some megabytes, and the socket is writable again only when
/// a third of it is free. A client that reads steadily but slowly would then seem to read nothing
/// for longer than the grace period of the minimum rate ([`minimum_rate`](weir_limits::throttling::minimum_rate)),
/// and weir would close its connection. (Measured on loopback with a client that reads 192 KiB/s with
/// 128 KiB of buffer: at most 6.0 s between two writes without the option, 1.3 s with 128, 64 or 16
/// KiB.) A smaller value would cost fast clients a wake-up for every
/// few TLS records.
const NOTSENT_LOWAT: u32 = 64 << 10;

/// Limits the data that the kernel buffers before it sends it. An error is logged and ignored: the
/// limit is an optimization.
fn limit_unsent_bytes(tcp: &TcpStream) {
    #[cfg(target_os = "linux")]
    if let Err(why) = SockRef::from(tcp).set_tcp_notsent_lowat(NOTSENT_LOWAT) {
        debug!(%why, "a client's connection has no bound for what is not sent");
    }
}

/// Binds a listening socket to `address`. Port 0 selects any free port.
///
/// # Errors
/// The socket cannot be created or `address` cannot be bound.
pub(crate) fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
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

/// The accept loop and what it needs.
#[derive(Debug)]
pub(crate) struct Acceptor {
    /// The listening socket. A hand-over passes it on while the loop runs.
    pub(crate) listener: Arc<TcpListener>,
    /// The workers that serve the connections; at least one.
    pub(crate) workers: Vec<Worker>,
    /// The settings of new connections.
    pub(crate) settings: Arc<ArcSwap<ListenerSettings>>,
    /// The stages of the shutdown; the loop ends at [`DrainStage::ListenerClosed`].
    pub(crate) drain: Arc<Drain>,
    /// The connections whose TLS handshake is not complete.
    pub(crate) pending_handshakes: Arc<PendingHandshakes>,
    /// The connections of each address.
    pub(crate) shares: Arc<ConnectionShares>,
    /// Rejects connections while the process uses far too much memory.
    pub(crate) memory_limit: Arc<MemoryLimit>,
    /// The metrics of the listener.
    pub(crate) metrics: ServerMetrics,
}

impl Acceptor {
    /// Accepts connections until [`DrainStage::ListenerClosed`]. Returns the workers, which continue to
    /// serve their connections.
    pub(crate) async fn run(self) -> Vec<Worker> {
        let mut closing = std::pin::pin!(self.drain.reached(DrainStage::ListenerClosed));
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = closing.as_mut() => return self.workers,
            };
            match accepted {
                Ok((tcp, address)) => self.dispatch(tcp, address).await,
                // The client has closed the connection; a pause would not help.
                Err(why) if why.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(why) => {
                    self.metrics.log_waiting(&why, Clock.now());
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    async fn dispatch(&self, tcp: TcpStream, address: SocketAddr) {
        // Returning drops the socket, which closes it.
        if !self.memory_limit.admits_connection() {
            let why = "far more memory is in use than --memory-limit";
            return self.metrics.log_refused(address, &why, Clock.now());
        }
        let source = ConnectionSource::from_address(address.ip());
        if !self.ensure_below_limit(source).await {
            self.metrics.rejected_connections.inc();
            let why = "as many connections as --max-connections are open";
            return self.metrics.log_refused(address, &why, Clock.now());
        }
        let share = match self.acquire_share(address) {
            Ok(share) => share,
            Err(why) => return self.metrics.log_refused(address, &why, Clock.now()),
        };
        let open_guard = self.drain.track_connection();
        let pending = GaugeGuard::new(self.metrics.pending_connections.clone());
        let pending_guard = self.pending_handshakes.register(source, Some(pending));
        let _ = tcp.set_nodelay(true); // the connection works without it
        limit_unsent_bytes(&tcp);
        keepalive::enable(&tcp);
        match (
            tcp.into_std(),
            self.workers.iter().min_by_key(|worker| worker.load()),
        ) {
            (Ok(tcp), Some(worker)) => worker.assign(AcceptedConnection {
                tcp,
                address,
                open_guard,
                pending_guard,
                share,
            }),
            (Err(why), _) => warn!(client = %address, %why, "a connection cannot be served"),
            (Ok(_), None) => warn!("there is no worker"),
        }
    }

    /// Counts the connection for its address, or for the proxy that opens it.
    fn acquire_share(&self, address: SocketAddr) -> Result<ConnectionShare, ShareExceeded> {
        let settings = self.settings.load();
        let source = if settings.is_trusted_proxy(address) {
            ConnectionSource::TrustedProxy(address.ip())
        } else {
            ConnectionSource::from_address(address.ip())
        };
        let free = settings.free_connections(self.drain.open_connections());
        self.shares.acquire(source, settings.address_limit(), free)
    }

    async fn ensure_below_limit(&self, source: ConnectionSource) -> bool {
        let max_connections = self.settings.load().serving.max_connections;
        while self.drain.open_connections() >= max_connections {
            if !self.pending_handshakes.evict_for(source).await {
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
