//! Loops: an upstream that leads back to weir ends with 508 after one round, and fails readiness only where a probe of weir's own
//! comes back.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::Http;
use crate::support::Stopwatch;
use crate::support::certificates::pki;
use crate::support::client::Answer;
use crate::support::client::Ask;
use crate::support::eventually;
use crate::support::message::Framing;
use crate::support::process;
use crate::support::process::Files;
use crate::support::process::Process;
use crate::support::upstream::Exchange;
use crate::support::upstream::Place;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::ALICE;
use crate::support::weir::Door;
use crate::support::weir::Weir;

const LIST: &str = "/api/v1/namespaces/a/pods";
const EXEC: &str = "/api/v1/namespaces/a/pods/b/exec?command=sh&stdin=true";

const OWN_ID: &str = "weir_looped_requests_total{reason=\"own-id\"}";
const TOO_MANY_IDS: &str = "weir_looped_requests_total{reason=\"too-many-ids\"}";
const LOOP: &str = "weir_upstream_loop";

/// weir on `place`, before `upstream`.
async fn weir_on(place: &Place, upstream: SocketAddr) -> Weir {
    let address = place.address;
    weir::before(upstream)
        .with(|config| config.serving.address = address)
        .start()
        .await
}

fn upgrade(connection: &str) -> Ask {
    Ask::get(EXEC)
        .header("connection", connection)
        .header("upgrade", "websocket")
}

/// A request that asks for another protocol, and its answer.
async fn ask_upgrade(weir: &Door, ask: Ask) -> Answer {
    weir.alice(Http::One).ask(ask).await
}

fn assert_looped(answer: &Answer) {
    assert_eq!(answer.status, 508, "{}", answer.text());
    let told = answer.told();
    let words = (told.cause.as_str(), told.reason.as_str());
    assert_eq!(words, ("weir/loop", "InternalError"));
    assert_eq!(answer.headers.get("retry-after"), None);
}

/// The one `CDN-Loop` of a request.
fn listed(exchange: &Exchange) -> String {
    let lines = exchange.asked.headers.all("cdn-loop");
    assert_eq!(lines.len(), 1, "{:?}", exchange.asked);
    lines[0].to_owned()
}

fn assert_id(id: &str) {
    let digits = id.strip_prefix("weir-").unwrap_or_default();
    let hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(digits.len() == 32 && hexadecimal, "{id:?}");
}

/// Asks weir whether it is ready; its own question comes to its upstream meanwhile.
fn readyz(weir: &Weir) -> JoinHandle<Answer> {
    let door: Door = **weir;
    tokio::spawn(async move { door.operator("/readyz?verbose").await })
}

/// Answers everything with 200 and the request's `CDN-Loop`.
fn echoes(mut upstream: Upstream) {
    tokio::spawn(async move {
        loop {
            let exchange = upstream.next_for_ever().await;
            let list = listed(&exchange);
            exchange.reply(200, list).await;
        }
    });
}

#[tokio::test]
async fn a_loop_of_one_weir_ends_after_one_round_and_fails_readiness() {
    for near in Http::BOTH {
        let place = Place::reserve();
        let weir = weir_on(&place, place.address).await;
        let clients = [
            weir.alice(near),
            weir.anonymous(near),
            weir.certified(near, &pki().alice),
        ];
        let mut rounds = 0.0;
        for mut client in clients {
            for ask in [Ask::get(LIST), Ask::post(LIST, "{}")] {
                assert_looped(&client.ask(ask).await);
                rounds += 1.0;
                assert_eq!(weir.metric(OWN_ID).await, rounds, "one round each");
            }
        }
        assert_looped(&ask_upgrade(&weir, upgrade("Upgrade")).await);
        assert_eq!(weir.metric(OWN_ID).await, rounds + 1.0);
        assert_eq!(weir.metric(LOOP).await, 0.0, "no probe of weir's own yet");
        let report = weir.operator("/readyz?verbose").await;
        assert_eq!(report.status, 500);
        for line in [
            "[+]upstream ok\n",
            "[-]loop failed: weir's own probe came back",
        ] {
            assert!(report.text().contains(line), "{}", report.text());
        }
        assert_eq!(weir.metric(LOOP).await, 1.0);
        assert_eq!(weir.metric("weir_ready").await, 0.0);
        assert_eq!(weir.metric(OWN_ID).await, rounds + 1.0, "without the probe");
        assert_eq!(weir.operator("/livez").await.status, 200);
    }
}

#[tokio::test]
async fn a_loop_ends_where_certificates_users_are_impersonated() {
    for near in Http::BOTH {
        let place = Place::reserve();
        let address = place.address;
        let weir = weir::before(address)
            .calling_with("root-token")
            .with(|config| {
                config.serving.address = address;
                config.impersonate = true;
            })
            .start()
            .await;
        let mut client = weir.certified(near, &pki().alice);
        assert_looped(&client.get(LIST).await);
        // weir's own calls come back as well.
        let answers = "weir_upstream_responses_total{code=\"508\"}";
        assert_eq!(weir.metric(answers).await, 1.0);
        assert_eq!(weir.operator("/readyz").await.status, 500);
    }
}

#[tokio::test]
async fn a_loop_of_two_weirs_ends_at_the_first_and_both_know() {
    for near in Http::BOTH {
        let places = [Place::reserve(), Place::reserve()];
        let first = weir_on(&places[0], places[1].address).await;
        let second = weir_on(&places[1], places[0].address).await;
        assert_looped(&first.alice(near).get(LIST).await);
        assert_looped(&ask_upgrade(&first, upgrade("Upgrade")).await);
        assert_eq!(first.metric(OWN_ID).await, 2.0);
        assert_eq!(second.metric(OWN_ID).await, 0.0);
        for weir in [&first, &second] {
            let report = weir.operator("/readyz?verbose").await;
            assert_eq!(report.status, 500, "{}", report.text());
            assert!(report.text().contains("[-]loop failed"));
        }
    }
}

/// Three weirs, each before the next, the last before `upstream`.
async fn chain(upstream: SocketAddr) -> [Weir; 3] {
    let third = weir::before(upstream).start().await;
    let second = weir::before(third.clients).start().await;
    let first = weir::before(second.clients).start().await;
    [first, second, third]
}

#[tokio::test]
async fn a_chain_of_three_lists_each_once_in_its_order_and_is_no_loop() {
    for (near, far) in Http::PAIRS {
        let upstream = Upstream::preferring(far).await;
        let chain = chain(upstream.address).await;
        echoes(upstream);
        let mut ids = Vec::new();
        for weir in chain.iter().rev() {
            let answer = weir.alice(near).get(LIST).await;
            let list = answer.text().to_owned();
            let id = list.split(", ").next().unwrap();
            assert_id(id);
            ids.insert(0, id.to_owned());
            assert_eq!(list, ids.join(", "));
        }
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
        let answer = ask_upgrade(&chain[0], upgrade("Upgrade")).await;
        assert_eq!((answer.status, answer.text()), (200, &*ids.join(", ")));
        for weir in &chain {
            let report = weir.operator("/readyz?verbose").await;
            assert_eq!(report.status, 200, "{}", report.text());
            assert!(report.text().contains("[+]loop ok\n"), "{}", report.text());
            assert_eq!(weir.metric(OWN_ID).await, 0.0);
        }
    }
}

#[cfg(feature = "playground")]
#[tokio::test]
async fn a_chain_of_three_ends_at_the_playground() {
    use ::weir::playground::ApiServer;
    use ::weir::playground::Certificates;
    use ::weir::playground::Settings;
    use ::weir::upstream::tls;

    let made = Certificates::generate().unwrap();
    let server = ApiServer::new(Settings::default(), &made).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { server.run(listener, std::future::pending()).await });
    let third = weir::before(address)
        .with(|config| {
            config.upstream.roots = tls::roots_from_pem("ca", made.ca.as_bytes()).unwrap();
        })
        .start()
        .await;
    let second = weir::before(third.clients).start().await;
    let first = weir::before(second.clients).start().await;
    let admin = made.users.iter().find(|user| user.name == "admin").unwrap();
    let token = format!("Bearer {}", admin.token);
    for near in Http::BOTH {
        let mut client = first.bearing(near, ("authorization", &token));
        let answer = client.get("/api/v1/namespaces/default/pods").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    for weir in [&first, &second, &third] {
        let report = weir.operator("/readyz?verbose").await;
        assert_eq!(report.status, 200, "{}", report.text());
        assert_eq!(weir.metric(OWN_ID).await, 0.0);
    }
}

#[tokio::test]
async fn whatever_goes_to_the_api_server_lists_weir_once() {
    for far in Http::BOTH {
        let mut upstream = Upstream::preferring(far).await.shows_self_checks();
        let weir = weir::before(upstream.address)
            .with(|config| config.admin.self_checks = Some(Duration::from_secs(3600)))
            .start()
            .await;
        let probe = upstream.next().await;
        assert_eq!(probe.asked.headers.all("x-remote-user").len(), 1);
        let id = listed(&probe);
        assert_id(&id);
        let good = probe.asked.good_self_check().unwrap();
        probe.reply(201, good).await;
        for near in Http::BOTH {
            let clients = [
                weir.alice(near),
                weir.anonymous(near),
                weir.certified(near, &pki().alice),
            ];
            for mut client in clients {
                for ask in [Ask::get(LIST), Ask::post(LIST, "{}")] {
                    let call = client.send(ask).await;
                    let exchange = upstream.next().await;
                    assert_eq!(listed(&exchange), id);
                    exchange.reply(200, "{}").await;
                    assert_eq!(call.answer().await.status, 200);
                }
            }
        }
        let report = readyz(&weir);
        let exchange = upstream.next().await;
        let list = listed(&exchange);
        let (own, nonce) = list.split_once(";probe=").unwrap();
        assert_eq!((own, nonce.len()), (&*id, 32));
        exchange.reply(200, "ok").await;
        assert_eq!(report.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn impersonated_users_requests_list_weir_once() {
    for near in Http::BOTH {
        let mut upstream = Upstream::start().await;
        let weir = weir::before(upstream.address)
            .calling_with("root-token")
            .with(|config| config.impersonate = true)
            .start()
            .await;
        let mut client = weir.certified(near, &pki().alice);
        let call = client.send(Ask::get(LIST)).await;
        let exchange = loop {
            let exchange = upstream.next().await;
            assert_id(&listed(&exchange)); // of weir's own calls, too
            if exchange.asked.target == LIST {
                break exchange;
            }
        };
        assert_eq!(exchange.asked.headers.all("impersonate-user"), ["alice"]);
        exchange.reply(200, "{}").await;
        assert_eq!(call.answer().await.status, 200);
    }
}

#[tokio::test]
async fn no_client_takes_the_header_off_or_hides_an_id_in_it() {
    let named = ["CDN-Loop", "close, cdn-loop", "keep-alive,CDN-LOOP"];
    let hiding = ["a;x=\"", "cdn.example, b\\", "(", "a,,"];
    // What the client lists goes on, with weir behind it.
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    for connection in named.into_iter().chain(["Upgrade, CDN-Loop"]) {
        for theirs in hiding {
            let ask = upgrade(connection).header("cdn-loop", theirs);
            let call = weir.alice(Http::One).send(ask).await;
            let exchange = upstream.next().await;
            let list = listed(&exchange);
            let own = list.strip_prefix(&format!("{theirs}, ")).unwrap();
            assert_id(own);
            exchange.reply(200, "{}").await;
            assert_eq!(call.answer().await.status, 200);
        }
    }
    // In a loop, it ends after one round all the same.
    let place = Place::reserve();
    let weir = weir_on(&place, place.address).await;
    let mut rounds = 0.0;
    for connection in named.into_iter().chain(["Upgrade, CDN-Loop"]) {
        for theirs in hiding {
            let ask = upgrade(connection).header("cdn-loop", theirs);
            assert_looped(&ask_upgrade(&weir, ask).await);
            rounds += 1.0;
            assert_eq!(weir.metric(OWN_ID).await, rounds);
        }
    }
    for theirs in hiding {
        let ask = Ask::get(LIST).header("cdn-loop", theirs);
        assert_looped(&weir.alice(Http::Two).ask(ask).await);
        rounds += 1.0;
        assert_eq!(weir.metric(OWN_ID).await, rounds);
    }
}

#[tokio::test]
async fn a_replayed_id_is_508_for_that_request_alone() {
    for near in Http::BOTH {
        let mut upstream = Upstream::start().await;
        let weir = weir::before(upstream.address).start().await;
        let mut client = weir.alice(near);
        let call = client.send(Ask::get(LIST)).await;
        let exchange = upstream.next().await;
        let id = listed(&exchange);
        exchange.reply(200, "{}").await;
        assert_eq!(call.answer().await.status, 200);
        let guess = format!("{id};probe={}", "0".repeat(32));
        let among = format!("cdn.example, {id}");
        for theirs in [&id, &guess, &among] {
            let ask = Ask::get(LIST).header("cdn-loop", theirs);
            let answer = client.ask(ask).await;
            assert_looped(&answer);
            assert!(answer.told().message.contains("CDN-Loop"));
            let ask = upgrade("Upgrade").header("cdn-loop", theirs);
            assert_looped(&ask_upgrade(&weir, ask).await);
        }
        upstream.assert_nothing_came();
        assert_eq!(weir.metric(OWN_ID).await, 6.0);
        assert_eq!(weir.metric(LOOP).await, 0.0);
        let total = "apiserver_request_total{code=\"508\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"pods\",\
                     scope=\"namespace\",subresource=\"\",verb=\"LIST\",version=\"v1\"}";
        assert_eq!(weir.metric(total).await, 3.0);
        let report = readyz(&weir);
        upstream.next().await.reply(200, "ok").await;
        assert_eq!(report.await.unwrap().status, 200);
        let call = client.send(Ask::get(LIST)).await;
        upstream.next().await.reply(200, "{}").await;
        assert_eq!(call.answer().await.status, 200);
    }
}

#[tokio::test]
async fn a_nonce_counts_once_and_only_while_its_probe_is_under_way() {
    for near in Http::BOTH {
        let mut upstream = Upstream::start().await;
        let weir = weir::before(upstream.address).start().await;
        let mut client = weir.alice(near);
        let mut replay = async |list: &str| {
            let ask = Ask::get("/readyz").header("cdn-loop", list);
            assert_looped(&client.ask(ask).await);
            weir.metric(LOOP).await
        };
        // Answered by the API server: no use any more.
        let report = readyz(&weir);
        let exchange = upstream.next().await;
        let first = listed(&exchange);
        exchange.reply(200, "ok").await;
        assert_eq!(report.await.unwrap().status, 200);
        assert_eq!(replay(&first).await, 0.0);
        // What is known for a second is over; the next question brings another nonce.
        let (second, exchange, report) = loop {
            let report = readyz(&weir);
            let asked = tokio::select! {
                exchange = upstream.next() => exchange,
                () = until_finished(&report) => continue,
            };
            break (listed(&asked), asked, report);
        };
        assert_ne!(first, second);
        assert_eq!(replay(&first).await, 0.0);
        assert_eq!(replay(&second).await, 1.0, "it came back");
        tokio::spawn(exchange.reply(200, "ok")); // or too late
        let report = report.await.unwrap();
        assert_eq!(report.status, 500);
        assert!(
            report.text().contains("[-]loop failed"),
            "{}",
            report.text()
        );
        // A later one that does not come back makes weir ready again.
        becomes_ready(&weir, upstream).await;
        assert_eq!(weir.metric(LOOP).await, 0.0);
        for list in [&first, &second] {
            assert_eq!(replay(list).await, 0.0, "used before");
        }
        assert_eq!(weir.operator("/readyz").await.status, 200);
    }
}

async fn until_finished(report: &JoinHandle<Answer>) {
    while !report.is_finished() {
        tokio::task::yield_now().await;
    }
}

/// Waits until weir is ready, before an upstream that answers everything well.
async fn becomes_ready(weir: &Weir, upstream: Upstream) {
    echoes(upstream);
    let ready = async || (weir.operator("/readyz").await.status == 200).then_some(());
    eventually("weir to be ready", ready).await;
}

/// Leads to whichever address it is told, and cuts what led elsewhere.
struct Relay {
    address: SocketAddr,
    target: watch::Sender<SocketAddr>,
}

impl Relay {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (target, told) = watch::channel(address);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut told = told.clone();
                let target = *told.borrow_and_update();
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(target).await else {
                        return;
                    };
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = told.changed() => {}
                    }
                });
            }
        });
        Self { address, target }
    }
}

#[tokio::test]
async fn a_loop_that_is_mended_leaves_weir_ready() {
    let relay = Relay::start().await;
    let weir = weir::before(relay.address).start().await;
    relay.target.send(weir.clients).unwrap();
    assert_looped(&weir.alice(Http::Two).get(LIST).await);
    assert_eq!(weir.operator("/readyz").await.status, 500);
    assert_eq!(weir.metric(LOOP).await, 1.0);
    let upstream = Upstream::start().await;
    relay.target.send(upstream.address).unwrap();
    becomes_ready(&weir, upstream).await;
    assert_eq!(weir.metric(LOOP).await, 0.0);
    let answer = eventually("an answer of the upstream", async || {
        let answer = weir.alice(Http::Two).get(LIST).await;
        (answer.status == 200).then_some(answer)
    });
    assert_id(answer.await.text());
}

#[tokio::test]
async fn more_ids_than_a_chain_has_are_508_and_tell_nothing_of_readiness() {
    for near in Http::BOTH {
        let mut upstream = Upstream::start().await;
        let weir = weir::before(upstream.address).start().await;
        let mut client = weir.alice(near);
        let list = |count: usize| {
            let ids = (0..count).map(|n| format!("proxy-{n}"));
            ids.collect::<Vec<_>>().join(", ")
        };
        let long = "x".repeat(2049);
        for theirs in [&list(16), &list(100), &long] {
            let ask = Ask::get(LIST).header("cdn-loop", theirs);
            assert_looped(&client.ask(ask).await);
        }
        let two = Ask::get(LIST).header("cdn-loop", &list(8));
        assert_looped(&client.ask(two.header("cdn-loop", &list(8))).await);
        assert_eq!(weir.metric(TOO_MANY_IDS).await, 4.0);
        assert_eq!(weir.metric(OWN_ID).await, 0.0);
        upstream.assert_nothing_came();
        let two = Ask::get(LIST).header("cdn-loop", &list(8));
        let call = client.send(two.header("cdn-loop", &list(7))).await;
        let exchange = upstream.next().await;
        let entries = listed(&exchange);
        assert_eq!(entries.split(", ").count(), 16, "{entries}");
        exchange.reply(200, "{}").await;
        assert_eq!(call.answer().await.status, 200);
        let report = readyz(&weir);
        upstream.next().await.reply(200, "ok").await;
        assert_eq!(report.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn a_loop_is_logged_once_and_its_requests_by_sample() {
    let place = Place::reserve();
    let mut flags = process::needed(place.address);
    let port = format!("--secure-port={}", place.address.port());
    flags.retain(|flag| flag != "--secure-port=0");
    flags.push(port);
    let began = Stopwatch::start();
    let mut weir = Process::start(Files::new(), &flags).await;
    let mut wire = weir.wire().await;
    for _ in 0..50 {
        let (name, value) = ALICE;
        wire.send(Ask::get(LIST).header(name, value).to_http1())
            .await;
        let answered = wire.answered().await;
        assert_eq!(answered.status, 508);
        wire.body(Framing::of_answer(&answered, "GET")).await;
    }
    for _ in 0..5 {
        assert_eq!(weir.operator("/readyz").await.status, 500);
    }
    weir.signal("TERM").await;
    weir.ended().await;
    let seconds = began.elapsed().as_secs();
    let rest = weir.last_lines().await;
    let lines = [weir.opening.clone(), rest].concat();
    let found = |text: &str| {
        let found = lines.iter().filter(|line| line.contains(text)).count();
        u64::try_from(found).unwrap()
    };
    assert_eq!(found("weir's own probe came back to it"), 1, "{lines:#?}");
    let requests = found("a request is answered 508");
    assert!((1..=seconds + 1).contains(&requests), "{lines:#?}");
}
