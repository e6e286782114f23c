//! Levers that replicas send each other, and which replica has them.
//!
//! Each replica sends all its levers to every other replica, also those that it received. So a replica
//! that joins or was away gets the levers in force from any of the others. Nothing of it is in a Lease, which others may
//! write.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::limits::levers::Levers;
use weir_limits::levers::LeverRecord;

/// How long an operator waits for the others.
const DEADLINE: Duration = Duration::from_secs(1);

/// Checks levers of other replicas, and puts them in force.
pub(crate) trait LeverReceiver: fmt::Debug + Send + Sync {
    /// Takes a record of the replica `from`. Fails with the reason why it does not.
    fn receive<'a>(
        &'a self,
        from: &'a str,
        record: LeverRecord,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;
}

/// The levers that are exchanged.
#[derive(Debug)]
pub(crate) struct LeverExchange {
    pub(super) levers: Arc<Levers>,
    receiver: OnceLock<Weak<dyn LeverReceiver>>,
    peers: watch::Sender<BTreeMap<String, SentLevers>>,
}

/// What was sent to a replica.
#[derive(Clone, Debug, Default)]
struct SentLevers {
    /// The revision of the levers at that time.
    revision: u64,
    /// Why it does not have all of them.
    failure: Option<String>,
}

impl LeverExchange {
    /// Sends these levers.
    #[must_use]
    pub(crate) fn new(levers: &Arc<Levers>) -> Self {
        Self {
            levers: Arc::clone(levers),
            receiver: OnceLock::new(),
            peers: watch::Sender::default(),
        }
    }

    /// Sets what takes the levers of others. Only the first call counts.
    pub(crate) fn set_receiver(&self, receiver: Weak<dyn LeverReceiver>) {
        let _ = self.receiver.set(receiver); // there is one control server
    }

    /// Takes a record of another replica.
    ///
    /// # Errors
    /// Why it is not taken.
    ///
    /// # Cancel safety
    /// It is taken as a whole or not at all.
    pub(super) async fn receive(&self, from: &str, record: LeverRecord) -> Result<(), String> {
        let receiver = self.receiver.get().and_then(Weak::upgrade);
        let receiver = receiver.ok_or("it takes no levers while it starts or ends")?;
        receiver.receive(from, record).await
    }

    /// Stores that the levers of this revision were sent to a replica, or why some were not. Returns
    /// whether the outcome is another than before.
    pub(super) fn store(&self, name: &str, revision: u64, result: Result<(), String>) -> bool {
        let mut is_new = false;
        self.peers.send_modify(|peers| {
            let peer = peers.entry(name.to_owned()).or_default();
            let failure = result.err();
            is_new = peer.failure != failure;
            *peer = SentLevers { revision, failure };
        });
        is_new
    }

    /// Forgets all replicas but those that `is_known`.
    pub(super) fn retain(&self, is_known: impl Fn(&str) -> bool) {
        self.peers
            .send_modify(|peers| peers.retain(|name, _| is_known(name)));
    }

    /// Waits until the replicas of these names have the levers of now, for a second at most. Returns
    /// those that do not, and why.
    ///
    /// # Cancel safety
    /// The levers are sent nevertheless.
    pub(crate) async fn missing(&self, names: Vec<String>) -> BTreeMap<String, String> {
        let revision = *self.levers.revisions().borrow();
        let mut peers = self.peers.subscribe();
        let is_done = |peers: &BTreeMap<String, SentLevers>| {
            let done = |name| {
                peers
                    .get(name)
                    .is_some_and(|peer| peer.revision >= revision)
            };
            names.iter().all(done)
        };
        let _ = timeout(DEADLINE, async { peers.wait_for(is_done).await.is_ok() }).await;
        let sent = self.peers.borrow().clone();
        let missing = names.into_iter().filter_map(|name| {
            let sent = sent.get(&name).filter(|sent| sent.revision >= revision);
            let why = match sent {
                Some(sent) => sent.failure.clone()?,
                None => format!("no answer within {}s", DEADLINE.as_secs()),
            };
            Some((name, why))
        });
        missing.collect()
    }
}
