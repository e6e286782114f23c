//! Builds the authenticator and the authorizer of impersonations.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;

use crate::app::start_error::StartError;
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
use crate::upstream;
use crate::upstream::forward::external_client::ExternalClient;

/// What the authenticator needs besides its configuration.
pub(super) struct AuthDependencies<'a> {
    /// The API server, if weir has credentials for it.
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

/// The authenticator, what decides impersonations, and the names of the identity headers.
pub(super) struct AuthComponents {
    pub(super) authenticator: Arc<RequestAuthenticator>,
    pub(super) impersonation_authorizer: Option<Arc<ImpersonationAuthorizer>>,
    /// `--classify-impersonated`.
    pub(super) classify_impersonated: bool,
    pub(super) identity_headers: Arc<IdentityHeaders>,
}

/// The background tasks of token and access reviews.
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
    dependencies: AuthDependencies<'_>,
) -> Result<(AuthComponents, ReviewTasks), StartError> {
    let config::IdentityConfig {
        client_ca,
        tokens: token_file,
        headers,
        front_proxies,
        verification,
        impersonation,
    } = config;
    let identity_headers = Arc::new(headers);
    let verifier = |flag: &'static str, roots: RootCertStore| {
        CertificateVerifier::new(roots, Arc::clone(&dependencies.provider))
            .map_err(|why| StartError::new(flag, why))
    };
    let certificates = client_ca
        .map(|roots| verifier("--client-ca-file", roots))
        .transpose()?;
    let front_proxies = front_proxies
        .map(|config::FrontProxyConfig { ca, allowed_names }| {
            let authority = verifier("--requestheader-client-ca-file", ca)?;
            Ok(FrontProxyAuthenticator::new(
                authority,
                allowed_names,
                Arc::clone(&identity_headers),
            ))
        })
        .transpose()?;
    let tokens = TokenAuthenticator::new(
        token_config(verification, &dependencies),
        dependencies.registry,
    );
    let authenticator =
        RequestAuthenticator::new(front_proxies, certificates, token_file, Arc::clone(&tokens))
            .map_err(|why| StartError::new("marks of tokens", why))?;
    let classify_impersonated = impersonation.classify;
    let authorizer = build_impersonation_authorizer(impersonation, impersonate, &dependencies)?;
    let reviews = ReviewTasks {
        tokens,
        authorizer: authorizer.clone(),
    };
    let components = AuthComponents {
        authenticator: Arc::new(authenticator),
        impersonation_authorizer: authorizer,
        classify_impersonated,
        identity_headers,
    };
    Ok((components, reviews))
}

fn build_impersonation_authorizer(
    config: config::ImpersonationConfig,
    impersonate: bool,
    dependencies: &AuthDependencies<'_>,
) -> Result<Option<Arc<ImpersonationAuthorizer>>, StartError> {
    let config::ImpersonationConfig {
        classify,
        reviews_per_second,
    } = config;
    let metrics = authorizer::AccessReviewMetrics::register(dependencies.registry);
    let api_server = dependencies
        .api_server
        .clone()
        .filter(|_| classify || impersonate);
    api_server
        .map(|api_server| ImpersonationAuthorizer::new(api_server, reviews_per_second, metrics))
        .transpose()
        .map_err(|why| StartError::new("marks of rights", why))
}

fn token_config(
    verification: VerificationConfig,
    dependencies: &AuthDependencies<'_>,
) -> tokens::TokenConfig {
    let VerificationConfig {
        issuers,
        service_account_keys,
        service_account_issuers,
        audiences,
        cache_ttl,
        reviews_per_second,
    } = verification;
    let api_server = &dependencies.api_server;
    let publisher = match service_account_keys {
        Some(keys) => Some(KeyProvider::Static(keys)),
        None => api_server.clone().map(KeyProvider::ApiServer),
    };
    tokens::TokenConfig {
        issuers: issuers
            .into_iter()
            .map(|(issuer, keys)| key_source(issuer, keys, dependencies))
            .collect(),
        service_accounts: publisher.map(|publisher| ServiceAccountKeys {
            keys: KeySource::new(publisher),
            issuers: service_account_issuers,
        }),
        api_server: api_server.clone(),
        reviews_per_second,
        audiences,
        cache_ttl,
    }
}

fn key_source(
    issuer: JwtIssuer,
    keys: IssuerKeys,
    dependencies: &AuthDependencies<'_>,
) -> (JwtIssuer, Arc<KeySource>) {
    let web = |roots| -> Arc<dyn UrlFetcher> {
        Arc::new(ExternalClient::new(
            roots,
            Arc::clone(dependencies.upstream_metrics),
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
