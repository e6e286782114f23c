//! Top talkers, as operators see them.

use std::time::Duration;

use ::weir::config::{AdmissionConfig, Config, FlowcontrolConfig};
use ::weir::flowcontrol::controller;
use ::weir::flowcontrol::controller::Enforcement;
use ::weir_talkers::{TalkerRow, TopTalkersReport};
use ::weir_tokens::jwt::KeySet;

use crate::support::client::TestRequest;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::weir::Weir;
use crate::support::{HttpVersion, eventually, weir};

const LIST: &str = "/apis/apps/v1/namespaces/shop/deployments";

async fn top_talkers(weir: &Weir, parameters: &str) -> TopTalkersReport {
    let response = weir
        .get_admin(&format!("/debug/top_talkers?{parameters}"))
        .await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(&response.headers["content-type"], "application/json");
    serde_json::from_str(response.text()).unwrap()
}

/// The top talkers, after this number of requests have ended.
async fn wait_for_rows(weir: &Weir, parameters: &str, requests: u64) -> Vec<TalkerRow> {
    eventually("the requests are counted", async || {
        let top = top_talkers(weir, parameters).await;
        (top.total.requests == requests).then_some(top.rows)
    })
    .await
}

fn row_names(rows: &[TalkerRow]) -> Vec<(&str, u64)> {
    let names = rows.iter().map(|row| (&*row.name, row.usage.requests));
    names.collect()
}

async fn start_fair(upstream: &FakeUpstream) -> Weir {
    start_fair_with(upstream, |_| {}).await
}

async fn start_fair_with(upstream: &FakeUpstream, change: impl FnOnce(&mut Config)) -> Weir {
    let setup = weir::builder(upstream.address).with(|config| {
        change(config);
        config.admission = AdmissionConfig::Fairness {
            config: controller::ControllerConfig {
                server_concurrency_limit: 600,
                request_timeout: Duration::from_secs(60),
                enforcement: Enforcement::Enforce,
                consistent_reads_from_cache: true,
            },
            sources: FlowcontrolConfig::default(),
        };
    });
    setup.start().await
}

#[tokio::test]
async fn top_talkers_are_shown_by_every_grouping() {
    let mut upstream = FakeUpstream::start().await;
    let weir = start_fair(&upstream).await;
    for (near, token, agent, target) in [
        (HttpVersion::Http1, weir::ALICE, "kubectl", LIST),
        (HttpVersion::Http2, weir::ALICE, "kubectl", LIST),
        (HttpVersion::Http2, weir::ROOT, "curl", "/api/v1/nodes/n1"),
    ] {
        let request = TestRequest::get(target).header("user-agent", agent);
        let call = weir.with_authorization(near, token).send(request).await;
        upstream
            .next_exchange()
            .await
            .respond(200, "twelve bytes")
            .await;
        assert_eq!(call.response().await.status, 200);
    }
    for (by, expected) in [
        ("user", [("alice", 2), ("root", 1)]),
        ("userAgent", [("kubectl", 2), ("curl", 1)]),
        ("namespace", [("shop", 2), ("<none>", 1)]),
        ("resource", [("list deployments.apps", 2), ("get nodes", 1)]),
        ("flow", [("global-default/alice", 2), ("exempt", 1)]),
    ] {
        let rows = wait_for_rows(&weir, &format!("by={by}"), 3).await;
        assert_eq!(row_names(&rows), expected, "{by}");
        let first = rows[0].usage;
        assert_eq!((first.bytes, first.rejections), (24, 0), "{by}");
        assert!(first.seat_seconds > 0.0, "{by}: {first:?}");
    }
    let addresses = wait_for_rows(&weir, "by=sourceAddress", 3).await;
    assert_eq!(row_names(&addresses), [("127.0.0.1", 3)]);
    let root = wait_for_rows(&weir, "window=60m&sort=bytes&limit=1", 3).await;
    assert_eq!(
        row_names(&root),
        [("alice", 2)],
        "no more than were asked for"
    );
}

/// Sends requests with these tokens, answers each, and returns the flows with the most requests.
async fn send_and_list_flows(
    weir: &Weir,
    upstream: &mut FakeUpstream,
    tokens: &[(&str, u16)],
) -> Vec<(String, u64)> {
    for (token, status) in tokens {
        let mut client = weir.with_authorization(HttpVersion::Http1, ("authorization", token));
        let call = client.send(TestRequest::get(LIST)).await;
        upstream.next_exchange().await.respond(*status, "{}").await;
        assert_eq!(call.response().await.status, *status);
    }
    let requests = u64::try_from(tokens.len()).unwrap();
    let rows = wait_for_rows(weir, "by=flow", requests).await;
    let names = row_names(&rows).into_iter();
    names.map(|(name, n)| (name.to_owned(), n)).collect()
}

#[tokio::test]
async fn made_up_tokens_of_an_address_are_one_flow_and_an_accepted_token_is_another() {
    const KEYS: &[u8] =
        br#"{"keys":[{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
        "y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#; // from RFC 7517, appendix A.1
    let mut upstream = FakeUpstream::start().await;
    let weir = start_fair_with(&upstream, |config| {
        let keys = KeySet::from_jwks(KEYS).unwrap();
        config.identity.verification.service_account_keys = Some(keys);
    })
    .await;
    let tokens = [
        ("Bearer made-up-1", 401),
        ("Bearer made-up-2", 401),
        ("Bearer of-a-webhook", 200),
        ("Bearer of-a-webhook", 200),
    ];
    let flows_of = send_and_list_flows(&weir, &mut upstream, &tokens).await;
    let [(shared, 3), (own, 1)] = &flows_of[..] else {
        panic!("{flows_of:?}");
    };
    assert_eq!(shared, "global-default/network:127.0.0.1");
    assert!(own.starts_with("global-default/token:"), "{own}");

    // If no token can be verified, all tokens count alike.
    let weir = start_fair(&upstream).await;
    let flows_of = send_and_list_flows(&weir, &mut upstream, &tokens[..2]).await;
    assert_eq!(flows_of.len(), 2, "{flows_of:?}");
}

#[tokio::test]
async fn an_open_watch_is_counted() {
    let mut upstream = FakeUpstream::start().await;
    let weir = start_fair(&upstream).await;
    let call = weir
        .alice(HttpVersion::Http2)
        .send(TestRequest::get("/api/v1/pods?watch=1"))
        .await;
    let mut exchange = upstream.next_exchange().await;
    exchange.send_head(200, &[]).await;
    let open = wait_for_rows(&weir, "by=resource", 1).await;
    assert_eq!(row_names(&open), [("watch pods", 1)]);
    drop(call);
    exchange.wait_for_cancel().await;
    weir.wait_for_metric("weir_client_connections", 0.0).await;
    let ended = wait_for_rows(&weir, "by=resource", 1).await;
    assert_eq!(
        row_names(&ended),
        [("watch pods", 1)],
        "it is not counted twice"
    );
}

#[tokio::test]
async fn a_tunnel_counts_the_bytes_sent_to_its_client() {
    let mut upstream = FakeUpstream::start().await;
    let weir = start_fair(&upstream).await;
    let mut near = weir.raw_http1().await;
    let exec = TestRequest::new("POST", "/api/v1/namespaces/a/pods/b/exec")
        .header(weir::ALICE.0, weir::ALICE.1)
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1");
    near.send(exec.to_http1()).await;
    let mut far = upstream.next_exchange().await.into_raw_http1();
    far.send(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
    )
    .await;
    assert_eq!(near.read_response_head().await.status, 101);
    let output = vec![7; 70_000];
    far.send(output.clone()).await;
    assert_eq!(
        near.reader.read_exactly(output.len()).await.unwrap(),
        output
    );
    near.send("what the client types is its own").await;
    far.reader.read_exactly(10).await.unwrap();
    drop((near, far));
    eventually("the tunnel's bytes are counted", async || {
        let top = top_talkers(&weir, "by=user&sort=bytes").await;
        let alice = top.rows.first()?;
        (alice.name == "alice" && alice.usage.bytes == 70_000).then_some(())
    })
    .await;
}

#[tokio::test]
async fn rejections_are_counted_by_user() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).limits(1, 1).start().await;
    let first = weir
        .alice(HttpVersion::Http2)
        .send(TestRequest::get(LIST))
        .await;
    let exchange = upstream.next_exchange().await;
    for _ in 0..3 {
        assert_eq!(weir.alice(HttpVersion::Http2).get(LIST).await.status, 429);
    }
    let rejected = wait_for_rows(&weir, "sort=rejections", 3).await;
    assert_eq!(
        (row_names(&rejected), rejected[0].usage.rejections),
        (vec![("alice", 3)], 3)
    );
    exchange.respond(200, "{}").await;
    assert_eq!(first.response().await.status, 200);
    let all = wait_for_rows(&weir, "sort=rejections", 4).await;
    assert_eq!(
        (row_names(&all), all[0].usage.rejections),
        (vec![("alice", 4)], 3)
    );
    assert_eq!(
        row_names(&wait_for_rows(&weir, "by=flow", 0).await),
        [],
        "there are none"
    );
}

#[tokio::test]
async fn invalid_parameters_are_a_400_that_lists_valid_ones() {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let response = weir
        .get_admin("/debug/top_talkers?window=1h&by=pods&limit=1000")
        .await;
    assert_eq!(response.status, 400);
    assert_eq!(
        response.text(),
        "window=1h: must be one of 1m, 5m, 60m\n\
         by=pods: must be one of flow, namespace, resource, sourceAddress, tag, user, userAgent\n\
         limit=1000: must be a number from 1 to 50\n"
    );
}
