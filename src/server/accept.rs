//! The listener: takes connections, counts them, and gives each, when its turn to begin has come, to the worker with the
//! fewest.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use socket2::Domain;
use socket2::Protocol;
use socket2::SockRef;
use socket2::Socket;
use socket2::TcpKeepalive;
use socket2::Type;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tracing::warn;

use crate::clock::Clock;
use crate::drain::Drain;
use crate::drain::Stage;
use crate::drain::UnderWay;
use crate::server::Metrics;
use crate::server::connection::HANDSHAKE_TIMEOUT;
use crate::server::gate::Bounds;
use crate::server::gate::Entrance;
use crate::server::gate::Gate;
use crate::server::gate::Origin;
use crate::server::worker::Accepted;
use crate::server::worker::Worker;

/// Connections that the system completes while none is accepted: a storm of new ones is answered late, not refused.
const BACKLOG: i32 = 4096;

/// Handshakes at a time: enough to keep the cores busy over a distance; from one address a quarter of them, so that a storm
/// from there leaves the rest to others; and as many connections that wait as the system itself would keep.
const BOUNDS: Bounds = Bounds {
    in_all: 128,
    by_address: 32,
    waiting: 4096,
    longest_wait: HANDSHAKE_TIMEOUT,
};

/// The pause after a failure to accept that does not go away by trying again (no file descriptors left).
const PAUSE: Duration = Duration::from_millis(100);

/// kube-apiserver's TCP keep-alive towards clients.
const KEEPALIVE: Duration = Duration::from_secs(180);

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
    pub most: usize,
    /// `--trusted-proxies`.
    pub trusted: Arc<[IpNet]>,
    /// When to end.
    pub drain: Arc<Drain>,
    /// What is counted.
    pub metrics: Metrics,
}

impl Acceptor {
    /// Accepts until weir closes; gives the workers back, whose connections go on.
    pub async fn run(self) -> Vec<Worker> {
        let mut closing = std::pin::pin!(self.drain.reached(Stage::Closing));
        let (ended, mut handshakes_ended) = mpsc::unbounded_channel();
        let mut gate = Gate::new(BOUNDS);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                Some(origin) = handshakes_ended.recv() => {
                    let (next, too_late) = gate.depart(origin, Clock.now());
                    self.metrics.turned_away.inc_by(u64::try_from(too_late.len()).unwrap_or(0));
                    self.metrics.waiting.set(i64::try_from(gate.waiting()).unwrap_or(i64::MAX));
                    if let Some((origin, connection)) = next {
                        self.hand_on(connection, Turn::begun(origin, &ended));
                    }
                    continue;
                }
                () = closing.as_mut() => return self.workers,
            };
            match accepted {
                Ok((tcp, address)) => self.let_in(&mut gate, &ended, tcp, address),
                // The client has gone again; there is nothing to pause for.
                Err(why) if why.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(why) => {
                    warn!(%why, "cannot accept connections; waiting a moment");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn let_in(
        &self,
        gate: &mut Gate<Arrived>,
        ended: &mpsc::UnboundedSender<Origin>,
        tcp: TcpStream,
        address: SocketAddr,
    ) {
        if self.drain.open_connections() >= self.most {
            self.metrics.refused.inc();
            return; // dropped, and so closed
        }
        let arrived = Arrived {
            tcp,
            address,
            open: self.drain.connection(),
        };
        let ip = address.ip().to_canonical();
        let origin = if self.trusted.iter().any(|net| net.contains(&ip)) {
            Origin::Trusted(ip)
        } else {
            Origin::Address(ip)
        };
        match gate.arrive(origin, Clock.now(), arrived) {
            Entrance::Begin(arrived) => self.hand_on(arrived, Turn::begun(origin, ended)),
            Entrance::Wait { turned_away } => {
                self.metrics
                    .turned_away
                    .inc_by(u64::from(turned_away.is_some()));
                self.metrics
                    .waiting
                    .set(i64::try_from(gate.waiting()).unwrap_or(i64::MAX));
            }
        }
    }

    fn hand_on(&self, arrived: Arrived, turn: Turn) {
        let Arrived { tcp, address, open } = arrived;
        let _ = tcp.set_nodelay(true); // a connection without these works, if less well
        let _ = SockRef::from(&tcp).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE));
        match (
            tcp.into_std(),
            self.workers.iter().min_by_key(|worker| worker.load()),
        ) {
            (Ok(tcp), Some(worker)) => worker.take(Accepted {
                tcp,
                address,
                turn,
                open,
            }),
            (Err(why), _) => warn!(client = %address, %why, "a connection cannot be served"),
            (Ok(_), None) => warn!("there is no worker"),
        }
    }
}

/// A connection that has been accepted.
#[derive(Debug)]
struct Arrived {
    tcp: TcpStream,
    address: SocketAddr,
    open: UnderWay,
}

/// A handshake's turn; dropping it gives it to the next.
#[derive(Debug)]
pub struct Turn {
    origin: Origin,
    ended: mpsc::UnboundedSender<Origin>,
}

impl Turn {
    fn begun(origin: Origin, ended: &mpsc::UnboundedSender<Origin>) -> Self {
        Self {
            origin,
            ended: ended.clone(),
        }
    }

    /// Whether the connection is from one of `--trusted-proxies`.
    #[must_use]
    pub const fn trusted(&self) -> bool {
        matches!(self.origin, Origin::Trusted(_))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = self.ended.send(self.origin); // nobody takes turns when weir goes away
    }
}
