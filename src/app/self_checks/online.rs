//! `weir check --online`: asks the API server what a start would find out, and changes nothing.
//!
//! Promises: it ends within [`TIME_LIMIT`], binds no address, and creates no object that is stored:
//! reviews are answers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::timeout;

use crate::app::cluster::server_facts::{VERSION_PATH, git_version};
use crate::app::limits::ConfiguredLimits;
use crate::app::self_checks::self_access::SelfAccess;
use crate::config::Config;
use crate::identity::request_header::IdentityHeaders;
use crate::identity::self_subject_review;
use crate::identity::transport::{ApiTransport, RemoteError, RemoteRequest, RemoteResponse};
use crate::limits::list_bytes::recommended_budget;
use crate::observe::readiness::front_proxy::{
    FrontProxyHealth, FrontProxyProbe, FrontProxyProbeOutcome, REQUIREMENTS,
};
use crate::upstream;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::forward::api_server_client::ApiServerClient;
use crate::upstream::{UpstreamConfig, UpstreamMetrics};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_kubernetes::document::Severity;

/// Longest time for everything.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The user of calls without a credential.
const ANONYMOUS: &str = "system:anonymous";

const READYZ: &str = "/readyz";

/// What the API server has answered.
#[derive(Debug, Default)]
pub(crate) struct OnlineReport {
    /// What is wrong.
    pub(crate) findings: Vec<OnlineFinding>,
    /// The API server's version, such as `v1.36.0`.
    pub(crate) server_version: Option<String>,
    /// The --max-list-bytes-inflight that would suit it, in bytes, if there is none.
    pub(crate) list_budget: Option<u64>,
    /// The user that weir's own credential belongs to.
    pub user: Option<String>,
}

/// An error or a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OnlineFinding {
    /// An error is what clients will notice.
    pub(crate) severity: Severity,
    /// The flag to change, without dashes.
    pub(crate) flag: &'static str,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl OnlineReport {
    fn add(&mut self, severity: Severity, flag: &'static str, message: impl fmt::Display) {
        self.findings.push(OnlineFinding {
            severity,
            flag,
            message: message.to_string(),
        });
    }
}

/// Asks the API server of `config`. `upstream_flag` is the flag that names it.
///
/// # Cancel safety
/// Dropping the future closes its connections.
pub(crate) async fn check_online(config: Config, upstream_flag: &'static str) -> OnlineReport {
    let mut report = OnlineReport::default();
    let mut check = OnlineCheck {
        upstream_flag,
        report: &mut report,
    };
    if timeout(TIME_LIMIT, check.run(config)).await.is_err() {
        let limit = TIME_LIMIT.as_secs();
        report.add(
            Severity::Error,
            upstream_flag,
            format!("the API server has not answered everything within {limit} s"),
        );
    }
    report
}

struct OnlineCheck<'r> {
    upstream_flag: &'static str,
    report: &'r mut OnlineReport,
}

impl OnlineCheck<'_> {
    async fn run(&mut self, config: Config) {
        let access = SelfAccess::for_check(&config);
        let is_anonymous = config.own_credentials.is_anonymous();
        let (credentials, _renewal) =
            match OwnCredentials::start(config.own_credentials, Clock).await {
                Ok(started) => started,
                Err(why) => {
                    self.report.add(Severity::Error, "kubeconfig", why);
                    return;
                }
            };
        let registry = Registry::new();
        let metrics = UpstreamMetrics::register(&registry);
        let mut reachable = None;
        for server in &config.upstream.servers {
            // Each by itself: of several, weir would choose one that is ready.
            let single = UpstreamConfig {
                servers: vec![server.clone()],
                endpoint_slices: false,
                probe_interval: None,
                ..config.upstream.clone()
            };
            let servers = upstream::server_set(&single, &Registry::new());
            let pools = upstream::internal_pools(&single, &servers, &credentials, &metrics);
            let client = ApiServerClient::new(pools, Arc::clone(&credentials));
            if self
                .check_reachable(&client, server.authority.as_str())
                .await
            {
                reachable.get_or_insert((client, single, servers));
            }
        }
        let Some((calls, upstream_config, servers)) = reachable else {
            return;
        };
        let client: Arc<dyn ApiTransport> = Arc::new(calls.clone());
        let probe = upstream::front_proxy_pools(&upstream_config, &servers, &metrics);
        let probe = probe.map(|pools| FrontProxyProbe {
            pools,
            headers: Arc::<IdentityHeaders>::new(config.identity.headers),
            health: FrontProxyHealth::register(&registry),
            interval: TIME_LIMIT,
        });
        let limits = ConfiguredLimits {
            admission: &config.admission,
            finder: config.total_finder,
            is_auto: config.is_auto_total,
            servers: config.upstream.servers.len(),
            are_local: servers.are_local(),
        };
        let (version, limits, own, front_proxy) = tokio::join!(
            get(&*client, VERSION_PATH),
            limits.review(&calls),
            check_own_credential(Arc::clone(&client), &access, is_anonymous),
            async { Some(probe.as_ref()?.probe().await) },
        );
        self.report.server_version = version.ok().and_then(|reply| git_version(&reply));
        if config.list_bytes.budget().is_none() {
            self.report.list_budget = limits.server_memory.map(recommended_budget);
        }
        if let Some(text) = limits.warning {
            let flag = "max-requests-inflight";
            self.report.add(Severity::Warning, flag, text);
        }
        self.record_own_credential(own);
        self.record_front_proxy(front_proxy);
    }

    /// Whether the API server responds. Adds why it does not.
    async fn check_reachable(&mut self, client: &dyn ApiTransport, address: &str) -> bool {
        let flag = self.upstream_flag;
        match get(client, READYZ).await {
            Err(why) => {
                let hint = unreachable_hint(&why);
                let message = format!("the API server at {address} does not respond: {why}{hint}");
                self.report.add(Severity::Error, flag, message);
                return false;
            }
            // Reported with the review of the credential, or expected of an anonymous call.
            Ok(reply) if reply.status.is_success() => {}
            Ok(RemoteResponse {
                status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN,
                ..
            }) => {}
            Ok(reply) => {
                let message = format!(
                    "the API server at {address} is not ready: GET {READYZ} gets {}",
                    reply.status
                );
                self.report.add(Severity::Warning, flag, message);
            }
        }
        true
    }

    fn record_own_credential(&mut self, own: OwnCredentialResult) {
        match own {
            OwnCredentialResult::None => self.report.user = Some(ANONYMOUS.to_owned()),
            OwnCredentialResult::Unauthorized => self.report.add(
                Severity::Error,
                "kubeconfig",
                "the API server answers 401 to weir's own credential: it has expired, was revoked, or is of another cluster",
            ),
            OwnCredentialResult::Accepted { user, missing } => {
                self.report.user = user;
                for (severity, message) in missing {
                    self.report.add(severity, "kubeconfig", message);
                }
            }
        }
    }

    fn record_front_proxy(&mut self, outcome: Option<FrontProxyProbeOutcome>) {
        const FLAG: &str = "proxy-client-cert-file";
        match outcome {
            None | Some(FrontProxyProbeOutcome::Accepted) => {}
            Some(FrontProxyProbeOutcome::Rejected(why)) => self.report.add(
                Severity::Error,
                FLAG,
                format!("the API server does not accept the certificate: {why}. {REQUIREMENTS}"),
            ),
            Some(FrontProxyProbeOutcome::Unknown(why)) => self.report.add(
                Severity::Warning,
                FLAG,
                format!("not known whether the API server accepts the certificate: {why}"),
            ),
        }
    }
}

/// What the API server says about weir's own credential.
enum OwnCredentialResult {
    /// There is none.
    None,
    Unauthorized,
    Accepted {
        user: Option<String>,
        /// A sentence for each missing permission.
        missing: Vec<(Severity, String)>,
    },
}

async fn check_own_credential(
    client: Arc<dyn ApiTransport>,
    access: &SelfAccess,
    is_anonymous: bool,
) -> OwnCredentialResult {
    if is_anonymous {
        return OwnCredentialResult::None;
    }
    let review = client.send(self_subject_review::request()).await;
    if let Ok(RemoteResponse {
        status: StatusCode::UNAUTHORIZED,
        ..
    }) = review
    {
        return OwnCredentialResult::Unauthorized;
    }
    OwnCredentialResult::Accepted {
        user: review
            .ok()
            .and_then(|reply| self_subject_review::user_name(&reply)),
        missing: access.missing(&*client).await,
    }
}

async fn get(client: &dyn ApiTransport, path: &'static str) -> Result<RemoteResponse, RemoteError> {
    client.send(RemoteRequest { path, body: None }).await
}

/// What to change if the certificate of the API server does not verify; otherwise nothing.
fn unreachable_hint(why: &RemoteError) -> &'static str {
    if why.0.contains("UnknownIssuer") {
        "; give the CA that issued the API server's certificate: --upstream-ca-file, or certificate-authority of the kubeconfig"
    } else {
        ""
    }
}
