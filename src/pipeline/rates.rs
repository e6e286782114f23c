//! How many at all: client limits, then event limits, before a request takes a seat or a place in a queue.
//!
//! An event's body is read here if a limit looks inside: bounded, timed, and forwarded byte for byte.

use std::net::IpAddr;
use std::time::Duration;
use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use http::header;
use http::request;
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::clock::Clock;
use crate::identity::tokens::turns::network;
use crate::limits::Rejection;
use crate::limits::RequestDigest;
use crate::limits::clients::enforce::Hold;
use crate::limits::clients::enforce::Origin;
use crate::limits::events::enforce::EventRequest;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::refusal::Refusal;
use crate::pipeline::refusing::Unread;
use crate::upstream::body::RequestBody;
use crate::upstream::headers::IdentityHeaders;
use crate::upstream::read_body::ReadBody;
use crate::upstream::read_body::Reserved;

/// kube-apiserver's limit of a request's body (`MaxRequestBodyBytes`).
pub const LARGEST_BODY: usize = 3 << 20;

/// What the bodies of all event requests together may take: twenty of the largest, thirty thousand usual ones. A quarter of it
/// is the most that one client's address has; trusted proxies, behind which many clients are, may have it all.
pub const ALL_BODIES: usize = 64 << 20;

/// How long an event's body may take to come: it has one or two KiB.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// What a body that comes in parts begins with, in bytes: a usual event.
const FIRST_PART: usize = 4096;

/// Why an event's body cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFault {
    /// The client broke it off.
    Broken,
    /// [`ALL_BODIES`] are held already, or the client's address has its part of them.
    NoRoom,
    /// It is larger than [`LARGEST_BODY`].
    TooLarge,
    /// It did not come in time.
    TooSlow,
}

/// What comes of the limits.
pub(super) struct Passed {
    /// Goes with the permit.
    pub(super) hold: Option<Box<Hold>>,
    /// When the time in a queue begins.
    pub(super) at: Instant,
    /// The body, if it was read.
    pub(super) body: Option<RequestBody>,
}

impl Pipeline {
    /// Asks the limits that count requests; `body` is left alone unless an event's must be read.
    pub(super) async fn pass_rates(
        &self,
        digest: &RequestDigest<'_>,
        from: (&Peer, &request::Parts),
        body: &mut Unread,
        (arrived, deadline): (Instant, Option<Instant>),
    ) -> Result<Passed, Refusal> {
        let passed = Passed {
            hold: None,
            at: arrived,
            body: None,
        };
        if !self.rates.any() {
            return Ok(passed);
        }
        // In a box: who has no such limits does not pay for the room.
        Box::pin(self.ask_rates(passed, digest, from, body, deadline)).await
    }

    async fn ask_rates(
        &self,
        mut passed: Passed,
        digest: &RequestDigest<'_>,
        (peer, head): (&Peer, &request::Parts),
        body: &mut Unread,
        deadline: Option<Instant>,
    ) -> Result<Passed, Refusal> {
        let arrived = passed.at;
        if let Some(limits) = &self.rates.clients {
            let agent = head.headers.get(header::USER_AGENT);
            let origin = Origin {
                address: peer.address.ip(),
                user_agent: agent.map_or(b"", |agent| agent.as_bytes()),
            };
            let admitted = limits.admit(digest, origin, arrived, deadline).await;
            let hold =
                admitted.map_err(|no| self.rejected(peer, Rejection::Clients(no), digest))?;
            passed.at = hold
                .as_ref()
                .and_then(|hold| hold.delayed_until())
                .unwrap_or(arrived);
            passed.hold = hold;
        }
        passed.body = self
            .limit_event(digest, (peer, &head.headers), body, deadline)
            .await?;
        if passed.body.is_some() {
            passed.at = Clock.now(); // what the client took to send it is not the queue's
        }
        Ok(passed)
    }

    async fn limit_event(
        &self,
        digest: &RequestDigest<'_>,
        (peer, headers): (&Peer, &HeaderMap),
        body: &mut Unread,
        deadline: Option<Instant>,
    ) -> Result<Option<RequestBody>, Refusal> {
        let Some(limits) = &self.rates.events else {
            return Ok(None);
        };
        let content_type = headers.get(header::CONTENT_TYPE).map(|t| t.as_bytes());
        let request = limits.concerns(digest.info, content_type);
        let Some(request) = request else {
            return Ok(None);
        };
        let read = match body.as_mut().filter(|_| EventRequest::wants_body(&request)) {
            Some(incoming) => {
                let read = self.read(incoming, peer, deadline).await;
                let read = read.map_err(Refusal::Body)?;
                *body = Unread::Nothing;
                Some(read)
            }
            None => None,
        };
        let data = read.as_ref().map_or(&[][..], ReadBody::data);
        limits
            .admit(request, digest.info, &digest.user.name, data, Clock.now())
            .map_err(|no| self.rejected(peer, Rejection::Events(no), digest))?;
        Ok(read.map(RequestBody::read))
    }

    async fn read(
        &self,
        incoming: &mut Incoming,
        peer: &Peer,
        deadline: Option<Instant>,
    ) -> Result<ReadBody, BodyFault> {
        let until = Clock.now() + READ_WITHIN;
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        let reserved = self.event_bodies.reserve_for(source(peer));
        let read = whole(incoming, reserved, &self.identity_headers);
        match tokio::time::timeout_at(until.into(), read).await {
            Ok(read) => read,
            Err(_) => Err(BodyFault::TooSlow),
        }
    }
}

/// Who is bounded apart, if anybody.
fn source(peer: &Peer) -> Option<IpAddr> {
    (!peer.trusted).then(|| network(peer.address.ip()))
}

/// Reads a body to its end. Cancel safety: what was read is lost.
async fn whole(
    incoming: &mut Incoming,
    mut reserved: Reserved,
    names: &IdentityHeaders,
) -> Result<ReadBody, BodyFault> {
    let told = usize::try_from(incoming.size_hint().lower()).unwrap_or(usize::MAX);
    if told > LARGEST_BODY {
        return Err(BodyFault::TooLarge);
    }
    let mut parts = Vec::new();
    let mut trailers = None;
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|_| BodyFault::Broken)?;
        match frame.into_data() {
            Ok(data) if parts.is_empty() && incoming.is_end_stream() => {
                // The usual one: all at once, and nothing is copied.
                fits(data.len())?;
                room(&mut reserved, data.len())?;
                return Ok(ReadBody::new(data, None, reserved));
            }
            Ok(data) => add(&mut parts, &data, &mut reserved)?,
            Err(other) => {
                trailers = other.into_trailers().ok().map(|mut trailers| {
                    names.remove_from(&mut trailers);
                    trailers
                });
            }
        }
    }
    Ok(ReadBody::new(Bytes::from(parts), trailers, reserved))
}

/// Copies, so that small parts do not keep large buffers; room is taken for what is allocated.
fn add(parts: &mut Vec<u8>, data: &[u8], reserved: &mut Reserved) -> Result<(), BodyFault> {
    let length = parts.len().saturating_add(data.len());
    fits(length)?;
    if length > parts.capacity() {
        let capacity = length
            .max(parts.capacity().saturating_mul(2))
            .clamp(FIRST_PART, LARGEST_BODY);
        // Both are there while the old one is copied.
        room(reserved, capacity.saturating_add(parts.capacity()))?;
        parts.reserve_exact(capacity - parts.len());
        reserved.shrink_to(parts.capacity());
    }
    parts.extend_from_slice(data);
    Ok(())
}

fn fits(length: usize) -> Result<(), BodyFault> {
    if length > LARGEST_BODY {
        return Err(BodyFault::TooLarge);
    }
    Ok(())
}

fn room(reserved: &mut Reserved, bytes: usize) -> Result<(), BodyFault> {
    if reserved.grow_to(bytes) {
        Ok(())
    } else {
        Err(BodyFault::NoRoom)
    }
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
        let mut length = 0;
        while length < LARGEST_BODY {
            let part = vec![b' '; (16 << 10).min(LARGEST_BODY - length)];
            add(&mut parts, &part, &mut reserved).unwrap();
            length += part.len();
            assert_eq!((parts.len(), parts.capacity()), (length, budget.taken()));
        }
        assert_eq!(
            add(&mut parts, b" ", &mut reserved),
            Err(BodyFault::TooLarge)
        );
        drop(reserved);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn the_old_room_counts_as_well_while_it_is_copied() {
        let mut reserved = Budget::new(3 * FIRST_PART - 1).reserve();
        let mut parts = Vec::new();
        add(&mut parts, &[b' '; FIRST_PART], &mut reserved).unwrap();
        assert_eq!(add(&mut parts, b" ", &mut reserved), Err(BodyFault::NoRoom));
    }
}
