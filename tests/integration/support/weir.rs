//! weir in this process, and connections to it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use weir::app::App;
use weir::config::{AdmissionConfig, Config, FlowcontrolConfig};
use weir::flowcontrol::controller::{ControllerConfig, Enforcement};
use weir::identity::TokenFile;
use weir::identity::request_header::IdentityHeaders;
use weir::limits::list_bytes::ListBytesConfig;
use weir::limits::total_finder::AutoTotalConfig;
use weir::observe::admin::zpages::EffectiveConfig;
use weir::pipeline::dependencies::TransferConfig;
use weir::pipeline::reject::delay::RejectionDelayConfig;
use weir::server::settings::{AddressLimit, ConnectionConfig, ServingConfig, TrustedProxyConfig};
use weir::server::tls;
use weir::upstream::connection::address::ServerAddress;
use weir::upstream::credentials::{BearerToken, CredentialSource};
use weir::upstream::loop_detection::cdn_loop::InstanceId;
use weir::{config, upstream};
use weir_limits::max_in_flight;
use weir_limits::rate;
use weir_tokens::bearer::bearer_header;

use crate::support::certificates::{IssuedCertificate, pki};
use crate::support::client::{FullResponse, TestClient};
use crate::support::message::Framing;
use crate::support::raw_http1::{RawHttp1, limit_socket_buffers};
use crate::support::raw_http2::RawHttp2;
use crate::support::{EVENT_TIMEOUT, HttpVersion, certificates, within};

/// The token file: `alice-token` for alice, `root-token` for root of system:masters.
pub(crate) const TOKENS: &str =
    "alice-token,alice,u-alice,dev\nroot-token,root,u-root,system:masters\n";

/// `Authorization` of alice, with a token of the token file.
pub(crate) const ALICE: (&str, &str) = ("authorization", "Bearer alice-token");

/// `Authorization` of root, with a token of the token file.
pub(crate) const ROOT: (&str, &str) = ("authorization", "Bearer root-token");

/// The API server at `address`.
pub(crate) fn server_address(address: SocketAddr) -> ServerAddress {
    ServerAddress::new(
        address.to_string().parse().unwrap(),
        "127.0.0.1".try_into().unwrap(),
    )
}

/// The configuration of weir.
pub(crate) struct WeirBuilder {
    config: Config,
}

/// weir in front of `upstream`: one worker, no limits, no delayed rejections, otherwise the flags'
/// defaults.
pub(crate) fn builder(upstream: SocketAddr) -> WeirBuilder {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = Config {
        control: None,
        serving: ServingConfig {
            address: loopback,
            tls: tls::ListenerTlsConfig {
                certificate: pki().server.certified_key(),
                client_ca: Some(pki().client_ca.roots()),
                named_certificates: Vec::new(),
                tls13_only: false,
                cipher_suites: Vec::new(),
                curves: Vec::new(),
            },
            max_connections: 1000,
            connections: ConnectionConfig {
                // clients of tests have one address
                max_connections_per_address: Some(AddressLimit::Unlimited),
                ..ConnectionConfig::default()
            },
            proxies: TrustedProxyConfig::default(),
        },
        identity: config::IdentityConfig {
            client_ca: Some(pki().client_ca.roots()),
            tokens: TokenFile::parse(TOKENS).unwrap(),
            headers: IdentityHeaders::default(),
            front_proxies: None,
            verification: config::VerificationConfig {
                issuers: Vec::new(),
                service_account_keys: None,
                service_account_issuers: Vec::new(),
                audiences: Vec::new(),
                cache_ttl: Duration::from_secs(120),
                reviews_per_second: 50,
            },
            impersonation: config::ImpersonationConfig {
                classify: false,
                reviews_per_second: 50,
            },
        },
        rates: rate::RateLimitsConfig::default(),
        shared_limits: None,
        admission: AdmissionConfig::MaxInFlight {
            config: max_in_flight::MaxInFlightConfig {
                read_only: 0.into(),
                mutating: 0.into(),
            },
            enforcement: Enforcement::Enforce,
        },
        is_auto_total: false,
        total_finder: AutoTotalConfig::default(),
        request_timeout: Duration::from_secs(60),
        rejections: RejectionDelayConfig {
            rejection_hold: Duration::ZERO,
            max_rejection_millicores: 0,
        },
        transfers: TransferConfig::default(),
        memory_limit: 0,
        list_bytes: ListBytesConfig::default(),
        object_count_poll_period: Duration::ZERO, // no requests of its own to the upstream
        upstream: upstream::UpstreamConfig {
            servers: vec![server_address(upstream)],
            endpoint_slices: false,
            roots: pki().server_ca.roots(),
            front_proxy: Some(pki().front_proxy_client.certified_key()),
            max_http2_connections: 8,
            // One version, so that each test knows which connection a request uses; upstream_protocol.rs
            // tests the choice.
            protocol: upstream::UpstreamProtocol::Http2,
            max_connections: 1024,
            instance_id: InstanceId::generate().unwrap(),
            probe_interval: None, // no requests of its own to the upstream
        },
        own_credentials: CredentialSource::Configured {
            certificate: None,
            token: None,
        },
        assert_by_impersonation: false,
        shutdown: config::ShutdownConfig {
            shutdown_delay_duration: Duration::ZERO,
            shutdown_watch_termination_grace_period: Duration::ZERO,
        },
        admin: config::AdminConfig {
            address: loopback,
            access: config::AdminAccessConfig::default(),
            health: None,
            health_metrics: false,
            log_level: None,
            effective: EffectiveConfig::default(),
            self_check_interval: None,
        },
        reporting: config::ReportingConfig::default(),
        workers: 1,
        replicas: None,
        crypto_provider: certificates::provider(),
    };
    WeirBuilder { config }
}

impl WeirBuilder {
    /// `--max-requests-inflight` and `--max-mutating-requests-inflight`.
    pub(crate) fn limits(mut self, read_only: u32, mutating: u32) -> Self {
        self.config.admission = AdmissionConfig::MaxInFlight {
            config: max_in_flight::MaxInFlightConfig {
                read_only: read_only.into(),
                mutating: mutating.into(),
            },
            enforcement: Enforcement::Enforce,
        };
        self
    }

    /// API Priority and Fairness with the objects of a new cluster, in which `/readyz` is exempt.
    pub(crate) fn fairness(mut self) -> Self {
        self.config.admission = AdmissionConfig::Fairness {
            config: ControllerConfig {
                server_concurrency_limit: 600,
                request_timeout: Duration::from_secs(60),
                enforcement: Enforcement::Enforce,
                consistent_reads_from_cache: true,
            },
            sources: FlowcontrolConfig::default(),
        };
        self
    }

    /// The API server is probed, and gets no request before its `/readyz` has passed.
    pub(crate) fn probed(mut self) -> Self {
        self.config.upstream.probe_interval = Some(Duration::from_millis(20));
        self
    }

    /// Client limits and event limits.
    pub(crate) fn rates(mut self, rates: rate::RateLimitsConfig) -> Self {
        self.config.rates = rates;
        self
    }

    /// `--request-timeout`.
    pub(crate) fn request_timeout(mut self, limit: Duration) -> Self {
        self.config.request_timeout = limit;
        self
    }

    /// `--max-rejection-millicores`.
    pub(crate) fn max_rejection_millicores(mut self, limit: u32) -> Self {
        self.config.rejections.max_rejection_millicores = limit;
        self
    }

    /// `--rejection-hold`.
    pub(crate) fn rejection_hold(mut self, longest: Duration) -> Self {
        self.config.rejections.rejection_hold = longest;
        self
    }

    /// `--request-body-buffer=0`: bodies are forwarded as they arrive.
    pub(crate) fn without_body_buffer(mut self) -> Self {
        self.config.transfers.request_body_buffer = 0;
        self
    }

    /// `--min-transfer-rate-grace`.
    pub(crate) fn transfer_grace(mut self, grace: Duration) -> Self {
        self.config.transfers.min_transfer_rate_grace = grace;
        self
    }

    /// `--http2-max-streams-per-connection`.
    pub(crate) fn max_streams(mut self, most: u32) -> Self {
        self.config
            .serving
            .connections
            .http2_max_streams_per_connection = most;
        self
    }

    /// `--upstream-max-connections`.
    pub(crate) fn upstream_connections(mut self, most: usize) -> Self {
        self.config.upstream.max_http2_connections = most;
        self
    }

    /// `--max-connections`.
    pub(crate) fn max_connections(mut self, most: usize) -> Self {
        self.config.serving.max_connections = most;
        self
    }

    /// `--goaway-chance`.
    pub(crate) fn goaway_chance(mut self, chance: f64) -> Self {
        self.config.serving.connections.goaway_chance = chance;
        self
    }

    /// `--trusted-proxies` with the address of the tests' clients.
    pub(crate) fn trust_test_clients(mut self) -> Self {
        self.config.serving.proxies.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
        self
    }

    /// `--proxy-protocol`.
    pub(crate) fn proxy_protocol(mut self) -> Self {
        self.config.serving.proxies.proxy_protocol = true;
        self.trust_test_clients()
    }

    /// `--proxy-protocol`, with `--trusted-proxies` that do not include the tests' clients.
    pub(crate) fn proxy_protocol_from_other_networks(mut self) -> Self {
        self.config.serving.proxies.proxy_protocol = true;
        self.config.serving.proxies.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap()];
        self
    }

    /// Without `--proxy-client-cert-file`.
    pub(crate) fn without_front_proxy(mut self) -> Self {
        self.config.upstream.front_proxy = None;
        self
    }

    /// Without `--client-ca-file`.
    pub(crate) fn without_client_ca(mut self) -> Self {
        self.config.serving.tls.client_ca = None;
        self.config.identity.client_ca = None;
        self
    }

    /// `--requestheader-username-headers` and the like.
    pub(crate) fn identity_headers(mut self, headers: IdentityHeaders) -> Self {
        self.config.identity.headers = headers;
        self
    }

    /// With this token for weir's own requests.
    pub(crate) fn own_token(self, token: &str) -> Self {
        let token = Some(BearerToken::Inline(bearer_header(token).unwrap()));
        self.with(|config| {
            config.own_credentials = CredentialSource::Configured {
                certificate: None,
                token,
            };
        })
    }

    /// With any other change of the configuration.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// The configuration.
    pub(crate) fn into_config(self) -> Config {
        self.config
    }

    /// Binds and starts to serve.
    pub(crate) async fn start(self) -> Weir {
        let app = App::bind(self.config).await.unwrap();
        let addresses = app.addresses();
        // Until the test ends. Shutdown is tested with a process.
        tokio::spawn(app.run(std::future::pending(), std::future::pending()));
        Weir(Endpoints {
            clients: addresses.clients,
            admin: addresses.admin,
        })
    }
}

/// A running weir.
pub(crate) struct Weir(Endpoints);

impl Deref for Weir {
    type Target = Endpoints;
    fn deref(&self) -> &Endpoints {
        &self.0
    }
}

/// The addresses of weir.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoints {
    pub(crate) clients: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Endpoints {
    /// A TLS connection.
    pub(crate) async fn connect_tls(&self, tls: Arc<ClientConfig>) -> TlsStream<TcpStream> {
        let tcp = self.connect_tcp().await;
        let name = "127.0.0.1".try_into().unwrap();
        within(
            "the TLS handshake",
            TlsConnector::from(tls).connect(name, tcp),
        )
        .await
        .unwrap()
    }

    /// A TCP connection.
    pub(crate) async fn connect_tcp(&self) -> TcpStream {
        let tcp = within("a connection", TcpStream::connect(self.clients))
            .await
            .unwrap();
        limit_socket_buffers(&tcp);
        tcp
    }

    /// Raw HTTP/1.1 without a certificate.
    pub(crate) async fn raw_http1(&self) -> RawHttp1 {
        self.raw_http1_with_certificate(None).await
    }

    /// Raw HTTP/1.1 with a certificate.
    pub(crate) async fn raw_http1_with_certificate(
        &self,
        certificate: Option<&IssuedCertificate>,
    ) -> RawHttp1 {
        let tls = certificates::client_tls_config(&[HttpVersion::Http1.alpn()], certificate);
        RawHttp1::new(self.connect_tls(Arc::new(tls)).await)
    }

    /// Raw HTTP/2 without a certificate.
    pub(crate) async fn raw_http2(&self) -> RawHttp2 {
        let tls = certificates::client_tls_config(&[HttpVersion::Http2.alpn()], None);
        RawHttp2::client(Box::new(self.connect_tls(Arc::new(tls)).await)).await
    }

    fn client(
        &self,
        http: HttpVersion,
        certificate: Option<&IssuedCertificate>,
        headers: &[(&str, &str)],
    ) -> TestClient {
        let tls = certificates::client_tls_config(&[http.alpn()], certificate);
        TestClient::new(*self, http, tls, headers)
    }

    /// A client without credentials.
    pub(crate) fn anonymous(&self, http: HttpVersion) -> TestClient {
        self.client(http, None, &[])
    }

    /// A client with this `Authorization`.
    pub(crate) fn with_authorization(
        &self,
        http: HttpVersion,
        authorization: (&str, &str),
    ) -> TestClient {
        self.client(http, None, &[authorization])
    }

    /// A client with a known token, whose requests use the HTTP version that the upstream prefers.
    pub(crate) fn alice(&self, http: HttpVersion) -> TestClient {
        self.with_authorization(http, ALICE)
    }

    /// A client with a certificate.
    pub(crate) fn with_certificate(
        &self,
        http: HttpVersion,
        certificate: &IssuedCertificate,
    ) -> TestClient {
        self.client(http, Some(certificate), &[])
    }

    /// A client with a certificate and an `Authorization`.
    pub(crate) fn with_certificate_and_authorization(
        &self,
        http: HttpVersion,
        own: &IssuedCertificate,
        authorization: (&str, &str),
    ) -> TestClient {
        self.client(http, Some(own), &[authorization])
    }

    /// The response of the admin listener.
    pub(crate) async fn get_admin(&self, target: &str) -> FullResponse {
        let tcp = within("a connection", TcpStream::connect(self.admin))
            .await
            .unwrap();
        let mut wire = RawHttp1::new(tcp);
        wire.send(format!(
            "GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        ))
        .await;
        let answered = wire.read_response_head().await;
        let body = wire
            .read_body(Framing::from_response(&answered, "GET"))
            .await;
        FullResponse {
            status: answered.status,
            headers: answered.headers,
            body,
            trailers: Default::default(),
        }
    }

    /// The value of a metric with these labels, as written in the exposition; 0 if it has not been
    /// counted yet. Fails if weir has no such metric, or one with other labels.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        assert_known_series(series);
        let metrics = self.get_admin("/metrics").await;
        let value = metrics.text().lines().find_map(|line| {
            let rest = line.strip_prefix(series)?;
            rest.strip_prefix(' ')?.parse().ok()
        });
        value.unwrap_or(0.0)
    }

    /// Waits until `count` has stayed constant over many round trips through the worker. Fails if
    /// it exceeds `most` before.
    pub(crate) async fn wait_until_stable(&self, count: &AtomicUsize, most: usize) {
        let mut client = self.anonymous(HttpVersion::Http2);
        loop {
            let before = count.load(Ordering::SeqCst);
            for _ in 0..50 {
                // weir answers this one itself.
                assert_eq!(client.get("/api/v1/watch").await.status, 500);
            }
            let now = count.load(Ordering::SeqCst);
            assert!(now <= most, "{now}, and no end of it");
            if now > 0 && now == before {
                return;
            }
        }
    }

    /// Waits until a metric has this value.
    pub(crate) async fn wait_for_metric(&self, series: &str, expected: f64) {
        let mut seen = f64::NAN;
        let becomes = async {
            while seen != expected {
                seen = self.metric(series).await;
            }
        };
        if tokio::time::timeout(EVENT_TIMEOUT, becomes).await.is_err() {
            let metrics = self.get_admin("/metrics").await;
            let name = series.split('{').next().unwrap_or_default();
            let like: Vec<&str> = metrics
                .text()
                .lines()
                .filter(|l| l.starts_with(name))
                .collect();
            panic!("{series} should become {expected} and is {seen}: {like:#?}");
        }
    }
}

/// All metrics.
const METRICS: &str = include_str!("../../../docs/reference/metrics.md");

/// Fails if the reference of metrics, which is made from what weir registers, has no such series.
fn assert_known_series(series: &str) {
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    // `a="1",b="2"}`: each second part is a value.
    let keys = labels.split('"').step_by(2);
    let keys = keys.map(|key| key.trim_matches([',', '=', '}']));
    let keys: BTreeSet<_> = keys.filter(|key| !key.is_empty() && *key != "le").collect();
    let family = ["_bucket", "_sum", "_count"];
    let family = family.iter().find_map(|part| name.strip_suffix(part));
    let listed = METRICS.lines().any(|row| {
        let mut cells = row.split(" | ");
        let of = cells.next().map(|name| name.trim_matches(['|', ' ', '`']));
        let labels = cells.next().unwrap_or_default().split(", ");
        let labels: BTreeSet<_> = labels
            .map(str::trim)
            .filter(|label| !label.is_empty())
            .collect();
        of.is_some_and(|of| of == name || Some(of) == family) && labels == keys
    });
    assert!(listed, "weir has no metric {name} with the labels {keys:?}");
}
