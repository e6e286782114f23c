//! From flags to a [`Config`]: reads the files, joins what belongs together, and reports every fault at once, each by its
//! flag's name.

mod audit;
pub(in crate::cli) mod authentication;
mod flowcontrol;
mod rate_limits;

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::net::Ipv4Addr;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::sign::CertifiedKey;
use serde_json::Value;
use tracing::warn;

use crate::cli::flags::FlowcontrolEnforcement;
use crate::cli::flags::IdentityArgs;
use crate::cli::flags::LimitArgs;
use crate::cli::flags::OperationArgs;
use crate::cli::flags::ProxyArgs;
use crate::cli::flags::ServeArgs;
use crate::cli::flags::ServingArgs;
use crate::cli::flags::TlsVersion;
use crate::cli::flags::UpstreamArgs;
use crate::clock::Clock;
use crate::config;
use crate::config::Config;
use crate::document;
use crate::document::Severity;
use crate::document::SourceLocation;
use crate::flowcontrol::bootstrap;
use crate::flowcontrol::controller;
use crate::flowcontrol::controller::Enforcement;
use crate::limits::max_in_flight;
use crate::minimum_rate::MinimumRate;
use crate::observe::admin::is_loopback;
use crate::observe::admin::zpages::EffectiveConfig;
use crate::observe::spans;
use crate::pipeline::request_body::DEFAULT_BODY_BUFFER;
use crate::server::tls;
use crate::upstream;
use crate::upstream::connection::address;
use crate::upstream::connection::connector::ServerAddress;
use crate::upstream::credentials::CredentialSource;
use crate::upstream::kubeconfig;
use crate::upstream::kubeconfig::Kubeconfig;
use crate::upstream::loop_detection::cdn_loop::InstanceId;
use crate::upstream::tls::Pem;
use crate::upstream::tls::PemError;

/// File descriptors that are not clients' connections: listeners, connections to the upstream, logs.
const SPARE_DESCRIPTORS: u64 = 256;

/// What the fault is of flags that would do nothing, and be believed to.
const NEEDS_FAIRNESS: &str = "only together with --enable-priority-and-fairness: max-in-flight has neither objects nor a dry run";

/// kube-apiserver's default.
const UNSPECIFIED_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// What is wrong with the flags, one line each.
#[derive(Debug, Default)]
pub(super) struct FlagErrors {
    lines: Vec<String>,
    /// Where flags stand that were not typed, by their names.
    locations: BTreeMap<String, SourceLocation>,
}

impl FlagErrors {
    pub(super) fn add(&mut self, flag: &str, what: impl std::fmt::Display) {
        self.lines.push(match self.locations.get(flag) {
            Some(place) => format!("{place}: --{flag}: {what}"),
            None => format!("--{flag}: {what}"),
        });
    }

    /// The faults of other flags than these.
    pub(super) fn excluding(&self, flags: &[String]) -> impl Iterator<Item = &String> {
        self.lines.iter().filter(|line| {
            let of = |flag: &String| line.contains(&format!("--{flag}: "));
            !flags.iter().any(of)
        })
    }

    /// The value, or `None` and a fault.
    pub(super) fn check<T, E: std::fmt::Display>(
        &mut self,
        flag: &str,
        result: Result<T, E>,
    ) -> Option<T> {
        result.map_err(|why| self.add(flag, why)).ok()
    }
}

impl std::fmt::Display for FlagErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

/// What the flags mean.
///
/// # Errors
/// All that is wrong with them.
pub(super) fn resolve(args: ServeArgs) -> Result<Config, FlagErrors> {
    let ServeArgs { upstream, proxy } = args;
    let ProxyArgs {
        config: file,
        serving,
        identity,
        limits,
        reporting: telling,
        operation,
        origin,
    } = proxy;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut faults = FlagErrors {
        locations: origin.locations,
        ..FlagErrors::default()
    };
    let who = faults.resolve_identity(&identity, file.as_deref());
    let asked_for = who
        .as_ref()
        .and_then(authentication::client_certificate_roots);
    let trusted_proxies = identity.trusted_proxies.clone();
    let proxies = (trusted_proxies, identity.proxy_protocol);
    let serving = faults.resolve_serving(serving, asked_for, proxies);
    let how_much = faults.resolve_limits(&limits);
    let impersonate = faults.resolve_impersonation(&upstream);
    faults.check_classification(&identity, &upstream);
    let rates = faults.resolve_rate_limits(&limits, file.as_deref());
    let spans = faults.resolve_tracing(operation.tracing_config_file.as_deref());
    let upstream = faults.resolve_upstream(&upstream, &limits);
    let telling = faults.resolve_reporting(telling, spans);
    faults.check_dependent_flags(&identity, &operation);
    let (Some(serving), Some(who), Some(how_much), Some((upstream, own)), Some(rates), true) = (
        serving,
        who,
        how_much,
        upstream,
        rates,
        faults.lines.is_empty(),
    ) else {
        return Err(faults);
    };
    warn_about_certificates(&serving, &who, &upstream, impersonate);
    let workers = operation.workers.map_or_else(core_count, usize::from);
    let effective = fill_effective(origin.effective, &serving, &upstream, workers);
    Ok(Config {
        serving,
        identity: who,
        rates,
        admission: how_much,
        request_timeout: limits.request_timeout,
        rejection_hold: limits.rejection_hold,
        transfers: transfer_config(&limits),
        object_count_poll_period: limits.object_count_poll_period,
        upstream,
        own_credentials: own,
        assert_by_impersonation: impersonate,
        shutdown: shutdown_config(&operation),
        admin: admin_config(&operation, effective),
        reporting: telling,
        workers,
        crypto_provider: provider,
    })
}

fn transfer_config(limits: &LimitArgs) -> config::TransferConfig {
    config::TransferConfig {
        body_buffer: usize::try_from(limits.request_body_buffer).unwrap_or(DEFAULT_BODY_BUFFER),
        minimum_rate: MinimumRate {
            bytes_per_second: limits.min_transfer_rate,
            grace: limits.min_transfer_rate_grace,
        },
        upgrades_per_second: limits.unproven_upgrades_per_second,
    }
}

/// Whoever looks at `weir_ready` sees within two looks that the API server is away; a question every ten seconds is none to it.
const READINESS_POLL_AFTER: Duration = Duration::from_secs(10);

/// With what was found out where nothing was given.
fn fill_effective(
    mut effective: EffectiveConfig,
    serving: &config::ServingConfig,
    upstream: &upstream::UpstreamConfig,
    workers: usize,
) -> EffectiveConfig {
    let url = format!("https://{}", upstream.address.authority);
    for (name, value) in [
        ("bindAddress", Value::from(serving.address.ip().to_string())),
        ("maxConnections", serving.max_connections.into()),
        ("upstream", url.into()),
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

/// Warns of certificates that are over, and of clients' certificates that nothing can be done with.
fn warn_about_certificates(
    serving: &config::ServingConfig,
    who: &config::IdentityConfig,
    upstream: &upstream::UpstreamConfig,
    impersonate: bool,
) {
    let now = Clock.wall();
    let shown = [
        ("tls-cert-file", Some(&serving.tls.certificate)),
        ("proxy-client-cert-file", upstream.front_proxy.as_ref()),
    ];
    for (flag, key) in shown {
        let expires = key.and_then(|key| upstream::tls::expiry(key));
        if let Some(at) = expires.filter(|at| *at <= now) {
            let ago = now.duration_since(at).unwrap_or_default();
            warn!(
                "--{flag}: the certificate, or one of its chain, expired {} hours ago",
                ago.as_secs() / 3600
            );
        }
    }
    if who.client_ca.is_some() && upstream.front_proxy.is_none() && !impersonate {
        warn!(
            "--client-ca-file without --proxy-client-cert-file (or --assert-by=impersonation): clients with certificates cannot \
             be named to the API server, and are answered 401"
        );
    }
}

/// An outage of all clients with certificates is seen within a minute; a request a minute is nothing to the API server.
const SELF_CHECK_INTERVAL: Duration = Duration::from_secs(60);

const fn shutdown_config(operation: &OperationArgs) -> config::ShutdownConfig {
    config::ShutdownConfig {
        delay: operation.shutdown_delay_duration,
        watch_grace: operation.shutdown_watch_termination_grace_period,
    }
}

fn admin_config(operation: &OperationArgs, effective: EffectiveConfig) -> config::AdminConfig {
    if !is_loopback(operation.admin_address) {
        warn!(
            address = %operation.admin_address,
            "--admin-address is not a loopback address: whoever reaches it reads users' names, limits and metrics without \
             authentication; nothing can be changed there (PUT /debug/log_level is answered 403)"
        );
    }
    config::AdminConfig {
        address: operation.admin_address,
        health: operation.health_address,
        health_metrics: operation.health_metrics,
        log_level: None, // `logging` knows
        readiness_poll_after: READINESS_POLL_AFTER,
        effective,
        self_check_interval: Some(SELF_CHECK_INTERVAL),
    }
}

fn core_count() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

impl FlagErrors {
    /// What does nothing without another flag.
    fn check_dependent_flags(&mut self, identity: &IdentityArgs, operation: &OperationArgs) {
        if identity.proxy_protocol && identity.trusted_proxies.is_empty() {
            self.add(
                "proxy-protocol",
                "only together with --trusted-proxies, which name who may send it",
            );
        }
        if operation.health_metrics && operation.health_address.is_none() {
            self.add("health-metrics", "only together with --health-address");
        }
    }

    fn resolve_limits(&mut self, limits: &LimitArgs) -> Option<config::AdmissionConfig> {
        if !limits.enable_priority_and_fairness {
            if limits.flowcontrol_enforcement == FlowcontrolEnforcement::DryRun {
                self.add("flowcontrol-enforcement", NEEDS_FAIRNESS);
            }
            if !limits.flowcontrol_config.is_empty() {
                self.add("flowcontrol-config", NEEDS_FAIRNESS);
            }
            return Some(config::AdmissionConfig::MaxInFlight(
                max_in_flight::MaxInFlightConfig {
                    read_only: limits.max_requests_inflight.into(),
                    mutating: limits.max_mutating_requests_inflight.into(),
                },
            ));
        }
        let total = limits
            .max_requests_inflight
            .saturating_add(limits.max_mutating_requests_inflight);
        if total == 0 {
            self.add(
                "max-requests-inflight",
                "with --enable-priority-and-fairness it and --max-mutating-requests-inflight must not both be 0: their sum is the total",
            );
        }
        let given = self.read_flowcontrol_objects(&limits.flowcontrol_config)?;
        let objects =
            bootstrap::add_missing(given.iter().map(|(object, _)| object.clone()).collect());
        flowcontrol::warn_about_missing_levels(&given, &objects);
        Some(config::AdmissionConfig::Fairness {
            config: controller::ControllerConfig {
                server_concurrency_limit: total,
                request_timeout: limits.request_timeout,
                enforcement: match limits.flowcontrol_enforcement {
                    FlowcontrolEnforcement::DryRun => Enforcement::DryRun,
                    FlowcontrolEnforcement::Enforce => Enforcement::Enforce,
                },
                consistent_reads_from_cache: true,
            },
            objects,
        })
    }

    /// Where traces go, if they go anywhere.
    fn resolve_tracing(&mut self, file: Option<&Path>) -> Option<spans::config::TracingConfig> {
        const FLAG: &str = "tracing-config-file";
        let file = file?;
        let text = String::from_utf8_lossy(&self.read_file(FLAG, file)?).into_owned();
        let mut faults = document::Diagnostics::default();
        let nodes = document::parse_all(&file.display().to_string(), &text, &mut faults);
        let read = spans::config::parse(&nodes, &mut faults);
        if read.is_none() && !faults.has_errors() {
            self.add(FLAG, format!("{}: there is nothing in it", file.display()));
        }
        read.filter(|_| self.merge(FLAG, &faults))
    }

    /// Takes a file's faults over; whether there was no error among them.
    pub(super) fn merge(&mut self, flag: &str, faults: &document::Diagnostics) -> bool {
        for fault in faults.iter() {
            match fault.severity {
                Severity::Error => self.add(flag, fault),
                Severity::Warning => warn!("--{flag}: {fault}"),
            }
        }
        !faults.has_errors()
    }

    pub(super) fn read_file(&mut self, flag: &str, file: &Path) -> Option<Vec<u8>> {
        self.check(
            flag,
            fs::read(file).map_err(|why| format!("cannot read {}: {why}", file.display())),
        )
    }

    pub(super) fn read_root_certificates(
        &mut self,
        flag: &str,
        file: &Path,
    ) -> Option<RootCertStore> {
        let pem = self.read_file(flag, file)?;
        self.check(
            flag,
            upstream::tls::parse_roots(&file.display().to_string(), &pem),
        )
    }

    fn resolve_serving(
        &mut self,
        args: ServingArgs,
        client_ca: Option<RootCertStore>,
        (trusted_proxies, proxy_protocol): (Vec<ipnet::IpNet>, bool),
    ) -> Option<config::ServingConfig> {
        let (certificate, key) = (&args.tls_cert_file, &args.tls_private_key_file);
        if certificate.is_none() {
            self.add(
                "tls-cert-file",
                "needed: the certificate that clients see (PEM)",
            );
        }
        if key.is_none() {
            self.add(
                "tls-private-key-file",
                "needed: the key of --tls-cert-file (PEM)",
            );
        }
        let certificate = self.read_certified_key(
            ("tls-cert-file", certificate.as_deref()?),
            ("tls-private-key-file", key.as_deref()?),
        );
        Some(config::ServingConfig {
            address: SocketAddr::new(
                args.bind_address.unwrap_or(UNSPECIFIED_ADDRESS),
                args.secure_port,
            ),
            tls: tls::ListenerTlsConfig {
                certificate: certificate?,
                client_ca,
                tls13_only: args.tls_min_version == TlsVersion::VersionTLS13,
            },
            max_streams: max_streams_or_default(args.http2_max_streams_per_connection),
            goaway_chance: args.goaway_chance,
            header_timeout: args.request_header_timeout,
            resets_per_second: args.http2_max_resets_per_second,
            max_connections: args.max_connections.map_or_else(connection_budget, |most| {
                usize::try_from(most).unwrap_or(usize::MAX)
            }),
            trusted_proxies,
            proxy_protocol,
        })
    }
}

/// Zero is 100, as kube-apiserver's flag has it (1.36).
const fn max_streams_or_default(asked: u32) -> u32 {
    if asked == 0 { 100 } else { asked }
}

/// What the open-file limit leaves for each side: a client may need a descriptor of its own and one towards the upstream.
fn connection_budget() -> usize {
    let descriptors = rlimit::Resource::NOFILE
        .get()
        .map_or(1024, |(soft, _)| soft);
    usize::try_from(descriptors.saturating_sub(SPARE_DESCRIPTORS) / 2)
        .unwrap_or(usize::MAX)
        .max(1)
}

impl FlagErrors {
    fn read_certified_key(
        &mut self,
        (certificate_flag, certificate): (&str, &Path),
        (key_flag, key): (&str, &Path),
    ) -> Option<Arc<CertifiedKey>> {
        let certificate_pem = self.read_file(certificate_flag, certificate);
        let key_pem = self.read_file(key_flag, key);
        let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
        // What a fault of the key calls the certificate that it does not belong to.
        let other = format!("{certificate} (--{certificate_flag})");
        let pair =
            upstream::tls::parse_certified_key((&other, &certificate_pem?), (&key, &key_pem?));
        pair.map_err(|PemError { origin, message }| {
            if origin == other {
                self.add(certificate_flag, format!("{certificate}: {message}"));
            } else {
                self.add(key_flag, format!("{key}: {message}"));
            }
        })
        .ok()
    }

    /// Which API server, and what weir's own calls carry.
    fn resolve_upstream(
        &mut self,
        args: &UpstreamArgs,
        limits: &LimitArgs,
    ) -> Option<(upstream::UpstreamConfig, CredentialSource)> {
        let front_proxy = self.read_front_proxy_key(args);
        let found = match (&args.upstream, &args.kubeconfig) {
            (Some(url), None) => self.upstream_from_url(args, url),
            (None, Some(file)) => self.upstream_from_kubeconfig(args, file),
            (None, None) => {
                self.add(
                    "upstream",
                    "needed: the API server, as https://HOST:PORT; or a --kubeconfig",
                );
                None
            }
            (Some(_), Some(_)) => {
                self.add(
                    "kubeconfig",
                    "not together with --upstream: each names an API server",
                );
                None
            }
        };
        let id = self.check("upstream", InstanceId::generate());
        let (target, roots, own) = found?;
        let most_connections = usize::try_from(limits.upstream_max_connections).unwrap_or(1);
        Some((
            upstream::UpstreamConfig {
                address: target,
                roots,
                front_proxy: front_proxy?,
                max_http2_connections: most_connections,
                max_connections: connection_budget(),
                instance_id: id?,
            },
            own,
        ))
    }

    /// `Some(None)` where there is none.
    #[expect(
        clippy::option_option,
        reason = "the outer one is for faults, as everywhere here"
    )]
    fn read_front_proxy_key(&mut self, args: &UpstreamArgs) -> Option<Option<Arc<CertifiedKey>>> {
        const CERTIFICATE: &str = "proxy-client-cert-file";
        const KEY: &str = "proxy-client-key-file";
        match (&args.proxy_client_cert_file, &args.proxy_client_key_file) {
            (None, None) => Some(None),
            (Some(certificate), Some(key)) => self
                .read_certified_key((CERTIFICATE, certificate), (KEY, key))
                .map(Some),
            (Some(_), None) => {
                self.add(KEY, format!("needed: the key of --{CERTIFICATE}"));
                None
            }
            (None, Some(_)) => {
                self.add(CERTIFICATE, format!("needed: the certificate of --{KEY}"));
                None
            }
        }
    }

    fn upstream_from_url(
        &mut self,
        args: &UpstreamArgs,
        url: &str,
    ) -> Option<(ServerAddress, RootCertStore, CredentialSource)> {
        if args.context.is_some() {
            self.add("context", "only together with --kubeconfig");
        }
        let address = self.check("upstream", address::parse_server(url));
        let roots = match &args.upstream_ca_file {
            Some(file) => self.read_root_certificates("upstream-ca-file", file),
            None => self.check("upstream-ca-file", upstream::tls::load_system_roots()),
        };
        let (authority, server_name) = address?;
        let own = CredentialSource::Configured {
            certificate: None,
            token: None,
        };
        Some((
            ServerAddress {
                authority,
                server_name,
                proxy: None,
            },
            roots?,
            own,
        ))
    }

    fn upstream_from_kubeconfig(
        &mut self,
        args: &UpstreamArgs,
        file: &Path,
    ) -> Option<(ServerAddress, RootCertStore, CredentialSource)> {
        if args.upstream_ca_file.is_some() {
            self.add(
                "upstream-ca-file",
                "not together with --kubeconfig, which names the CA",
            );
        }
        let text = String::from_utf8_lossy(&self.read_file("kubeconfig", file)?).into_owned();
        let mut faults = document::Diagnostics::default();
        let read = kubeconfig::parse(file, &text, args.context.as_deref(), &mut faults);
        self.merge("kubeconfig", &faults);
        let Kubeconfig {
            context: _,
            address: target,
            ca,
            source,
        } = read?;
        let roots = match &ca {
            None => self.check("kubeconfig", upstream::tls::load_system_roots()),
            Some(Pem::Data { origin, bytes }) => {
                self.check("kubeconfig", upstream::tls::parse_roots(origin, bytes))
            }
            Some(Pem::File(file)) => self.read_root_certificates("kubeconfig", file),
        };
        Some((target, roots?, source))
    }
}

#[cfg(test)]
mod tests {
    use super::max_streams_or_default;

    #[test]
    fn zero_max_streams_means_one_hundred() {
        assert_eq!([0, 1, 1000].map(max_streams_or_default), [100, 1, 1000]);
    }
}
