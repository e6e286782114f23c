//! A configuration of `weir serve`: what a start would say about it, and what the linter has to know
//! of it.

use std::sync::Arc;

use crate::cli::check::lint;
use crate::cli::config_resolver::Resolved;
use crate::cli::config_resolver::findings::Findings;
use crate::cli::flags::input_files::InputFiles;
use crate::cli::flags::{FlowcontrolSource, ServeArgs};
use crate::cli::process::resolve;
use crate::config::Config;
use weir_lint::authenticators::{Authenticators, IssuerPrefixes};
use weir_lint::objects::Scope;
use weir_lint::rule::LintFinding;

/// The seats of kube-apiserver's defaults, 400 and 200.
const DEFAULT_SEATS: u32 = 600;

/// What was found about a configuration.
#[derive(Default)]
pub(crate) struct ConfigurationCheck {
    pub(crate) findings: Findings,
    pub(crate) args: Option<Box<ServeArgs>>,
    /// `None` if it cannot be used.
    pub(crate) config: Option<Box<Config>>,
    /// The authenticators, if they yield only some users.
    pub(super) authenticators: Option<Authenticators>,
    /// Whether weir verifies no tokens. `false` if it is not known.
    verifies_no_token: bool,
    /// Whether weir has credentials of its own. `None` if it is not known.
    has_credentials: Option<bool>,
}

impl ConfigurationCheck {
    /// Of a configuration that cannot be parsed.
    pub(crate) fn from_findings(findings: Findings) -> Self {
        Self {
            findings,
            ..Self::default()
        }
    }

    /// Of the arguments of `weir serve`.
    pub(crate) fn resolve(args: ServeArgs) -> Self {
        let kept = Some(Box::new(args.clone()));
        match resolve::resolve(args) {
            Ok(Resolved { config, warnings }) => Self {
                findings: warnings,
                args: kept,
                authenticators: authenticators(&config),
                verifies_no_token: !verifies_tokens(&config),
                has_credentials: Some(!config.own_credentials.is_anonymous()),
                config: Some(Box::new(config)),
            },
            Err(findings) => Self {
                findings,
                args: kept,
                ..Self::default()
            },
        }
    }

    /// What the linter has to know for its objects.
    pub(super) fn scope(&self) -> Scope {
        let Some(args) = &self.args else {
            return Scope {
                server_concurrency_limit: DEFAULT_SEATS,
                has_unknown_objects: false,
            };
        };
        let limits = &args.proxy.limits;
        Scope {
            server_concurrency_limit: limits.inflight().into_iter().fold(0, u32::saturating_add),
            has_unknown_objects: match limits.flowcontrol_source {
                FlowcontrolSource::Auto => self
                    .has_credentials
                    .unwrap_or_else(|| args.upstream.may_have_credentials()),
                FlowcontrolSource::Cluster => true,
                FlowcontrolSource::Files => false,
            },
        }
    }

    /// The linter's warnings about the rate limits.
    pub(super) fn lint_rate_limits(&self, files: &Arc<InputFiles>) -> Vec<LintFinding> {
        let Some(args) = &self.args else {
            return Vec::new();
        };
        let limits = &args.proxy.limits;
        let mut findings = Vec::new();
        if let Some(file) = &limits.event_rate_limit_config {
            findings.extend(lint::event_rate_limit(file, files));
        }
        if let Some(file) = &limits.admission_control_config_file {
            findings.extend(lint::admission(file, files));
        }
        if let Some(file) = &args.proxy.config {
            findings.extend(lint::client_limits(
                file,
                self.authenticators.as_ref(),
                files,
            ));
            findings.extend(lint::policies(
                file,
                self.authenticators.as_ref(),
                !self.verifies_no_token,
                files,
            ));
        }
        findings
    }
}

/// Whether weir can verify the tokens that the API server accepts: those of service accounts at least.
fn verifies_tokens(config: &Config) -> bool {
    let verification = &config.identity.verification;
    let reviews = !config.own_credentials.is_anonymous() && verification.reviews_per_second > 0;
    reviews || verification.service_account_keys.is_some()
}

/// The authenticators, if they yield only some users.
fn authenticators(config: &Config) -> Option<Authenticators> {
    let identity = &config.identity;
    let verification = &identity.verification;
    let has_credentials = !config.own_credentials.is_anonymous();
    let yields_any_user = identity.client_ca.is_some()
        || identity.front_proxies.is_some()
        || identity.impersonation.classify
        || (has_credentials && verification.reviews_per_second > 0);
    if yields_any_user {
        return None;
    }
    let issuers = verification.issuers.iter();
    let issuers = issuers.map(|(issuer, _)| IssuerPrefixes {
        user: issuer.username.prefix.clone(),
        group: issuer.groups.as_ref().map(|groups| groups.prefix.clone()),
    });
    Some(Authenticators {
        users: identity.tokens.users().cloned().collect(),
        // Where weir has credentials, it fetches the keys from the API server.
        service_accounts: verification.service_account_keys.is_some() || has_credentials,
        issuers: issuers.collect(),
    })
}
