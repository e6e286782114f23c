//! The status page's data: a [snapshot](snapshot::Snapshot) of all that an operator sees, now, live and over the last 15
//! minutes.
//!
//! weir keeps the history itself, so that a page that is opened when something is wrong shows how it began. It costs a
//! snapshot every five seconds when nobody looks and one a second when somebody does, on the control runtime. Measured
//! without the compiler's full optimization: with 58 levels a thousandth of a core either way; with 100,000 users and as many
//! user agents, when the talkers' tables are full, six thousandths while somebody looks. An event is 20 KB with 58 levels.
//! However many look, they share it; one who reads too slowly misses some, and holds nothing.

pub mod history;
pub mod outcome_counts;
pub mod page;
pub mod snapshot;
pub mod sources;
mod top_talkers;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream;
use http_body::Frame;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio::time::interval;

use crate::clock::Clock;
use crate::observe::status::history::HistoryRing;
use crate::observe::status::history::ROW_SECONDS;
use crate::observe::status::snapshot::StatusSnapshot;
use crate::observe::status::snapshot::TopTalkersStatus;
use crate::observe::status::sources::StatusSources;
use crate::observe::status::top_talkers::LongWindowCache;

/// How often somebody who looks is told.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// Most who look at a time: a team with a page each. They share the admin listener's connections with probes and scrapes.
const MAX_SUBSCRIBERS: usize = 16;

/// What an event's connection begins with: a browser that loses it tries again after two seconds.
const SSE_RETRY: &[u8] = b"retry: 2000\n\n";

/// Takes snapshots, keeps the history, and tells whoever listens.
#[derive(Debug)]
pub struct StatusFeed {
    sources: StatusSources,
    /// Guards the rows; held for one row, or to copy all.
    ring: Mutex<HistoryRing>,
    /// Guards who does most over longer times; held while that is found out.
    long_windows: Mutex<LongWindowCache>,
    /// The last event. Whoever comes late to it takes the newest only.
    events: watch::Sender<Bytes>,
    subscribers: Arc<Semaphore>,
}

impl StatusFeed {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(sources: StatusSources) -> Arc<Self> {
        Arc::new(Self {
            sources,
            ring: Mutex::default(),
            long_windows: Mutex::default(),
            events: watch::Sender::default(),
            subscribers: Arc::new(Semaphore::new(MAX_SUBSCRIBERS)),
        })
    }

    /// Takes snapshots for as long as weir runs, and asks whether the API server answers when nobody else has for `unasked`.
    ///
    /// # Cancel safety
    /// Dropping the future ends the history; nothing else is lost.
    pub async fn run(self: Arc<Self>, unasked: Duration) {
        let began = Clock.now();
        let mut second = interval(EVENT_INTERVAL);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ticks = 0_u64;
        loop {
            second.tick().await;
            if Clock.now().saturating_duration_since(began) >= unasked {
                self.refresh_readiness(unasked);
            }
            let row = ticks.is_multiple_of(ROW_SECONDS);
            ticks += 1;
            if !row && self.events.receiver_count() == 0 {
                continue;
            }
            let mut snapshot = self.snapshot_without_talkers();
            if row {
                self.lock_ring().add(&snapshot);
            }
            if self.events.receiver_count() > 0 {
                self.refresh_readiness(EVENT_INTERVAL);
                snapshot.talkers = self.top_talkers();
                self.events.send_replace(sse_event("snapshot", &snapshot));
            }
        }
    }

    /// The answer of `/status.json`.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn json(&self) -> Bytes {
        // Its answer, good or bad, is in the snapshot then.
        let _ = self.sources.readiness.report().await;
        serde_json::to_vec(&self.snapshot())
            .unwrap_or_default()
            .into()
    }

    /// The events of `/status/events`, without end: `history`, then a `snapshot` each second. None: too many listen already.
    #[must_use]
    pub fn subscribe(self: &Arc<Self>) -> Option<impl Stream<Item = EventFrame> + Send + use<>> {
        let place = Arc::clone(&self.subscribers).try_acquire_owned().ok()?;
        self.refresh_readiness(EVENT_INTERVAL);
        let mut events = self.events.subscribe();
        events.mark_unchanged();
        let first = [
            SSE_RETRY.to_vec(),
            sse_event("history", &self.lock_ring().history()).into(),
            sse_event("snapshot", &self.snapshot()).into(),
        ];
        let listener = EventSubscriber {
            initial_events: Some(first.concat().into()),
            events,
            _permit: place,
        };
        Some(stream::unfold(listener, EventSubscriber::next_frame))
    }

    fn snapshot(&self) -> StatusSnapshot {
        StatusSnapshot {
            talkers: self.top_talkers(),
            ..self.snapshot_without_talkers()
        }
    }

    /// All but who does most, which costs more than all else.
    fn snapshot_without_talkers(&self) -> StatusSnapshot {
        self.sources.snapshot(Clock.now(), Clock.wall())
    }

    fn top_talkers(&self) -> Vec<TopTalkersStatus> {
        let mut longer = self
            .long_windows
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        longer.all_windows(&self.sources.top_talkers, Clock.now())
    }

    /// Asks whether the API server answers, if its last answer is of so long ago, beside: that may take seconds. It is asked
    /// once a second at most, whoever asks.
    fn refresh_readiness(&self, unasked: Duration) {
        let readiness = Arc::clone(&self.sources.readiness);
        if readiness.is_older_than(unasked, Clock.now()) {
            tokio::spawn(async move {
                let _ = readiness.report().await;
            });
        }
    }

    fn lock_ring(&self) -> MutexGuard<'_, HistoryRing> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A piece of an answer's body.
pub type EventFrame = Result<Frame<Bytes>, Infallible>;

/// One who looks. Holds a place and at most one event.
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

/// A server-sent event. JSON has no line breaks, so that one line is all.
fn sse_event(name: &str, data: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_slow_subscriber_gets_only_the_newest_event() {
        let (events, receiver) = watch::channel(Bytes::new());
        let places = Arc::new(Semaphore::new(1));
        let listener = EventSubscriber {
            initial_events: Some(Bytes::from_static(b"first")),
            events: receiver,
            _permit: Arc::clone(&places).try_acquire_owned().unwrap(),
        };
        let data = |item: EventFrame| item.unwrap().into_data().unwrap();
        for n in 0..1000 {
            events.send_replace(n.to_string().into());
        }
        let (item, listener) = listener.next_frame().await.unwrap();
        assert_eq!(data(item), "first");
        let (item, listener) = listener.next_frame().await.unwrap();
        assert_eq!(data(item), "999");
        assert_eq!(places.available_permits(), 0);
        assert!(
            listener.next_frame().now_or_never().is_none(),
            "nothing is new"
        );
        assert_eq!(places.available_permits(), 1, "a place comes back");
    }

    #[test]
    fn an_event_is_always_one_line_of_data() {
        let text = sse_event("snapshot", &"two\nlines\r\n\nevent: forged\u{2028}");
        let text = std::str::from_utf8(&text).unwrap();
        assert_eq!(text.lines().count(), 3, "{text:?}");
        assert!(text.starts_with("event: snapshot\ndata: \"two\\nlines") && text.ends_with("\n\n"));
    }
}
