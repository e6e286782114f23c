//! Authentication in front of an API server that decides for itself: the playground records the
//! user of each request and the token reviews. Every valid way to authenticate works, and every
//! spoofing fails.

mod audit_log;
mod impersonation;
mod impersonation_attacks;
mod spoofing;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ::weir::cli::playground::fairness::ServerFairness;
use ::weir::config::{AdmissionConfig, Config, FlowcontrolConfig, FrontProxyConfig, IssuerKeys};
use ::weir::flowcontrol::controller;
use ::weir::flowcontrol::controller::Enforcement;
use ::weir::upstream::tls;
use ::weir::upstream::tls::PemInput;
use ::weir_base::clock::Clock;
use ::weir_limits::max_in_flight;
use ::weir_tokens::jwt::{ClaimMapping, JwtIssuer, KeySet};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use weir_playground::{ApiUser, Certificates, PlaygroundServer, PlaygroundSettings};

use crate::kubeconfig::kubeconfig_yaml;
use crate::support::certificates::pki;
use crate::support::client::{FullResponse, TestRequest};
use crate::support::fake_upstream::FakeUpstream;
use crate::support::process::{ConfigDir, WeirProcess};
use crate::support::weir::{Endpoints, Weir};
use crate::support::{HttpVersion, eventually, process, weir};

const LIST: &str = "/api/v1/namespaces/default/pods";
const OIDC: &str = "https://login.example";

/// The playground's API server, and its settings.
pub(crate) struct PlaygroundCluster {
    pub(crate) server: PlaygroundServer,
    pub(crate) certificates: Certificates,
    pub(crate) address: SocketAddr,
    serving: AbortHandle,
}

impl PlaygroundCluster {
    async fn start() -> Self {
        Self::start_with(PlaygroundSettings::default()).await
    }

    pub(crate) async fn start_with(settings: PlaygroundSettings) -> Self {
        let made = Certificates::generate().unwrap();
        let settings = PlaygroundSettings {
            max_recorded_requests: 10_000,
            ..settings
        };
        // It classifies requests by its objects, and limits none.
        let fairness = Arc::new(ServerFairness::new(None));
        let server = PlaygroundServer::with_fairness(settings, &made, Some(fairness)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let running = server.clone();
        let serving =
            tokio::spawn(async move { running.run(listener, std::future::pending()).await });
        Self {
            server,
            certificates: made,
            address,
            serving: serving.abort_handle(),
        }
    }

    /// From now on its address refuses connections.
    pub(crate) fn stop(&self) {
        self.serving.abort();
    }

    pub(crate) fn token(&self, user: &str) -> &str {
        &self
            .certificates
            .users
            .iter()
            .find(|u| u.name == user)
            .unwrap()
            .token
    }

    pub(crate) fn service_account_token(&self, name: &str) -> String {
        let lifetime = Duration::from_secs(3600);
        self.certificates
            .service_account_issuer
            .issue_token("team", name, lifetime)
            .unwrap()
    }

    /// The folder of a weir with this token of its own, in front of the cluster.
    pub(crate) fn config_dir(&self, own_token: &str) -> ConfigDir {
        let files = ConfigDir::new();
        files.write("upstream-ca.crt", &self.certificates.ca);
        let token = format!("token: {own_token}");
        files.write("kubeconfig", &kubeconfig_yaml(self.address, "", &token));
        files
    }

    /// The number of token reviews that it received.
    fn token_review_count(&self) -> usize {
        self.review_count("TokenReview")
    }

    pub(crate) fn review_count(&self, kind: &str) -> usize {
        let reviews = self.server.reviews();
        reviews.iter().filter(|review| review.kind == kind).count()
    }

    /// The users of clients' requests. weir's own requests have no client address.
    fn request_users(&self) -> Vec<Option<ApiUser>> {
        let requests = self.server.requests();
        requests
            .into_iter()
            .filter(|request| request.headers.contains_key("x-forwarded-for"))
            .map(|request| request.user)
            .collect()
    }

    /// weir in front of it, with the admin's kubeconfig, all identity flags, and fairness.
    pub(crate) async fn start_weir(&self, change: impl FnOnce(&mut Config)) -> Weir {
        let (own, front_proxy) = (self.token("admin"), &self.certificates.front_proxy_client);
        weir::builder(self.address)
            .own_token(own)
            .with(|config| {
                let ca = self.certificates.ca.as_bytes();
                config.upstream.roots = tls::parse_roots("ca", ca).unwrap();
                config.upstream.front_proxy = Some(
                    tls::parse_certified_key(
                        PemInput::new("certificate", front_proxy.certificate.as_bytes()),
                        PemInput::new("key", front_proxy.key.as_bytes()),
                    )
                    .unwrap(),
                );
                config.admission = AdmissionConfig::Fairness {
                    config: controller::ControllerConfig {
                        server_concurrency_limit: 600,
                        request_timeout: Duration::from_secs(60),
                        enforcement: Enforcement::Enforce,
                        consistent_reads_from_cache: true,
                    },
                    sources: FlowcontrolConfig::default(),
                };
                config.identity.front_proxies = Some(FrontProxyConfig {
                    ca: pki().front_proxy_ca.roots(),
                    allowed_names: vec!["edge".to_owned()],
                });
                // Requested in the handshake, as with the flags.
                let roots = pki().client_ca.roots();
                let roots = roots.with(&pki().front_proxy_ca.roots());
                config.serving.tls.client_ca = Some(roots);
                change(config);
            })
            .start()
            .await
    }
}

/// The number of requests that weir dispatched, by flow schema.
async fn dispatched_by_schema(weir: &Endpoints, schema: &str) -> f64 {
    const NAME: &str = "apiserver_flowcontrol_dispatched_requests_total";
    let metrics = weir.get_admin("/metrics").await;
    let of_schema = format!("flow_schema=\"{schema}\"");
    let lines = metrics
        .text()
        .lines()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    lines
        .iter()
        .filter(|line| line.starts_with(NAME) && line.contains(&of_schema))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

pub(crate) fn authorization(token: &str) -> (&'static str, String) {
    ("authorization", format!("Bearer {token}"))
}

async fn get_list(weir: &Weir, http: HttpVersion, token: &str) -> FullResponse {
    let (name, value) = authorization(token);
    weir.with_authorization(http, (name, &value))
        .get(LIST)
        .await
}

/// Signs tokens with RS256.
pub(crate) struct TestSigner(RsaKeyPair);

impl TestSigner {
    pub(crate) fn new() -> Self {
        Self(RsaKeyPair::generate(KeySize::Rsa2048).unwrap())
    }

    fn keys(&self) -> KeySet {
        KeySet::from_jwks(self.jwks().as_bytes()).unwrap()
    }

    pub(crate) fn jwks(&self) -> String {
        let key = self.0.public_key();
        let base64 = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let jwks = json!({"keys": [{"kty": "RSA", "kid": "k",
            "n": base64(key.modulus().big_endian_without_leading_zero()),
            "e": base64(key.exponent().big_endian_without_leading_zero())}]});
        jwks.to_string()
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let base64 = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
        let message = format!(
            "{}.{}",
            base64(&header.to_string()),
            base64(&claims.to_string())
        );
        let mut signature = vec![0; self.0.public_modulus_len()];
        let random = SystemRandom::new();
        self.0
            .sign(
                &RSA_PKCS1_SHA256,
                &random,
                message.as_bytes(),
                &mut signature,
            )
            .unwrap();
        format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }

    pub(crate) fn token(&self, claims: &Value) -> String {
        self.sign(&json!({"alg": "RS256", "kid": "k"}), claims)
    }
}

pub(crate) fn now() -> u64 {
    let since = Clock.wall().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// The issuer `OIDC` without prefixes: an unsafe configuration that is allowed.
fn issuer(signer: &TestSigner) -> (JwtIssuer, IssuerKeys) {
    let mapping = |claim: &str| ClaimMapping {
        claim: claim.to_owned(),
        prefix: String::new(),
    };
    let issuer = JwtIssuer {
        url: OIDC.to_owned(),
        audiences: vec!["kubernetes".to_owned()],
        username: mapping("sub"),
        groups: Some(mapping("groups")),
        uid: None,
        required_claims: Vec::new(),
    };
    (issuer, IssuerKeys::Configured(signer.keys()))
}

#[tokio::test]
async fn a_service_account_token_is_verified_with_only_a_kubeconfig() {
    for http in HttpVersion::BOTH {
        let cluster = PlaygroundCluster::start().await;
        let weir = start_with_kubeconfig(&cluster, &[], ConfigDir::new()).await;
        for name in ["builder", "deployer", "builder"] {
            let (header, value) = authorization(&cluster.service_account_token(name));
            let response = weir
                .with_authorization(http, (header, &value))
                .get(LIST)
                .await;
            assert_eq!(response.status, 200, "{}", response.text());
        }
        let accounts = "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"service-accounts\",\
                        priority_level=\"workload-low\"}";
        assert_eq!(weir.metric(accounts).await, 3.0);
        assert_eq!(cluster.token_review_count(), 0);
        assert_eq!(
            weir.metric("weir_token_key_fetches_total{result=\"fetched\"}")
                .await,
            1.0
        );
    }
}

#[tokio::test]
async fn an_opaque_token_is_reviewed_with_only_a_kubeconfig() {
    for http in HttpVersion::BOTH {
        let cluster = PlaygroundCluster::start().await;
        let weir = start_with_kubeconfig(&cluster, &[], ConfigDir::new()).await;
        let warned = weir
            .startup_lines
            .iter()
            .any(|line| line.contains("unverified"));
        assert!(!warned, "{:?}", weir.startup_lines);
        let (header, value) = authorization(cluster.token("admin"));
        let mut admin = weir.with_authorization(http, (header, &value));
        for _ in 0..3 {
            assert_eq!(admin.get(LIST).await.status, 200);
        }
        // Members of system:masters are exempt. No unverified request may be.
        let exempt = "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"exempt\",\
                      priority_level=\"exempt\"}";
        assert_eq!(weir.metric(exempt).await, 3.0);
        assert_eq!(cluster.token_review_count(), 1);
        let (header, value) = authorization("system:masters");
        let rejected = weir
            .with_authorization(http, (header, &value))
            .get(LIST)
            .await;
        assert_eq!((rejected.status, weir.metric(exempt).await), (401, 3.0));
    }
}

/// `weir serve` with the admin's kubeconfig and no identity flags except these.
async fn start_with_kubeconfig(
    cluster: &PlaygroundCluster,
    more: &[&str],
    files: ConfigDir,
) -> WeirProcess {
    files.write("upstream-ca.crt", &cluster.certificates.ca);
    let (server, token) = (cluster.address, cluster.token("admin"));
    files.write(
        "kubeconfig",
        &format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
             contexts: [{{name: here, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: 'https://{server}', certificate-authority: upstream-ca.crt}}}}]\n\
             users: [{{name: u, user: {{token: '{token}'}}}}]\n"
        ),
    );
    let mut flags = process::required_flags(server);
    flags.retain(|flag| !flag.starts_with("--upstream"));
    flags.push("--kubeconfig=kubeconfig".to_owned());
    flags.extend(more.iter().map(|flag| (*flag).to_owned()));
    WeirProcess::start(files, &flags).await
}

#[tokio::test]
async fn startup_warns_when_tokens_cannot_be_verified() {
    let upstream = FakeUpstream::start().await;
    let weir = WeirProcess::serve(upstream.address, &[]).await;
    let warned = weir
        .startup_lines
        .iter()
        .any(|line| line.contains("bearer tokens go on"));
    assert!(warned, "{:?}", weir.startup_lines);
    let weir = WeirProcess::serve(upstream.address, &["--token-auth-file=tokens.csv"]).await;
    let of_others = |line: &String| line.contains("that are not in --token-auth-file");
    assert!(
        weir.startup_lines.iter().any(of_others),
        "{:?}",
        weir.startup_lines
    );
}

#[tokio::test]
async fn settings_that_allow_identity_spoofing_are_rejected() {
    for (flags, error) in [
        (
            &[
                "--client-ca-file=client-ca.crt",
                "--requestheader-client-ca-file=client-ca.crt",
            ][..],
            "--requestheader-client-ca-file: holds a CA of --client-ca-file",
        ),
        (
            &["--requestheader-allowed-names=edge"],
            "--requestheader-allowed-names: only together with",
        ),
        (
            &["--assert-by=impersonation"],
            "--assert-by: impersonation needs a --kubeconfig",
        ),
        (
            &["--classify-impersonated"],
            "--classify-impersonated: needs a --kubeconfig",
        ),
        (
            &[
                "--service-account-key-file=tls.key",
                "--service-account-issuer=x",
            ],
            "give the public key",
        ),
        (
            &["--service-account-key-file=tls.crt"],
            "--service-account-issuer: needed with",
        ),
        (
            &["--authentication-config=tls.crt"],
            "--authentication-config: tls.crt:1",
        ),
    ] {
        let needed = process::required_flags(([127, 0, 0, 1], 1).into());
        let all = needed.iter().map(String::as_str);
        let all: Vec<&str> = ["serve"]
            .into_iter()
            .chain(all)
            .chain(flags.iter().copied())
            .collect();
        let finished = process::run(&ConfigDir::new(), &all).await;
        assert_eq!(finished.code, Some(2), "{flags:?}");
        assert!(
            finished.stderr.contains(error),
            "{flags:?}: {}",
            finished.stderr
        );
    }
}

#[tokio::test]
async fn a_front_proxy_s_identity_headers_are_trusted_and_forwarded() {
    for http in HttpVersion::BOTH {
        let cluster = PlaygroundCluster::start().await;
        let weir = cluster.start_weir(|_| {}).await;
        let edge = pki().front_proxy_ca.issue_client("edge", &[]);
        let request = TestRequest::get(LIST)
            .header("x-remote-user", "carol")
            .header("x-remote-group", "dev")
            .header("x-remote-group", "ops")
            .header("x-remote-uid", "u-carol")
            .header("x-remote-extra-example.org%2fscope", "a");
        // Headers that its own client names in `Connection` stay as well.
        let request = match http {
            HttpVersion::Http1 => request.header("connection", "x-remote-group, x-remote-user"),
            HttpVersion::Http2 => request,
        };
        let response = weir.with_certificate(http, &edge).request(request).await;
        assert_eq!(response.status, 200, "{}", response.text());
        let senders = cluster.request_users();
        let [Some(carol)] = &senders[..] else {
            panic!("{senders:?}");
        };
        assert_eq!(
            (carol.name.as_str(), carol.uid.as_str()),
            ("carol", "u-carol")
        );
        assert_eq!(carol.groups, ["dev", "ops", "system:authenticated"]);
        assert_eq!(carol.extra["example.org/scope"], ["a"]);
    }
}

#[tokio::test]
async fn a_front_proxy_s_identity_headers_are_parsed_as_by_the_api_server() {
    let cluster = PlaygroundCluster::start().await;
    let weir = cluster.start_weir(|_| {}).await;
    let edge = pki().front_proxy_ca.issue_client("edge", &[]);
    let mut client = weir.with_certificate(HttpVersion::Http2, &edge);
    let twice = TestRequest::get(LIST)
        .header("x-remote-user", "")
        .header("x-remote-user", "carol");
    let response = client.request(twice).await;
    assert_eq!(response.status, 401, "{}", response.text());
    assert!(
        cluster.request_users().is_empty(),
        "an empty name is no user"
    );
    let key = TestRequest::get(LIST)
        .header("x-remote-user", "carol")
        .header("x-remote-extra-%41", "v");
    assert_eq!(client.request(key).await.status, 200);
    let senders = cluster.request_users();
    let [Some(carol)] = &senders[..] else {
        panic!("{senders:?}");
    };
    assert_eq!(carol.extra["A"], ["v"]);
}

#[tokio::test]
async fn a_token_in_another_encoding_belongs_to_its_service_account() {
    let cluster = PlaygroundCluster::start().await;
    // Keys alone: no review can hide a failure.
    let weir = cluster
        .start_weir(|config| config.identity.verification.reviews_per_second = 0)
        .await;
    let token = cluster.service_account_token("builder");
    let (rest, last) = token.split_at(token.len() - 1);
    // The last character of a signature has four unused bits. The playground decodes it strictly,
    // kube-apiserver does not.
    let next = char::from(last.as_bytes()[0] + 1);
    let _ = get_list(&weir, HttpVersion::Http1, &format!("{rest}{next}")).await;
    assert_eq!(dispatched_by_schema(&weir, "service-accounts").await, 1.0);
}

#[tokio::test]
async fn a_front_proxy_s_thousand_groups_are_accepted() {
    let cluster = PlaygroundCluster::start().await;
    let weir = cluster.start_weir(|_| {}).await;
    let edge = pki().front_proxy_ca.issue_client("edge", &[]);
    let request = (0..1000).fold(
        TestRequest::get(LIST).header("x-remote-user", "carol"),
        |request, n| request.header("x-remote-group", &format!("group-{n}")),
    );
    let response = weir
        .with_certificate(HttpVersion::Http2, &edge)
        .request(request)
        .await;
    assert_eq!(response.status, 200, "{}", response.text());
    let senders = cluster.request_users();
    let groups = senders[0].as_ref().map(|user| user.groups.len());
    assert_eq!(groups, Some(1001));
}

#[tokio::test]
async fn a_front_proxy_with_a_disallowed_name_gets_an_error() {
    for http in HttpVersion::BOTH {
        let cluster = PlaygroundCluster::start().await;
        let weir = cluster.start_weir(|_| {}).await;
        let other = pki().front_proxy_ca.issue_client("other", &[]);
        let request = TestRequest::get(LIST).header("x-remote-user", "carol");
        let response = weir.with_certificate(http, &other).request(request).await;
        let kube_status = response.kube_status();
        assert_eq!(response.status, 401);
        assert!(
            kube_status
                .message
                .contains("cn=other is not in the allowed list"),
            "{kube_status:?}"
        );
        assert!(cluster.request_users().is_empty());
    }
}

#[tokio::test]
async fn an_issuer_s_token_names_its_user() {
    let (cluster, signer) = (PlaygroundCluster::start().await, TestSigner::new());
    let weir = cluster
        .start_weir(|config| config.identity.verification.issuers.push(issuer(&signer)))
        .await;
    let claims = json!({"iss": OIDC, "aud": "kubernetes", "exp": now() + 600, "sub": "carol"});
    let token = signer.token(&claims);
    // The playground does not know this issuer and rejects the token. weir authenticates the user
    // all the same.
    assert_eq!(
        get_list(&weir, HttpVersion::Http2, &token).await.status,
        401
    );
    assert_eq!(cluster.token_review_count(), 0);
    assert_eq!(dispatched_by_schema(&weir, "global-default").await, 1.0);
}

/// A browser sends its token to the API in the name of a WebSocket subprotocol.
#[tokio::test]
async fn a_token_in_a_websocket_protocol_is_reviewed_like_any_other() {
    let cluster = PlaygroundCluster::start().await;
    let weir = cluster.start_weir(|_| {}).await;
    let hidden = BASE64_URL_SAFE_NO_PAD.encode(cluster.token("admin"));
    let protocols = format!("v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.{hidden}");
    let request = TestRequest::get(LIST)
        .header("sec-websocket-protocol", &protocols)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket");
    let _ = weir.anonymous(HttpVersion::Http1).request(request).await;
    assert_eq!(cluster.token_review_count(), 1);
    assert_eq!(dispatched_by_schema(&weir, "exempt").await, 1.0);
}

#[tokio::test]
async fn a_thousand_connections_with_one_new_token_make_one_review() {
    const CLIENTS: usize = 1000;
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let cluster = PlaygroundCluster::start().await;
    let weir = Arc::new(
        cluster
            .start_weir(|config| {
                config.serving.max_connections = 2 * CLIENTS;
                // All at a time are more than one user may have.
                config.admission = AdmissionConfig::MaxInFlight {
                    config: max_in_flight::MaxInFlightConfig {
                        read_only: 0.into(),
                        mutating: 0.into(),
                    },
                    enforcement: Enforcement::Enforce,
                };
            })
            .await,
    );
    let (name, value) = authorization(cluster.token("alice"));
    let mut calls = Vec::new();
    for n in 0..CLIENTS {
        let http = HttpVersion::BOTH[n % 2];
        let mut client = weir.with_authorization(http, (name, &value));
        calls.push(async move { client.get(LIST).await.status });
    }
    let statuses: BTreeSet<u16> = futures_util::future::join_all(calls)
        .await
        .into_iter()
        .collect();
    assert_eq!(statuses, BTreeSet::from([200]));
    assert_eq!(cluster.token_review_count(), 1);
}

#[tokio::test]
async fn a_review_uses_weir_s_own_credential_and_client_requests_do_not() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .own_token("weirs-own")
        .start()
        .await;
    let mut client =
        weir.with_authorization(HttpVersion::Http2, ("authorization", "Bearer opaque"));
    let call = client.send(TestRequest::get(LIST)).await;
    let mut review = upstream.next_exchange().await;
    assert_eq!(review.request.method, "POST");
    assert_eq!(
        review.request.target,
        "/apis/authentication.k8s.io/v1/tokenreviews"
    );
    assert_eq!(
        review.request.headers.all("authorization"),
        ["Bearer weirs-own"]
    );
    assert_eq!(
        review.request.headers.all("content-type"),
        ["application/json"]
    );
    let token_review: Value = serde_json::from_slice(&review.read_body().await).unwrap();
    assert_eq!(token_review["spec"]["token"], "opaque");
    let number = review.connection.number;
    review
        .respond(
            201,
            r#"{"status":{"authenticated":true,"user":{"username":"alice"}}}"#,
        )
        .await;
    let exchange = upstream.next_exchange().await;
    assert_eq!(
        exchange.request.headers.all("authorization"),
        ["Bearer opaque"]
    );
    assert_ne!(exchange.connection.number, number);
    assert_eq!(exchange.connection.certificate, None);
    // The API server has verified the token, so its first request shares HTTP/2 already.
    assert_eq!(exchange.connection.http, HttpVersion::Http2);
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}

#[tokio::test]
async fn a_request_whose_token_cannot_be_reviewed_is_still_forwarded() {
    for code in [403, 500] {
        let mut upstream = FakeUpstream::start().await;
        let weir = weir::builder(upstream.address)
            .own_token("weirs-own")
            .start()
            .await;
        let mut client =
            weir.with_authorization(HttpVersion::Http2, ("authorization", "Bearer opaque"));
        let call = client.send(TestRequest::get(LIST)).await;
        upstream.next_exchange().await.respond(code, "{}").await;
        let exchange = upstream.next_exchange().await;
        assert_eq!(
            exchange.request.headers.all("authorization"),
            ["Bearer opaque"]
        );
        exchange.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
}
