//! Asks another replica for its snapshots, over a connection of its own: a large snapshot, or one
//! that takes long, never delays a message about shares.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::replicas::peers::frame_kind::{
    FrameKind, MAX_SNAPSHOT_BYTES, snapshot_content, snapshot_request,
};
use crate::replicas::peers::frames::{read_frame, write_frame};
use crate::replicas::peers::snapshots::SnapshotExchange;
use crate::replicas::peers::tls::PeerTlsConfigs;
use crate::replicas::state::ReplicaState;

/// Longest time of a request, with the handshake.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The connection is closed when no operator has looked for so long. It is less than the other
/// side's time limit, so that a request does not meet a connection that is being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers each round of `exchange` with a snapshot of the replica, or with the reason why there is
/// none. Runs until it is dropped.
pub(super) async fn run(
    state: Arc<ReplicaState>,
    exchange: Arc<SnapshotExchange>,
    name: String,
    address: SocketAddr,
    mut tls: watch::Receiver<Arc<PeerTlsConfigs>>,
) {
    let mut rounds = exchange.rounds();
    let mut connection = None;
    loop {
        match timeout(IDLE_TIMEOUT, rounds.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => {
                connection = None;
                continue;
            }
        }
        let round = *rounds.borrow_and_update();
        if tls.has_changed().unwrap_or_default() {
            connection = None; // the certificate, the CA or the names are others now
        }
        let configs = Arc::clone(&tls.borrow_and_update());
        let result = match state.sends_snapshots(&name) {
            // An older weir would end the connection, and log a warning.
            false => Err("no message of a version that sends snapshots".to_owned()),
            true => {
                let frame = snapshot_request(round.with_history);
                let request = request(&mut connection, address, &configs, frame);
                let result = timeout(REQUEST_TIMEOUT, request).await;
                let seconds = REQUEST_TIMEOUT.as_secs();
                result.unwrap_or_else(|_| Err(format!("no snapshot within {seconds}s")))
            }
        };
        state.snapshot_requested(result.is_ok());
        if result.is_err() {
            connection = None;
        }
        exchange.store(&name, round.number, result);
    }
}

/// Asks for a snapshot.
async fn request(
    connection: &mut Option<TlsStream<TcpStream>>,
    address: SocketAddr,
    configs: &PeerTlsConfigs,
    frame: &[u8],
) -> Result<Bytes, String> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(configs.connect(address).await?),
    };
    let ended = |why: std::io::Error| format!("the connection ended: {why}");
    let written = write_frame(open, frame, MAX_SNAPSHOT_BYTES).await;
    written.map_err(ended)?;
    loop {
        let frame = read_frame(open, MAX_SNAPSHOT_BYTES).await.map_err(ended)?;
        let kind = FrameKind::of(&frame).map_err(|why| format!("its snapshot: {why}"))?;
        if kind == FrameKind::Snapshot {
            return snapshot_content(&frame).map_err(|why| format!("its snapshot: {why}"));
        }
    }
}
