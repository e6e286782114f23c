//! The request body before the request is forwarded: how much of it weir reads first, and the
//! memory for it.
//!
//! The API server waits for a request's body. So that a client cannot hold a seat with a body that
//! it does not send, a body that fits into `--request-body-buffer` is read before the request takes
//! a seat. An event's body is read completely if a limit depends on it. Small bodies, which are
//! nearly all, arrive with their heads and need no wait. Longer bodies are streamed at the minimum
//! rate of [`minimum_rate`](weir_limits::throttling::minimum_rate).
//!
//! A client that sends `Expect: 100-continue` gets its 100 only when its request is admitted. weir
//! reads its body then, before it takes a connection to the API server.
//!
//! Two other designs were considered. If only unverified requests waited, any client with a
//! certificate could hold seats in this way. A shorter deadline for the whole request would punish
//! slow links.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Method, header, request};
use http_body::Body as _;
use http_body::Frame;
use http_body_util::BodyExt;

use crate::identity::request_header::IdentityHeaders;
use crate::pipeline::connection::head_budget::head_memory;
use crate::pipeline::connection::peer::ReceivedHead;
use crate::pipeline::dependencies::Pipeline;
use crate::pipeline::reject::body_drain::RequestBodyState;
use crate::pipeline::reject::rejection::{BodyReadError, RequestRejection};
use crate::upstream::body::buffered_body::BufferedBody;
use crate::upstream::body::client_body::{ClientBody, ClientBodyError};
use crate::upstream::body::progress::{BodyProgress, BodyState};
use crate::upstream::body::request_body::{RequestBody, classify_error};
use crate::upstream::{ForwardError, headers};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_kubernetes::numeric::{saturating_u64, saturating_usize};
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::throttling::memory_budget::{MemoryBudget, MemoryReservation};
use weir_limits::throttling::minimum_rate::{MinimumRate, RateMeter};

/// kube-apiserver's limit of a request body, in bytes (`MaxRequestBodyBytes`).
pub(crate) const MAX_BODY_SIZE: usize = 3 << 20;

/// Memory for all bodies that are read before their requests are forwarded, in bytes: twenty of the
/// largest events, thirty thousand usual ones. One client address may use a quarter. Trusted
/// proxies, which stand for many clients, may use all of it.
pub const REQUEST_BODY_BUDGET: usize = 64 << 20;

/// The budget of these bodies: [`REQUEST_BODY_BUDGET`].
#[must_use]
pub fn request_body_budget(registry: &Registry) -> Arc<MemoryBudget> {
    let budget = MemoryBudget::new(REQUEST_BODY_BUDGET);
    let measured = Arc::clone(&budget);
    registry.gauge_fn(
        "weir_request_body_bytes",
        "Memory reserved for request bodies that are read before their requests go on, in bytes. Without room an event that a limit looks into is rejected (event-bodies); others go on as they come.",
        move || measured.used(),
    );
    budget
}

/// The maximum body of a GET, a HEAD or a protocol upgrade in bytes, which is forwarded completely or
/// not at all.
const MAX_WHOLE_BODY: usize = 64 << 10;

/// How long an event's body of one or two KiB may take to arrive.
const EVENT_BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The initial buffer of a body that arrives in parts, in bytes: a usual event.
const INITIAL_CAPACITY: usize = 4096;

/// The part of a body that was read.
pub(crate) struct BodyPrefix {
    pub(crate) buffered: BufferedBody,
    /// Whether it is the whole body.
    pub(crate) complete: bool,
    /// Whether weir had to wait for the client.
    pub(crate) waited: bool,
}

/// A body on its way to the API server, and its progress unless it is complete.
pub(crate) struct OutgoingBody {
    pub(crate) body: RequestBody,
    pub(crate) progress: Option<Arc<BodyProgress>>,
}

impl From<RequestBody> for OutgoingBody {
    fn from(body: RequestBody) -> Self {
        Self {
            body,
            progress: None,
        }
    }
}

impl OutgoingBody {
    /// The body to forward: what was read of it, followed by the rest.
    pub(crate) fn new(
        prefix: Option<BodyPrefix>,
        body: &mut RequestBodyState,
        identity_headers: &Arc<IdentityHeaders>,
    ) -> Self {
        let buffered = match prefix {
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
        let Some(rest) = rest.filter(|rest| buffered.is_some() || !rest.is_end_stream()) else {
            return RequestBody::empty().into();
        };
        let progress = Arc::<BodyProgress>::default();
        let identity_headers = Arc::clone(identity_headers);
        Self {
            body: RequestBody::streamed(buffered, rest, identity_headers, Arc::clone(&progress)),
            progress: Some(progress),
        }
    }
}

/// When a body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyReadTime {
    /// Before its request takes a seat.
    BeforeSeat,
    /// After that: the body of a client that waits for `100 Continue`, which it gets only if its
    /// request is admitted. The connection to the API server is taken after the body, so that a
    /// client that leaves instead costs none.
    WithSeat,
}

/// How much of a body is read, and how long it may take.
#[derive(Clone, Copy)]
struct PrefixLimits {
    /// In bytes.
    max: usize,
    /// The request is forwarded with its whole body or not at all.
    whole: bool,
    rate: MinimumRate,
    deadline: Instant,
}

impl Pipeline {
    /// Reads the part of a body that must arrive before its request is forwarded, if this is the
    /// time to read it.
    ///
    /// # Errors
    /// The body cannot be read.
    pub(crate) async fn buffer_body(
        &self,
        info: &RequestInfo<'_>,
        received: ReceivedHead<'_>,
        body: &mut RequestBodyState,
        time: BodyReadTime,
        upgrades: bool,
        deadline: Instant,
    ) -> Result<Option<BodyPrefix>, RequestRejection> {
        let Some(incoming) = body.as_mut().filter(|body| !body.is_end_stream()) else {
            return Ok(None);
        };
        let ReceivedHead { peer, head } = received;
        let whole = upgrades || head.method == Method::GET || head.method == Method::HEAD;
        let time_to_read = if !whole && expects_continue(head) {
            BodyReadTime::WithSeat
        } else {
            BodyReadTime::BeforeSeat
        };
        let buffer_size = saturating_usize(self.shared.settings.transfers.request_body_buffer);
        if time != time_to_read || !whole && (buffer_size == 0 || info.long_running()) {
            return Ok(None);
        }
        let max = if whole { MAX_WHOLE_BODY } else { buffer_size };
        let length = saturating_usize(incoming.size_hint().lower());
        if length > max {
            let too_large = RequestRejection::Body(BodyReadError::TooLarge(max));
            return if whole { Err(too_large) } else { Ok(None) };
        }
        let reservation = self
            .shared
            .request_body_budget
            .reserve_for(peer.source_network());
        let limits = PrefixLimits {
            max,
            whole,
            rate: self.shared.settings.transfers.minimum_rate(),
            deadline,
        };
        let identity_headers = &self.shared.identity_headers;
        // Boxed: only requests with a body pay for this memory.
        let prefix = Box::pin(read_prefix(incoming, reservation, limits, identity_headers));
        let prefix = self
            .shared
            .head_budget
            .reserve_while_pending(peer, &head.headers, prefix)
            .await?;
        let prefix = prefix.map_err(RequestRejection::Body)?;
        if prefix.complete {
            *body = RequestBodyState::Consumed;
        } else if whole {
            return Err(RequestRejection::Body(BodyReadError::TooLarge(max)));
        }
        Ok(Some(prefix))
    }

    /// Reads an event's body completely.
    pub(crate) async fn read_whole_body(
        &self,
        incoming: &mut ClientBody,
        received: ReceivedHead<'_>,
        deadline: Option<Instant>,
    ) -> Result<BodyPrefix, RequestRejection> {
        let ReceivedHead { peer, head } = received;
        let deadline_at = Clock.now() + EVENT_BODY_TIMEOUT;
        let deadline_at = deadline.map_or(deadline_at, |deadline| deadline.min(deadline_at));
        let reservation = self
            .shared
            .request_body_budget
            .reserve_for(peer.source_network());
        let read = read_to_end(incoming, reservation, &self.shared.identity_headers);
        let read = Box::pin(tokio::time::timeout_at(deadline_at.into(), read));
        let read = self
            .shared
            .head_budget
            .reserve_while_pending(peer, &head.headers, read)
            .await?;
        let read = read.unwrap_or(Err(BodyReadError::TooSlow));
        Ok(BodyPrefix {
            buffered: read.map_err(RequestRejection::Body)?,
            complete: true,
            waited: true,
        })
    }
}

/// The rejection for an error on the way to the API server: the body's own error, if the request
/// body broke off.
pub(crate) fn forward_rejection(
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

fn client_body_error(error: &ClientBodyError) -> BodyReadError {
    if classify_error(error) == BodyState::Malformed {
        BodyReadError::Malformed
    } else {
        BodyReadError::Aborted
    }
}

/// Whether the client waits for `100 Continue` before it sends the body. It gets none before the
/// request is admitted.
fn expects_continue(head: &request::Parts) -> bool {
    let expect = head.headers.get(header::EXPECT);
    expect.is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Reads the beginning of a body: until its end, until `limits.max` bytes are read, or until the
/// budget is exhausted.
///
/// Cancel safety: what was read is lost.
async fn read_prefix(
    incoming: &mut ClientBody,
    mut reservation: MemoryReservation,
    limits: PrefixLimits,
    identity_headers: &IdentityHeaders,
) -> Result<BodyPrefix, BodyReadError> {
    let mut parts = Vec::new();
    let mut trailers = None;
    let mut meter = None;
    let mut ended = false;
    while !ended {
        let frame = next_frame(incoming, &mut meter, limits, parts.len()).await?;
        let Some(frame) = frame else {
            ended = true;
            break;
        };
        match frame.into_data() {
            Ok(data) if parts.is_empty() && incoming.is_end_stream() => {
                // The usual case: the whole body at once, without a copy. It is in memory with or
                // without a reservation.
                let _ = reservation.try_grow_to(data.len());
                return Ok(BodyPrefix {
                    buffered: BufferedBody::new(data, None, reservation),
                    complete: true,
                    waited: meter.is_some(),
                });
            }
            Ok(data) => {
                let room = reserve_capacity(&mut parts, data.len(), &mut reservation);
                if limits.whole {
                    room?; // it is not forwarded in parts
                }
                parts.extend_from_slice(&data);
                ended = incoming.is_end_stream();
                if room.is_err() || parts.len() > limits.max {
                    break;
                }
            }
            Err(other) => {
                let body = parts.capacity();
                trailers = read_trailers(other, identity_headers, body, &mut reservation)?;
                ended = incoming.is_end_stream();
            }
        }
    }
    Ok(BodyPrefix {
        buffered: BufferedBody::new(Bytes::from(parts), trailers, reservation),
        complete: ended,
        waited: meter.is_some(),
    })
}

/// The next frame, if the client is fast enough.
async fn next_frame(
    incoming: &mut ClientBody,
    meter: &mut Option<RateMeter>,
    limits: PrefixLimits,
    read: usize,
) -> Result<Option<Frame<Bytes>>, BodyReadError> {
    let PrefixLimits { rate, deadline, .. } = limits;
    let frame = match incoming.frame().now_or_never() {
        Some(frame) => frame,
        None => {
            // Only a wait reads the clock.
            let now = Clock.now();
            let read = saturating_u64(read);
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
    frame.transpose().map_err(|why| client_body_error(&why))
}

/// The trailers that go on. Their memory counts as that of the body, which takes `body` bytes.
fn read_trailers(
    frame: Frame<Bytes>,
    identity_headers: &IdentityHeaders,
    body: usize,
    reservation: &mut MemoryReservation,
) -> Result<Option<HeaderMap>, BodyReadError> {
    let trailers = frame.into_trailers().unwrap_or_default(); // there is no other kind
    let trailers = headers::request_trailers(trailers, identity_headers)
        .map_err(|_| BodyReadError::Malformed)?;
    let memory = trailers.as_ref().map_or(0, head_memory);
    match reservation.try_grow_to(body.saturating_add(memory)) {
        true => Ok(trailers),
        false => Err(BodyReadError::BudgetExhausted),
    }
}

/// Reads a body to its end. Cancel safety: what was read is lost.
async fn read_to_end(
    incoming: &mut ClientBody,
    mut reservation: MemoryReservation,
    identity_headers: &IdentityHeaders,
) -> Result<BufferedBody, BodyReadError> {
    let length = saturating_usize(incoming.size_hint().lower());
    check_size(length)?;
    let mut parts = Vec::new();
    let mut trailers = None;
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|why| client_body_error(&why))?;
        match frame.into_data() {
            Ok(data) if parts.is_empty() && incoming.is_end_stream() => {
                // The usual case: the whole body at once, without a copy.
                check_size(data.len())?;
                if !reservation.try_grow_to(data.len()) {
                    return Err(BodyReadError::BudgetExhausted);
                }
                return Ok(BufferedBody::new(data, None, reservation));
            }
            Ok(data) => {
                check_size(parts.len().saturating_add(data.len()))?;
                reserve_capacity(&mut parts, data.len(), &mut reservation)?;
                parts.extend_from_slice(&data);
            }
            Err(other) => {
                let body = parts.capacity();
                trailers = read_trailers(other, identity_headers, body, &mut reservation)?;
            }
        }
    }
    Ok(BufferedBody::new(Bytes::from(parts), trailers, reservation))
}

/// Makes room for `more` bytes, which are copied so that small parts do not keep large buffers. The
/// reservation covers what is allocated.
fn reserve_capacity(
    parts: &mut Vec<u8>,
    more: usize,
    reservation: &mut MemoryReservation,
) -> Result<(), BodyReadError> {
    let length = parts.len().saturating_add(more);
    if length > parts.capacity() {
        let capacity = length
            .max(parts.capacity().saturating_mul(2))
            .clamp(INITIAL_CAPACITY, MAX_BODY_SIZE.max(length));
        // Both buffers exist while the old one is copied.
        if !reservation.try_grow_to(capacity.saturating_add(parts.capacity())) {
            return Err(BodyReadError::BudgetExhausted);
        }
        parts.reserve_exact(capacity - parts.len());
        reservation.shrink_to(parts.capacity());
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
    use weir_limits::throttling::memory_budget::MemoryBudget;

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
    fn trailers_count_as_memory_of_their_body() {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "1".parse().unwrap());
        let all = 100 + head_memory(&trailers);
        for (budget, expected) in [
            (all, Ok(Some(trailers.clone()))),
            (all - 1, Err(BodyReadError::BudgetExhausted)),
        ] {
            let budget = MemoryBudget::new(budget);
            let mut reserved = budget.reserve();
            let frame = Frame::trailers(trailers.clone());
            let read = read_trailers(frame, &IdentityHeaders::default(), 100, &mut reserved);
            assert_eq!(read, expected);
            assert_eq!(budget.used(), if expected.is_ok() { all } else { 0 });
        }
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
