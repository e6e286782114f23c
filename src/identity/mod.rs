//! Who asks: a front proxy's word, a client certificate, a bearer token, or nobody.
//!
//! Promises: a name and its groups are only given to who proved it: to whom a front proxy names that proved to be one, a
//! certificate of the client CA, a token whose file, signature or review says so. Everybody else is `system:anonymous` here,
//! whatever a header says, and keeps the credential it sent for the upstream to judge. A presented certificate that does not
//! hold is never quietly taken for "no certificate". What is known costs no waiting; only a new token may. Asking itself is
//! `upstream`'s ([`transport`]). The order is kube-apiserver's (`pkg/kubeapiserver/authenticator/config.go`, 1.36).

pub mod accepted_tokens;
pub mod bearer_token;
pub mod client_certificate;
mod generational_map;
pub mod impersonation;
pub mod jwt;
pub mod request_header;
pub mod review_queue;
pub mod tokens;
pub mod transport;

use std::borrow::Cow;
use std::future::Future;
use std::future::Ready;
use std::future::ready;
use std::net::IpAddr;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Instant;
use std::time::SystemTime;

use futures_util::future::Either;
use http::HeaderMap;
use http::HeaderName;
use http::HeaderValue;

use crate::api::UserInfo;
use crate::clock::Clock;
use crate::identity::accepted_tokens::TokenHasher;
use crate::identity::bearer_token::BearerCredential;
use crate::identity::bearer_token::bearer_credential;
use crate::identity::review_queue::fair_queue::ClientSource;
use crate::identity::review_queue::fair_queue::source_network;
use crate::identity::tokens::TokenLookup;
use crate::identity::tokens::TokenOutcome;
use crate::identity::tokens::token_cache::VerifiedBy;

pub use accepted_tokens::AcceptedTokens;
pub use accepted_tokens::TokenHash;
pub use bearer_token::WEBSOCKET_BEARER_PREFIX;
pub use client_certificate::CertificateError;
pub use client_certificate::CertificateVerifier;
pub use client_certificate::PeerCertificate;
pub use impersonation::authorizer::ImpersonationAuthorizer;
pub use request_header::FrontProxyAuthenticator;
pub use tokens::TokenAuthenticator;
pub use tokens::token_file::TokenFile;

/// The authenticators that are configured.
#[derive(Debug)]
pub struct RequestAuthenticator {
    front_proxies: Option<FrontProxyAuthenticator>,
    certificate_verifier: Option<CertificateVerifier>,
    token_file: TokenFile,
    token_hasher: TokenHasher,
    token_authenticator: Arc<TokenAuthenticator>,
    anonymous: Arc<UserInfo>,
}

/// A user, and the credential that the request carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authentication {
    /// Whom the limits see.
    pub user: Arc<UserInfo>,
    /// What proved it, and so the way to the upstream.
    pub credential: RequestCredential,
    /// Its token, or whatever else stood in `Authorization`, where the upstream's answer to it says something.
    pub token_hash: Option<TokenHash>,
    /// When it was known: when it was asked for, if it only had to be looked up.
    pub authenticated_at: Instant,
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Who asks: at once as a rule, and no request pays for the room of a verification that does not take place.
pub type AuthenticationFuture<'a> = Either<
    Ready<AuthenticationResult>,
    Pin<Box<dyn Future<Output = AuthenticationResult> + Send + 'a>>,
>;

/// What comes of it.
pub type AuthenticationResult = Result<Authentication, AuthenticationError>;

fn immediate<'a>(resolved: AuthenticationResult) -> AuthenticationFuture<'a> {
    Either::Left(ready(resolved))
}

/// What a request came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestCredential {
    /// A certificate that the client CA vouches for. It ends here: the user is asserted to the upstream.
    Certificate,
    /// The word of a front proxy, which ends here as well.
    FrontProxy,
    /// Nothing at all.
    None,
    /// A token that weir knows by itself, from the token file or by its signature, which says nothing of whether the upstream
    /// (still) takes it; it goes on.
    LocallyVerifiedToken,
    /// A token that the upstream itself has vouched for, and may take no more since; it goes on.
    ReviewedToken,
    /// A token that weir cannot verify, or a bad one; it goes on, and the upstream judges it.
    UnverifiedToken,
}

/// Why nobody can be made of what was sent; the request is answered 401.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthenticationError {
    /// The certificate does not hold, and there is no token to fall back on.
    InvalidCertificate(CertificateError),
}

/// What a front proxy says, if the client is one and says something.
pub type AssertedIdentity = Result<Option<UserInfo>, CertificateError>;

/// What a request is on a connection with.
#[derive(Clone, Copy, Debug)]
pub struct ClientContext<'a> {
    /// What its client presented.
    pub certificate: Option<&'a PeerCertificate>,
    /// Which client it is.
    pub source: ClientSource,
    /// Whether it is one of `--trusted-proxies`, whose word about where a request comes from counts.
    pub from_trusted_proxy: bool,
    /// The user of the requests of its network whose tokens nothing verifies; made with the first of them.
    pub unverified_user: &'a OnceLock<Arc<UserInfo>>,
    /// The protocol to which the request asks to change, as the upstream is going to see it.
    pub upgrade: Option<&'a HeaderValue>,
}

impl ClientContext<'_> {
    /// Whom the limits see where nothing verifies a token: all of a network share a flow, so that made-up tokens do not make flows.
    /// The upstream refuses such requests before fairness.
    fn network_user(&self, headers: &HeaderMap) -> Arc<UserInfo> {
        let of = |address| {
            let network = source_network(address);
            Arc::new(UserInfo::unverified(format!("network:{network}")))
        };
        match forwarded_for(headers).filter(|_| self.from_trusted_proxy) {
            Some(address) => of(address),
            None => Arc::clone(self.unverified_user.get_or_init(|| of(self.source.address))),
        }
    }
}

/// The last hop that a proxy names: the client that it has seen itself.
fn forwarded_for(headers: &HeaderMap) -> Option<IpAddr> {
    let last = headers.get_all(X_FORWARDED_FOR).iter().next_back()?;
    let hop = last.to_str().ok()?.rsplit(',').next()?.trim();
    let with_port = || hop.parse().ok().map(|address: SocketAddr| address.ip());
    hop.parse().ok().or_else(with_port)
}

impl RequestAuthenticator {
    /// An identity from its authenticators.
    ///
    /// # Errors
    /// The system has no randomness for the key of the marks.
    pub fn new(
        front_proxies: Option<FrontProxyAuthenticator>,
        certificates: Option<CertificateVerifier>,
        mut file: TokenFile,
        tokens: Arc<TokenAuthenticator>,
    ) -> Result<Self, String> {
        let marks = TokenHasher::new()?;
        file.hash_tokens(&marks);
        // The operator's word, until the upstream says otherwise.
        file.token_hashes()
            .for_each(|mark| tokens.accepted_tokens().record(mark, true));
        Ok(Self {
            front_proxies,
            certificate_verifier: certificates,
            token_file: file,
            token_hasher: marks,
            token_authenticator: tokens,
            anonymous: Arc::new(UserInfo::anonymous()),
        })
    }

    /// The tokens that may share connections.
    #[must_use]
    pub fn accepted_tokens(&self) -> &AcceptedTokens {
        self.token_authenticator.accepted_tokens()
    }

    /// What the client says as a front proxy. To be read from the headers as they came: what `Connection` names is not for a
    /// client to take away from what its proxy says.
    ///
    /// # Errors
    /// It presented a certificate that is not that of a front proxy; which means nothing if it is known by other means.
    pub fn asserted_user(
        &self,
        client: ClientContext<'_>,
        headers: &HeaderMap,
        wall: SystemTime,
    ) -> AssertedIdentity {
        match (&self.front_proxies, client.certificate) {
            (Some(proxies), Some(presented)) => proxies.authenticate(presented, headers, wall),
            _ => Ok(None),
        }
    }

    /// The user of a request with `headers`, of which a front proxy may have `asserted` something. Waits only for a token that
    /// is not known yet, and then not for long.
    ///
    /// # Errors
    /// [`Unauthenticated`] if what was presented does not hold.
    ///
    /// # Cancel safety
    /// What was begun for others too goes on.
    pub fn authenticate<'a>(
        &'a self,
        asserted: AssertedIdentity,
        client: ClientContext<'a>,
        headers: &'a HeaderMap,
        now: Instant,
        wall: SystemTime,
    ) -> AuthenticationFuture<'a> {
        let by_connection = self.authenticate_connection(asserted, client, wall);
        if let Ok(Some(known)) = by_connection {
            return immediate(Ok(known));
        }
        let nobody = |credential| Authentication {
            user: Arc::clone(&self.anonymous),
            credential,
            token_hash: None,
            authenticated_at: now,
        };
        match bearer_credential(headers, client.upgrade) {
            BearerCredential::Token(token) => {
                self.authenticate_token(token, (client, headers), now, wall)
            }
            BearerCredential::TwoTokens([first, second]) => Either::Right(Box::pin(async move {
                let with = (client, headers);
                let first = self.authenticate_token(first, with, now, wall).await?;
                if first.credential != RequestCredential::UnverifiedToken {
                    return Ok(first);
                }
                let second = self.authenticate_token(second, with, now, wall).await?;
                let verified = second.credential != RequestCredential::UnverifiedToken;
                // No mark: which of the two an answer is about cannot be told.
                Ok(if verified {
                    second
                } else {
                    Authentication {
                        token_hash: None,
                        ..first
                    }
                })
            })),
            // No mark: what upstream does not take for a token is nobody there, and an answer to it proves nothing.
            BearerCredential::Unrecognized => {
                immediate(Ok(nobody(RequestCredential::UnverifiedToken)))
            }
            BearerCredential::None => immediate(match by_connection {
                Ok(_) => Ok(nobody(RequestCredential::None)),
                Err(fault) => Err(AuthenticationError::InvalidCertificate(fault)),
            }),
        }
    }

    fn authenticate_connection(
        &self,
        asserted: AssertedIdentity,
        client: ClientContext<'_>,
        wall: SystemTime,
    ) -> Result<Option<Authentication>, CertificateError> {
        let known = |user, credential| {
            Ok(Some(Authentication {
                user,
                credential,
                token_hash: None,
                authenticated_at: Clock.now(), // the signature may have been looked at
            }))
        };
        let fault = match asserted {
            Ok(Some(user)) => return known(Arc::new(user), RequestCredential::FrontProxy),
            Ok(None) => None,
            // It has named somebody: to go on as the proxy itself would be to believe something else.
            Err(fault @ CertificateError::InvalidProxyHeaders) => return Err(fault),
            Err(fault) => Some(fault),
        };
        let (Some(authority), Some(presented)) = (&self.certificate_verifier, client.certificate)
        else {
            return fault.map_or(Ok(None), Err);
        };
        match presented.user(authority, wall) {
            Ok(user) => known(user, RequestCredential::Certificate),
            // A subject without a name is "no opinion" upstream: the next method is asked.
            Err(CertificateError::NoCommonName) => fault.map_or(Ok(None), Err),
            Err(own) => Err(match fault {
                Some(fault @ CertificateError::NotAllowed(_)) => fault,
                _ => own,
            }),
        }
    }

    fn authenticate_token<'a>(
        &'a self,
        token: Cow<'a, [u8]>,
        (client, headers): (ClientContext<'a>, &'a HeaderMap),
        now: Instant,
        wall: SystemTime,
    ) -> AuthenticationFuture<'a> {
        if let Some((user, mark)) = self.token_file.look_up(&token) {
            return immediate(Ok(Authentication {
                user,
                credential: RequestCredential::LocallyVerifiedToken,
                token_hash: mark,
                authenticated_at: now,
            }));
        }
        let mark = self.token_hasher.hash(&token);
        let asker = client.source;
        let known = move |verified: TokenOutcome, at| Authentication {
            credential: match verified.verified_by {
                Some(VerifiedBy::ApiServer) => RequestCredential::ReviewedToken,
                Some(VerifiedBy::Signature) => RequestCredential::LocallyVerifiedToken,
                None => RequestCredential::UnverifiedToken,
            },
            user: match verified.verified_by {
                None if self.shares_flow(mark) => client.network_user(headers),
                Some(_) | None => verified.user,
            },
            token_hash: Some(mark),
            authenticated_at: at,
        };
        match self
            .token_authenticator
            .look_up(mark, &token, asker, now, wall)
        {
            TokenLookup::Cached(verified) => immediate(Ok(known(verified, now))),
            TokenLookup::Verify(last) => Either::Right(Box::pin(async move {
                let verified = self
                    .token_authenticator
                    .verify(mark, &token, asker, last)
                    .await;
                Ok(known(verified, Clock.now()))
            })),
        }
    }

    /// Whether requests with a token that is not verified share the flow of their network: where weir could verify it if it were good, but
    /// for one that the upstream has taken all the same.
    fn shares_flow(&self, mark: TokenHash) -> bool {
        self.token_authenticator.can_verify()
            && !self.token_authenticator.accepted_tokens().contains(mark)
    }

    /// The upstream has answered 401 to a request with the token of `mark`.
    pub fn record_unauthorized(&self, mark: TokenHash, now: Instant) {
        self.token_authenticator.record_unauthorized(mark, now);
    }
}

#[cfg(test)]
mod tests;
