//! Sends this replica's levers to another one, over a connection of their own: a message about shares
//! never waits for them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::replicas::peers::frame_kind::{
    FrameKind, MAX_LEVER_BYTES, MAX_SNAPSHOT_BYTES, lever_frame, lever_refusal,
};
use crate::replicas::peers::frames::{read_frame, write_frame};
use crate::replicas::peers::levers::LeverExchange;
use crate::replicas::peers::tls::PeerTlsConfigs;
use crate::replicas::state::ReplicaState;
use weir_base::clock::Clock;
use weir_limits::levers::{LeverKey, LeverRecord};

/// Longest time of an exchange, with the handshake.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(2);

/// When a replica that was not reached is tried again, and how soon it is noticed that another
/// process has taken its place.
const PERIOD: Duration = Duration::from_secs(1);

/// What a process of the replica has.
#[derive(Debug, Default)]
struct Delivered {
    process: String,
    /// The levers, and whether their ends.
    records: BTreeSet<(LeverKey, bool)>,
}

/// Sends the levers whenever they change, and all of them to a new process. Runs until it is dropped.
pub(super) async fn run(
    state: Arc<ReplicaState>,
    exchange: Arc<LeverExchange>,
    name: String,
    address: SocketAddr,
    tls: watch::Receiver<Arc<PeerTlsConfigs>>,
) {
    let mut revisions = exchange.levers.revisions();
    let mut delivered = Delivered::default();
    loop {
        let revision = *revisions.borrow_and_update();
        let configs = Arc::clone(&tls.borrow());
        let sent = async {
            match missing_records(&state, &exchange, &name, &mut delivered)? {
                missing if missing.is_empty() => Ok(()),
                missing => deliver(&state, missing, address, &configs, &mut delivered).await,
            }
        };
        let sent = timeout(EXCHANGE_TIMEOUT, sent).await;
        let late = |_| Err(format!("no answer within {}s", EXCHANGE_TIMEOUT.as_secs()));
        let sent = sent.unwrap_or_else(late);
        let failure = sent.clone().err();
        if exchange.store(&name, revision, sent) {
            match failure {
                Some(why) => warn!(replica = %name, "replicas: levers do not reach it: {why}"),
                None => info!(replica = %name, "replicas: it has the levers"),
            }
        }
        tokio::select! {
            () = sleep(PERIOD) => {}
            _ = revisions.changed() => {} // its sender is a part of the exchange
        }
    }
}

/// The records that the replica does not have.
fn missing_records(
    state: &ReplicaState,
    exchange: &LeverExchange,
    name: &str,
    delivered: &mut Delivered,
) -> Result<Vec<(bool, LeverRecord)>, String> {
    let records = exchange.levers.records(Clock.now());
    if records.is_empty() {
        return Ok(Vec::new());
    }
    // An older weir would end the connection, and log a warning.
    let process = state.process_with_levers(name);
    let process = process.ok_or("no message of a version that takes levers")?;
    if delivered.process != process {
        *delivered = Delivered {
            process,
            records: BTreeSet::new(),
        };
    }
    let records = records.into_iter().map(|record| {
        let is_end = matches!(record, LeverRecord::Ended { .. });
        (is_end, record)
    });
    let records: Vec<_> = records.collect();
    let keys = records.iter();
    let keys: BTreeSet<_> = keys
        .map(|(is_end, one)| (one.key().clone(), *is_end))
        .collect();
    delivered.records.retain(|key| keys.contains(key));
    let is_missing = |(is_end, record): &(bool, LeverRecord)| {
        !delivered.records.contains(&(record.key().clone(), *is_end))
    };
    Ok(records.into_iter().filter(is_missing).collect())
}

/// Sends records one after the other. One that is refused does not keep the others back.
async fn deliver(
    state: &ReplicaState,
    records: Vec<(bool, LeverRecord)>,
    address: SocketAddr,
    configs: &PeerTlsConfigs,
    delivered: &mut Delivered,
) -> Result<(), String> {
    let mut connection = configs.connect(address).await?;
    let ended = |why: std::io::Error| format!("the connection ended: {why}");
    let invalid = |why| format!("its answer: {why}");
    let mut refusal = None;
    for (is_end, record) in records {
        let frame = lever_frame(&state.id.name, &record);
        let written = write_frame(&mut connection, &frame, MAX_LEVER_BYTES).await;
        written.map_err(ended)?;
        loop {
            let frame = read_frame(&mut connection, MAX_SNAPSHOT_BYTES).await;
            let frame = frame.map_err(ended)?;
            if FrameKind::of(&frame).map_err(invalid)? == FrameKind::LeverAnswer {
                match lever_refusal(&frame).map_err(invalid)? {
                    None => {
                        delivered.records.insert((record.key().clone(), is_end));
                    }
                    Some(why) => refusal = Some(format!("lever {}: {why}", record.key().id)),
                }
                break;
            }
        }
    }
    refusal.map_or(Ok(()), Err)
}
