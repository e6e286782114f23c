//! What rides on an answer's body: the turn on the connection, the record, the permit; and what is learned as it goes by.
//!
//! Two things are looked for in bodies: where a watch has sent what there was when it began (its seats go back then), and how
//! many objects there are and how large (the cost of later lists and watches is estimated by it).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::task::Context;
use std::time::Duration;
use std::time::Instant;

use tokio::time::Sleep;

use crate::clock::Clock;
use crate::drain::DrainGuard;
use crate::limits::Permit;
use crate::pipeline::connection::request_count::ActiveRequest;
use crate::pipeline::response::abandoned::InFlightRequest;
use crate::pipeline::response::deadlines::DeadlineGuard;
use crate::pipeline::response::deadlines::Deadlines;
use crate::pipeline::response::deadlines::Expire;
use crate::pipeline::response::deadlines::Transfer;
use crate::pipeline::response::deadlines::TransferPhase;
use crate::pipeline::response::guarded::BodyGuard;
use crate::pipeline::response::list_observer::InitialEventsEnd;
use crate::pipeline::response::list_observer::InitialEventsObserver;
use crate::pipeline::response::list_observer::ListObserver;
use crate::pipeline::trace::Trace;
use crate::request_info::RequestInfo;
use crate::upstream::body::request_body::BodyProgress;
use crate::upstream::body::request_body::BodyState;

/// A watch without a mark in its stream is taken for initialized when nothing has come for this long: several times what
/// kube-apiserver needs between two of the events that it has at hand.
const INITIAL_EVENTS_IDLE: Duration = Duration::from_millis(100);

/// A watch gives its seats back after this long at the latest, whatever its stream looks like.
const INITIALIZATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Dropped in this order: the record, the turn on the connection, the permit.
pub(in crate::pipeline) struct ResponseGuard {
    pub(in crate::pipeline) trace: Trace,
    pub(in crate::pipeline) in_flight: InFlightRequest,
    /// The request's body, where an answer may have come before its end.
    pub(in crate::pipeline) upload: Option<MonitoredUpload>,
    pub(in crate::pipeline) list: Option<Box<ListObserver>>,
    pub(in crate::pipeline) active_request: Option<ActiveRequest>,
    pub(in crate::pipeline) _drain_guard: Option<DrainGuard>,
}

/// A request's body that is not all sent, and held to the least rate.
pub(in crate::pipeline) struct MonitoredUpload {
    pub(in crate::pipeline) progress: Arc<BodyProgress>,
    pub(in crate::pipeline) _deadline_guard: DeadlineGuard,
}

impl MonitoredUpload {
    /// Held to the least rate from now on.
    pub(in crate::pipeline) fn new(progress: Arc<BodyProgress>, overdue: &Arc<Deadlines>) -> Self {
        let what: Arc<dyn Expire> = Arc::<BodyProgress>::clone(&progress);
        Self {
            progress,
            _deadline_guard: overdue.register(None, what),
        }
    }
}

impl Expire for BodyProgress {
    fn expire(&self) {
        self.stall();
    }

    fn transfer(&self) -> Option<Transfer> {
        Some(Transfer {
            phase: TransferPhase::RequestBody,
            bytes: self.bytes(),
            waiting_for_client: self.is_awaiting_client(),
        })
    }
}

/// The permit: given back at the end, or, of a watch, when it is initialized.
pub(in crate::pipeline) enum PermitLifetime {
    /// To the end.
    UntilEnd { permit: Permit },
    /// Until the watch has sent what there was.
    UntilInitialized(Box<WatchInitialization>),
}

impl BodyGuard for ResponseGuard {
    fn on_data(&mut self, data: &[u8]) {
        self.trace.record_sent(data.len());
        self.trace.inspect_body(data);
        if let Some(PermitLifetime::UntilInitialized(watch)) = self.in_flight.permit_mut()
            && watch.feed(data)
        {
            self.trace.record_watch_list(Clock.now());
        }
        if let Some(list) = &mut self.list {
            list.feed(data);
        }
    }

    fn on_idle(&mut self, cx: &mut Context<'_>) {
        if let Some(PermitLifetime::UntilInitialized(watch)) = self.in_flight.permit_mut() {
            watch.poll_idle(cx);
        }
    }

    fn on_complete(&mut self) {
        let sent = self.upload.as_ref().map(|upload| upload.progress.state());
        let all_sent = sent.is_none_or(|state| state == BodyState::Complete);
        self.in_flight.complete(all_sent);
        if let Some(list) = self.list.take() {
            list.finish();
        }
    }

    fn on_error(&mut self) {
        self.trace.record_truncation();
    }
}

/// A watch that has not sent yet what there was when it began.
pub(in crate::pipeline) struct WatchInitialization {
    permit: Arc<SharedPermit>,
    signal: InitializationSignal,
    observer: InitialEventsObserver,
    /// Ends it when it takes too long, also when nobody reads it.
    timeout_guard: Option<DeadlineGuard>,
}

/// What tells that a watch is initialized (`apf_filter.go` waits for the watch cache's own signal, which is not seen from
/// outside).
enum InitializationSignal {
    /// The mark.
    Bookmark,
    /// A time without data, from the last.
    Idle(Option<Pin<Box<Sleep>>>),
    /// It is.
    Received,
}

struct SharedPermit(Mutex<Permit>);

impl SharedPermit {
    fn release_seats(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .signal_watch_initialized();
    }
}

impl Expire for SharedPermit {
    fn expire(&self) {
        self.release_seats();
    }
}

impl PermitLifetime {
    /// Of a watch that was answered at `now`, well if there are events.
    pub(in crate::pipeline) fn for_watch(
        info: &RequestInfo<'_>,
        events: Option<InitialEventsObserver>,
        mut permit: Permit,
        now: Instant,
        overdue: &Arc<Deadlines>,
    ) -> Self {
        let query = info.query();
        let evidence = if query
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
            InitializationSignal::Received // the headers are
        };
        // The mark is looked for in any case: when it comes is measured.
        let waits =
            permit.holds_concurrency() || matches!(evidence, InitializationSignal::Bookmark);
        let Some(events) =
            events.filter(|_| waits && !matches!(evidence, InitializationSignal::Received))
        else {
            permit.signal_watch_initialized();
            return Self::UntilEnd { permit };
        };
        let events = events.with_scan(matches!(evidence, InitializationSignal::Bookmark));
        let permit = Arc::new(SharedPermit(Mutex::new(permit)));
        let cap: Arc<dyn Expire> = Arc::<SharedPermit>::clone(&permit);
        let cap = overdue.register(Some(now + INITIALIZATION_TIMEOUT), cap);
        Self::UntilInitialized(Box::new(WatchInitialization {
            permit,
            signal: evidence,
            observer: events,
            timeout_guard: Some(cap),
        }))
    }
}

/// As upstream converts a boolean parameter: everything but `0` and `false` is true.
fn is_true(value: &[u8]) -> bool {
    !(value == b"0" || value.eq_ignore_ascii_case(b"false"))
}

impl WatchInitialization {
    /// Whether its mark has come with these.
    fn feed(&mut self, data: &[u8]) -> bool {
        let marked =
            !matches!(self.signal, InitializationSignal::Received) && self.observer.feed(data);
        match &mut self.signal {
            InitializationSignal::Bookmark if marked => {
                self.finish(InitialEventsEnd::Bookmark);
                return true;
            }
            InitializationSignal::Idle(timer) => *timer = None,
            InitializationSignal::Bookmark | InitializationSignal::Received => {}
        }
        false
    }

    fn poll_idle(&mut self, cx: &mut Context<'_>) {
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
