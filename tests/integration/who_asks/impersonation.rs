//! Clients that impersonate: for whom their requests count, and in whose name they go on. And a certificate's user, told to the API
//! server by impersonation.

use ::weir::playground::Grant;

use super::*;
use crate::support::Stopwatch;
use crate::support::client::Client;

#[tokio::test]
async fn where_there_is_no_front_proxies_ca_a_certificate_s_user_is_impersonated() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        let weir = cluster
            .weir(|config| {
                config.upstream.front_proxy = None;
                config.impersonate = true;
            })
            .await;
        let mut alice = weir.certified_bearing(http, &pki().alice, ("authorization", "Bearer x"));
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
        assert_eq!(get(&weir, http, cluster.token("alice")).await.status, 200);
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

const SELF: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const SCHEDULER: &str = "system:kube-scheduler";

/// Asks the API server whom it takes the caller for.
pub(super) fn whoami() -> Ask {
    let review = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
    Ask::post(SELF, review).header("content-type", "application/json")
}

/// What it answered.
pub(super) fn user_in(answer: &Answer) -> Value {
    let review: Value = serde_json::from_slice(&answer.body).unwrap();
    review["status"]["userInfo"].clone()
}

impl Cluster {
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
    pub(super) async fn impersonator(&self, classify: bool) -> Weir {
        self.weir(|config| {
            config.upstream.front_proxy = None;
            config.impersonate = true;
            config.identity.impersonation.classify = classify;
        })
        .await
    }
}

fn classifying(config: &mut Config) {
    config.identity.impersonation.classify = true;
}

#[tokio::test]
async fn who_impersonates_counts_for_who_he_is_unless_it_is_wanted_otherwise() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        cluster.grant("alice", "users", SCHEDULER);
        let weir = cluster.weir(|_| {}).await;
        let (name, token) = authorization(cluster.token("alice"));
        for mut alice in [
            weir.bearing(http, (name, &token)),
            weir.certified(http, &pki().alice),
        ] {
            let answer = alice
                .ask(whoami().header("impersonate-user", SCHEDULER))
                .await;
            assert_eq!(user_in(&answer)["username"], SCHEDULER);
        }
        assert_eq!(by_schema(&weir, "kube-scheduler").await, 0.0);
        assert_eq!(cluster.reviews_of("SubjectAccessReview"), 0);
    }
}

/// Asks in the scheduler's name.
async fn ask_as_scheduler(client: &mut Client) {
    let answer = client
        .ask(whoami().header("impersonate-user", SCHEDULER))
        .await;
    assert_eq!(user_in(&answer)["username"], SCHEDULER);
}

/// Asks in the scheduler's name until that counts for it, and tells how often it did not: the API server's word about that is
/// waited for no longer than a second.
async fn ask_until_counted(weir: &Door, client: &mut Client) -> usize {
    let before = by_schema(weir, "kube-scheduler").await;
    let mut vain = 0;
    eventually("a request to count for the scheduler", async || {
        let began = Stopwatch::start();
        ask_as_scheduler(client).await;
        let counted = by_schema(weir, "kube-scheduler").await;
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
async fn who_may_impersonate_counts_for_whom_he_impersonates() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        cluster.grant("alice", "users", SCHEDULER);
        let weir = cluster.weir(classifying).await;
        let (name, token) = authorization(cluster.token("alice"));
        // A certificate's user is another than the token's (its groups differ), so each is asked about once.
        let clients = [
            weir.bearing(http, (name, &token)),
            weir.certified(http, &pki().alice),
        ];
        let mut vain = 0;
        for (mut alice, (counted, reviews)) in clients.into_iter().zip([(3.0, 1), (6.0, 2)]) {
            vain += ask_until_counted(&weir, &mut alice).await;
            for _ in 0..2 {
                ask_as_scheduler(&mut alice).await;
            }
            assert_eq!(by_schema(&weir, "kube-scheduler").await, counted);
            assert_eq!(cluster.reviews_of("SubjectAccessReview"), reviews);
        }
        let top = eventually("the requests are counted", async || {
            let answer = weir.operator("/debug/top_talkers?by=user").await;
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
async fn who_may_not_impersonate_counts_for_who_he_is_and_hears_it_from_the_api_server() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        cluster.grant("alice", "users", SCHEDULER);
        let weir = cluster.weir(classifying).await;
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
                .fold(whoami(), |ask, (name, value)| ask.header(name, value));
            let answer = weir.bearing(http, (name, &token)).ask(ask).await;
            assert_eq!(answer.status, code, "{wish:?}: {}", answer.text());
        }
        assert_eq!(by_schema(&weir, "kube-scheduler").await, 0.0);
        assert_eq!(by_schema(&weir, "exempt").await, 0.0);
        assert_eq!(by_schema(&weir, "global-default").await, 7.0);
    }
}

#[tokio::test]
async fn nobody_is_asked_about_a_stranger_s_wishes() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        cluster.grant("system:anonymous", "users", SCHEDULER);
        let weir = cluster.weir(classifying).await;
        let wish = || Ask::get(LIST).header("impersonate-user", SCHEDULER);
        let _ = weir.anonymous(http).ask(wish()).await;
        let (name, token) = authorization("nonsense");
        assert_eq!(
            weir.bearing(http, (name, &token)).ask(wish()).await.status,
            401
        );
        assert_eq!(cluster.reviews_of("SubjectAccessReview"), 0);
        assert_eq!(by_schema(&weir, "kube-scheduler").await, 0.0);
        assert_eq!(by_schema(&weir, "global-default").await, 2.0);
    }
}

#[tokio::test]
async fn a_wish_that_cannot_be_looked_at_costs_no_answer() {
    for code in [403, 500] {
        let mut upstream = Upstream::start().await;
        let weir = weir::before(upstream.address)
            .calling_with("weirs-own")
            .with(|config| {
                classifying(config);
            })
            .start()
            .await;
        let mut alice = weir.alice(Http::Two);
        let call = alice
            .send(Ask::get(LIST).header("impersonate-user", "carol"))
            .await;
        let mut review = upstream.next().await;
        assert_eq!(
            review.asked.target,
            "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        );
        assert_eq!(
            review.asked.headers.all("authorization"),
            ["Bearer weirs-own"]
        );
        let asked: Value = serde_json::from_slice(&review.body().await).unwrap();
        assert_eq!(asked["spec"]["user"], "alice");
        assert_eq!(asked["spec"]["resourceAttributes"]["name"], "carol");
        review.reply(code, r#"{"status":{"allowed":true}}"#).await;
        let exchange = upstream.next().await;
        assert_eq!(exchange.asked.headers.all("impersonate-user"), ["carol"]);
        assert_eq!(
            exchange.asked.headers.all("authorization"),
            ["Bearer alice-token"]
        );
        exchange.reply(200, "{}").await;
        assert_eq!(call.answer().await.status, 200);
    }
}

#[tokio::test]
async fn behind_a_front_proxy_s_certificate_the_api_server_judges_a_client_s_own_wish() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        cluster.grant("alice", "users", "carol");
        cluster.grant("alice", "groups", "qa");
        cluster.grant("alice", "uids", "u-carol");
        cluster.grant("alice", "userextras/example.org/scope", "read");
        let weir = cluster.weir(|_| {}).await;
        let mut alice = weir.certified(http, &pki().alice);
        let wish = whoami()
            .header("impersonate-user", "carol")
            .header("impersonate-group", "qa")
            .header("impersonate-uid", "u-carol")
            .header("impersonate-extra-example.org%2fscope", "read");
        let answer = alice.ask(wish).await;
        assert_eq!(
            user_in(&answer),
            json!({"username": "carol", "uid": "u-carol", "groups": ["qa", "system:authenticated"],
                   "extra": {"example.org/scope": ["read"]}})
        );
        assert_eq!(cluster.senders()[0].as_ref().unwrap().name, "alice");
        let refused = alice
            .ask(whoami().header("impersonate-user", "admin"))
            .await;
        assert_eq!(refused.status, 403);
        assert!(
            refused
                .told()
                .message
                .contains("User \"alice\" cannot impersonate"),
            "{}",
            refused.text()
        );
    }
}

#[tokio::test]
async fn weir_impersonates_whom_a_certificate_s_user_may_impersonate() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        cluster.grant("alice", "users", "");
        cluster.grant("alice", "groups", "qa");
        cluster.grant("alice", "uids", "u-carol");
        cluster.grant("alice", "userextras/example.org/scope", "read");
        cluster.grant("alice", "serviceaccounts", "builder");
        let weir = cluster.impersonator(true).await;
        let mut alice = weir.certified_bearing(http, &pki().alice, ("authorization", "Bearer x"));
        let wish = || {
            whoami()
                .header("impersonate-extra-example.org%2Fscope", "read")
                .header("impersonate-uid", "u-carol")
                .header("impersonate-group", "qa")
                .header("impersonate-user", "carol")
        };
        for _ in 0..2 {
            let answer = alice.ask(wish()).await;
            assert_eq!(
                user_in(&answer),
                json!({"username": "carol", "uid": "u-carol", "groups": ["qa", "system:authenticated"],
                       "extra": {"example.org/scope": ["read"]}}),
                "nothing of alice's is left"
            );
        }
        assert_eq!(cluster.reviews_of("SubjectAccessReview"), 4);
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
            let answer = alice.ask(whoami().header("impersonate-user", user)).await;
            let user_info = json!({"username": user, "groups": groups});
            assert_eq!(user_in(&answer), user_info);
            let last = cluster.server.requests().pop().unwrap();
            assert!(last.headers.contains_key("impersonate-group"), "{user}");
        }
        assert_eq!(by_schema(&weir, "kube-scheduler").await, 1.0);
    }
}

#[tokio::test]
async fn what_a_certificate_s_user_may_not_impersonate_never_reaches_the_api_server() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        cluster.grant("alice", "users", "carol");
        let weir = cluster.impersonator(false).await;
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
                .fold(Ask::get(LIST), |ask, (name, value)| ask.header(name, value));
            let answer = weir.certified(http, &pki().alice).ask(ask).await;
            let said = answer.told();
            assert_eq!(
                (answer.status, said.cause.as_str()),
                (code, "weir/impersonation"),
                "{wish:?}"
            );
            assert!(said.message.contains(told), "{wish:?}: {said:?}");
        }
        assert!(cluster.senders().is_empty());
        // Who wishes for nobody is who he is.
        let answer = weir
            .certified(http, &pki().alice)
            .ask(whoami().header("impersonate-user", ""))
            .await;
        assert_eq!(user_in(&answer)["username"], "alice");
    }
}

#[tokio::test]
async fn where_the_api_server_does_not_say_nobody_is_impersonated() {
    for code in [403, 500] {
        let mut upstream = Upstream::start().await;
        let weir = weir::before(upstream.address)
            .calling_with("weirs-own")
            .with(|config| {
                config.upstream.front_proxy = None;
                config.impersonate = true;
            })
            .start()
            .await;
        let mut alice = weir.certified(Http::Two, &pki().alice);
        let call = alice
            .send(Ask::get(LIST).header("impersonate-user", "carol"))
            .await;
        upstream
            .next()
            .await
            .reply(code, r#"{"status":{"allowed":true}}"#)
            .await;
        let answer = call.answer().await;
        assert_eq!(
            (answer.status, answer.told().cause.as_str()),
            (503, "weir/impersonation")
        );
        assert_eq!(answer.headers.get("retry-after"), Some("1"));
        upstream.assert_nothing_came();
    }
}

#[tokio::test]
async fn a_front_proxy_s_user_impersonates_by_the_same_rules() {
    let cluster = Cluster::start().await;
    cluster.grant("dave", "users", "carol");
    let weir = cluster.impersonator(false).await;
    let edge = pki().front_proxy.client("edge", &[]);
    let wish = |user| {
        whoami()
            .header("x-remote-user", "dave")
            .header("impersonate-user", user)
    };
    let answer = weir.certified(Http::One, &edge).ask(wish("carol")).await;
    assert_eq!(user_in(&answer)["username"], "carol");
    let refused = weir.certified(Http::One, &edge).ask(wish("admin")).await;
    assert_eq!(refused.status, 403);
}

/// With the flag and the real program.
#[tokio::test]
async fn classification_is_a_flag() {
    let cluster = Cluster::start().await;
    cluster.grant("alice", "users", SCHEDULER);
    let weir = by_kubeconfig(&cluster, &["--classify-impersonated"], Files::new()).await;
    let (name, token) = authorization(cluster.token("alice"));
    let mut alice = weir.bearing(Http::Two, (name, &token));
    ask_until_counted(&weir, &mut alice).await;
    assert_eq!(
        weir.metric("weir_access_reviews_total{result=\"allowed\"}")
            .await,
        1.0
    );
}

#[tokio::test]
async fn issuers_may_stand_in_the_config_file() {
    let (cluster, signer) = (Cluster::start().await, Signer::new());
    let config = format!(
        "authentication:\n  jwt:\n  - issuer: {{url: '{OIDC}', audiences: [kubernetes], jwksFile: keys.json}}\n    \
         claimMappings: {{username: {{claim: sub, prefix: ''}}}}\n"
    );
    let files = || {
        let files = Files::new();
        files.write("weir.yaml", &config);
        files.write("keys.json", &signer.jwks());
        files
    };
    let weir = by_kubeconfig(&cluster, &["--config=weir.yaml"], files()).await;
    let claims = json!({"iss": OIDC, "aud": "kubernetes", "exp": now() + 600, "sub": "carol"});
    let (name, token) = authorization(&signer.token(&claims));
    // The playground knows no such issuer: it refuses, and weir asks nobody whose token it is.
    let answer = weir.bearing(Http::Two, (name, &token)).get(LIST).await;
    assert_eq!((answer.status, cluster.reviews()), (401, 0));
    let mut all = process::needed(cluster.address);
    all.insert(0, "serve".to_owned());
    all.extend(["--config=weir.yaml", "--authentication-config=keys.json"].map(str::to_owned));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let finished = process::run(&files(), &all).await;
    assert_eq!(finished.code, Some(2));
    let told = "--authentication-config: not together with authentication in the --config file";
    assert!(finished.stderr.contains(told), "{}", finished.stderr);
}
