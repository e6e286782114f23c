//! Authenticates requests: front proxy headers, client certificates and bearer tokens.
//!
//! A user name and its groups come only from a verified source: a front proxy with a valid
//! certificate, a client certificate of the client CA, or a token that the token file, its
//! signature or a `TokenReview` confirms. Every other request is `system:anonymous` here, whatever
//! its headers say. Its credential is forwarded, and the upstream decides about it. A client
//! certificate that is presented and not valid is an error, never treated as "no certificate".
//! Cached results need no waiting; only a new token may. This module sends no requests itself:
//! `upstream` implements the traits of [`transport`]. The order of the authenticators is
//! kube-apiserver's (`pkg/kubeapiserver/authenticator/config.go`, 1.36).
//!
//! Fetches of keys and reviews run on the control runtime, so that they outlive the first request
//! that needs them. A token with a wrong signature is not reviewed, so that a forged token triggers
//! no `TokenReview`. A token with an audience that weir was not configured with is reviewed.

pub(crate) mod accepted_tokens;
pub mod client_certificate;
pub mod delegated;
pub mod impersonation;
pub mod request_header;
pub mod review_queue;
pub(crate) mod self_subject_review;
pub mod tokens;
pub mod transport;

use std::borrow::Cow;
use std::collections::HashSet;
use std::future::{Future, Ready, ready};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use futures_util::future::Either;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::identity::client_certificate::ClientTrust;
use crate::identity::client_certificate::trust::{TrustObserver, TrustPublisher};
use crate::identity::review_queue::fair_queue::ClientSource;
use crate::identity::tokens::token_cache::VerifiedBy;
use crate::identity::tokens::{TokenLookup, TokenOutcome};
use weir_base::clock::Clock;
use weir_base::source_network::source_network;
use weir_kubernetes::api::UserInfo;
use weir_tokens::bearer::{BearerCredential, bearer_credential};
use weir_tokens::hash::{TokenHash, TokenHasher};

pub(crate) use accepted_tokens::AcceptedTokens;
pub(crate) use client_certificate::{CertificateError, CertificateVerifier, PeerCertificate};
pub(crate) use impersonation::authorizer::ImpersonationAuthorizer;
pub(crate) use request_header::FrontProxyAuthenticator;
pub use tokens::TokenAuthenticator;
pub use tokens::token_file::TokenFile;

/// Authenticates requests with the configured authenticators, in kube-apiserver's order.
#[derive(Debug)]
pub struct RequestAuthenticator {
    front_proxies: Option<FrontProxyAuthenticator>,
    trust: Arc<ClientTrust>,
    trust_publisher: TrustPublisher<ClientTrust>,
    token_file: TokenFile,
    token_hasher: Arc<TokenHasher>,
    token_authenticator: Arc<TokenAuthenticator>,
    anonymous: Arc<UserInfo>,
}

/// The authenticators that need no API server.
#[derive(Debug, Default)]
pub struct LocalAuthenticators {
    /// `--requestheader-client-ca-file`.
    pub front_proxies: Option<FrontProxyAuthenticator>,
    /// `--client-ca-file`.
    pub certificates: Option<CertificateVerifier>,
    /// `--token-auth-file`.
    pub token_file: TokenFile,
}

/// The user of a request and the credential that the request carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authentication {
    /// The user that the limits apply to.
    pub user: Arc<UserInfo>,
    /// The credential that authenticated the request. It determines how the request is forwarded.
    pub(crate) credential: RequestCredential,
    /// The hash of the token, or of another value of `Authorization`. `None` if the upstream's
    /// response says nothing about it.
    pub(crate) token_hash: Option<TokenHash>,
    /// When the user was determined. For a result that was only looked up: when the request
    /// arrived.
    pub(crate) authenticated_at: Instant,
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// An authentication, in most cases complete at once. Only a token that has to be verified takes
/// the boxed variant, so that other requests do not pay for its size.
pub(crate) type AuthenticationFuture<'a> = Either<
    Ready<AuthenticationResult>,
    Pin<Box<dyn Future<Output = AuthenticationResult> + Send + 'a>>,
>;

/// The user of a request, or why the request is rejected.
pub(crate) type AuthenticationResult = Result<Authentication, AuthenticationError>;

fn immediate<'a>(resolved: AuthenticationResult) -> AuthenticationFuture<'a> {
    Either::Left(ready(resolved))
}

/// The credential that a request carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestCredential {
    /// A certificate that the client CA signed. It is not forwarded: weir asserts the user to the
    /// upstream.
    Certificate,
    /// The identity headers of a front proxy. They are not forwarded either.
    FrontProxy,
    /// No credential.
    None,
    /// A token of the token file, or one with a valid signature. Whether the upstream accepts it,
    /// or still accepts it, is not known. It is forwarded.
    LocallyVerifiedToken,
    /// A token that the API server has confirmed in a review. The upstream may have revoked it
    /// since. It is forwarded.
    ReviewedToken,
    /// A token that is invalid, or that weir cannot verify. It is forwarded, and the upstream
    /// decides about it.
    UnverifiedToken,
}

impl RequestCredential {
    /// Whether weir asserts the user to the upstream, in place of the credential.
    pub(crate) const fn is_asserted(self) -> bool {
        match self {
            Self::Certificate | Self::FrontProxy => true,
            Self::None
            | Self::LocallyVerifiedToken
            | Self::ReviewedToken
            | Self::UnverifiedToken => false,
        }
    }
}

/// Why a request cannot be authenticated. The response is a 401.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthenticationError {
    /// The client certificate is not valid, and the request has no token.
    InvalidCertificate(CertificateError),
}

/// The user that a front proxy asserts; `None` if the client is not a front proxy or names no user.
pub(crate) type AssertedIdentity = Result<Option<UserInfo>, CertificateError>;

/// What is known about the client and its connection when a request arrives.
#[derive(Clone, Copy, Debug)]
pub struct ClientContext<'a> {
    /// The certificate chain that the client presented.
    pub certificate: Option<&'a PeerCertificate>,
    /// The address and connection by which reviews are queued fairly.
    pub source: ClientSource,
    /// Whether the client is one of `--trusted-proxies`, whose `X-Forwarded-For` counts.
    pub from_trusted_proxy: bool,
    /// The user of requests from this network whose tokens are not verified. Created with the first
    /// of them.
    pub unverified_user: &'a OnceLock<Arc<UserInfo>>,
    /// The protocol of the request's `Upgrade`, as the upstream is going to receive it.
    pub upgrade: Option<&'a HeaderValue>,
}

impl ClientContext<'_> {
    /// The user that the limits apply to if a token is not verified. All such requests of a network
    /// share a flow, so that made-up tokens create no flows. The upstream rejects them before
    /// fairness.
    fn network_user(&self, headers: &HeaderMap) -> Arc<UserInfo> {
        let user_of = |address| {
            let network = source_network(address);
            Arc::new(UserInfo::unverified(format!("network:{network}")))
        };
        match forwarded_for(headers).filter(|_| self.from_trusted_proxy) {
            Some(address) => user_of(address),
            None => Arc::clone(
                self.unverified_user
                    .get_or_init(|| user_of(self.source.address)),
            ),
        }
    }
}

/// The last address in `X-Forwarded-For`: the client that the proxy itself saw.
fn forwarded_for(headers: &HeaderMap) -> Option<IpAddr> {
    let last = headers.get_all(X_FORWARDED_FOR).iter().next_back()?;
    let hop = last.to_str().ok()?.rsplit(',').next()?.trim();
    let with_port = || hop.parse().ok().map(|address: SocketAddr| address.ip());
    hop.parse().ok().or_else(with_port)
}

impl RequestAuthenticator {
    /// Combines the authenticators, with a new key of the token hashes.
    ///
    /// # Errors
    /// The system's random generator fails.
    pub fn new(
        local: LocalAuthenticators,
        token_authenticator: Arc<TokenAuthenticator>,
    ) -> Result<Self, String> {
        let token_hasher = Arc::new(TokenHasher::new()?);
        Ok(Self::build(local, token_authenticator, token_hasher, None))
    }

    /// Combines the authenticators, in place of `earlier`, with which it shares what verifies tokens
    /// and its key. Tokens that are no longer in the file are not accepted any more; the others keep
    /// what is known about them. Call [`announce_trust`](Self::announce_trust) once all requests
    /// come to the new authenticator.
    #[must_use]
    pub(crate) fn build(
        local: LocalAuthenticators,
        token_authenticator: Arc<TokenAuthenticator>,
        token_hasher: Arc<TokenHasher>,
        earlier: Option<&Self>,
    ) -> Self {
        let LocalAuthenticators {
            mut front_proxies,
            certificates,
            mut token_file,
        } = local;
        token_file.hash_tokens(&token_hasher);
        let hashes = |file: &TokenFile| -> HashSet<TokenHash> { file.token_hashes().collect() };
        let before = earlier.map_or_else(HashSet::new, |earlier| hashes(&earlier.token_file));
        let now = hashes(&token_file);
        let record = |token_hash: &TokenHash, accepted| {
            let tokens = token_authenticator.accepted_tokens();
            tokens.record(*token_hash, accepted);
        };
        before.difference(&now).for_each(|gone| record(gone, false));
        // Tokens of the token file count as accepted until the upstream answers 401.
        now.difference(&before).for_each(|new| record(new, true));
        let trust = ClientTrust {
            certificates: certificates.map(Arc::new),
            front_proxies: front_proxies
                .as_ref()
                .map(|proxies| Arc::clone(&proxies.verifier)),
        };
        let (trust, trust_publisher) = match earlier {
            None => {
                let trust = Arc::new(trust);
                (Arc::clone(&trust), TrustPublisher::new(trust))
            }
            Some(earlier) => (
                trust.replacing(&earlier.trust),
                earlier.trust_publisher.clone(),
            ),
        };
        if let (Some(proxies), Some(verifier)) = (&mut front_proxies, &trust.front_proxies) {
            proxies.verifier = Arc::clone(verifier);
        }
        Self {
            front_proxies,
            trust,
            trust_publisher,
            token_file,
            token_hasher,
            token_authenticator,
            anonymous: Arc::new(UserInfo::anonymous()),
        }
    }

    /// Announces to all connections which client certificates this authenticator trusts. Those
    /// whose certificate gave an identity under the CAs before, and gives none now, are closed
    /// within [`TRUST_LOSS_TIMEOUT`](client_certificate::trust::TRUST_LOSS_TIMEOUT).
    pub(crate) fn announce_trust(&self) {
        self.trust_publisher.publish(&self.trust);
    }

    /// Observes which client certificates are trusted, for a new connection.
    #[must_use]
    pub(crate) fn trust_observer(&self) -> TrustObserver<ClientTrust> {
        self.trust_publisher.observer()
    }

    /// The key of the token hashes.
    pub(crate) const fn token_hasher(&self) -> &Arc<TokenHasher> {
        &self.token_hasher
    }

    /// Verifies tokens that are in no file.
    #[must_use]
    pub(crate) const fn token_authenticator(&self) -> &Arc<TokenAuthenticator> {
        &self.token_authenticator
    }

    /// The tokens whose requests may share connections.
    #[must_use]
    pub(crate) fn accepted_tokens(&self) -> &AcceptedTokens {
        self.token_authenticator.accepted_tokens()
    }

    /// Whether the API server has accepted the request's credential, or weir asserts the user.
    #[must_use]
    pub(crate) fn is_verified(&self, authentication: &Authentication) -> bool {
        let accepted = self.accepted_tokens();
        authentication.credential.is_asserted()
            || authentication
                .token_hash
                .is_some_and(|token| accepted.contains(token))
    }

    /// Whether the user of the request is known: the credential is
    /// [verified](Self::is_verified), or weir has verified it itself, and it names a user.
    #[must_use]
    pub(crate) fn is_proven(&self, authentication: &Authentication) -> bool {
        let checked = matches!(
            authentication.credential,
            RequestCredential::ReviewedToken | RequestCredential::LocallyVerifiedToken
        );
        !authentication.user.is_anonymous() && (checked || self.is_verified(authentication))
    }

    /// The user that the client asserts as a front proxy. Call this with the headers as they
    /// arrived: a client must not be able to remove a proxy's identity headers by naming them in
    /// `Connection`.
    ///
    /// # Errors
    /// The client presented a certificate that is not a valid front proxy certificate. If another
    /// authenticator accepts the request, the error has no effect.
    pub(crate) fn asserted_user(
        &self,
        client: ClientContext<'_>,
        headers: &HeaderMap,
        wall: SystemTime,
    ) -> AssertedIdentity {
        match (&self.front_proxies, client.certificate) {
            (Some(proxies), Some(certificate)) => proxies.authenticate(certificate, headers, wall),
            _ => Ok(None),
        }
    }

    /// Authenticates a request with `headers`, for which a front proxy may have `asserted` a user.
    /// Waits only for a token that is not cached, and for a few seconds at most.
    ///
    /// # Errors
    /// [`AuthenticationError`] if the client certificate is not valid, or there is no client CA, and
    /// there is no token.
    ///
    /// # Cancel safety
    /// Cancel safe: key fetches and reviews that other requests may share continue.
    pub fn authenticate<'a>(
        &'a self,
        asserted: AssertedIdentity,
        client: ClientContext<'a>,
        headers: &'a HeaderMap,
        now: Instant,
        wall: SystemTime,
    ) -> AuthenticationFuture<'a> {
        let from_connection = self.authenticate_connection(asserted, client, wall);
        if let Ok(Some(authenticated)) = from_connection {
            return immediate(Ok(authenticated));
        }
        let anonymous = |credential| Authentication {
            user: Arc::clone(&self.anonymous),
            credential,
            token_hash: None,
            authenticated_at: now,
        };
        match bearer_credential(headers, client.upgrade) {
            BearerCredential::Token(token) => {
                self.authenticate_token(token, client, headers, now, wall)
            }
            BearerCredential::TwoTokens([first, second]) => Either::Right(Box::pin(async move {
                let first = self
                    .authenticate_token(first, client, headers, now, wall)
                    .await?;
                if first.credential != RequestCredential::UnverifiedToken {
                    return Ok(first);
                }
                let second = self
                    .authenticate_token(second, client, headers, now, wall)
                    .await?;
                let verified = second.credential != RequestCredential::UnverifiedToken;
                // No hash: a response does not say which of the two tokens it is about.
                Ok(if verified {
                    second
                } else {
                    Authentication {
                        token_hash: None,
                        ..first
                    }
                })
            })),
            // No hash: what the upstream does not read as a token is anonymous there, and the
            // response to it proves nothing about a token.
            BearerCredential::Unrecognized => {
                immediate(Ok(anonymous(RequestCredential::UnverifiedToken)))
            }
            BearerCredential::None => immediate(match from_connection {
                Ok(_) => Ok(anonymous(RequestCredential::None)),
                Err(error) => Err(AuthenticationError::InvalidCertificate(error)),
            }),
        }
    }

    fn authenticate_connection(
        &self,
        asserted: AssertedIdentity,
        client: ClientContext<'_>,
        wall: SystemTime,
    ) -> Result<Option<Authentication>, CertificateError> {
        let authenticated = |user, credential| {
            Ok(Some(Authentication {
                user,
                credential,
                token_hash: None,
                authenticated_at: Clock.now(), // verifying the certificate may have taken time
            }))
        };
        let error = match asserted {
            Ok(Some(user)) => return authenticated(Arc::new(user), RequestCredential::FrontProxy),
            Ok(None) => None,
            // The proxy named a user that cannot be read. The proxy's own user must not be used
            // instead.
            Err(error @ CertificateError::InvalidProxyHeaders) => return Err(error),
            Err(error) => Some(error),
        };
        let Some(certificate) = client.certificate else {
            return error.map_or(Ok(None), Err);
        };
        let Some(verifier) = &self.trust.certificates else {
            // A front proxy's certificate is valid without the name of a user.
            let none = || match self.front_proxies {
                Some(_) => Ok(None),
                None => Err(CertificateError::NoClientCa),
            };
            return error.map_or_else(none, Err);
        };
        match certificate.user(verifier, wall) {
            Ok(user) => authenticated(user, RequestCredential::Certificate),
            // Upstream, a subject without a common name is "no opinion", and the next authenticator
            // decides.
            Err(CertificateError::NoCommonName) => error.map_or(Ok(None), Err),
            Err(certificate_error) => Err(match error {
                Some(error @ CertificateError::NotAllowed(_)) => error,
                _ => certificate_error,
            }),
        }
    }

    fn authenticate_token<'a>(
        &'a self,
        token: Cow<'a, [u8]>,
        client: ClientContext<'a>,
        headers: &'a HeaderMap,
        now: Instant,
        wall: SystemTime,
    ) -> AuthenticationFuture<'a> {
        if let Some((user, token_hash)) = self.token_file.look_up(&token) {
            return immediate(Ok(Authentication {
                user,
                credential: RequestCredential::LocallyVerifiedToken,
                token_hash,
                authenticated_at: now,
            }));
        }
        let token_hash = self.token_hasher.hash(&token);
        let source = client.source;
        let authenticated = move |verified: TokenOutcome, at| Authentication {
            credential: match verified.verified_by {
                Some(VerifiedBy::ApiServer) => RequestCredential::ReviewedToken,
                Some(VerifiedBy::Signature(_)) => RequestCredential::LocallyVerifiedToken,
                None => RequestCredential::UnverifiedToken,
            },
            user: match verified.verified_by {
                None if self.shares_flow(token_hash) => client.network_user(headers),
                Some(_) | None => verified.user,
            },
            token_hash: Some(token_hash),
            authenticated_at: at,
        };
        match self
            .token_authenticator
            .look_up(token_hash, &token, source, now, wall)
        {
            TokenLookup::Cached(verified) => immediate(Ok(authenticated(verified, now))),
            TokenLookup::Verify(last) => Either::Right(Box::pin(async move {
                let verified = self
                    .token_authenticator
                    .verify(token_hash, &token, source, last)
                    .await;
                Ok(authenticated(verified, Clock.now()))
            })),
        }
    }

    /// Whether requests with this unverified token share the flow of their network. They do if weir
    /// could verify the token if it were valid, unless the upstream has accepted the token.
    fn shares_flow(&self, token_hash: TokenHash) -> bool {
        self.token_authenticator.can_verify()
            && !self
                .token_authenticator
                .accepted_tokens()
                .contains(token_hash)
    }

    /// Records that the upstream answered 401 to a request with this token.
    pub(crate) fn record_unauthorized(&self, token_hash: TokenHash, now: Instant) {
        self.token_authenticator
            .record_unauthorized(token_hash, now);
    }
}

#[cfg(test)]
mod tests;
