//! Rate limits (client, then event), checked before a request queues for a seat.
//!
//! An event's body is read if a limit depends on it, and forwarded byte for byte.

use std::sync::Arc;
use std::time::Instant;

use http::header;

use crate::flowcontrol::controller::RequestTimes;
use crate::limits::Rejection;
use crate::pipeline::connection::peer::ReceivedHead;
use crate::pipeline::dependencies::SharedDependencies;
use crate::pipeline::reject::body_drain::RequestBodyState;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::steps::request_body::{BodyPrefix, RequestBodyStep};
use weir_base::clock::Clock;
use weir_limits::AdmissionAttributes;
use weir_limits::rate::RateLimits;
use weir_limits::rate::clients::enforcer::{ClientLimitPermit, RequestSource};
use weir_limits::rate::events::enforcer::EventRequest;

/// The result of the rate limits.
pub(crate) struct RatesPassed {
    /// Held with the permit.
    pub(crate) client_permit: Option<Box<ClientLimitPermit>>,
    /// When the queue time begins.
    pub(crate) queue_start: Instant,
    /// The body, if it was read.
    pub(crate) body: Option<BodyPrefix>,
}

/// Checks the limits that count requests.
#[derive(Debug)]
pub(crate) struct RateLimitStep {
    rates: Arc<RateLimits>,
}

impl RateLimitStep {
    pub(crate) fn new(shared: &SharedDependencies) -> Self {
        Self {
            rates: Arc::clone(&shared.rates),
        }
    }

    /// Whether there is any rate limit.
    pub(crate) fn is_configured(&self) -> bool {
        self.rates.is_configured()
    }

    /// Checks the limits. `body` is untouched unless an event's body must be read.
    pub(crate) async fn check(
        &self,
        attributes: &AdmissionAttributes<'_>,
        received: ReceivedHead<'_>,
        body: &mut RequestBodyState,
        times: RequestTimes,
        request_body: &RequestBodyStep,
    ) -> Result<RatesPassed, RequestRejection> {
        let passed = RatesPassed {
            client_permit: None,
            queue_start: times.arrived,
            body: None,
        };
        if !self.rates.is_configured() {
            return Ok(passed);
        }
        // Boxed: a configuration without rate limits does not pay for this memory.
        Box::pin(self.apply(passed, attributes, received, body, times, request_body)).await
    }

    async fn apply(
        &self,
        mut passed: RatesPassed,
        attributes: &AdmissionAttributes<'_>,
        received: ReceivedHead<'_>,
        body: &mut RequestBodyState,
        times: RequestTimes,
        request_body: &RequestBodyStep,
    ) -> Result<RatesPassed, RequestRejection> {
        let (arrived, deadline) = (times.arrived, times.deadline);
        if let Some(limits) = &self.rates.clients {
            let user_agent = received.head.headers.get(header::USER_AGENT);
            let origin = RequestSource {
                address: received.peer.address.ip(),
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
            .check_events(attributes, received, body, deadline, request_body)
            .await?;
        if passed.body.is_some() {
            // the time that the client takes to send the body is not queue time
            passed.queue_start = Clock.now();
        }
        Ok(passed)
    }

    async fn check_events(
        &self,
        attributes: &AdmissionAttributes<'_>,
        received: ReceivedHead<'_>,
        body: &mut RequestBodyState,
        deadline: Option<Instant>,
        request_body: &RequestBodyStep,
    ) -> Result<Option<BodyPrefix>, RequestRejection> {
        let Some(limits) = &self.rates.events else {
            return Ok(None);
        };
        let headers = &received.head.headers;
        let content_type = headers.get(header::CONTENT_TYPE).map(|t| t.as_bytes());
        let request = limits.event_request(attributes.info, content_type);
        let Some(request) = request else {
            return Ok(None);
        };
        let read = match body.as_mut().filter(|_| EventRequest::needs_body(&request)) {
            Some(incoming) => {
                let read = request_body
                    .read_whole(incoming, received, deadline)
                    .await?;
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
