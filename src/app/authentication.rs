//! Builds the authenticator and the authorizer of impersonations.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

use crate::app::start_error::StartError;
use crate::config::{IssuerKeys, VerificationConfig};
use crate::identity::impersonation::authorizer;
use crate::identity::jwt::JwtIssuer;
use crate::identity::request_header::IdentityHeaders;
use crate::identity::tokens::ServiceAccountKeys;
use crate::identity::tokens::key_source::{KeyProvider, KeySource};
use crate::identity::transport::{ApiTransport, UrlFetcher};
use crate::identity::{
    CertificateVerifier, FrontProxyAuthenticator, ImpersonationAuthorizer, RequestAuthenticator,
    TokenAuthenticator, TokenFile, tokens,
};
use crate::upstream::forward::external_client::ExternalClient;
use crate::x509::CertificatePool;
use crate::{config, upstream};
use weir_base::metrics::Registry;

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
    /// What decides impersonations, if something does.
    pub(super) impersonation_authorizer: Option<Arc<ImpersonationAuthorizer>>,
    /// `--classify-impersonated`.
    pub(super) classify_impersonated: bool,
    /// The authorizer of impersonations, even while nothing uses it.
    authorizer: Option<Arc<ImpersonationAuthorizer>>,
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
    let prepared = PreparedAuth::new(config, impersonate, None, &dependencies)?;
    let tokens = TokenAuthenticator::new(prepared.tokens, dependencies.registry);
    let authenticator = RequestAuthenticator::new(
        prepared.front_proxies,
        prepared.certificates,
        prepared.token_file,
        Arc::clone(&tokens),
    )
    .map_err(|why| StartError::new("marks of tokens", why))?;
    let reviews = ReviewTasks {
        tokens,
        authorizer: prepared.authorizer.clone(),
    };
    let components = AuthComponents {
        authenticator: Arc::new(authenticator),
        impersonation_authorizer: prepared.impersonation_authorizer,
        classify_impersonated: prepared.classify_impersonated,
        authorizer: prepared.authorizer,
        identity_headers: prepared.identity_headers,
    };
    Ok((components, reviews))
}

/// The settings of authentication, valid and not in force yet.
pub(super) struct PreparedAuth {
    front_proxies: Option<FrontProxyAuthenticator>,
    certificates: Option<CertificateVerifier>,
    token_file: TokenFile,
    tokens: tokens::TokenConfig,
    identity_headers: Arc<IdentityHeaders>,
    impersonation_authorizer: Option<Arc<ImpersonationAuthorizer>>,
    classify_impersonated: bool,
    /// The authorizer that is in use or was in use before.
    authorizer: Option<Arc<ImpersonationAuthorizer>>,
    access_reviews: Option<(Arc<dyn ApiTransport>, u32)>,
}

impl PreparedAuth {
    /// Prepares what `config` describes. `authorizer` is the one that is there.
    pub(super) fn new(
        config: config::IdentityConfig,
        impersonate: bool,
        authorizer: Option<&Arc<ImpersonationAuthorizer>>,
        dependencies: &AuthDependencies<'_>,
    ) -> Result<Self, StartError> {
        let config::IdentityConfig {
            client_ca,
            tokens: token_file,
            headers,
            front_proxies,
            verification,
            impersonation:
                config::ImpersonationConfig {
                    classify,
                    reviews_per_second,
                },
        } = config;
        let identity_headers = Arc::new(headers);
        let verifier = |flag: &'static str, roots: CertificatePool| {
            CertificateVerifier::new(roots, Arc::clone(&dependencies.provider))
                .map_err(|why| StartError::new(flag, why))
        };
        let certificates = client_ca
            .map(|roots| verifier("--client-ca-file", roots))
            .transpose()?;
        let front_proxies = front_proxies
            .map(|config::FrontProxyConfig { ca, allowed_names }| {
                let authority = verifier("--requestheader-client-ca-file", ca)?;
                let headers = Arc::clone(&identity_headers);
                Ok(FrontProxyAuthenticator::new(
                    authority,
                    allowed_names,
                    headers,
                ))
            })
            .transpose()?;
        let api_server = dependencies.api_server.clone();
        let access_reviews = api_server
            .filter(|_| classify || impersonate)
            .map(|api_server| (api_server, reviews_per_second));
        let (in_use, authorizer) = match (&access_reviews, authorizer) {
            (None, earlier) => (None, earlier.map(Arc::clone)),
            (Some(_), Some(earlier)) => (Some(Arc::clone(earlier)), Some(Arc::clone(earlier))),
            (Some((api_server, per_second)), None) => {
                let metrics = authorizer::AccessReviewMetrics::register(dependencies.registry);
                let api_server = Arc::clone(api_server);
                let new = ImpersonationAuthorizer::new(api_server, *per_second, metrics)
                    .map_err(|why| StartError::new("marks of rights", why))?;
                (Some(Arc::clone(&new)), Some(new))
            }
        };
        Ok(Self {
            front_proxies,
            certificates,
            token_file,
            tokens: token_config(verification, dependencies),
            identity_headers,
            impersonation_authorizer: in_use,
            classify_impersonated: classify,
            authorizer,
            access_reviews,
        })
    }
}

impl AuthComponents {
    /// Prepares the components of a reload. Changes nothing.
    pub(super) fn prepare(
        &self,
        config: config::IdentityConfig,
        impersonate: bool,
        dependencies: &AuthDependencies<'_>,
    ) -> Result<PreparedAuth, StartError> {
        PreparedAuth::new(config, impersonate, self.authorizer.as_ref(), dependencies)
    }

    /// Puts `prepared` in force: changes the parts that stay, and builds the others around them.
    /// Also returns an authorizer whose task has to be started. When all requests come to the new
    /// authenticator, call `announce_trust` on it.
    pub(super) fn replaced_by(
        &self,
        prepared: PreparedAuth,
    ) -> (Self, Option<Arc<ImpersonationAuthorizer>>) {
        self.authenticator
            .token_authenticator()
            .replace(prepared.tokens);
        let authenticator = self.authenticator.rebuild(
            prepared.front_proxies,
            prepared.certificates,
            prepared.token_file,
        );
        let started = match (&self.authorizer, prepared.access_reviews) {
            (None, _) => prepared.authorizer.clone(),
            (Some(_), None) => None,
            (Some(authorizer), Some((api_server, per_second))) => {
                authorizer.replace(api_server, per_second);
                None
            }
        };
        let components = Self {
            authenticator: Arc::new(authenticator),
            impersonation_authorizer: prepared.impersonation_authorizer,
            classify_impersonated: prepared.classify_impersonated,
            authorizer: prepared.authorizer,
            identity_headers: prepared.identity_headers,
        };
        (components, started)
    }
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
