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
use crate::drain::UnderWay;
use crate::limits::Permit;
use crate::pipeline::begun::Begun;
use crate::pipeline::guarded::Guard;
use crate::pipeline::in_flight::InFlight;
use crate::pipeline::list_observer::InitialEvents;
use crate::pipeline::list_observer::InitialEventsEnd;
use crate::pipeline::list_observer::ListObserver;
use crate::pipeline::overdue::Entered;
use crate::pipeline::overdue::Expire;
use crate::pipeline::overdue::Overdue;
use crate::pipeline::overdue::Phase;
use crate::pipeline::overdue::Transfer;
use crate::pipeline::trace::Trace;
use crate::request_info::RequestInfo;
use crate::upstream::body::BodyProgress;
use crate::upstream::body::BodyState;

/// A watch without a mark in its stream is taken for initialized when nothing has come for this long: several times what
/// kube-apiserver needs between two of the events that it has at hand.
const LULL: Duration = Duration::from_millis(100);

/// A watch gives its seats back after this long at the latest, whatever its stream looks like.
const INITIALIZED_WITHIN: Duration = Duration::from_secs(10);

/// Dropped in this order: the record, the turn on the connection, the permit.
pub(super) struct Riding {
    pub(super) trace: Trace,
    pub(super) in_flight: InFlight,
    /// The request's body, where an answer may have come before its end.
    pub(super) upload: Option<Upload>,
    pub(super) list: Option<Box<ListObserver>>,
    pub(super) begun: Option<Begun>,
    pub(super) _under_way: Option<UnderWay>,
}

/// A request's body that is not all sent, and held to the least rate.
pub(super) struct Upload {
    pub(super) progress: Arc<BodyProgress>,
    pub(super) _entered: Entered,
}

impl Upload {
    /// Held to the least rate from now on.
    pub(super) fn watched(progress: Arc<BodyProgress>, overdue: &Arc<Overdue>) -> Self {
        let what: Arc<dyn Expire> = Arc::<BodyProgress>::clone(&progress);
        Self {
            progress,
            _entered: overdue.enter(None, what),
        }
    }
}

impl Expire for BodyProgress {
    fn expire(&self) {
        self.stall();
    }

    fn transfer(&self) -> Option<Transfer> {
        Some(Transfer {
            phase: Phase::RequestBody,
            bytes: self.bytes(),
            awaited: self.is_awaited(),
        })
    }
}

/// The permit: given back at the end, or, of a watch, when it is initialized.
pub(super) enum Held {
    /// To the end.
    ToTheEnd { permit: Permit },
    /// Until the watch has sent what there was.
    UntilInitialized(Box<Initializing>),
}

impl Guard for Riding {
    fn passed(&mut self, data: &[u8]) {
        self.trace.passed(data.len());
        self.trace.look(data);
        if let Some(Held::UntilInitialized(watch)) = self.in_flight.held()
            && watch.passed(data)
        {
            self.trace.watch_listed(Clock.now());
        }
        if let Some(list) = &mut self.list {
            list.feed(data);
        }
    }

    fn idle(&mut self, cx: &mut Context<'_>) {
        if let Some(Held::UntilInitialized(watch)) = self.in_flight.held() {
            watch.idle(cx);
        }
    }

    fn complete(&mut self) {
        let sent = self.upload.as_ref().map(|upload| upload.progress.state());
        let all_sent = sent.is_none_or(|state| state == BodyState::Complete);
        self.in_flight.complete(all_sent);
        if let Some(list) = self.list.take() {
            list.ended();
        }
    }

    fn broken(&mut self) {
        self.trace.cut_off();
    }
}

/// A watch that has not sent yet what there was when it began.
pub(super) struct Initializing {
    permit: Arc<Shared>,
    evidence: Evidence,
    events: InitialEvents,
    /// Ends it when it takes too long, also when nobody reads it.
    cap: Option<Entered>,
}

/// What tells that a watch is initialized (`apf_filter.go` waits for the watch cache's own signal, which is not seen from
/// outside).
enum Evidence {
    /// The mark.
    Bookmark,
    /// A time without data, from the last.
    Lull(Option<Pin<Box<Sleep>>>),
    /// It is.
    Seen,
}

struct Shared(Mutex<Permit>);

impl Shared {
    fn initialized(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .initialized();
    }
}

impl Expire for Shared {
    fn expire(&self) {
        self.initialized();
    }
}

impl Held {
    /// Of a watch that was answered at `now`, well if there are events.
    pub(super) fn by_watch(
        info: &RequestInfo<'_>,
        events: Option<InitialEvents>,
        mut permit: Permit,
        now: Instant,
        overdue: &Arc<Overdue>,
    ) -> Self {
        let query = info.query();
        let evidence = if query
            .first("sendInitialEvents")
            .is_some_and(|value| is_true(&value))
        {
            Evidence::Bookmark
        } else if query
            .first("resourceVersion")
            .is_none_or(|version| matches!(&*version, b"" | b"0"))
        {
            Evidence::Lull(None)
        } else {
            Evidence::Seen // the headers are
        };
        // The mark is looked for in any case: when it comes is measured.
        let waits = permit.holds() || matches!(evidence, Evidence::Bookmark);
        let Some(events) = events.filter(|_| waits && !matches!(evidence, Evidence::Seen)) else {
            permit.initialized();
            return Self::ToTheEnd { permit };
        };
        let events = events.read(matches!(evidence, Evidence::Bookmark));
        let permit = Arc::new(Shared(Mutex::new(permit)));
        let cap: Arc<dyn Expire> = Arc::<Shared>::clone(&permit);
        let cap = overdue.enter(Some(now + INITIALIZED_WITHIN), cap);
        Self::UntilInitialized(Box::new(Initializing {
            permit,
            evidence,
            events,
            cap: Some(cap),
        }))
    }
}

/// As upstream converts a boolean parameter: everything but `0` and `false` is true.
fn is_true(value: &[u8]) -> bool {
    !(value == b"0" || value.eq_ignore_ascii_case(b"false"))
}

impl Initializing {
    /// Whether its mark has come with these.
    fn passed(&mut self, data: &[u8]) -> bool {
        let marked = !matches!(self.evidence, Evidence::Seen) && self.events.feed(data);
        match &mut self.evidence {
            Evidence::Bookmark if marked => {
                self.seen(InitialEventsEnd::Bookmark);
                return true;
            }
            Evidence::Lull(timer) => *timer = None,
            Evidence::Bookmark | Evidence::Seen => {}
        }
        false
    }

    fn idle(&mut self, cx: &mut Context<'_>) {
        if let Evidence::Lull(timer) = &mut self.evidence {
            let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(LULL)));
            if timer.as_mut().poll(cx).is_ready() {
                self.seen(InitialEventsEnd::Lull);
            }
        }
    }

    fn seen(&mut self, end: InitialEventsEnd) {
        self.evidence = Evidence::Seen;
        self.events.ended(end);
        self.permit.initialized();
        self.cap = None;
    }
}
