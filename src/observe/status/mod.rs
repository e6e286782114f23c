//! The status page's data: a [snapshot](snapshot::Snapshot) of all that an operator sees, now, live and over the last 15
//! minutes.
//!
//! weir keeps the history itself, so that a page that is opened when something is wrong shows how it began. It costs a
//! snapshot every five seconds when nobody looks and one a second when somebody does, on the control runtime. Measured
//! without the compiler's full optimization: with 58 levels a thousandth of a core either way; with 100,000 users and as many
//! user agents, when the talkers' tables are full, six thousandths while somebody looks. An event is 20 KB with 58 levels.
//! However many look, they share it; one who reads too slowly misses some, and holds nothing.

pub mod counts;
pub mod history;
pub mod page;
pub mod snapshot;
pub mod sources;
mod talking;

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
use crate::observe::status::history::ROW_SECONDS;
use crate::observe::status::history::Ring;
use crate::observe::status::snapshot::Snapshot;
use crate::observe::status::snapshot::Talkers;
use crate::observe::status::sources::Sources;
use crate::observe::status::talking::Longer;

/// How often somebody who looks is told.
const EVERY: Duration = Duration::from_secs(1);

/// Most who look at a time: a team with a page each. They share the admin listener's connections with probes and scrapes.
const MOST_LISTENERS: usize = 16;

/// What an event's connection begins with: a browser that loses it tries again after two seconds.
const RETRY: &[u8] = b"retry: 2000\n\n";

/// Takes snapshots, keeps the history, and tells whoever listens.
#[derive(Debug)]
pub struct Status {
    sources: Sources,
    /// Guards the rows; held for one row, or to copy all.
    ring: Mutex<Ring>,
    /// Guards who does most over longer times; held while that is found out.
    longer: Mutex<Longer>,
    /// The last event. Whoever comes late to it takes the newest only.
    events: watch::Sender<Bytes>,
    listeners: Arc<Semaphore>,
}

impl Status {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(sources: Sources) -> Arc<Self> {
        Arc::new(Self {
            sources,
            ring: Mutex::default(),
            longer: Mutex::default(),
            events: watch::Sender::default(),
            listeners: Arc::new(Semaphore::new(MOST_LISTENERS)),
        })
    }

    /// Takes snapshots for as long as weir runs, and asks whether the API server answers when nobody else has for `unasked`.
    ///
    /// # Cancel safety
    /// Dropping the future ends the history; nothing else is lost.
    pub async fn run(self: Arc<Self>, unasked: Duration) {
        let began = Clock.now();
        let mut second = interval(EVERY);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ticks = 0_u64;
        loop {
            second.tick().await;
            if Clock.now().saturating_duration_since(began) >= unasked {
                self.ask_upstream(unasked);
            }
            let row = ticks.is_multiple_of(ROW_SECONDS);
            ticks += 1;
            if !row && self.events.receiver_count() == 0 {
                continue;
            }
            let mut snapshot = self.numbers();
            if row {
                self.ring().add(&snapshot);
            }
            if self.events.receiver_count() > 0 {
                self.ask_upstream(EVERY);
                snapshot.talkers = self.talkers();
                self.events.send_replace(event("snapshot", &snapshot));
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
    pub fn listen(self: &Arc<Self>) -> Option<impl Stream<Item = Item> + Send + use<>> {
        let place = Arc::clone(&self.listeners).try_acquire_owned().ok()?;
        self.ask_upstream(EVERY);
        let mut events = self.events.subscribe();
        events.mark_unchanged();
        let first = [
            RETRY.to_vec(),
            event("history", &self.ring().history()).into(),
            event("snapshot", &self.snapshot()).into(),
        ];
        let listener = Listener {
            first: Some(first.concat().into()),
            events,
            _place: place,
        };
        Some(stream::unfold(listener, Listener::next))
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            talkers: self.talkers(),
            ..self.numbers()
        }
    }

    /// All but who does most, which costs more than all else.
    fn numbers(&self) -> Snapshot {
        self.sources.snapshot(Clock.now(), Clock.wall())
    }

    fn talkers(&self) -> Vec<Talkers> {
        let mut longer = self.longer.lock().unwrap_or_else(PoisonError::into_inner);
        longer.lists(&self.sources.talkers, Clock.now())
    }

    /// Asks whether the API server answers, if its last answer is of so long ago, beside: that may take seconds. It is asked
    /// once a second at most, whoever asks.
    fn ask_upstream(&self, unasked: Duration) {
        let readiness = Arc::clone(&self.sources.readiness);
        if readiness.is_older_than(unasked, Clock.now()) {
            tokio::spawn(async move {
                let _ = readiness.report().await;
            });
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A piece of an answer's body.
pub type Item = Result<Frame<Bytes>, Infallible>;

/// One who looks. Holds a place and at most one event.
struct Listener {
    first: Option<Bytes>,
    events: watch::Receiver<Bytes>,
    _place: OwnedSemaphorePermit,
}

impl Listener {
    async fn next(mut self) -> Option<(Item, Self)> {
        let event = match self.first.take() {
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
fn event(name: &str, data: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn who_reads_slowly_gets_the_newest_and_holds_nothing() {
        let (events, receiver) = watch::channel(Bytes::new());
        let places = Arc::new(Semaphore::new(1));
        let listener = Listener {
            first: Some(Bytes::from_static(b"first")),
            events: receiver,
            _place: Arc::clone(&places).try_acquire_owned().unwrap(),
        };
        let data = |item: Item| item.unwrap().into_data().unwrap();
        for n in 0..1000 {
            events.send_replace(n.to_string().into());
        }
        let (item, listener) = listener.next().await.unwrap();
        assert_eq!(data(item), "first");
        let (item, listener) = listener.next().await.unwrap();
        assert_eq!(data(item), "999");
        assert_eq!(places.available_permits(), 0);
        assert!(listener.next().now_or_never().is_none(), "nothing is new");
        assert_eq!(places.available_permits(), 1, "a place comes back");
    }

    #[test]
    fn an_event_is_one_line_of_data_whatever_is_in_it() {
        let text = event("snapshot", &"two\nlines\r\n\nevent: forged\u{2028}");
        let text = std::str::from_utf8(&text).unwrap();
        assert_eq!(text.lines().count(), 3, "{text:?}");
        assert!(text.starts_with("event: snapshot\ndata: \"two\\nlines") && text.ends_with("\n\n"));
    }
}
