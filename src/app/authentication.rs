//! Puts together who is asked about a request's sender.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;

use crate::app::StartError;
use crate::config;
use crate::config::IssuerKeys;
use crate::config::Verification;
use crate::identity::Access;
use crate::identity::ClientCertificates;
use crate::identity::FrontProxies;
use crate::identity::Identity;
use crate::identity::Tokens;
use crate::identity::access;
use crate::identity::jwt::Issuer;
use crate::identity::remote::ApiServer;
use crate::identity::remote::Web;
use crate::identity::request_header::IdentityHeaders;
use crate::identity::tokens;
use crate::identity::tokens::Accounts;
use crate::identity::tokens::source::KeySource;
use crate::identity::tokens::source::Publisher;
use crate::metrics::Registry;
use crate::pipeline::impersonation::Impersonation;
use crate::upstream;
use crate::upstream::own_calls::Elsewhere;

/// What identity is made of besides its configuration.
pub(super) struct Ground<'a> {
    /// The API server, where weir has credentials for it.
    server: Option<Arc<dyn ApiServer>>,
    upstream_metrics: &'a Arc<upstream::Metrics>,
    registry: &'a Registry,
    provider: Arc<CryptoProvider>,
}

impl<'a> Ground<'a> {
    pub(super) fn new(
        server: Option<Arc<dyn ApiServer>>,
        upstream_metrics: &'a Arc<upstream::Metrics>,
        registry: &'a Registry,
        provider: &Arc<CryptoProvider>,
    ) -> Self {
        Self {
            server,
            upstream_metrics,
            registry,
            provider: Arc::clone(provider),
        }
    }
}

/// The authenticators, what is done about those who impersonate, and the names of headers that all of them go by.
pub(super) struct WhoAsks {
    pub(super) identity: Arc<Identity>,
    pub(super) impersonation: Impersonation,
    pub(super) headers: Arc<IdentityHeaders>,
}

/// What is asked of the API server behind requests.
#[derive(Debug)]
pub(super) struct Reviews {
    tokens: Arc<Tokens>,
    access: Option<Arc<Access>>,
}

impl Reviews {
    pub(super) fn run(self) {
        let Self { tokens, access } = self;
        tokio::spawn(tokens.run());
        if let Some(access) = access {
            tokio::spawn(access.run());
        }
    }
}

pub(super) fn who_asks(
    config: config::Identity,
    impersonate: bool,
    ground: Ground<'_>,
) -> Result<(WhoAsks, Reviews), StartError> {
    let config::Identity {
        client_ca,
        tokens: file,
        headers,
        front_proxies,
        verification,
        impersonation,
    } = config;
    let names = Arc::new(headers);
    let vouching = |flag: &'static str, roots: RootCertStore| {
        ClientCertificates::new(roots, Arc::clone(&ground.provider))
            .map_err(|why| StartError::new(flag, why))
    };
    let certificates = client_ca
        .map(|roots| vouching("--client-ca-file", roots))
        .transpose()?;
    let front_proxies = front_proxies
        .map(|config::FrontProxies { ca, allowed }| {
            let authority = vouching("--requestheader-client-ca-file", ca)?;
            Ok(FrontProxies::new(authority, allowed, Arc::clone(&names)))
        })
        .transpose()?;
    let tokens = Tokens::new(verifying(verification, &ground), ground.registry);
    let identity = Identity::new(front_proxies, certificates, file, Arc::clone(&tokens))
        .map_err(|why| StartError::new("marks of tokens", why))?;
    let impersonation = impersonating(impersonation, impersonate, &ground)?;
    let reviews = Reviews {
        tokens,
        access: impersonation.access.clone(),
    };
    let who = WhoAsks {
        identity: Arc::new(identity),
        impersonation,
        headers: names,
    };
    Ok((who, reviews))
}

fn impersonating(
    config: config::Impersonation,
    impersonate: bool,
    ground: &Ground<'_>,
) -> Result<Impersonation, StartError> {
    let config::Impersonation {
        classify,
        reviews_per_second,
    } = config;
    let metrics = access::Metrics::register(ground.registry);
    let server = ground.server.clone().filter(|_| classify || impersonate);
    let access = server
        .map(|server| Access::new(server, reviews_per_second, metrics))
        .transpose()
        .map_err(|why| StartError::new("marks of rights", why))?;
    Ok(Impersonation { access, classify })
}

fn verifying(verification: Verification, ground: &Ground<'_>) -> tokens::Config {
    let Verification {
        issuers,
        account_keys,
        account_issuers,
        audiences,
        ttl,
        reviews_per_second,
    } = verification;
    let server = &ground.server;
    let publisher = match account_keys {
        Some(keys) => Some(Publisher::Given(keys)),
        None => server.clone().map(Publisher::ApiServer),
    };
    tokens::Config {
        issuers: issuers
            .into_iter()
            .map(|(issuer, keys)| key_source(issuer, keys, ground))
            .collect(),
        accounts: publisher.map(|publisher| Accounts {
            keys: KeySource::new(publisher),
            issuers: account_issuers,
        }),
        reviewer: server.clone(),
        reviews_per_second,
        audiences,
        ttl,
    }
}

fn key_source(issuer: Issuer, keys: IssuerKeys, ground: &Ground<'_>) -> (Issuer, Arc<KeySource>) {
    let web = |roots| -> Arc<dyn Web> {
        Arc::new(Elsewhere::new(roots, Arc::clone(ground.upstream_metrics)))
    };
    let publisher = match keys {
        IssuerKeys::Given(keys) => Publisher::Given(keys),
        IssuerKeys::Url(url, roots) => Publisher::Url(url, web(roots)),
        IssuerKeys::Discovery(discovery, roots) => Publisher::Issuer {
            issuer: issuer.url.clone(),
            discovery,
            web: web(roots),
        },
    };
    (issuer, KeySource::new(publisher))
}
