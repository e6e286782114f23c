//! Accepts connections of the other replicas, and answers their messages.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{debug, warn};

use crate::replicas::config::{MAX_CONNECTIONS, MAX_HANDSHAKES, MAX_HANDSHAKES_PER_ADDRESS};
use crate::replicas::peers::frame_kind::{
    FrameKind, MAX_LEVER_BYTES, MAX_SNAPSHOT_BYTES, lever_answer, lever_content,
};
use crate::replicas::peers::frames::{read_frame, write_frame};
use crate::replicas::peers::levers::LeverExchange;
use crate::replicas::peers::snapshots::SnapshotExchange;
use crate::replicas::peers::tls::PeerTlsConfigs;
use crate::replicas::state::ReplicaState;
use weir_agreement::message::{MAX_MESSAGE_BYTES, MAX_REPLICAS, ReplicaMessage};
use weir_agreement::peer::PeerName;
use weir_base::clock::Clock;
use weir_limits::throttling::log_limiter::LogLimiter;

const _: () = assert!(MAX_CONNECTIONS == 4 * MAX_REPLICAS);
const _: () = assert!(MAX_LEVER_BYTES >= MAX_MESSAGE_BYTES);

/// The least time between two snapshots on a connection. The others ask for one a second.
const SNAPSHOT_PAUSE: Duration = Duration::from_millis(500);

/// Longest time until the handshake is complete. Until then it is not known who connects.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection without a message for so long ends: the others send one a second.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The pause after a connection could not be accepted, for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

type PeerTlsReceiver = watch::Receiver<Arc<PeerTlsConfigs>>;

/// Binds the peer port. A process that takes over from another one binds it as well, before the
/// other one has closed it.
///
/// # Errors
/// The address cannot be used.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Answers the other replicas. Runs until it is dropped.
pub(crate) async fn run(
    listener: TcpListener,
    state: Arc<ReplicaState>,
    snapshots: Arc<SnapshotExchange>,
    levers: Arc<LeverExchange>,
    tls: PeerTlsReceiver,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let handshakes = Arc::new(HandshakeCounts::default());
    let log = Arc::new(LogLimiter::default());
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(handshake) = HandshakeCounts::begin(&handshakes, address.ip()) else {
            continue; // closed
        };
        let places = Arc::clone(&places);
        let (state, tls, log) = (Arc::clone(&state), tls.clone(), Arc::clone(&log));
        let (snapshots, levers) = (Arc::clone(&snapshots), Arc::clone(&levers));
        tokio::spawn(async move {
            let served = async {
                let (stream, tls) = accept(stream, tls).await?;
                drop(handshake);
                let Ok(_place) = places.try_acquire() else {
                    return Err("there are too many connections".to_owned());
                };
                serve(stream, &state, &snapshots, &levers, tls).await
            };
            if let Err(why) = served.await
                && let Some(suppressed) = log.try_log(Clock.now())
            {
                warn!(%address, suppressed, "replicas: a connection is refused: {why}");
            }
        });
    }
}

/// The connections whose handshake is not complete, by address.
#[derive(Debug, Default)]
struct HandshakeCounts(Mutex<HandshakeState>);

#[derive(Debug, Default)]
struct HandshakeState {
    total: usize,
    by_address: BTreeMap<IpAddr, usize>,
}

impl HandshakeCounts {
    /// Counts a connection until the value is dropped. `None` if there are enough.
    fn begin(counts: &Arc<Self>, address: IpAddr) -> Option<HandshakeGuard> {
        let mut state = counts.0.lock();
        let of_address = state.by_address.get(&address).copied().unwrap_or_default();
        if state.total >= MAX_HANDSHAKES || of_address >= MAX_HANDSHAKES_PER_ADDRESS {
            return None;
        }
        state.total += 1;
        state.by_address.insert(address, of_address + 1);
        Some(HandshakeGuard {
            counts: Arc::clone(counts),
            address,
        })
    }
}

/// A connection whose handshake is not complete.
#[derive(Debug)]
struct HandshakeGuard {
    counts: Arc<HandshakeCounts>,
    address: IpAddr,
}

impl Drop for HandshakeGuard {
    fn drop(&mut self) {
        let mut state = self.counts.0.lock();
        state.total = state.total.saturating_sub(1);
        if let Entry::Occupied(mut count) = state.by_address.entry(self.address) {
            match *count.get() {
                0 | 1 => {
                    count.remove();
                }
                more => *count.get_mut() = more - 1,
            }
        }
    }
}

/// Completes the handshake. The returned receiver has seen the certificates that were used.
async fn accept(
    stream: TcpStream,
    mut tls: PeerTlsReceiver,
) -> Result<(TlsStream<TcpStream>, PeerTlsReceiver), String> {
    let _ = stream.set_nodelay(true); // an optimization
    let configs = Arc::clone(&tls.borrow_and_update());
    let acceptor = TlsAcceptor::from(Arc::clone(&configs.server));
    let handshake = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
    let stream = handshake
        .map_err(|_| format!("no handshake within {}s", HANDSHAKE_TIMEOUT.as_secs()))?
        .map_err(|why| format!("TLS: {why}"))?;
    Ok((stream, tls))
}

async fn serve(
    mut stream: TlsStream<TcpStream>,
    state: &ReplicaState,
    snapshots: &SnapshotExchange,
    levers: &LeverExchange,
    mut tls: PeerTlsReceiver,
) -> Result<(), String> {
    let mut next_snapshot = Clock.now();
    let mut peer = PeerName::default();
    loop {
        let frame = tokio::select! {
            frame = timeout(IDLE_TIMEOUT, read_frame(&mut stream, MAX_LEVER_BYTES)) => frame,
            _ = tls.changed() => return Ok(()),
        };
        let frame = match frame {
            Ok(Ok(frame)) => frame,
            Ok(Err(why)) if why.kind() == io::ErrorKind::InvalidData => {
                return Err(why.to_string());
            }
            Ok(Err(why)) => {
                debug!("replicas: a connection ended: {why}");
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        let invalid = |why| format!("its message: {why}");
        let (reply, max): (Bytes, _) = match FrameKind::of(&frame).map_err(invalid)? {
            FrameKind::Message => {
                let message = ReplicaMessage::parse(&frame).map_err(invalid)?;
                peer.check(&message.name)?;
                state.receive(&message, Clock.now());
                let reply = state.next_message(Clock.now()).to_text();
                (reply.into(), MAX_MESSAGE_BYTES)
            }
            FrameKind::SnapshotRequest { with_history } => {
                let Some(snapshot) = snapshots.own_frame(with_history) else {
                    return Ok(());
                };
                sleep_until(next_snapshot.into()).await;
                next_snapshot = Clock.now() + SNAPSHOT_PAUSE;
                (snapshot, MAX_SNAPSHOT_BYTES)
            }
            FrameKind::Lever => {
                let taken = match lever_content(&frame) {
                    Ok((from, record)) => {
                        peer.check(&from)?;
                        levers.receive(&from, record).await
                    }
                    Err(why) => Err(format!("it does not know such a lever: {why}")),
                };
                (lever_answer(taken).into(), MAX_MESSAGE_BYTES)
            }
            FrameKind::LeverAnswer | FrameKind::Snapshot | FrameKind::Unknown => continue, // of a later version
        };
        let written = timeout(IDLE_TIMEOUT, write_frame(&mut stream, &reply, max)).await;
        if !matches!(written, Ok(Ok(()))) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_of_one_address_leave_places_for_others() {
        let counts = Arc::new(HandshakeCounts::default());
        let begin = |last: u8| HandshakeCounts::begin(&counts, [192, 0, 2, last].into());
        let mut open: Vec<_> = std::iter::repeat_with(|| begin(1))
            .map_while(|guard| guard)
            .collect();
        assert_eq!(open.len(), MAX_HANDSHAKES_PER_ADDRESS);
        assert!(begin(2).is_some());
        open.pop();
        assert!(begin(1).is_some());
        for last in 2..=u8::MAX {
            open.extend(begin(last));
        }
        assert_eq!(open.len(), MAX_HANDSHAKES);
        open.clear();
        let state = counts.0.lock();
        assert!(state.total == 0 && state.by_address.is_empty());
    }
}
