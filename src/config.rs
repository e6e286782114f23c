//! What the program runs from: one value that cannot be wrong.
//!
//! Gathers each module's own piece. Made by `cli` from flags and files, taken apart by `app`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;

use crate::api::flowcontrol::Object;
use crate::flowcontrol::controller;
use crate::identity::TokenFile;
use crate::identity::jwt::JwtIssuer;
use crate::identity::jwt::KeySet;
use crate::limits::max_in_flight;
use crate::limits::rate;
use crate::limits::upgrade_rate::DEFAULT_UPGRADES_PER_SECOND;
use crate::minimum_rate::MinimumRate;
use crate::observe::admin::log_level::LogLevel;
use crate::observe::admin::zpages::EffectiveConfig;
use crate::observe::audit;
use crate::observe::logging::non_blocking::DroppedLineCounter;
use crate::observe::spans;
use crate::pipeline::request_body::DEFAULT_BODY_BUFFER;
use crate::server::tls;
use crate::upstream;
use crate::upstream::credentials::CredentialSource;
use crate::upstream::headers::IdentityHeaders;

/// Everything that `weir serve` needs to know.
#[derive(Debug)]
pub struct Config {
    /// Towards clients.
    pub serving: ServingConfig,
    /// Who asks.
    pub identity: IdentityConfig,
    /// How much at all.
    pub rates: rate::RateLimitsConfig,
    /// How much at a time.
    pub admission: AdmissionConfig,
    /// `--request-timeout`.
    pub request_timeout: Duration,
    /// `--rejection-hold`.
    pub rejection_hold: Duration,
    /// What clients have to keep to.
    pub transfers: TransferConfig,
    /// `--object-count-poll-period`; zero where the API server is not asked.
    pub object_count_poll_period: Duration,
    /// Which API server.
    pub upstream: upstream::UpstreamConfig,
    /// What weir's own calls to it carry.
    pub own_credentials: CredentialSource,
    /// `--assert-by=impersonation`: these also assert a certificate's user.
    pub assert_by_impersonation: bool,
    /// Going away.
    pub shutdown: ShutdownConfig,
    /// For operators.
    pub admin: AdminConfig,
    /// What is told of requests.
    pub reporting: ReportingConfig,
    /// `--workers`.
    pub workers: usize,
    /// The cryptography that every part uses.
    pub crypto_provider: Arc<CryptoProvider>,
}

/// Towards clients.
#[derive(Debug)]
pub struct ServingConfig {
    /// `--bind-address` and `--secure-port`.
    pub address: SocketAddr,
    /// What the listener presents.
    pub tls: tls::ListenerTlsConfig,
    /// `--http2-max-streams-per-connection`.
    pub max_streams: u32,
    /// `--goaway-chance`.
    pub goaway_chance: f64,
    /// `--request-header-timeout`; zero is none.
    pub header_timeout: Duration,
    /// `--http2-max-resets-per-second`; 0 is no limit.
    pub resets_per_second: u32,
    /// `--max-connections`, or what the open-file limit allows.
    pub max_connections: usize,
    /// `--trusted-proxies`.
    pub trusted_proxies: Vec<IpNet>,
    /// `--proxy-protocol`.
    pub proxy_protocol: bool,
}

/// What clients have to keep to while their requests are under way.
#[derive(Clone, Copy, Debug)]
pub struct TransferConfig {
    /// `--request-body-buffer`, in bytes.
    pub body_buffer: usize,
    /// `--min-transfer-rate` and `--min-transfer-rate-grace`.
    pub minimum_rate: MinimumRate,
    /// `--unproven-upgrades-per-second`; 0 is no limit.
    pub upgrades_per_second: u32,
}

impl Default for TransferConfig {
    fn default() -> Self {
        Self {
            body_buffer: DEFAULT_BODY_BUFFER,
            minimum_rate: MinimumRate::default(),
            upgrades_per_second: DEFAULT_UPGRADES_PER_SECOND,
        }
    }
}

/// Who asks.
#[derive(Debug)]
pub struct IdentityConfig {
    /// `--client-ca-file`.
    pub client_ca: Option<RootCertStore>,
    /// `--token-auth-file`; empty where it is not given.
    pub tokens: TokenFile,
    /// `--requestheader-*-headers`.
    pub headers: IdentityHeaders,
    /// `--requestheader-client-ca-file`, if there is one.
    pub front_proxies: Option<FrontProxyConfig>,
    /// How other tokens are verified.
    pub verification: VerificationConfig,
    /// Those who want to be taken for somebody else.
    pub impersonation: ImpersonationConfig,
}

/// Those who want to be taken for somebody else.
#[derive(Clone, Copy, Debug)]
pub struct ImpersonationConfig {
    /// `--classify-impersonated`.
    pub classify: bool,
    /// `--access-reviews-per-second`.
    pub reviews_per_second: u32,
}

/// Front proxies before weir.
#[derive(Debug)]
pub struct FrontProxyConfig {
    /// `--requestheader-client-ca-file`.
    pub ca: RootCertStore,
    /// `--requestheader-allowed-names`.
    pub allowed_names: Vec<String>,
}

/// How tokens are verified that are in no file.
#[derive(Debug)]
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

/// Where an issuer's keys are.
#[derive(Clone, Debug)]
pub enum IssuerKeys {
    /// They were given.
    Configured(KeySet),
    /// At this URL, if these roots vouch for it.
    Url(String, RootCertStore),
    /// Where the discovery document at this URL says, likewise.
    Discovery(String, RootCertStore),
}

impl Config {
    /// Whether tokens that are in no file can be verified; otherwise they are all strangers'.
    #[must_use]
    pub fn verifies_tokens(&self) -> bool {
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

/// How much at a time: which of the ways, and its settings.
#[derive(Debug)]
pub enum AdmissionConfig {
    /// `--enable-priority-and-fairness`.
    Fairness {
        /// The total, the enforcement.
        config: controller::ControllerConfig,
        /// Flow schemas and priority levels, the built-in ones among them.
        objects: Vec<Object>,
    },
    /// `--enable-priority-and-fairness=false`.
    MaxInFlight(max_in_flight::MaxInFlightConfig),
}

/// Going away.
#[derive(Clone, Copy, Debug)]
pub struct ShutdownConfig {
    /// `--shutdown-delay-duration`.
    pub delay: Duration,
    /// `--shutdown-watch-termination-grace-period`.
    pub watch_grace: Duration,
}

/// For operators.
#[derive(Clone, Debug)]
pub struct AdminConfig {
    /// `--admin-address`.
    pub address: SocketAddr,
    /// `--health-address`.
    pub health: Option<SocketAddr>,
    /// `--health-metrics`.
    pub health_metrics: bool,
    /// What is logged, where that can be changed.
    pub log_level: Option<Arc<LogLevel>>,
    /// How long nobody need ask whether the API server answers until weir does by itself; no flag.
    pub readiness_poll_after: Duration,
    /// What weir was started with, as `/configz` and `/flagz` show it.
    pub effective: EffectiveConfig,
    /// How often weir asks whom the API server takes its front-proxy certificate's requests for; at the start it asks what its
    /// own credential may do, too. `None` asks neither. No flag.
    pub self_check_interval: Option<Duration>,
}

/// What is told of requests.
#[derive(Clone, Debug, Default)]
pub struct ReportingConfig {
    /// `--audit-log-path` and its like.
    pub audit: Option<audit::AuditConfig>,
    /// `--explain-responses`.
    pub explain: bool,
    /// `--tracing-config-file`.
    pub spans: Option<spans::config::TracingConfig>,
    /// What counts the log's own losses.
    pub dropped_lines: DroppedLineCounter,
}
