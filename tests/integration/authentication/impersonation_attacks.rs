//! Spoofing by impersonation in every mode: headers in every spelling, repeated, empty, escaped,
//! hidden behind `Connection` or in trailers; from anonymous clients, from authenticated ones, and
//! from clients that may impersonate one other user and try more. The API server takes no request
//! for another user's, and weir classifies none for another user.

use crate::authentication::impersonation::{reviewed_user, self_review_request};
use crate::authentication::spoofing::PRIVILEGED_SCHEMAS;

use super::*;

/// alice's permissions: impersonate carol, and nothing more.
const ALLOWED_USER: &str = "carol";

type ImpersonationHeaders = &'static [(&'static str, &'static str)];

const CAROL_HEADER: (&str, &str) = ("impersonate-user", ALLOWED_USER);
const MASTERS_HEADER: (&str, &str) = ("impersonate-group", "system:masters");

const FORGED_TARGETS: [ImpersonationHeaders; 40] = [
    &[("impersonate-user", "admin")],
    &[("IMPERSONATE-USER", "admin")],
    &[
        ("Impersonate-User", "admin"),
        ("Impersonate-Group", "system:masters"),
    ],
    &[("impersonate-user", "alice"), MASTERS_HEADER],
    &[MASTERS_HEADER],
    &[("impersonate-uid", "u-admin")],
    &[("impersonate-extra-scopes", "all")],
    &[CAROL_HEADER, MASTERS_HEADER],
    &[MASTERS_HEADER, CAROL_HEADER],
    &[CAROL_HEADER, ("impersonate-group", "dev"), MASTERS_HEADER],
    &[CAROL_HEADER, ("impersonate-group", "")],
    &[CAROL_HEADER, ("impersonate-group", "system:authenticated")],
    &[CAROL_HEADER, ("impersonate-group", " system:masters")],
    &[CAROL_HEADER, ("impersonate-group", "system:masters\t")],
    &[CAROL_HEADER, ("impersonate-group", "dev,system:masters")],
    &[CAROL_HEADER, ("impersonate-uid", "u-admin")],
    &[CAROL_HEADER, ("impersonate-extra-scopes", "all")],
    &[CAROL_HEADER, ("impersonate-extra-scopes%2fof", "all")],
    &[CAROL_HEADER, ("impersonate-extra-%73copes", "all")],
    &[CAROL_HEADER, ("impersonate-extra-%2573copes", "all")],
    &[CAROL_HEADER, ("impersonate-extra-%53copes", "all")],
    &[CAROL_HEADER, ("impersonate-extra-%zz", "all")],
    &[CAROL_HEADER, ("impersonate-extra-%ff", "all")],
    &[CAROL_HEADER, ("impersonate-extra-", "all")],
    &[CAROL_HEADER, ("impersonate-user", "admin")],
    &[("impersonate-user", "admin"), CAROL_HEADER],
    &[("impersonate-user", ""), ("impersonate-user", "admin")],
    &[("impersonate-user", "admin ")],
    &[("impersonate-user", "carol "), MASTERS_HEADER],
    &[
        ("impersonate_user", "admin"),
        ("impersonate_group", "system:masters"),
    ],
    &[CAROL_HEADER, ("impersonate_group", "system:masters")],
    &[CAROL_HEADER, ("Impersonate-Extra_scopes", "all")],
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
        MASTERS_HEADER,
    ],
];

/// Sends the requests in every mode. Fails if the API server or weir takes one for another user's.
async fn assert_no_impersonation(weir: &Weir, cluster: &PlaygroundCluster, http: HttpVersion) {
    let alice = format!("Bearer {}", cluster.token("alice"));
    let certificate = &pki().alice;
    for headers in FORGED_TARGETS {
        for mut client in [
            weir.anonymous(http),
            weir.with_authorization(http, ("authorization", "Bearer nonsense")),
            weir.with_authorization(http, ("authorization", &alice)),
            weir.with_certificate(http, certificate),
            weir.with_certificate_and_authorization(http, certificate, ("authorization", &alice)),
        ] {
            let request = headers
                .iter()
                .fold(self_review_request(), |request, (name, value)| {
                    request.header(name, value)
                });
            let response = client.request(request).await;
            let what = format!(
                "{http:?} {headers:?}: {} {}",
                response.status,
                response.text()
            );
            assert!(matches!(response.status, 201 | 400 | 401 | 403), "{what}");
            if response.status == 201 {
                let user = reviewed_user(&response);
                // Of two names the API server takes the first, which alice may impersonate.
                let carol = json!({"username": ALLOWED_USER, "groups": ["system:authenticated"]});
                assert!(user["username"] == "alice" || user == carol, "{what}");
            }
            for schema in PRIVILEGED_SCHEMAS {
                assert_eq!(
                    dispatched_by_schema(weir, schema).await,
                    0.0,
                    "{schema}: {what}"
                );
            }
        }
    }
}

#[tokio::test]
async fn impersonation_beyond_permissions_fails_by_token_and_front_proxy() {
    for http in HttpVersion::BOTH {
        let cluster = PlaygroundCluster::start().await;
        cluster.grant("alice", "users", ALLOWED_USER);
        let weir = cluster
            .start_weir(|config| {
                config.identity.impersonation.classify = true;
                config.identity.impersonation.reviews_per_second = 10_000;
            })
            .await;
        assert_no_impersonation(&weir, &cluster, http).await;
        assert!(cluster.review_count("SubjectAccessReview") > 0);
    }
}

#[tokio::test]
async fn no_client_impersonates_with_weir_s_own_permissions() {
    for http in HttpVersion::BOTH {
        let cluster = PlaygroundCluster::start().await;
        cluster.grant("alice", "users", ALLOWED_USER);
        let weir = cluster
            .start_weir(|config| {
                config.upstream.front_proxy = None;
                config.assert_by_impersonation = true;
                config.identity.impersonation.classify = true;
                config.identity.impersonation.reviews_per_second = 10_000;
            })
            .await;
        assert_no_impersonation(&weir, &cluster, http).await;
        // weir's own permission was used for alice, and for no other target.
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

/// A cluster in which alice may impersonate carol, and weir in front of it: it asserts by
/// impersonation, or as a front proxy that classifies a request for its impersonation target.
async fn start_classifying_impersonation(by_impersonation: bool) -> (PlaygroundCluster, Weir) {
    let cluster = PlaygroundCluster::start().await;
    cluster.grant("alice", "users", ALLOWED_USER);
    let weir = if by_impersonation {
        cluster.start_impersonating_weir(true).await
    } else {
        cluster
            .start_weir(|config| config.identity.impersonation.classify = true)
            .await
    };
    (cluster, weir)
}

/// A proxy before weir names the user. Its own client may have named that header in `Connection`,
/// which the proxy passes on.
#[tokio::test]
async fn impersonation_headers_cannot_be_removed_by_connection() {
    for by_impersonation in [false, true] {
        let (_cluster, weir) = start_classifying_impersonation(by_impersonation).await;
        for connection in ["impersonate-user", "Upgrade, Impersonate-User", "close"] {
            let request = [CAROL_HEADER, ("connection", connection)]
                .iter()
                .fold(self_review_request(), |request, (name, value)| {
                    request.header(name, value)
                });
            let response = weir
                .with_certificate(HttpVersion::Http1, &pki().alice)
                .request(request)
                .await;
            assert_eq!(response.status, 201, "{connection}: {}", response.text());
            assert_eq!(
                reviewed_user(&response)["username"],
                ALLOWED_USER,
                "{connection}"
            );
        }
    }
}

/// Requests that need raw HTTP/1.1: impersonation headers that are removed on the way, or sent as
/// trailers.
#[tokio::test]
async fn no_impersonation_is_smuggled_past_weir() {
    let body = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
    let length = body.len();
    let head = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews HTTP/1.1\r\nhost: weir\r\n\
                content-type: application/json\r\nconnection: ";
    let named = |names: &str, header: &str| {
        format!("{head}close, {names}\r\n{header}content-length: {length}\r\n\r\n{body}")
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
        let (_cluster, weir) = start_classifying_impersonation(by_impersonation).await;
        for request in &requests {
            let mut wire = weir.raw_http1_with_certificate(Some(&pki().alice)).await;
            wire.send(request.clone()).await;
            let (answered, body) = wire.read_response("POST").await;
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
            for schema in PRIVILEGED_SCHEMAS {
                assert_eq!(dispatched_by_schema(&weir, schema).await, 0.0, "{request}");
            }
        }
    }
}
