//! The flags: name (kube-apiserver's own where it has one), default and help text of each.
//!
//! `config_resolver` gives flags their meaning. A `--config` file has settings of the same names (see
//! `command_line::config_file`). The table in docs/reference/flags.md is generated from this module.

pub(crate) mod environment;
pub(crate) mod input_files;
pub(crate) mod origin;
pub(crate) mod replica_args;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::{Args, ValueEnum};
use http::HeaderName;

use crate::cli::flags::origin::ConfigOrigin;
use crate::cli::flags::replica_args::ReplicaArgs;
use crate::config::{AdminAuthorizationMode, ShutdownConfig};
use crate::flag_values::{parse_duration, parse_memory_limit, parse_request_timeout};
use crate::flowcontrol::controller::Enforcement;
use crate::limits::list_bytes::ListBytesConfig;
use crate::limits::total_finder::AutoTotalConfig;
use crate::pipeline::dependencies::TransferConfig;
use crate::pipeline::reject::delay::RejectionDelayConfig;
use crate::server::settings::{ConnectionConfig, TrustedProxyConfig};
use crate::upstream::UpstreamProtocol;

/// `weir serve`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArgs {
    /// Which API server.
    #[command(flatten)]
    pub(crate) upstream: UpstreamArgs,
    /// Everything else.
    #[command(flatten)]
    pub(crate) proxy: ProxyArgs,
}

/// Which API server weir stands in front of.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Upstream")]
pub(crate) struct UpstreamArgs {
    /// The API server, as https://HOST:PORT; this or --kubeconfig is required. Several times (or separated by commas): as many
    /// API servers of one cluster, among which requests are balanced. A name with several addresses is as many servers.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub(crate) upstream: Vec<String>,
    /// Whether to balance requests among the addresses that the EndpointSlices of the Service default/kubernetes list, which
    /// weir's own user must be allowed to list and watch. Needs --kubeconfig. The configured server is used until they are known, and
    /// where none of them is available.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = false,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        action = clap::ArgAction::Set
    )]
    pub(crate) upstream_endpoint_slices: bool,
    /// The HTTP version of requests that end, if the API server speaks both. auto: HTTP/1.1 for a read without a body where a
    /// connection is idle, and HTTP/2 otherwise; an API server spends less CPU on a read over HTTP/1.1. Watches share HTTP/2
    /// connections whatever this is.
    #[arg(long, value_name = "PROTOCOL", value_enum, default_value_t = UpstreamProtocol::Auto)]
    pub(crate) upstream_protocol: UpstreamProtocol,
    /// CA of the API server's certificate (PEM); the system's CAs if not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) upstream_ca_file: Option<PathBuf>,
    /// The API server, its CA and the credentials for weir's own calls, from a kubeconfig. Clients' requests do
    /// not carry these credentials, except with --assert-by=impersonation. With --upstream, the API servers are those and all else
    /// is the kubeconfig's, its tls-server-name and proxy-url included. Not together with --upstream-ca-file. If it is empty, or
    /// neither is given: the files of KUBECONFIG, merged as kubectl does; or, in a Pod, its service account.
    #[arg(long, value_name = "FILE", value_parser = clap::builder::OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context to use; its current one if not given.
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Client certificate that makes weir a front proxy to the API server, which then accepts the user that weir names; signed by
    /// the CA of the API server's --requestheader-client-ca-file, with a common name that its --requestheader-allowed-names
    /// admits (kubeadm: front-proxy-client). Needed for clients that come with a certificate.
    #[arg(long, value_name = "FILE")]
    pub(crate) proxy_client_cert_file: Option<PathBuf>,
    /// Key of --proxy-client-cert-file.
    #[arg(long, value_name = "FILE")]
    pub(crate) proxy_client_key_file: Option<PathBuf>,
    /// How weir asserts the user of a client certificate to the API server: as a front proxy, by --proxy-client-cert-file; or, where
    /// there is no front proxies' CA to sign one, by impersonation with the credentials of --kubeconfig, whose user must then
    /// be allowed to impersonate users, groups, serviceaccounts, uids and userextras.
    #[arg(long, value_name = "WAY", value_enum, default_value_t = AssertBy::FrontProxy)]
    pub(crate) assert_by: AssertBy,
}

/// How the user of a client certificate is asserted to the API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum AssertBy {
    /// As a front proxy, by --proxy-client-cert-file.
    #[default]
    FrontProxy,
    /// By weir's own credentials, which may impersonate.
    Impersonation,
}

/// Settings for every API server.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProxyArgs {
    /// A YAML file with the same settings, by the flags' names (in camelCase or as they are). Flags win. clientLimits, policies and
    /// authentication, which have no flag, stand in it only.
    #[arg(long, value_name = "FILE", help_heading = "General")]
    pub(crate) config: Option<PathBuf>,
    /// The listener for clients.
    #[command(flatten)]
    pub(crate) serving: ServingArgs,
    /// Authentication of clients.
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,
    /// Limits of requests, connections and memory.
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Several weirs.
    #[command(flatten)]
    pub(crate) replicas: ReplicaArgs,
    /// Limits shared with other replicas.
    #[command(flatten)]
    pub(crate) shared: SharedLimitArgs,
    /// Audit log, records and traces of requests.
    #[command(flatten)]
    pub(crate) reporting: ReportingArgs,
    /// Operation of the process.
    #[command(flatten)]
    pub(crate) operation: OperationArgs,
    /// The resolved settings, each with its origin.
    #[arg(skip)]
    pub(crate) origin: ConfigOrigin,
}

/// The listener for clients.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Serving")]
pub(crate) struct ServingArgs {
    /// Address to listen on: 0.0.0.0 by default, for the playground 127.0.0.1.
    #[arg(long, value_name = "IP")]
    pub(crate) bind_address: Option<IpAddr>,
    /// Port to listen on; 0 takes any free one.
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub(crate) secure_port: u16,
    /// Certificate that clients see, with its intermediates (PEM). Required, except by the playground.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// Key of --tls-cert-file, required like it.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_private_key_file: Option<PathBuf>,
    /// Minimum TLS version.
    #[arg(long, value_name = "VERSION", value_enum, default_value_t = TlsVersion::VersionTLS12)]
    pub(crate) tls_min_version: TlsVersion,
    /// Cipher suites of TLS 1.2, by Go's names; all that weir has if not given. Those of TLS 1.3 cannot be chosen.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) tls_cipher_suites: Vec<String>,
    /// Key exchanges, by their numbers in Go: 23 (P-256), 24 (P-384), 29 (X25519), 4588 (X25519MLKEM768, post-quantum); all
    /// if not given. The order does not count.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    pub(crate) tls_curve_preferences: Vec<u16>,
    /// A certificate and its key, for clients that ask for one of its names (SNI): FILE,KEY, or FILE,KEY:NAMES with names as
    /// *.example.com,example.com instead of those in the certificate. May be given several times. Other clients see
    /// --tls-cert-file.
    #[arg(long, value_name = "FILE,KEY[:NAMES]")]
    pub(crate) tls_sni_cert_key: Vec<SniCertKey>,
    /// Most open connections of clients; by default, and at most, what the open-file limit allows.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_connections: Option<u32>,
    /// Limits of each connection, and of the connections of an address.
    #[command(flatten)]
    pub(crate) connections: ConnectionConfig,
}

/// kube-apiserver's names of the TLS versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TlsVersion {
    /// TLS 1.2 and 1.3.
    #[value(name = "VersionTLS12")]
    VersionTLS12,
    /// TLS 1.3 only.
    #[value(name = "VersionTLS13")]
    VersionTLS13,
}

/// The value of `--tls-sni-cert-key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SniCertKey {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// Empty if none are given.
    pub(crate) names: Vec<String>,
}

impl FromStr for SniCertKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (files, names) = text
            .split_once(':')
            .map_or((text, None), |(files, names)| (files, Some(names)));
        let names: Vec<_> = names
            .into_iter()
            .flat_map(|names| names.split(','))
            .map(str::to_owned)
            .collect();
        let wrong = || {
            "give a certificate and its key, as tls.crt,tls.key or tls.crt,tls.key:example.com"
                .to_owned()
        };
        let (certificate, key) = files.split_once(',').ok_or_else(wrong)?;
        let is_file = |file: &str| !file.is_empty() && !file.contains(',');
        if !is_file(certificate) || !is_file(key) || names.iter().any(String::is_empty) {
            return Err(wrong());
        }
        Ok(Self {
            certificate: certificate.into(),
            key: key.into(),
            names,
        })
    }
}

/// Authentication of clients.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Identity")]
pub(crate) struct IdentityArgs {
    /// CA of the clients' certificates (PEM). Without it a client with a certificate and no token gets
    /// 401.
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca_file: Option<PathBuf>,
    /// File of tokens and their users, one a line: token,user,uid,"group1,group2". It identifies users; the token itself is
    /// forwarded to the API server, which authenticates it.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_auth_file: Option<PathBuf>,
    /// Public keys (PEM) that service accounts' tokens are signed with. May be given several times. Without it they are read
    /// from the API server (/openid/v1/jwks), if weir has credentials of its own.
    #[arg(long, value_name = "FILE")]
    pub(crate) service_account_key_file: Vec<PathBuf>,
    /// The issuer of service accounts' tokens. May be given several times. Needed with --service-account-key-file; otherwise
    /// the API server is asked.
    #[arg(long, value_name = "URL")]
    pub(crate) service_account_issuer: Vec<String>,
    /// Audiences of tokens for the API server, as in its own --api-audiences; by default the issuer.
    #[arg(long, value_name = "AUDIENCE", value_delimiter = ',')]
    pub(crate) api_audiences: Vec<String>,
    /// Issuers of OIDC tokens that weir verifies by itself: kube-apiserver's AuthenticationConfiguration, which may say by
    /// jwksURL or jwksFile where an issuer's keys are.
    #[arg(long, value_name = "FILE")]
    pub(crate) authentication_config: Option<PathBuf>,
    /// How long the result of a TokenReview is cached.
    #[arg(long, value_name = "DURATION", default_value = "2m0s", value_parser = parse_duration)]
    pub(crate) authentication_token_webhook_cache_ttl: Duration,
    /// Maximum TokenReviews a second, if weir has credentials of its own; 0 sends none.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub(crate) token_reviews_per_second: u32,
    /// Classify a request that impersonates by the impersonated user, as the API server does, if a SubjectAccessReview (with the
    /// credentials of --kubeconfig) allows it. Otherwise it is classified by its sender.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = false,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        action = clap::ArgAction::Set
    )]
    pub(crate) classify_impersonated: bool,
    /// Maximum SubjectAccessReviews a second: one for each user, group, uid and extra value that a client impersonates, cached
    /// for 10 seconds. Only with --classify-impersonated or --assert-by=impersonation.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) access_reviews_per_second: u32,
    /// CA of the certificates of front proxies before weir (PEM), whose identity headers are accepted.
    #[arg(long, value_name = "FILE")]
    pub(crate) requestheader_client_ca_file: Option<PathBuf>,
    /// The common names of these certificates; any of that CA if not given.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) requestheader_allowed_names: Vec<String>,
    /// Proxies before weir that pass the addresses of clients on.
    #[command(flatten)]
    pub(crate) proxies: TrustedProxyConfig,
    /// Headers that carry the user's name: read from trusted front proxies before weir. weir sends the first to the API server,
    /// and strips all of them from clients' requests.
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "X-Remote-User"
    )]
    pub(crate) requestheader_username_headers: Vec<HeaderName>,
    /// The same for the uid.
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "X-Remote-Uid"
    )]
    pub(crate) requestheader_uid_headers: Vec<HeaderName>,
    /// The same for the groups.
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "X-Remote-Group"
    )]
    pub(crate) requestheader_group_headers: Vec<HeaderName>,
    /// The same for extra values: prefixes of header names.
    #[arg(
        long,
        value_name = "PREFIX",
        value_delimiter = ',',
        default_value = "X-Remote-Extra-"
    )]
    pub(crate) requestheader_extra_headers_prefix: Vec<HeaderName>,
}

/// Limits of requests, connections and memory.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// The most requests at the API server at a time. With priority and fairness (the default) it and
    /// --max-mutating-requests-inflight are added up to the total number of seats. Without, it is the most read-only requests (get,
    /// list) in flight; 0 is no limit then. auto, also the default of both: weir finds the total by itself (--target-latency). If
    /// only the other one is given, 400.
    #[arg(long, value_name = "N", default_value = "auto", value_parser = parse_inflight)]
    pub(crate) max_requests_inflight: InflightArg,
    /// With priority and fairness (the default) it and --max-requests-inflight are added up to the total number of seats.
    /// Without, the most mutating requests in flight; 0 is no limit then. If only the other one is given, 200.
    #[arg(long, value_name = "N", default_value = "auto", value_parser = parse_inflight)]
    pub(crate) max_mutating_requests_inflight: InflightArg,
    /// How weir finds the total by itself.
    #[command(flatten)]
    pub(crate) auto_total: AutoTotalConfig,
    /// How many bytes of lists the API servers work on at a time.
    #[command(flatten)]
    pub(crate) list_bytes: ListBytesConfig,
    /// With priority and fairness: how often weir reads the number and size of objects from the API server's /metrics, with its own
    /// credentials; 0s turns it off. Without these figures, weir counts what is listed through it by lists of one object (?limit=1),
    /// if it may list, and otherwise by the lists and watches that pass through.
    #[arg(long, value_name = "DURATION", default_value = "1m0s", value_parser = parse_duration)]
    pub(crate) object_count_poll_period: Duration,
    /// API Priority and Fairness: requests queue by flow, and the sum of the two limits above is its total. With
    /// false, each of the two is a limit of its own.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        action = clap::ArgAction::Set
    )]
    pub(crate) enable_priority_and_fairness: bool,
    /// A file or a folder of files (YAML or JSON) with FlowSchemas and PriorityLevelConfigurations, as kubectl prints them.
    /// They are added to the built-in ones, and replace those of the same name. May be given several times.
    #[arg(long, value_name = "PATH")]
    pub(crate) flowcontrol_config: Vec<PathBuf>,
    /// Where FlowSchemas and PriorityLevelConfigurations come from, besides the built-in ones and --flowcontrol-config, which replaces
    /// all others by name: cluster watches those of the API server with the credentials of --kubeconfig, which need the verbs
    /// list and watch for both; files does not; auto is cluster where there are credentials.
    #[arg(long, value_name = "SOURCE", value_enum, default_value_t = FlowcontrolSource::Auto)]
    pub(crate) flowcontrol_source: FlowcontrolSource,
    /// A folder in which weir keeps the API server's last known FlowSchemas and PriorityLevelConfigurations, so that they are in
    /// force after a restart while the API server is away. Created if it is not there. Each cluster needs one of its own.
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// DryRun lets every request pass priority and fairness (or max-in-flight) at once, and counts what it would have rejected. A single
    /// flow schema or priority level does the same by its annotation weir/enforcement: DryRun.
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Enforcement::Enforce)]
    pub(crate) flowcontrol_enforcement: Enforcement,
    /// kube-apiserver's own AdmissionConfiguration, of which the plugin EventRateLimit is used.
    #[arg(long, value_name = "FILE")]
    pub(crate) admission_control_config_file: Option<PathBuf>,
    /// The configuration of EventRateLimit by itself (eventratelimit.admission.k8s.io/v1alpha1). Without either file events
    /// are not limited.
    #[arg(long, value_name = "FILE")]
    pub(crate) event_rate_limit_config: Option<PathBuf>,
    /// Which API groups' events are limited: all (the core group and events.k8s.io), or core as kube-apiserver has it.
    #[arg(long, value_name = "GROUPS", value_enum, default_value_t = EventGroups::All)]
    pub(crate) event_rate_limit_groups: EventGroups,
    /// DryRun lets every event pass, and counts what the limits of events would have rejected.
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Enforcement::Enforce)]
    pub(crate) event_rate_limit_enforcement: Enforcement,
    /// Send Retry-After with the 429 of an event. kube-apiserver does not, and client-go then drops the event.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        action = clap::ArgAction::Set
    )]
    pub(crate) event_rate_limit_retry_after: bool,
    /// Maximum duration of a request that is not long-running; more than 0s.
    #[arg(long, value_name = "DURATION", default_value = "1m0s", value_parser = parse_request_timeout)]
    pub(crate) request_timeout: Duration,
    /// Delays of rejections.
    #[command(flatten)]
    pub(crate) rejections: RejectionDelayConfig,
    /// Limits on the transfers of clients.
    #[command(flatten)]
    pub(crate) transfers: TransferConfig,
    /// Resident memory at which weir rejects requests (429) of the users and addresses that hold more than their share of the responses
    /// that clients have not read, in bytes or as 512Mi. Others and exempt requests are admitted until an eighth more is in use, and
    /// connections are accepted until then. By default 80 % of the memory limit of weir's cgroup, or, where there is
    /// none, half of what is available on the machine at the start, but at least 256 MiB. 0 is no limit; otherwise at least 64Mi.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory_limit)]
    pub(crate) memory_limit: Option<u64>,
    /// Most HTTP/2 connections to the API server that each worker opens for each kind of credential, for requests that end;
    /// watches have others, as many as they need (at most a quarter of the open-file limit, with all else that lasts).
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) upstream_max_connections: u32,
}

impl LimitArgs {
    /// Whether weir finds the total by itself.
    pub(crate) fn is_auto_total(&self) -> bool {
        let both = [
            self.max_requests_inflight,
            self.max_mutating_requests_inflight,
        ];
        both == [InflightArg::Auto; 2]
    }

    /// The read-only and the mutating requests that may be in flight: kube-apiserver's defaults where
    /// none are given.
    pub(crate) const fn inflight(&self) -> [u32; 2] {
        [
            self.max_requests_inflight.number_or(400),
            self.max_mutating_requests_inflight.number_or(200),
        ]
    }
}

/// The value of `--max-requests-inflight` and `--max-mutating-requests-inflight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InflightArg {
    /// weir finds it by itself.
    Auto,
    /// This many.
    Number(u32),
}

impl InflightArg {
    /// The number; `default` where weir finds one by itself.
    pub(crate) const fn number_or(self, default: u32) -> u32 {
        match self {
            Self::Auto => default,
            Self::Number(number) => number,
        }
    }
}

fn parse_inflight(text: &str) -> Result<InflightArg, String> {
    if text == "auto" {
        return Ok(InflightArg::Auto);
    }
    let number = text.parse().map(InflightArg::Number);
    number.map_err(|_| "give a number, or auto".to_owned())
}

/// Where flow schemas and priority levels come from, besides files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FlowcontrolSource {
    /// The API server, where weir has credentials.
    Auto,
    /// The API server.
    Cluster,
    /// Files only.
    Files,
}

/// The API groups of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventGroups {
    /// The core group and events.k8s.io.
    All,
    /// The core group.
    Core,
}

/// How rate limits are shared with other replicas.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Shared limits")]
pub(crate) struct SharedLimitArgs {
    /// The Redis or Valkey server by which all replicas share the buckets of event and client limits: redis://HOST:PORT/DATABASE, or
    /// rediss:// with TLS; redis+sentinel://HOST:PORT,HOST:PORT/NAME for Sentinel and redis+cluster://HOST:PORT,HOST:PORT for
    /// Cluster (rediss+sentinel:// and rediss+cluster:// with TLS). No request waits for it; while it is away, each replica
    /// admits its share of every rate. Needs --shared-key-file.
    #[arg(long, value_name = "URL")]
    pub(crate) shared_limits: Option<String>,
    /// The user of --shared-limits.
    #[arg(long, value_name = "NAME")]
    pub(crate) shared_limits_user: Option<String>,
    /// The password of --shared-limits, read again for each connection.
    #[arg(long, value_name = "FILE")]
    pub(crate) shared_limits_password_file: Option<PathBuf>,
    /// CA of the certificate of --shared-limits (PEM), read again for each connection; the system's CAs if not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) shared_limits_ca_file: Option<PathBuf>,
    /// Client certificate for --shared-limits (PEM), read again for each connection.
    #[arg(long, value_name = "FILE")]
    pub(crate) shared_limits_cert_file: Option<PathBuf>,
    /// Key of --shared-limits-cert-file.
    #[arg(long, value_name = "FILE")]
    pub(crate) shared_limits_key_file: Option<PathBuf>,
    /// The number of replicas that share a rate until --shared-limits has counted them.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) shared_limits_replicas: u32,
    /// A random text of at least 32 bytes, the same on every replica: the key of the hashes that users, namespaces and other names
    /// become in what replicas share. A change needs a restart of all replicas.
    #[arg(long, value_name = "FILE")]
    pub(crate) shared_key_file: Option<PathBuf>,
}

/// Audit log, records and traces of requests.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Audit")]
pub(crate) struct ReportingArgs {
    /// Write an audit log to this file, an event (audit.k8s.io/v1) a line; - is the standard output. Events that are not
    /// written fast enough are dropped and counted: no request waits for the log.
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_log_path: Option<PathBuf>,
    /// kube-apiserver's audit policy, which selects the requests of the audit log. weir writes no bodies: Request and RequestResponse
    /// count as Metadata. Without a policy all requests are written.
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_policy_file: Option<PathBuf>,
    /// Days for which rotated files of the audit log are kept; 0 keeps them without limit.
    #[arg(long, value_name = "DAYS", default_value_t = 0)]
    pub(crate) audit_log_maxage: u32,
    /// How many rotated files of the audit log are kept; 0 is any number.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) audit_log_maxbackup: u32,
    /// Size in megabytes at which the file of the audit log is rotated.
    #[arg(long, value_name = "MB", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) audit_log_maxsize: u32,
    /// Compress rotated files of the audit log with gzip.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = false,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        action = clap::ArgAction::Set
    )]
    pub(crate) audit_log_compress: bool,
    /// Write a record for weir replay to this file, one request (JSON) a line; no bodies, no headers but the user agent, and no
    /// credentials. An existing file is continued. It is compressed if its name ends with .gz. Requests that are not written fast
    /// enough are dropped and counted.
    #[arg(long, value_name = "FILE")]
    pub(crate) record_path: Option<PathBuf>,
    /// Size in megabytes at which the record ends.
    #[arg(long, value_name = "MB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) record_max_size: u32,
    /// Maximum duration of the record, from the start or from the reload that begins it; 0s is no limit but its size.
    #[arg(long, value_name = "DURATION", default_value = "1h0m0s", value_parser = parse_duration)]
    pub(crate) record_max_duration: Duration,
    /// Replace names in the record by pseudonyms with the secret in this file (at least 16 bytes), so that it can be shared: those
    /// of users, groups, namespaces, objects and programs. system: names stay, and names that flow schemas name.
    #[arg(long, value_name = "FILE")]
    pub(crate) record_pseudonym_key_file: Option<PathBuf>,
    /// Record clients' addresses, too.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = false,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        action = clap::ArgAction::Set
    )]
    pub(crate) record_source_addresses: bool,
    /// Report in response headers, also of weir's own responses, what was decided about the request: X-Weir-Flow-Schema,
    /// X-Weir-Priority-Level, X-Weir-Queue-Wait, X-Weir-Seats.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = false,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        action = clap::ArgAction::Set
    )]
    pub(crate) explain_responses: bool,
}

/// Operation of the process.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Operation")]
pub(crate) struct OperationArgs {
    /// The shutdown.
    #[command(flatten)]
    pub(crate) shutdown: ShutdownConfig,
    /// Where /livez, /readyz, /metrics, the status page and /debug are served, by default in plain HTTP and without authentication.
    /// An address beyond the loopback needs both: --admin-tls-cert-file, and --admin-client-ca-file, --admin-token-file or
    /// --admin-authorization-mode=Webhook. Nothing can be changed there: PUT of the log level is 403. /livez and /readyz need no credential.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6480")]
    pub(crate) admin_address: SocketAddr,
    /// Access to the admin address.
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    /// Where /livez and /readyz are served as well, in plain HTTP and without authentication, for probes that cannot reach the admin
    /// address.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) health_address: Option<SocketAddr>,
    /// Serve /metrics on --health-address, too.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = false,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        action = clap::ArgAction::Set
    )]
    pub(crate) health_metrics: bool,
    /// The Unix socket at which weir ctl sets levers: limits of an operator that are in force at once and end by themselves. Only
    /// weir's own user and root can open it. off: there is none. By default control.sock in the folder of RUNTIME_DIRECTORY (systemd),
    /// in weir of XDG_RUNTIME_DIR, or in /run/weir; weir serves without it where that cannot be made.
    #[arg(long, value_name = "FILE")]
    pub(crate) control_socket: Option<PathBuf>,
    /// Threads that serve; by default one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers: Option<u16>,
    /// Traces by OpenTelemetry: kube-apiserver's TracingConfiguration, which says where the collector is (OTLP by gRPC) and how
    /// many requests are traced whose client has not begun a trace.
    #[arg(long, value_name = "FILE")]
    pub(crate) tracing_config_file: Option<PathBuf>,
    /// How logs are written.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LoggingFormat::Text)]
    pub(crate) logging_format: LoggingFormat,
    /// What is logged: error, warn, info, debug, or a filter such as weir::upstream=debug,info (weir::access=debug:
    /// each request; weir::rejections: rejections).
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub(crate) log_level: String,
}

/// Access to the admin address.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AdminArgs {
    /// Certificate of the admin address, with its intermediates (PEM), which then speaks TLS and no plain HTTP. Versions and cipher
    /// suites are those of the address for clients.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_tls_cert_file: Option<PathBuf>,
    /// Key of --admin-tls-cert-file, required with it.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_tls_private_key_file: Option<PathBuf>,
    /// CA of the client certificates (PEM) that the admin address accepts: any of that CA, or with --admin-authorization-mode=Webhook
    /// those whose user may get the path. Needs --admin-tls-cert-file.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_client_ca_file: Option<PathBuf>,
    /// File of the bearer tokens that the admin address accepts, one a line, of 16 bytes at least. They may read every page, also while the
    /// API server is away. Needs --admin-tls-cert-file.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,
    /// AlwaysAllow: each client with a certificate or a token of the two flags above may read the admin address. Webhook: the API server
    /// authenticates other tokens (TokenReview), too, and decides about each path (SubjectAccessReview for nonResourceURLs; an answer counts for
    /// 10 seconds; system:masters may read everything). Webhook needs --admin-tls-cert-file, and a --kubeconfig whose user may create both
    /// reviews (ClusterRole system:auth-delegator).
    #[arg(long, value_name = "MODE", value_enum, default_value_t = AdminAuthorizationMode::AlwaysAllow)]
    pub(crate) admin_authorization_mode: AdminAuthorizationMode,
    /// Whether an address beyond the loopback may be open: for a playground, whose data are made up.
    #[arg(skip)]
    pub(crate) may_be_open: bool,
}

/// kube-apiserver's names of the log formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoggingFormat {
    /// A line for people.
    Text,
    /// An object a line.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_sni_certificate_has_two_files_and_perhaps_names() {
        let parse = |text: &str| text.parse::<SniCertKey>().ok();
        let files = |names: &[&str]| {
            Some(SniCertKey {
                certificate: "a.crt".into(),
                key: "a.key".into(),
                names: names.iter().map(|&name| name.to_owned()).collect(),
            })
        };
        assert_eq!(parse("a.crt,a.key"), files(&[]));
        assert_eq!(
            parse("a.crt,a.key:*.example.com,b"),
            files(&["*.example.com", "b"])
        );
        for wrong in [
            "",
            "a.crt",
            "a.crt,",
            "a.crt,a.key,b",
            "a.crt,a.key:",
            "a.crt,a.key:b,",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
