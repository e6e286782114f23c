//! A request's body before the request goes on: how much of it is awaited, and what that may take.
//!
//! The API server needs a request's body to do anything, and waits for it. So that a client cannot hold a seat with a body that it does
//! not send, one that fits [`BUFFER`] is awaited before the request takes a seat (an event's body whole, where a limit looks into
//! it). Small bodies, which nearly all are, come with their heads and cost no wait. What is longer is streamed, held to the least
//! rate of [`minimum_rate`](crate::minimum_rate).

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;
use http::HeaderMap;
use http::Method;
use http::header;
use http::request;
use http_body::Body as _;
use http_body::Frame;
use http_body_util::BodyExt;

use crate::clock::Clock;
use crate::metrics::Registry;
use crate::minimum_rate::MinimumRate;
use crate::minimum_rate::RateMeter;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::reject::RequestBodyState;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::request_info::RequestInfo;
use crate::upstream::ForwardError;
use crate::upstream::body::client_body::ClientBody;
use crate::upstream::body::client_body::ClientBodyError;
use crate::upstream::body::memory_budget::BufferedBody;
use crate::upstream::body::memory_budget::MemoryBudget;
use crate::upstream::body::memory_budget::MemoryReservation;
use crate::upstream::body::request_body::BodyProgress;
use crate::upstream::body::request_body::BodyState;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::request_body::classify_error;
use crate::upstream::headers::IdentityHeaders;

/// kube-apiserver's limit of a request's body (`MaxRequestBodyBytes`).
pub const MAX_BODY_SIZE: usize = 3 << 20;

/// What all bodies together may take that are read before their requests go on: twenty of the largest events, thirty thousand usual
/// ones. A quarter of it is the most that one client's address has; trusted proxies, behind which many clients are, may have it
/// all.
pub const REQUEST_BODY_BUDGET: usize = 64 << 20;

/// The budget of these bodies: [`REQUEST_BODY_BUDGET`].
#[must_use]
pub fn request_body_budget(registry: &Registry) -> Arc<MemoryBudget> {
    let budget = MemoryBudget::new(REQUEST_BODY_BUDGET);
    let taken = Arc::clone(&budget);
    registry.gauge_fn(
        "weir_request_body_bytes",
        "Memory reserved for request bodies that are read before their requests go on, in bytes. Without room an event that a limit looks into is rejected (event-bodies); others go on as they come.",
        move || taken.used(),
    );
    budget
}

/// How much of a body is awaited before its request takes a seat: nearly every object that is written is smaller. Also the longest
/// body of a GET, a HEAD or a change of protocol, which goes on whole or not at all.
pub const DEFAULT_BODY_BUFFER: usize = 64 << 10;

/// How long an event's body may take to come: it has one or two KiB.
const EVENT_BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// What a body that comes in parts begins with, in bytes: a usual event.
const INITIAL_CAPACITY: usize = 4096;

/// Why a request's body cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyReadError {
    /// Its client has gone away.
    Aborted,
    /// What came is no body.
    Malformed,
    /// [`REQUEST_BODY_BUDGET`] are held already, or the client's address has its part of them.
    BudgetExhausted,
    /// It is larger than this.
    TooLarge(usize),
    /// It did not come in time.
    TooSlow,
}

impl BodyReadError {
    fn from_client_error(error: &ClientBodyError) -> Self {
        if classify_error(error) == BodyState::Malformed {
            Self::Malformed
        } else {
            Self::Aborted
        }
    }
}

/// What was read of a body.
pub(super) struct BodyPrefix {
    pub(super) buffered: BufferedBody,
    /// Whether that is all.
    pub(super) complete: bool,
    /// Whether its client had to be waited for.
    pub(super) waited: bool,
}

/// A body on its way to the API server, and what tells how it goes on, where it is not all here.
pub(super) struct OutgoingBody {
    pub(super) body: RequestBody,
    pub(super) progress: Option<Arc<BodyProgress>>,
}

impl From<RequestBody> for OutgoingBody {
    fn from(body: RequestBody) -> Self {
        Self {
            body,
            progress: None,
        }
    }
}

impl Pipeline {
    /// Awaits what has to be here of a body before its request may take a seat.
    ///
    /// # Errors
    /// What of it cannot be had.
    pub(super) async fn buffer_body(
        &self,
        info: &RequestInfo<'_>,
        (peer, head): (&Peer, &request::Parts),
        body: &mut RequestBodyState,
        upgrades: bool,
        deadline: Instant,
    ) -> Result<Option<BodyPrefix>, RequestRejection> {
        let Some(incoming) = body.as_mut().filter(|body| !body.is_end_stream()) else {
            return Ok(None);
        };
        let whole = upgrades || head.method == Method::GET || head.method == Method::HEAD;
        if !whole && (self.body_buffer == 0 || info.long_running() || expects_continue(head)) {
            return Ok(None);
        }
        let most = if whole {
            DEFAULT_BODY_BUFFER
        } else {
            self.body_buffer
        };
        let length = usize::try_from(incoming.size_hint().lower()).unwrap_or(usize::MAX);
        if length > most {
            let too_large = RequestRejection::Body(BodyReadError::TooLarge(most));
            return if whole { Err(too_large) } else { Ok(None) };
        }
        let reserved = self.request_body_budget.reserve_for(peer.source_network());
        let until = (self.deadlines.rate(), deadline);
        let names = &self.identity_headers;
        // In a box: only requests with a body pay for the room.
        let ahead = Box::pin(read_prefix(incoming, (reserved, most, whole), until, names));
        let ahead = self
            .head_budget
            .reserve_while_pending(peer, &head.headers, ahead)
            .await?;
        let ahead = ahead.map_err(RequestRejection::Body)?;
        if ahead.complete {
            *body = RequestBodyState::Consumed;
        } else if whole {
            return Err(RequestRejection::Body(BodyReadError::TooLarge(most)));
        }
        Ok(Some(ahead))
    }

    /// A body that goes on: what was read of it, and behind that what comes.
    pub(super) fn outgoing_body(
        &self,
        ahead: Option<BodyPrefix>,
        body: &mut RequestBodyState,
    ) -> OutgoingBody {
        let begun = match ahead {
            Some(BodyPrefix {
                buffered: read,
                complete: true,
                ..
            }) => {
                *body = RequestBodyState::Forwarded;
                return RequestBody::buffered(read).into();
            }
            Some(BodyPrefix { buffered: read, .. }) => Some(read),
            None => None,
        };
        let rest = body.take();
        let Some(rest) = rest.filter(|rest| begun.is_some() || !rest.is_end_stream()) else {
            return RequestBody::empty().into();
        };
        let progress = Arc::<BodyProgress>::default();
        let names = Arc::clone(&self.identity_headers);
        OutgoingBody {
            body: RequestBody::streamed(begun, rest, names, Arc::clone(&progress)),
            progress: Some(progress),
        }
    }

    /// Reads an event's body, whole.
    pub(super) async fn read_whole(
        &self,
        incoming: &mut ClientBody,
        (peer, headers): (&Peer, &HeaderMap),
        deadline: Option<Instant>,
    ) -> Result<BodyPrefix, RequestRejection> {
        let until = Clock.now() + EVENT_BODY_TIMEOUT;
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        let reserved = self.request_body_budget.reserve_for(peer.source_network());
        let read = read_to_end(incoming, reserved, &self.identity_headers);
        let read = Box::pin(tokio::time::timeout_at(until.into(), read));
        let read = self
            .head_budget
            .reserve_while_pending(peer, headers, read)
            .await?;
        let read = read.unwrap_or(Err(BodyReadError::TooSlow));
        Ok(BodyPrefix {
            buffered: read.map_err(RequestRejection::Body)?,
            complete: true,
            waited: true,
        })
    }
}

/// What an error on the way to the API server comes of, where it was the request's body that broke off.
pub(super) fn forward_rejection(
    error: ForwardError,
    progress: Option<&BodyProgress>,
) -> RequestRejection {
    match progress.map(BodyProgress::state) {
        Some(BodyState::Aborted) => RequestRejection::Body(BodyReadError::Aborted),
        Some(BodyState::Malformed) => RequestRejection::Body(BodyReadError::Malformed),
        Some(BodyState::Stalled) => RequestRejection::Body(BodyReadError::TooSlow),
        Some(BodyState::Unfinished | BodyState::Complete) | None => {
            RequestRejection::Forward(error)
        }
    }
}

/// Whether the client waits for word before it sends the body. It gets none before the request is admitted.
fn expects_continue(head: &request::Parts) -> bool {
    let expect = head.headers.get(header::EXPECT);
    expect.is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Reads the beginning of a body: until it has ended, `most` bytes are here, or there is no more room for it.
///
/// Cancel safety: what was read is lost.
async fn read_prefix(
    incoming: &mut ClientBody,
    (mut reserved, most, whole): (MemoryReservation, usize, bool),
    (rate, deadline): (MinimumRate, Instant),
    names: &IdentityHeaders,
) -> Result<BodyPrefix, BodyReadError> {
    let mut parts = Vec::new();
    let mut trailers = None;
    let mut meter = None;
    let mut ended = false;
    while !ended {
        let frame = next_frame(incoming, &mut meter, (rate, deadline), parts.len()).await?;
        let Some(frame) = frame else {
            ended = true;
            break;
        };
        match frame.into_data() {
            Ok(data) if parts.is_empty() && incoming.is_end_stream() => {
                // The usual one: all at once, and nothing is copied. It is here with or without room for it.
                let _ = reserved.try_grow_to(data.len());
                return Ok(BodyPrefix {
                    buffered: BufferedBody::new(data, None, reserved),
                    complete: true,
                    waited: meter.is_some(),
                });
            }
            Ok(data) => {
                let room = reserve_capacity(&mut parts, data.len(), &mut reserved);
                if whole {
                    room?; // it does not go on in parts
                }
                parts.extend_from_slice(&data);
                ended = incoming.is_end_stream();
                if room.is_err() || parts.len() > most {
                    break;
                }
            }
            Err(other) => {
                trailers = sanitize_trailers(other, names);
                ended = incoming.is_end_stream();
            }
        }
    }
    Ok(BodyPrefix {
        buffered: BufferedBody::new(Bytes::from(parts), trailers, reserved),
        complete: ended,
        waited: meter.is_some(),
    })
}

/// The next frame, if its client is fast enough.
async fn next_frame(
    incoming: &mut ClientBody,
    meter: &mut Option<RateMeter>,
    (rate, deadline): (MinimumRate, Instant),
    read: usize,
) -> Result<Option<Frame<Bytes>>, BodyReadError> {
    let frame = match incoming.frame().now_or_never() {
        Some(frame) => frame,
        None => {
            // Only one that has to be waited for costs a look at the clock.
            let now = Clock.now();
            let read = u64::try_from(read).unwrap_or(u64::MAX);
            let meter = meter.get_or_insert_with(|| RateMeter::new(rate, now));
            if !meter.check(rate, now, read, true) {
                return Err(BodyReadError::TooSlow);
            }
            let until = meter
                .deadline(rate)
                .map_or(deadline, |end| end.min(deadline));
            tokio::time::timeout_at(until.into(), incoming.frame())
                .await
                .map_err(|_| BodyReadError::TooSlow)?
        }
    };
    frame
        .transpose()
        .map_err(|why| BodyReadError::from_client_error(&why))
}

fn sanitize_trailers(frame: Frame<Bytes>, names: &IdentityHeaders) -> Option<HeaderMap> {
    let mut trailers = frame.into_trailers().ok()?;
    names.remove_from(&mut trailers);
    Some(trailers)
}

/// Reads a body to its end. Cancel safety: what was read is lost.
async fn read_to_end(
    incoming: &mut ClientBody,
    mut reserved: MemoryReservation,
    names: &IdentityHeaders,
) -> Result<BufferedBody, BodyReadError> {
    let length = usize::try_from(incoming.size_hint().lower()).unwrap_or(usize::MAX);
    check_size(length)?;
    let mut parts = Vec::new();
    let mut trailers = None;
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|why| BodyReadError::from_client_error(&why))?;
        match frame.into_data() {
            Ok(data) if parts.is_empty() && incoming.is_end_stream() => {
                // The usual one: all at once, and nothing is copied.
                check_size(data.len())?;
                if !reserved.try_grow_to(data.len()) {
                    return Err(BodyReadError::BudgetExhausted);
                }
                return Ok(BufferedBody::new(data, None, reserved));
            }
            Ok(data) => {
                check_size(parts.len().saturating_add(data.len()))?;
                reserve_capacity(&mut parts, data.len(), &mut reserved)?;
                parts.extend_from_slice(&data);
            }
            Err(other) => trailers = sanitize_trailers(other, names),
        }
    }
    Ok(BufferedBody::new(Bytes::from(parts), trailers, reserved))
}

/// Makes room for so many more bytes, which are copied so that small parts do not keep large buffers; it is reserved for what is
/// allocated.
fn reserve_capacity(
    parts: &mut Vec<u8>,
    more: usize,
    reserved: &mut MemoryReservation,
) -> Result<(), BodyReadError> {
    let length = parts.len().saturating_add(more);
    if length > parts.capacity() {
        let capacity = length
            .max(parts.capacity().saturating_mul(2))
            .clamp(INITIAL_CAPACITY, MAX_BODY_SIZE.max(length));
        // Both are there while the old one is copied.
        if !reserved.try_grow_to(capacity.saturating_add(parts.capacity())) {
            return Err(BodyReadError::BudgetExhausted);
        }
        parts.reserve_exact(capacity - parts.len());
        reserved.shrink_to(parts.capacity());
    }
    Ok(())
}

fn check_size(length: usize) -> Result<(), BodyReadError> {
    if length > MAX_BODY_SIZE {
        return Err(BodyReadError::TooLarge(MAX_BODY_SIZE));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::body::memory_budget::MemoryBudget;

    #[test]
    fn a_body_in_parts_reserves_what_it_allocates() {
        let budget = MemoryBudget::new(REQUEST_BODY_BUDGET);
        let mut reserved = budget.reserve();
        let mut parts = Vec::new();
        while parts.len() < MAX_BODY_SIZE {
            let part = vec![b' '; (16 << 10).min(MAX_BODY_SIZE - parts.len())];
            reserve_capacity(&mut parts, part.len(), &mut reserved).unwrap();
            parts.extend_from_slice(&part);
            assert_eq!(parts.capacity(), budget.used());
        }
        assert!(parts.capacity() <= MAX_BODY_SIZE);
        assert_eq!(
            check_size(parts.len() + 1),
            Err(BodyReadError::TooLarge(MAX_BODY_SIZE))
        );
        drop(reserved);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn the_old_buffer_is_reserved_while_it_is_copied() {
        let mut reserved = MemoryBudget::new(3 * INITIAL_CAPACITY - 1).reserve();
        let mut parts = Vec::new();
        reserve_capacity(&mut parts, INITIAL_CAPACITY, &mut reserved).unwrap();
        parts.extend_from_slice(&[b' '; INITIAL_CAPACITY]);
        assert_eq!(
            reserve_capacity(&mut parts, 1, &mut reserved),
            Err(BodyReadError::BudgetExhausted)
        );
    }
}
