//! The user of a request.

use std::time::{Instant, SystemTime};

use crate::identity::{
    AssertedIdentity, Authentication, ClientContext, PeerCertificate, RequestCredential,
};
use crate::pipeline::connection::peer::ReceivedHead;
use crate::pipeline::dependencies::Pipeline;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::steps::upgrade::{RequestedUpgrade, UpgradeRequest};
use crate::pipeline::trace::Trace;
use crate::pipeline::trace::record::ArrivalTime;
use weir_base::clock::Clock;

impl Pipeline {
    /// The identity that a front proxy asserts. It is read before the headers that `Connection`
    /// names are removed: clients cannot remove a front proxy's identity headers.
    pub(crate) fn asserted_user(
        &self,
        received: ReceivedHead<'_>,
        now: SystemTime,
    ) -> AssertedIdentity {
        let client = received.peer.client();
        let headers = &received.head.headers;
        self.shared
            .authenticator
            .asserted_user(client, headers, now)
    }

    /// The user of a request, and the credential that it carried.
    pub(crate) async fn authenticate(
        &self,
        asserted: AssertedIdentity,
        received: ReceivedHead<'_>,
        upgrade: Option<&UpgradeRequest>,
        arrival: ArrivalTime,
        trace: &mut Trace,
    ) -> Result<Authentication, RequestRejection> {
        let ArrivalTime { at: started, wall } = arrival;
        let peer = received.peer;
        let headers = &received.head.headers;
        let client = ClientContext {
            upgrade: upgrade.map(|upgrade| &upgrade.protocol),
            ..peer.client()
        };
        let outcome = self
            .shared
            .authenticator
            .authenticate(asserted, client, headers, started, wall);
        let outcome = self
            .shared
            .head_budget
            .reserve_while_pending(peer, headers, outcome);
        let took = |at: Instant| at.saturating_duration_since(started);
        let stages = &self.shared.metrics.stages;
        let authentication = match outcome.await? {
            // Upstream, an error. What is no bearer token authenticates nobody, and succeeds as
            // anonymous.
            Ok(authentication) if authentication.user.is_unverified() => {
                stages.record_unauthenticated(took(authentication.authenticated_at));
                authentication
            }
            Ok(authentication) => {
                stages.record_authenticated(
                    &authentication.user.name,
                    took(authentication.authenticated_at),
                );
                authentication
            }
            Err(why) => {
                stages.record_unauthenticated(took(Clock.now()));
                return Err(why.into());
            }
        };
        if authentication.credential == RequestCredential::Certificate
            && let Some(not_after) = peer
                .certificate
                .as_deref()
                .and_then(PeerCertificate::not_after)
        {
            stages
                .record_certificate_expiration(not_after.duration_since(wall).unwrap_or_default());
        }
        trace.record_user(&authentication.user, authentication.authenticated_at);
        if authentication.credential.is_asserted() && !self.worker.upstream.can_assert() {
            return Err(RequestRejection::NoFrontProxyCertificate);
        }
        Ok(authentication)
    }

    /// Whether the request asks for another protocol.
    pub(crate) fn requested_upgrade(
        &self,
        authentication: &Authentication,
        upgrade: Option<&UpgradeRequest>,
    ) -> RequestedUpgrade {
        match upgrade {
            None => RequestedUpgrade::NotRequested,
            Some(_) if self.shared.authenticator.is_verified(authentication) => {
                RequestedUpgrade::Verified
            }
            Some(_) => RequestedUpgrade::Unverified,
        }
    }
}
