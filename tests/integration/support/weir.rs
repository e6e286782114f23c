//! weir itself, in this process, and the doors to it.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use weir::app::App;
use weir::app::Ended;
use weir::config;
use weir::config::Config;
use weir::identity::TokenFile;
use weir::limits::max_in_flight;
use weir::server::tls;
use weir::upstream;
use weir::upstream::connector::Target;
use weir::upstream::headers::IdentityHeaders;

use crate::support::Http;
use crate::support::certificates;
use crate::support::certificates::Issued;
use crate::support::certificates::pki;
use crate::support::client::Answer;
use crate::support::client::Client;
use crate::support::eventually;
use crate::support::frames::Frames;
use crate::support::message::Framing;
use crate::support::within;
use crate::support::wire::Wire;

/// The token file: alice by `alice-token`, root of system:masters by `root-token`.
pub const TOKENS: &str = "alice-token,alice,u-alice,dev\nroot-token,root,u-root,system:masters\n";

/// `Authorization` of alice, whom weir knows.
pub const ALICE: (&str, &str) = ("authorization", "Bearer alice-token");

/// `Authorization` of root, whom weir knows.
pub const ROOT: (&str, &str) = ("authorization", "Bearer root-token");

/// How weir is to be set up.
pub struct Setup {
    config: Config,
}

/// weir in front of `upstream`: one worker, no limits, everything else as the flags have it.
pub fn before(upstream: SocketAddr) -> Setup {
    let tls = |certificate| certificates::client_config(&[], certificate);
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = Config {
        serving: config::Serving {
            address: loopback,
            tls: tls::Config {
                chain: vec![pki().server.certificate.clone()],
                key: pki().server.key(),
                client_ca: Some(pki().clients.roots()),
                tls13_only: false,
            },
            max_streams: 100,
            goaway_chance: 0.0,
            max_connections: 1000,
            trusted_proxies: Vec::new(),
        },
        identity: config::Identity {
            client_ca: Some(pki().clients.roots()),
            tokens: TokenFile::parse(TOKENS).unwrap(),
            headers: IdentityHeaders::default(),
        },
        limits: max_in_flight::Config {
            read_only: 0.into(),
            mutating: 0.into(),
        },
        request_timeout: Duration::from_secs(60),
        upstream: upstream::Config {
            target: Target {
                authority: upstream.to_string().parse().unwrap(),
                server_name: "127.0.0.1".try_into().unwrap(),
                proxy: None,
            },
            plain: tls(None),
            asserting: Some(tls(Some(&pki().proxy))),
            own: tls(None),
            most_connections: 8,
        },
        shutdown: config::Shutdown {
            delay: Duration::ZERO,
            watch_grace: Duration::ZERO,
        },
        admin: config::Admin {
            address: loopback,
            health: None,
            health_metrics: false,
        },
        workers: 1,
        provider: certificates::provider(),
    };
    Setup { config }
}

impl Setup {
    /// `--max-requests-inflight` and `--max-mutating-requests-inflight`.
    pub fn limits(mut self, read_only: u32, mutating: u32) -> Self {
        self.config.limits = max_in_flight::Config {
            read_only: read_only.into(),
            mutating: mutating.into(),
        };
        self
    }

    /// `--request-timeout`.
    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.config.request_timeout = limit;
        self
    }

    /// `--upstream-max-connections`.
    pub fn upstream_connections(mut self, most: usize) -> Self {
        self.config.upstream.most_connections = most;
        self
    }

    /// `--max-connections`.
    pub fn max_connections(mut self, most: usize) -> Self {
        self.config.serving.max_connections = most;
        self
    }

    /// `--goaway-chance`.
    pub fn goaway_chance(mut self, chance: f64) -> Self {
        self.config.serving.goaway_chance = chance;
        self
    }

    /// `--trusted-proxies` with where the tests' clients are.
    pub fn trusting_its_clients(mut self) -> Self {
        self.config.serving.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
        self
    }

    /// Without `--proxy-client-cert-file`.
    pub fn without_front_proxy(mut self) -> Self {
        self.config.upstream.asserting = None;
        self
    }

    /// `--requestheader-username-headers` and the others.
    pub fn identity_headers(mut self, headers: IdentityHeaders) -> Self {
        self.config.identity.headers = headers;
        self
    }

    /// Binds, and serves from now on.
    pub async fn start(self) -> Weir {
        let app = App::bind(self.config).unwrap();
        let addresses = app.addresses();
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = tokio::spawn(async move {
            let stop = async {
                if stopped.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            app.run(stop, std::future::pending()).await
        });
        Weir {
            door: Door {
                clients: addresses.clients,
                admin: addresses.admin,
            },
            stop,
            ended,
        }
    }
}

/// weir, running.
pub struct Weir {
    door: Door,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Ended>,
}

impl Weir {
    /// Tells it to go; what comes is how it ended.
    pub fn stop(self) -> JoinHandle<Ended> {
        self.stop.send(()).unwrap();
        self.ended
    }
}

impl Deref for Weir {
    type Target = Door;
    fn deref(&self) -> &Door {
        &self.door
    }
}

/// Where weir can be reached.
#[derive(Clone, Copy, Debug)]
pub struct Door {
    pub clients: SocketAddr,
    pub admin: SocketAddr,
}

impl Door {
    /// A TLS connection.
    pub async fn dial(&self, tls: Arc<ClientConfig>) -> TlsStream<TcpStream> {
        let tcp = self.tcp().await;
        let name = "127.0.0.1".try_into().unwrap();
        within("the TLS handshake", TlsConnector::from(tls).connect(name, tcp))
            .await
            .unwrap()
    }

    /// A TCP connection.
    pub async fn tcp(&self) -> TcpStream {
        within("a connection", TcpStream::connect(self.clients)).await.unwrap()
    }

    /// HTTP/1.1 by hand, without a certificate.
    pub async fn wire(&self) -> Wire {
        self.wire_of(None).await
    }

    /// HTTP/1.1 by hand, with a certificate.
    pub async fn wire_of(&self, certificate: Option<&Issued>) -> Wire {
        let tls = certificates::client_config(&[Http::One.alpn()], certificate);
        Wire::new(self.dial(Arc::new(tls)).await)
    }

    /// HTTP/2 by hand, without a certificate.
    pub async fn frames(&self) -> Frames {
        let tls = certificates::client_config(&[Http::Two.alpn()], None);
        Frames::client(Box::new(self.dial(Arc::new(tls)).await)).await
    }

    fn client_with(&self, http: Http, certificate: Option<&Issued>, headers: &[(&str, &str)]) -> Client {
        let tls = certificates::client_config(&[http.alpn()], certificate);
        Client::new(*self, http, tls, headers)
    }

    /// A client that sends no credential.
    pub fn anonymous(&self, http: Http) -> Client {
        self.client_with(http, None, &[])
    }

    /// A client with this `Authorization`.
    pub fn bearing(&self, http: Http, authorization: (&str, &str)) -> Client {
        self.client_with(http, None, &[authorization])
    }

    /// A client whose token weir knows, and whose requests therefore go by whichever HTTP the upstream prefers.
    pub fn alice(&self, http: Http) -> Client {
        self.bearing(http, ALICE)
    }

    /// A client with a certificate.
    pub fn certified(&self, http: Http, certificate: &Issued) -> Client {
        self.client_with(http, Some(certificate), &[])
    }

    /// A client with a certificate and an `Authorization`.
    pub fn certified_bearing(&self, http: Http, own: &Issued, authorization: (&str, &str)) -> Client {
        self.client_with(http, Some(own), &[authorization])
    }

    /// What the admin listener answers.
    pub async fn operator(&self, target: &str) -> Answer {
        let tcp = within("a connection", TcpStream::connect(self.admin)).await.unwrap();
        let mut wire = Wire::new(tcp);
        wire.send(format!("GET {target} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n"))
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
    pub async fn metric(&self, series: &str) -> f64 {
        let metrics = self.operator("/metrics").await;
        let value = metrics.text().lines().find_map(|line| {
            let rest = line.strip_prefix(series)?;
            rest.strip_prefix(' ')?.parse().ok()
        });
        value.unwrap_or(0.0)
    }

    /// Waits until a metric has this value.
    pub async fn metric_becomes(&self, series: &str, expected: f64) {
        let seen = std::cell::Cell::new(f64::NAN);
        eventually("a metric to change", async || {
            seen.set(self.metric(series).await);
            (seen.get() == expected).then_some(())
        })
        .await;
    }
}
