//! How many at all: client limits, then event limits, before a request takes a seat or a place in a queue.
//!
//! An event's body is read for them if a limit looks inside, and forwarded byte for byte.

use std::time::Instant;

use http::HeaderMap;
use http::header;
use http::request;

use crate::clock::Clock;
use crate::limits::Rejection;
use crate::limits::RequestDigest;
use crate::limits::clients::enforce::Hold;
use crate::limits::clients::enforce::Origin;
use crate::limits::events::enforce::EventRequest;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::refusal::Refusal;
use crate::pipeline::refusing::Unread;
use crate::pipeline::request_body::Ahead;

/// What comes of the limits.
pub(super) struct Passed {
    /// Goes with the permit.
    pub(super) hold: Option<Box<Hold>>,
    /// When the time in a queue begins.
    pub(super) at: Instant,
    /// The body, if it was read.
    pub(super) body: Option<Ahead>,
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
            let hold = admitted.map_err(|no| Refusal::Rejected(Rejection::Clients(no)))?;
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
    ) -> Result<Option<Ahead>, Refusal> {
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
                let read = self.read_whole(incoming, (peer, headers), deadline);
                let read = read.await?;
                *body = Unread::Nothing;
                Some(read)
            }
            None => None,
        };
        let data = read.as_ref().map_or(&[][..], |ahead| ahead.read.data());
        limits
            .admit(request, digest.info, &digest.user.name, data, Clock.now())
            .map_err(|no| Refusal::Rejected(Rejection::Events(no)))?;
        Ok(read)
    }
}
