//! A request's body before the request goes on: how much of it is awaited, and what that may take.
//!
//! The API server needs a request's body to do anything, and waits for it. So that a client cannot hold a seat with a body that it does
//! not send, one that fits [`BUFFER`] is awaited before the request takes a seat (an event's body whole, where a limit looks into
//! it). Small bodies, which nearly all are, come with their heads and cost no wait. What is longer is streamed, held to the least
//! rate of [`minimum_rate`](crate::minimum_rate).

use std::net::IpAddr;
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
use crate::identity::tokens::turns::network;
use crate::metrics::Registry;
use crate::minimum_rate::MinimumRate;
use crate::minimum_rate::RateMeter;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::refusal::Refusal;
use crate::pipeline::refusing::Unread;
use crate::request_info::RequestInfo;
use crate::upstream::ForwardError;
use crate::upstream::body::BodyProgress;
use crate::upstream::body::BodyState;
use crate::upstream::body::RequestBody;
use crate::upstream::body::why_unreadable;
use crate::upstream::client_body::ClientBody;
use crate::upstream::client_body::ClientBodyError;
use crate::upstream::headers::IdentityHeaders;
use crate::upstream::read_body::Budget;
use crate::upstream::read_body::ReadBody;
use crate::upstream::read_body::Reserved;

/// kube-apiserver's limit of a request's body (`MaxRequestBodyBytes`).
pub const LARGEST_BODY: usize = 3 << 20;

/// What all bodies together may take that are read before their requests go on: twenty of the largest events, thirty thousand usual
/// ones. A quarter of it is the most that one client's address has; trusted proxies, behind which many clients are, may have it
/// all.
pub const ALL_BODIES: usize = 64 << 20;

/// The budget of these bodies: [`ALL_BODIES`].
#[must_use]
pub fn request_bodies(registry: &Registry) -> Arc<Budget> {
    let budget = Budget::new(ALL_BODIES);
    let taken = Arc::clone(&budget);
    registry.gauge_of(
        "weir_request_body_bytes",
        "Memory reserved for request bodies that are read before their requests go on, in bytes. Without room an event that a limit looks into is rejected (event-bodies); others go on as they come.",
        move || taken.taken(),
    );
    budget
}

/// How much of a body is awaited before its request takes a seat: nearly every object that is written is smaller. Also the longest
/// body of a GET, a HEAD or a change of protocol, which goes on whole or not at all.
pub const BUFFER: usize = 64 << 10;

/// How long an event's body may take to come: it has one or two KiB.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// What a body that comes in parts begins with, in bytes: a usual event.
const FIRST_PART: usize = 4096;

/// Why a request's body cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFault {
    /// Its client has gone away.
    Aborted,
    /// What came is no body.
    Malformed,
    /// [`ALL_BODIES`] are held already, or the client's address has its part of them.
    NoRoom,
    /// It is larger than this.
    TooLarge(usize),
    /// It did not come in time.
    TooSlow,
}

impl BodyFault {
    fn of(error: &ClientBodyError) -> Self {
        if why_unreadable(error) == BodyState::Malformed {
            Self::Malformed
        } else {
            Self::Aborted
        }
    }
}

/// What was read of a body.
pub(super) struct Ahead {
    pub(super) read: ReadBody,
    /// Whether that is all.
    pub(super) ended: bool,
    /// Whether its client had to be waited for.
    pub(super) waited: bool,
}

/// A body on its way to the API server, and what tells how it goes on, where it is not all here.
pub(super) struct Outgoing {
    pub(super) body: RequestBody,
    pub(super) progress: Option<Arc<BodyProgress>>,
}

impl From<RequestBody> for Outgoing {
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
    pub(super) async fn read_ahead(
        &self,
        info: &RequestInfo<'_>,
        (peer, head): (&Peer, &request::Parts),
        body: &mut Unread,
        upgrades: bool,
        deadline: Instant,
    ) -> Result<Option<Ahead>, Refusal> {
        let Some(incoming) = body.as_mut().filter(|body| !body.is_end_stream()) else {
            return Ok(None);
        };
        let whole = upgrades || head.method == Method::GET || head.method == Method::HEAD;
        if !whole && (self.body_buffer == 0 || info.long_running() || expects_continue(head)) {
            return Ok(None);
        }
        let most = if whole { BUFFER } else { self.body_buffer };
        let length = usize::try_from(incoming.size_hint().lower()).unwrap_or(usize::MAX);
        if length > most {
            let too_large = Refusal::Body(BodyFault::TooLarge(most));
            return if whole { Err(too_large) } else { Ok(None) };
        }
        let reserved = self.request_bodies.reserve_for(source(peer));
        let until = (self.overdue.rate(), deadline);
        let names = &self.identity_headers;
        // In a box: only requests with a body pay for the room.
        let ahead = Box::pin(ahead(incoming, (reserved, most, whole), until, names));
        let ahead = self.heads.while_pending(peer, &head.headers, ahead).await?;
        let ahead = ahead.map_err(Refusal::Body)?;
        if ahead.ended {
            *body = Unread::Nothing;
        } else if whole {
            return Err(Refusal::Body(BodyFault::TooLarge(most)));
        }
        Ok(Some(ahead))
    }

    /// A body that goes on: what was read of it, and behind that what comes.
    pub(super) fn outgoing(&self, ahead: Option<Ahead>, body: &mut Unread) -> Outgoing {
        let begun = match ahead {
            Some(Ahead {
                read, ended: true, ..
            }) => {
                *body = Unread::Gone;
                return RequestBody::read(read).into();
            }
            Some(Ahead { read, .. }) => Some(read),
            None => None,
        };
        let rest = body.take();
        let Some(rest) = rest.filter(|rest| begun.is_some() || !rest.is_end_stream()) else {
            return RequestBody::empty().into();
        };
        let progress = Arc::<BodyProgress>::default();
        let names = Arc::clone(&self.identity_headers);
        Outgoing {
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
    ) -> Result<Ahead, Refusal> {
        let until = Clock.now() + READ_WITHIN;
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        let reserved = self.request_bodies.reserve_for(source(peer));
        let read = whole(incoming, reserved, &self.identity_headers);
        let read = Box::pin(tokio::time::timeout_at(until.into(), read));
        let read = self.heads.while_pending(peer, headers, read).await?;
        let read = read.unwrap_or(Err(BodyFault::TooSlow));
        Ok(Ahead {
            read: read.map_err(Refusal::Body)?,
            ended: true,
            waited: true,
        })
    }
}

/// What an error on the way to the API server comes of, where it was the request's body that broke off.
pub(super) fn blame(error: ForwardError, progress: Option<&BodyProgress>) -> Refusal {
    match progress.map(BodyProgress::state) {
        Some(BodyState::Aborted) => Refusal::Body(BodyFault::Aborted),
        Some(BodyState::Malformed) => Refusal::Body(BodyFault::Malformed),
        Some(BodyState::Stalled) => Refusal::Body(BodyFault::TooSlow),
        Some(BodyState::Unfinished | BodyState::Complete) | None => Refusal::Forward(error),
    }
}

/// Whether the client waits for word before it sends the body. It gets none before the request is admitted.
fn expects_continue(head: &request::Parts) -> bool {
    let expect = head.headers.get(header::EXPECT);
    expect.is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Which address is bounded apart, if any.
pub(crate) fn source(peer: &Peer) -> Option<IpAddr> {
    (!peer.trusted).then(|| network(peer.address.ip()))
}

/// Reads the beginning of a body: until it has ended, `most` bytes are here, or there is no more room for it.
///
/// Cancel safety: what was read is lost.
async fn ahead(
    incoming: &mut ClientBody,
    (mut reserved, most, whole): (Reserved, usize, bool),
    (rate, deadline): (MinimumRate, Instant),
    names: &IdentityHeaders,
) -> Result<Ahead, BodyFault> {
    let mut parts = Vec::new();
    let mut trailers = None;
    let mut meter = None;
    let mut ended = false;
    while !ended {
        let frame = next(incoming, &mut meter, (rate, deadline), parts.len()).await?;
        let Some(frame) = frame else {
            ended = true;
            break;
        };
        match frame.into_data() {
            Ok(data) if parts.is_empty() && incoming.is_end_stream() => {
                // The usual one: all at once, and nothing is copied. It is here with or without room for it.
                let _ = reserved.grow_to(data.len());
                return Ok(Ahead {
                    read: ReadBody::new(data, None, reserved),
                    ended: true,
                    waited: meter.is_some(),
                });
            }
            Ok(data) => {
                let room = make_room(&mut parts, data.len(), &mut reserved);
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
                trailers = cleaned(other, names);
                ended = incoming.is_end_stream();
            }
        }
    }
    Ok(Ahead {
        read: ReadBody::new(Bytes::from(parts), trailers, reserved),
        ended,
        waited: meter.is_some(),
    })
}

/// The next frame, if its client is fast enough.
async fn next(
    incoming: &mut ClientBody,
    meter: &mut Option<RateMeter>,
    (rate, deadline): (MinimumRate, Instant),
    read: usize,
) -> Result<Option<Frame<Bytes>>, BodyFault> {
    let frame = match incoming.frame().now_or_never() {
        Some(frame) => frame,
        None => {
            // Only one that has to be waited for costs a look at the clock.
            let now = Clock.now();
            let read = u64::try_from(read).unwrap_or(u64::MAX);
            let meter = meter.get_or_insert_with(|| RateMeter::new(rate, now));
            if !meter.look(rate, now, read, true) {
                return Err(BodyFault::TooSlow);
            }
            let until = meter.ends(rate).map_or(deadline, |end| end.min(deadline));
            tokio::time::timeout_at(until.into(), incoming.frame())
                .await
                .map_err(|_| BodyFault::TooSlow)?
        }
    };
    frame.transpose().map_err(|why| BodyFault::of(&why))
}

fn cleaned(frame: Frame<Bytes>, names: &IdentityHeaders) -> Option<HeaderMap> {
    let mut trailers = frame.into_trailers().ok()?;
    names.remove_from(&mut trailers);
    Some(trailers)
}

/// Reads a body to its end. Cancel safety: what was read is lost.
async fn whole(
    incoming: &mut ClientBody,
    mut reserved: Reserved,
    names: &IdentityHeaders,
) -> Result<ReadBody, BodyFault> {
    let length = usize::try_from(incoming.size_hint().lower()).unwrap_or(usize::MAX);
    fits(length)?;
    let mut parts = Vec::new();
    let mut trailers = None;
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|why| BodyFault::of(&why))?;
        match frame.into_data() {
            Ok(data) if parts.is_empty() && incoming.is_end_stream() => {
                // The usual one: all at once, and nothing is copied.
                fits(data.len())?;
                if !reserved.grow_to(data.len()) {
                    return Err(BodyFault::NoRoom);
                }
                return Ok(ReadBody::new(data, None, reserved));
            }
            Ok(data) => {
                fits(parts.len().saturating_add(data.len()))?;
                make_room(&mut parts, data.len(), &mut reserved)?;
                parts.extend_from_slice(&data);
            }
            Err(other) => trailers = cleaned(other, names),
        }
    }
    Ok(ReadBody::new(Bytes::from(parts), trailers, reserved))
}

/// Makes room for so many more bytes, which are copied so that small parts do not keep large buffers; it is reserved for what is
/// allocated.
fn make_room(parts: &mut Vec<u8>, more: usize, reserved: &mut Reserved) -> Result<(), BodyFault> {
    let length = parts.len().saturating_add(more);
    if length > parts.capacity() {
        let capacity = length
            .max(parts.capacity().saturating_mul(2))
            .clamp(FIRST_PART, LARGEST_BODY.max(length));
        // Both are there while the old one is copied.
        if !reserved.grow_to(capacity.saturating_add(parts.capacity())) {
            return Err(BodyFault::NoRoom);
        }
        parts.reserve_exact(capacity - parts.len());
        reserved.shrink_to(parts.capacity());
    }
    Ok(())
}

fn fits(length: usize) -> Result<(), BodyFault> {
    if length > LARGEST_BODY {
        return Err(BodyFault::TooLarge(LARGEST_BODY));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::read_body::Budget;

    #[test]
    fn a_body_that_comes_in_parts_takes_what_is_allocated_for_it() {
        let budget = Budget::new(ALL_BODIES);
        let mut reserved = budget.reserve();
        let mut parts = Vec::new();
        while parts.len() < LARGEST_BODY {
            let part = vec![b' '; (16 << 10).min(LARGEST_BODY - parts.len())];
            make_room(&mut parts, part.len(), &mut reserved).unwrap();
            parts.extend_from_slice(&part);
            assert_eq!(parts.capacity(), budget.taken());
        }
        assert!(parts.capacity() <= LARGEST_BODY);
        assert_eq!(
            fits(parts.len() + 1),
            Err(BodyFault::TooLarge(LARGEST_BODY))
        );
        drop(reserved);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn the_old_room_counts_as_well_while_it_is_copied() {
        let mut reserved = Budget::new(3 * FIRST_PART - 1).reserve();
        let mut parts = Vec::new();
        make_room(&mut parts, FIRST_PART, &mut reserved).unwrap();
        parts.extend_from_slice(&[b' '; FIRST_PART]);
        assert_eq!(
            make_room(&mut parts, 1, &mut reserved),
            Err(BodyFault::NoRoom)
        );
    }
}
