//! Who a request is from, before an API server that judges for itself: the playground, which notes whom it took for the sender
//! and what it was asked about tokens. Every way to be somebody works, and every way to pass for somebody else does not.

mod attacks;
mod impersonation;
mod log;
mod wishes;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::time::SystemTime;

use ::weir::clock::Clock;
use ::weir::config::Config;
use ::weir::config::FrontProxies;
use ::weir::config::IssuerKeys;
use ::weir::config::Limits;
use ::weir::flowcontrol::bootstrap;
use ::weir::flowcontrol::controller;
use ::weir::flowcontrol::controller::Enforcement;
use ::weir::identity::jwt::ClaimMapping;
use ::weir::identity::jwt::Issuer;
use ::weir::identity::jwt::KeySet;
use ::weir::limits::max_in_flight;
use ::weir::playground::ApiServer;
use ::weir::playground::Certificates;
use ::weir::playground::Settings;
use ::weir::playground::User;
use ::weir::upstream::tls;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::KeyPair;
use aws_lc_rs::signature::RSA_PKCS1_SHA256;
use aws_lc_rs::signature::RsaKeyPair;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::Value;
use serde_json::json;
use tokio::net::TcpListener;

use crate::support::Http;
use crate::support::certificates::pki;
use crate::support::client::Answer;
use crate::support::client::Ask;
use crate::support::eventually;
use crate::support::process;
use crate::support::process::Files;
use crate::support::process::Process;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::Door;
use crate::support::weir::Weir;

const LIST: &str = "/api/v1/namespaces/default/pods";
const OIDC: &str = "https://login.example";

/// The playground's API server, and what it was made with.
pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    made: Certificates,
    address: SocketAddr,
}

impl Cluster {
    async fn start() -> Self {
        Self::start_with(Settings::default()).await
    }

    pub(crate) async fn start_with(settings: Settings) -> Self {
        let made = Certificates::generate().unwrap();
        let settings = Settings {
            remembered_requests: 10_000,
            ..settings
        };
        let server = ApiServer::new(settings, &made).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let running = server.clone();
        tokio::spawn(async move { running.run(listener, std::future::pending()).await });
        Self {
            server,
            made,
            address,
        }
    }

    pub(crate) fn token(&self, user: &str) -> &str {
        &self
            .made
            .users
            .iter()
            .find(|u| u.name == user)
            .unwrap()
            .token
    }

    pub(crate) fn account(&self, name: &str) -> String {
        let lifetime = Duration::from_secs(3600);
        self.made
            .service_accounts
            .token("team", name, lifetime)
            .unwrap()
    }

    /// How many reviews of tokens it was asked for.
    fn reviews(&self) -> usize {
        self.reviews_of("TokenReview")
    }

    pub(crate) fn reviews_of(&self, kind: &str) -> usize {
        let reviews = self.server.reviews();
        reviews.iter().filter(|review| review.kind == kind).count()
    }

    /// Whom clients' requests were taken for; weir's own calls carry no address of a client.
    fn senders(&self) -> Vec<Option<User>> {
        let requests = self.server.requests();
        requests
            .into_iter()
            .filter(|request| request.headers.contains_key("x-forwarded-for"))
            .map(|request| request.user)
            .collect()
    }

    /// weir before it, as with a kubeconfig of the admin's, with everything that names a user, and fairness.
    pub(crate) async fn weir(&self, change: impl FnOnce(&mut Config)) -> Weir {
        let (own, front_proxy) = (self.token("admin"), &self.made.front_proxy_client);
        weir::before(self.address)
            .calling_with(own)
            .with(|config| {
                let ca = self.made.ca.as_bytes();
                config.upstream.roots = tls::roots_from_pem("ca", ca).unwrap();
                config.upstream.front_proxy = Some(
                    tls::certified_key_from_pem(
                        ("certificate", front_proxy.certificate.as_bytes()),
                        ("key", front_proxy.key.as_bytes()),
                    )
                    .unwrap(),
                );
                config.limits = Limits::Fairness {
                    config: controller::Config {
                        server_concurrency_limit: 600,
                        request_timeout: Duration::from_secs(60),
                        enforcement: Enforcement::Enforce,
                        consistent_reads_from_cache: true,
                    },
                    objects: bootstrap::complete(Vec::new()),
                };
                config.identity.front_proxies = Some(FrontProxies {
                    ca: pki().front_proxy.roots(),
                    allowed: vec!["edge".to_owned()],
                });
                // Asked for in the handshake, as the flags have it.
                let mut asked = pki().clients.roots();
                asked.extend(pki().front_proxy.roots().roots);
                config.serving.tls.client_ca = Some(asked);
                change(config);
            })
            .start()
            .await
    }
}

/// How many requests weir has let through by each flow schema.
async fn by_schema(weir: &Door, schema: &str) -> f64 {
    const NAME: &str = "apiserver_flowcontrol_dispatched_requests_total";
    let metrics = weir.operator("/metrics").await;
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

async fn get(weir: &Weir, http: Http, token: &str) -> Answer {
    let (name, value) = authorization(token);
    weir.bearing(http, (name, &value)).get(LIST).await
}

/// Signs tokens with RS256.
struct Signer(RsaKeyPair);

impl Signer {
    fn new() -> Self {
        Self(RsaKeyPair::generate(KeySize::Rsa2048).unwrap())
    }

    fn keys(&self) -> KeySet {
        KeySet::from_jwks(self.jwks().as_bytes()).unwrap()
    }

    fn jwks(&self) -> String {
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

    fn token(&self, claims: &Value) -> String {
        self.sign(&json!({"alg": "RS256", "kid": "k"}), claims)
    }
}

fn now() -> u64 {
    let since = Clock.wall().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// The issuer `OIDC`, without prefixes, as an operator might dare.
fn issuer(signer: &Signer) -> (Issuer, IssuerKeys) {
    let mapping = |claim: &str| ClaimMapping {
        claim: claim.to_owned(),
        prefix: String::new(),
    };
    let issuer = Issuer {
        url: OIDC.to_owned(),
        audiences: vec!["kubernetes".to_owned()],
        username: mapping("sub"),
        groups: Some(mapping("groups")),
        uid: None,
        required: Vec::new(),
    };
    (issuer, IssuerKeys::Given(signer.keys()))
}

#[tokio::test]
async fn a_service_account_is_known_by_its_token_with_nothing_but_a_kubeconfig() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        let weir = by_kubeconfig(&cluster, &[], Files::new()).await;
        for name in ["builder", "deployer", "builder"] {
            let (header, value) = authorization(&cluster.account(name));
            let answer = weir.bearing(http, (header, &value)).get(LIST).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let accounts = "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"service-accounts\",\
                        priority_level=\"workload-low\"}";
        assert_eq!(weir.metric(accounts).await, 3.0);
        assert_eq!(cluster.reviews(), 0);
        assert_eq!(
            weir.metric("weir_token_key_fetches_total{result=\"fetched\"}")
                .await,
            1.0
        );
    }
}

#[tokio::test]
async fn an_opaque_token_is_known_by_review_with_nothing_but_a_kubeconfig() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        let weir = by_kubeconfig(&cluster, &[], Files::new()).await;
        let warned = weir.opening.iter().any(|line| line.contains("unverified"));
        assert!(!warned, "{:?}", weir.opening);
        let (header, value) = authorization(cluster.token("admin"));
        let mut admin = weir.bearing(http, (header, &value));
        for _ in 0..3 {
            assert_eq!(admin.get(LIST).await.status, 200);
        }
        // Members of system:masters are exempt, which nobody is who was not verified.
        let exempt = "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"exempt\",\
                      priority_level=\"exempt\"}";
        assert_eq!(weir.metric(exempt).await, 3.0);
        assert_eq!(cluster.reviews(), 1);
        let (header, value) = authorization("system:masters");
        let refused = weir.bearing(http, (header, &value)).get(LIST).await;
        assert_eq!((refused.status, weir.metric(exempt).await), (401, 3.0));
    }
}

/// `weir serve` with a kubeconfig of the admin's and no flag about identity but these.
async fn by_kubeconfig(cluster: &Cluster, more: &[&str], files: Files) -> Process {
    files.write("upstream-ca.crt", &cluster.made.ca);
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
    let mut flags = process::needed(server);
    flags.retain(|flag| !flag.starts_with("--upstream"));
    flags.push("--kubeconfig=kubeconfig".to_owned());
    flags.extend(more.iter().map(|flag| (*flag).to_owned()));
    Process::start(files, &flags).await
}

#[tokio::test]
async fn without_a_way_to_verify_tokens_the_start_says_so() {
    let upstream = Upstream::start().await;
    let weir = Process::serve(upstream.address, &[]).await;
    let warned = weir
        .opening
        .iter()
        .any(|line| line.contains("bearer tokens go on"));
    assert!(warned, "{:?}", weir.opening);
    let weir = Process::serve(upstream.address, &["--token-auth-file=tokens.csv"]).await;
    let of_others = |line: &String| line.contains("that are not in --token-auth-file");
    assert!(weir.opening.iter().any(of_others), "{:?}", weir.opening);
}

#[tokio::test]
async fn settings_by_which_anybody_could_be_somebody_are_refused() {
    for (flags, told) in [
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
        let needed = process::needed(([127, 0, 0, 1], 1).into());
        let all = needed.iter().map(String::as_str);
        let all: Vec<&str> = ["serve"]
            .into_iter()
            .chain(all)
            .chain(flags.iter().copied())
            .collect();
        let finished = process::run(&Files::new(), &all).await;
        assert_eq!(finished.code, Some(2), "{flags:?}");
        assert!(
            finished.stderr.contains(told),
            "{flags:?}: {}",
            finished.stderr
        );
    }
}

#[tokio::test]
async fn a_front_proxy_s_word_is_taken_and_passed_on() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        let weir = cluster.weir(|_| {}).await;
        let edge = pki().front_proxy.client("edge", &[]);
        let ask = Ask::get(LIST)
            .header("x-remote-user", "carol")
            .header("x-remote-group", "dev")
            .header("x-remote-group", "ops")
            .header("x-remote-uid", "u-carol")
            .header("x-remote-extra-example.org%2fscope", "a");
        // What its own client says about connections takes nothing away from that.
        let ask = match http {
            Http::One => ask.header("connection", "x-remote-group, x-remote-user"),
            Http::Two => ask,
        };
        let answer = weir.certified(http, &edge).ask(ask).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let senders = cluster.senders();
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
async fn a_front_proxy_s_word_is_read_as_the_api_server_reads_it() {
    let cluster = Cluster::start().await;
    let weir = cluster.weir(|_| {}).await;
    let edge = pki().front_proxy.client("edge", &[]);
    let mut client = weir.certified(Http::Two, &edge);
    let twice = Ask::get(LIST)
        .header("x-remote-user", "")
        .header("x-remote-user", "carol");
    let answer = client.ask(twice).await;
    assert_eq!(answer.status, 401, "{}", answer.text());
    assert!(cluster.senders().is_empty(), "an empty name is nobody's");
    let key = Ask::get(LIST)
        .header("x-remote-user", "carol")
        .header("x-remote-extra-%41", "v");
    assert_eq!(client.ask(key).await.status, 200);
    let senders = cluster.senders();
    let [Some(carol)] = &senders[..] else {
        panic!("{senders:?}");
    };
    assert_eq!(carol.extra["A"], ["v"]);
}

#[tokio::test]
async fn a_token_in_another_spelling_is_its_service_account_s() {
    let cluster = Cluster::start().await;
    // Keys alone, so that no review makes up for it.
    let weir = cluster
        .weir(|config| config.identity.verification.reviews_per_second = 0)
        .await;
    let token = cluster.account("builder");
    let (rest, last) = token.split_at(token.len() - 1);
    // A signature's last character has four bits to spare. The playground reads it strictly; kube-apiserver does not.
    let next = char::from(last.as_bytes()[0] + 1);
    let _ = get(&weir, Http::One, &format!("{rest}{next}")).await;
    assert_eq!(by_schema(&weir, "service-accounts").await, 1.0);
}

#[tokio::test]
async fn a_front_proxy_with_a_thousand_groups_is_no_trouble() {
    let cluster = Cluster::start().await;
    let weir = cluster.weir(|_| {}).await;
    let edge = pki().front_proxy.client("edge", &[]);
    let ask = (0..1000).fold(Ask::get(LIST).header("x-remote-user", "carol"), |ask, n| {
        ask.header("x-remote-group", &format!("group-{n}"))
    });
    let answer = weir.certified(Http::Two, &edge).ask(ask).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let senders = cluster.senders();
    let groups = senders[0].as_ref().map(|user| user.groups.len());
    assert_eq!(groups, Some(1001));
}

#[tokio::test]
async fn a_front_proxy_of_another_name_is_told_so() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        let weir = cluster.weir(|_| {}).await;
        let other = pki().front_proxy.client("other", &[]);
        let ask = Ask::get(LIST).header("x-remote-user", "carol");
        let answer = weir.certified(http, &other).ask(ask).await;
        let told = answer.told();
        assert_eq!(answer.status, 401);
        assert!(
            told.message.contains("cn=other is not in the allowed list"),
            "{told:?}"
        );
        assert!(cluster.senders().is_empty());
    }
}

#[tokio::test]
async fn an_issuer_s_token_names_its_user() {
    let (cluster, signer) = (Cluster::start().await, Signer::new());
    let weir = cluster
        .weir(|config| config.identity.verification.issuers.push(issuer(&signer)))
        .await;
    let claims = json!({"iss": OIDC, "aud": "kubernetes", "exp": now() + 600, "sub": "carol"});
    let token = signer.token(&claims);
    // The playground knows no such issuer: it refuses, and weir knows all the same who it was.
    assert_eq!(get(&weir, Http::Two, &token).await.status, 401);
    assert_eq!(cluster.reviews(), 0);
    assert_eq!(by_schema(&weir, "global-default").await, 1.0);
}

/// A kubectl of the API's users sends its token in a protocol's name when a browser connects.
#[tokio::test]
async fn a_token_in_a_websocket_s_protocol_is_reviewed_as_any_other() {
    let cluster = Cluster::start().await;
    let weir = cluster.weir(|_| {}).await;
    let hidden = BASE64_URL_SAFE_NO_PAD.encode(cluster.token("admin"));
    let protocols = format!("v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.{hidden}");
    let ask = Ask::get(LIST)
        .header("sec-websocket-protocol", &protocols)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket");
    let _ = weir.anonymous(Http::One).ask(ask).await;
    assert_eq!(cluster.reviews(), 1);
    assert_eq!(by_schema(&weir, "exempt").await, 1.0);
}

#[tokio::test]
async fn a_thousand_connections_with_one_new_token_make_one_review() {
    const CLIENTS: usize = 1000;
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let cluster = Cluster::start().await;
    let weir = Arc::new(
        cluster
            .weir(|config| {
                config.serving.max_connections = 2 * CLIENTS;
                // All of them at a time are more than one user may have.
                config.limits = Limits::MaxInFlight(max_in_flight::Config {
                    read_only: 0.into(),
                    mutating: 0.into(),
                });
            })
            .await,
    );
    let (name, value) = authorization(cluster.token("alice"));
    let mut calls = Vec::new();
    for n in 0..CLIENTS {
        let http = Http::BOTH[n % 2];
        let mut client = weir.bearing(http, (name, &value));
        calls.push(async move { client.get(LIST).await.status });
    }
    let statuses: BTreeSet<u16> = futures_util::future::join_all(calls)
        .await
        .into_iter()
        .collect();
    assert_eq!(statuses, BTreeSet::from([200]));
    assert_eq!(cluster.reviews(), 1);
}

#[tokio::test]
async fn a_review_is_weir_s_own_call_and_what_weir_has_is_lent_to_nobody() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .calling_with("weirs-own")
        .start()
        .await;
    let mut client = weir.bearing(Http::Two, ("authorization", "Bearer opaque"));
    let call = client.send(Ask::get(LIST)).await;
    let mut review = upstream.next().await;
    assert_eq!(review.asked.method, "POST");
    assert_eq!(
        review.asked.target,
        "/apis/authentication.k8s.io/v1/tokenreviews"
    );
    assert_eq!(
        review.asked.headers.all("authorization"),
        ["Bearer weirs-own"]
    );
    assert_eq!(
        review.asked.headers.all("content-type"),
        ["application/json"]
    );
    let asked: Value = serde_json::from_slice(&review.body().await).unwrap();
    assert_eq!(asked["spec"]["token"], "opaque");
    let number = review.peer.number;
    review
        .reply(
            201,
            r#"{"status":{"authenticated":true,"user":{"username":"alice"}}}"#,
        )
        .await;
    let exchange = upstream.next().await;
    assert_eq!(
        exchange.asked.headers.all("authorization"),
        ["Bearer opaque"]
    );
    assert_ne!(exchange.peer.number, number);
    assert_eq!(exchange.peer.certificate, None);
    // The API server vouches for it, so it shares HTTP/2 from its first request on.
    assert_eq!(exchange.peer.http, Http::Two);
    exchange.reply(200, "{}").await;
    assert_eq!(call.answer().await.status, 200);
}

#[tokio::test]
async fn a_request_whose_token_cannot_be_reviewed_has_its_answer_all_the_same() {
    for code in [403, 500] {
        let mut upstream = Upstream::start().await;
        let weir = weir::before(upstream.address)
            .calling_with("weirs-own")
            .start()
            .await;
        let mut client = weir.bearing(Http::Two, ("authorization", "Bearer opaque"));
        let call = client.send(Ask::get(LIST)).await;
        upstream.next().await.reply(code, "{}").await;
        let exchange = upstream.next().await;
        assert_eq!(
            exchange.asked.headers.all("authorization"),
            ["Bearer opaque"]
        );
        exchange.reply(200, "{}").await;
        assert_eq!(call.answer().await.status, 200);
    }
}
