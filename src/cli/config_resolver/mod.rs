//! Flags to a [`Config`]: reads the files that flags name, combines flags that belong together, and
//! reports all errors and warnings at once, each with its flag's name.

mod admin;
mod audit;
mod authentication;
pub(crate) mod certificates;
pub(crate) mod findings;
mod flag_resolver;
pub(crate) mod flowcontrol;
mod idle_settings;
mod memory;
mod rate_limits;
mod serving;
pub(crate) mod single_file;
mod upstream;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::cli::config_resolver::authentication::client_certificate_roots;
use crate::cli::config_resolver::findings::{Finding, FindingSubject, Findings};
use crate::cli::config_resolver::flag_resolver::FlagResolver;
use crate::cli::config_resolver::memory::default_memory_limit;
use crate::cli::flags::environment::Environment;
use crate::cli::flags::origin::ConfigOrigin;
use crate::cli::flags::{
    FlowcontrolSource, IdentityArgs, InflightArg, LimitArgs, OperationArgs, ProxyArgs, ServeArgs,
    origin,
};
use crate::config;
use crate::config::Config;
use crate::control::ControlConfig;
use crate::flowcontrol::controller;
#[cfg(feature = "tools")]
use crate::flowcontrol::sources::FlowcontrolSources;
use crate::observe::admin::log_level;
use crate::observe::admin::zpages::EffectiveConfig;
use crate::observe::spans;
use crate::server::settings::ServingConfig;
use crate::upstream::UpstreamConfig;
#[cfg(feature = "tools")]
use weir_explain::explainer::{ConcurrencyPolicy, ExplainedPolicies};
use weir_kubernetes::document;
use weir_kubernetes::document::Severity;
use weir_kubernetes::numeric::saturating_usize;
use weir_limits::max_in_flight;

/// File descriptors that no client connection uses: listeners, connections to the upstream, logs.
const SPARE_DESCRIPTORS: u64 = 256;

/// The error of flags that have no effect without priority and fairness. An operator would expect
/// one.
const NEEDS_FAIRNESS: &str =
    "only together with --enable-priority-and-fairness: max-in-flight has no objects";

/// The warning of a client CA without the means to assert its users.
const UNASSERTED_USERS: &str = "without --proxy-client-cert-file (or --assert-by=impersonation): weir cannot assert the users of client certificates to the API server, and answers 401";

/// The warning of tokens that nothing verifies.
const UNVERIFIED_TOKENS: &str = "go on to the API server unverified: their requests are classified as system:anonymous. With a --kubeconfig whose user may create TokenReviews (ClusterRole system:auth-delegator) they are verified";

/// A configuration that can be used.
pub(crate) struct Resolved {
    pub(crate) config: Config,
    pub(crate) warnings: Findings,
}

/// The configuration that the flags mean.
///
/// # Errors
/// All errors of the flags and of the files that they name, with the warnings.
pub(super) fn resolve(args: ServeArgs) -> Result<Resolved, Findings> {
    let mut resolver = resolver_for(&args.proxy.origin);
    let config = resolver.resolve_config(args);
    let warnings = resolver.findings;
    match config {
        Some(config) if !warnings.prevent_start() => Ok(Resolved { config, warnings }),
        _ => Err(warnings),
    }
}

/// The policies that the flags mean, and the warnings. Reads no certificates and no address of an
/// API server.
///
/// # Errors
/// All errors of these flags and of the files that they name, with the warnings.
#[cfg(feature = "tools")]
pub(super) fn resolve_policies(
    args: &ServeArgs,
) -> Result<(ExplainedPolicies, Findings), Findings> {
    let ProxyArgs {
        config: file,
        limits,
        origin,
        ..
    } = &args.proxy;
    let mut resolver = resolver_for(origin);
    let admission = resolver.resolve_limits(limits);
    let rates = resolver.resolve_rate_limits(limits, file.as_deref());
    let findings = resolver.findings;
    let (Some(admission), Some(rates), false) = (admission, rates, findings.prevent_start()) else {
        return Err(findings);
    };
    let concurrency = match admission {
        config::AdmissionConfig::MaxInFlight { config, .. } => {
            ConcurrencyPolicy::MaxInFlight(config)
        }
        config::AdmissionConfig::Fairness { config, sources } => {
            let effective = FlowcontrolSources::from_files(sources.files).merge();
            ConcurrencyPolicy::Fairness {
                server_concurrency_limit: config.server_concurrency_limit,
                objects: effective.into_iter().map(|one| one.object).collect(),
                dry_run: config.enforcement == controller::Enforcement::DryRun,
            }
        }
    };
    let policies = ExplainedPolicies {
        concurrency,
        rates,
        request_timeout: limits.request_timeout,
    };
    Ok((policies, findings))
}

/// A resolver with the warnings of the `--config` file.
fn resolver_for(origin: &ConfigOrigin) -> FlagResolver {
    let mut resolver = FlagResolver::new(
        origin.locations.clone(),
        Arc::clone(&origin.files),
        origin.environment.clone(),
    );
    for diagnostic in origin.warnings.iter() {
        let setting = FindingSubject::Setting(origin::flag_name(&diagnostic.field));
        resolver
            .findings
            .push(Finding::from_diagnostic(setting, diagnostic));
    }
    resolver
}

/// Adds the values that were found out for settings that were not given.
fn fill_effective(
    mut effective: EffectiveConfig,
    serving: &ServingConfig,
    upstream: &UpstreamConfig,
    workers: usize,
) -> EffectiveConfig {
    let urls = upstream.servers.iter();
    let urls: Vec<_> = urls
        .map(|server| format!("https://{}", server.authority))
        .collect();
    let upstream = match &*urls {
        [url] => Value::from(url.as_str()), // as it is usually written
        _ => urls.into(),
    };
    effective.settings.insert("upstream".to_owned(), upstream);
    for (name, value) in [
        ("bindAddress", Value::from(serving.address.ip().to_string())),
        ("maxConnections", serving.max_connections.into()),
        ("workers", workers.into()),
    ] {
        effective.settings.entry(name.to_owned()).or_insert(value);
    }
    effective.host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    effective
}

/// A failure of the front proxy certificate is seen within a minute. A request a minute is no load
/// for the API server.
const SELF_CHECK_INTERVAL: Duration = Duration::from_secs(60);

fn admin_config(
    operation: &OperationArgs,
    access: config::AdminAccessConfig,
    effective: EffectiveConfig,
) -> config::AdminConfig {
    config::AdminConfig {
        address: operation.admin_address,
        access,
        health: operation.health_address,
        health_metrics: operation.health_metrics,
        log_level: None, // set by `Logging::attach_to`
        effective,
        self_check_interval: Some(SELF_CHECK_INTERVAL),
    }
}

/// The value of `--control-socket` that switches it off.
const NO_CONTROL_SOCKET: &str = "off";

fn control_config(operation: &OperationArgs, environment: &Environment) -> Option<ControlConfig> {
    match &operation.control_socket {
        Some(off) if off.as_os_str() == NO_CONTROL_SOCKET => None,
        Some(path) => Some(ControlConfig {
            path: path.clone(),
            is_required: true,
        }),
        None => environment
            .control_sockets()
            .into_iter()
            .next()
            .map(|path| ControlConfig {
                path,
                is_required: false,
            }),
    }
}

fn core_count() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

impl FlagResolver {
    /// The configuration, or `None` after errors were added. It must not be used if there are
    /// errors.
    fn resolve_config(&mut self, args: ServeArgs) -> Option<Config> {
        let ServeArgs { upstream, proxy } = args;
        let ProxyArgs {
            config: file,
            serving,
            identity: identity_args,
            limits,
            replicas,
            shared,
            reporting,
            operation,
            origin,
        } = proxy;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let connection_budget = connection_budget();
        let identity = self.resolve_identity(&identity_args, file.as_deref());
        let client_ca = identity.as_ref().and_then(client_certificate_roots);
        let serving = self.resolve_serving(serving, client_ca, &identity_args, connection_budget);
        let admission = self.resolve_limits(&limits);
        let impersonate = self.resolve_impersonation(&upstream);
        self.check_classification(&identity_args, &upstream);
        let rates = self.resolve_rate_limits(&limits, file.as_deref());
        let shared_limits = self.resolve_shared_limits(shared);
        let spans = self.resolve_tracing(operation.tracing_config_file.as_deref());
        let server = self.resolve_upstream(&upstream, &limits, connection_budget);
        let credentials = server.as_ref().map(|(_, credentials)| credentials);
        let admission = self.resolve_cluster_source(admission, &limits, &upstream, credentials);
        let replicas = self.resolve_replicas(&replicas, credentials);
        self.check_auto_total(&limits, &origin.given);
        if limits.list_bytes.lacks_memory() {
            self.add(
                "max-list-bytes-inflight",
                "a share only together with --api-server-memory, of which it is one",
            );
        }
        let reporting = self.resolve_reporting(reporting, spans);
        self.check_operation(&identity_args, &operation);
        let has_credentials = credentials.is_none_or(|own| !own.is_anonymous());
        let admin_access =
            self.resolve_admin_access(&operation.admin, operation.admin_address, has_credentials);
        self.warn_about_idle_settings(&origin.given);
        let (serving, identity, (upstream, own_credentials)) = (serving?, identity?, server?);
        let workers = operation.workers.map_or_else(core_count, usize::from);
        let memory_limit = limits.memory_limit.unwrap_or_else(default_memory_limit);
        let mut effective = fill_effective(origin.effective, &serving, &upstream, workers);
        effective.certificates = std::mem::take(&mut self.certificates);
        let shown = effective.settings.entry("memoryLimit".to_owned());
        shown.or_insert_with(|| memory_limit.into());
        let config = Config {
            serving,
            identity,
            rates: rates?,
            shared_limits: shared_limits?,
            admission: admission?,
            is_auto_total: limits.is_auto_total(),
            total_finder: limits.auto_total,
            replicas,
            request_timeout: limits.request_timeout,
            rejections: limits.rejections,
            transfers: limits.transfers,
            memory_limit,
            list_bytes: limits.list_bytes,
            object_count_poll_period: limits.object_count_poll_period,
            upstream,
            own_credentials,
            assert_by_impersonation: impersonate,
            shutdown: operation.shutdown,
            control: control_config(&operation, self.environment()),
            admin: admin_config(&operation, admin_access?, effective),
            reporting,
            workers,
            crypto_provider: provider,
        };
        self.warn_about_credentials(&config, &identity_args);
        Some(config)
    }

    /// Warns about client certificates that weir cannot use, and about tokens that it cannot verify.
    fn warn_about_credentials(&mut self, config: &Config, identity: &IdentityArgs) {
        let asserts = config.upstream.front_proxy.is_some() || config.assert_by_impersonation;
        if config.identity.client_ca.is_some() && !asserts {
            self.warn("client-ca-file", UNASSERTED_USERS);
        }
        if !config.verifies_tokens() {
            let unverified = match identity.token_auth_file {
                Some(_) => "bearer tokens that are not in --token-auth-file",
                None => "bearer tokens",
            };
            self.findings.push(Finding::new(
                Severity::Warning,
                FindingSubject::Configuration,
                format!("{unverified} {UNVERIFIED_TOKENS}"),
            ));
        }
    }

    /// Adds an error for each flag that has no effect without another flag, and for the filter of
    /// the log.
    fn check_operation(&mut self, identity: &IdentityArgs, operation: &OperationArgs) {
        if identity.proxies.proxy_protocol && identity.proxies.trusted_proxies.is_empty() {
            self.add(
                "proxy-protocol",
                "only together with --trusted-proxies, which name the proxies that may send it",
            );
        }
        if operation.health_metrics && operation.health_address.is_none() {
            self.add("health-metrics", "only together with --health-address");
        }
        self.check("log-level", log_level::parse_filter(&operation.log_level));
    }

    /// Adds an error where one part of the total is a number and weir is to find the other.
    fn check_auto_total(&mut self, limits: &LimitArgs, given: &BTreeMap<String, Value>) {
        if limits.is_auto_total() {
            return;
        }
        let parts = [
            ("max-requests-inflight", limits.max_requests_inflight),
            (
                "max-mutating-requests-inflight",
                limits.max_mutating_requests_inflight,
            ),
        ];
        for (flag, value) in parts {
            if value == InflightArg::Auto && given.contains_key(&origin::camel_case(flag)) {
                self.add(
                    flag,
                    "auto finds both parts of the total: give two numbers, or auto alone",
                );
            }
        }
    }

    fn resolve_limits(&mut self, limits: &LimitArgs) -> Option<config::AdmissionConfig> {
        let [read_only, mutating] = limits.inflight();
        if !limits.enable_priority_and_fairness {
            if !limits.flowcontrol_config.is_empty() {
                self.add("flowcontrol-config", NEEDS_FAIRNESS);
            }
            if limits.flowcontrol_source == FlowcontrolSource::Cluster {
                self.add("flowcontrol-source", NEEDS_FAIRNESS);
            }
            return Some(config::AdmissionConfig::MaxInFlight {
                config: max_in_flight::MaxInFlightConfig {
                    read_only: read_only.into(),
                    mutating: mutating.into(),
                },
                enforcement: limits.flowcontrol_enforcement,
            });
        }
        let total = read_only.saturating_add(mutating);
        if total == 0 {
            self.add(
                "max-requests-inflight",
                "with --enable-priority-and-fairness it and --max-mutating-requests-inflight must not both be 0: their sum is the total",
            );
        }
        let files = self.read_flowcontrol_objects(&limits.flowcontrol_config)?;
        Some(config::AdmissionConfig::Fairness {
            config: controller::ControllerConfig {
                server_concurrency_limit: total,
                request_timeout: limits.request_timeout,
                enforcement: limits.flowcontrol_enforcement,
                consistent_reads_from_cache: true,
            },
            sources: config::FlowcontrolConfig {
                files,
                cluster: None, // set by `resolve_cluster_source`
            },
        })
    }

    /// The trace exporter, if the flag is given.
    fn resolve_tracing(&mut self, file: Option<&Path>) -> Option<spans::config::TracingConfig> {
        const FLAG: &str = "tracing-config-file";
        let file = file?;
        let text = self.read_text(FLAG, file)?;
        let mut diagnostics = document::Diagnostics::default();
        let nodes = document::parse_all(&file.display().to_string(), &text, &mut diagnostics);
        let parsed = spans::config::parse(&nodes, &mut diagnostics);
        if parsed.is_none() && !diagnostics.has_errors() {
            self.add_to_file(FLAG, file, "there is nothing in it");
        }
        parsed.filter(|_| self.merge(FLAG, &diagnostics))
    }
}

/// The connections that the open-file limit allows on each side. A client connection may need one
/// descriptor of its own and one towards the upstream.
fn connection_budget() -> usize {
    let descriptors = rlimit::Resource::NOFILE
        .get()
        .map_or(1024, |(soft, _)| soft);
    saturating_usize(descriptors.saturating_sub(SPARE_DESCRIPTORS) / 2).max(1)
}
