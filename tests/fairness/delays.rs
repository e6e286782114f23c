//! What a request waits for before it comes to its level is not the level's time.

use http::StatusCode;
use tokio::time::Instant;

use crate::LOAD_LOCK;
use crate::harness::HarnessBuilder;

const USER: &str = "system:serviceaccount:default:controller";

/// A request a second.
const DELAYING_CONFIG: &str = "
clientLimits:
- name: slow
  rules:
  - subjects: [{kind: ServiceAccount, serviceAccount: {namespace: default, name: controller}}]
    resourceRules: [{verbs: ['*'], apiGroups: ['*'], resources: ['*'], namespaces: ['*'], clusterScope: true}]
  requests: {qps: 1, burst: 1}
  limitResponse: Delay
  maxDelay: 10s
";

#[tokio::test]
async fn a_client_limit_s_delay_does_not_count_as_seat_wait() {
    let _shared = LOAD_LOCK.read().await;
    let setup = HarnessBuilder::default().user(USER, "system:serviceaccounts");
    let stand = setup.config(DELAYING_CONFIG).start().await;
    let mut connection = stand.client(USER).connect().await;
    let began = Instant::now();
    for _ in 0..2 {
        let answer = connection.send("GET", "/api/v1/nodes", "").await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    }
    let waited = began.elapsed().as_secs_f64();
    assert!(waited > 0.9, "{waited}");
    let scrape = stand.scrape().await;
    let fairness = [("filter", "priorityandfairness")];
    let sum = |name: &str| {
        scrape.sum(
            &format!("apiserver_request_filter_duration_seconds_{name}"),
            &fairness,
        )
    };
    assert_eq!(sum("count"), 2.0);
    // A part of the delay's, which a busy machine may well take for everything else.
    assert!(sum("sum") < waited / 2.0, "{} of {waited} s", sum("sum"));
}
