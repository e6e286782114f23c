//! Rate limits (client, then event), checked before a request queues for a seat.
//!
//! An event's body is read if a limit depends on it, and forwarded byte for byte.

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
use crate::pipeline::components::Pipeline;
use crate::pipeline::connection::peer::Peer;
use crate::pipeline::reject::body_drain::RequestBodyState;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::request_body::BodyPrefix;
use crate::upstream::requester::SlotHolder;

/// The result of the rate limits.
pub(super) struct RatesPassed {
    /// Held with the permit.
    pub(super) client_permit: Option<Box<ClientLimitPermit>>,
    /// When the queue time begins.
    pub(super) queue_start: Instant,
    /// The body, if it was read.
    pub(super) body: Option<BodyPrefix>,
}

impl Pipeline {
    /// Lets an exempt request wait while the API server executes too many that its requester has
    /// abandoned. Returns whether it waited.
    pub(super) async fn wait_for_backlog(
        &self,
        attributes: &AdmissionAttributes<'_>,
        peer: &Peer,
    ) -> Result<bool, RequestRejection> {
        let backlog = &self.abandoned_backlog;
        if backlog.is_empty() || !self.admission.is_exempt(attributes) {
            return Ok(false);
        }
        let Some(requester) = SlotHolder::from_client(attributes.user, peer.source_network())
        else {
            return Ok(false);
        };
        // Boxed: most requests do not pay for this memory.
        Box::pin(backlog.wait(&requester))
            .await
            .map_err(RequestRejection::Limit)
    }

    /// Checks the limits that count requests. `body` is untouched unless an event's body must be
    /// read.
    pub(super) async fn check_rates(
        &self,
        attributes: &AdmissionAttributes<'_>,
        received: (&Peer, &request::Parts),
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
        // Boxed: a configuration without rate limits does not pay for this memory.
        Box::pin(self.apply_rates(passed, attributes, received, body, deadline)).await
    }

    async fn apply_rates(
        &self,
        mut passed: RatesPassed,
        attributes: &AdmissionAttributes<'_>,
        (peer, head): (&Peer, &request::Parts),
        body: &mut RequestBodyState,
        deadline: Option<Instant>,
    ) -> Result<RatesPassed, RequestRejection> {
        let arrived = passed.queue_start;
        if let Some(limits) = &self.rates.clients {
            let user_agent = head.headers.get(header::USER_AGENT);
            let origin = RequestSource {
                address: peer.address.ip(),
                user_agent: user_agent.map_or(b"", |user_agent| user_agent.as_bytes()),
            };
            let admitted = limits.admit(attributes, origin, arrived, deadline).await;
            let permit = admitted
                .map_err(|rejection| RequestRejection::Limit(Rejection::ClientLimit(rejection)))?;
            passed.queue_start = permit
                .as_ref()
                .and_then(|permit| permit.admitted_after_delay())
                .unwrap_or(arrived);
            passed.client_permit = permit;
        }
        passed.body = self
            .check_event_rate(attributes, (peer, &head.headers), body, deadline)
            .await?;
        if passed.body.is_some() {
            // the time that the client takes to send the body is not queue time
            passed.queue_start = Clock.now();
        }
        Ok(passed)
    }

    async fn check_event_rate(
        &self,
        attributes: &AdmissionAttributes<'_>,
        (peer, headers): (&Peer, &HeaderMap),
        body: &mut RequestBodyState,
        deadline: Option<Instant>,
    ) -> Result<Option<BodyPrefix>, RequestRejection> {
        let Some(limits) = &self.rates.events else {
            return Ok(None);
        };
        let content_type = headers.get(header::CONTENT_TYPE).map(|t| t.as_bytes());
        let request = limits.event_request(attributes.info, content_type);
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
        let data = read
            .as_ref()
            .map_or(&[][..], |prefix| prefix.buffered.data());
        limits
            .admit(
                request,
                attributes.info,
                &attributes.user.name,
                data,
                Clock.now(),
            )
            .map_err(|rejection| RequestRejection::Limit(Rejection::EventRateLimit(rejection)))?;
        Ok(read)
    }
}
