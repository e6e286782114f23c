//! Puts together who is asked about a request's sender.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;

use crate::app::StartError;
use crate::config;
use crate::config::IssuerKeys;
use crate::config::VerificationConfig;
use crate::identity::CertificateVerifier;
use crate::identity::FrontProxyAuthenticator;
use crate::identity::ImpersonationAuthorizer;
use crate::identity::RequestAuthenticator;
use crate::identity::TokenAuthenticator;
use crate::identity::impersonation::authorizer;
use crate::identity::jwt::JwtIssuer;
use crate::identity::request_header::IdentityHeaders;
use crate::identity::tokens;
use crate::identity::tokens::ServiceAccountKeys;
use crate::identity::tokens::key_source::KeyProvider;
use crate::identity::tokens::key_source::KeySource;
use crate::identity::transport::ApiTransport;
use crate::identity::transport::UrlFetcher;
use crate::metrics::Registry;
use crate::pipeline::impersonation::Impersonation;
use crate::upstream;
use crate::upstream::forward::api_server_client::ExternalClient;

/// What identity is made of besides its configuration.
pub(super) struct AuthDependencies<'a> {
    /// The API server, where weir has credentials for it.
    api_server: Option<Arc<dyn ApiTransport>>,
    upstream_metrics: &'a Arc<upstream::UpstreamMetrics>,
    registry: &'a Registry,
    provider: Arc<CryptoProvider>,
}

impl<'a> AuthDependencies<'a> {
    pub(super) fn new(
        server: Option<Arc<dyn ApiTransport>>,
        upstream_metrics: &'a Arc<upstream::UpstreamMetrics>,
        registry: &'a Registry,
        provider: &Arc<CryptoProvider>,
    ) -> Self {
        Self {
            api_server: server,
            upstream_metrics,
            registry,
            provider: Arc::clone(provider),
        }
    }
}

/// The authenticators, what is done about those who impersonate, and the names of headers that all of them go by.
pub(super) struct AuthComponents {
    pub(super) authenticator: Arc<RequestAuthenticator>,
    pub(super) impersonation: Impersonation,
    pub(super) identity_headers: Arc<IdentityHeaders>,
}

/// What is asked of the API server behind requests.
#[derive(Debug)]
pub(super) struct ReviewTasks {
    tokens: Arc<TokenAuthenticator>,
    authorizer: Option<Arc<ImpersonationAuthorizer>>,
}

impl ReviewTasks {
    pub(super) fn run(self) {
        let Self {
            tokens,
            authorizer: access,
        } = self;
        tokio::spawn(tokens.run());
        if let Some(access) = access {
            tokio::spawn(access.run());
        }
    }
}

pub(super) fn build_authenticator(
    config: config::IdentityConfig,
    impersonate: bool,
    ground: AuthDependencies<'_>,
) -> Result<(AuthComponents, ReviewTasks), StartError> {
    let config::IdentityConfig {
        client_ca,
        tokens: file,
        headers,
        front_proxies,
        verification,
        impersonation,
    } = config;
    let names = Arc::new(headers);
    let vouching = |flag: &'static str, roots: RootCertStore| {
        CertificateVerifier::new(roots, Arc::clone(&ground.provider))
            .map_err(|why| StartError::new(flag, why))
    };
    let certificates = client_ca
        .map(|roots| vouching("--client-ca-file", roots))
        .transpose()?;
    let front_proxies = front_proxies
        .map(
            |config::FrontProxyConfig {
                 ca,
                 allowed_names: allowed,
             }| {
                let authority = vouching("--requestheader-client-ca-file", ca)?;
                Ok(FrontProxyAuthenticator::new(
                    authority,
                    allowed,
                    Arc::clone(&names),
                ))
            },
        )
        .transpose()?;
    let tokens = TokenAuthenticator::new(token_config(verification, &ground), ground.registry);
    let identity =
        RequestAuthenticator::new(front_proxies, certificates, file, Arc::clone(&tokens))
            .map_err(|why| StartError::new("marks of tokens", why))?;
    let impersonation = build_impersonation(impersonation, impersonate, &ground)?;
    let reviews = ReviewTasks {
        tokens,
        authorizer: impersonation.authorizer.clone(),
    };
    let who = AuthComponents {
        authenticator: Arc::new(identity),
        impersonation,
        identity_headers: names,
    };
    Ok((who, reviews))
}

fn build_impersonation(
    config: config::ImpersonationConfig,
    impersonate: bool,
    ground: &AuthDependencies<'_>,
) -> Result<Impersonation, StartError> {
    let config::ImpersonationConfig {
        classify,
        reviews_per_second,
    } = config;
    let metrics = authorizer::AccessReviewMetrics::register(ground.registry);
    let server = ground
        .api_server
        .clone()
        .filter(|_| classify || impersonate);
    let access = server
        .map(|server| ImpersonationAuthorizer::new(server, reviews_per_second, metrics))
        .transpose()
        .map_err(|why| StartError::new("marks of rights", why))?;
    Ok(Impersonation {
        authorizer: access,
        classify,
    })
}

fn token_config(
    verification: VerificationConfig,
    ground: &AuthDependencies<'_>,
) -> tokens::TokenConfig {
    let VerificationConfig {
        issuers,
        service_account_keys: account_keys,
        service_account_issuers: account_issuers,
        audiences,
        cache_ttl: ttl,
        reviews_per_second,
    } = verification;
    let server = &ground.api_server;
    let publisher = match account_keys {
        Some(keys) => Some(KeyProvider::Static(keys)),
        None => server.clone().map(KeyProvider::ApiServer),
    };
    tokens::TokenConfig {
        issuers: issuers
            .into_iter()
            .map(|(issuer, keys)| key_source(issuer, keys, ground))
            .collect(),
        service_accounts: publisher.map(|publisher| ServiceAccountKeys {
            keys: KeySource::new(publisher),
            issuers: account_issuers,
        }),
        api_server: server.clone(),
        reviews_per_second,
        audiences,
        cache_ttl: ttl,
    }
}

fn key_source(
    issuer: JwtIssuer,
    keys: IssuerKeys,
    ground: &AuthDependencies<'_>,
) -> (JwtIssuer, Arc<KeySource>) {
    let web = |roots| -> Arc<dyn UrlFetcher> {
        Arc::new(ExternalClient::new(
            roots,
            Arc::clone(ground.upstream_metrics),
        ))
    };
    let publisher = match keys {
        IssuerKeys::Configured(keys) => KeyProvider::Static(keys),
        IssuerKeys::Url(url, roots) => KeyProvider::Url(url, web(roots)),
        IssuerKeys::Discovery(discovery, roots) => KeyProvider::Discovery {
            issuer: issuer.url.clone(),
            discovery,
            web: web(roots),
        },
    };
    (issuer, KeySource::new(publisher))
}
