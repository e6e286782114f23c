//! The responses and metrics that report the number of objects.

use super::*;

#[tokio::test]
async fn a_limited_list_counts_the_remaining_items_and_version_0_ignores_the_limit() {
    let test_server = start(PlaygroundSettings::default()).await;
    let list = async |query: &str| {
        let path = format!("/api/v1/pods?{query}");
        let (_, pods) = test_server
            .send("alice", Method::GET, &path, &Value::Null)
            .await;
        let items = pods["items"].as_array().unwrap().len();
        let metadata = &pods["metadata"];
        let continues = metadata.get("continue").is_some();
        (items, continues, metadata["remainingItemCount"].as_u64())
    };
    assert_eq!(list("limit=1").await, (1, true, Some(19)));
    assert_eq!(list("limit=20").await, (20, false, None));
    assert_eq!(list("limit=1&labelSelector=app").await.2, None);
    for version_0 in [
        "limit=1&resourceVersion=0",
        "limit=1&resourceVersion=0&resourceVersionMatch=NotOlderThan",
    ] {
        assert_eq!(list(version_0).await, (20, false, None), "{version_0}");
    }
}

#[tokio::test]
async fn metrics_report_object_counts_and_sizes_except_the_size_of_events() {
    let test_server = start(PlaygroundSettings::default()).await;
    let bytes = test_server.server.object_bytes("pods").unwrap();
    let (_, metrics) = test_server
        .send("admin", Method::GET, "/metrics", &Value::Null)
        .await;
    let metrics = metrics.as_str().unwrap();
    for line in [
        "apiserver_resource_objects{group=\"\",resource=\"pods\"} 20".to_owned(),
        format!("apiserver_resource_size_estimate_bytes{{group=\"\",resource=\"pods\"}} {bytes}"),
        "apiserver_resource_objects{group=\"coordination.k8s.io\",resource=\"leases\"} ".to_owned(),
        "apiserver_resource_size_estimate_bytes{group=\"\",resource=\"events\"} -1".to_owned(),
    ] {
        let found = metrics.lines().any(|found| found.starts_with(&line));
        assert!(found, "{line}: {metrics}");
    }
    assert!(!metrics.contains("events.k8s.io"), "the core group's");
}
