//! Whose name a request carries, and on which connection: a certificate's user is asserted, everybody else brings its own
//! credential, and the two never meet.

use std::collections::HashMap;

use ::weir::config::FrontProxies;
use rcgen::DnValue;
use rcgen::string::BmpString;
use rcgen::string::TeletexString;
use rcgen::string::UniversalString;

use crate::support::Http;
use crate::support::certificates::Issued;
use crate::support::certificates::pki;
use crate::support::client::Ask;
use crate::support::client::Client;
use crate::support::upstream::Exchange;
use crate::support::upstream::HTTP1;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::ALICE;
use crate::support::weir::Weir;

/// A token that weir does not know.
const UNKNOWN: (&str, &str) = ("authorization", "Bearer who-knows");

async fn serving() -> (Weir, Upstream) {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    (weir, upstream)
}

/// Sends a request, has it answered with `status`, and gives what the upstream saw.
async fn seen(client: &mut Client, upstream: &mut Upstream, status: u16) -> Exchange {
    let mut call = client.send(Ask::get("/api")).await;
    let mut exchange = upstream.next().await;
    exchange.begin(status, &[("content-length", "0")]).await;
    assert_eq!(call.head().await.status, status);
    exchange
}

/// As [`seen`], to the end.
async fn served(client: &mut Client, upstream: &mut Upstream, status: u16) -> (usize, Http) {
    let call = client.send(Ask::get("/api")).await;
    let exchange = upstream.next().await;
    let by = (exchange.peer.number, exchange.peer.http);
    exchange.reply(status, "{}").await;
    assert_eq!(call.answer().await.status, status);
    by
}

fn certificate(exchange: &Exchange) -> Option<&str> {
    exchange.peer.certificate.as_deref()
}

#[tokio::test]
async fn a_certificate_s_user_is_asserted_on_a_connection_with_the_front_proxy_s_certificate() {
    for near in Http::BOTH {
        let (weir, mut upstream) = serving().await;
        let mut client = weir.certified(near, &pki().alice);
        let exchange = seen(&mut client, &mut upstream, 200).await;
        assert_eq!(certificate(&exchange), Some("front-proxy-client"));
        assert_eq!(exchange.peer.http, Http::Two);
        let headers = &exchange.asked.headers;
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
async fn a_certificate_s_uid_is_asserted_as_well() {
    let (weir, mut upstream) = serving().await;
    let own = pki().clients.client_with_uid("carol", "u-1");
    let exchange = seen(&mut weir.certified(Http::Two, &own), &mut upstream, 200).await;
    assert_eq!(exchange.asked.headers.all("x-remote-user"), ["carol"]);
    assert_eq!(exchange.asked.headers.all("x-remote-uid"), ["u-1"]);
    let groups = exchange.asked.headers.all("x-remote-group");
    assert_eq!(groups, ["system:authenticated"]);
}

const COMMON_NAME: &[u64] = &[2, 5, 4, 3];

#[tokio::test]
async fn a_certificate_s_last_name_is_asserted_whatever_its_string_type() {
    let (weir, mut upstream) = serving().await;
    let bmp = DnValue::BmpString(BmpString::try_from("alice").unwrap());
    let t61 = DnValue::TeletexString(TeletexString::try_from("alice").unwrap());
    for last in [bmp, t61] {
        let own = pki()
            .clients
            .client_with("kubernetes-admin", COMMON_NAME, last);
        let exchange = seen(&mut weir.certified(Http::Two, &own), &mut upstream, 200).await;
        assert_eq!(exchange.asked.headers.all("x-remote-user"), ["alice"]);
    }
}

#[tokio::test]
async fn a_certificate_with_a_name_that_cannot_be_read_is_401() {
    let (weir, _upstream) = serving().await;
    let universal = DnValue::UniversalString(UniversalString::try_from("alice").unwrap());
    let own = pki()
        .clients
        .client_with("kubernetes-admin", COMMON_NAME, universal);
    for near in Http::BOTH {
        let answer = weir.certified(near, &own).get("/api").await;
        assert_eq!(answer.status, 401);
        assert!(answer.text().contains("common name"), "{}", answer.text());
    }
}

#[tokio::test]
async fn tokens_and_nobody_go_on_connections_without_a_certificate() {
    for near in Http::BOTH {
        let (weir, mut upstream) = serving().await;
        for (mut client, expected) in [
            (weir.alice(near), Some(ALICE.1)),
            (weir.bearing(near, UNKNOWN), Some(UNKNOWN.1)),
            (
                weir.bearing(near, ("authorization", "Basic YTpi")),
                Some("Basic YTpi"),
            ),
            (weir.anonymous(near), None),
        ] {
            let exchange = seen(&mut client, &mut upstream, 200).await;
            assert_eq!(certificate(&exchange), None);
            assert_eq!(exchange.asked.headers.get("authorization"), expected);
            let asserted = exchange
                .asked
                .headers
                .0
                .iter()
                .any(|(n, _)| n.starts_with("x-remote"));
            assert!(!asserted, "{:?}", exchange.asked);
        }
    }
}

#[tokio::test]
async fn a_certificate_with_a_token_is_the_certificate_s_user_and_the_token_stops_here() {
    for near in Http::BOTH {
        let (weir, mut upstream) = serving().await;
        let mut client = weir.certified_bearing(near, &pki().alice, UNKNOWN);
        let exchange = seen(&mut client, &mut upstream, 200).await;
        assert_eq!(certificate(&exchange), Some("front-proxy-client"));
        assert_eq!(exchange.asked.headers.all("x-remote-user"), ["alice"]);
        assert_eq!(exchange.asked.headers.get("authorization"), None);
    }
}

/// Certificates that prove nothing.
fn worthless() -> [Issued; 3] {
    [
        pki().nobody.client("alice", &["system:masters"]),
        pki().clients.expired_client("alice"),
        pki().clients.server(), // not meant for clients
    ]
}

#[tokio::test]
async fn a_bad_certificate_with_a_token_passes_on_the_plain_way() {
    for near in Http::BOTH {
        for own in worthless() {
            let (weir, mut upstream) = serving().await;
            let mut client = weir.certified_bearing(near, &own, ALICE);
            let exchange = seen(&mut client, &mut upstream, 200).await;
            assert_eq!(certificate(&exchange), None);
            assert_eq!(exchange.asked.headers.get("authorization"), Some(ALICE.1));
        }
    }
}

#[tokio::test]
async fn a_bad_certificate_alone_is_401_and_never_anonymous() {
    for near in Http::BOTH {
        for own in worthless() {
            let (weir, mut upstream) = serving().await;
            let answer = weir.certified(near, &own).get("/api").await;
            let told = answer.told();
            assert_eq!((answer.status, told.reason.as_str()), (401, "Unauthorized"));
            assert_eq!(told.cause, "weir/client-certificate");
            assert!(told.message.contains("certificate"), "{told:?}");
            upstream.assert_nothing_came();
            assert_eq!(upstream.connections(), 0);
        }
    }
}

#[tokio::test]
async fn a_certificate_s_user_without_a_front_proxy_certificate_is_told_what_to_configure() {
    for near in Http::BOTH {
        let mut upstream = Upstream::start().await;
        let weir = weir::before(upstream.address)
            .without_front_proxy()
            .start()
            .await;
        for mut client in [
            weir.certified(near, &pki().alice),
            weir.certified_bearing(near, &pki().alice, UNKNOWN),
        ] {
            let answer = client.get("/api").await;
            let told = answer.told();
            assert_eq!((answer.status, told.reason.as_str()), (401, "Unauthorized"));
            assert!(
                told.message.contains("--proxy-client-cert-file"),
                "{told:?}"
            );
        }
        upstream.assert_nothing_came();
        // Whoever comes without a certificate is served.
        served(&mut weir.alice(near), &mut upstream, 200).await;
    }
}

#[tokio::test]
async fn no_connection_ever_carries_requests_of_two_kinds() {
    for upstream in [Upstream::start().await, Upstream::speaking(HTTP1).await] {
        let mut upstream = upstream;
        let weir = weir::before(upstream.address).start().await;
        let mut clients: Vec<Client> = Http::BOTH
            .into_iter()
            .flat_map(|near| {
                [
                    weir.certified(near, &pki().alice),
                    weir.certified(near, &pki().admin),
                    weir.certified_bearing(near, &pki().alice, ALICE),
                    weir.alice(near),
                    weir.bearing(near, UNKNOWN),
                    weir.anonymous(near),
                ]
            })
            .collect();
        let mut asserts: HashMap<usize, bool> = HashMap::new();
        for round in 0..12 {
            // An order that brings every kind after every other, all of them at a time.
            let step = [1, 5, 7, 11][round % 4];
            let mut calls = Vec::new();
            for n in 0..clients.len() {
                let client = (n * step) % clients.len();
                calls.push(clients[client].send(Ask::get("/api")).await);
            }
            for _ in 0..clients.len() {
                let exchange = upstream.next().await;
                let headers = &exchange.asked.headers;
                let asserted = headers.get("x-remote-user").is_some();
                let own = headers.get("authorization").is_some();
                assert!(!(asserted && own), "two credentials at once: {headers:?}");
                assert_eq!(certificate(&exchange).is_some(), asserted, "{headers:?}");
                let before = asserts.insert(exchange.peer.number, asserted);
                assert!(
                    before.is_none_or(|before| before == asserted),
                    "{headers:?}"
                );
                assert!(
                    asserted || own || exchange.peer.http == Http::One,
                    "nobody, by HTTP/2"
                );
                exchange.reply(200, "{}").await;
            }
            for call in calls {
                call.answer().await;
            }
        }
    }
}

#[tokio::test]
async fn a_token_that_weir_knows_shares_http2_from_its_first_request() {
    for near in Http::BOTH {
        let (weir, mut upstream) = serving().await;
        let mut client = weir.alice(near);
        let first = served(&mut client, &mut upstream, 200).await;
        let second = served(&mut client, &mut upstream, 200).await;
        assert_eq!(first, second);
        assert_eq!(first.1, Http::Two);
    }
}

#[tokio::test]
async fn an_answer_that_comes_before_authentication_proves_no_token() {
    for near in Http::BOTH {
        let (weir, mut upstream) = serving().await;
        let mut client = weir.bearing(near, UNKNOWN);
        for code in [400, 429, 500, 503, 200] {
            assert_eq!(served(&mut client, &mut upstream, code).await.1, Http::One);
        }
        let mut nobody = weir.bearing(near, ("authorization", "Basic c2VjcmV0"));
        for _ in 0..3 {
            assert_eq!(served(&mut nobody, &mut upstream, 200).await.1, Http::One);
        }
    }
}

#[tokio::test]
async fn an_unknown_token_goes_by_http1_until_the_upstream_has_taken_it() {
    for near in Http::BOTH {
        for taken in [200, 403, 404, 409] {
            let (weir, mut upstream) = serving().await;
            let mut client = weir.bearing(near, UNKNOWN);
            assert_eq!(served(&mut client, &mut upstream, 401).await.1, Http::One);
            assert_eq!(served(&mut client, &mut upstream, 401).await.1, Http::One);
            assert_eq!(served(&mut client, &mut upstream, taken).await.1, Http::One);
            let (shared, http) = served(&mut client, &mut upstream, 200).await;
            assert_eq!(http, Http::Two, "after {taken}");
            let known = served(&mut weir.alice(near), &mut upstream, 200).await;
            assert_eq!(known, (shared, Http::Two), "it shares with the others");
        }
    }
}

#[tokio::test]
async fn a_token_that_the_upstream_takes_no_more_is_unknown_again() {
    let (weir, mut upstream) = serving().await;
    let mut client = weir.bearing(Http::Two, UNKNOWN);
    assert_eq!(served(&mut client, &mut upstream, 200).await.1, Http::One);
    assert_eq!(served(&mut client, &mut upstream, 401).await.1, Http::Two);
    assert_eq!(served(&mut client, &mut upstream, 401).await.1, Http::One);
}

#[tokio::test]
async fn what_is_answered_before_anybody_is_authenticated_proves_nothing() {
    let (weir, mut upstream) = serving().await;
    let mut client = weir.bearing(Http::One, UNKNOWN);
    for target in ["/api", "*"] {
        let call = client.send(Ask::new("OPTIONS", target)).await;
        upstream.next().await.reply(200, "").await;
        assert_eq!(call.answer().await.status, 200);
        let (_, by) = served(&mut client, &mut upstream, 429).await;
        assert_eq!(by, Http::One, "{target}: it is nobody's yet");
    }
}

#[tokio::test]
async fn one_token_s_proof_is_not_another_s() {
    let (weir, mut upstream) = serving().await;
    assert_eq!(
        served(&mut weir.bearing(Http::Two, UNKNOWN), &mut upstream, 200)
            .await
            .1,
        Http::One
    );
    let mut other = weir.bearing(Http::Two, ("authorization", "Bearer who-knows-2"));
    assert_eq!(served(&mut other, &mut upstream, 200).await.1, Http::One);
}

#[tokio::test]
async fn nobody_always_goes_by_http1_and_never_where_a_known_token_went() {
    for upstream in [Upstream::start().await, Upstream::speaking(HTTP1).await] {
        let mut upstream = upstream;
        let weir = weir::before(upstream.address).start().await;
        let mut unknown = weir.bearing(Http::Two, UNKNOWN);
        served(&mut unknown, &mut upstream, 200).await;
        for _ in 0..3 {
            let (alices, _) = served(&mut weir.alice(Http::Two), &mut upstream, 200).await;
            let (proven, _) = served(&mut unknown, &mut upstream, 200).await;
            let (nobodys, http) = served(&mut weir.anonymous(Http::Two), &mut upstream, 200).await;
            assert_eq!(http, Http::One);
            assert!(nobodys != alices && nobodys != proven);
        }
    }
}

#[tokio::test]
async fn a_token_is_read_as_kube_apiserver_reads_it_and_forwarded_as_it_came() {
    let (weir, mut upstream) = serving().await;
    for written in [
        "bearer alice-token",
        "BEARER alice-token trailing",
        "Bearer alice-token",
        "\u{a0}Bearer alice-token",
        "\u{3000}\u{85}Bearer alice-token\u{2003}",
    ] {
        let mut client = weir.bearing(Http::Two, ("authorization", written));
        let exchange = seen(&mut client, &mut upstream, 200).await;
        assert_eq!(exchange.peer.http, Http::Two, "{written:?} is alice's");
        assert_eq!(exchange.asked.headers.all("authorization"), [written]);
    }
}

#[tokio::test]
async fn a_token_that_hides_in_a_websocket_protocol_is_a_credential_and_stops_at_a_certificate() {
    const HIDDEN: &str = "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0";
    let (weir, mut upstream) = serving().await;
    let ask = Ask::get("/api").header("sec-websocket-protocol", HIDDEN);
    for (mut client, expected) in [
        (weir.anonymous(Http::One), HIDDEN),
        (weir.certified(Http::One, &pki().alice), "v5.channel.k8s.io"),
    ] {
        let call = client.send(ask.clone()).await;
        let exchange = upstream.next().await;
        assert_eq!(
            exchange.asked.headers.all("sec-websocket-protocol"),
            [expected]
        );
        exchange.reply(200, "{}").await;
        call.answer().await;
    }
}

#[tokio::test]
async fn a_token_in_a_websocket_protocol_says_nothing_where_none_is_asked_for() {
    // alice-token, whom weir knows.
    const HIDDEN: &str = "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.YWxpY2UtdG9rZW4";
    for near in Http::BOTH {
        let (weir, mut upstream) = serving().await;
        let mut client = weir.anonymous(near);
        for _ in 0..2 {
            let ask = Ask::get("/api").header("sec-websocket-protocol", HIDDEN);
            let call = client.send(ask).await;
            let exchange = upstream.next().await;
            assert_eq!(
                exchange.peer.http,
                Http::One,
                "kube-apiserver takes it for nobody's"
            );
            exchange.reply(200, "{}").await;
            assert_eq!(call.answer().await.status, 200);
        }
    }
}

#[tokio::test]
async fn a_token_of_the_file_that_the_upstream_does_not_take_goes_by_itself_until_it_does() {
    for near in Http::BOTH {
        let (weir, mut upstream) = serving().await;
        let mut client = weir.alice(near);
        assert_eq!(served(&mut client, &mut upstream, 200).await.1, Http::Two);
        assert_eq!(served(&mut client, &mut upstream, 401).await.1, Http::Two);
        for status in [401, 500, 401, 200] {
            assert_eq!(
                served(&mut client, &mut upstream, status).await.1,
                Http::One
            );
        }
        assert_eq!(served(&mut client, &mut upstream, 200).await.1, Http::Two);
    }
}

#[tokio::test]
async fn a_token_that_was_reviewed_and_is_refused_all_the_same_goes_by_itself_until_it_is_taken() {
    for near in Http::BOTH {
        let mut upstream = Upstream::start().await;
        let weir = weir::before(upstream.address)
            .calling_with("weirs-own")
            .start()
            .await;
        let mut client = weir.bearing(near, UNKNOWN);
        let call = client.send(Ask::get("/api")).await;
        let review = upstream.next().await;
        assert_eq!(review.asked.method, "POST");
        let alices = r#"{"status":{"authenticated":true,"user":{"username":"alice"}}}"#;
        review.reply(201, alices).await;
        let exchange = upstream.next().await;
        assert_eq!(exchange.peer.http, Http::Two);
        exchange.reply(401, "{}").await;
        assert_eq!(call.answer().await.status, 401);
        for status in [401, 500, 401, 200] {
            let (_, http) = served(&mut client, &mut upstream, status).await;
            assert_eq!(http, Http::One);
        }
        assert_eq!(served(&mut client, &mut upstream, 200).await.1, Http::Two);
    }
}

#[tokio::test]
async fn nobody_in_whosever_name_costs_no_one_a_shared_connection() {
    for near in Http::BOTH {
        let mut upstream = Upstream::start().await;
        let weir = weir::before(upstream.address)
            .with(|config| {
                config.identity.front_proxies = Some(FrontProxies {
                    ca: pki().front_proxy.roots(),
                    allowed: vec!["edge".to_owned()],
                });
                let mut asked = pki().clients.roots();
                asked.extend(pki().front_proxy.roots().roots);
                config.serving.tls.client_ca = Some(asked);
            })
            .start()
            .await;
        let mut edge = weir.certified(near, &pki().front_proxy.client("edge", &[]));
        for (user, group, http) in [
            ("system:anonymous", "system:unauthenticated", Http::One),
            ("carol", "system:unauthenticated", Http::One),
            ("system:anonymous", "dev", Http::One),
            ("carol", "dev", Http::Two),
        ] {
            for target in ["/api", "/api/v1/pods?watch=1"] {
                let ask = Ask::get(target)
                    .header("x-remote-user", user)
                    .header("x-remote-group", group);
                let call = edge.send(ask).await;
                let exchange = upstream.next().await;
                assert_eq!(exchange.peer.http, http, "{user} of {group}: {target}");
                assert_eq!(certificate(&exchange), Some("front-proxy-client"));
                assert_eq!(exchange.asked.headers.all("x-remote-user"), [user]);
                exchange.reply(200, "{}").await;
                assert_eq!(call.answer().await.status, 200);
            }
        }
        let named = pki().clients.client("system:anonymous", &[]);
        let mut nobody = weir.certified(near, &named);
        assert_eq!(served(&mut nobody, &mut upstream, 200).await.1, Http::One);
    }
}
