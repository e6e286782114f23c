//! Who sends a request, by which way it goes on, and what the upstream's answer says about the two.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use std::time::SystemTime;

use http::HeaderMap;
use http::HeaderValue;
use http::Method;
use http::StatusCode;
use http::request;

use crate::api::UserInfo;
use crate::clock::Clock;
use crate::identity::AssertedIdentity;
use crate::identity::Authentication;
use crate::identity::ClientContext;
use crate::identity::PeerCertificate;
use crate::identity::RequestCredential;
use crate::identity::TokenHash;
use crate::identity::review_queue::fair_queue::ClientSource;
use crate::identity::review_queue::fair_queue::source_network;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::impersonation::EffectiveUser;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::trace::Trace;
use crate::upstream::UpstreamRequest;
use crate::upstream::connection::connection_budget::Requester;
use crate::upstream::headers;
use crate::upstream::headers::ClientAddress;

/// What the upstream's answer says something about.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AuthFeedback {
    /// The token, whether the upstream takes it.
    token: Option<TokenHash>,
    /// The token, whether what was found out about it still holds.
    verified_token: Option<TokenHash>,
    /// weir's own credentials, which the request went by.
    impersonated: bool,
}

impl Peer {
    pub(super) fn client(&self) -> ClientContext<'_> {
        ClientContext {
            certificate: self.certificate.as_ref(),
            source: ClientSource {
                address: self.address.ip(),
                connection_id: self.connection_id,
            },
            from_trusted_proxy: self.trusted,
            unverified_user: &self.unverified_user,
            upgrade: None,
        }
    }
}

impl Peer {
    /// The network whose use of memory and connections is limited, unless the peer is a trusted proxy.
    pub(crate) fn source_network(&self) -> Option<IpAddr> {
        (!self.trusted).then(|| source_network(self.address.ip()))
    }

    /// For whom a request that counts for `user` takes a place.
    pub(super) fn requester(&self, user: &Arc<UserInfo>) -> Requester {
        Requester {
            user: Some(Arc::clone(user)),
            network: self.source_network(),
        }
    }
}

impl Pipeline {
    /// The identity that a front proxy asserts. It is read before the headers that `Connection` names are removed: clients
    /// cannot remove a front proxy's identity headers.
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
        (began, wall): (Instant, SystemTime),
        trace: &mut Trace,
    ) -> Result<Authentication, RequestRejection> {
        let client = ClientContext {
            upgrade,
            ..peer.client()
        };
        let resolved = self
            .authenticator
            .authenticate(asserted, client, headers, began, wall);
        let resolved = self
            .head_budget
            .reserve_while_pending(peer, headers, resolved);
        let took = |at: Instant| at.saturating_duration_since(began);
        let filters = &self.metrics.stages;
        let known = match resolved.await? {
            Ok(known) if known.credential == RequestCredential::UnverifiedToken => {
                filters.record_unauthenticated(took(known.authenticated_at));
                known
            }
            Ok(known) => {
                filters.record_authenticated(&known.user.name, took(known.authenticated_at));
                known
            }
            Err(why) => {
                filters.record_unauthenticated(took(Clock.now()));
                return Err(why.into());
            }
        };
        if known.credential == RequestCredential::Certificate
            && let Some(ends) = peer
                .certificate
                .as_ref()
                .and_then(PeerCertificate::not_after)
        {
            filters.record_certificate_expiration(ends.duration_since(wall).unwrap_or_default());
        }
        trace.record_user(&known.user, known.authenticated_at);
        let ends_here = matches!(
            known.credential,
            RequestCredential::Certificate | RequestCredential::FrontProxy
        );
        if ends_here && !self.upstream.can_assert() {
            return Err(RequestRejection::NoFrontProxyCertificate);
        }
        Ok(known)
    }

    /// Whether the API server has accepted the request's credential, or weir vouches for its user.
    pub(super) fn is_verified(&self, known: &Authentication) -> bool {
        match known.credential {
            RequestCredential::Certificate | RequestCredential::FrontProxy => true,
            RequestCredential::ReviewedToken
            | RequestCredential::LocallyVerifiedToken
            | RequestCredential::UnverifiedToken
            | RequestCredential::None => {
                let proven = self.authenticator.accepted_tokens();
                known.token_hash.is_some_and(|mark| proven.contains(mark))
            }
        }
    }

    /// Decides by which way the request goes, and makes of it what that way carries.
    pub(super) fn build_upstream_request(
        &self,
        head: request::Parts,
        peer: &Peer,
        (known, name): (&Authentication, &EffectiveUser),
    ) -> Result<(UpstreamRequest, AuthFeedback), RequestRejection> {
        let client = ClientAddress {
            peer: peer.address.ip(),
            trusted: peer.trusted,
        };
        let names = &*self.identity_headers;
        let proves = known.token_hash.filter(|_| reaches_authentication(&head));
        let told = AuthFeedback {
            verified_token: known.token_hash,
            ..AuthFeedback::default()
        };
        Ok(match known.credential {
            RequestCredential::Certificate | RequestCredential::FrontProxy
                if self.upstream.impersonates() =>
            {
                let own = self.upstream.impersonation_credential()?;
                let head = headers::impersonation_head(
                    head,
                    client,
                    names,
                    name.for_upstream(known),
                    own,
                )?;
                let told = AuthFeedback {
                    impersonated: true,
                    ..told
                };
                (UpstreamRequest::Impersonating(head), told)
            }
            RequestCredential::Certificate | RequestCredential::FrontProxy => {
                let head = headers::front_proxy_head(head, client, names, &known.user)?;
                let dressed = if known.user.is_anonymous() {
                    UpstreamRequest::FrontProxyAnonymous(head)
                } else {
                    UpstreamRequest::FrontProxy(head)
                };
                (dressed, told)
            }
            RequestCredential::ReviewedToken
            | RequestCredential::LocallyVerifiedToken
            | RequestCredential::UnverifiedToken
            | RequestCredential::None => {
                let dressed = if self.is_verified(known) {
                    UpstreamRequest::PassThrough(headers::pass_through_head(head, client, names))
                } else {
                    UpstreamRequest::Unverified(headers::unverified_head(head, client, names))
                };
                let told = AuthFeedback {
                    token: proves,
                    ..told
                };
                (dressed, told)
            }
        })
    }

    /// Takes note of what the upstream has answered.
    pub(super) fn record_feedback(&self, status: StatusCode, told: AuthFeedback) {
        let refused = status == StatusCode::UNAUTHORIZED;
        if let (Some(mark), Some(good)) = (told.token, token_acceptance(status)) {
            self.authenticator.accepted_tokens().record(mark, good);
        }
        if let (Some(mark), true) = (told.verified_token, refused) {
            self.authenticator.record_unauthorized(mark, Clock.now());
        }
        if told.impersonated && refused {
            self.upstream.record_impersonation_unauthorized();
        }
    }
}

/// Whether what answers this request has looked at its token. Go's server answers `OPTIONS *` by itself, and kube-apiserver's CORS filter
/// any OPTIONS, before anybody is authenticated.
fn reaches_authentication(head: &request::Parts) -> bool {
    head.method != Method::OPTIONS && head.uri.path().starts_with('/')
}

/// Whether an answer shows that a token is good or that it is not. Those that kube-apiserver gives before it has looked at the
/// token show neither.
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
