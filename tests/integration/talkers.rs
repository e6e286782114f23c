//! Who does most, as operators see it.

use std::time::Duration;

use ::weir::config::Config;
use ::weir::config::Limits;
use ::weir::flowcontrol::bootstrap;
use ::weir::flowcontrol::controller;
use ::weir::flowcontrol::controller::Enforcement;
use ::weir::identity::jwt::KeySet;
use ::weir::observe::talkers::Row;
use ::weir::observe::talkers::Top;

use crate::support::Http;
use crate::support::client::Ask;
use crate::support::eventually;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::Weir;

const LIST: &str = "/apis/apps/v1/namespaces/shop/deployments";

async fn top(weir: &Weir, parameters: &str) -> Top {
    let answer = weir
        .operator(&format!("/debug/top_talkers?{parameters}"))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(&answer.headers["content-type"], "application/json");
    serde_json::from_str(answer.text()).unwrap()
}

/// Those who are shown once so many requests have ended.
async fn rows(weir: &Weir, parameters: &str, requests: u64) -> Vec<Row> {
    eventually("the requests are counted", async || {
        let top = top(weir, parameters).await;
        (top.total.requests == requests).then_some(top.rows)
    })
    .await
}

fn names(rows: &[Row]) -> Vec<(&str, u64)> {
    let names = rows.iter().map(|row| (&*row.name, row.amounts.requests));
    names.collect()
}

async fn fair(upstream: &Upstream) -> Weir {
    fair_with(upstream, |_| {}).await
}

async fn fair_with(upstream: &Upstream, change: impl FnOnce(&mut Config)) -> Weir {
    let setup = weir::before(upstream.address).with(|config| {
        change(config);
        config.limits = Limits::Fairness {
            config: controller::Config {
                server_concurrency_limit: 600,
                request_timeout: Duration::from_secs(60),
                enforcement: Enforcement::Enforce,
                consistent_reads_from_cache: true,
            },
            objects: bootstrap::complete(Vec::new()),
        };
    });
    setup.start().await
}

#[tokio::test]
async fn those_who_do_most_are_shown_by_all_that_they_are_known_by() {
    let mut upstream = Upstream::start().await;
    let weir = fair(&upstream).await;
    for (near, token, agent, target) in [
        (Http::One, weir::ALICE, "kubectl", LIST),
        (Http::Two, weir::ALICE, "kubectl", LIST),
        (Http::Two, weir::ROOT, "curl", "/api/v1/nodes/n1"),
    ] {
        let ask = Ask::get(target).header("user-agent", agent);
        let call = weir.bearing(near, token).send(ask).await;
        upstream.next().await.reply(200, "twelve bytes").await;
        assert_eq!(call.answer().await.status, 200);
    }
    for (by, expected) in [
        ("user", [("alice", 2), ("root", 1)]),
        ("userAgent", [("kubectl", 2), ("curl", 1)]),
        ("namespace", [("shop", 2), ("<none>", 1)]),
        ("resource", [("list deployments.apps", 2), ("get nodes", 1)]),
        ("flow", [("global-default/alice", 2), ("exempt", 1)]),
    ] {
        let rows = rows(&weir, &format!("by={by}"), 3).await;
        assert_eq!(names(&rows), expected, "{by}");
        let first = rows[0].amounts;
        assert_eq!((first.bytes, first.rejections), (24, 0), "{by}");
        assert!(first.seat_seconds > 0.0, "{by}: {first:?}");
    }
    let addresses = rows(&weir, "by=sourceAddress", 3).await;
    assert_eq!(names(&addresses), [("127.0.0.1", 3)]);
    let root = rows(&weir, "window=60m&sort=bytes&limit=1", 3).await;
    assert_eq!(names(&root), [("alice", 2)], "no more than were asked for");
}

/// Sends requests with these tokens, has each answered, and tells the flows with the most requests.
async fn flows(weir: &Weir, upstream: &mut Upstream, tokens: &[(&str, u16)]) -> Vec<(String, u64)> {
    for (token, status) in tokens {
        let mut client = weir.bearing(Http::One, ("authorization", token));
        let call = client.send(Ask::get(LIST)).await;
        upstream.next().await.reply(*status, "{}").await;
        assert_eq!(call.answer().await.status, *status);
    }
    let requests = u64::try_from(tokens.len()).unwrap();
    let rows = rows(weir, "by=flow", requests).await;
    let names = names(&rows).into_iter();
    names.map(|(name, n)| (name.to_owned(), n)).collect()
}

#[tokio::test]
async fn made_up_tokens_of_an_address_are_one_flow_and_one_that_was_taken_is_another() {
    const KEYS: &[u8] =
        br#"{"keys":[{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
        "y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#; // of RFC 7517, appendix A.1
    let mut upstream = Upstream::start().await;
    let weir = fair_with(&upstream, |config| {
        let keys = KeySet::from_jwks(KEYS).unwrap();
        config.identity.verification.account_keys = Some(keys);
    })
    .await;
    let tokens = [
        ("Bearer made-up-1", 401),
        ("Bearer made-up-2", 401),
        ("Bearer of-a-webhook", 200),
        ("Bearer of-a-webhook", 200),
    ];
    let flows_of = flows(&weir, &mut upstream, &tokens).await;
    let [(shared, 3), (own, 1)] = &flows_of[..] else {
        panic!("{flows_of:?}");
    };
    assert_eq!(shared, "global-default/network:127.0.0.1");
    assert!(own.starts_with("global-default/token:"), "{own}");

    // Where no token can be verified, one is as good as another.
    let weir = fair(&upstream).await;
    let flows_of = flows(&weir, &mut upstream, &tokens[..2]).await;
    assert_eq!(flows_of.len(), 2, "{flows_of:?}");
}

#[tokio::test]
async fn a_watch_is_seen_while_it_is_open() {
    let mut upstream = Upstream::start().await;
    let weir = fair(&upstream).await;
    let call = weir
        .alice(Http::Two)
        .send(Ask::get("/api/v1/pods?watch=1"))
        .await;
    let mut exchange = upstream.next().await;
    exchange.begin(200, &[]).await;
    let open = rows(&weir, "by=resource", 1).await;
    assert_eq!(names(&open), [("watch pods", 1)]);
    drop(call);
    exchange.given_up().await;
    weir.metric_becomes("weir_client_connections", 0.0).await;
    let ended = rows(&weir, "by=resource", 1).await;
    assert_eq!(
        names(&ended),
        [("watch pods", 1)],
        "it is not counted twice"
    );
}

#[tokio::test]
async fn a_tunnel_counts_for_what_goes_through_it_to_its_client() {
    let mut upstream = Upstream::start().await;
    let weir = fair(&upstream).await;
    let mut near = weir.wire().await;
    let exec = Ask::new("POST", "/api/v1/namespaces/a/pods/b/exec")
        .header(weir::ALICE.0, weir::ALICE.1)
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1");
    near.send(exec.to_http1()).await;
    let mut far = upstream.next().await.into_wire();
    far.send(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
    )
    .await;
    assert_eq!(near.answered().await.status, 101);
    let output = vec![7; 70_000];
    far.send(output.clone()).await;
    assert_eq!(near.reader.exactly(output.len()).await.unwrap(), output);
    near.send("what the client types is its own").await;
    far.reader.exactly(10).await.unwrap();
    drop((near, far));
    eventually("the tunnel's bytes are counted", async || {
        let top = top(&weir, "by=user&sort=bytes").await;
        let alice = top.rows.first()?;
        (alice.name == "alice" && alice.amounts.bytes == 70_000).then_some(())
    })
    .await;
}

#[tokio::test]
async fn who_is_refused_is_shown_as_such() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).limits(1, 1).start().await;
    let first = weir.alice(Http::Two).send(Ask::get(LIST)).await;
    let exchange = upstream.next().await;
    for _ in 0..3 {
        assert_eq!(weir.alice(Http::Two).get(LIST).await.status, 429);
    }
    let refused = rows(&weir, "sort=rejections", 3).await;
    assert_eq!(
        (names(&refused), refused[0].amounts.rejections),
        (vec![("alice", 3)], 3)
    );
    exchange.reply(200, "{}").await;
    assert_eq!(first.answer().await.status, 200);
    let all = rows(&weir, "sort=rejections", 4).await;
    assert_eq!(
        (names(&all), all[0].amounts.rejections),
        (vec![("alice", 4)], 3)
    );
    assert_eq!(
        names(&rows(&weir, "by=flow", 0).await),
        [],
        "there are none"
    );
}

#[tokio::test]
async fn bad_parameters_are_told_what_would_be_right() {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    let answer = weir
        .operator("/debug/top_talkers?window=1h&by=pods&limit=1000")
        .await;
    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.text(),
        "window=1h: must be one of 1m, 5m, 60m\n\
         by=pods: must be one of flow, namespace, resource, sourceAddress, user, userAgent\n\
         limit=1000: must be a number from 1 to 50\n"
    );
}
