//! Exchanges messages with each of the other replicas, over a connection to each.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::client::TlsStream;
use tracing::{info, warn};

use crate::replicas::peers::frame_kind::FrameKind;
use crate::replicas::peers::frames::{read_frame, write_frame};
use crate::replicas::peers::lever_link;
use crate::replicas::peers::levers::LeverExchange;
use crate::replicas::peers::snapshot_link;
use crate::replicas::peers::snapshots::SnapshotExchange;
use crate::replicas::peers::tls::PeerTlsConfigs;
use crate::replicas::state::ReplicaState;
use weir_agreement::message::{MAX_MESSAGE_BYTES, ReplicaMessage};
use weir_base::clock::Clock;

/// How often messages are exchanged if nothing changes.
const PERIOD: Duration = Duration::from_secs(1);

/// The least time between two exchanges with a replica, however much changes.
const LEAST_PAUSE: Duration = Duration::from_millis(100);

/// Longest time of an exchange, with the handshake. A replica that takes longer is as silent.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(2);

/// A task that ends when this is dropped.
#[derive(Debug)]
struct Link {
    address: SocketAddr,
    task: AbortHandle,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Keeps a connection to each replica whose address is known, asks them for snapshots, and sends them
/// levers. Runs until it is dropped.
pub(crate) async fn run(
    state: Arc<ReplicaState>,
    snapshots: Arc<SnapshotExchange>,
    levers: Arc<LeverExchange>,
    tls: watch::Receiver<Arc<PeerTlsConfigs>>,
) {
    let mut addresses = state.addresses.subscribe();
    let mut links: BTreeMap<String, Link> = BTreeMap::new();
    loop {
        let wanted = addresses.borrow_and_update().clone();
        links.retain(|name, link| wanted.get(name) == Some(&link.address));
        snapshots.retain(|name| wanted.contains_key(name));
        levers.retain(|name| wanted.contains_key(name));
        for (name, address) in wanted {
            links.entry(name).or_insert_with_key(|name| {
                let messages = run_link(Arc::clone(&state), name.clone(), address, tls.clone());
                let (of_snapshots, exchange) = (Arc::clone(&state), Arc::clone(&snapshots));
                let requests =
                    snapshot_link::run(of_snapshots, exchange, name.clone(), address, tls.clone());
                let (of_levers, exchange) = (Arc::clone(&state), Arc::clone(&levers));
                let levers =
                    lever_link::run(of_levers, exchange, name.clone(), address, tls.clone());
                let task = tokio::spawn(async { tokio::join!(messages, requests, levers) });
                Link {
                    address,
                    task: task.abort_handle(),
                }
            });
        }
        if addresses.changed().await.is_err() {
            return;
        }
    }
}

async fn run_link(
    state: Arc<ReplicaState>,
    name: String,
    address: SocketAddr,
    mut tls: watch::Receiver<Arc<PeerTlsConfigs>>,
) {
    let mut pulses = state.pulse.subscribe();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connection = None;
    let mut failure: Option<String> = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = pulses.changed() => {}
        }
        if tls.has_changed().unwrap_or_default() {
            connection = None; // the certificate, the CA or the names are others now
        }
        let configs = Arc::clone(&tls.borrow_and_update());
        let exchange = exchange(&state, &mut connection, &name, address, &configs);
        let result = timeout(EXCHANGE_TIMEOUT, exchange).await;
        let result = result
            .unwrap_or_else(|_| Err(format!("no message within {}s", EXCHANGE_TIMEOUT.as_secs())));
        state.exchanged(result.is_ok());
        match result {
            Ok(()) => {
                if failure.take().is_some() {
                    info!(replica = %name, %address, "replicas: it can be reached again");
                }
            }
            Err(why) => {
                connection = None;
                if failure.as_ref() != Some(&why) {
                    warn!(replica = %name, %address, "replicas: it cannot be reached: {why}");
                }
                failure = Some(why);
            }
        }
        sleep(LEAST_PAUSE).await;
    }
}

/// Sends a message, and receives one.
async fn exchange(
    state: &ReplicaState,
    connection: &mut Option<TlsStream<TcpStream>>,
    name: &str,
    address: SocketAddr,
    configs: &PeerTlsConfigs,
) -> Result<(), String> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(configs.connect(address).await?),
    };
    let message = state.next_message(Clock.now()).to_text();
    let ended = |why: std::io::Error| format!("the connection ended: {why}");
    let written = write_frame(open, message.as_bytes(), MAX_MESSAGE_BYTES).await;
    written.map_err(ended)?;
    let invalid = |why| format!("its message: {why}");
    loop {
        let reply = read_frame(open, MAX_MESSAGE_BYTES).await.map_err(ended)?;
        if FrameKind::of(&reply).map_err(invalid)? != FrameKind::Message {
            continue; // of a later version
        }
        let reply = ReplicaMessage::parse(&reply).map_err(invalid)?;
        if reply.name != name {
            return Err(format!("{} answers at its address", reply.name));
        }
        state.receive(&reply, Clock.now());
        return Ok(());
    }
}
