//! Rate limits (client, then event), checked before a request queues for a seat.
//!
//! An event's body is read if a limit depends on it, and forwarded byte for byte.

use std::time::Instant;

use http::header;

use crate::flowcontrol::controller::RequestTimes;
use crate::limits::Rejection;
use crate::pipeline::connection::peer::ReceivedHead;
use crate::pipeline::dependencies::Pipeline;
use crate::pipeline::reject::body_drain::RequestBodyState;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::steps::request_body::BodyPrefix;
use weir_base::clock::Clock;
use weir_limits::AdmissionAttributes;
use weir_limits::rate::clients::enforcer::ClientLimitPermit;
use weir_limits::rate::events::enforcer::EventRequest;

/// The result of the rate limits.
pub(crate) struct RatesPassed {
    /// The rejections by limits that only count.
    pub(crate) dry_run_rejections: Vec<Rejection>,
    /// Held with the permit.
    pub(crate) client_permit: Option<Box<ClientLimitPermit>>,
    /// When the queue time begins.
    pub(crate) queue_start: Instant,
    /// The body, if it was read.
    pub(crate) body: Option<BodyPrefix>,
}

impl Pipeline {
    /// Checks the limits. `body` is untouched unless an event's body must be read.
    pub(crate) async fn check_rates(
        &self,
        attributes: &AdmissionAttributes<'_>,
        received: ReceivedHead<'_>,
        body: &mut RequestBodyState,
        times: RequestTimes,
    ) -> Result<RatesPassed, RequestRejection> {
        let passed = RatesPassed {
            dry_run_rejections: Vec::new(),
            client_permit: None,
            queue_start: times.arrived,
            body: None,
        };
        if !self.shared.rates.is_configured() || self.shared.levers.lift_limits() {
            return Ok(passed);
        }
        // Boxed: a configuration without rate limits does not pay for this memory.
        Box::pin(self.apply_rates(passed, attributes, received, body, times)).await
    }

    async fn apply_rates(
        &self,
        mut passed: RatesPassed,
        attributes: &AdmissionAttributes<'_>,
        received: ReceivedHead<'_>,
        body: &mut RequestBodyState,
        times: RequestTimes,
    ) -> Result<RatesPassed, RequestRejection> {
        let (arrived, deadline) = (times.arrived, times.deadline);
        if let Some(limits) = &self.shared.rates.clients {
            let source = received.request_source();
            let admitted = limits.admit(attributes, source, arrived, deadline);
            let is_enforced = || !self.shared.levers.is_dry_run(false);
            let permit = self.wait_while(is_enforced, admitted).await;
            let mut permit = permit
                .transpose()
                .map_err(|rejection| RequestRejection::Limit(Rejection::ClientLimit(rejection)))?
                .flatten();
            let spared = permit
                .as_mut()
                .map(|permit| permit.take_dry_run_rejections());
            let spared = spared.into_iter().flatten().map(Rejection::ClientLimit);
            passed.dry_run_rejections.extend(spared);
            passed.queue_start = permit
                .as_ref()
                .and_then(|permit| permit.admitted_after_delay())
                .unwrap_or(arrived);
            passed.client_permit = permit;
        }
        self.check_events(&mut passed, attributes, received, body, deadline)
            .await?;
        if passed.body.is_some() {
            // the time that the client takes to send the body is not queue time
            passed.queue_start = Clock.now();
        }
        Ok(passed)
    }

    async fn check_events(
        &self,
        passed: &mut RatesPassed,
        attributes: &AdmissionAttributes<'_>,
        received: ReceivedHead<'_>,
        body: &mut RequestBodyState,
        deadline: Option<Instant>,
    ) -> Result<(), RequestRejection> {
        let Some(limits) = &self.shared.rates.events else {
            return Ok(());
        };
        let headers = &received.head.headers;
        let content_type = headers.get(header::CONTENT_TYPE).map(|t| t.as_bytes());
        let request = limits.event_request(attributes.info, content_type);
        let Some(request) = request else {
            return Ok(());
        };
        passed.body = match body.as_mut().filter(|_| EventRequest::needs_body(&request)) {
            Some(incoming) => {
                let read = self.read_whole_body(incoming, received, deadline).await?;
                *body = RequestBodyState::Consumed;
                Some(read)
            }
            None => None,
        };
        let data = passed
            .body
            .as_ref()
            .map_or(&[][..], |prefix| prefix.buffered.data());
        let admitted = limits.admit(
            request,
            attributes.info,
            &attributes.user.name,
            data,
            Clock.now(),
        );
        if let Err(rejection) = admitted.map_err(Rejection::EventRateLimit) {
            if !self.shared.rates.events_are_dry_run() {
                return Err(RequestRejection::Limit(rejection));
            }
            passed.dry_run_rejections.push(rejection);
        }
        Ok(())
    }
}
