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
use crate::drain::Stage;
use crate::metrics::Counted;
use crate::server::Metrics;
use crate::server::gate::Origin;
use crate::server::newcomers::Newcomers;
use crate::server::signs_of_life;
use crate::server::worker::Accepted;
use crate::server::worker::Worker;

/// Connections that the system completes while none is accepted: a storm of new ones is answered late, not refused.
const BACKLOG: i32 = 4096;

/// The pause after a failure to accept that does not go away by trying again (no file descriptors left).
const PAUSE: Duration = Duration::from_millis(100);

/// What the system takes of what is not sent yet, in bytes, before it says that there is no room. Without it that grows to some
/// megabytes, of which a third is free again before more is taken: a client that reads steadily but slowly would take nothing for
/// longer than the least rate's grace ([`minimum_rate`](crate::minimum_rate)), and be cut off. Less would cost fast clients a wake-up
/// for every few records.
const UNSENT: u32 = 64 << 10;

/// Keeps the system from taking much more than it sends; a connection works without, if less well.
fn hold_little(tcp: &TcpStream) {
    #[cfg(target_os = "linux")]
    if let Err(why) = SockRef::from(tcp).set_tcp_notsent_lowat(UNSENT) {
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
    pub most: usize,
    /// When to end.
    pub drain: Arc<Drain>,
    /// Whose handshakes are not over.
    pub newcomers: Arc<Newcomers>,
    /// What is counted.
    pub metrics: Metrics,
}

impl Acceptor {
    /// Accepts until weir closes; gives the workers back, whose connections go on.
    pub async fn run(self) -> Vec<Worker> {
        let most = i64::try_from(self.most).unwrap_or(i64::MAX);
        self.metrics.most.set(most);
        let mut closing = std::pin::pin!(self.drain.reached(Stage::Closing));
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = closing.as_mut() => return self.workers,
            };
            match accepted {
                Ok((tcp, address)) => self.hand_on(tcp, address).await,
                // The client has gone again; there is nothing to pause for.
                Err(why) if why.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(why) => {
                    warn!(%why, "cannot accept connections; waiting a moment");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn hand_on(&self, tcp: TcpStream, address: SocketAddr) {
        let origin = Origin::of(address.ip());
        if !self.has_room(origin).await {
            self.metrics.refused.inc();
            return; // dropped, and so closed
        }
        let open = self.drain.connection();
        let pending = Counted::one_more(self.metrics.pending.clone());
        let newcomer = self.newcomers.enter(origin, Some(pending));
        let _ = tcp.set_nodelay(true); // a connection without these works, if less well
        hold_little(&tcp);
        signs_of_life::ask(&tcp);
        match (
            tcp.into_std(),
            self.workers.iter().min_by_key(|worker| worker.load()),
        ) {
            (Ok(tcp), Some(worker)) => worker.take(Accepted {
                tcp,
                address,
                open,
                newcomer,
            }),
            (Err(why), _) => warn!(client = %address, %why, "a connection cannot be served"),
            (Ok(_), None) => warn!("there is no worker"),
        }
    }

    async fn has_room(&self, origin: Origin) -> bool {
        while self.drain.open_connections() >= self.most {
            if !self.newcomers.make_room(origin).await {
                return false;
            }
            self.metrics.turned_away.inc();
        }
        true
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_s_connection_holds_little_that_is_not_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await;
        let tcp = tcp.unwrap();
        hold_little(&tcp);
        let bound = SockRef::from(&tcp).tcp_notsent_lowat();
        assert_eq!(bound.unwrap(), UNSENT);
    }
}
