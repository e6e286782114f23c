//! weir itself, in this process, and the doors to it.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use weir::app::App;
use weir::config;
use weir::config::Config;
use weir::config::Limits;
use weir::identity::TokenFile;
use weir::limits::max_in_flight;
use weir::limits::rates;
use weir::observe::zpages::Effective;
use weir::server::tls;
use weir::upstream;
use weir::upstream::cdn_loop::ProcessId;
use weir::upstream::connector::Target;
use weir::upstream::credentials::Source;
use weir::upstream::credentials::Token;
use weir::upstream::credentials::bearer::bearer;
use weir::upstream::headers::IdentityHeaders;

use crate::support::Http;
use crate::support::LIMIT;
use crate::support::certificates;
use crate::support::certificates::Issued;
use crate::support::certificates::pki;
use crate::support::client::Answer;
use crate::support::client::Client;
use crate::support::frames::Frames;
use crate::support::message::Framing;
use crate::support::wire::Wire;
use crate::support::wire::hold_little;
use crate::support::within;

/// The token file: alice by `alice-token`, root of system:masters by `root-token`.
pub(crate) const TOKENS: &str =
    "alice-token,alice,u-alice,dev\nroot-token,root,u-root,system:masters\n";

/// `Authorization` of alice, whom weir knows.
pub(crate) const ALICE: (&str, &str) = ("authorization", "Bearer alice-token");

/// `Authorization` of root, whom weir knows.
pub(crate) const ROOT: (&str, &str) = ("authorization", "Bearer root-token");

/// How weir is to be set up.
pub(crate) struct Setup {
    config: Config,
}

/// weir in front of `upstream`: one worker, no limits, no refusal held back, everything else as the flags have it.
pub(crate) fn before(upstream: SocketAddr) -> Setup {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = Config {
        serving: config::Serving {
            address: loopback,
            tls: tls::Config {
                certificate: pki().server.certified_key(),
                client_ca: Some(pki().clients.roots()),
                tls13_only: false,
            },
            max_streams: 100,
            goaway_chance: 0.0,
            header_timeout: Duration::from_secs(10),
            resets_per_second: 50,
            max_connections: 1000,
            trusted_proxies: Vec::new(),
            proxy_protocol: false,
        },
        identity: config::Identity {
            client_ca: Some(pki().clients.roots()),
            tokens: TokenFile::parse(TOKENS).unwrap(),
            headers: IdentityHeaders::default(),
            front_proxies: None,
            verification: config::Verification {
                issuers: Vec::new(),
                account_keys: None,
                account_issuers: Vec::new(),
                audiences: Vec::new(),
                ttl: Duration::from_secs(120),
                reviews_per_second: 50,
            },
            impersonation: config::Impersonation {
                classify: false,
                reviews_per_second: 50,
            },
        },
        rates: rates::Config::default(),
        limits: Limits::MaxInFlight(max_in_flight::Config {
            read_only: 0.into(),
            mutating: 0.into(),
        }),
        request_timeout: Duration::from_secs(60),
        rejection_hold: Duration::ZERO,
        transfers: config::Transfers::default(),
        object_count_poll_period: Duration::ZERO, // what reaches the upstream is the test's
        upstream: upstream::Config {
            target: Target {
                authority: upstream.to_string().parse().unwrap(),
                server_name: "127.0.0.1".try_into().unwrap(),
                proxy: None,
            },
            roots: pki().servers.roots(),
            front_proxy: Some(pki().proxy.certified_key()),
            most_connections: 8,
            room: 1024,
            id: ProcessId::generate().unwrap(),
        },
        own: Source::Given {
            certificate: None,
            token: None,
        },
        impersonate: false,
        shutdown: config::Shutdown {
            delay: Duration::ZERO,
            watch_grace: Duration::ZERO,
        },
        admin: config::Admin {
            address: loopback,
            health: None,
            health_metrics: false,
            log_level: None,
            unasked: Duration::MAX, // what reaches the upstream is the test's
            effective: Effective::default(),
            self_checks: None,
        },
        telling: config::Telling::default(),
        workers: 1,
        provider: certificates::provider(),
    };
    Setup { config }
}

impl Setup {
    /// `--max-requests-inflight` and `--max-mutating-requests-inflight`.
    pub(crate) fn limits(mut self, read_only: u32, mutating: u32) -> Self {
        self.config.limits = Limits::MaxInFlight(max_in_flight::Config {
            read_only: read_only.into(),
            mutating: mutating.into(),
        });
        self
    }

    /// Client limits and event limits.
    pub(crate) fn rates(mut self, rates: rates::Config) -> Self {
        self.config.rates = rates;
        self
    }

    /// `--request-timeout`.
    pub(crate) fn request_timeout(mut self, limit: Duration) -> Self {
        self.config.request_timeout = limit;
        self
    }

    /// `--rejection-hold`.
    pub(crate) fn rejection_hold(mut self, longest: Duration) -> Self {
        self.config.rejection_hold = longest;
        self
    }

    /// `--request-body-buffer=0`: every byte of a body goes on as it comes.
    pub(crate) fn streaming(mut self) -> Self {
        self.config.transfers.body_buffer = 0;
        self
    }

    /// `--min-transfer-rate-grace`.
    pub(crate) fn grace(mut self, grace: Duration) -> Self {
        self.config.transfers.least_rate.grace = grace;
        self
    }

    /// `--http2-max-streams-per-connection`.
    pub(crate) fn max_streams(mut self, most: u32) -> Self {
        self.config.serving.max_streams = most;
        self
    }

    /// `--upstream-max-connections`.
    pub(crate) fn upstream_connections(mut self, most: usize) -> Self {
        self.config.upstream.most_connections = most;
        self
    }

    /// `--max-connections`.
    pub(crate) fn max_connections(mut self, most: usize) -> Self {
        self.config.serving.max_connections = most;
        self
    }

    /// `--goaway-chance`.
    pub(crate) fn goaway_chance(mut self, chance: f64) -> Self {
        self.config.serving.goaway_chance = chance;
        self
    }

    /// `--trusted-proxies` with where the tests' clients are.
    pub(crate) fn trusting_its_clients(mut self) -> Self {
        self.config.serving.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
        self
    }

    /// `--proxy-protocol`.
    pub(crate) fn by_proxy_protocol(mut self) -> Self {
        self.config.serving.proxy_protocol = true;
        self.trusting_its_clients()
    }

    /// `--proxy-protocol`, and other `--trusted-proxies` than the tests' clients.
    pub(crate) fn by_proxy_protocol_from_elsewhere(mut self) -> Self {
        self.config.serving.proxy_protocol = true;
        self.config.serving.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap()];
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

    /// `--requestheader-username-headers` and the others.
    pub(crate) fn identity_headers(mut self, headers: IdentityHeaders) -> Self {
        self.config.identity.headers = headers;
        self
    }

    /// With credentials of its own for its own calls: this token.
    pub(crate) fn calling_with(self, token: &str) -> Self {
        let token = Some(Token::Given(bearer(token).unwrap()));
        self.with(|config| {
            config.own = Source::Given {
                certificate: None,
                token,
            };
        })
    }

    /// With whatever else is to be different.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Binds, and serves from now on.
    pub(crate) async fn start(self) -> Weir {
        let app = App::bind(self.config).await.unwrap();
        let addresses = app.addresses();
        // Until the test ends: how weir itself ends is for a process to show.
        tokio::spawn(app.run(std::future::pending(), std::future::pending()));
        Weir(Door {
            clients: addresses.clients,
            admin: addresses.admin,
        })
    }
}

/// weir, running.
pub(crate) struct Weir(Door);

impl Deref for Weir {
    type Target = Door;
    fn deref(&self) -> &Door {
        &self.0
    }
}

/// Where weir can be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Door {
    pub(crate) clients: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Door {
    /// A TLS connection.
    pub(crate) async fn dial(&self, tls: Arc<ClientConfig>) -> TlsStream<TcpStream> {
        let tcp = self.tcp().await;
        let name = "127.0.0.1".try_into().unwrap();
        within(
            "the TLS handshake",
            TlsConnector::from(tls).connect(name, tcp),
        )
        .await
        .unwrap()
    }

    /// A TCP connection.
    pub(crate) async fn tcp(&self) -> TcpStream {
        let tcp = within("a connection", TcpStream::connect(self.clients))
            .await
            .unwrap();
        hold_little(&tcp);
        tcp
    }

    /// HTTP/1.1 by hand, without a certificate.
    pub(crate) async fn wire(&self) -> Wire {
        self.wire_of(None).await
    }

    /// HTTP/1.1 by hand, with a certificate.
    pub(crate) async fn wire_of(&self, certificate: Option<&Issued>) -> Wire {
        let tls = certificates::client_config(&[Http::One.alpn()], certificate);
        Wire::new(self.dial(Arc::new(tls)).await)
    }

    /// HTTP/2 by hand, without a certificate.
    pub(crate) async fn frames(&self) -> Frames {
        let tls = certificates::client_config(&[Http::Two.alpn()], None);
        Frames::client(Box::new(self.dial(Arc::new(tls)).await)).await
    }

    fn client_with(
        &self,
        http: Http,
        certificate: Option<&Issued>,
        headers: &[(&str, &str)],
    ) -> Client {
        let tls = certificates::client_config(&[http.alpn()], certificate);
        Client::new(*self, http, tls, headers)
    }

    /// A client that sends no credential.
    pub(crate) fn anonymous(&self, http: Http) -> Client {
        self.client_with(http, None, &[])
    }

    /// A client with this `Authorization`.
    pub(crate) fn bearing(&self, http: Http, authorization: (&str, &str)) -> Client {
        self.client_with(http, None, &[authorization])
    }

    /// A client whose token weir knows, and whose requests therefore go by whichever HTTP the upstream prefers.
    pub(crate) fn alice(&self, http: Http) -> Client {
        self.bearing(http, ALICE)
    }

    /// A client with a certificate.
    pub(crate) fn certified(&self, http: Http, certificate: &Issued) -> Client {
        self.client_with(http, Some(certificate), &[])
    }

    /// A client with a certificate and an `Authorization`.
    pub(crate) fn certified_bearing(
        &self,
        http: Http,
        own: &Issued,
        authorization: (&str, &str),
    ) -> Client {
        self.client_with(http, Some(own), &[authorization])
    }

    /// What the admin listener answers.
    pub(crate) async fn operator(&self, target: &str) -> Answer {
        let tcp = within("a connection", TcpStream::connect(self.admin))
            .await
            .unwrap();
        let mut wire = Wire::new(tcp);
        wire.send(format!(
            "GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        ))
        .await;
        let answered = wire.answered().await;
        let body = wire.body(Framing::of_answer(&answered, "GET")).await;
        Answer {
            status: answered.status,
            headers: answered.headers,
            body,
            trailers: Default::default(),
        }
    }

    /// The value of a metric, by its name and labels as they are written; 0 if there is none.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        let metrics = self.operator("/metrics").await;
        let value = metrics.text().lines().find_map(|line| {
            let rest = line.strip_prefix(series)?;
            rest.strip_prefix(' ')?.parse().ok()
        });
        value.unwrap_or(0.0)
    }

    /// Waits until `count` grows no more over many round trips through the worker, and fails if it passes `most` before.
    pub(crate) async fn comes_to_rest(&self, count: &AtomicUsize, most: usize) {
        let mut client = self.anonymous(Http::Two);
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
    pub(crate) async fn metric_becomes(&self, series: &str, expected: f64) {
        let mut seen = f64::NAN;
        let becomes = async {
            while seen != expected {
                seen = self.metric(series).await;
            }
        };
        if tokio::time::timeout(LIMIT, becomes).await.is_err() {
            let metrics = self.operator("/metrics").await;
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
