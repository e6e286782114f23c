//! The identity and the connection of a request: users of client certificates are asserted, all
//! other clients use their own credentials, and the two never share a connection.

use std::collections::HashMap;

use ::weir::config::FrontProxyConfig;
use rcgen::DnValue;
use rcgen::string::{BmpString, TeletexString, UniversalString};

use crate::support::certificates::{IssuedCertificate, pki};
use crate::support::client::{TestClient, TestRequest};
use crate::support::fake_upstream::{Exchange, FakeUpstream, HTTP1_ONLY};
use crate::support::weir::{ALICE, Weir};
use crate::support::{HttpVersion, weir};

/// A token that weir does not know.
const UNKNOWN_TOKEN: (&str, &str) = ("authorization", "Bearer who-knows");

async fn start() -> (Weir, FakeUpstream) {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    (weir, upstream)
}

/// Sends a request that the upstream answers with `status`. Returns the request as the upstream saw
/// it.
async fn send_and_inspect(
    client: &mut TestClient,
    upstream: &mut FakeUpstream,
    status: u16,
) -> Exchange {
    let mut call = client.send(TestRequest::get("/api")).await;
    let mut exchange = upstream.next_exchange().await;
    exchange.send_head(status, &[("content-length", "0")]).await;
    assert_eq!(call.head().await.status, status);
    exchange
}

/// As [`seen`], with the response.
async fn send_and_finish(
    client: &mut TestClient,
    upstream: &mut FakeUpstream,
    status: u16,
) -> (usize, HttpVersion) {
    let call = client.send(TestRequest::get("/api")).await;
    let exchange = upstream.next_exchange().await;
    let by = (exchange.connection.number, exchange.connection.http);
    exchange.respond(status, "{}").await;
    assert_eq!(call.response().await.status, status);
    by
}

fn certificate(exchange: &Exchange) -> Option<&str> {
    exchange.connection.certificate.as_deref()
}

#[tokio::test]
async fn a_certificate_s_user_is_asserted_on_a_connection_with_the_front_proxy_s_certificate() {
    for near in HttpVersion::BOTH {
        let (weir, mut upstream) = start().await;
        let mut client = weir.with_certificate(near, &pki().alice);
        let exchange = send_and_inspect(&mut client, &mut upstream, 200).await;
        assert_eq!(certificate(&exchange), Some("front-proxy-client"));
        assert_eq!(exchange.connection.http, HttpVersion::Http2);
        let headers = &exchange.request.headers;
        assert_eq!(headers.all("x-remote-user"), ["alice"]);
        assert_eq!(
            headers.all("x-remote-group"),
            ["dev", "ops", "system:authenticated"]
        );
        let id = &headers["x-remote-extra-authentication.kubernetes.io%2fcredential-id"];
        assert_eq!(id.len(), "X509SHA256=".len() + 64, "{id}");
        assert_eq!(headers.get("authorization"), None);
        assert_eq!(headers.get("x-remote-uid"), None);
    }
}

#[tokio::test]
async fn a_certificate_s_uid_is_asserted() {
    let (weir, mut upstream) = start().await;
    let own = pki().client_ca.issue_client_with_uid("carol", "u-1");
    let exchange = send_and_inspect(
        &mut weir.with_certificate(HttpVersion::Http2, &own),
        &mut upstream,
        200,
    )
    .await;
    assert_eq!(exchange.request.headers.all("x-remote-user"), ["carol"]);
    assert_eq!(exchange.request.headers.all("x-remote-uid"), ["u-1"]);
    let groups = exchange.request.headers.all("x-remote-group");
    assert_eq!(groups, ["system:authenticated"]);
}

const COMMON_NAME: &[u64] = &[2, 5, 4, 3];

#[tokio::test]
async fn a_certificate_s_last_common_name_is_asserted_whatever_its_string_type() {
    let (weir, mut upstream) = start().await;
    let bmp = DnValue::BmpString(BmpString::try_from("alice").unwrap());
    let t61 = DnValue::TeletexString(TeletexString::try_from("alice").unwrap());
    for last in [bmp, t61] {
        let own =
            pki()
                .client_ca
                .issue_client_with_attribute("kubernetes-admin", COMMON_NAME, last);
        let exchange = send_and_inspect(
            &mut weir.with_certificate(HttpVersion::Http2, &own),
            &mut upstream,
            200,
        )
        .await;
        assert_eq!(exchange.request.headers.all("x-remote-user"), ["alice"]);
    }
}

#[tokio::test]
async fn a_certificate_with_an_unreadable_common_name_is_a_401() {
    let (weir, _upstream) = start().await;
    let universal = DnValue::UniversalString(UniversalString::try_from("alice").unwrap());
    let own =
        pki()
            .client_ca
            .issue_client_with_attribute("kubernetes-admin", COMMON_NAME, universal);
    for near in HttpVersion::BOTH {
        let response = weir.with_certificate(near, &own).get("/api").await;
        assert_eq!(response.status, 401);
        assert!(
            response.text().contains("common name"),
            "{}",
            response.text()
        );
    }
}

#[tokio::test]
async fn tokens_and_anonymous_requests_use_connections_without_a_certificate() {
    for near in HttpVersion::BOTH {
        let (weir, mut upstream) = start().await;
        for (mut client, expected) in [
            (weir.alice(near), Some(ALICE.1)),
            (
                weir.with_authorization(near, UNKNOWN_TOKEN),
                Some(UNKNOWN_TOKEN.1),
            ),
            (
                weir.with_authorization(near, ("authorization", "Basic YTpi")),
                Some("Basic YTpi"),
            ),
            (weir.anonymous(near), None),
        ] {
            let exchange = send_and_inspect(&mut client, &mut upstream, 200).await;
            assert_eq!(certificate(&exchange), None);
            assert_eq!(exchange.request.headers.get("authorization"), expected);
            let asserted = exchange
                .request
                .headers
                .0
                .iter()
                .any(|(n, _)| n.starts_with("x-remote"));
            assert!(!asserted, "{:?}", exchange.request);
        }
    }
}

#[tokio::test]
async fn a_certificate_overrides_a_token_and_the_token_is_removed() {
    for near in HttpVersion::BOTH {
        let (weir, mut upstream) = start().await;
        let mut client = weir.with_certificate_and_authorization(near, &pki().alice, UNKNOWN_TOKEN);
        let exchange = send_and_inspect(&mut client, &mut upstream, 200).await;
        assert_eq!(certificate(&exchange), Some("front-proxy-client"));
        assert_eq!(exchange.request.headers.all("x-remote-user"), ["alice"]);
        assert_eq!(exchange.request.headers.get("authorization"), None);
    }
}

/// Certificates that do not authenticate a client.
fn untrusted_certificates() -> [IssuedCertificate; 3] {
    [
        pki()
            .untrusted_ca
            .issue_client("alice", &["system:masters"]),
        pki().client_ca.issue_expired_client("alice"),
        pki().client_ca.issue_server(), // a server certificate
    ]
}

#[tokio::test]
async fn an_untrusted_certificate_with_a_token_passes_through_by_its_token() {
    for near in HttpVersion::BOTH {
        for own in untrusted_certificates() {
            let (weir, mut upstream) = start().await;
            let mut client = weir.with_certificate_and_authorization(near, &own, ALICE);
            let exchange = send_and_inspect(&mut client, &mut upstream, 200).await;
            assert_eq!(certificate(&exchange), None);
            assert_eq!(exchange.request.headers.get("authorization"), Some(ALICE.1));
        }
    }
}

#[tokio::test]
async fn an_untrusted_certificate_alone_is_a_401_and_never_anonymous() {
    for near in HttpVersion::BOTH {
        for own in untrusted_certificates() {
            let (weir, mut upstream) = start().await;
            let response = weir.with_certificate(near, &own).get("/api").await;
            let kube_status = response.kube_status();
            assert_eq!(
                (response.status, kube_status.reason.as_str()),
                (401, "Unauthorized")
            );
            assert_eq!(kube_status.cause, "weir/client-certificate");
            assert!(
                kube_status.message.contains("certificate"),
                "{kube_status:?}"
            );
            upstream.assert_no_request();
            assert_eq!(upstream.connection_count(), 0);
        }
    }
}

#[tokio::test]
async fn a_certificate_s_user_without_a_front_proxy_certificate_gets_an_error_that_names_the_flag()
{
    for near in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::start().await;
        let weir = weir::builder(upstream.address)
            .without_front_proxy()
            .start()
            .await;
        for mut client in [
            weir.with_certificate(near, &pki().alice),
            weir.with_certificate_and_authorization(near, &pki().alice, UNKNOWN_TOKEN),
        ] {
            let response = client.get("/api").await;
            let kube_status = response.kube_status();
            assert_eq!(
                (response.status, kube_status.reason.as_str()),
                (401, "Unauthorized")
            );
            assert!(
                kube_status.message.contains("--proxy-client-cert-file"),
                "{kube_status:?}"
            );
        }
        upstream.assert_no_request();
        // Clients without a certificate are served.
        send_and_finish(&mut weir.alice(near), &mut upstream, 200).await;
    }
}

#[tokio::test]
async fn no_upstream_connection_carries_requests_of_two_auth_modes() {
    for upstream in [
        FakeUpstream::start().await,
        FakeUpstream::with_protocols(HTTP1_ONLY).await,
    ] {
        let mut upstream = upstream;
        let weir = weir::builder(upstream.address).start().await;
        let mut clients: Vec<TestClient> = HttpVersion::BOTH
            .into_iter()
            .flat_map(|near| {
                [
                    weir.with_certificate(near, &pki().alice),
                    weir.with_certificate(near, &pki().admin),
                    weir.with_certificate_and_authorization(near, &pki().alice, ALICE),
                    weir.alice(near),
                    weir.with_authorization(near, UNKNOWN_TOKEN),
                    weir.anonymous(near),
                ]
            })
            .collect();
        let mut asserts: HashMap<usize, bool> = HashMap::new();
        for round in 0..12 {
            // An order in which every kind follows every other, all concurrently.
            let step = [1, 5, 7, 11][round % 4];
            let mut calls = Vec::new();
            for n in 0..clients.len() {
                let client = (n * step) % clients.len();
                calls.push(clients[client].send(TestRequest::get("/api")).await);
            }
            for _ in 0..clients.len() {
                let exchange = upstream.next_exchange().await;
                let headers = &exchange.request.headers;
                let asserted = headers.get("x-remote-user").is_some();
                let own = headers.get("authorization").is_some();
                assert!(!(asserted && own), "two credentials at once: {headers:?}");
                assert_eq!(certificate(&exchange).is_some(), asserted, "{headers:?}");
                let before = asserts.insert(exchange.connection.number, asserted);
                assert!(
                    before.is_none_or(|before| before == asserted),
                    "{headers:?}"
                );
                assert!(
                    asserted || own || exchange.connection.http == HttpVersion::Http1,
                    "no user, by HTTP/2"
                );
                exchange.respond(200, "{}").await;
            }
            for call in calls {
                call.response().await;
            }
        }
    }
}

#[tokio::test]
async fn a_token_of_the_token_file_shares_http2_from_its_first_request() {
    for near in HttpVersion::BOTH {
        let (weir, mut upstream) = start().await;
        let mut client = weir.alice(near);
        let first = send_and_finish(&mut client, &mut upstream, 200).await;
        let second = send_and_finish(&mut client, &mut upstream, 200).await;
        assert_eq!(first, second);
        assert_eq!(first.1, HttpVersion::Http2);
    }
}

#[tokio::test]
async fn a_response_sent_before_authentication_verifies_no_token() {
    for near in HttpVersion::BOTH {
        let (weir, mut upstream) = start().await;
        let mut client = weir.with_authorization(near, UNKNOWN_TOKEN);
        for code in [400, 429, 500, 503, 200] {
            assert_eq!(
                send_and_finish(&mut client, &mut upstream, code).await.1,
                HttpVersion::Http1
            );
        }
        let mut unverified = weir.with_authorization(near, ("authorization", "Basic c2VjcmV0"));
        for _ in 0..3 {
            assert_eq!(
                send_and_finish(&mut unverified, &mut upstream, 200).await.1,
                HttpVersion::Http1
            );
        }
    }
}

#[tokio::test]
async fn an_unknown_token_uses_http1_until_the_upstream_has_accepted_it() {
    for near in HttpVersion::BOTH {
        for taken in [200, 403, 404, 409] {
            let (weir, mut upstream) = start().await;
            let mut client = weir.with_authorization(near, UNKNOWN_TOKEN);
            assert_eq!(
                send_and_finish(&mut client, &mut upstream, 401).await.1,
                HttpVersion::Http1
            );
            assert_eq!(
                send_and_finish(&mut client, &mut upstream, 401).await.1,
                HttpVersion::Http1
            );
            assert_eq!(
                send_and_finish(&mut client, &mut upstream, taken).await.1,
                HttpVersion::Http1
            );
            let (shared, http) = send_and_finish(&mut client, &mut upstream, 200).await;
            assert_eq!(http, HttpVersion::Http2, "after {taken}");
            let alice = send_and_finish(&mut weir.alice(near), &mut upstream, 200).await;
            assert_eq!(
                alice,
                (shared, HttpVersion::Http2),
                "it shares with the others"
            );
        }
    }
}

#[tokio::test]
async fn a_token_that_the_upstream_no_longer_accepts_is_unknown_again() {
    let (weir, mut upstream) = start().await;
    let mut client = weir.with_authorization(HttpVersion::Http2, UNKNOWN_TOKEN);
    assert_eq!(
        send_and_finish(&mut client, &mut upstream, 200).await.1,
        HttpVersion::Http1
    );
    assert_eq!(
        send_and_finish(&mut client, &mut upstream, 401).await.1,
        HttpVersion::Http2
    );
    assert_eq!(
        send_and_finish(&mut client, &mut upstream, 401).await.1,
        HttpVersion::Http1
    );
}

#[tokio::test]
async fn options_requests_verify_no_token() {
    let (weir, mut upstream) = start().await;
    let mut client = weir.with_authorization(HttpVersion::Http1, UNKNOWN_TOKEN);
    for target in ["/api", "*"] {
        let call = client.send(TestRequest::new("OPTIONS", target)).await;
        upstream.next_exchange().await.respond(200, "").await;
        assert_eq!(call.response().await.status, 200);
        let (_, by) = send_and_finish(&mut client, &mut upstream, 429).await;
        assert_eq!(by, HttpVersion::Http1, "{target}: it has no user yet");
    }
}

#[tokio::test]
async fn accepting_one_token_does_not_verify_another() {
    let (weir, mut upstream) = start().await;
    assert_eq!(
        send_and_finish(
            &mut weir.with_authorization(HttpVersion::Http2, UNKNOWN_TOKEN),
            &mut upstream,
            200
        )
        .await
        .1,
        HttpVersion::Http1
    );
    let mut other =
        weir.with_authorization(HttpVersion::Http2, ("authorization", "Bearer who-knows-2"));
    assert_eq!(
        send_and_finish(&mut other, &mut upstream, 200).await.1,
        HttpVersion::Http1
    );
}

#[tokio::test]
async fn anonymous_requests_always_use_http1_and_never_a_known_token_s_connection() {
    for upstream in [
        FakeUpstream::start().await,
        FakeUpstream::with_protocols(HTTP1_ONLY).await,
    ] {
        let mut upstream = upstream;
        let weir = weir::builder(upstream.address).start().await;
        let mut unknown = weir.with_authorization(HttpVersion::Http2, UNKNOWN_TOKEN);
        send_and_finish(&mut unknown, &mut upstream, 200).await;
        for _ in 0..3 {
            let (alices, _) =
                send_and_finish(&mut weir.alice(HttpVersion::Http2), &mut upstream, 200).await;
            let (proven, _) = send_and_finish(&mut unknown, &mut upstream, 200).await;
            let (nobodys, http) =
                send_and_finish(&mut weir.anonymous(HttpVersion::Http2), &mut upstream, 200).await;
            assert_eq!(http, HttpVersion::Http1);
            assert!(nobodys != alices && nobodys != proven);
        }
    }
}

#[tokio::test]
async fn a_token_is_read_as_kube_apiserver_reads_it_and_forwarded_as_it_came() {
    let (weir, mut upstream) = start().await;
    for written in [
        "bearer alice-token",
        "BEARER alice-token trailing",
        "Bearer alice-token",
        "\u{a0}Bearer alice-token",
        "\u{3000}\u{85}Bearer alice-token\u{2003}",
    ] {
        let mut client = weir.with_authorization(HttpVersion::Http2, ("authorization", written));
        let exchange = send_and_inspect(&mut client, &mut upstream, 200).await;
        assert_eq!(
            exchange.connection.http,
            HttpVersion::Http2,
            "{written:?} is alice's"
        );
        assert_eq!(exchange.request.headers.all("authorization"), [written]);
    }
}

#[tokio::test]
async fn a_token_in_a_websocket_protocol_is_a_credential_and_is_removed_for_a_certificate() {
    const HIDDEN_TOKEN: &str = "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0";
    let (weir, mut upstream) = start().await;
    let request = TestRequest::get("/api").header("sec-websocket-protocol", HIDDEN_TOKEN);
    for (mut client, expected) in [
        (weir.anonymous(HttpVersion::Http1), HIDDEN_TOKEN),
        (
            weir.with_certificate(HttpVersion::Http1, &pki().alice),
            "v5.channel.k8s.io",
        ),
    ] {
        let call = client.send(request.clone()).await;
        let exchange = upstream.next_exchange().await;
        assert_eq!(
            exchange.request.headers.all("sec-websocket-protocol"),
            [expected]
        );
        exchange.respond(200, "{}").await;
        call.response().await;
    }
}

#[tokio::test]
async fn a_token_in_a_websocket_protocol_is_ignored_without_an_upgrade() {
    // alice-token, which weir knows.
    const HIDDEN_TOKEN: &str =
        "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.YWxpY2UtdG9rZW4";
    for near in HttpVersion::BOTH {
        let (weir, mut upstream) = start().await;
        let mut client = weir.anonymous(near);
        for _ in 0..2 {
            let request = TestRequest::get("/api").header("sec-websocket-protocol", HIDDEN_TOKEN);
            let call = client.send(request).await;
            let exchange = upstream.next_exchange().await;
            assert_eq!(
                exchange.connection.http,
                HttpVersion::Http1,
                "kube-apiserver authenticates no user by it"
            );
            exchange.respond(200, "{}").await;
            assert_eq!(call.response().await.status, 200);
        }
    }
}

#[tokio::test]
async fn a_token_of_the_token_file_that_the_upstream_rejects_uses_separate_connections_until_accepted()
 {
    for near in HttpVersion::BOTH {
        let (weir, mut upstream) = start().await;
        let mut client = weir.alice(near);
        assert_eq!(
            send_and_finish(&mut client, &mut upstream, 200).await.1,
            HttpVersion::Http2
        );
        assert_eq!(
            send_and_finish(&mut client, &mut upstream, 401).await.1,
            HttpVersion::Http2
        );
        for status in [401, 500, 401, 200] {
            assert_eq!(
                send_and_finish(&mut client, &mut upstream, status).await.1,
                HttpVersion::Http1
            );
        }
        assert_eq!(
            send_and_finish(&mut client, &mut upstream, 200).await.1,
            HttpVersion::Http2
        );
    }
}

#[tokio::test]
async fn a_reviewed_token_that_the_upstream_rejects_uses_separate_connections_until_accepted() {
    for near in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::start().await;
        let weir = weir::builder(upstream.address)
            .own_token("weirs-own")
            .start()
            .await;
        let mut client = weir.with_authorization(near, UNKNOWN_TOKEN);
        let call = client.send(TestRequest::get("/api")).await;
        let review = upstream.next_exchange().await;
        assert_eq!(review.request.method, "POST");
        let alices = r#"{"status":{"authenticated":true,"user":{"username":"alice"}}}"#;
        review.respond(201, alices).await;
        let exchange = upstream.next_exchange().await;
        assert_eq!(exchange.connection.http, HttpVersion::Http2);
        exchange.respond(401, "{}").await;
        assert_eq!(call.response().await.status, 401);
        for status in [401, 500, 401, 200] {
            let (_, http) = send_and_finish(&mut client, &mut upstream, status).await;
            assert_eq!(http, HttpVersion::Http1);
        }
        assert_eq!(
            send_and_finish(&mut client, &mut upstream, 200).await.1,
            HttpVersion::Http2
        );
    }
}

#[tokio::test]
async fn rejected_unverified_requests_do_not_close_shared_connections() {
    for near in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::start().await;
        let weir = weir::builder(upstream.address)
            .with(|config| {
                config.identity.front_proxies = Some(FrontProxyConfig {
                    ca: pki().front_proxy_ca.roots(),
                    allowed_names: vec!["edge".to_owned()],
                });
                let roots = pki().client_ca.roots();
                let roots = roots.with(&pki().front_proxy_ca.roots());
                config.serving.tls.client_ca = Some(roots);
            })
            .start()
            .await;
        let mut edge = weir.with_certificate(near, &pki().front_proxy_ca.issue_client("edge", &[]));
        for (user, group, http) in [
            (
                "system:anonymous",
                "system:unauthenticated",
                HttpVersion::Http1,
            ),
            ("carol", "system:unauthenticated", HttpVersion::Http1),
            ("system:anonymous", "dev", HttpVersion::Http1),
            ("carol", "dev", HttpVersion::Http2),
        ] {
            for target in ["/api", "/api/v1/pods?watch=1"] {
                let request = TestRequest::get(target)
                    .header("x-remote-user", user)
                    .header("x-remote-group", group);
                let call = edge.send(request).await;
                let exchange = upstream.next_exchange().await;
                assert_eq!(
                    exchange.connection.http, http,
                    "{user} of {group}: {target}"
                );
                assert_eq!(certificate(&exchange), Some("front-proxy-client"));
                assert_eq!(exchange.request.headers.all("x-remote-user"), [user]);
                exchange.respond(200, "{}").await;
                assert_eq!(call.response().await.status, 200);
            }
        }
        let named = pki().client_ca.issue_client("system:anonymous", &[]);
        let mut client = weir.with_certificate(near, &named);
        assert_eq!(
            send_and_finish(&mut client, &mut upstream, 200).await.1,
            HttpVersion::Http1
        );
    }
}
