//! Who asks, and by which credential.
//!
//! Promises: a name is only given to who proved it (a certificate of the client CA, a token of the token file);
//! everybody else is `system:anonymous` here, whatever a header says, and keeps the credential it sent for the
//! upstream to judge. A presented certificate that does not hold is never quietly taken for "no certificate".
//! Deliberately not here: asking another server. The order is kube-apiserver's (certificate, then token;
//! `pkg/kubeapiserver/authenticator/config.go`, 1.36).

pub mod client_certificate;
pub mod proven;
pub mod token_file;

use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::header::SEC_WEBSOCKET_PROTOCOL;

use crate::api::UserInfo;

pub use client_certificate::CertificateFault;
pub use client_certificate::ClientCertificates;
pub use client_certificate::PeerCertificate;
pub use proven::Mark;
pub use proven::ProvenTokens;
pub use token_file::TokenFile;

/// What begins a WebSocket subprotocol that carries a bearer token
/// (`authentication/request/websocket/protocol.go`, 1.36).
pub const WEBSOCKET_BEARER: &str = "base64url.bearer.authorization.k8s.io.";

/// The authenticators that are configured.
#[derive(Debug)]
pub struct Identity {
    certificates: Option<ClientCertificates>,
    tokens: TokenFile,
    anonymous: Arc<UserInfo>,
}

/// A user, and the credential that the request carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Whom the limits see.
    pub user: Arc<UserInfo>,
    /// What proved it, and so the way to the upstream.
    pub credential: Credential,
}

/// What a request came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    /// A certificate that the client CA vouches for. It ends here: the user is asserted to the upstream.
    Certificate,
    /// Nothing at all.
    None,
    /// A token of the token file; it goes on to the upstream.
    Token,
    /// A token that weir cannot judge; it goes on, and the upstream judges it.
    UnverifiedToken,
}

/// Why nobody can be made of what was sent; the request is answered 401.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unauthenticated {
    /// The certificate does not hold, and there is no token to fall back on.
    BadCertificate(CertificateFault),
}

impl Identity {
    /// An identity from its authenticators.
    #[must_use]
    pub fn new(certificates: Option<ClientCertificates>, tokens: TokenFile) -> Self {
        Self {
            certificates,
            tokens,
            anonymous: Arc::new(UserInfo::anonymous()),
        }
    }

    /// The user of a request with `headers` on a connection whose client presented `certificate`.
    ///
    /// # Errors
    /// [`Unauthenticated`] if what was presented does not hold.
    pub fn resolve(
        &self,
        certificate: Option<&PeerCertificate>,
        headers: &HeaderMap,
        wall: SystemTime,
    ) -> Result<Known, Unauthenticated> {
        let fault = match (&self.certificates, certificate) {
            (Some(authority), Some(presented)) => match presented.user(authority, wall) {
                Ok(user) => {
                    return Ok(Known {
                        user,
                        credential: Credential::Certificate,
                    });
                }
                // A subject without a name is "no opinion" upstream: the next method is asked.
                Err(CertificateFault::NoCommonName) => None,
                Err(fault) => Some(fault),
            },
            _ => None,
        };
        match (bearer_token(headers), fault) {
            (Bearer::Token(token), _) => Ok(match self.tokens.user(token) {
                Some(user) => Known {
                    user,
                    credential: Credential::Token,
                },
                None => self.unverified(),
            }),
            (Bearer::Other, _) => Ok(self.unverified()),
            (Bearer::None, Some(fault)) => Err(Unauthenticated::BadCertificate(fault)),
            (Bearer::None, None) => Ok(Known {
                user: Arc::clone(&self.anonymous),
                credential: Credential::None,
            }),
        }
    }

    fn unverified(&self) -> Known {
        Known {
            user: Arc::clone(&self.anonymous),
            credential: Credential::UnverifiedToken,
        }
    }
}

enum Bearer<'a> {
    None,
    /// Some credential whose form weir does not read (another scheme, a WebSocket subprotocol).
    Other,
    Token(&'a [u8]),
}

/// Reads the token as `bearertoken.Authenticator` does: the scheme in any case, the token up to the next space.
fn bearer_token(headers: &HeaderMap) -> Bearer<'_> {
    let Some(value) = headers.get(AUTHORIZATION) else {
        let in_protocol = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().any(|v| {
            v.as_bytes()
                .windows(WEBSOCKET_BEARER.len())
                .any(|w| w == WEBSOCKET_BEARER.as_bytes())
        });
        return if in_protocol {
            Bearer::Other
        } else {
            Bearer::None
        };
    };
    let mut words = value.as_bytes().trim_ascii().splitn(3, |b| *b == b' ');
    let scheme = words.next().unwrap_or_default();
    match words.next() {
        Some(token) if scheme.eq_ignore_ascii_case(b"bearer") && !token.is_empty() => {
            Bearer::Token(token)
        }
        _ => Bearer::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn identity() -> Identity {
        let tokens = TokenFile::parse("secret,alice,u1,\"dev,ops\"\n").unwrap();
        Identity::new(None, tokens)
    }

    fn resolve(authorization: &'static str) -> Known {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static(authorization));
        identity()
            .resolve(None, &headers, SystemTime::UNIX_EPOCH)
            .unwrap()
    }

    #[test]
    fn a_token_of_the_file_names_its_user_whatever_the_scheme_s_case() {
        for header in ["Bearer secret", "bearer secret", " BEARER secret trailing"] {
            let known = resolve(header);
            assert_eq!(known.user.name, "alice");
            assert_eq!(known.user.groups, ["dev", "ops", "system:authenticated"]);
            assert_eq!(known.credential, Credential::Token);
        }
    }

    #[test]
    fn what_cannot_be_verified_is_anonymous_to_the_limits_and_still_forwarded() {
        for header in ["Bearer other", "Basic c2VjcmV0", "Bearer  secret"] {
            let known = resolve(header);
            assert_eq!(known.user.name, "system:anonymous", "{header}");
            assert_eq!(known.credential, Credential::UnverifiedToken);
        }
    }

    #[test]
    fn no_credential_is_anonymous() {
        let known = identity()
            .resolve(None, &HeaderMap::new(), SystemTime::UNIX_EPOCH)
            .unwrap();
        assert_eq!(known.user.groups, ["system:unauthenticated"]);
        assert_eq!(known.credential, Credential::None);
    }

    #[test]
    fn a_token_in_a_websocket_subprotocol_is_a_credential() {
        let mut headers = HeaderMap::new();
        headers.insert(
            SEC_WEBSOCKET_PROTOCOL,
            HeaderValue::from_static(
                "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0",
            ),
        );
        let known = identity()
            .resolve(None, &headers, SystemTime::UNIX_EPOCH)
            .unwrap();
        assert_eq!(known.credential, Credential::UnverifiedToken);
    }
}
