//! Several API servers: requests are balanced among them, go elsewhere where one has failed, and
//! never to a weir.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use h2::Reason;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::support::client::TestRequest;
use crate::support::fake_upstream::{Exchange, FakeUpstream, ReservedAddress};
use crate::support::weir::{ROOT, Weir, WeirBuilder, server_address};
use crate::support::{HttpVersion, Stopwatch, eventually, for_each_protocol_pair, weir};

const LIST: &str = "/api/v1/pods";
const WATCH: &str = "/api/v1/pods?watch=1";

/// No probe but the first, and those that failed requests ask for.
const RARELY: Duration = Duration::from_secs(3600);

/// The interval of probes that a test waits for.
const OFTEN: Duration = Duration::from_millis(20);

/// Requests that hold a seat.
const IN_FLIGHT: &str = "apiserver_current_inflight_requests{request_kind=\"readOnly\"}";

/// weir in front of several servers.
fn builder(servers: &[SocketAddr], probe_interval: Duration) -> WeirBuilder {
    weir::builder(servers[0]).with(|config| {
        config.upstream.servers = servers.iter().map(|at| server_address(*at)).collect();
        config.upstream.probe_interval = Some(probe_interval);
    })
}

/// `N` API servers that are ready.
async fn start_servers<const N: usize>() -> [FakeUpstream; N] {
    let mut servers = Vec::new();
    for _ in 0..N {
        let server = FakeUpstream::start().await;
        server.answer_readyz(200);
        servers.push(server);
    }
    servers.try_into().ok().unwrap()
}

/// The next request, on either of two servers, and which it is.
async fn next_of(servers: &mut [FakeUpstream; 2]) -> (usize, Exchange) {
    let [first, second] = servers;
    tokio::select! {
        exchange = first.next_exchange() => (0, exchange),
        exchange = second.next_exchange() => (1, exchange),
    }
}

/// Answers all requests with 200. Returns how many there were.
fn spawn_responder(mut server: FakeUpstream) -> Arc<AtomicUsize> {
    let count = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        loop {
            let exchange = server.next_exchange_without_timeout().await;
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(exchange.respond(200, "{}"));
        }
    });
    count
}

pub(crate) fn healthy(address: SocketAddr) -> String {
    format!("weir_upstream_server_healthy{{server=\"{address}\"}}")
}

fn refused(address: SocketAddr, reason: &str) -> String {
    format!("weir_upstream_server_refused{{reason=\"{reason}\",server=\"{address}\"}}")
}

fn in_flight(address: SocketAddr, kind: &str) -> String {
    format!("weir_upstream_server_in_flight_requests{{kind=\"{kind}\",server=\"{address}\"}}")
}

async fn get_list(weir: &Weir, status: u16) {
    let response = weir.alice(HttpVersion::Http2).get(LIST).await;
    assert_eq!(response.status, status, "{}", response.text());
}

#[tokio::test]
async fn requests_are_spread_over_all_servers() {
    let servers = start_servers::<3>().await;
    let addresses = servers.each_ref().map(|server| server.address);
    let weir = builder(&addresses, RARELY).start().await;
    let counts = servers.map(spawn_responder);
    let mut client = weir.alice(HttpVersion::Http2);
    for _ in 0..300 {
        assert_eq!(client.get(LIST).await.status, 200);
    }
    for (count, address) in counts.iter().zip(addresses) {
        let count = count.load(Ordering::SeqCst);
        assert!(count >= 50, "{count} of 300 on one of three servers");
        let sent = "weir_upstream_server_requests_total";
        let sent = format!("{sent}{{kind=\"short\",server=\"{address}\"}}");
        let count = u32::try_from(count).unwrap();
        assert_eq!(weir.metric(&sent).await, f64::from(count));
        weir.wait_for_metric(&in_flight(address, "short"), 0.0)
            .await;
        assert_eq!(weir.metric(&healthy(address)).await, 1.0);
    }
    let status = weir.get_admin("/status.json").await;
    for address in addresses {
        let named = format!("{{\"address\":\"{address}\",\"healthy\":true");
        assert!(status.text().contains(&named), "{}", status.text());
    }
}

#[tokio::test]
async fn a_request_goes_to_the_server_with_fewer_of_its_kind_in_flight() {
    for near in HttpVersion::BOTH {
        let mut servers = start_servers::<2>().await;
        let addresses = servers.each_ref().map(|server| server.address);
        let weir = builder(&addresses, RARELY).start().await;
        for (target, kind) in [(WATCH, "long-running"), (LIST, "short")] {
            let (mut counts, mut held) = ([0_usize, 0], Vec::new());
            for _ in 0..6 {
                let mut client = weir.alice(near);
                let call = client.send(TestRequest::get(target)).await;
                let (server, exchange) = next_of(&mut servers).await;
                counts[server] += 1;
                held.push((client, call, exchange));
                assert!(counts[0].abs_diff(counts[1]) <= 1, "{counts:?} of {target}");
            }
            for address in addresses {
                weir.wait_for_metric(&in_flight(address, kind), 3.0).await;
            }
            for (_, call, exchange) in held {
                exchange.respond(200, "{}").await;
                assert_eq!(call.response().await.status, 200);
            }
            for address in addresses {
                weir.wait_for_metric(&in_flight(address, kind), 0.0).await;
            }
        }
    }
}

#[tokio::test]
async fn a_request_whose_server_is_gone_goes_to_another() {
    for (near, body) in [(HttpVersion::Http1, ""), (HttpVersion::Http2, "{}")] {
        let [gone, stays] = start_servers::<2>().await;
        let addresses = [gone.address, stays.address];
        let weir = builder(&addresses, RARELY).start().await;
        let _place = gone.reservation.clone();
        drop(gone);
        let count = spawn_responder(stays);
        let mut client = weir.alice(near);
        for _ in 0..20 {
            let request = match body {
                "" => TestRequest::get(LIST),
                body => TestRequest::post(LIST, body),
            };
            assert_eq!(client.request(request).await.status, 200);
        }
        assert_eq!(count.load(Ordering::SeqCst), 20);
        weir.wait_for_metric(&healthy(addresses[0]), 0.0).await;
        assert_eq!(weir.metric(&healthy(addresses[1])).await, 1.0);
        assert!(weir.metric("weir_upstream_retries_elsewhere_total").await >= 1.0);
    }
}

#[tokio::test]
async fn an_upgrade_whose_server_is_gone_goes_to_another() {
    let [gone, mut stays] = start_servers::<2>().await;
    let weir = builder(&[gone.address, stays.address], RARELY)
        .start()
        .await;
    let _place = gone.reservation.clone();
    drop(gone);
    for _ in 0..8 {
        let exec = TestRequest::get("/api/v1/namespaces/a/pods/b/exec?command=sh")
            .header("connection", "Upgrade")
            .header("upgrade", "websocket");
        let mut client = weir.alice(HttpVersion::Http1);
        let call = client.send(exec).await;
        stays.next_exchange().await.respond(403, "{}").await;
        assert_eq!(call.response().await.status, 403);
    }
}

#[tokio::test]
async fn a_refused_stream_goes_to_another_server() {
    let mut servers = start_servers::<2>().await;
    let addresses = servers.each_ref().map(|server| server.address);
    let weir = builder(&addresses, RARELY).start().await;
    for request in [TestRequest::get(LIST), TestRequest::post(LIST, "a body")] {
        let call = weir.alice(HttpVersion::Http2).send(request).await;
        let (first, mut exchange) = next_of(&mut servers).await;
        let body = exchange.read_body().await;
        exchange.reset(Reason::REFUSED_STREAM);
        let (second, mut exchange) = next_of(&mut servers).await;
        assert_ne!(first, second);
        assert_eq!(exchange.read_body().await, body);
        exchange.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
}

#[tokio::test]
async fn a_request_that_may_have_been_executed_is_not_sent_to_another_server() {
    for far in HttpVersion::BOTH {
        let mut servers = [
            FakeUpstream::preferring(far).await,
            FakeUpstream::preferring(far).await,
        ];
        servers.iter().for_each(|server| server.answer_readyz(200));
        let addresses = servers.each_ref().map(|server| server.address);
        let weir = builder(&addresses, RARELY).start().await;
        let call = weir
            .alice(HttpVersion::Http2)
            .send(TestRequest::get(LIST))
            .await;
        let (_, exchange) = next_of(&mut servers).await;
        exchange.cut();
        assert_eq!(call.response().await.status, 502);
        servers.iter_mut().for_each(FakeUpstream::assert_no_request);
    }
}

#[tokio::test]
async fn a_server_that_is_not_ready_gets_no_request_and_weir_is_ready_while_one_is() {
    let servers = start_servers::<2>().await;
    let addresses = servers.each_ref().map(|server| server.address);
    let [first, second] = servers;
    let weir = builder(&addresses, Duration::from_millis(20)).start().await;
    let report = weir.get_admin("/readyz").await;
    assert_eq!(report.status, 200);
    for address in addresses {
        let line = format!("[+]upstream/{address} ok\n");
        assert!(report.text().contains(&line), "{}", report.text());
    }
    first.answer_readyz(500);
    weir.wait_for_metric(&healthy(addresses[0]), 0.0).await;
    let report = weir.get_admin("/readyz").await;
    assert_eq!(report.status, 200);
    let line = format!("[-]upstream/{} failed", addresses[0]);
    assert!(report.text().contains(&line), "{}", report.text());
    second.answer_readyz(500);
    weir.wait_for_metric(&healthy(addresses[1]), 0.0).await;
    eventually("weir is not ready", async || {
        (weir.get_admin("/readyz").await.status == 500).then_some(())
    })
    .await;
    second.answer_readyz(200);
    weir.wait_for_metric(&healthy(addresses[1]), 1.0).await;
    let (none, all) = (spawn_responder(first), spawn_responder(second));
    for _ in 0..20 {
        get_list(&weir, 200).await;
    }
    let counts = (none.load(Ordering::SeqCst), all.load(Ordering::SeqCst));
    assert_eq!(counts, (0, 20));
}

#[tokio::test]
async fn requests_still_go_to_servers_of_which_none_is_ready() {
    let servers = start_servers::<2>().await;
    let addresses = servers.each_ref().map(|server| server.address);
    let weir = builder(&addresses, OFTEN).start().await;
    servers.iter().for_each(|server| server.answer_readyz(500));
    for address in addresses {
        weir.wait_for_metric(&healthy(address), 0.0).await;
    }
    let _counts = servers.map(spawn_responder);
    for _ in 0..20 {
        get_list(&weir, 200).await;
    }
}

/// Fails unless a list gets 503 because the API server is not ready.
async fn assert_not_ready(weir: &Weir) {
    for target in [LIST, WATCH] {
        let response = weir.alice(HttpVersion::Http2).get(target).await;
        assert_eq!(response.status, 503, "{}", response.text());
        assert_eq!(response.headers.get("retry-after"), Some("1"));
        assert_eq!(response.kube_status().cause, "weir/upstream-not-ready");
    }
}

#[tokio::test]
async fn a_server_gets_no_request_before_its_readyz_has_passed_once() {
    for code in [500, 503] {
        let [mut server] = start_servers::<1>().await;
        server.answer_readyz(code);
        let weir = builder(&[server.address], OFTEN).start().await;
        assert_not_ready(&weir).await;
        assert_eq!(weir.metric(&healthy(server.address)).await, 0.0);
        assert_eq!(weir.get_admin("/readyz").await.status, 500);
        for path in ["/livez", "/healthz/ping"] {
            let call = weir
                .alice(HttpVersion::Http2)
                .send(TestRequest::get(path))
                .await;
            server.next_exchange().await.respond(200, "ok").await;
            assert_eq!(call.response().await.status, 200, "{path}");
        }
        let response = weir.alice(HttpVersion::Http2).get("/readyz").await;
        assert_eq!(response.status, code, "the server's own answer");
        server.assert_no_request();
        server.answer_readyz(200);
        weir.wait_for_metric(&healthy(server.address), 1.0).await;
        let _count = spawn_responder(server);
        get_list(&weir, 200).await;
        eventually("weir to be ready", async || {
            (weir.get_admin("/readyz").await.status == 200).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn any_answer_of_readyz_but_a_failure_counts_as_passed() {
    for code in [401, 403, 404, 429] {
        let [server] = start_servers::<1>().await;
        server.answer_readyz(code);
        let weir = builder(&[server.address], OFTEN).start().await;
        let _count = spawn_responder(server);
        get_list(&weir, 200).await;
    }
}

#[tokio::test]
async fn a_request_at_the_start_waits_for_the_first_probe() {
    let mut server = FakeUpstream::start().await;
    let started = builder(&[server.address], RARELY).limits(10, 10).start();
    server.expose_readyz(true);
    let (weir, probe) = tokio::join!(started, server.next_exchange());
    server.expose_readyz(false);
    assert_eq!(probe.request.target, "/readyz");
    let call = weir
        .alice(HttpVersion::Http2)
        .send(TestRequest::get(LIST))
        .await;
    weir.wait_for_metric(IN_FLIGHT, 1.0).await;
    server.assert_no_request();
    probe.respond(200, "ok").await;
    server.next_exchange().await.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}

#[tokio::test]
async fn after_an_outage_a_server_gets_no_request_before_its_readyz_has_passed() {
    let [server] = start_servers::<1>().await;
    let weir = builder(&[server.address], OFTEN).start().await;
    let place = server.reservation.clone();
    weir.wait_for_metric(&healthy(place.address), 1.0).await;
    drop(server);
    let response = weir.alice(HttpVersion::Http2).get(LIST).await;
    assert_eq!(response.status, 503);
    assert_eq!(response.kube_status().cause, "weir/upstream-connect");
    // A probe has found it gone, too.
    weir.wait_for_metric(&healthy(place.address), 0.0).await;
    let mut server = FakeUpstream::restart_at(place).await;
    server.answer_readyz(500);
    eventually("the server to answer", async || {
        let response = weir.alice(HttpVersion::Http2).get(LIST).await;
        (response.kube_status().cause == "weir/upstream-not-ready").then_some(())
    })
    .await;
    assert_not_ready(&weir).await;
    server.assert_no_request();
    server.answer_readyz(200);
    let _count = spawn_responder(server);
    get_list(&weir, 200).await; // at once
}

#[tokio::test]
async fn a_server_whose_readyz_fails_later_is_used_while_there_is_no_other() {
    let [server] = start_servers::<1>().await;
    let address = server.address;
    let weir = builder(&[address], OFTEN).start().await;
    weir.wait_for_metric(&healthy(address), 1.0).await;
    server.answer_readyz(500);
    weir.wait_for_metric(&healthy(address), 0.0).await;
    let probes =
        format!("weir_upstream_server_probes_total{{result=\"not-ready\",server=\"{address}\"}}");
    let _count = spawn_responder(server);
    let before = weir.metric(&probes).await;
    while weir.metric(&probes).await < before + 20.0 {
        get_list(&weir, 200).await;
    }
    assert_eq!(weir.get_admin("/readyz").await.status, 200);
}

#[tokio::test]
async fn a_server_that_boots_gets_nothing_while_the_only_other_one_shuts_down() {
    let [first, mut second] = start_servers::<2>().await;
    second.answer_readyz(500);
    let addresses = [first.address, second.address];
    let weir = builder(&addresses, OFTEN).start().await;
    first.answer_readyz(500);
    weir.wait_for_metric(&healthy(addresses[0]), 0.0).await;
    let count = spawn_responder(first);
    for _ in 0..20 {
        get_list(&weir, 200).await;
    }
    assert_eq!(count.load(Ordering::SeqCst), 20);
    second.assert_no_request();
}

#[tokio::test]
async fn a_read_that_a_hung_server_does_not_answer_goes_to_another_once() {
    for_each_protocol_pair(async |near, far| {
        let mut servers = [
            FakeUpstream::preferring(far).await,
            FakeUpstream::preferring(far).await,
        ];
        let addresses = servers.each_ref().map(|server| server.address);
        let weir = builder(&addresses, OFTEN).start().await;
        let mut client = weir.alice(near);
        let call = client.send(TestRequest::get(LIST)).await;
        let (hung, mut held) = next_of(&mut servers).await;
        servers[hung].hold_probes();
        let again = servers[1 - hung].next_exchange().await;
        held.wait_for_cancel().await;
        assert_eq!(again.request.target, LIST);
        assert_eq!(again.request.headers.all("authorization").len(), 1);
        again.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
        servers.iter_mut().for_each(FakeUpstream::assert_no_request);
        assert_eq!(
            weir.metric("weir_upstream_retries_elsewhere_total").await,
            1.0
        );
    })
    .await;
}

#[tokio::test]
async fn a_write_stays_on_a_hung_server_and_new_requests_go_to_another() {
    let mut servers = start_servers::<2>().await;
    let addresses = servers.each_ref().map(|server| server.address);
    let weir = builder(&addresses, OFTEN).start().await;
    let mut client = weir.alice(HttpVersion::Http2);
    let call = client.send(TestRequest::post(LIST, "{}")).await;
    let (hung, held) = next_of(&mut servers).await;
    servers[hung].hold_probes();
    eventually("the server to count as hung", async || {
        let status = weir.get_admin("/status.json").await;
        status.text().contains("no answer for ").then_some(())
    })
    .await;
    servers.iter_mut().for_each(FakeUpstream::assert_no_request);
    let [first, second] = servers;
    let (mut silent, other) = match hung {
        0 => (first, second),
        _ => (second, first),
    };
    let count = spawn_responder(other);
    for _ in 0..20 {
        get_list(&weir, 200).await;
    }
    assert_eq!(count.load(Ordering::SeqCst), 20);
    silent.assert_no_request();
    held.respond(201, "{}").await;
    assert_eq!(call.response().await.status, 201);
}

#[tokio::test]
async fn no_request_is_doubled_while_all_servers_are_silent() {
    for_each_protocol_pair(async |near, far| {
        let mut servers = [
            FakeUpstream::preferring(far).await,
            FakeUpstream::preferring(far).await,
        ];
        let addresses = servers.each_ref().map(|server| server.address);
        let weir = builder(&addresses, OFTEN).start().await;
        servers.iter().for_each(FakeUpstream::hold_probes);
        let mut client = weir.alice(near);
        let call = client.send(TestRequest::get(LIST)).await;
        let (_, held) = next_of(&mut servers).await;
        let silent = Stopwatch::start();
        while silent.elapsed() < Duration::from_secs(5) {
            assert_eq!(weir.get_admin("/livez").await.status, 200);
            servers.iter_mut().for_each(FakeUpstream::assert_no_request);
        }
        held.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    })
    .await;
}

#[tokio::test]
async fn a_slow_read_of_a_server_that_answers_its_probes_is_not_doubled() {
    let mut servers = start_servers::<2>().await;
    let addresses = servers.each_ref().map(|server| server.address);
    let weir = builder(&addresses, RARELY).start().await;
    let mut client = weir.alice(HttpVersion::Http2);
    let call = client.send(TestRequest::get(LIST)).await;
    let (_, held) = next_of(&mut servers).await;
    let slow = Stopwatch::start();
    while slow.elapsed() < Duration::from_secs(4) {
        assert_eq!(weir.get_admin("/livez").await.status, 200);
        servers.iter_mut().for_each(FakeUpstream::assert_no_request);
    }
    held.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}

#[tokio::test]
async fn all_servers_down_is_a_503_until_one_is_back() {
    let servers = start_servers::<2>().await;
    let addresses = servers.each_ref().map(|server| server.address);
    let weir = builder(&addresses, RARELY).start().await;
    let [first, second] = servers;
    let (place, _other) = (first.reservation.clone(), second.reservation.clone());
    drop((first, second));
    for _ in 0..5 {
        let response = weir.alice(HttpVersion::Http2).get(LIST).await;
        assert_eq!(response.status, 503);
        assert_eq!(response.headers.get("retry-after"), Some("1"));
        assert_eq!(response.kube_status().cause, "weir/upstream-connect");
    }
    let _back = spawn_responder(FakeUpstream::restart_at(place).await);
    for _ in 0..5 {
        get_list(&weir, 200).await; // at once
    }
}

#[tokio::test]
async fn after_an_outage_lists_wait_for_their_turn_and_exempt_ones_do_not() {
    const DELAYED: &str = "weir_upstream_recovery_delayed_total";
    let servers = start_servers::<2>().await;
    let addresses = servers.each_ref().map(|server| server.address);
    let weir = builder(&addresses, RARELY).start().await;
    let [first, second] = servers;
    let (place, _other) = (first.reservation.clone(), second.reservation.clone());
    drop((first, second));
    get_list(&weir, 503).await;
    let down = Stopwatch::start();
    while down.elapsed() < Duration::from_millis(1_100) {
        get_list(&weir, 503).await;
    }
    let _back = spawn_responder(FakeUpstream::restart_at(place).await);
    let mut root = weir.with_authorization(HttpVersion::Http2, ROOT);
    for _ in 0..20 {
        assert_eq!(root.get(LIST).await.status, 200);
    }
    assert_eq!(weir.metric(DELAYED).await, 0.0);
    let mut alice = weir.alice(HttpVersion::Http2);
    for _ in 0..10 {
        assert_eq!(alice.get(LIST).await.status, 200);
    }
    assert!(weir.metric(DELAYED).await >= 1.0);
}

#[tokio::test]
async fn after_an_outage_of_a_single_server_lists_wait_for_their_turn() {
    const DELAYED: &str = "weir_upstream_recovery_delayed_total";
    let [server] = start_servers::<1>().await;
    let weir = builder(&[server.address], RARELY).start().await;
    let place = server.reservation.clone();
    drop(server);
    get_list(&weir, 503).await; // the outage begins with the first failure
    let down = Stopwatch::start();
    while down.elapsed() < Duration::from_millis(1_100) {
        get_list(&weir, 503).await;
    }
    let _back = spawn_responder(FakeUpstream::restart_at(place).await);
    let mut alice = weir.alice(HttpVersion::Http2);
    assert_eq!(alice.get(LIST).await.status, 200, "at once");
    for _ in 0..10 {
        assert_eq!(alice.get(LIST).await.status, 200);
    }
    assert!(weir.metric(DELAYED).await >= 1.0);
}

#[tokio::test]
async fn another_weir_among_the_servers_is_never_used() {
    let mut servers = start_servers::<2>().await;
    let peer = weir::builder(servers[0].address).start().await;
    let addresses = [peer.clients, servers[1].address];
    let weir = builder(&addresses, Duration::from_millis(20)).start().await;
    weir.wait_for_metric(&refused(peer.clients, "peer"), 1.0)
        .await;
    for _ in 0..20 {
        let call = weir
            .alice(HttpVersion::Http2)
            .send(TestRequest::get(LIST))
            .await;
        servers[1].next_exchange().await.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
    servers[0].assert_no_request();
    let report = weir.get_admin("/readyz").await;
    assert_eq!(report.status, 200);
    let line = format!("[-]upstream/{} failed", peer.clients);
    assert!(report.text().contains(&line), "{}", report.text());
    // Nor where the API server is gone.
    let _place = servers[1].reservation.clone();
    let [first, second] = servers;
    drop(second);
    for _ in 0..5 {
        get_list(&weir, 503).await;
    }
    let mut first = first;
    first.assert_no_request();
}

#[tokio::test]
async fn the_own_address_among_the_servers_is_never_used() {
    let [server] = start_servers::<1>().await;
    let place = ReservedAddress::reserve();
    let (own, other) = (place.address, server.address);
    let weir = builder(&[own, other], Duration::from_millis(20))
        .with(|config| config.serving.address = own)
        .start()
        .await;
    assert_eq!(weir.metric(&refused(own, "own-address")).await, 1.0);
    let count = spawn_responder(server);
    for _ in 0..20 {
        get_list(&weir, 200).await;
    }
    assert_eq!(count.load(Ordering::SeqCst), 20);
    let loops = "weir_looped_requests_total{reason=\"own-id\"}";
    assert_eq!(weir.metric(loops).await, 0.0);
}

#[tokio::test]
async fn an_address_that_leads_back_to_this_weir_is_never_used() {
    let [server] = start_servers::<1>().await;
    let place = ReservedAddress::reserve();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let relay = listener.local_addr().unwrap();
    let weir_address = place.address;
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut far = TcpStream::connect(weir_address).await.unwrap();
                let _ = copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    let addresses = [relay, server.address];
    let weir = builder(&addresses, Duration::from_millis(20))
        .with(|config| config.serving.address = weir_address)
        .start()
        .await;
    weir.wait_for_metric(&refused(relay, "own-probe"), 1.0)
        .await;
    let count = spawn_responder(server);
    for _ in 0..20 {
        get_list(&weir, 200).await;
    }
    assert_eq!(count.load(Ordering::SeqCst), 20);
    let loops = "weir_looped_requests_total{reason=\"own-id\"}";
    assert_eq!(
        weir.metric(loops).await,
        0.0,
        "a probe is no client's request"
    );
}

/// The EndpointSlices with these addresses.
pub(crate) fn slices(version: u32, addresses: &[SocketAddr]) -> String {
    let items: Vec<_> = addresses
        .iter()
        .map(|address| {
            serde_json::json!({
                "ports": [{"name": "https", "port": address.port()}],
                "endpoints": [{"addresses": [address.ip()], "conditions": {"ready": true}}],
            })
        })
        .collect();
    let version = version.to_string();
    serde_json::json!({"metadata": {"resourceVersion": version}, "items": items}).to_string()
}

/// The next request for EndpointSlices, and whether it is a watch. All other requests get 200.
pub(crate) async fn next_slices_request(server: &mut FakeUpstream) -> (Exchange, bool) {
    loop {
        let exchange = server.next_exchange().await;
        if exchange
            .request
            .target
            .contains("/namespaces/default/endpointslices?")
        {
            let watch = exchange.request.target.contains("&watch=1");
            return (exchange, watch);
        }
        exchange.respond(200, "{}").await;
    }
}

#[tokio::test]
async fn endpoint_slices_name_the_servers_and_are_watched() {
    let [mut configured, first, second] = start_servers::<3>().await;
    let weir = builder(&[configured.address], Duration::from_millis(20))
        .own_token("weirs-own")
        .with(|config| config.upstream.endpoint_slices = true)
        .start()
        .await;
    let (exchange, watch) = next_slices_request(&mut configured).await;
    assert!(!watch);
    let authorization = exchange.request.headers.get("authorization");
    assert_eq!(authorization, Some("Bearer weirs-own"));
    exchange.respond(200, slices(41, &[first.address])).await;
    let mut listed = first;
    weir.wait_for_metric(&healthy(listed.address), 1.0).await;
    // The watch goes to the configured server, or to the one that is listed now if it has answered a
    // probe already. An event leads to another list.
    let (mut exchange, watch) = tokio::select! {
        request = next_slices_request(&mut configured) => request,
        request = next_slices_request(&mut listed) => request,
    };
    assert!(watch && exchange.request.target.contains("resourceVersion=41"));
    let call = weir
        .alice(HttpVersion::Http2)
        .send(TestRequest::get(LIST))
        .await;
    listed.next_exchange().await.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
    exchange.send_head(200, &[]).await;
    exchange.send("{\"type\":\"MODIFIED\"}\n").await;
    let (exchange, watch) = next_slices_request(&mut listed).await;
    assert!(!watch);
    exchange.respond(200, slices(42, &[second.address])).await;
    weir.wait_for_metric(&healthy(second.address), 1.0).await;
    weir.wait_for_metric(&healthy(listed.address), 0.0).await; // its series is gone
    let count = spawn_responder(second);
    let before = count.load(Ordering::SeqCst);
    for _ in 0..20 {
        get_list(&weir, 200).await;
    }
    assert!(count.load(Ordering::SeqCst) >= before + 20);
}
