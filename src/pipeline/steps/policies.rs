//! Policies: what a platform team denies, rejects, limits and tags.

use crate::identity::Authentication;
use crate::limits::Rejection;
use crate::pipeline::connection::peer::ReceivedHead;
use crate::pipeline::dependencies::Pipeline;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::trace::Trace;
use weir_base::clock::Clock;
use weir_limits::AdmissionAttributes;
use weir_limits::rate::policies::enforcer::PolicyPermit;
use weir_limits::rate::policies::request::PolicyRequest;

impl Pipeline {
    /// Asks the policies. Returns the slots of their limits, which the request holds to its end.
    pub(super) fn check_policies(
        &self,
        attributes: &AdmissionAttributes<'_>,
        received: ReceivedHead<'_>,
        auth: &Authentication,
        trace: &mut Trace,
    ) -> Result<Option<PolicyPermit>, RequestRejection> {
        let Some(policies) = &self.shared.rates.policies else {
            return Ok(None);
        };
        let request = PolicyRequest {
            attributes: *attributes,
            source: received.request_source(),
            is_verified: self.shared.authenticator.is_proven(auth),
        };
        let arrived = trace.arrived_at();
        let Some(mut decision) = policies.decide(&request, arrived, Clock.unix_second()) else {
            return Ok(None);
        };
        trace.record_policies(std::mem::take(&mut decision.notes));
        for rejection in decision.dry_run_rejections.drain(..) {
            trace.record_dry_run_rejection(Rejection::Policy(rejection));
        }
        match decision.rejection.take() {
            Some(denial) if denial.is_denial => Err(RequestRejection::Denied(denial)),
            Some(rejection) => Err(RequestRejection::Limit(Rejection::Policy(rejection))),
            None => Ok(decision.into_permit()),
        }
    }
}
