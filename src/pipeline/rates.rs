//! How many at all: client limits, then event limits, before a request takes a seat or a place in a queue.
//!
//! An event's body is read for them if a limit looks inside, and forwarded byte for byte.

use std::time::Instant;

use http::HeaderMap;
use http::header;
use http::request;

use crate::clock::Clock;
use crate::limits::AdmissionAttributes;
use crate::limits::Rejection;
use crate::limits::rate::clients::enforcer::ClientLimitPermit;
use crate::limits::rate::clients::enforcer::RequestSource;
use crate::limits::rate::events::enforcer::EventRequest;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::reject::RequestBodyState;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::request_body::BodyPrefix;

/// What comes of the limits.
pub(super) struct RatesPassed {
    /// Goes with the permit.
    pub(super) client_permit: Option<Box<ClientLimitPermit>>,
    /// When the time in a queue begins.
    pub(super) queue_start: Instant,
    /// The body, if it was read.
    pub(super) body: Option<BodyPrefix>,
}

impl Pipeline {
    /// Asks the limits that count requests; `body` is left alone unless an event's must be read.
    pub(super) async fn check_rates(
        &self,
        digest: &AdmissionAttributes<'_>,
        from: (&Peer, &request::Parts),
        body: &mut RequestBodyState,
        (arrived, deadline): (Instant, Option<Instant>),
    ) -> Result<RatesPassed, RequestRejection> {
        let passed = RatesPassed {
            client_permit: None,
            queue_start: arrived,
            body: None,
        };
        if !self.rates.is_configured() {
            return Ok(passed);
        }
        // In a box: who has no such limits does not pay for the room.
        Box::pin(self.apply_rates(passed, digest, from, body, deadline)).await
    }

    async fn apply_rates(
        &self,
        mut passed: RatesPassed,
        digest: &AdmissionAttributes<'_>,
        (peer, head): (&Peer, &request::Parts),
        body: &mut RequestBodyState,
        deadline: Option<Instant>,
    ) -> Result<RatesPassed, RequestRejection> {
        let arrived = passed.queue_start;
        if let Some(limits) = &self.rates.clients {
            let agent = head.headers.get(header::USER_AGENT);
            let origin = RequestSource {
                address: peer.address.ip(),
                user_agent: agent.map_or(b"", |agent| agent.as_bytes()),
            };
            let admitted = limits.admit(digest, origin, arrived, deadline).await;
            let hold =
                admitted.map_err(|no| RequestRejection::Limit(Rejection::ClientLimit(no)))?;
            passed.queue_start = hold
                .as_ref()
                .and_then(|hold| hold.admitted_after_delay())
                .unwrap_or(arrived);
            passed.client_permit = hold;
        }
        passed.body = self
            .check_event_rate(digest, (peer, &head.headers), body, deadline)
            .await?;
        if passed.body.is_some() {
            passed.queue_start = Clock.now(); // what the client took to send it is not the queue's
        }
        Ok(passed)
    }

    async fn check_event_rate(
        &self,
        digest: &AdmissionAttributes<'_>,
        (peer, headers): (&Peer, &HeaderMap),
        body: &mut RequestBodyState,
        deadline: Option<Instant>,
    ) -> Result<Option<BodyPrefix>, RequestRejection> {
        let Some(limits) = &self.rates.events else {
            return Ok(None);
        };
        let content_type = headers.get(header::CONTENT_TYPE).map(|t| t.as_bytes());
        let request = limits.event_request(digest.info, content_type);
        let Some(request) = request else {
            return Ok(None);
        };
        let read = match body.as_mut().filter(|_| EventRequest::needs_body(&request)) {
            Some(incoming) => {
                let read = self.read_whole(incoming, (peer, headers), deadline);
                let read = read.await?;
                *body = RequestBodyState::Consumed;
                Some(read)
            }
            None => None,
        };
        let data = read.as_ref().map_or(&[][..], |ahead| ahead.buffered.data());
        limits
            .admit(request, digest.info, &digest.user.name, data, Clock.now())
            .map_err(|no| RequestRejection::Limit(Rejection::EventRateLimit(no)))?;
        Ok(read)
    }
}
