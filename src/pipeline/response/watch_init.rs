//! Detects when a watch has sent its initial events, and releases its seats then.

use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;
use std::time::Instant;

use tokio::time::Sleep;

use crate::limits::Permit;
use crate::pipeline::response::deadlines::DeadlineGuard;
use crate::pipeline::response::deadlines::Deadlines;
use crate::pipeline::response::deadlines::Expire;
use crate::pipeline::response::list_observer::InitialEventsEnd;
use crate::pipeline::response::list_observer::InitialEventsObserver;
use crate::request_info::RequestInfo;

/// A watch without an end-of-initial-events bookmark counts as initialized when no data has arrived
/// for this long: several times what kube-apiserver needs between two events that are at hand.
const INITIAL_EVENTS_IDLE: Duration = Duration::from_millis(100);

/// A watch releases its seats after this time at the latest, whatever its stream contains.
const INITIALIZATION_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the permit is held: until the end, or, for a watch, until it is initialized.
pub(in crate::pipeline) enum PermitLifetime {
    /// Until the end of the response.
    UntilEnd { permit: Permit },
    /// Until the watch has sent its initial events.
    UntilInitialized(Box<WatchInitialization>),
}

/// A watch that has not sent all of its initial events.
pub(in crate::pipeline) struct WatchInitialization {
    permit: Arc<SharedPermit>,
    signal: InitializationSignal,
    observer: InitialEventsObserver,
    /// Ends the initialization when it takes too long, also without a reader.
    timeout_guard: Option<DeadlineGuard>,
}

/// What shows that a watch is initialized. (`apf_filter.go` waits for a signal of the watch cache,
/// which is not visible from outside.)
enum InitializationSignal {
    /// The bookmark at the end of the initial events.
    Bookmark,
    /// A time without data, since the last data.
    Idle(Option<Pin<Box<Sleep>>>),
    /// The watch is initialized.
    Received,
}

struct SharedPermit(Mutex<Permit>);

impl SharedPermit {
    fn release_seats(&self) {
        self.0.lock().signal_watch_initialized();
    }
}

impl Expire for SharedPermit {
    fn expire(&self) {
        self.release_seats();
    }
}

impl PermitLifetime {
    /// The lifetime of the permit of a watch whose response came at `now`; `events` if the response
    /// is a success.
    pub(in crate::pipeline) fn for_watch(
        info: &RequestInfo<'_>,
        events: Option<InitialEventsObserver>,
        mut permit: Permit,
        now: Instant,
        deadlines: &Arc<Deadlines>,
    ) -> Self {
        let query = info.query();
        let signal = if query
            .first("sendInitialEvents")
            .is_some_and(|value| is_true(&value))
        {
            InitializationSignal::Bookmark
        } else if query
            .first("resourceVersion")
            .is_none_or(|version| matches!(&*version, b"" | b"0"))
        {
            InitializationSignal::Idle(None)
        } else {
            InitializationSignal::Received // the response head is the signal
        };
        // The bookmark is detected in any case: the time until it arrives is measured.
        let waits = permit.holds_concurrency() || matches!(signal, InitializationSignal::Bookmark);
        let Some(events) =
            events.filter(|_| waits && !matches!(signal, InitializationSignal::Received))
        else {
            permit.signal_watch_initialized();
            return Self::UntilEnd { permit };
        };
        let events = events.with_scan(matches!(signal, InitializationSignal::Bookmark));
        let permit = Arc::new(SharedPermit(Mutex::new(permit)));
        let expirable: Arc<dyn Expire> = Arc::<SharedPermit>::clone(&permit);
        let expirable = deadlines.register(Some(now + INITIALIZATION_TIMEOUT), expirable);
        Self::UntilInitialized(Box::new(WatchInitialization {
            permit,
            signal,
            observer: events,
            timeout_guard: Some(expirable),
        }))
    }
}

/// Converts a boolean parameter as upstream does: everything but `0` and `false` is true.
fn is_true(value: &[u8]) -> bool {
    !(value == b"0" || value.eq_ignore_ascii_case(b"false"))
}

impl WatchInitialization {
    /// Whether these bytes complete the bookmark.
    pub(super) fn feed(&mut self, data: &[u8]) -> bool {
        let has_bookmark =
            !matches!(self.signal, InitializationSignal::Received) && self.observer.feed(data);
        match &mut self.signal {
            InitializationSignal::Bookmark if has_bookmark => {
                self.finish(InitialEventsEnd::Bookmark);
                return true;
            }
            InitializationSignal::Idle(timer) => *timer = None,
            InitializationSignal::Bookmark | InitializationSignal::Received => {}
        }
        false
    }

    pub(super) fn poll_idle(&mut self, cx: &mut Context<'_>) {
        if let InitializationSignal::Idle(timer) = &mut self.signal {
            let timer =
                timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(INITIAL_EVENTS_IDLE)));
            if timer.as_mut().poll(cx).is_ready() {
                self.finish(InitialEventsEnd::Idle);
            }
        }
    }

    fn finish(&mut self, end: InitialEventsEnd) {
        self.signal = InitializationSignal::Received;
        self.observer.finish(end);
        self.permit.release_seats();
        self.timeout_guard = None;
    }
}
