//! Snapshots of the other replicas for the status page, and this one's for theirs.
//!
//! A replica asks the others while an operator looks, at most once a second. It keeps the last
//! snapshot of each.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{OnceLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::replicas::peers::frame_kind::snapshot_frame;
use weir_base::clock::Clock;

/// The least time between two requests to a replica, and between two snapshots of this one.
const LEAST_INTERVAL: Duration = Duration::from_secs(1);

/// How long a caller waits for the others. What comes later is there for the next one.
const DEADLINE: Duration = Duration::from_millis(500);

/// Takes the snapshots of this replica.
pub(crate) trait SnapshotSource: fmt::Debug + Send + Sync {
    /// The state of this replica as JSON, with the history before it if there is room. Its frame
    /// must fit [`MAX_SNAPSHOT_BYTES`](super::frame_kind::MAX_SNAPSHOT_BYTES).
    fn content(&self, with_history: bool) -> Bytes;
}

/// The snapshots of the others, and the requests for them.
#[derive(Debug, Default)]
pub(crate) struct SnapshotExchange {
    source: OnceLock<Weak<dyn SnapshotSource>>,
    /// The frames with this replica's snapshot, and when they were taken; by whether they have the
    /// history.
    own: Mutex<BTreeMap<bool, (Instant, Bytes)>>,
    /// When the last round of requests began.
    started: Mutex<Option<Instant>>,
    /// The last round.
    rounds: watch::Sender<SnapshotRound>,
    peers: watch::Sender<BTreeMap<String, PeerSnapshot>>,
}

/// A round of requests to all others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SnapshotRound {
    /// One more than the round before.
    pub(super) number: u64,
    /// Whether it asks for histories.
    pub(super) with_history: bool,
}

/// What is known of another replica.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerSnapshot {
    /// The last round that has ended for it.
    round: u64,
    /// Its last snapshot, and when it was received.
    pub(crate) last: Option<(Instant, Bytes)>,
    /// Why the last request failed.
    pub(crate) failure: Option<String>,
}

impl SnapshotExchange {
    /// Sets what takes the snapshots of this replica. Only the first call counts.
    pub(crate) fn set_source(&self, source: Weak<dyn SnapshotSource>) {
        let _ = self.source.set(source); // there is one status page
    }

    /// The frame with this replica's snapshot, which is at most a second old. `None` before there
    /// is a status page, and while weir ends.
    pub(super) fn own_frame(&self, with_history: bool) -> Option<Bytes> {
        let source = self.source.get()?.upgrade()?;
        let mut own = self.own.lock();
        let now = Clock.now();
        if let Some((at, frame)) = own.get(&with_history)
            && now.saturating_duration_since(*at) < LEAST_INTERVAL
        {
            return Some(frame.clone());
        }
        let frame = snapshot_frame(&source.content(with_history));
        own.insert(with_history, (now, frame.clone()));
        Some(frame)
    }

    /// The rounds.
    pub(super) fn rounds(&self) -> watch::Receiver<SnapshotRound> {
        self.rounds.subscribe()
    }

    /// Stores how a round has ended for a replica: its snapshot, or why there is none.
    pub(super) fn store(&self, name: &str, round: u64, result: Result<Bytes, String>) {
        let now = Clock.now();
        self.peers.send_modify(|peers| {
            let peer = peers.entry(name.to_owned()).or_default();
            peer.round = round;
            peer.failure = match result {
                Ok(content) => {
                    peer.last = Some((now, content));
                    None
                }
                Err(why) => Some(why),
            };
        });
    }

    /// Forgets all replicas but those that `is_known`.
    pub(super) fn retain(&self, is_known: impl Fn(&str) -> bool) {
        self.peers
            .send_modify(|peers| peers.retain(|name, _| is_known(name)));
    }

    /// Asks the replicas of these names, unless they were asked within the last second, and waits
    /// until all have answered, for half a second at most. Returns what is known then. If histories
    /// were not asked for in that second, waits until it is over.
    ///
    /// # Cancel safety
    /// The round goes on.
    pub(crate) async fn ask(
        &self,
        names: impl Iterator<Item = &String> + Clone,
        with_history: bool,
    ) -> BTreeMap<String, PeerSnapshot> {
        let round = loop {
            match self.begin_round(with_history, Clock.now()) {
                Ok(number) => break number,
                Err(rest) => sleep(rest).await,
            }
        };
        let mut peers = self.peers.subscribe();
        let all_ended = |peers: &BTreeMap<String, PeerSnapshot>| {
            let ended = |name| peers.get(name).is_some_and(|peer| peer.round >= round);
            names.clone().all(ended)
        };
        let _ = timeout(DEADLINE, async { peers.wait_for(all_ended).await.is_ok() }).await;
        self.peers.borrow().clone()
    }

    /// Begins a round if the last one began a second ago. Returns the number of the last one.
    ///
    /// # Errors
    /// The time until the next one can begin, if the last one does not ask for histories.
    fn begin_round(&self, with_history: bool, now: Instant) -> Result<u64, Duration> {
        let mut started = self.started.lock();
        let elapsed = started.map(|at| now.saturating_duration_since(at));
        if let Some(elapsed) = elapsed.filter(|elapsed| *elapsed < LEAST_INTERVAL) {
            let last = *self.rounds.borrow();
            return match with_history && !last.with_history {
                true => Err(LEAST_INTERVAL.saturating_sub(elapsed)),
                false => Ok(last.number),
            };
        }
        *started = Some(now);
        self.rounds.send_modify(|round| {
            round.number += 1;
            round.with_history = with_history;
        });
        Ok(self.rounds.borrow().number)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Debug, Default)]
    struct CountingSource(AtomicU64);

    impl SnapshotSource for CountingSource {
        fn content(&self, _: bool) -> Bytes {
            let count = self.0.fetch_add(1, Ordering::Relaxed);
            count.to_string().into()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_snapshot_is_taken_once_a_second_however_many_ask() {
        let (exchange, source) = (
            SnapshotExchange::default(),
            Arc::new(CountingSource::default()),
        );
        assert!(
            exchange.own_frame(false).is_none(),
            "nothing takes snapshots"
        );
        let weak: Weak<CountingSource> = Arc::downgrade(&source);
        exchange.set_source(weak);
        let first = exchange.own_frame(false).unwrap();
        for _ in 0..100 {
            assert_eq!(exchange.own_frame(false).unwrap(), first);
        }
        tokio::time::advance(LEAST_INTERVAL).await;
        assert_ne!(exchange.own_frame(false).unwrap(), first);
        let with_history = exchange.own_frame(true).unwrap();
        assert_ne!(exchange.own_frame(false).unwrap(), with_history);
        drop(source);
        assert!(exchange.own_frame(false).is_none(), "weir ends");
    }

    #[tokio::test(start_paused = true)]
    async fn rounds_begin_once_a_second_and_a_silent_replica_delays_nothing_for_long() {
        let exchange = Arc::new(SnapshotExchange::default());
        let names = ["one".to_owned(), "two".to_owned()];
        let (mut rounds, answering) = (exchange.rounds(), Arc::clone(&exchange));
        tokio::spawn(async move {
            while rounds.changed().await.is_ok() {
                let round = rounds.borrow_and_update().number;
                answering.store("one", round, Ok(round.to_string().into()));
            }
        });
        let begun = Clock.now();
        let known = exchange.ask(names.iter(), false).await;
        assert_eq!(Clock.now() - begun, DEADLINE, "`two` does not answer");
        assert!(known["one"].last.is_some() && !known.contains_key("two"));
        // The same round.
        let known = exchange.ask(names.iter().take(1), false).await;
        assert_eq!(known["one"].last.as_ref().unwrap().1, "1");
        tokio::time::advance(LEAST_INTERVAL).await;
        let begun = Clock.now();
        let known = exchange.ask(names.iter().take(1), false).await;
        assert_eq!(known["one"].last.as_ref().unwrap().1, "2");
        assert_eq!(Clock.now(), begun, "all have answered");
        let known = exchange.ask(names.iter().take(1), true).await;
        assert_eq!(known["one"].last.as_ref().unwrap().1, "3");
        let waited = Clock.now() - begun;
        assert_eq!(
            waited, LEAST_INTERVAL,
            "the last round was without histories"
        );
        exchange.store("one", 4, Err("cut".to_owned()));
        let known = exchange.ask([].iter(), true).await;
        assert_eq!(known["one"].failure.as_deref(), Some("cut"));
        assert!(known["one"].last.is_some(), "the last one stays");
        exchange.retain(|name| name != "one");
        assert!(exchange.ask([].iter(), false).await.is_empty());
    }
}
