//! Puts together who is asked about a request's sender.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;

use crate::app::StartError;
use crate::config;
use crate::config::IssuerKeys;
use crate::config::Verification;
use crate::identity::ClientCertificates;
use crate::identity::FrontProxies;
use crate::identity::Identity;
use crate::identity::Tokens;
use crate::identity::jwt::Issuer;
use crate::identity::remote::ApiServer;
use crate::identity::remote::Web;
use crate::identity::request_header::IdentityHeaders;
use crate::identity::tokens;
use crate::identity::tokens::Accounts;
use crate::identity::tokens::source::KeySource;
use crate::identity::tokens::source::Publisher;
use crate::metrics::Registry;
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

/// The authenticators, what they do behind requests (to be run), and the names of headers that they go by.
type WhoAsks = (Arc<Identity>, Arc<Tokens>, Arc<IdentityHeaders>);

pub(super) fn who_asks(
    config: config::Identity,
    ground: Ground<'_>,
) -> Result<WhoAsks, StartError> {
    let config::Identity {
        client_ca,
        tokens: file,
        headers,
        front_proxies,
        verification,
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
    Ok((Arc::new(identity), tokens, names))
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
