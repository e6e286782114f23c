//! Three times the load that the seats can serve: executing requests never exceed the total, and
//! every request ends once.

use std::time::Duration;

use http::StatusCode;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

use crate::client::send_http2;
use crate::harness::{Harness, HarnessBuilder};
use crate::scrape::Scrape;
use crate::{LOAD_LOCK, env_number};

/// A total that gives every built-in priority level a whole number of seats: they have 245 shares.
const TOTAL: usize = 49;
const SERVICE_TIME: Duration = Duration::from_millis(100);
/// Three times the capacity of 49 seats, in batches of a few milliseconds.
const TICK: Duration = Duration::from_millis(4);
const REQUESTS_PER_TICK: usize = 6;
/// Gives a user twice as many streams, 100 for each connection, as a flow can have queued requests:
/// 6 queues of 50.
const CONNECTIONS: usize = 6 * USERS.len();

/// Users of four priority levels.
const USERS: [(&str, &str); 8] = [
    ("system:serviceaccount:a:one", "system:serviceaccounts"),
    ("system:serviceaccount:b:two", "system:serviceaccounts"),
    ("system:node:one", "system:nodes"),
    ("system:node:two", "system:nodes"),
    ("system:kube-controller-manager", "managers"),
    ("system:kube-scheduler", "managers"),
    ("somebody", "people"),
    ("somebody-else", "people"),
];

/// The requests: a read of one object, a list, a write.
const REQUESTS: [(&str, &str, &str); 3] = [
    ("GET", "/api/v1/namespaces/default", ""),
    ("GET", "/api/v1/namespaces/default/pods?limit=1", ""),
    (
        "PATCH",
        "/api/v1/namespaces/default",
        r#"{"metadata":{"labels":{"flooded":"true"}}}"#,
    ),
];

/// The results of the requests.
#[derive(Default)]
struct FloodOutcomes {
    sent: u64,
    served: u64,
    rejected: u64,
}

impl FloodOutcomes {
    fn record(&mut self, status: StatusCode) {
        match status {
            StatusCode::OK => self.served += 1,
            StatusCode::TOO_MANY_REQUESTS => self.rejected += 1,
            other => panic!("{other}"),
        }
    }
}

/// Sends at a constant rate, whatever the responses are, and waits for every response.
async fn flood(harness: &Harness, time: Duration) -> FloodOutcomes {
    let mut connections = Vec::new();
    for number in 0..CONNECTIONS {
        let client = harness.client(USERS[number % USERS.len()].0);
        connections.push((client.connect_http2().await, client));
    }
    let (mut outcomes, mut responses) = (FloodOutcomes::default(), JoinSet::new());
    let mut ticks = interval(TICK);
    let begin = Instant::now();
    while begin.elapsed() < time {
        ticks.tick().await; // missed ticks are caught up
        for _ in 0..REQUESTS_PER_TICK {
            let number = usize::try_from(outcomes.sent).unwrap();
            let (sender, client) = &connections[number % CONNECTIONS];
            let (method, target, body) = REQUESTS[number / CONNECTIONS % REQUESTS.len()];
            let mut request = client.request(method, target, body);
            if method == "PATCH" {
                let merge = "application/merge-patch+json".parse().unwrap();
                request.headers_mut().insert("content-type", merge);
            }
            responses.spawn(send_http2(sender.clone(), request));
            outcomes.sent += 1;
        }
        while let Some(response) = responses.try_join_next() {
            outcomes.record(response.unwrap().status);
        }
    }
    println!(
        "sent {} in {:.1} s",
        outcomes.sent,
        begin.elapsed().as_secs_f64()
    );
    while let Some(response) = responses.join_next().await {
        outcomes.record(response.unwrap().status);
    }
    outcomes
}

#[tokio::test]
async fn a_flood_never_exceeds_the_total_and_every_request_ends_once() {
    let _alone = LOAD_LOCK.write().await;
    let setup = USERS
        .iter()
        .fold(HarnessBuilder::default(), |setup, (name, group)| {
            setup.user(*name, group)
        });
    let harness = setup
        .service_time(SERVICE_TIME)
        .flag("--max-requests-inflight=30")
        .flag(format!("--max-mutating-requests-inflight={}", TOTAL - 30))
        .start()
        .await;
    let seconds = env_number("WEIR_FLOOD_SECONDS", 10);
    let outcomes = flood(&harness, Duration::from_secs(seconds.into())).await;
    let (sent, served, rejected) = (outcomes.sent, outcomes.served, outcomes.rejected);
    let upstream = harness.counters();
    println!(
        "{served} served, {rejected} rejected; at most {} at once of {TOTAL}",
        upstream.max_in_flight
    );
    assert_eq!(served + rejected, sent);
    assert!(rejected > 0, "that was no flood");
    assert!(upstream.max_in_flight <= TOTAL);
    assert_eq!(upstream.rejected, 0);

    let at_rest = |name: &str| format!("apiserver_flowcontrol_{name}");
    let rest = [
        at_rest("current_executing_requests"),
        at_rest("current_executing_seats"),
        at_rest("current_inqueue_requests"),
    ];
    let scrape = harness
        .scrape_until("all to end", |scrape| {
            rest.iter().all(|name| scrape.sum(name, &[]) == 0.0)
        })
        .await;
    // weir's own requests come on top, perhaps between two scrapes.
    let on_top = |scrape: &Scrape| {
        let own = scrape.sum("rest_client_requests_total", &[])
            + scrape.sum("weir_front_proxy_probes_total", &[]);
        format!("{own}") == (harness.counters().requests - served).to_string()
    };
    harness.scrape_until("all to be counted", on_top).await;
    let counts = |name: &str, labels: &[(&str, &str)]| {
        let value = scrape.sum(name, labels);
        assert_eq!(value.fract(), 0.0);
        format!("{value}")
    };
    let [served, rejected, sent] = [served, rejected, sent].map(|count| count.to_string());
    let fairness = |name: &str| counts(&at_rest(name), &[]);
    assert_eq!(fairness("dispatched_requests_total"), served);
    assert_eq!(fairness("rejected_requests_total"), rejected);
    assert_eq!(fairness("request_execution_seconds_count"), served);
    assert_eq!(fairness("request_wait_duration_seconds_count"), sent);
    assert_eq!(fairness("work_estimated_seats_count"), sent);
    assert_eq!(counts("weir_upstream_responses_total", &[]), served);
    assert_eq!(counts("apiserver_request_total", &[]), sent);
    let refusals = [("code", "429")];
    assert_eq!(counts("apiserver_request_total", &refusals), rejected);
    let ended = counts("apiserver_request_terminations_total", &refusals);
    assert_eq!(ended, rejected);
}
