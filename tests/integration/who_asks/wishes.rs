//! Requests that try to be taken for somebody else by impersonation, on every way: by headers in every spelling, twice, empty, escaped,
//! hidden behind `Connection` or in trailers; by who is nobody, by who is somebody, and by who may be one other and wants more. None
//! is taken for another by the API server, or given another's class by weir.

use crate::who_asks::attacks::PRIVILEGED;
use crate::who_asks::impersonation::user_in;
use crate::who_asks::impersonation::whoami;

use super::*;

/// What alice may: be carol, and nothing more of anybody.
const MAY: &str = "carol";

type Wish = &'static [(&'static str, &'static str)];

const CAROL: (&str, &str) = ("impersonate-user", MAY);
const MASTERS: (&str, &str) = ("impersonate-group", "system:masters");

const WISHES: [Wish; 40] = [
    &[("impersonate-user", "admin")],
    &[("IMPERSONATE-USER", "admin")],
    &[
        ("Impersonate-User", "admin"),
        ("Impersonate-Group", "system:masters"),
    ],
    &[("impersonate-user", "alice"), MASTERS],
    &[MASTERS],
    &[("impersonate-uid", "u-admin")],
    &[("impersonate-extra-scopes", "all")],
    &[CAROL, MASTERS],
    &[MASTERS, CAROL],
    &[CAROL, ("impersonate-group", "dev"), MASTERS],
    &[CAROL, ("impersonate-group", "")],
    &[CAROL, ("impersonate-group", "system:authenticated")],
    &[CAROL, ("impersonate-group", " system:masters")],
    &[CAROL, ("impersonate-group", "system:masters\t")],
    &[CAROL, ("impersonate-group", "dev,system:masters")],
    &[CAROL, ("impersonate-uid", "u-admin")],
    &[CAROL, ("impersonate-extra-scopes", "all")],
    &[CAROL, ("impersonate-extra-scopes%2fof", "all")],
    &[CAROL, ("impersonate-extra-%73copes", "all")],
    &[CAROL, ("impersonate-extra-%2573copes", "all")],
    &[CAROL, ("impersonate-extra-%53copes", "all")],
    &[CAROL, ("impersonate-extra-%zz", "all")],
    &[CAROL, ("impersonate-extra-%ff", "all")],
    &[CAROL, ("impersonate-extra-", "all")],
    &[CAROL, ("impersonate-user", "admin")],
    &[("impersonate-user", "admin"), CAROL],
    &[("impersonate-user", ""), ("impersonate-user", "admin")],
    &[("impersonate-user", "admin ")],
    &[("impersonate-user", "carol "), MASTERS],
    &[
        ("impersonate_user", "admin"),
        ("impersonate_group", "system:masters"),
    ],
    &[CAROL, ("impersonate_group", "system:masters")],
    &[CAROL, ("Impersonate-Extra_scopes", "all")],
    &[
        ("impersonate-users", "admin"),
        ("impersonate-groups", "system:masters"),
    ],
    &[("impersonate-user", "system:kube-scheduler")],
    &[("impersonate-user", "system:kube-controller-manager")],
    &[
        ("impersonate-user", "system:node:n1"),
        ("impersonate-group", "system:nodes"),
    ],
    &[(
        "impersonate-user",
        "system:serviceaccount:kube-system:default",
    )],
    &[
        ("impersonate-user", "system:anonymous"),
        ("impersonate-group", "system:authenticated"),
    ],
    &[
        ("x-remote-user", "admin"),
        ("x-remote-group", "system:masters"),
        ("impersonate-user", "admin"),
    ],
    &[
        ("authorization", "Bearer admin"),
        ("impersonate-user", "admin"),
        MASTERS,
    ],
];

/// Asks in every way, and fails if the API server or weir took anybody for somebody else.
async fn nobody_gains(weir: &Weir, cluster: &Cluster, http: Http) {
    let alice = format!("Bearer {}", cluster.token("alice"));
    let certificate = &pki().alice;
    for wish in WISHES {
        for mut client in [
            weir.anonymous(http),
            weir.bearing(http, ("authorization", "Bearer nonsense")),
            weir.bearing(http, ("authorization", &alice)),
            weir.certified(http, certificate),
            weir.certified_bearing(http, certificate, ("authorization", &alice)),
        ] {
            let ask = wish
                .iter()
                .fold(whoami(), |ask, (name, value)| ask.header(name, value));
            let answer = client.ask(ask).await;
            let what = format!("{http:?} {wish:?}: {} {}", answer.status, answer.text());
            assert!(matches!(answer.status, 201 | 400 | 401 | 403), "{what}");
            if answer.status == 201 {
                let user = user_in(&answer);
                // Of two names the API server takes the first, whom alice may be.
                let carol = json!({"username": MAY, "groups": ["system:authenticated"]});
                assert!(user["username"] == "alice" || user == carol, "{what}");
            }
            for schema in PRIVILEGED {
                assert_eq!(by_schema(weir, schema).await, 0.0, "{schema}: {what}");
            }
        }
    }
}

#[tokio::test]
async fn nobody_impersonates_by_a_token_or_behind_a_front_proxy_s_certificate() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        cluster.grant("alice", "users", MAY);
        let weir = cluster
            .weir(|config| {
                config.identity.impersonation.classify = true;
                config.identity.impersonation.reviews_per_second = 10_000;
            })
            .await;
        nobody_gains(&weir, &cluster, http).await;
        assert!(cluster.reviews_of("SubjectAccessReview") > 0);
    }
}

#[tokio::test]
async fn nobody_impersonates_by_weir_s_own_right() {
    for http in Http::BOTH {
        let cluster = Cluster::start().await;
        cluster.grant("alice", "users", MAY);
        let weir = cluster
            .weir(|config| {
                config.upstream.front_proxy = None;
                config.impersonate = true;
                config.identity.impersonation.classify = true;
                config.identity.impersonation.reviews_per_second = 10_000;
            })
            .await;
        nobody_gains(&weir, &cluster, http).await;
        // weir's own right went to alice, and to nobody else that anybody wished for.
        for request in cluster.server.requests() {
            let own = request.user.is_some_and(|user| user.name == "admin");
            if own && request.headers.contains_key("x-forwarded-for") {
                assert_eq!(request.headers["impersonate-user"], "alice");
                let groups = request.headers.get_all("impersonate-group");
                assert_eq!(groups.iter().collect::<Vec<_>>(), ["dev", "ops"]);
            }
        }
    }
}

/// A cluster in which alice may be whom she may, and weir before it: it asserts by impersonation, or as a front proxy that counts a
/// request for whom it impersonates.
async fn where_wishes_count(by_impersonation: bool) -> (Cluster, Weir) {
    let cluster = Cluster::start().await;
    cluster.grant("alice", "users", MAY);
    let weir = if by_impersonation {
        cluster.impersonator(true).await
    } else {
        cluster
            .weir(|config| config.identity.impersonation.classify = true)
            .await
    };
    (cluster, weir)
}

/// A proxy before weir says for whom it asks; its own client may have named that in a `Connection` header which the proxy passes on.
#[tokio::test]
async fn a_wish_cannot_be_named_away() {
    for by_impersonation in [false, true] {
        let (_cluster, weir) = where_wishes_count(by_impersonation).await;
        for connection in ["impersonate-user", "Upgrade, Impersonate-User", "close"] {
            let ask = [CAROL, ("connection", connection)]
                .iter()
                .fold(whoami(), |ask, (name, value)| ask.header(name, value));
            let answer = weir.certified(Http::One, &pki().alice).ask(ask).await;
            assert_eq!(answer.status, 201, "{connection}: {}", answer.text());
            assert_eq!(user_in(&answer)["username"], MAY, "{connection}");
        }
    }
}

/// What only raw HTTP/1.1 can say: a wish that disappears on the way, or comes behind the body.
#[tokio::test]
async fn no_wish_is_smuggled_past_weir() {
    let body = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
    let length = body.len();
    let head = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews HTTP/1.1\r\nhost: weir\r\n\
                content-type: application/json\r\nconnection: ";
    let named = |names: &str, wish: &str| {
        format!("{head}close, {names}\r\n{wish}content-length: {length}\r\n\r\n{body}")
    };
    let masters = "impersonate-user: admin\r\nimpersonate-group: system:masters\r\n";
    let trailers = format!(
        "{head}close\r\ntransfer-encoding: chunked\r\ntrailer: impersonate-user\r\n\r\n{length:x}\r\n{body}\r\n0\r\n{masters}\r\n"
    );
    let requests = [
        named("impersonate-user", masters),
        named("impersonate-group", masters),
        named(" impersonate-user , impersonate-group", masters),
        named("keep-alive", "impersonate-user : admin\r\n"),
        named("keep-alive", "x-a: b\r\n impersonate-user: admin\r\n"),
        trailers,
    ];
    for by_impersonation in [false, true] {
        let (_cluster, weir) = where_wishes_count(by_impersonation).await;
        for request in &requests {
            let mut wire = weir.wire_of(Some(&pki().alice)).await;
            wire.send(request.clone()).await;
            let (answered, body) = wire.answer("POST").await;
            match answered.status {
                201 => {
                    let review: Value = serde_json::from_slice(&body).unwrap();
                    assert_eq!(
                        review["status"]["userInfo"]["username"], "alice",
                        "{request}"
                    );
                }
                code => assert!(matches!(code, 400 | 403), "{request}: {code}"),
            }
            for schema in PRIVILEGED {
                assert_eq!(by_schema(&weir, schema).await, 0.0, "{request}");
            }
        }
    }
}
