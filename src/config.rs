//! The configuration of the program: one value that is valid by construction.
//!
//! Contains each module's own configuration. `cli` builds it from flags and files; `app` takes it
//! apart.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;

use crate::control::ControlConfig;
use crate::flag_values::parse_duration;
use crate::flowcontrol::controller;
use crate::identity::TokenFile;
use crate::identity::request_header::IdentityHeaders;
use crate::limits::list_bytes::ListBytesConfig;
use crate::limits::total_finder::AutoTotalConfig;
use crate::observe::admin::log_level::LogLevel;
use crate::observe::admin::zpages::EffectiveConfig;
use crate::observe::logging::non_blocking::DroppedLineCounter;
use crate::observe::logging::recording::RecordingConfig;
use crate::observe::{audit, spans};
use crate::pipeline::dependencies::TransferConfig;
use crate::pipeline::reject::delay::RejectionDelayConfig;
use crate::replicas::config::ReplicaConfig;
use crate::server::settings::ServingConfig;
use crate::upstream;
use crate::upstream::credentials::CredentialSource;
use weir_kubernetes::api::flowcontrol::Object;
use weir_kubernetes::document::SourceLocation;
use weir_limits::max_in_flight;
use weir_limits::rate;
use weir_limits::shared_limits::server::SharedLimitsConfig;
use weir_tokens::jwt::{JwtIssuer, KeySet};
use weir_tokens::list::TokenList;
use weir_x509::CertificatePool;

/// The configuration of `weir serve`.
#[derive(Clone, Debug)]
pub struct Config {
    /// The listener for clients.
    pub serving: ServingConfig,
    /// Authentication.
    pub identity: IdentityConfig,
    /// Rate limits.
    pub rates: rate::RateLimitsConfig,
    /// How rates are shared with other replicas; `None` if each replica limits by itself.
    pub shared_limits: Option<SharedLimitsConfig>,
    /// Concurrency limits.
    pub admission: AdmissionConfig,
    /// `--max-requests-inflight=auto`: weir finds their total by itself.
    pub is_auto_total: bool,
    /// How it finds it.
    pub total_finder: AutoTotalConfig,
    /// The division of the concurrency limits among several weirs, if there is one.
    pub replicas: Option<ReplicaConfig>,
    /// `--request-timeout`.
    pub request_timeout: Duration,
    /// Delays of rejections.
    pub rejections: RejectionDelayConfig,
    /// Limits on the transfers of clients.
    pub transfers: TransferConfig,
    /// `--memory-limit` in bytes, or its default; 0 is no limit.
    pub memory_limit: u64,
    /// The budget of lists.
    pub list_bytes: ListBytesConfig,
    /// `--object-count-poll-period`; zero disables the polls of the API server.
    pub object_count_poll_period: Duration,
    /// The API server.
    pub upstream: upstream::UpstreamConfig,
    /// The credentials of weir's own calls to it.
    pub own_credentials: CredentialSource,
    /// `--assert-by=impersonation`: these credentials also assert a certificate's user.
    pub assert_by_impersonation: bool,
    /// The shutdown.
    pub shutdown: ShutdownConfig,
    /// The listeners for operators.
    pub admin: AdminConfig,
    /// The control socket. `None` if there is none.
    pub control: Option<ControlConfig>,
    /// The logs and traces of requests.
    pub reporting: ReportingConfig,
    /// `--workers`.
    pub workers: usize,
    /// The cryptography provider of all components.
    pub crypto_provider: Arc<CryptoProvider>,
}

/// Authentication.
#[derive(Clone, Debug)]
pub struct IdentityConfig {
    /// `--client-ca-file`.
    pub client_ca: Option<CertificatePool>,
    /// `--token-auth-file`; empty without it.
    pub tokens: TokenFile,
    /// `--requestheader-*-headers`.
    pub headers: IdentityHeaders,
    /// `--requestheader-client-ca-file`, if there is one.
    pub front_proxies: Option<FrontProxyConfig>,
    /// The verification of other tokens.
    pub verification: VerificationConfig,
    /// Impersonation.
    pub impersonation: ImpersonationConfig,
}

/// Impersonation.
#[derive(Clone, Copy, Debug)]
pub struct ImpersonationConfig {
    /// `--classify-impersonated`.
    pub classify: bool,
    /// `--access-reviews-per-second`.
    pub reviews_per_second: u32,
}

/// Front proxies before weir.
#[derive(Clone, Debug)]
pub struct FrontProxyConfig {
    /// `--requestheader-client-ca-file`.
    pub ca: CertificatePool,
    /// `--requestheader-allowed-names`.
    pub allowed_names: Vec<String>,
}

/// The verification of tokens that are in no file.
#[derive(Clone, Debug)]
pub struct VerificationConfig {
    /// `--authentication-config`.
    pub issuers: Vec<(JwtIssuer, IssuerKeys)>,
    /// `--service-account-key-file`.
    pub service_account_keys: Option<KeySet>,
    /// `--service-account-issuer`.
    pub service_account_issuers: Vec<String>,
    /// `--api-audiences`.
    pub audiences: Vec<String>,
    /// `--authentication-token-webhook-cache-ttl`.
    pub cache_ttl: Duration,
    /// `--token-reviews-per-second`.
    pub reviews_per_second: u32,
}

/// The source of an issuer's keys.
#[derive(Clone, Debug)]
pub enum IssuerKeys {
    /// Configured keys.
    Configured(KeySet),
    /// The keys at this URL, verified by these roots.
    Url(String, CertificatePool),
    /// The keys that the discovery document at this URL names, verified by these roots.
    Discovery(String, CertificatePool),
}

impl Config {
    /// Whether tokens that are in no file can be verified. Otherwise all of them are unverified.
    #[must_use]
    pub(crate) fn verifies_tokens(&self) -> bool {
        let VerificationConfig {
            issuers,
            service_account_keys: account_keys,
            reviews_per_second,
            ..
        } = &self.identity.verification;
        !issuers.is_empty()
            || account_keys.is_some()
            || (*reviews_per_second > 0 && !self.own_credentials.is_anonymous())
    }
}

/// The concurrency limits: the mode and its settings.
#[derive(Clone, Debug)]
pub enum AdmissionConfig {
    /// `--enable-priority-and-fairness`.
    Fairness {
        /// The total and the enforcement.
        config: controller::ControllerConfig,
        /// The sources of flow schemas and priority levels besides the built-in ones.
        sources: FlowcontrolConfig,
    },
    /// `--enable-priority-and-fairness=false`.
    MaxInFlight {
        /// The limits.
        config: max_in_flight::MaxInFlightConfig,
        /// Whether they are enforced.
        enforcement: controller::Enforcement,
    },
}

/// The sources of flow schemas and priority levels besides the built-in ones. The default has none.
#[derive(Clone, Debug, Default)]
pub struct FlowcontrolConfig {
    /// `--flowcontrol-config`: the objects of files, with their locations.
    pub files: Vec<(Object, SourceLocation)>,
    /// The reading of the cluster's objects, by `--flowcontrol-source`. `None` does not read them.
    pub cluster: Option<ClusterSourceConfig>,
}

impl AdmissionConfig {
    /// The reading of the cluster's objects, if they are read.
    #[must_use]
    pub(crate) const fn cluster(&self) -> Option<&ClusterSourceConfig> {
        match self {
            Self::Fairness { sources, .. } => sources.cluster.as_ref(),
            Self::MaxInFlight { .. } => None,
        }
    }
}

impl FlowcontrolConfig {
    /// Objects as if from a file of this name.
    #[must_use]
    pub fn from_objects(file: &str, objects: Vec<Object>) -> Self {
        let location = SourceLocation::whole_file(file);
        let files = objects.into_iter();
        Self {
            files: files.map(|object| (object, location.clone())).collect(),
            cluster: None,
        }
    }
}

/// The reading of the cluster's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSourceConfig {
    /// `--state-dir`.
    pub state_dir: Option<PathBuf>,
    /// How long weir waits before it tries again if it may not read them. No flag.
    pub retry_after_denial: Duration,
}

/// The shutdown.
#[derive(Args, Clone, Copy, Debug)]
pub struct ShutdownConfig {
    /// How long weir keeps serving after SIGTERM with only /readyz failing, so that load balancers can take it out of rotation.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    pub shutdown_delay_duration: Duration,
    /// The longest time over which open watches are ended after SIGTERM or a hand-over (200 a second, if that is sooner). 0s ends all
    /// at once, and their clients come back together.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub shutdown_watch_termination_grace_period: Duration,
}

/// The listeners for operators.
#[derive(Clone, Debug)]
pub struct AdminConfig {
    /// `--admin-address`.
    pub address: SocketAddr,
    /// TLS, authentication and authorization at that address.
    pub access: AdminAccessConfig,
    /// `--health-address`.
    pub health: Option<SocketAddr>,
    /// `--health-metrics`.
    pub health_metrics: bool,
    /// The log level, if it can be changed.
    pub log_level: Option<Arc<LogLevel>>,
    /// The effective configuration for `/configz` and `/flagz`.
    pub effective: EffectiveConfig,
    /// The interval at which weir checks the user that the API server assigns to its front-proxy
    /// certificate. At the start it also checks the permissions of its own credential. `None`
    /// disables both checks. No flag.
    pub self_check_interval: Option<Duration>,
}

/// TLS, authentication and authorization at `--admin-address`. The default is plain HTTP, open.
#[derive(Clone, Debug, Default)]
pub struct AdminAccessConfig {
    /// `--admin-tls-cert-file` and `--admin-tls-private-key-file`. `None` for plain HTTP.
    pub certificate: Option<Arc<CertifiedKey>>,
    /// `--admin-client-ca-file`.
    pub client_ca: Option<CertificatePool>,
    /// `--admin-token-file`; empty without it.
    pub tokens: TokenList,
    /// `--admin-authorization-mode`.
    pub authorization: AdminAuthorizationMode,
    /// Whether a listener beyond the loopback may be open: that of a playground, whose data are made
    /// up.
    pub may_be_open: bool,
}

impl AdminAccessConfig {
    /// Whether each request is answered.
    #[must_use]
    pub(crate) const fn is_open(&self) -> bool {
        let Self {
            certificate: _,
            client_ca,
            tokens,
            authorization,
            may_be_open: _,
        } = self;
        client_ca.is_none()
            && tokens.is_empty()
            && matches!(authorization, AdminAuthorizationMode::AlwaysAllow)
    }
}

/// How requests at `--admin-address` are authorized, by kubelet's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AdminAuthorizationMode {
    /// Every authenticated client may read.
    #[default]
    #[value(name = "AlwaysAllow")]
    AlwaysAllow,
    /// The API server authenticates tokens (TokenReview) and decides what a user may read
    /// (SubjectAccessReview).
    #[value(name = "Webhook")]
    Webhook,
}

/// The logs and traces of requests.
#[derive(Clone, Debug, Default)]
pub struct ReportingConfig {
    /// `--audit-log-path` and the other `--audit-*` flags.
    pub audit: Option<audit::AuditConfig>,
    /// `--record-path` and the other `--record-*` flags.
    pub recording: Option<RecordingConfig>,
    /// `--explain-responses`.
    pub explain: bool,
    /// `--tracing-config-file`.
    pub spans: Option<spans::config::TracingConfig>,
    /// Counts the lines that the log dropped.
    pub dropped_lines: DroppedLineCounter,
}
