//! Impersonation: the user that a request is classified for, and the user that it is forwarded for.
//! Also the assertion of a certificate's user by impersonation.

use weir_playground::Grant;

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
        // alice may not read there; weir's own user may.
        let rejected = alice.get("/api/v1/namespaces/kube-system/pods").await;
        assert_eq!(rejected.status, 403, "{}", rejected.text());
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
        // Requests with a token or without credentials are forwarded as always.
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

/// Asks the API server for the caller's user.
pub(super) fn self_review_request() -> TestRequest {
    let review = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
    TestRequest::post(SELF_REVIEWS, review).header("content-type", "application/json")
}

/// The user in its response.
pub(super) fn reviewed_user(response: &FullResponse) -> Value {
    let review: Value = serde_json::from_slice(&response.body).unwrap();
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

    /// weir with `--assert-by=impersonation`.
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
            let response = alice
                .request(self_review_request().header("impersonate-user", SCHEDULER))
                .await;
            assert_eq!(reviewed_user(&response)["username"], SCHEDULER);
        }
        assert_eq!(dispatched_by_schema(&weir, "kube-scheduler").await, 0.0);
        assert_eq!(cluster.review_count("SubjectAccessReview"), 0);
    }
}

/// Sends a request that impersonates the scheduler.
async fn send_as_scheduler(client: &mut TestClient) {
    let response = client
        .request(self_review_request().header("impersonate-user", SCHEDULER))
        .await;
    assert_eq!(reviewed_user(&response)["username"], SCHEDULER);
}

/// Repeats until such a request is classified for the scheduler, and returns how often it was not.
/// weir waits no longer than a second for the API server's review.
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
        // The certificate's user differs from the token's (by its groups), so each is reviewed
        // once.
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
            let response = weir.get_admin("/debug/top_talkers?by=user").await;
            let top: Value = serde_json::from_str(response.text()).unwrap();
            (top["total"]["requests"] == 6 + vain).then_some(top)
        });
        let top = top.await;
        assert_eq!(top["rows"][0]["name"], SCHEDULER);
        assert_eq!(top["rows"][0]["requests"], 6);
        // The impersonation headers were forwarded unchanged, with the sender's own identity.
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
        for (headers, code) in [
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
            // weir does not choose between the two.
            (
                &[
                    ("impersonate-user", SCHEDULER),
                    ("impersonate-user", SCHEDULER),
                ],
                201,
            ),
            (&[("impersonate_user", "admin")], 201),
        ] {
            let request = headers
                .iter()
                .fold(self_review_request(), |request, (name, value)| {
                    request.header(name, value)
                });
            let response = weir
                .with_authorization(http, (name, &token))
                .request(request)
                .await;
            assert_eq!(response.status, code, "{headers:?}: {}", response.text());
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
        let impersonating_request = || TestRequest::get(LIST).header("impersonate-user", SCHEDULER);
        let _ = weir.anonymous(http).request(impersonating_request()).await;
        let (name, token) = authorization("nonsense");
        assert_eq!(
            weir.with_authorization(http, (name, &token))
                .request(impersonating_request())
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
        let access_review: Value = serde_json::from_slice(&review.read_body().await).unwrap();
        assert_eq!(access_review["spec"]["user"], "alice");
        assert_eq!(access_review["spec"]["resourceAttributes"]["name"], "carol");
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
        let impersonating_request = self_review_request()
            .header("impersonate-user", "carol")
            .header("impersonate-group", "qa")
            .header("impersonate-uid", "u-carol")
            .header("impersonate-extra-example.org%2fscope", "read");
        let response = alice.request(impersonating_request).await;
        assert_eq!(
            reviewed_user(&response),
            json!({"username": "carol", "uid": "u-carol", "groups": ["qa", "system:authenticated"],
                   "extra": {"example.org/scope": ["read"]}})
        );
        assert_eq!(cluster.request_users()[0].as_ref().unwrap().name, "alice");
        let rejected = alice
            .request(self_review_request().header("impersonate-user", "admin"))
            .await;
        assert_eq!(rejected.status, 403);
        assert!(
            rejected
                .kube_status()
                .message
                .contains("User \"alice\" cannot impersonate"),
            "{}",
            rejected.text()
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
        let impersonating_request = || {
            self_review_request()
                .header("impersonate-extra-example.org%2Fscope", "read")
                .header("impersonate-uid", "u-carol")
                .header("impersonate-group", "qa")
                .header("impersonate-user", "carol")
        };
        for _ in 0..2 {
            let response = alice.request(impersonating_request()).await;
            assert_eq!(
                reviewed_user(&response),
                json!({"username": "carol", "uid": "u-carol", "groups": ["qa", "system:authenticated"],
                       "extra": {"example.org/scope": ["read"]}}),
                "nothing of alice's is left"
            );
        }
        assert_eq!(cluster.review_count("SubjectAccessReview"), 4);
        // The API server would add these by weir's permissions, not by alice's.
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
            let response = alice
                .request(self_review_request().header("impersonate-user", user))
                .await;
            let user_info = json!({"username": user, "groups": groups});
            assert_eq!(reviewed_user(&response), user_info);
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
        for (headers, code, error) in [
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
            let request = headers
                .iter()
                .fold(TestRequest::get(LIST), |request, (name, value)| {
                    request.header(name, value)
                });
            let response = weir
                .with_certificate(http, &pki().alice)
                .request(request)
                .await;
            let kube_status = response.kube_status();
            assert_eq!(
                (response.status, kube_status.cause.as_str()),
                (code, "weir/impersonation"),
                "{headers:?}"
            );
            assert!(
                kube_status.message.contains(error),
                "{headers:?}: {kube_status:?}"
            );
        }
        assert!(cluster.request_users().is_empty());
        // An empty impersonation header means the sender itself.
        let response = weir
            .with_certificate(http, &pki().alice)
            .request(self_review_request().header("impersonate-user", ""))
            .await;
        assert_eq!(reviewed_user(&response)["username"], "alice");
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
        let response = call.response().await;
        assert_eq!(
            (response.status, response.kube_status().cause.as_str()),
            (503, "weir/impersonation")
        );
        assert_eq!(response.headers.get("retry-after"), Some("1"));
        upstream.assert_no_request();
    }
}

#[tokio::test]
async fn a_front_proxy_s_user_impersonates_by_the_same_rules() {
    let cluster = PlaygroundCluster::start().await;
    cluster.grant("dave", "users", "carol");
    let weir = cluster.start_impersonating_weir(false).await;
    let edge = pki().front_proxy_ca.issue_client("edge", &[]);
    let impersonating_request = |user| {
        self_review_request()
            .header("x-remote-user", "dave")
            .header("impersonate-user", user)
    };
    let response = weir
        .with_certificate(HttpVersion::Http1, &edge)
        .request(impersonating_request("carol"))
        .await;
    assert_eq!(reviewed_user(&response)["username"], "carol");
    let rejected = weir
        .with_certificate(HttpVersion::Http1, &edge)
        .request(impersonating_request("admin"))
        .await;
    assert_eq!(rejected.status, 403);
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
    // The playground does not know this issuer and rejects the token. weir sends no review of it.
    let response = weir
        .with_authorization(HttpVersion::Http2, (name, &token))
        .get(LIST)
        .await;
    assert_eq!((response.status, cluster.token_review_count()), (401, 0));
    let mut all = process::required_flags(cluster.address);
    all.insert(0, "serve".to_owned());
    all.extend(["--config=weir.yaml", "--authentication-config=keys.json"].map(str::to_owned));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let finished = process::run(&files(), &all).await;
    assert_eq!(finished.code, Some(2));
    let error = "--authentication-config: not together with authentication in the --config file";
    assert!(finished.stderr.contains(error), "{}", finished.stderr);
}
