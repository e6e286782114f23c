//! Loops: an upstream that leads back to weir ends with 508 after one round, and fails readiness
//! only if a probe of weir's own comes back.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::certificates::pki;
use crate::support::client::{FullResponse, TestRequest};
use crate::support::fake_upstream::{Exchange, FakeUpstream, ReservedAddress};
use crate::support::message::Framing;
use crate::support::process::{ConfigDir, WeirProcess};
use crate::support::weir::{ALICE, Endpoints, Weir};
use crate::support::{HttpVersion, Stopwatch, eventually, process, weir};

const LIST: &str = "/api/v1/namespaces/a/pods";
const EXEC: &str = "/api/v1/namespaces/a/pods/b/exec?command=sh&stdin=true";

const OWN_ID_METRIC: &str = "weir_looped_requests_total{reason=\"own-id\"}";
const TOO_MANY_IDS_METRIC: &str = "weir_looped_requests_total{reason=\"too-many-ids\"}";
const LOOP_METRIC: &str = "weir_upstream_loop";

/// weir on the address `place`, in front of `upstream`.
async fn start_weir_on(place: &ReservedAddress, upstream: SocketAddr) -> Weir {
    let address = place.address;
    weir::builder(upstream)
        .probed()
        .with(|config| config.serving.address = address)
        .start()
        .await
}

fn upgrade_request(connection: &str) -> TestRequest {
    TestRequest::get(EXEC)
        .header("connection", connection)
        .header("upgrade", "websocket")
}

/// An upgrade request and its response.
async fn send_upgrade(weir: &Endpoints, request: TestRequest) -> FullResponse {
    weir.alice(HttpVersion::Http1).request(request).await
}

fn assert_looped(response: &FullResponse) {
    assert_eq!(response.status, 508, "{}", response.text());
    let kube_status = response.kube_status();
    let words = (kube_status.cause.as_str(), kube_status.reason.as_str());
    assert_eq!(words, ("weir/loop", "InternalError"));
    assert_eq!(response.headers.get("retry-after"), None);
}

/// The single `CDN-Loop` of a request.
fn cdn_loop_header(exchange: &Exchange) -> String {
    let lines = exchange.request.headers.all("cdn-loop");
    assert_eq!(lines.len(), 1, "{:?}", exchange.request);
    lines[0].to_owned()
}

fn assert_id(id: &str) {
    let digits = id.strip_prefix("weir-").unwrap_or_default();
    let hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(digits.len() == 32 && hexadecimal, "{id:?}");
}

/// Waits until a probe of weir's own has come back.
async fn wait_for_loop(weir: &Weir) {
    eventually("weir to find the loop", async || {
        let report = weir.get_admin("/readyz").await;
        let line = "[-]loop failed: weir's own probe came back";
        (report.status == 500 && report.text().contains(line)).then_some(())
    })
    .await;
}

/// Responds to all requests with 200 and their `CDN-Loop`.
fn spawn_cdn_loop_echo(mut upstream: FakeUpstream) {
    tokio::spawn(async move {
        loop {
            let exchange = upstream.next_exchange_without_timeout().await;
            let list = cdn_loop_header(&exchange);
            exchange.respond(200, list).await;
        }
    });
}

#[tokio::test]
async fn a_loop_through_one_weir_ends_after_one_round_and_fails_readiness() {
    for near in HttpVersion::BOTH {
        let place = ReservedAddress::reserve();
        let weir = start_weir_on(&place, place.address).await;
        let clients = [
            weir.alice(near),
            weir.anonymous(near),
            weir.with_certificate(near, &pki().alice),
        ];
        let mut rounds = 0.0;
        for mut client in clients {
            for request in [TestRequest::get(LIST), TestRequest::post(LIST, "{}")] {
                assert_looped(&client.request(request).await);
                rounds += 1.0;
                assert_eq!(weir.metric(OWN_ID_METRIC).await, rounds, "one round each");
            }
        }
        assert_looped(&send_upgrade(&weir, upgrade_request("Upgrade")).await);
        assert_eq!(weir.metric(OWN_ID_METRIC).await, rounds + 1.0);
        wait_for_loop(&weir).await;
        let report = weir.get_admin("/readyz").await;
        assert!(report.text().contains("[+]upstream ok\n"));
        assert_eq!(weir.metric(LOOP_METRIC).await, 1.0);
        assert_eq!(weir.metric("weir_ready").await, 0.0);
        assert_eq!(
            weir.metric(OWN_ID_METRIC).await,
            rounds + 1.0,
            "without the probes"
        );
        assert_eq!(weir.get_admin("/livez").await.status, 200);
    }
}

#[tokio::test]
async fn a_loop_ends_when_certificate_users_are_impersonated() {
    for near in HttpVersion::BOTH {
        let place = ReservedAddress::reserve();
        let address = place.address;
        let weir = weir::builder(address)
            .own_token("root-token")
            .probed()
            .with(|config| {
                config.serving.address = address;
                config.assert_by_impersonation = true;
            })
            .start()
            .await;
        let mut client = weir.with_certificate(near, &pki().alice);
        assert_looped(&client.get(LIST).await);
        // weir's own requests come back as well.
        let responses = "weir_upstream_responses_total{code=\"508\"}";
        assert!(weir.metric(responses).await >= 1.0);
        wait_for_loop(&weir).await;
    }
}

#[tokio::test]
async fn a_loop_through_two_weirs_ends_at_the_first_and_both_detect_it() {
    for near in HttpVersion::BOTH {
        let places = [ReservedAddress::reserve(), ReservedAddress::reserve()];
        let first = start_weir_on(&places[0], places[1].address).await;
        let second = start_weir_on(&places[1], places[0].address).await;
        for weir in [&first, &second] {
            wait_for_loop(weir).await;
        }
        assert_looped(&first.alice(near).get(LIST).await);
        assert_looped(&send_upgrade(&first, upgrade_request("Upgrade")).await);
        assert_eq!(first.metric(OWN_ID_METRIC).await, 2.0);
        assert_eq!(second.metric(OWN_ID_METRIC).await, 0.0);
    }
}

/// Three weirs in a chain, the last one in front of `upstream`.
async fn start_chain(upstream: SocketAddr) -> [Weir; 3] {
    let third = weir::builder(upstream).probed().start().await;
    let second = weir::builder(third.clients).probed().start().await;
    let first = weir::builder(second.clients).probed().start().await;
    [first, second, third]
}

#[tokio::test]
async fn a_chain_of_three_lists_each_weir_once_in_order_and_is_no_loop() {
    for (near, far) in HttpVersion::PAIRS {
        let upstream = FakeUpstream::preferring(far).await;
        let chain = start_chain(upstream.address).await;
        spawn_cdn_loop_echo(upstream);
        let mut ids = Vec::new();
        for weir in chain.iter().rev() {
            let response = weir.alice(near).get(LIST).await;
            let list = response.text().to_owned();
            let id = list.split(", ").next().unwrap();
            assert_id(id);
            ids.insert(0, id.to_owned());
            assert_eq!(list, ids.join(", "));
        }
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
        let response = send_upgrade(&chain[0], upgrade_request("Upgrade")).await;
        assert_eq!((response.status, response.text()), (200, &*ids.join(", ")));
        for weir in &chain {
            let report = weir.get_admin("/readyz").await;
            assert_eq!(report.status, 200, "{}", report.text());
            assert!(report.text().contains("[+]loop ok\n"), "{}", report.text());
            assert_eq!(weir.metric(OWN_ID_METRIC).await, 0.0);
        }
    }
}

#[cfg(feature = "playground")]
#[tokio::test]
async fn a_chain_of_three_ends_at_the_playground() {
    use ::weir::upstream::tls;
    use weir_playground::{Certificates, PlaygroundServer, PlaygroundSettings};

    let certificates = Certificates::generate().unwrap();
    let server = PlaygroundServer::new(PlaygroundSettings::default(), &certificates).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { server.run(listener, std::future::pending()).await });
    let third = weir::builder(address)
        .probed()
        .with(|config| {
            config.upstream.roots = tls::parse_roots("ca", certificates.ca.as_bytes()).unwrap();
        })
        .start()
        .await;
    let second = weir::builder(third.clients).probed().start().await;
    let first = weir::builder(second.clients).probed().start().await;
    let admin = certificates
        .users
        .iter()
        .find(|user| user.name == "admin")
        .unwrap();
    let token = format!("Bearer {}", admin.token);
    for near in HttpVersion::BOTH {
        let mut client = first.with_authorization(near, ("authorization", &token));
        let response = client.get("/api/v1/namespaces/default/pods").await;
        assert_eq!(response.status, 200, "{}", response.text());
    }
    for weir in [&first, &second, &third] {
        let report = weir.get_admin("/readyz").await;
        assert_eq!(report.status, 200, "{}", report.text());
        assert_eq!(weir.metric(OWN_ID_METRIC).await, 0.0);
    }
}

#[tokio::test]
async fn every_request_to_the_api_server_lists_weir_once() {
    for far in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::preferring(far).await.expose_self_checks();
        let weir = weir::builder(upstream.address)
            .with(|config| config.admin.self_check_interval = Some(Duration::from_secs(3600)))
            .start()
            .await;
        let probe = upstream.next_exchange().await;
        assert_eq!(probe.request.headers.all("x-remote-user").len(), 1);
        let id = cdn_loop_header(&probe);
        assert_id(&id);
        let good = probe.request.self_check_response().unwrap();
        probe.respond(201, good).await;
        for near in HttpVersion::BOTH {
            let clients = [
                weir.alice(near),
                weir.anonymous(near),
                weir.with_certificate(near, &pki().alice),
            ];
            for mut client in clients {
                for request in [TestRequest::get(LIST), TestRequest::post(LIST, "{}")] {
                    let call = client.send(request).await;
                    let exchange = upstream.next_exchange().await;
                    assert_eq!(cdn_loop_header(&exchange), id);
                    exchange.respond(200, "{}").await;
                    assert_eq!(call.response().await.status, 200);
                }
            }
        }
    }
}

#[tokio::test]
async fn a_probe_lists_weir_and_says_that_it_is_one() {
    let mut upstream = FakeUpstream::start().await;
    upstream.expose_readyz(true);
    let _weir = weir::builder(upstream.address).probed().start().await;
    let probe = upstream.next_exchange().await;
    assert_eq!(probe.request.target, "/readyz");
    assert_id(cdn_loop_header(&probe).strip_suffix(";probe=1").unwrap());
}

#[tokio::test]
async fn requests_of_impersonated_users_list_weir_once() {
    for near in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::start().await;
        let weir = weir::builder(upstream.address)
            .own_token("root-token")
            .with(|config| config.assert_by_impersonation = true)
            .start()
            .await;
        let mut client = weir.with_certificate(near, &pki().alice);
        let call = client.send(TestRequest::get(LIST)).await;
        let exchange = loop {
            let exchange = upstream.next_exchange().await;
            assert_id(&cdn_loop_header(&exchange)); // also on weir's own requests
            if exchange.request.target == LIST {
                break exchange;
            }
        };
        assert_eq!(exchange.request.headers.all("impersonate-user"), ["alice"]);
        exchange.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
}

#[tokio::test]
async fn clients_cannot_remove_cdn_loop_or_hide_an_id_in_it() {
    let named = ["CDN-Loop", "close, cdn-loop", "keep-alive,CDN-LOOP"];
    let hiding = ["a;x=\"", "cdn.example, b\\", "(", "a,,"];
    // The client's list is kept, with weir appended.
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    for connection in named.into_iter().chain(["Upgrade, CDN-Loop"]) {
        for theirs in hiding {
            let request = upgrade_request(connection).header("cdn-loop", theirs);
            let call = weir.alice(HttpVersion::Http1).send(request).await;
            let exchange = upstream.next_exchange().await;
            let list = cdn_loop_header(&exchange);
            let own = list.strip_prefix(&format!("{theirs}, ")).unwrap();
            assert_id(own);
            exchange.respond(200, "{}").await;
            assert_eq!(call.response().await.status, 200);
        }
    }
    // In a loop it ends after one round all the same.
    let place = ReservedAddress::reserve();
    let weir = start_weir_on(&place, place.address).await;
    let mut rounds = 0.0;
    for connection in named.into_iter().chain(["Upgrade, CDN-Loop"]) {
        for theirs in hiding {
            let request = upgrade_request(connection).header("cdn-loop", theirs);
            assert_looped(&send_upgrade(&weir, request).await);
            rounds += 1.0;
            assert_eq!(weir.metric(OWN_ID_METRIC).await, rounds);
        }
    }
    for theirs in hiding {
        let request = TestRequest::get(LIST).header("cdn-loop", theirs);
        assert_looped(&weir.alice(HttpVersion::Http2).request(request).await);
        rounds += 1.0;
        assert_eq!(weir.metric(OWN_ID_METRIC).await, rounds);
    }
}

#[tokio::test]
async fn a_replayed_id_is_a_508_for_that_request_only() {
    for near in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::start().await;
        let weir = weir::builder(upstream.address).probed().start().await;
        let mut client = weir.alice(near);
        let call = client.send(TestRequest::get(LIST)).await;
        let exchange = upstream.next_exchange().await;
        let id = cdn_loop_header(&exchange);
        exchange.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
        let probe = format!("{id};probe=1");
        let among = format!("cdn.example, {id}");
        for theirs in [&id, &probe, &among] {
            let request = TestRequest::get(LIST).header("cdn-loop", theirs);
            let response = client.request(request).await;
            assert_looped(&response);
            assert!(response.kube_status().message.contains("CDN-Loop"));
            let request = upgrade_request("Upgrade").header("cdn-loop", theirs);
            assert_looped(&send_upgrade(&weir, request).await);
        }
        let repeated = TestRequest::get("/readyz").header("cdn-loop", &probe);
        assert_looped(&client.request(repeated).await);
        upstream.assert_no_request();
        assert_eq!(weir.metric(OWN_ID_METRIC).await, 6.0, "without probes");
        assert_eq!(weir.metric(LOOP_METRIC).await, 0.0);
        let total = "apiserver_request_total{code=\"508\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"pods\",\
                     scope=\"namespace\",subresource=\"\",verb=\"LIST\",version=\"v1\"}";
        assert_eq!(weir.metric(total).await, 3.0);
        assert_eq!(weir.get_admin("/readyz").await.status, 200);
        let call = client.send(TestRequest::get(LIST)).await;
        upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
}

/// Waits until weir is ready, in front of an upstream that answers everything with success.
async fn wait_until_ready(weir: &Weir, upstream: FakeUpstream) {
    spawn_cdn_loop_echo(upstream);
    let ready = async || (weir.get_admin("/readyz").await.status == 200).then_some(());
    eventually("weir to be ready", ready).await;
}

/// Forwards to an address. A change closes the connections to the previous one.
struct TcpRelay {
    address: SocketAddr,
    target: watch::Sender<SocketAddr>,
}

impl TcpRelay {
    async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (target, changes) = watch::channel(target);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut changes = changes.clone();
                let target = *changes.borrow_and_update();
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(target).await else {
                        return;
                    };
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = changes.changed() => {}
                    }
                });
            }
        });
        Self { address, target }
    }
}

#[tokio::test]
async fn weir_is_ready_after_a_loop_is_fixed() {
    let place = ReservedAddress::reserve();
    let relay = TcpRelay::start(place.address).await;
    let weir = start_weir_on(&place, relay.address).await;
    assert_looped(&weir.alice(HttpVersion::Http2).get(LIST).await);
    wait_for_loop(&weir).await;
    assert_eq!(weir.metric(LOOP_METRIC).await, 1.0);
    let upstream = FakeUpstream::start().await;
    relay.target.send(upstream.address).unwrap();
    wait_until_ready(&weir, upstream).await;
    assert_eq!(weir.metric(LOOP_METRIC).await, 0.0);
    let response = eventually("an answer of the upstream", async || {
        let response = weir.alice(HttpVersion::Http2).get(LIST).await;
        (response.status == 200).then_some(response)
    });
    assert_id(response.await.text());
}

#[tokio::test]
async fn too_many_ids_are_a_508_and_do_not_fail_readiness() {
    for near in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::start().await;
        let weir = weir::builder(upstream.address).probed().start().await;
        let mut client = weir.alice(near);
        let list = |count: usize| {
            let ids = (0..count).map(|n| format!("proxy-{n}"));
            ids.collect::<Vec<_>>().join(", ")
        };
        let long = "x".repeat(2049);
        for theirs in [&list(16), &list(100), &long] {
            let request = TestRequest::get(LIST).header("cdn-loop", theirs);
            assert_looped(&client.request(request).await);
        }
        let two = TestRequest::get(LIST).header("cdn-loop", &list(8));
        assert_looped(&client.request(two.header("cdn-loop", &list(8))).await);
        assert_eq!(weir.metric(TOO_MANY_IDS_METRIC).await, 4.0);
        assert_eq!(weir.metric(OWN_ID_METRIC).await, 0.0);
        upstream.assert_no_request();
        let two = TestRequest::get(LIST).header("cdn-loop", &list(8));
        let call = client.send(two.header("cdn-loop", &list(7))).await;
        let exchange = upstream.next_exchange().await;
        let entries = cdn_loop_header(&exchange);
        assert_eq!(entries.split(", ").count(), 16, "{entries}");
        exchange.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
        assert_eq!(weir.get_admin("/readyz").await.status, 200);
    }
}

#[tokio::test]
async fn a_loop_is_logged_once_and_its_requests_are_sampled() {
    let place = ReservedAddress::reserve();
    let mut flags = process::required_flags(place.address);
    let port = format!("--secure-port={}", place.address.port());
    flags.retain(|flag| flag != "--secure-port=0");
    flags.push(port);
    let began = Stopwatch::start();
    let mut weir = WeirProcess::start(ConfigDir::new(), &flags).await;
    let mut wire = weir.raw_http1().await;
    for _ in 0..50 {
        let (name, value) = ALICE;
        wire.send(TestRequest::get(LIST).header(name, value).to_http1())
            .await;
        let answered = wire.read_response_head().await;
        assert_eq!(answered.status, 508);
        wire.read_body(Framing::from_response(&answered, "GET"))
            .await;
    }
    for _ in 0..5 {
        assert_eq!(weir.get_admin("/readyz").await.status, 500);
    }
    weir.send_signal("TERM").await;
    weir.wait_for_exit().await;
    let seconds = began.elapsed().as_secs();
    let rest = weir.remaining_log_lines().await;
    let lines = [weir.startup_lines.clone(), rest].concat();
    let found = |text: &str| {
        let found = lines.iter().filter(|line| line.contains(text)).count();
        u64::try_from(found).unwrap()
    };
    assert_eq!(found("weir's own probe came back to it"), 1, "{lines:#?}");
    let requests = found("a request gets 508");
    assert!((1..=seconds + 1).contains(&requests), "{lines:#?}");
}
