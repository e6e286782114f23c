//! Accepts connections of the other replicas, and answers their messages.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use socket2::Domain;
use socket2::Protocol;
use socket2::SockAddr;
use socket2::Socket;
use socket2::Type;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio::time::sleep_until;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::debug;
use tracing::warn;

use crate::clock::Clock;
use crate::replicas::message::MAX_MESSAGE_BYTES;
use crate::replicas::message::MAX_REPLICAS;
use crate::replicas::message::ReplicaMessage;
use crate::replicas::peers::frame_kind::FrameKind;
use crate::replicas::peers::frame_kind::MAX_SNAPSHOT_BYTES;
use crate::replicas::peers::frames::read_frame;
use crate::replicas::peers::frames::write_frame;
use crate::replicas::peers::snapshots::SnapshotExchange;
use crate::replicas::peers::tls::PeerTlsConfigs;
use crate::replicas::state::ReplicaState;
use crate::throttling::log_limiter::LogLimiter;

/// The most connections: for messages and for snapshots one of each replica, and as many that are
/// being replaced.
const MAX_CONNECTIONS: usize = 4 * MAX_REPLICAS;

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

/// Binds the peer port. A process that takes over from another one binds it as well, before the
/// other one has closed it.
///
/// # Errors
/// The address cannot be used.
pub(in crate::replicas) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
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
pub(in crate::replicas) async fn run(
    listener: TcpListener,
    state: Arc<ReplicaState>,
    snapshots: Arc<SnapshotExchange>,
    tls: watch::Receiver<Arc<PeerTlsConfigs>>,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let log = Arc::new(LogLimiter::default());
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            continue; // closed
        };
        let (state, tls, log) = (Arc::clone(&state), tls.clone(), Arc::clone(&log));
        let snapshots = Arc::clone(&snapshots);
        tokio::spawn(async move {
            let _place = place;
            if let Err(why) = serve(stream, &state, &snapshots, tls).await
                && let Some(suppressed) = log.try_log(Clock.now())
            {
                warn!(%address, suppressed, "replicas: a connection is refused: {why}");
            }
        });
    }
}

async fn serve(
    stream: TcpStream,
    state: &ReplicaState,
    snapshots: &SnapshotExchange,
    mut tls: watch::Receiver<Arc<PeerTlsConfigs>>,
) -> Result<(), String> {
    let _ = stream.set_nodelay(true); // an optimization
    let configs = Arc::clone(&tls.borrow_and_update());
    let acceptor = TlsAcceptor::from(Arc::clone(&configs.server));
    let handshake = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
    let mut stream = handshake
        .map_err(|_| format!("no handshake within {}s", HANDSHAKE_TIMEOUT.as_secs()))?
        .map_err(|why| format!("TLS: {why}"))?;
    let mut next_snapshot = Clock.now();
    loop {
        let frame = tokio::select! {
            frame = timeout(IDLE_TIMEOUT, read_frame(&mut stream, MAX_MESSAGE_BYTES)) => frame,
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
            FrameKind::Snapshot | FrameKind::Unknown => continue, // of a later version
        };
        let written = timeout(IDLE_TIMEOUT, write_frame(&mut stream, &reply, max)).await;
        if !matches!(written, Ok(Ok(()))) {
            return Ok(());
        }
    }
}
