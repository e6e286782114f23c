//! Builds the authenticator and the authorizer of impersonations.

use std::sync::Arc;

use crate::app::permanent::Permanent;
use crate::app::start_error::StartError;
use crate::app::tasks::Tasks;
use crate::config::{Config, IssuerKeys, VerificationConfig};
use crate::identity::impersonation::authorizer;
use crate::identity::request_header::IdentityHeaders;
use crate::identity::tokens::ServiceAccountKeys;
use crate::identity::tokens::key_source::{KeyProvider, KeySource};
use crate::identity::transport::{ApiTransport, UrlFetcher};
use crate::identity::{
    CertificateVerifier, FrontProxyAuthenticator, ImpersonationAuthorizer, LocalAuthenticators,
    RequestAuthenticator, TokenAuthenticator, tokens,
};
use crate::upstream;
use crate::upstream::forward::external_client::ExternalClient;
use weir_base::metrics::Registry;
use weir_tokens::hash::TokenHasher;
use weir_tokens::jwt::JwtIssuer;
use weir_x509::CertificatePool;

/// The authenticator, what decides impersonations, and the names of the identity headers.
pub(super) struct AuthComponents {
    pub(super) authenticator: Arc<RequestAuthenticator>,
    /// What decides impersonations, if something does.
    pub(super) impersonation_authorizer: Option<Arc<ImpersonationAuthorizer>>,
    /// The authorizer of impersonations, even while nothing uses it.
    authorizer: Option<Arc<ImpersonationAuthorizer>>,
    pub(super) identity_headers: Arc<IdentityHeaders>,
}

/// The settings of authentication, valid and not in force yet.
pub(super) struct PreparedAuth {
    local: LocalAuthenticators,
    token_hasher: Arc<TokenHasher>,
    tokens: tokens::TokenConfig,
    identity_headers: Arc<IdentityHeaders>,
    impersonation_authorizer: Option<Arc<ImpersonationAuthorizer>>,
    /// The authorizer that is in use or was in use before.
    authorizer: Option<Arc<ImpersonationAuthorizer>>,
    access_reviews: Option<(Arc<dyn ApiTransport>, u32)>,
    registry: Registry,
}

impl PreparedAuth {
    /// Prepares what `config` describes. Changes nothing of `earlier`.
    pub(super) fn new(
        config: &Config,
        earlier: Option<&AuthComponents>,
        permanent: &Permanent,
    ) -> Result<Self, StartError> {
        let dependencies = &AuthDependencies {
            api_server: permanent.own_calls.api_server(config),
            upstream_metrics: &permanent.upstream_metrics,
        };
        let identity = &config.identity;
        let identity_headers = Arc::new(identity.headers.clone());
        let local = local_authenticators(config, &identity_headers)?;
        let impersonation = identity.impersonation;
        let api_server = dependencies.api_server.clone();
        let access_reviews = api_server
            .filter(|_| impersonation.classify || config.assert_by_impersonation)
            .map(|api_server| (api_server, impersonation.reviews_per_second));
        let token_hasher = match earlier {
            Some(earlier) => Arc::clone(earlier.authenticator.token_hasher()),
            None => {
                Arc::new(TokenHasher::new().map_err(|why| StartError::new("marks of tokens", why))?)
            }
        };
        let earlier = earlier.and_then(|earlier| earlier.authorizer.as_ref());
        let (in_use, authorizer) = match (&access_reviews, earlier) {
            (None, earlier) => (None, earlier.map(Arc::clone)),
            (Some(_), Some(earlier)) => (Some(Arc::clone(earlier)), Some(Arc::clone(earlier))),
            (Some((api_server, per_second)), None) => {
                let metrics = authorizer::AccessReviewMetrics::register(&permanent.registry);
                let api_server = Arc::clone(api_server);
                let new = ImpersonationAuthorizer::new(api_server, *per_second, metrics)
                    .map_err(|why| StartError::new("marks of rights", why))?;
                (Some(Arc::clone(&new)), Some(new))
            }
        };
        Ok(Self {
            local,
            token_hasher,
            tokens: token_config(identity.verification.clone(), dependencies),
            registry: permanent.registry.clone(),
            identity_headers,
            impersonation_authorizer: in_use,
            authorizer,
            access_reviews,
        })
    }
}

impl AuthComponents {
    /// Puts `prepared` in force: changes the parts of `earlier` that stay, and builds the others
    /// around them. When all requests come to the new authenticator, call `announce_trust` on it.
    pub(super) fn build(prepared: PreparedAuth, earlier: Option<&Self>, tasks: &mut Tasks) -> Self {
        let tokens = match earlier {
            None => {
                let tokens = TokenAuthenticator::new(prepared.tokens, &prepared.registry);
                tasks.push(Arc::clone(&tokens).run());
                tokens
            }
            Some(earlier) => {
                let tokens = earlier.authenticator.token_authenticator();
                tokens.replace(prepared.tokens);
                Arc::clone(tokens)
            }
        };
        let authenticator = RequestAuthenticator::build(
            prepared.local,
            tokens,
            prepared.token_hasher,
            earlier.map(|earlier| &*earlier.authenticator),
        );
        let authorizer = earlier.and_then(|earlier| earlier.authorizer.as_ref());
        match (authorizer, &prepared.authorizer, prepared.access_reviews) {
            (None, Some(new), _) => tasks.push(Arc::clone(new).run()),
            (Some(earlier), _, Some((api_server, per_second))) => {
                earlier.replace(api_server, per_second);
            }
            _ => {}
        }
        Self {
            authenticator: Arc::new(authenticator),
            impersonation_authorizer: prepared.impersonation_authorizer,
            authorizer: prepared.authorizer,
            identity_headers: prepared.identity_headers,
        }
    }
}

fn local_authenticators(
    config: &Config,
    headers: &Arc<IdentityHeaders>,
) -> Result<LocalAuthenticators, StartError> {
    let identity = &config.identity;
    let verifier = |flag: &'static str, roots: &CertificatePool| {
        CertificateVerifier::new(roots.clone(), Arc::clone(&config.crypto_provider))
            .map_err(|why| StartError::new(flag, why))
    };
    let certificates = identity
        .client_ca
        .as_ref()
        .map(|roots| verifier("--client-ca-file", roots));
    let front_proxies = identity.front_proxies.as_ref().map(|settings| {
        let authority = verifier("--requestheader-client-ca-file", &settings.ca)?;
        let names = settings.allowed_names.clone();
        Ok(FrontProxyAuthenticator::new(
            authority,
            names,
            Arc::clone(headers),
        ))
    });
    Ok(LocalAuthenticators {
        front_proxies: front_proxies.transpose()?,
        certificates: certificates.transpose()?,
        token_file: identity.tokens.clone(),
    })
}

/// What the settings of tokens are resolved with.
struct AuthDependencies<'a> {
    /// The API server, if weir has credentials for it.
    api_server: Option<Arc<dyn ApiTransport>>,
    upstream_metrics: &'a Arc<upstream::UpstreamMetrics>,
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
