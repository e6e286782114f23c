//! Detects when a watch has sent its initial events: it releases its seats then.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::Sleep;

use crate::pipeline::response::deadlines::DeadlineGuard;
use crate::pipeline::response::list_observer::InitialEventsEnd;
use crate::pipeline::response::list_observer::InitialEventsObserver;
use crate::request_info::RequestInfo;

/// A watch without an end-of-initial-events bookmark counts as initialized when no data has arrived
/// for this long: several times what kube-apiserver needs between two events that are at hand.
const INITIAL_EVENTS_IDLE: Duration = Duration::from_millis(100);

/// A watch releases its seats after this time at the latest, whatever its stream contains.
pub(in crate::pipeline) const INITIALIZATION_TIMEOUT: Duration = Duration::from_secs(10);

/// A watch that has not sent all of its initial events.
pub(in crate::pipeline) struct WatchInitialization {
    signal: InitializationSignal,
    observer: InitialEventsObserver,
    /// Of the time-out that releases the seats when the initialization takes too long.
    timeout_guard: Option<DeadlineGuard>,
}

/// What shows that a watch is initialized. (`apf_filter.go` waits for a signal of the watch cache,
/// which is not visible from outside.)
enum InitializationSignal {
    /// The bookmark at the end of the initial events.
    Bookmark,
    /// A time without data, since the last data.
    Idle(Option<Pin<Box<Sleep>>>),
}

impl InitializationSignal {
    /// `None` if the response head is the signal.
    fn of_watch(info: &RequestInfo<'_>) -> Option<Self> {
        let query = info.query();
        if query
            .first("sendInitialEvents")
            .is_some_and(|value| is_true(&value))
        {
            Some(Self::Bookmark)
        } else if query
            .first("resourceVersion")
            .is_none_or(|version| matches!(&*version, b"" | b"0"))
        {
            Some(Self::Idle(None))
        } else {
            None
        }
    }
}

/// Converts a boolean parameter as upstream does: everything but `0` and `false` is true.
fn is_true(value: &[u8]) -> bool {
    !(value == b"0" || value.eq_ignore_ascii_case(b"false"))
}

impl WatchInitialization {
    /// The initialization of a watch that has been admitted and has a successful response; `None`
    /// if it is initialized with the response's head, or if nothing depends on its end.
    pub(in crate::pipeline) fn start(
        info: &RequestInfo<'_>,
        events: InitialEventsObserver,
        holds_concurrency: bool,
    ) -> Option<Box<Self>> {
        let signal = InitializationSignal::of_watch(info)?;
        // The bookmark is detected in any case: the time until it arrives is measured.
        let by_bookmark = matches!(signal, InitializationSignal::Bookmark);
        (holds_concurrency || by_bookmark).then(|| {
            Box::new(Self {
                signal,
                observer: events.with_scan(by_bookmark),
                timeout_guard: None,
            })
        })
    }

    /// Keeps the guard of the time-out until the end of the initialization.
    pub(in crate::pipeline) fn set_timeout_guard(&mut self, timeout_guard: DeadlineGuard) {
        self.timeout_guard = Some(timeout_guard);
    }

    /// Observes these bytes. Returns whether they complete the bookmark, and with it the
    /// initialization.
    pub(super) fn feed(&mut self, data: &[u8]) -> bool {
        let has_bookmark = self.observer.feed(data);
        match &mut self.signal {
            InitializationSignal::Bookmark if has_bookmark => {
                self.finish(InitialEventsEnd::Bookmark);
                return true;
            }
            InitializationSignal::Idle(timer) => *timer = None,
            InitializationSignal::Bookmark => {}
        }
        false
    }

    /// Polled while there is no data. Returns whether there has been none for so long that the
    /// watch is initialized.
    pub(super) fn poll_idle(&mut self, cx: &mut Context<'_>) -> bool {
        let InitializationSignal::Idle(timer) = &mut self.signal else {
            return false;
        };
        let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(INITIAL_EVENTS_IDLE)));
        let is_idle = timer.as_mut().poll(cx).is_ready();
        if is_idle {
            self.finish(InitialEventsEnd::Idle);
        }
        is_idle
    }

    fn finish(&mut self, end: InitialEventsEnd) {
        self.observer.finish(end);
        drop(self.timeout_guard.take());
    }
}
