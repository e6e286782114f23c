//! The status page's data: a [snapshot](weir_status::snapshot::StatusSnapshot) of weir's state, live and over
//! the last 15 minutes. What hurts clients most is said once, here, by the [headline](mod@weir_status::headline): the page, `weir
//! top` and `weir status` show the same words.
//!
//! weir keeps the history itself, so that a page that is opened during an incident shows how it
//! began. The cost is a snapshot every five seconds without subscribers and one a second with them,
//! on the control runtime. Measured without the compiler's full optimization: with 58 levels 0.1 %
//! of a core in both cases; with 100,000 users and as many user agents, when the tables of the top
//! talkers are full, 0.6 % with subscribers. An event is 20 KB with 58 levels. All subscribers
//! share an event. A subscriber that reads too slowly misses events and holds no memory for them.
//!
//! With peer connections a client chooses all replicas or one of them. Then weir asks the others for
//! their [states](weir_status::replica_snapshot), once a second, and makes a [view](weir_status::replica_view) of them.
//!
//! The stream is server-sent events, not WebSockets: they go one way, are plain HTTP/1.1 with a
//! retry in every browser, and pass through `kubectl port-forward` and ssh. Each event holds
//! everything, so no subscriber has to catch up. A subscriber that acknowledges nothing for 30 s is
//! disconnected. Snapshots have totals, not rates: the page, `weir top` and the history each
//! compute rates over the time that suits them.

pub(crate) mod outcome_counts;
pub(crate) mod sources;

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use http_body::Frame;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::observe::status::sources::{StatusSources, unix_ms};
use crate::replicas::coordinator::{Replicas, SnapshotOfPeer};
use crate::replicas::peers::frame_kind::{MAX_SNAPSHOT_BYTES, SNAPSHOT_FRAME_OVERHEAD};
use crate::replicas::peers::snapshots::SnapshotSource;
use weir_base::clock::Clock;
use weir_kubernetes::encoding::printable::escape_json;
use weir_status::headline::headline;
use weir_status::history::{HistoryRing, ROW_SECONDS};
use weir_status::history_sum::retain_busy_levels;
use weir_status::marks::{MarkKind, MarkedState, changes};
use weir_status::replica_snapshot::{ReplicaSnapshot, TALKERS_PER_MEASURE};
use weir_status::replica_view::{KnownReplica, history, view};
use weir_status::snapshot::{StatusHistory, StatusSnapshot, TopTalkersStatus};
use weir_status::talker_lists::{LongWindowCache, window_lists};
use weir_talkers::TalkerTable;

/// The interval between `snapshot` events.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// Most subscribers at a time: a team with a page each. They share the admin listener's connections
/// with probes and scrapes.
const MAX_SUBSCRIBERS: usize = 16;

/// Most levels of a history that another process has left. No cluster has as many.
const MAX_RESTORED_LEVELS: usize = 1000;

/// The first bytes of an event stream: a browser that loses the connection reconnects after two
/// seconds.
const SSE_RETRY: &[u8] = b"retry: 2000\n\n";

/// The least age of the snapshot that the headline's rates are computed from: one of the last rows.
const RATE_INTERVAL_MS: u64 = 2500;

/// Earlier snapshots that are kept: the last of them is as old as [`RATE_INTERVAL_MS`], or the one
/// before it.
const MAX_EARLIER: usize = 2;

/// Takes snapshots, keeps the history, and sends events to subscribers.
#[derive(Debug)]
pub(crate) struct StatusFeed {
    sources: StatusSources,
    /// The snapshots of the last rows, newest last, for the headline's rates. Locked to make a headline.
    earlier: Mutex<VecDeque<StatusSnapshot>>,
    /// Locked to add one row, or to copy all.
    ring: Mutex<HistoryRing>,
    /// The top talkers of the longer windows. Locked while they are computed.
    long_windows: Mutex<LongWindowCache<TopTalkersStatus>>,
    /// The same for the sums of all replicas.
    long_tables: Mutex<LongWindowCache<TalkerTable>>,
    /// The last events of replicas' views.
    views: ViewChannels,
    /// The last event. A slow subscriber receives only the newest one.
    events: watch::Sender<Bytes>,
    subscribers: Arc<Semaphore>,
}

/// The event streams of replicas' views: one channel for all replicas, and one for each that is
/// picked out, while there are subscribers.
///
/// The channels have the last event of each view. Locked to add, remove or find a channel only.
#[derive(Debug, Default)]
struct ViewChannels(Mutex<BTreeMap<String, watch::Sender<Bytes>>>);

impl StatusFeed {
    /// Creates a feed with an empty history.
    #[must_use]
    pub(crate) fn new(sources: StatusSources) -> Arc<Self> {
        Arc::new(Self {
            sources,
            earlier: Mutex::default(),
            ring: Mutex::default(),
            long_windows: Mutex::default(),
            long_tables: Mutex::default(),
            views: ViewChannels::default(),
            events: watch::Sender::default(),
            subscribers: Arc::new(Semaphore::new(MAX_SUBSCRIBERS)),
        })
    }

    /// Takes snapshots and never returns.
    ///
    /// # Cancel safety
    /// Dropping the future ends the history; nothing else is lost.
    pub(crate) async fn run(self: Arc<Self>) {
        tokio::join!(self.run_own(), self.run_views());
    }

    async fn run_own(&self) {
        let mut second = interval(EVENT_INTERVAL);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ticks = 0_u64;
        let mut marked = None;
        loop {
            second.tick().await;
            self.mark_changes(&mut marked);
            let row = ticks.is_multiple_of(ROW_SECONDS);
            ticks += 1;
            if !row && self.events.receiver_count() == 0 {
                continue;
            }
            let mut snapshot = self.snapshot_without_talkers();
            if row {
                self.lock_ring().add(&snapshot);
                let mut earlier = self.earlier.lock();
                if earlier.len() >= MAX_EARLIER {
                    earlier.pop_front();
                }
                earlier.push_back(snapshot.clone());
            }
            if self.events.receiver_count() > 0 {
                snapshot.talkers = self.top_talkers();
                self.events.send_replace(sse_event("snapshot", &snapshot));
            }
        }
    }

    /// Marks what has changed since `before`.
    fn mark_changes(&self, before: &mut Option<MarkedState>) {
        let now = self.sources.marked_state(Clock.now());
        let changes = match before {
            Some(before) => changes(before, &now),
            None => {
                let text = format!("weir {} has started", env!("CARGO_PKG_VERSION"));
                vec![(MarkKind::Start, text)]
            }
        };
        *before = Some(now);
        self.lock_ring().mark(unix_ms(Clock.wall()), changes);
    }

    /// Sends the events of replicas' views. Never returns.
    async fn run_views(&self) {
        let mut second = interval(EVENT_INTERVAL);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            second.tick().await;
            let subscribed = self.views.subscribed();
            if subscribed.is_empty() {
                continue;
            }
            let Some((replicas, own_name)) = self.replicas() else {
                continue;
            };
            let others = known_replicas(replicas.peer_snapshots(false).await);
            let own = self.replica_snapshot();
            for chosen in subscribed {
                let snapshot = view(&chosen, &own_name, &own, &others);
                self.views.send(&chosen, sse_event("snapshot", &snapshot));
            }
        }
    }

    /// Returns the body of `/status.json`: of all replicas or the `chosen` one, if there are peer
    /// connections. Waits for other replicas, never for the API server.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn json(&self, chosen: Option<&str>) -> Bytes {
        let snapshot = match chosen.zip(self.replicas()) {
            Some((chosen, (replicas, own_name))) => {
                let others = known_replicas(replicas.peer_snapshots(false).await);
                view(chosen, &own_name, &self.replica_snapshot(), &others)
            }
            None => self.snapshot(),
        };
        json_text(&snapshot).into()
    }

    /// Returns the events of `/status/events`, without end: `history`, then a `snapshot` each
    /// second, of all replicas or the `chosen` one, if there are peer connections. `None` if there
    /// are too many subscribers.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    #[must_use]
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        chosen: Option<&str>,
    ) -> Option<impl Stream<Item = EventFrame> + Send + use<>> {
        let permit = Arc::clone(&self.subscribers).try_acquire_owned().ok()?;
        let (mut events, history, snapshot) = match chosen.zip(self.replicas()) {
            Some((chosen, (replicas, own_name))) => {
                let events = self.views.subscribe(chosen);
                let others = known_replicas(replicas.peer_snapshots(true).await);
                let snapshot = view(chosen, &own_name, &self.replica_snapshot(), &others);
                let history = history(chosen, &own_name, self.history(), &others);
                (events, history, snapshot)
            }
            None => (self.events.subscribe(), self.history(), self.snapshot()),
        };
        events.mark_unchanged();
        let initial = [
            SSE_RETRY.to_vec(),
            sse_event("history", &history).into(),
            sse_event("snapshot", &snapshot).into(),
        ];
        let subscriber = EventSubscriber {
            initial_events: Some(initial.concat().into()),
            events,
            _permit: permit,
        };
        Some(stream::unfold(subscriber, EventSubscriber::next_frame))
    }

    /// The history as another process continues it.
    #[must_use]
    pub(crate) fn history(&self) -> StatusHistory {
        self.lock_ring().history()
    }

    /// Continues the history of another process. One with other intervals is ignored.
    pub(crate) fn restore_history(&self, history: &StatusHistory) {
        if history.every_seconds == ROW_SECONDS && history.levels.len() <= MAX_RESTORED_LEVELS {
            *self.lock_ring() = HistoryRing::from_history(history);
        }
    }

    /// The replicas and the name of this one, if there are peer connections.
    fn replicas(&self) -> Option<(Arc<Replicas>, String)> {
        let replicas = self.sources.readiness.division()?;
        let name = replicas.name_among_peers()?.to_owned();
        Some((replicas, name))
    }

    /// The state of this replica, as the others get it.
    fn replica_snapshot(&self) -> ReplicaSnapshot {
        let (talkers, now) = (&self.sources.top_talkers, Clock.now());
        let mut tables = self.long_tables.lock();
        ReplicaSnapshot {
            status: self.snapshot_without_talkers(),
            tables: tables.all_windows(now, |windows| {
                talkers.tables(now, windows, TALKERS_PER_MEASURE)
            }),
            history: None,
        }
    }

    fn snapshot(&self) -> StatusSnapshot {
        StatusSnapshot {
            talkers: self.top_talkers(),
            ..self.snapshot_without_talkers()
        }
    }

    /// Leaves out the top talkers, which cost more than all the rest.
    fn snapshot_without_talkers(&self) -> StatusSnapshot {
        let mut snapshot = self.sources.snapshot(Clock.now(), Clock.wall());
        snapshot.marks = self.lock_ring().marks();
        let earlier = self.earlier.lock();
        let then = base_of_rates(&earlier, snapshot.unix_ms);
        let is_rejecting = then.is_some_and(|then| then.rejections != snapshot.rejections);
        let most = is_rejecting.then(|| self.sources.rejected_most()).flatten();
        snapshot.headline = headline(&snapshot, then, most.as_ref());
        snapshot
    }

    fn top_talkers(&self) -> Vec<TopTalkersStatus> {
        let mut cache = self.long_windows.lock();
        cache.all_windows(Clock.now(), |windows| {
            window_lists(&self.sources.top_talkers, windows)
        })
    }

    fn lock_ring(&self) -> MutexGuard<'_, HistoryRing> {
        self.ring.lock()
    }
}

impl SnapshotSource for StatusFeed {
    fn content(&self, with_history: bool) -> Bytes {
        let mut snapshot = self.replica_snapshot();
        if with_history {
            let mut history = self.history();
            retain_busy_levels(&mut history);
            snapshot.history = Some(history);
        }
        let max = MAX_SNAPSHOT_BYTES - SNAPSHOT_FRAME_OVERHEAD;
        snapshot.to_json(max).into()
    }
}

/// The newest earlier snapshot that is old enough to compute rates from at `now`, or the oldest one.
fn base_of_rates(earlier: &VecDeque<StatusSnapshot>, now: u64) -> Option<&StatusSnapshot> {
    let is_old_enough =
        |then: &&StatusSnapshot| now.saturating_sub(then.unix_ms) >= RATE_INTERVAL_MS;
    let mut newest_first = earlier.iter().rev();
    newest_first.find(is_old_enough).or_else(|| earlier.front())
}

/// Reads the snapshots of the others. One that cannot be read counts as none.
fn known_replicas(peers: Vec<SnapshotOfPeer>) -> Vec<KnownReplica> {
    let read = |peer: SnapshotOfPeer| {
        let content = peer.content.as_deref().map(ReplicaSnapshot::parse);
        let (snapshot, failure) = match content {
            Some(Ok(snapshot)) => (Some(snapshot), peer.failure),
            Some(Err(why)) => (None, Some(why)),
            None => (None, peer.failure),
        };
        KnownReplica {
            name: peer.name,
            last: peer.age.zip(snapshot),
            failure,
        }
    };
    peers.into_iter().map(read).collect()
}

/// A frame of the response body.
pub(crate) type EventFrame = Result<Frame<Bytes>, Infallible>;

/// A subscriber's state: its permit and at most one event.
struct EventSubscriber {
    initial_events: Option<Bytes>,
    events: watch::Receiver<Bytes>,
    _permit: OwnedSemaphorePermit,
}

impl EventSubscriber {
    async fn next_frame(mut self) -> Option<(EventFrame, Self)> {
        let event = match self.initial_events.take() {
            Some(first) => first,
            None => {
                self.events.changed().await.ok()?;
                self.events.borrow_and_update().clone()
            }
        };
        Some((Ok(Frame::data(event)), self))
    }
}

/// Encodes a server-sent event. JSON has no line breaks, so that the data is one line.
fn sse_event(name: &str, data: &impl Serialize) -> Bytes {
    format!("event: {name}\ndata: {}\n\n", json_text(data)).into()
}

fn json_text(data: &impl Serialize) -> String {
    let text = serde_json::to_string(data).unwrap_or_default();
    escape_json(&text).into_owned()
}

impl ViewChannels {
    /// Subscribes to a view. The caller bounds the number of subscribers.
    fn subscribe(&self, chosen: &str) -> watch::Receiver<Bytes> {
        let mut channels = self.0.lock();
        channels.entry(chosen.to_owned()).or_default().subscribe()
    }

    /// The views with subscribers. The others are removed.
    fn subscribed(&self) -> Vec<String> {
        let mut channels = self.0.lock();
        channels.retain(|_, channel| channel.receiver_count() > 0);
        channels.keys().cloned().collect()
    }

    /// Sends an event to the subscribers of a view.
    fn send(&self, chosen: &str, event: Bytes) {
        if let Some(channel) = self.0.lock().get(chosen) {
            channel.send_replace(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use weir_kubernetes::encoding::printable::{HOSTILE_NAMES, is_printable};

    #[test]
    fn names_are_only_printable_characters_in_an_event() {
        for name in HOSTILE_NAMES {
            let event = sse_event("snapshot", &name);
            let event = str::from_utf8(&event).unwrap();
            assert!(
                event.lines().flat_map(str::chars).all(is_printable),
                "{event:?}"
            );
            assert_eq!(event.lines().count(), 3, "{event:?}");
        }
    }

    #[test]
    fn rates_are_since_the_newest_snapshot_that_is_old_enough() {
        let at = |unix_ms| StatusSnapshot {
            unix_ms,
            ..StatusSnapshot::default()
        };
        let base = |earlier: &[u64], now| {
            let earlier: VecDeque<_> = earlier.iter().copied().map(at).collect();
            base_of_rates(&earlier, now).map(|then| then.unix_ms)
        };
        assert_eq!(base(&[], 9000), None);
        assert_eq!(base(&[1000, 6000], 9000), Some(6000));
        assert_eq!(base(&[1000, 6000], 8000), Some(1000), "6000 is too new");
        assert_eq!(base(&[6000], 6100), Some(6000), "there is no older one");
    }

    #[tokio::test]
    async fn a_slow_subscriber_gets_only_the_newest_event() {
        let (events, receiver) = watch::channel(Bytes::new());
        let permits = Arc::new(Semaphore::new(1));
        let subscriber = EventSubscriber {
            initial_events: Some(Bytes::from_static(b"first")),
            events: receiver,
            _permit: Arc::clone(&permits).try_acquire_owned().unwrap(),
        };
        let data = |item: EventFrame| item.unwrap().into_data().unwrap();
        for n in 0..1000 {
            events.send_replace(n.to_string().into());
        }
        let (item, subscriber) = subscriber.next_frame().await.unwrap();
        assert_eq!(data(item), "first");
        let (item, subscriber) = subscriber.next_frame().await.unwrap();
        assert_eq!(data(item), "999");
        assert_eq!(permits.available_permits(), 0);
        assert!(
            subscriber.next_frame().now_or_never().is_none(),
            "nothing is new"
        );
        assert_eq!(permits.available_permits(), 1, "a place comes back");
    }

    #[test]
    fn an_event_is_always_one_line_of_data() {
        let text = sse_event("snapshot", &"two\nlines\r\n\nevent: forged\u{2028}");
        let text = std::str::from_utf8(&text).unwrap();
        assert_eq!(text.lines().count(), 3, "{text:?}");
        assert!(text.starts_with("event: snapshot\ndata: \"two\\nlines") && text.ends_with("\n\n"));
    }

    #[test]
    fn a_view_has_a_channel_while_it_has_subscribers() {
        let channels = ViewChannels::default();
        let (mut all, mut one) = (channels.subscribe("all"), channels.subscribe("one"));
        assert_eq!(channels.subscribed(), ["all", "one"]);
        channels.send("one", Bytes::from_static(b"event"));
        assert_eq!(*one.borrow_and_update(), "event");
        assert!(!all.has_changed().unwrap());
        all.mark_unchanged();
        drop(all);
        assert_eq!(channels.subscribed(), ["one"]);
        channels.send("all", Bytes::new()); // of no effect
        drop(one);
        assert!(channels.subscribed().is_empty());
    }
}
