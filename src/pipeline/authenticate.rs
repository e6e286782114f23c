//! The user of a request, the mode in which the request is forwarded, and what the response of the
//! API server says about both.

use std::time::Instant;
use std::time::SystemTime;

use http::HeaderMap;
use http::HeaderValue;
use http::Method;
use http::StatusCode;
use http::request;

use crate::clock::Clock;
use crate::identity::AssertedIdentity;
use crate::identity::Authentication;
use crate::identity::ClientContext;
use crate::identity::PeerCertificate;
use crate::identity::RequestCredential;
use crate::identity::TokenHash;
use crate::pipeline::components::Pipeline;
use crate::pipeline::connection::peer::Peer;
use crate::pipeline::impersonation::EffectiveUser;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::trace::Trace;
use crate::upstream::UpstreamRequest;
use crate::upstream::headers;
use crate::upstream::headers::forwarded_for::ClientAddress;

/// What the response of the API server gives feedback about.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AuthFeedback {
    /// The token: whether the API server accepts it.
    token: Option<TokenHash>,
    /// The token: whether its earlier verification still holds.
    verified_token: Option<TokenHash>,
    /// The request carried weir's own credentials.
    impersonated: bool,
}

impl Pipeline {
    /// The identity that a front proxy asserts. It is read before the headers that `Connection`
    /// names are removed: clients cannot remove a front proxy's identity headers.
    pub(super) fn asserted_user(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
        now: SystemTime,
    ) -> AssertedIdentity {
        let client = peer.client();
        self.authenticator.asserted_user(client, headers, now)
    }

    pub(super) async fn authenticate(
        &self,
        asserted: AssertedIdentity,
        (peer, upgrade): (&Peer, Option<&HeaderValue>),
        headers: &HeaderMap,
        (started, wall): (Instant, SystemTime),
        trace: &mut Trace,
    ) -> Result<Authentication, RequestRejection> {
        let client = ClientContext {
            upgrade,
            ..peer.client()
        };
        let outcome = self
            .authenticator
            .authenticate(asserted, client, headers, started, wall);
        let outcome = self
            .head_budget
            .reserve_while_pending(peer, headers, outcome);
        let took = |at: Instant| at.saturating_duration_since(started);
        let stages = &self.metrics.stages;
        let authentication = match outcome.await? {
            Ok(authentication)
                if authentication.credential == RequestCredential::UnverifiedToken =>
            {
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
                .as_ref()
                .and_then(PeerCertificate::not_after)
        {
            stages
                .record_certificate_expiration(not_after.duration_since(wall).unwrap_or_default());
        }
        trace.record_user(&authentication.user, authentication.authenticated_at);
        let is_asserted = matches!(
            authentication.credential,
            RequestCredential::Certificate | RequestCredential::FrontProxy
        );
        if is_asserted && !self.upstream.can_assert() {
            return Err(RequestRejection::NoFrontProxyCertificate);
        }
        Ok(authentication)
    }

    /// Whether the API server has accepted the request's credential, or weir has authenticated its
    /// user by a certificate or front proxy.
    pub(super) fn is_verified(&self, authentication: &Authentication) -> bool {
        match authentication.credential {
            RequestCredential::Certificate | RequestCredential::FrontProxy => true,
            RequestCredential::ReviewedToken
            | RequestCredential::LocallyVerifiedToken
            | RequestCredential::UnverifiedToken
            | RequestCredential::None => {
                let accepted = self.authenticator.accepted_tokens();
                authentication
                    .token_hash
                    .is_some_and(|token| accepted.contains(token))
            }
        }
    }

    /// Chooses the mode of the request and builds the head that it requires.
    pub(super) fn build_upstream_request(
        &self,
        head: request::Parts,
        peer: &Peer,
        (auth, effective): (&Authentication, &EffectiveUser),
    ) -> Result<(UpstreamRequest, AuthFeedback), RequestRejection> {
        let client = ClientAddress {
            peer: peer.address.ip(),
            trusted: peer.trusted,
        };
        let names = &*self.identity_headers;
        let token = auth.token_hash.filter(|_| reaches_authentication(&head));
        let feedback = AuthFeedback {
            verified_token: auth.token_hash,
            ..AuthFeedback::default()
        };
        Ok(match auth.credential {
            RequestCredential::Certificate | RequestCredential::FrontProxy
                if self.upstream.impersonates() =>
            {
                let own = self.upstream.impersonation_credential()?;
                let head = headers::impersonation_head(
                    head,
                    client,
                    names,
                    effective.for_upstream(auth),
                    own,
                )?;
                let feedback = AuthFeedback {
                    impersonated: true,
                    ..feedback
                };
                (UpstreamRequest::Impersonating(head), feedback)
            }
            RequestCredential::Certificate | RequestCredential::FrontProxy => {
                let head = headers::front_proxy_head(head, client, names, &auth.user)?;
                let request = if auth.user.is_anonymous() {
                    UpstreamRequest::FrontProxyAnonymous(head)
                } else {
                    UpstreamRequest::FrontProxy(head)
                };
                (request, feedback)
            }
            RequestCredential::ReviewedToken
            | RequestCredential::LocallyVerifiedToken
            | RequestCredential::UnverifiedToken
            | RequestCredential::None => {
                let request = if self.is_verified(auth) {
                    UpstreamRequest::PassThrough(headers::pass_through_head(head, client, names))
                } else {
                    UpstreamRequest::Unverified(headers::unverified_head(head, client, names))
                };
                let feedback = AuthFeedback { token, ..feedback };
                (request, feedback)
            }
        })
    }

    /// Records what the API server's response says about the credentials.
    pub(super) fn record_feedback(&self, status: StatusCode, feedback: AuthFeedback) {
        let unauthorized = status == StatusCode::UNAUTHORIZED;
        if let (Some(token), Some(accepted)) = (feedback.token, token_acceptance(status)) {
            self.authenticator.accepted_tokens().record(token, accepted);
        }
        if let (Some(token), true) = (feedback.verified_token, unauthorized) {
            self.authenticator.record_unauthorized(token, Clock.now());
        }
        if feedback.impersonated && unauthorized {
            self.upstream.record_impersonation_unauthorized();
        }
    }
}

/// Whether the responding server has checked the token. Go's server responds to `OPTIONS *` itself,
/// and kube-apiserver's CORS filter responds to any OPTIONS before authentication.
fn reaches_authentication(head: &request::Parts) -> bool {
    head.method != Method::OPTIONS && head.uri.path().starts_with('/')
}

/// Whether a response shows that a token is valid (`true`) or invalid (`false`). Responses that
/// kube-apiserver may give before it has checked the token show neither.
fn token_acceptance(status: StatusCode) -> Option<bool> {
    match status {
        StatusCode::UNAUTHORIZED => Some(false),
        StatusCode::SWITCHING_PROTOCOLS
        | StatusCode::NOT_MODIFIED
        | StatusCode::FORBIDDEN
        | StatusCode::NOT_FOUND
        | StatusCode::CONFLICT
        | StatusCode::UNPROCESSABLE_ENTITY => Some(true),
        _ if status.is_success() => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_responses_after_authentication_verify_a_token() {
        let proof = |code| token_acceptance(StatusCode::from_u16(code).unwrap());
        for code in [200, 201, 101, 304, 403, 404, 409, 422] {
            assert_eq!(proof(code), Some(true), "{code}");
        }
        assert_eq!(proof(401), Some(false));
        for code in [400, 408, 413, 429, 500, 503, 504] {
            assert_eq!(proof(code), None, "{code}");
        }
    }
}
