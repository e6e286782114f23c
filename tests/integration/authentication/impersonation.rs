//! Clients that impersonate: for whom their requests count, and in whose name they go on. And a certificate's user, told to the API
//! server by impersonation.

use ::weir::playground::Grant;

use super::*;
use crate::support::Stopwatch;
use crate::support::client::TestClient;

#[tokio::test]
async fn without_a_front_proxy_ca_a_certificate_s_user_is_impersonated() {
    for http in HttpVersion::BOTH {
        let cluster = PlaygroundCluster::start().await;
        let weir = cluster
            .start_weir(|config| {
                config.upstream.front_proxy = None;
                config.assert_by_impersonation = true;
            })
            .await;
        let mut alice = weir.with_certificate_and_authorization(
            http,
            &pki().alice,
            ("authorization", "Bearer x"),
        );
        assert_eq!(alice.get(LIST).await.status, 200);
        // alice may not read there, and weir's own user may.
        let refused = alice.get("/api/v1/namespaces/kube-system/pods").await;
        assert_eq!(refused.status, 403, "{}", refused.text());
        let requests = cluster.server.requests();
        let request = requests
            .iter()
            .find(|request| request.headers.contains_key("x-forwarded-for"))
            .unwrap();
        let all = |name: &str| -> Vec<String> {
            let values = request.headers.get_all(name).iter();
            values
                .map(|value| value.to_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(all("impersonate-user"), ["alice"]);
        assert_eq!(all("impersonate-group"), ["dev", "ops"]);
        let own = format!("Bearer {}", cluster.token("admin"));
        assert_eq!(all("authorization"), [own.as_str()]);
        let id = "impersonate-extra-authentication.kubernetes.io%2fcredential-id";
        assert!(
            all(id)[0].starts_with("X509SHA256="),
            "{:?}",
            request.headers
        );
        // Tokens and nobody go as they always do.
        assert_eq!(
            get_list(&weir, http, cluster.token("alice")).await.status,
            200
        );
        let _ = weir.anonymous(http).get(LIST).await;
        let last = cluster.server.requests();
        for request in last.iter().rev().take(2) {
            assert!(!request.headers.contains_key("impersonate-user"));
            let lent = request
                .headers
                .get("authorization")
                .is_some_and(|v| v == own.as_str());
            assert!(!lent, "{:?}", request.headers);
        }
    }
}

const SELF_REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const SCHEDULER: &str = "system:kube-scheduler";

/// Asks the API server whom it takes the caller for.
pub(super) fn self_review_request() -> TestRequest {
    let review = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
    TestRequest::post(SELF_REVIEWS, review).header("content-type", "application/json")
}

/// What it answered.
pub(super) fn reviewed_user(answer: &FullResponse) -> Value {
    let review: Value = serde_json::from_slice(&answer.body).unwrap();
    review["status"]["userInfo"].clone()
}

impl PlaygroundCluster {
    pub(super) fn grant(&self, user: &str, resource: &str, name: &str) {
        self.server.grant(Grant {
            user: user.to_owned(),
            verb: "impersonate".to_owned(),
            resource: resource.to_owned(),
            namespace: String::new(),
            name: name.to_owned(),
        });
    }

    /// weir that asserts by impersonation.
    pub(super) async fn start_impersonating_weir(&self, classify: bool) -> Weir {
        self.start_weir(|config| {
            config.upstream.front_proxy = None;
            config.assert_by_impersonation = true;
            config.identity.impersonation.classify = classify;
        })
        .await
    }
}

fn classify_impersonated(config: &mut Config) {
    config.identity.impersonation.classify = true;
}

#[tokio::test]
async fn an_impersonating_request_is_classified_by_its_own_user_by_default() {
    for http in HttpVersion::BOTH {
        let cluster = PlaygroundCluster::start().await;
        cluster.grant("alice", "users", SCHEDULER);
        let weir = cluster.start_weir(|_| {}).await;
        let (name, token) = authorization(cluster.token("alice"));
        for mut alice in [
            weir.with_authorization(http, (name, &token)),
            weir.with_certificate(http, &pki().alice),
        ] {
            let answer = alice
                .request(self_review_request().header("impersonate-user", SCHEDULER))
                .await;
            assert_eq!(reviewed_user(&answer)["username"], SCHEDULER);
        }
        assert_eq!(dispatched_by_schema(&weir, "kube-scheduler").await, 0.0);
        assert_eq!(cluster.review_count("SubjectAccessReview"), 0);
    }
}

/// Asks in the scheduler's name.
async fn send_as_scheduler(client: &mut TestClient) {
    let answer = client
        .request(self_review_request().header("impersonate-user", SCHEDULER))
        .await;
    assert_eq!(reviewed_user(&answer)["username"], SCHEDULER);
}

/// Asks in the scheduler's name until that counts for it, and tells how often it did not: the API server's word about that is
/// waited for no longer than a second.
async fn send_until_counted(weir: &Endpoints, client: &mut TestClient) -> usize {
    let before = dispatched_by_schema(weir, "kube-scheduler").await;
    let mut vain = 0;
    eventually("a request to count for the scheduler", async || {
        let began = Stopwatch::start();
        send_as_scheduler(client).await;
        let counted = dispatched_by_schema(weir, "kube-scheduler").await;
        if counted > before {
            assert_eq!(counted, before + 1.0);
            return Some(());
        }
        assert!(began.elapsed() >= Duration::from_secs(1));
        vain += 1;
        None
    })
    .await;
    vain
}

#[tokio::test]
async fn an_authorized_impersonation_is_classified_by_the_impersonated_user() {
    for http in HttpVersion::BOTH {
        let cluster = PlaygroundCluster::start().await;
        cluster.grant("alice", "users", SCHEDULER);
        let weir = cluster.start_weir(classify_impersonated).await;
        let (name, token) = authorization(cluster.token("alice"));
        // A certificate's user is another than the token's (its groups differ), so each is asked about once.
        let clients = [
            weir.with_authorization(http, (name, &token)),
            weir.with_certificate(http, &pki().alice),
        ];
        let mut vain = 0;
        for (mut alice, (counted, reviews)) in clients.into_iter().zip([(3.0, 1), (6.0, 2)]) {
            vain += send_until_counted(&weir, &mut alice).await;
            for _ in 0..2 {
                send_as_scheduler(&mut alice).await;
            }
            assert_eq!(dispatched_by_schema(&weir, "kube-scheduler").await, counted);
            assert_eq!(cluster.review_count("SubjectAccessReview"), reviews);
        }
        let top = eventually("the requests are counted", async || {
            let answer = weir.get_admin("/debug/top_talkers?by=user").await;
            let top: Value = serde_json::from_str(answer.text()).unwrap();
            (top["total"]["requests"] == 6 + vain).then_some(top)
        });
        let top = top.await;
        assert_eq!(top["rows"][0]["name"], SCHEDULER);
        assert_eq!(top["rows"][0]["requests"], 6);
        // The wish went on as it came, and the sender is who he is.
        let requests = cluster.server.requests();
        let theirs = requests
            .iter()
            .filter(|r| r.headers.contains_key("x-forwarded-for"));
        for request in theirs {
            assert_eq!(request.headers["impersonate-user"], SCHEDULER);
            assert_eq!(request.user.as_ref().unwrap().name, "alice");
        }
    }
}

#[tokio::test]
async fn an_unauthorized_impersonation_is_classified_by_its_own_user_and_rejected_by_the_api_server()
 {
    for http in HttpVersion::BOTH {
        let cluster = PlaygroundCluster::start().await;
        cluster.grant("alice", "users", SCHEDULER);
        let weir = cluster.start_weir(classify_impersonated).await;
        let (name, token) = authorization(cluster.token("alice"));
        for (wish, code) in [
            (&[("impersonate-user", "admin")][..], 403),
            (
                &[
                    ("impersonate-user", SCHEDULER),
                    ("impersonate-group", "system:masters"),
                ],
                403,
            ),
            (
                &[("impersonate-user", SCHEDULER), ("impersonate-uid", "u")],
                403,
            ),
            (
                &[
                    ("impersonate-user", SCHEDULER),
                    ("impersonate-extra-a", "b"),
                ],
                403,
            ),
            (&[("impersonate-group", "system:masters")], 400),
            // Which of the two counts is not for weir to guess.
            (
                &[
                    ("impersonate-user", SCHEDULER),
                    ("impersonate-user", SCHEDULER),
                ],
                201,
            ),
            (&[("impersonate_user", "admin")], 201),
        ] {
            let ask = wish
                .iter()
                .fold(self_review_request(), |ask, (name, value)| {
                    ask.header(name, value)
                });
            let answer = weir
                .with_authorization(http, (name, &token))
                .request(ask)
                .await;
            assert_eq!(answer.status, code, "{wish:?}: {}", answer.text());
        }
        assert_eq!(dispatched_by_schema(&weir, "kube-scheduler").await, 0.0);
        assert_eq!(dispatched_by_schema(&weir, "exempt").await, 0.0);
        assert_eq!(dispatched_by_schema(&weir, "global-default").await, 7.0);
    }
}

#[tokio::test]
async fn impersonation_by_an_unverified_client_is_never_reviewed() {
    for http in HttpVersion::BOTH {
        let cluster = PlaygroundCluster::start().await;
        cluster.grant("system:anonymous", "users", SCHEDULER);
        let weir = cluster.start_weir(classify_impersonated).await;
        let wish = || TestRequest::get(LIST).header("impersonate-user", SCHEDULER);
        let _ = weir.anonymous(http).request(wish()).await;
        let (name, token) = authorization("nonsense");
        assert_eq!(
            weir.with_authorization(http, (name, &token))
                .request(wish())
                .await
                .status,
            401
        );
        assert_eq!(cluster.review_count("SubjectAccessReview"), 0);
        assert_eq!(dispatched_by_schema(&weir, "kube-scheduler").await, 0.0);
        assert_eq!(dispatched_by_schema(&weir, "global-default").await, 2.0);
    }
}

#[tokio::test]
async fn an_impersonation_that_cannot_be_reviewed_is_still_forwarded() {
    for code in [403, 500] {
        let mut upstream = FakeUpstream::start().await;
        let weir = weir::builder(upstream.address)
            .own_token("weirs-own")
            .with(|config| {
                classify_impersonated(config);
            })
            .start()
            .await;
        let mut alice = weir.alice(HttpVersion::Http2);
        let call = alice
            .send(TestRequest::get(LIST).header("impersonate-user", "carol"))
            .await;
        let mut review = upstream.next_exchange().await;
        assert_eq!(
            review.request.target,
            "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        );
        assert_eq!(
            review.request.headers.all("authorization"),
            ["Bearer weirs-own"]
        );
        let asked: Value = serde_json::from_slice(&review.read_body().await).unwrap();
        assert_eq!(asked["spec"]["user"], "alice");
        assert_eq!(asked["spec"]["resourceAttributes"]["name"], "carol");
        review.respond(code, r#"{"status":{"allowed":true}}"#).await;
        let exchange = upstream.next_exchange().await;
        assert_eq!(exchange.request.headers.all("impersonate-user"), ["carol"]);
        assert_eq!(
            exchange.request.headers.all("authorization"),
            ["Bearer alice-token"]
        );
        exchange.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
}

#[tokio::test]
async fn impersonation_by_an_asserted_user_is_authorized_by_the_api_server() {
    for http in HttpVersion::BOTH {
        let cluster = PlaygroundCluster::start().await;
        cluster.grant("alice", "users", "carol");
        cluster.grant("alice", "groups", "qa");
        cluster.grant("alice", "uids", "u-carol");
        cluster.grant("alice", "userextras/example.org/scope", "read");
        let weir = cluster.start_weir(|_| {}).await;
        let mut alice = weir.with_certificate(http, &pki().alice);
        let wish = self_review_request()
            .header("impersonate-user", "carol")
            .header("impersonate-group", "qa")
            .header("impersonate-uid", "u-carol")
            .header("impersonate-extra-example.org%2fscope", "read");
        let answer = alice.request(wish).await;
        assert_eq!(
            reviewed_user(&answer),
            json!({"username": "carol", "uid": "u-carol", "groups": ["qa", "system:authenticated"],
                   "extra": {"example.org/scope": ["read"]}})
        );
        assert_eq!(cluster.request_users()[0].as_ref().unwrap().name, "alice");
        let refused = alice
            .request(self_review_request().header("impersonate-user", "admin"))
            .await;
        assert_eq!(refused.status, 403);
        assert!(
            refused
                .kube_status()
                .message
                .contains("User \"alice\" cannot impersonate"),
            "{}",
            refused.text()
        );
    }
}

#[tokio::test]
async fn weir_impersonates_the_targets_that_a_certificate_s_user_may_impersonate() {
    for http in HttpVersion::BOTH {
        let cluster = PlaygroundCluster::start().await;
        cluster.grant("alice", "users", "");
        cluster.grant("alice", "groups", "qa");
        cluster.grant("alice", "uids", "u-carol");
        cluster.grant("alice", "userextras/example.org/scope", "read");
        cluster.grant("alice", "serviceaccounts", "builder");
        let weir = cluster.start_impersonating_weir(true).await;
        let mut alice = weir.with_certificate_and_authorization(
            http,
            &pki().alice,
            ("authorization", "Bearer x"),
        );
        let wish = || {
            self_review_request()
                .header("impersonate-extra-example.org%2Fscope", "read")
                .header("impersonate-uid", "u-carol")
                .header("impersonate-group", "qa")
                .header("impersonate-user", "carol")
        };
        for _ in 0..2 {
            let answer = alice.request(wish()).await;
            assert_eq!(
                reviewed_user(&answer),
                json!({"username": "carol", "uid": "u-carol", "groups": ["qa", "system:authenticated"],
                       "extra": {"example.org/scope": ["read"]}}),
                "nothing of alice's is left"
            );
        }
        assert_eq!(cluster.review_count("SubjectAccessReview"), 4);
        // What the API server would add by weir's right and not by alice's, it does not.
        for (user, groups) in [
            ("system:node:n1", &["system:authenticated"][..]),
            (
                "system:serviceaccount:team:builder",
                &[
                    "system:serviceaccounts",
                    "system:serviceaccounts:team",
                    "system:authenticated",
                ],
            ),
            (SCHEDULER, &["system:authenticated"]),
        ] {
            let answer = alice
                .request(self_review_request().header("impersonate-user", user))
                .await;
            let user_info = json!({"username": user, "groups": groups});
            assert_eq!(reviewed_user(&answer), user_info);
            let last = cluster.server.requests().pop().unwrap();
            assert!(last.headers.contains_key("impersonate-group"), "{user}");
        }
        assert_eq!(dispatched_by_schema(&weir, "kube-scheduler").await, 1.0);
    }
}

#[tokio::test]
async fn an_unauthorized_impersonation_by_a_certificate_s_user_never_reaches_the_api_server() {
    for http in HttpVersion::BOTH {
        let cluster = PlaygroundCluster::start().await;
        cluster.grant("alice", "users", "carol");
        let weir = cluster.start_impersonating_weir(false).await;
        let carol = ("impersonate-user", "carol");
        for (wish, code, told) in [
            (
                &[("impersonate-user", "admin")][..],
                403,
                "users \"admin\" is forbidden: User \"alice\" cannot impersonate resource \"users\" in API group \"\" \
                 at the cluster scope",
            ),
            (
                &[carol, ("impersonate-group", "system:masters")],
                403,
                "groups \"system:masters\" is forbidden: User \"alice\" cannot impersonate resource \"groups\"",
            ),
            (
                &[carol, ("impersonate-group", "")],
                403,
                "groups is forbidden: User \"alice\"",
            ),
            (
                &[carol, ("impersonate-uid", "u")],
                403,
                "uids.authentication.k8s.io \"u\" is forbidden",
            ),
            (
                &[carol, ("impersonate-extra-a", "b")],
                403,
                "cannot impersonate resource \"userextras/a\" in API group \"authentication.k8s.io\"",
            ),
            (
                &[("IMPERSONATE-GROUP", "system:masters")],
                400,
                "without impersonating a user name",
            ),
            (&[carol, carol], 400, "impersonate-user must be given once"),
            (
                &[("impersonate_user", "admin")],
                400,
                "impersonate_user is no header that impersonates",
            ),
            (
                &[("Impersonate_Group", "system:masters")],
                400,
                "is no header that",
            ),
            (&[("impersonate-", "x")], 400, "is no header that"),
            (
                &[carol, ("impersonate-extra-%41", "b")],
                400,
                "does not end in the key",
            ),
        ] {
            let ask = wish
                .iter()
                .fold(TestRequest::get(LIST), |ask, (name, value)| {
                    ask.header(name, value)
                });
            let answer = weir.with_certificate(http, &pki().alice).request(ask).await;
            let said = answer.kube_status();
            assert_eq!(
                (answer.status, said.cause.as_str()),
                (code, "weir/impersonation"),
                "{wish:?}"
            );
            assert!(said.message.contains(told), "{wish:?}: {said:?}");
        }
        assert!(cluster.request_users().is_empty());
        // Who wishes for nobody is who he is.
        let answer = weir
            .with_certificate(http, &pki().alice)
            .request(self_review_request().header("impersonate-user", ""))
            .await;
        assert_eq!(reviewed_user(&answer)["username"], "alice");
    }
}

#[tokio::test]
async fn without_a_decision_of_the_api_server_no_user_is_impersonated() {
    for code in [403, 500] {
        let mut upstream = FakeUpstream::start().await;
        let weir = weir::builder(upstream.address)
            .own_token("weirs-own")
            .with(|config| {
                config.upstream.front_proxy = None;
                config.assert_by_impersonation = true;
            })
            .start()
            .await;
        let mut alice = weir.with_certificate(HttpVersion::Http2, &pki().alice);
        let call = alice
            .send(TestRequest::get(LIST).header("impersonate-user", "carol"))
            .await;
        upstream
            .next_exchange()
            .await
            .respond(code, r#"{"status":{"allowed":true}}"#)
            .await;
        let answer = call.response().await;
        assert_eq!(
            (answer.status, answer.kube_status().cause.as_str()),
            (503, "weir/impersonation")
        );
        assert_eq!(answer.headers.get("retry-after"), Some("1"));
        upstream.assert_no_request();
    }
}

#[tokio::test]
async fn a_front_proxy_s_user_impersonates_by_the_same_rules() {
    let cluster = PlaygroundCluster::start().await;
    cluster.grant("dave", "users", "carol");
    let weir = cluster.start_impersonating_weir(false).await;
    let edge = pki().front_proxy_ca.issue_client("edge", &[]);
    let wish = |user| {
        self_review_request()
            .header("x-remote-user", "dave")
            .header("impersonate-user", user)
    };
    let answer = weir
        .with_certificate(HttpVersion::Http1, &edge)
        .request(wish("carol"))
        .await;
    assert_eq!(reviewed_user(&answer)["username"], "carol");
    let refused = weir
        .with_certificate(HttpVersion::Http1, &edge)
        .request(wish("admin"))
        .await;
    assert_eq!(refused.status, 403);
}

/// With the flag and the real program.
#[tokio::test]
async fn classification_is_a_flag() {
    let cluster = PlaygroundCluster::start().await;
    cluster.grant("alice", "users", SCHEDULER);
    let weir =
        start_with_kubeconfig(&cluster, &["--classify-impersonated"], ConfigDir::new()).await;
    let (name, token) = authorization(cluster.token("alice"));
    let mut alice = weir.with_authorization(HttpVersion::Http2, (name, &token));
    send_until_counted(&weir, &mut alice).await;
    assert_eq!(
        weir.metric("weir_access_reviews_total{result=\"allowed\"}")
            .await,
        1.0
    );
}

#[tokio::test]
async fn issuers_can_be_in_the_config_file() {
    let (cluster, signer) = (PlaygroundCluster::start().await, TestSigner::new());
    let config = format!(
        "authentication:\n  jwt:\n  - issuer: {{url: '{OIDC}', audiences: [kubernetes], jwksFile: keys.json}}\n    \
         claimMappings: {{username: {{claim: sub, prefix: ''}}}}\n"
    );
    let files = || {
        let files = ConfigDir::new();
        files.write("weir.yaml", &config);
        files.write("keys.json", &signer.jwks());
        files
    };
    let weir = start_with_kubeconfig(&cluster, &["--config=weir.yaml"], files()).await;
    let claims = json!({"iss": OIDC, "aud": "kubernetes", "exp": now() + 600, "sub": "carol"});
    let (name, token) = authorization(&signer.token(&claims));
    // The playground knows no such issuer: it refuses, and weir asks nobody whose token it is.
    let answer = weir
        .with_authorization(HttpVersion::Http2, (name, &token))
        .get(LIST)
        .await;
    assert_eq!((answer.status, cluster.token_review_count()), (401, 0));
    let mut all = process::required_flags(cluster.address);
    all.insert(0, "serve".to_owned());
    all.extend(["--config=weir.yaml", "--authentication-config=keys.json"].map(str::to_owned));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let finished = process::run(&files(), &all).await;
    assert_eq!(finished.code, Some(2));
    let told = "--authentication-config: not together with authentication in the --config file";
    assert!(finished.stderr.contains(told), "{}", finished.stderr);
}
