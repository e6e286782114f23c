//! Authentication flags: client certificates, tokens, front proxies and impersonation.

use std::path::Path;

use crate::cli::config_resolver::flag_resolver::FlagResolver;
use crate::cli::flags::origin::AUTHENTICATION;
use crate::cli::flags::{AssertBy, IdentityArgs, UpstreamArgs};
use crate::config;
use crate::config::IssuerKeys;
use crate::identity::TokenFile;
use crate::identity::request_header::IdentityHeaders;
use crate::upstream::tls;
use weir_kubernetes::document;
use weir_kubernetes::document::SourceLocation;
use weir_tokens::jwt::authentication_config::{ConfiguredIssuer, JwksLocation};
use weir_tokens::jwt::{JwtIssuer, KeySet, authentication_config};
use weir_x509::CertificatePool;

const SERVICE_ACCOUNT_KEYS: &str = "service-account-key-file";
const SERVICE_ACCOUNT_ISSUER: &str = "service-account-issuer";
const FRONT_PROXY_CA: &str = "requestheader-client-ca-file";
const ASSERT_BY: &str = "assert-by";
const AUTHENTICATION_CONFIG: &str = "authentication-config";
const CONFIG: &str = "config";

/// The CAs of which the listener requests certificates: those of clients and of front proxies.
pub(super) fn client_certificate_roots(
    identity: &config::IdentityConfig,
) -> Option<CertificatePool> {
    let proxies = identity.front_proxies.as_ref();
    match (&identity.client_ca, proxies) {
        (Some(clients), Some(proxies)) => Some(clients.with(&proxies.ca)),
        (clients, proxies) => clients
            .clone()
            .or_else(|| proxies.map(|proxies| proxies.ca.clone())),
    }
}

fn identity_headers(identity: &IdentityArgs) -> IdentityHeaders {
    IdentityHeaders {
        username: identity.requestheader_username_headers.clone(),
        uid: identity.requestheader_uid_headers.clone(),
        group: identity.requestheader_group_headers.clone(),
        extra_prefix: identity
            .requestheader_extra_headers_prefix
            .iter()
            .map(|prefix| prefix.as_str().to_owned())
            .collect(),
        former: Vec::new(),
    }
}

impl FlagResolver {
    /// How clients are authenticated. `file` is the `--config` file.
    pub(super) fn resolve_identity(
        &mut self,
        args: &IdentityArgs,
        file: Option<&Path>,
    ) -> Option<config::IdentityConfig> {
        let client_ca = match &args.client_ca_file {
            Some(file) => self
                .read_root_certificates("client-ca-file", file, tls::parse_roots)
                .map(Some),
            None => Some(None),
        };
        let tokens = self.read_token_file(args.token_auth_file.as_deref());
        let front_proxies = self.resolve_front_proxies(args);
        self.check_separate_cas(
            client_ca.as_ref().and_then(Option::as_ref),
            front_proxies.as_ref(),
        );
        let verification = self.resolve_verification(args, file);
        Some(config::IdentityConfig {
            client_ca: client_ca?,
            tokens: tokens?,
            headers: identity_headers(args),
            front_proxies,
            verification: verification?,
            impersonation: config::ImpersonationConfig {
                classify: args.classify_impersonated,
                reviews_per_second: args.access_reviews_per_second,
            },
        })
    }

    /// `--classify-impersonated` needs credentials: weir sends SubjectAccessReviews to the API
    /// server.
    pub(super) fn check_classification(
        &mut self,
        identity: &IdentityArgs,
        upstream: &UpstreamArgs,
    ) {
        if identity.classify_impersonated && self.kubeconfig_source(upstream).is_none() {
            self.add(
                "classify-impersonated",
                "needs a --kubeconfig: weir sends SubjectAccessReviews with its credentials",
            );
        }
    }

    fn read_token_file(&mut self, file: Option<&Path>) -> Option<TokenFile> {
        let Some(file) = file else {
            return Some(TokenFile::default());
        };
        let text = self.read_text("token-auth-file", file)?;
        match TokenFile::parse(&text) {
            Ok(tokens) => Some(tokens),
            Err(lines) => {
                for (line, error) in lines {
                    let location = SourceLocation {
                        line: u32::try_from(line).unwrap_or_default(),
                        ..SourceLocation::whole_file(&file.display().to_string())
                    };
                    self.add_at("token-auth-file", location, "", error);
                }
                None
            }
        }
    }

    /// Whether users of client certificates are asserted by impersonation. Adds an error if the
    /// flags that this needs are missing.
    pub(super) fn resolve_impersonation(&mut self, args: &UpstreamArgs) -> bool {
        if args.assert_by != AssertBy::Impersonation {
            return false;
        }
        if self.kubeconfig_source(args).is_none() {
            self.add(
                ASSERT_BY,
                "impersonation needs a --kubeconfig: its credentials are those that impersonate",
            );
        }
        if args.proxy_client_cert_file.is_some() {
            self.add(
                ASSERT_BY,
                "impersonation and --proxy-client-cert-file are two ways of saying the same: give one of them",
            );
        }
        true
    }

    /// The front proxies before weir, if their CA is given.
    fn resolve_front_proxies(&mut self, args: &IdentityArgs) -> Option<config::FrontProxyConfig> {
        let allowed = &args.requestheader_allowed_names;
        let Some(file) = &args.requestheader_client_ca_file else {
            if !allowed.is_empty() {
                self.add(
                    "requestheader-allowed-names",
                    format!("only together with --{FRONT_PROXY_CA}: identity headers are ignored without it"),
                );
            }
            return None;
        };
        Some(config::FrontProxyConfig {
            ca: self.read_root_certificates(FRONT_PROXY_CA, file, tls::parse_roots)?,
            allowed_names: allowed.clone(),
        })
    }

    /// Clients and front proxies need different CAs, unless front proxies are restricted by name.
    /// Otherwise any client could assert any user.
    fn check_separate_cas(
        &mut self,
        client_ca: Option<&CertificatePool>,
        proxies: Option<&config::FrontProxyConfig>,
    ) {
        let (Some(clients), Some(proxies)) = (client_ca, proxies) else {
            return;
        };
        if clients.intersects(&proxies.ca) && proxies.allowed_names.is_empty() {
            self.add(
                FRONT_PROXY_CA,
                "holds a CA of --client-ca-file, so that any client's certificate would make it a front proxy; give \
                 --requestheader-allowed-names, or another CA",
            );
        }
    }

    /// The verification of tokens that are not in the token file.
    fn resolve_verification(
        &mut self,
        args: &IdentityArgs,
        file: Option<&Path>,
    ) -> Option<config::VerificationConfig> {
        let service_account_keys = self.read_service_account_keys(args);
        let config_issuers = file.map_or(Some(None), |file| self.issuers_from_config_file(file));
        let issuers = match (&args.authentication_config, config_issuers?) {
            (Some(file), None) => self.issuers_from_authentication_config(file),
            (None, issuers) => Some(issuers.unwrap_or_default()),
            (Some(_), Some(_)) => {
                let error = format!(
                    "not together with {AUTHENTICATION} in the --config file: each names the issuers"
                );
                self.add(AUTHENTICATION_CONFIG, error);
                None
            }
        };
        Some(config::VerificationConfig {
            issuers: issuers?,
            service_account_keys,
            service_account_issuers: args.service_account_issuer.clone(),
            audiences: args.api_audiences.clone(),
            cache_ttl: args.authentication_token_webhook_cache_ttl,
            reviews_per_second: args.token_reviews_per_second,
        })
    }

    fn read_service_account_keys(&mut self, args: &IdentityArgs) -> Option<KeySet> {
        if !args.service_account_key_file.is_empty() && args.service_account_issuer.is_empty() {
            self.add(
                SERVICE_ACCOUNT_ISSUER,
                format!("needed with --{SERVICE_ACCOUNT_KEYS}: the issuer of the tokens that these keys sign"),
            );
        }
        let mut merged: Option<KeySet> = None;
        for file in &args.service_account_key_file {
            let pem = self.read_file(SERVICE_ACCOUNT_KEYS, file)?;
            let keys = self.check_file(SERVICE_ACCOUNT_KEYS, file, KeySet::from_pem(&pem))?;
            merged = Some(match merged {
                Some(others) => others.merge(keys),
                None => keys,
            });
        }
        merged
    }

    /// The issuers of the `--config` file: `Some(None)` if it has none, `None` after an error.
    /// `command_line` has read the file for its flags and has reported the errors of the file as a
    /// whole.
    #[expect(
        clippy::option_option,
        reason = "the outer one is for errors, as everywhere here"
    )]
    fn issuers_from_config_file(
        &mut self,
        file: &Path,
    ) -> Option<Option<Vec<(JwtIssuer, IssuerKeys)>>> {
        let text = self.read_text(CONFIG, file)?;
        let mut diagnostics = document::Diagnostics::default();
        let documents = document::parse_all(&file.display().to_string(), &text, &mut diagnostics);
        let first = documents.first();
        let section = first.and_then(|first| first.field(AUTHENTICATION));
        let Some(section) = section.filter(|section| !section.is_null()) else {
            return Some(None);
        };
        let configured =
            authentication_config::decode_section(section, AUTHENTICATION, &mut diagnostics);
        if !self.merge(CONFIG, &diagnostics) {
            return None;
        }
        let folder = file.parent().unwrap_or_else(|| Path::new(""));
        let issuers: Option<_> = configured
            .into_iter()
            .map(|issuer| self.resolve_issuer(CONFIG, folder, issuer))
            .collect();
        issuers.map(Some)
    }

    pub(super) fn issuers_from_authentication_config(
        &mut self,
        file: &Path,
    ) -> Option<Vec<(JwtIssuer, IssuerKeys)>> {
        let text = self.read_text(AUTHENTICATION_CONFIG, file)?;
        let mut diagnostics = document::Diagnostics::default();
        let nodes = document::parse_all(&file.display().to_string(), &text, &mut diagnostics);
        let configured = authentication_config::decode_documents(&nodes, &mut diagnostics);
        if !self.merge(AUTHENTICATION_CONFIG, &diagnostics) {
            return None;
        }
        let folder = file.parent().unwrap_or_else(|| Path::new(""));
        configured
            .into_iter()
            .map(|issuer| self.resolve_issuer(AUTHENTICATION_CONFIG, folder, issuer))
            .collect()
    }

    fn resolve_issuer(
        &mut self,
        flag: &str,
        folder: &Path,
        configured: ConfiguredIssuer,
    ) -> Option<(JwtIssuer, IssuerKeys)> {
        let ConfiguredIssuer {
            issuer,
            jwks_location,
            certificate_authority,
            location,
        } = configured;
        let keys = match jwks_location {
            JwksLocation::File(file) => {
                let file = folder.join(file);
                let json = self.read_file(flag, &file)?;
                let keys = KeySet::from_jwks(&json);
                IssuerKeys::Configured(self.check_file(flag, &file, keys)?)
            }
            JwksLocation::Url(url) => IssuerKeys::Url(
                url,
                self.issuer_root_certificates(flag, &location, certificate_authority)?,
            ),
            JwksLocation::Discovery(url) => IssuerKeys::Discovery(
                url,
                self.issuer_root_certificates(flag, &location, certificate_authority)?,
            ),
        };
        Some((issuer, keys))
    }

    fn issuer_root_certificates(
        &mut self,
        flag: &str,
        location: &SourceLocation,
        pem: Option<String>,
    ) -> Option<CertificatePool> {
        const FIELD: &str = "issuer.certificateAuthority";
        let Some(pem) = pem else {
            return self.check(flag, tls::load_system_roots());
        };
        self.parse_root_certificates(flag, (location, FIELD), pem.as_bytes(), tls::parse_roots)
    }
}
