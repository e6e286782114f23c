//! Who asks: a front proxy's word, a client certificate, a bearer token, or nobody.
//!
//! Promises: a name and its groups are only given to who proved it: to whom a front proxy names that proved to be one, a
//! certificate of the client CA, a token whose file, signature or review says so. Everybody else is `system:anonymous` here,
//! whatever a header says, and keeps the credential it sent for the upstream to judge. A presented certificate that does not
//! hold is never quietly taken for "no certificate". What is known costs no waiting; only a new token may. Asking itself is
//! `upstream`'s ([`remote`]). The order is kube-apiserver's (`pkg/kubeapiserver/authenticator/config.go`, 1.36).

pub mod access;
pub mod authentication_config;
pub mod bearer;
pub mod client_certificate;
mod generations;
pub mod impersonation;
pub mod jwt;
mod line;
pub mod proven;
pub mod remote;
pub mod request_header;
mod subject;
pub mod token_file;
pub mod tokens;

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
use crate::identity::bearer::Bearer;
use crate::identity::bearer::bearer;
use crate::identity::proven::Marks;
use crate::identity::tokens::LookUp;
use crate::identity::tokens::Verified;
use crate::identity::tokens::cache::Voucher;
use crate::identity::tokens::turns::Asker;
use crate::identity::tokens::turns::network;

pub use access::Access;
pub use bearer::WEBSOCKET_BEARER;
pub use client_certificate::CertificateFault;
pub use client_certificate::ClientCertificates;
pub use client_certificate::PeerCertificate;
pub use proven::Mark;
pub use proven::ProvenTokens;
pub use request_header::FrontProxies;
pub use token_file::TokenFile;
pub use tokens::Tokens;

/// The authenticators that are configured.
#[derive(Debug)]
pub struct Identity {
    front_proxies: Option<FrontProxies>,
    certificates: Option<ClientCertificates>,
    file: TokenFile,
    marks: Marks,
    tokens: Arc<Tokens>,
    anonymous: Arc<UserInfo>,
}

/// A user, and the credential that the request carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Whom the limits see.
    pub user: Arc<UserInfo>,
    /// What proved it, and so the way to the upstream.
    pub credential: Credential,
    /// Its token, or whatever else stood in `Authorization`, where the upstream's answer to it says something.
    pub mark: Option<Mark>,
    /// When it was known: when it was asked for, if it only had to be looked up.
    pub at: Instant,
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Who asks: at once as a rule, and no request pays for the room of a verification that does not take place.
pub type Resolving<'a> =
    Either<Ready<Resolved>, Pin<Box<dyn Future<Output = Resolved> + Send + 'a>>>;

/// What comes of it.
pub type Resolved = Result<Known, Unauthenticated>;

fn at_once<'a>(resolved: Resolved) -> Resolving<'a> {
    Either::Left(ready(resolved))
}

/// What a request came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    /// A certificate that the client CA vouches for. It ends here: the user is asserted to the upstream.
    Certificate,
    /// The word of a front proxy, which ends here as well.
    FrontProxy,
    /// Nothing at all.
    None,
    /// A token that weir knows by itself, from the token file or by its signature, which says nothing of whether the upstream
    /// (still) takes it; it goes on.
    KnownToken,
    /// A token that the upstream itself has vouched for, and may take no more since; it goes on.
    Token,
    /// A token that weir cannot verify, or a bad one; it goes on, and the upstream judges it.
    UnverifiedToken,
}

/// Why nobody can be made of what was sent; the request is answered 401.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unauthenticated {
    /// The certificate does not hold, and there is no token to fall back on.
    BadCertificate(CertificateFault),
}

/// What a front proxy says, if the client is one and says something.
pub type Asserted = Result<Option<UserInfo>, CertificateFault>;

/// What a request is on a connection with.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// What its client presented.
    pub certificate: Option<&'a PeerCertificate>,
    /// Which client it is.
    pub asker: Asker,
    /// Whether it is one of `--trusted-proxies`, whose word about where a request comes from counts.
    pub trusted: bool,
    /// The user of the requests of its network whose tokens nothing verifies; made with the first of them.
    pub unverified: &'a OnceLock<Arc<UserInfo>>,
    /// The protocol to which the request asks to change, as the upstream is going to see it.
    pub upgrade: Option<&'a HeaderValue>,
}

impl Client<'_> {
    /// Whom the limits see where nothing verifies a token: all of a network share a flow, so that made-up tokens do not make flows.
    /// The upstream refuses such requests before fairness.
    fn unverified(&self, headers: &HeaderMap) -> Arc<UserInfo> {
        let of = |address| {
            let network = network(address);
            Arc::new(UserInfo::stranger(format!("network:{network}")))
        };
        match forwarded_for(headers).filter(|_| self.trusted) {
            Some(address) => of(address),
            None => Arc::clone(self.unverified.get_or_init(|| of(self.asker.address))),
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

impl Identity {
    /// An identity from its authenticators.
    ///
    /// # Errors
    /// The system has no randomness for the key of the marks.
    pub fn new(
        front_proxies: Option<FrontProxies>,
        certificates: Option<ClientCertificates>,
        mut file: TokenFile,
        tokens: Arc<Tokens>,
    ) -> Result<Self, String> {
        let marks = Marks::new()?;
        file.mark(&marks);
        // The operator's word, until the upstream says otherwise.
        file.marks()
            .for_each(|mark| tokens.proven().note(mark, true));
        Ok(Self {
            front_proxies,
            certificates,
            file,
            marks,
            tokens,
            anonymous: Arc::new(UserInfo::anonymous()),
        })
    }

    /// The tokens that may share connections.
    #[must_use]
    pub fn proven(&self) -> &ProvenTokens {
        self.tokens.proven()
    }

    /// What the client says as a front proxy. To be read from the headers as they came: what `Connection` names is not for a
    /// client to take away from what its proxy says.
    ///
    /// # Errors
    /// It presented a certificate that is not that of a front proxy; which means nothing if it is known by other means.
    pub fn asserted(&self, client: Client<'_>, headers: &HeaderMap, wall: SystemTime) -> Asserted {
        match (&self.front_proxies, client.certificate) {
            (Some(proxies), Some(presented)) => proxies.user(presented, headers, wall),
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
    pub fn resolve<'a>(
        &'a self,
        asserted: Asserted,
        client: Client<'a>,
        headers: &'a HeaderMap,
        now: Instant,
        wall: SystemTime,
    ) -> Resolving<'a> {
        let by_connection = self.by_connection(asserted, client, wall);
        if let Ok(Some(known)) = by_connection {
            return at_once(Ok(known));
        }
        let nobody = |credential| Known {
            user: Arc::clone(&self.anonymous),
            credential,
            mark: None,
            at: now,
        };
        match bearer(headers, client.upgrade) {
            Bearer::Token(token) => self.by_token(token, (client, headers), now, wall),
            Bearer::Tokens([first, second]) => Either::Right(Box::pin(async move {
                let with = (client, headers);
                let first = self.by_token(first, with, now, wall).await?;
                if first.credential != Credential::UnverifiedToken {
                    return Ok(first);
                }
                let second = self.by_token(second, with, now, wall).await?;
                let verified = second.credential != Credential::UnverifiedToken;
                // No mark: which of the two an answer is about cannot be told.
                Ok(if verified {
                    second
                } else {
                    Known {
                        mark: None,
                        ..first
                    }
                })
            })),
            // No mark: what upstream does not take for a token is nobody there, and an answer to it proves nothing.
            Bearer::Other => at_once(Ok(nobody(Credential::UnverifiedToken))),
            Bearer::None => at_once(match by_connection {
                Ok(_) => Ok(nobody(Credential::None)),
                Err(fault) => Err(Unauthenticated::BadCertificate(fault)),
            }),
        }
    }

    fn by_connection(
        &self,
        asserted: Asserted,
        client: Client<'_>,
        wall: SystemTime,
    ) -> Result<Option<Known>, CertificateFault> {
        let known = |user, credential| {
            Ok(Some(Known {
                user,
                credential,
                mark: None,
                at: Clock.now(), // the signature may have been looked at
            }))
        };
        let fault = match asserted {
            Ok(Some(user)) => return known(Arc::new(user), Credential::FrontProxy),
            Ok(None) => None,
            // It has named somebody: to go on as the proxy itself would be to believe something else.
            Err(fault @ CertificateFault::Proxied) => return Err(fault),
            Err(fault) => Some(fault),
        };
        let (Some(authority), Some(presented)) = (&self.certificates, client.certificate) else {
            return fault.map_or(Ok(None), Err);
        };
        match presented.user(authority, wall) {
            Ok(user) => known(user, Credential::Certificate),
            // A subject without a name is "no opinion" upstream: the next method is asked.
            Err(CertificateFault::NoCommonName) => fault.map_or(Ok(None), Err),
            Err(own) => Err(match fault {
                Some(fault @ CertificateFault::NotAllowed(_)) => fault,
                _ => own,
            }),
        }
    }

    fn by_token<'a>(
        &'a self,
        token: Cow<'a, [u8]>,
        (client, headers): (Client<'a>, &'a HeaderMap),
        now: Instant,
        wall: SystemTime,
    ) -> Resolving<'a> {
        if let Some((user, mark)) = self.file.user(&token) {
            return at_once(Ok(Known {
                user,
                credential: Credential::KnownToken,
                mark,
                at: now,
            }));
        }
        let mark = self.marks.of(&token);
        let asker = client.asker;
        let known = move |verified: Verified, at| Known {
            credential: match verified.voucher {
                Some(Voucher::ApiServer) => Credential::Token,
                Some(Voucher::Signature) => Credential::KnownToken,
                None => Credential::UnverifiedToken,
            },
            user: match verified.voucher {
                None if self.shares_flow(mark) => client.unverified(headers),
                Some(_) | None => verified.user,
            },
            mark: Some(mark),
            at,
        };
        match self.tokens.look_up(mark, &token, asker, now, wall) {
            LookUp::Known(verified) => at_once(Ok(known(verified, now))),
            LookUp::Verify(last) => Either::Right(Box::pin(async move {
                let verified = self.tokens.verify(mark, &token, asker, last).await;
                Ok(known(verified, Clock.now()))
            })),
        }
    }

    /// Whether requests with a token that is not verified share the flow of their network: where weir could verify it if it were good, but
    /// for one that the upstream has taken all the same.
    fn shares_flow(&self, mark: Mark) -> bool {
        self.tokens.verifies() && !self.tokens.proven().knows(mark)
    }

    /// The upstream has answered 401 to a request with the token of `mark`.
    pub fn doubt(&self, mark: Mark, now: Instant) {
        self.tokens.doubt(mark, now);
    }
}

#[cfg(test)]
mod tests;
