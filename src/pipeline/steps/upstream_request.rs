//! The head of the request to the API server, in the mode that the credential of the client's
//! request allows, and what the response says about that credential.

use http::{Method, StatusCode, request};

use crate::identity::Authentication;
use crate::pipeline::connection::peer::Peer;
use crate::pipeline::dependencies::Pipeline;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::steps::impersonation::EffectiveUser;
use crate::upstream::headers::forwarded_for::{ClientAddress, requested_host};
use crate::upstream::{UpstreamRequest, headers};
use weir_base::clock::Clock;
use weir_kubernetes::request_info::RequestInfo;
use weir_tokens::hash::TokenHash;

/// What the response of the API server gives feedback about.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AuthFeedback {
    /// The token: whether the API server accepts it.
    token: Option<TokenHash>,
    /// The token: whether its earlier verification still holds.
    verified_token: Option<TokenHash>,
}

/// A request to the API server, and what its response gives feedback about.
pub(crate) struct OutgoingRequest {
    pub(crate) request: UpstreamRequest,
    pub(crate) feedback: AuthFeedback,
}

impl Pipeline {
    /// Chooses the mode of the request and builds the head that it requires.
    pub(crate) fn build_request(
        &self,
        info: &RequestInfo<'_>,
        mut head: Box<request::Parts>,
        peer: &Peer,
        auth: &Authentication,
        effective: &EffectiveUser,
    ) -> Result<OutgoingRequest, RequestRejection> {
        headers::prepare_forwarding(&mut head.headers);
        let app_host = info
            .proxies_to_app()
            .then(|| requested_host(&head))
            .flatten();
        let client = ClientAddress {
            peer: peer.address_value(),
            trusted: peer.trusted,
            app_host: app_host.as_ref(),
        };
        let names = &*self.shared.identity_headers;
        let token = auth.token_hash.filter(|_| reaches_authentication(&head));
        let feedback = AuthFeedback {
            verified_token: auth.token_hash,
            ..AuthFeedback::default()
        };
        if !auth.credential.is_asserted() {
            let request = if self.shared.authenticator.is_verified(auth) {
                UpstreamRequest::PassThrough(headers::pass_through_head(head, client, names))
            } else {
                UpstreamRequest::Unverified(headers::unverified_head(head, client, names))
            };
            let feedback = AuthFeedback { token, ..feedback };
            return Ok(OutgoingRequest { request, feedback });
        }
        let request = if self.worker.upstream.impersonates() {
            let own = self.worker.upstream.impersonation_credential()?;
            let user = effective.for_upstream(auth);
            let head = headers::impersonation_head(head, client, names, user, own)?;
            UpstreamRequest::Impersonating(head)
        } else {
            let head = headers::front_proxy_head(head, client, names, &auth.user)?;
            match auth.user.is_anonymous() {
                true => UpstreamRequest::FrontProxyAnonymous(head),
                false => UpstreamRequest::FrontProxy(head),
            }
        };
        Ok(OutgoingRequest { request, feedback })
    }

    /// Records what the API server's response says about the credentials.
    pub(crate) fn record_feedback(&self, status: StatusCode, feedback: AuthFeedback) {
        let unauthorized = status == StatusCode::UNAUTHORIZED;
        if let (Some(token), Some(accepted)) = (feedback.token, token_acceptance(status)) {
            self.shared
                .authenticator
                .accepted_tokens()
                .record(token, accepted);
        }
        if let (Some(token), true) = (feedback.verified_token, unauthorized) {
            self.shared
                .authenticator
                .record_unauthorized(token, Clock.now());
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
