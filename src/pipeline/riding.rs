//! What rides on an answer's body: the turn on the connection, the record, the permit; and what is learned as it goes by.
//!
//! Two things are looked for in bodies, neither of which keeps any of them: where a watch has sent what there was when it
//! began (its seats go back then), and how many items a list has (the cost of later lists is estimated by it).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::task::Context;
use std::time::Duration;
use std::time::Instant;

use http::Method;
use http::Response;
use http::StatusCode;
use http::header;
use http::uri::PathAndQuery;
use tokio::time::Sleep;

use crate::api::list_scan::ListScan;
use crate::clock::Clock;
use crate::drain::UnderWay;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::object_counts::ListAnswer;
use crate::limits::Permit;
use crate::pipeline::begun::Begun;
use crate::pipeline::guarded::Guard;
use crate::pipeline::overdue::Entered;
use crate::pipeline::overdue::Expire;
use crate::pipeline::overdue::Overdue;
use crate::pipeline::trace::Trace;
use crate::request_info::RequestInfo;
use crate::upstream::forward::Turn;

/// A watch without a mark in its stream is taken for initialized when nothing has come for this long: several times what
/// kube-apiserver needs between two of the events that it has at hand.
const LULL: Duration = Duration::from_millis(100);

/// A watch gives its seats back after this long at the latest, whatever its stream looks like.
const INITIALIZED_WITHIN: Duration = Duration::from_secs(10);

/// What marks the end of the initial events (KEP-3157), in JSON and in protobuf.
const INITIAL_EVENTS_END: &[u8] = b"k8s.io/initial-events-end";

/// Dropped in this order: the turn, the record, what it held.
pub(super) struct Riding {
    pub(super) turn: Box<dyn Turn>,
    pub(super) trace: Trace,
    pub(super) held: Held,
    pub(super) list: Option<Box<Counting>>,
    pub(super) begun: Option<Begun>,
    pub(super) _under_way: Option<UnderWay>,
}

/// The permit: given back at the end, or, of a watch, when it is initialized.
pub(super) enum Held {
    /// To the end.
    ToTheEnd { _permit: Permit },
    /// Until the watch has sent what there was.
    UntilInitialized(Box<Initializing>),
}

impl Guard for Riding {
    fn passed(&mut self, data: &[u8]) {
        self.trace.passed(data.len());
        if let Held::UntilInitialized(watch) = &mut self.held
            && watch.passed(data)
        {
            self.trace.watch_listed(Clock.now());
        }
        if let Some(list) = &mut self.list {
            list.scan.feed(data);
        }
    }

    fn idle(&mut self, cx: &mut Context<'_>) {
        if let Held::UntilInitialized(watch) = &mut self.held {
            watch.idle(cx);
        }
    }

    fn complete(&mut self) {
        self.turn.complete();
        if let Some(list) = self.list.take() {
            list.learn();
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
    /// Ends it when it takes too long, also when nobody reads it.
    cap: Option<Entered>,
}

/// What tells that a watch is initialized (`apf_filter.go` waits for the watch cache's own signal, which is not seen from
/// outside).
enum Evidence {
    /// The mark; so many of its bytes have been seen at the end of what has gone by.
    Bookmark(usize),
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
    /// Of a watch that was answered at `now`, whether well or not.
    pub(super) fn by_watch(
        info: &RequestInfo<'_>,
        well: bool,
        mut permit: Permit,
        now: Instant,
        overdue: &Arc<Overdue>,
    ) -> Self {
        let query = info.query();
        let evidence = if query
            .first("sendInitialEvents")
            .is_some_and(|value| is_true(&value))
        {
            Evidence::Bookmark(0)
        } else if query
            .first("resourceVersion")
            .is_none_or(|version| matches!(&*version, b"" | b"0"))
        {
            Evidence::Lull(None)
        } else {
            Evidence::Seen // the headers are
        };
        // The mark is looked for in any case: when it comes is measured.
        let waits = permit.holds() || matches!(evidence, Evidence::Bookmark(_));
        if !well || !waits || matches!(evidence, Evidence::Seen) {
            permit.initialized();
            return Self::ToTheEnd { _permit: permit };
        }
        let permit = Arc::new(Shared(Mutex::new(permit)));
        let cap: Arc<dyn Expire> = Arc::<Shared>::clone(&permit);
        let cap = overdue.enter(now + INITIALIZED_WITHIN, cap);
        Self::UntilInitialized(Box::new(Initializing {
            permit,
            evidence,
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
        match &mut self.evidence {
            Evidence::Bookmark(seen) => {
                if let Some(now_seen) = follow(INITIAL_EVENTS_END, *seen, data) {
                    *seen = now_seen;
                } else {
                    self.seen();
                    return true;
                }
            }
            Evidence::Lull(timer) => *timer = None,
            Evidence::Seen => {}
        }
        false
    }

    fn idle(&mut self, cx: &mut Context<'_>) {
        if let Evidence::Lull(timer) = &mut self.evidence {
            let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(LULL)));
            if timer.as_mut().poll(cx).is_ready() {
                self.seen();
            }
        }
    }

    fn seen(&mut self) {
        self.evidence = Evidence::Seen;
        self.permit.initialized();
        self.cap = None;
    }
}

/// How much of `mark` stands at the end of what has gone by, if `seen` of it stood there before `data`; `None` once all of it
/// has gone by. The mark's first byte stands nowhere else in it, so a mismatch can only be a new beginning.
fn follow(mark: &[u8], mut seen: usize, data: &[u8]) -> Option<usize> {
    for byte in data {
        if mark.get(seen) == Some(byte) {
            seen += 1;
            if seen == mark.len() {
                return None;
            }
        } else {
            seen = usize::from(mark.first() == Some(byte));
        }
    }
    Some(seen)
}

/// A list that was asked for, and that is to be counted.
pub(super) struct Listing {
    controller: Arc<Controller>,
    method: Method,
    target: PathAndQuery,
}

/// A list that is counted as it goes by.
pub(super) struct Counting {
    scan: ListScan,
    /// Neither compressed nor a table nor metadata alone: the size is that of the objects.
    whole_objects: bool,
    listing: Listing,
}

impl Listing {
    /// Of this request.
    pub(super) fn new(
        controller: &Arc<Controller>,
        method: &Method,
        target: &PathAndQuery,
    ) -> Self {
        Self {
            controller: Arc::clone(controller),
            method: method.clone(),
            target: target.clone(),
        }
    }

    /// Of this answer to it, if it is one that can be counted.
    pub(super) fn of<B>(self, response: &Response<B>) -> Option<Box<Counting>> {
        let headers = response.headers();
        let content_type = headers.get(header::CONTENT_TYPE)?.as_bytes();
        if response.status() != StatusCode::OK || headers.contains_key(header::CONTENT_ENCODING) {
            return None;
        }
        let scan = ListScan::for_content_type(content_type)?;
        // `application/json;as=Table;...` and the like are not the objects themselves.
        let whole_objects = !content_type.windows(3).any(|part| part == b"as=");
        Some(Box::new(Counting {
            scan,
            whole_objects,
            listing: self,
        }))
    }
}

impl Counting {
    fn learn(self) {
        let Self {
            scan,
            whole_objects,
            listing,
        } = self;
        let Some(summary) = scan.finish() else {
            return;
        };
        let target = listing.target.as_str().as_bytes();
        if let Ok(info) = RequestInfo::parse(listing.method.as_str(), target) {
            let answer = ListAnswer {
                items: summary.items,
                remaining_items: summary.remaining_items,
                continues: summary.continues,
                bytes: whole_objects.then_some(summary.bytes),
            };
            listing.controller.learn(&info, answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_found_wherever_the_stream_is_broken() {
        let stream =
            b"{\"kk8s.io/initialk8s.io/initial-events-en k8s.io/initial-events-end\":\"true\"}";
        let ends = stream
            .windows(INITIAL_EVENTS_END.len())
            .position(|w| w == INITIAL_EVENTS_END)
            .unwrap()
            + INITIAL_EVENTS_END.len();
        for at in 0..stream.len() {
            let (one, two) = stream.split_at(at);
            let first = follow(INITIAL_EVENTS_END, 0, one);
            assert_eq!(first.is_none(), at >= ends, "broken at {at}");
            if let Some(seen) = first {
                assert_eq!(
                    follow(INITIAL_EVENTS_END, seen, two),
                    None,
                    "broken at {at}"
                );
            }
        }
    }
}
