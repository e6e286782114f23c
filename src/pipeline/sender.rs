//! Who sends a request, by which way it goes on, and what the upstream's answer says about the two.

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
use crate::identity::Asserted;
use crate::identity::Client;
use crate::identity::Credential;
use crate::identity::Known;
use crate::identity::Mark;
use crate::identity::PeerCertificate;
use crate::identity::tokens::turns::Asker;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::impersonation::InTheNameOf;
use crate::pipeline::refusal::Refusal;
use crate::pipeline::request_body;
use crate::pipeline::trace::Trace;
use crate::upstream::Dressed;
use crate::upstream::headers;
use crate::upstream::headers::ClientAddress;
use crate::upstream::room::Requester;

/// What the upstream's answer says something about.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// The token, whether the upstream takes it.
    proves: Option<Mark>,
    /// The token, whether what was found out about it still holds.
    verified: Option<Mark>,
    /// weir's own credentials, which the request went by.
    impersonates: bool,
}

impl Peer {
    pub(super) fn client(&self) -> Client<'_> {
        Client {
            certificate: self.certificate.as_ref(),
            asker: Asker {
                address: self.address.ip(),
                connection: self.number,
            },
            trusted: self.trusted,
            unverified: &self.unverified,
            upgrade: None,
        }
    }
}

impl Peer {
    /// For whom a request that counts for `user` takes a place.
    pub(super) fn requester(&self, user: &Arc<UserInfo>) -> Requester {
        Requester {
            user: Some(Arc::clone(user)),
            network: request_body::source(self),
        }
    }
}

impl Pipeline {
    pub(super) async fn identify(
        &self,
        asserted: Asserted,
        (peer, upgrade): (&Peer, Option<&HeaderValue>),
        headers: &HeaderMap,
        (began, wall): (Instant, SystemTime),
        trace: &mut Trace,
    ) -> Result<Known, Refusal> {
        let client = Client {
            upgrade,
            ..peer.client()
        };
        let resolved = self
            .identity
            .resolve(asserted, client, headers, began, wall);
        let resolved = self.heads.while_pending(peer, headers, resolved);
        let took = |at: Instant| at.saturating_duration_since(began);
        let filters = &self.metrics.filters;
        let known = match resolved.await? {
            Ok(known) if known.credential == Credential::UnverifiedToken => {
                filters.unauthenticated(took(known.at));
                known
            }
            Ok(known) => {
                filters.authenticated(&known.user.name, took(known.at));
                known
            }
            Err(why) => {
                filters.unauthenticated(took(Clock.now()));
                return Err(why.into());
            }
        };
        if known.credential == Credential::Certificate
            && let Some(ends) = peer.certificate.as_ref().and_then(PeerCertificate::ends)
        {
            filters.by_certificate(ends.duration_since(wall).unwrap_or_default());
        }
        trace.known(&known.user, known.at);
        let ends_here = matches!(
            known.credential,
            Credential::Certificate | Credential::FrontProxy
        );
        if ends_here && !self.upstream.can_assert() {
            return Err(Refusal::NoFrontProxy);
        }
        Ok(known)
    }

    /// Whether the API server has accepted the request's credential, or weir vouches for its user.
    pub(super) fn is_proven(&self, known: &Known) -> bool {
        match known.credential {
            Credential::Certificate | Credential::FrontProxy => true,
            Credential::Token
            | Credential::KnownToken
            | Credential::UnverifiedToken
            | Credential::None => {
                let proven = self.identity.proven();
                known.mark.is_some_and(|mark| proven.knows(mark))
            }
        }
    }

    /// Decides by which way the request goes, and makes of it what that way carries.
    pub(super) fn dress(
        &self,
        head: request::Parts,
        peer: &Peer,
        (known, name): (&Known, &InTheNameOf),
    ) -> Result<(Dressed, Told), Refusal> {
        let client = ClientAddress {
            peer: peer.address.ip(),
            trusted: peer.trusted,
        };
        let names = &*self.identity_headers;
        let proves = known.mark.filter(|_| is_asked_of_kubernetes(&head));
        let told = Told {
            verified: known.mark,
            ..Told::default()
        };
        Ok(match known.credential {
            Credential::Certificate | Credential::FrontProxy if self.upstream.impersonates() => {
                let own = self.upstream.impersonator()?;
                let head = headers::impersonating(head, client, names, name.sent(known), own)?;
                let told = Told {
                    impersonates: true,
                    ..told
                };
                (Dressed::Impersonating(head), told)
            }
            Credential::Certificate | Credential::FrontProxy => {
                let head = headers::asserting(head, client, names, &known.user)?;
                let dressed = if known.user.is_anonymous() {
                    Dressed::AssertingNobody(head)
                } else {
                    Dressed::Asserting(head)
                };
                (dressed, told)
            }
            Credential::Token
            | Credential::KnownToken
            | Credential::UnverifiedToken
            | Credential::None => {
                let dressed = if self.is_proven(known) {
                    Dressed::PassThrough(headers::pass_through(head, client, names))
                } else {
                    Dressed::Stranger(headers::stranger(head, client, names))
                };
                let told = Told { proves, ..told };
                (dressed, told)
            }
        })
    }

    /// Takes note of what the upstream has answered.
    pub(super) fn heard(&self, status: StatusCode, told: Told) {
        let refused = status == StatusCode::UNAUTHORIZED;
        if let (Some(mark), Some(good)) = (told.proves, proof(status)) {
            self.identity.proven().note(mark, good);
        }
        if let (Some(mark), true) = (told.verified, refused) {
            self.identity.doubt(mark, Clock.now());
        }
        if told.impersonates && refused {
            self.upstream.impersonator_refused();
        }
    }
}

/// Whether what answers this request has looked at its token. Go's server answers `OPTIONS *` by itself, and kube-apiserver's CORS filter
/// any OPTIONS, before anybody is authenticated.
fn is_asked_of_kubernetes(head: &request::Parts) -> bool {
    head.method != Method::OPTIONS && head.uri.path().starts_with('/')
}

/// Whether an answer shows that a token is good or that it is not. Those that kube-apiserver gives before it has looked at the
/// token show neither.
fn proof(status: StatusCode) -> Option<bool> {
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
    fn only_answers_that_come_after_authentication_prove_a_token() {
        let proof = |code| proof(StatusCode::from_u16(code).unwrap());
        for code in [200, 201, 101, 304, 403, 404, 409, 422] {
            assert_eq!(proof(code), Some(true), "{code}");
        }
        assert_eq!(proof(401), Some(false));
        for code in [400, 408, 413, 429, 500, 503, 504] {
            assert_eq!(proof(code), None, "{code}");
        }
    }
}
