//! Access to the admin listener: which requests are answered, by client certificate, by a token of a
//! file, or by the API server's decision. Without any of these the listener is open.
//!
//! - A credential is read over TLS only.
//! - The order is kube-apiserver's: the certificate, then the token. A certificate that is not valid
//!   does not stand in the way of a valid token.
//! - Probes ([`ALWAYS_ALLOWED`]) need no credential, as in Kubernetes' components.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use rustls::ServerConfig;

use crate::identity::client_certificate::{CertificateVerifier, PeerCertificate};
use crate::identity::delegated::{
    DelegatedAuth, PathAttributes, PathDecision, ReviewDeadline, TokenAuthentication,
};
use crate::identity::review_queue::fair_queue::ClientSource;
use weir_base::clock::Clock;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::encoding::client_text::truncate;
use weir_tokens::bearer::{BearerCredential, bearer_credential};
use weir_tokens::list::TokenList;

/// The paths that need no credential (`DelegatingAuthorizationOptions.AlwaysAllowPaths`, 1.36).
const ALWAYS_ALLOWED: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// The most of a path that a rejection repeats. Paths that exist are shorter.
const MAX_SHOWN_BYTES: usize = 128;

/// The access to a listener. A reload replaces it as a whole; the default is open.
#[derive(Debug, Default)]
pub(crate) struct AdminAccess {
    /// The TLS of new connections. `None` for plain HTTP.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// `--admin-client-ca-file`.
    pub(crate) client_ca: Option<CertificateVerifier>,
    /// `--admin-token-file`.
    pub(crate) tokens: TokenList,
    /// `--admin-authorization-mode=Webhook`.
    pub(crate) delegated: Option<Arc<DelegatedAuth>>,
}

/// The client of a connection.
#[derive(Debug)]
pub(crate) struct AdminClient {
    /// The address and the connection, by which reviews are queued fairly.
    pub(crate) source: ClientSource,
    /// Whether the connection is encrypted.
    pub(crate) is_tls: bool,
    /// The certificate that the client presented.
    pub(crate) certificate: Option<PeerCertificate>,
}

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AccessError {
    /// The user may not do it. Holds a sentence.
    Forbidden(String),
    /// The connection is older than the configuration, and one of the two has no TLS.
    OtherProtocol,
    /// There is no credential, or no valid one. Holds what would be one, or what is wrong.
    Unauthenticated(String),
    /// The API server has not answered whether the request is allowed.
    Unanswered,
}

impl AccessError {
    /// The status of the response.
    pub(crate) const fn code(&self) -> StatusCode {
        match self {
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::OtherProtocol => StatusCode::MISDIRECTED_REQUEST,
            Self::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            Self::Unanswered => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The sentence of the response and of the log.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Forbidden(text) | Self::Unauthenticated(text) => text,
            Self::OtherProtocol => {
                "this listener has changed between http and https: connect again"
            }
            Self::Unanswered => "there is no answer of the API server whether this is allowed",
        }
    }
}

/// What a credential proves.
enum Authenticated {
    /// The token is in the file.
    Listed,
    User(Arc<UserInfo>),
}

impl AdminAccess {
    /// Whether each request is answered.
    pub(crate) const fn is_open(&self) -> bool {
        self.client_ca.is_none() && self.tokens.is_empty() && self.delegated.is_none()
    }

    /// Checks that a request may be answered.
    ///
    /// # Errors
    /// Why it may not.
    ///
    /// # Cancel safety
    /// Cancel safe: a review that other requests may share continues.
    pub(crate) async fn check(
        &self,
        client: &AdminClient,
        attributes: PathAttributes<'_>,
        headers: &HeaderMap,
    ) -> Result<(), AccessError> {
        if self.tls.is_some() != client.is_tls {
            return Err(AccessError::OtherProtocol);
        }
        if ALWAYS_ALLOWED.contains(&attributes.path) {
            return Ok(());
        }
        self.authorize(client, attributes, headers).await
    }

    /// As [`Self::check`], also for the paths that need no credential.
    ///
    /// # Errors
    /// Why the request may not be answered.
    ///
    /// # Cancel safety
    /// As that of [`Self::check`].
    pub(crate) async fn authorize(
        &self,
        client: &AdminClient,
        attributes: PathAttributes<'_>,
        headers: &HeaderMap,
    ) -> Result<(), AccessError> {
        if self.is_open() {
            return Ok(());
        }
        let deadline = ReviewDeadline::from_arrival(Clock.now());
        let user = match self.authenticate(client, headers, deadline).await? {
            Authenticated::Listed => return Ok(()),
            Authenticated::User(user) => user,
        };
        let Some(delegated) = &self.delegated else {
            return Ok(());
        };
        let decision = delegated.authorize(&user, attributes, client.source, deadline);
        match decision.await {
            PathDecision::Allowed => Ok(()),
            PathDecision::Unanswered => Err(AccessError::Unanswered),
            PathDecision::Denied(reason) => {
                let PathAttributes { verb, path } = attributes;
                let colon = if reason.is_empty() { "" } else { ": " };
                Err(AccessError::Forbidden(format!(
                    "forbidden: User {:?} cannot {verb} path {:?}{colon}{reason}",
                    user.name,
                    truncate(path, MAX_SHOWN_BYTES),
                )))
            }
        }
    }

    async fn authenticate(
        &self,
        client: &AdminClient,
        headers: &HeaderMap,
        deadline: ReviewDeadline,
    ) -> Result<Authenticated, AccessError> {
        let mut wrong = None;
        match (&self.client_ca, &client.certificate) {
            (Some(ca), Some(certificate)) => match certificate.user(ca, Clock.wall()) {
                Ok(user) => return Ok(Authenticated::User(user)),
                Err(why) => wrong = Some(why.to_string()),
            },
            (None, Some(_)) => wrong = Some("client certificates are not accepted here".to_owned()),
            (_, None) => {}
        }
        let BearerCredential::Token(token) = bearer_credential(headers, None) else {
            let why = wrong.unwrap_or_else(|| "there is no credential".to_owned());
            return Err(self.unauthenticated(&why));
        };
        if self.tokens.contains(&token) {
            return Ok(Authenticated::Listed);
        }
        let Some(delegated) = &self.delegated else {
            return Err(self.unauthenticated("the bearer token is not valid"));
        };
        match delegated
            .authenticate(&token, client.source, deadline)
            .await
        {
            TokenAuthentication::Authenticated(user) => Ok(Authenticated::User(user)),
            TokenAuthentication::Rejected => {
                Err(self.unauthenticated("the bearer token is not valid"))
            }
            TokenAuthentication::Unanswered => Err(AccessError::Unanswered),
        }
    }

    /// The error, with the credentials that are accepted.
    fn unauthenticated(&self, why: &str) -> AccessError {
        let certificate = self.client_ca.as_ref().map(|_| "a client certificate");
        let listed = (!self.tokens.is_empty()).then_some("a bearer token of --admin-token-file");
        let reviewed = self
            .delegated
            .as_ref()
            .map(|_| "a bearer token that the API server knows");
        let accepted: Vec<_> = [certificate, listed, reviewed]
            .into_iter()
            .flatten()
            .collect();
        AccessError::Unauthenticated(format!("{why}: send {}", accepted.join(" or ")))
    }
}
