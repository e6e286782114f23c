//! The delay of a request before it reaches its priority level does not count for the level.

use http::StatusCode;
use tokio::time::Instant;

use crate::LOAD_LOCK;
use crate::harness::HarnessBuilder;

const USER: &str = "system:serviceaccount:default:controller";

/// One request a second.
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
    let harness = setup.config(DELAYING_CONFIG).start().await;
    let mut connection = harness.client(USER).connect().await;
    let began = Instant::now();
    for _ in 0..2 {
        let response = connection.send("GET", "/api/v1/nodes", "").await;
        assert_eq!(response.status, StatusCode::OK, "{response:?}");
    }
    let waited = began.elapsed().as_secs_f64();
    assert!(waited > 0.9, "{waited}");
    let scrape = harness.scrape().await;
    let fairness = [("filter", "priorityandfairness")];
    let sum = |name: &str| {
        scrape.sum(
            &format!("apiserver_request_filter_duration_seconds_{name}"),
            &fairness,
        )
    };
    assert_eq!(sum("count"), 2.0);
    // Part of the delay; a busy machine may well spend this much time elsewhere.
    assert!(sum("sum") < waited / 2.0, "{} of {waited} s", sum("sum"));
}
