//! What a response body holds: the stream guard, the trace, the permit; and what is learned from
//! the bytes that pass.
//!
//! Two things are learned from bodies: the end of a watch's initial events, which releases its
//! seats, and the length of lists, which estimates the cost of later lists and watches.

use std::sync::Arc;
use std::task::Context;
use std::time::Instant;

use bytes::Bytes;
use http_body::Body;

use crate::limits::list_bytes::CountedList;
use crate::limits::memory_limit::read_ahead::ReadAheadAccount;
use crate::pipeline::connection::request_count::ActiveRequest;
use crate::pipeline::response::abandoned::InFlightRequest;
use crate::pipeline::response::deadlines::{
    DeadlineGuard, Deadlines, Expire, SlowTransfer, Transfer, TransferPhase,
};
use crate::pipeline::response::guarded::{BodyGuard, GuardedBody};
use crate::pipeline::response::list_length::ListLength;
use crate::pipeline::response::response_reader::WorkerMemoryLimit;
use crate::pipeline::response::watch_init::{InitializationEnd, WatchInitialization};
use crate::pipeline::trace::Trace;
use crate::pipeline::trace::lever_subject::LeverSubject;
use crate::upstream::body::progress::{BodyProgress, BodyState};
use crate::upstream::requester::SlotHolder;
use weir_base::clock::Clock;
use weir_base::drain::DrainGuard;

/// What a response body or a tunnel owns. Dropped in this order: the trace, the stream guard, the
/// permit.
pub(crate) struct ResponseGuard {
    pub(crate) trace: Trace,
    /// `None` once the API server has sent everything and what is left is read ahead.
    pub(crate) in_flight: Option<InFlightRequest>,
    /// Of a watch whose initial events are observed: it may hold seats until they have ended.
    pub(crate) watch: Option<Box<WatchInitialization>>,
    /// The request body, if the response may have come before its end.
    pub(crate) upload: Option<MonitoredUpload>,
    pub(crate) list: Option<Box<ListLength>>,
    /// Of a response that may be read ahead.
    pub(crate) read_ahead: Option<Arc<WorkerMemoryLimit>>,
    pub(crate) active_request: Option<ActiveRequest>,
    pub(crate) _drain_guard: Option<DrainGuard>,
}

/// A request body that is not sent completely, held to the minimum rate or to the longest pause.
pub(crate) struct MonitoredUpload {
    pub(crate) progress: Arc<BodyProgress>,
    pub(crate) _deadline_guard: DeadlineGuard,
}

impl MonitoredUpload {
    /// Holds the body to its limit from now on.
    pub(crate) fn new(
        progress: Arc<BodyProgress>,
        may_pause: bool,
        deadlines: &Arc<Deadlines>,
    ) -> Self {
        let upload = Upload {
            progress: Arc::clone(&progress),
            may_pause,
        };
        Self {
            progress,
            _deadline_guard: deadlines.register(None, Arc::new(upload)),
        }
    }
}

/// A request body on its way.
struct Upload {
    progress: Arc<BodyProgress>,
    may_pause: bool,
}

impl Expire for Upload {
    fn expire(&self, _: Option<SlowTransfer>) {
        self.progress.stall();
    }

    fn transfer(&self) -> Option<Transfer> {
        let (bytes, awaited) = (self.progress.bytes(), self.progress.is_awaiting_client());
        Some(Transfer {
            may_pause: self.may_pause,
            ..Transfer::new(TransferPhase::RequestBody, bytes, awaited)
        })
    }
}

impl ResponseGuard {
    /// Releases the seats of a watch at `deadline` if it is not initialized by then, also without
    /// a reader.
    pub(crate) fn limit_initialization<B>(
        body: &GuardedBody<B, Box<Self>>,
        deadline: Instant,
        deadlines: &Arc<Deadlines>,
    ) where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Send,
    {
        let release = |guard: &mut Box<Self>| guard.release_watch_seats();
        let timeout_guard = body.register_timeout(deadline, release, deadlines);
        body.with_guard(|guard| {
            if let Some(watch) = &mut guard.watch {
                watch.set_timeout_guard(timeout_guard);
            }
        });
    }

    fn end_initialization(&mut self, end: InitializationEnd) {
        if end.seats {
            if let Some(list) = self.counted_list() {
                list.complete();
            }
            self.release_watch_seats();
        }
        if end.bookmark {
            self.trace.record_watch_list(Clock.now());
        }
        if end.observation {
            self.watch = None;
        }
    }

    /// The list whose bytes count, as long as the API server works on it.
    fn counted_list(&mut self) -> Option<&mut CountedList> {
        self.in_flight.as_mut()?.permit_mut()?.list_mut()
    }

    fn release_watch_seats(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.release_watch_seats();
        }
    }
}

/// Boxed, since it is moved with the body into several places.
impl BodyGuard for Box<ResponseGuard> {
    /// The stream and the permit, and the request body.
    type Source = (Option<InFlightRequest>, Option<MonitoredUpload>);

    fn on_sent(&mut self, bytes: usize) {
        self.trace.record_sent(bytes);
    }

    fn on_received(&mut self, data: &[u8]) {
        self.trace.inspect_body(data);
        if let Some(watch) = &mut self.watch {
            let end = watch.feed(data);
            self.end_initialization(end);
        }
        if let Some(list) = &mut self.list {
            list.feed(data);
        }
        if let Some(list) = self.counted_list() {
            list.feed(data);
        }
    }

    fn on_idle(&mut self, cx: &mut Context<'_>) {
        if let Some(watch) = &mut self.watch {
            let end = watch.poll_idle(cx);
            self.end_initialization(end);
        }
    }

    fn on_complete(&mut self) {
        let upload = self.upload.as_ref().map(|upload| upload.progress.state());
        let all_sent = upload.is_none_or(|state| state == BodyState::Complete);
        if let Some(list) = self.counted_list() {
            list.complete();
        }
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.complete(all_sent);
        }
        if let Some(list) = self.list.take() {
            list.finish();
        }
    }

    fn take_source(&mut self) -> Self::Source {
        (self.in_flight.take(), self.upload.take())
    }

    fn read_ahead_account(&self) -> Option<ReadAheadAccount> {
        let (memory, user) = (self.read_ahead.as_ref()?, self.trace.effective_user()?);
        let holder = SlotHolder::User(user.name.clone());
        Some(memory.0.read_ahead_account(holder))
    }

    fn lever_subject(&self) -> Option<LeverSubject> {
        self.trace.lever_subject()
    }

    fn go_away(&self) {
        if let Some(active) = &self.active_request {
            active.go_away();
        }
    }

    fn on_error(&mut self, slow: Option<SlowTransfer>) {
        match slow {
            Some(slow) => self.trace.record_slow_transfer(slow.flag, slow.bytes),
            None => self.trace.record_truncation(),
        }
    }
}
