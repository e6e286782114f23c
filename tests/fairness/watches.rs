//! A watch holds a seat until its initialization ends. After that it only counts as a watch.

use http::StatusCode;
use http_body_util::BodyExt;

use crate::LOAD_LOCK;
use crate::harness::{HarnessBuilder, within};
use crate::manifests::{REJECT, level_for};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The resource version of the existing objects.
fn resource_version(list: &[u8]) -> String {
    let list: serde_json::Value = serde_json::from_slice(list).unwrap();
    list["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn a_watch_releases_its_seat_when_it_is_initialized_and_continues() {
    let _others = LOAD_LOCK.read().await;
    // One seat.
    let harness = HarnessBuilder::default()
        .manifest("devs.yaml", level_for("dev", "devs", 245, REJECT))
        .flag("--max-requests-inflight=1")
        .flag("--max-mutating-requests-inflight=1")
        .start()
        .await;
    let client = harness.client("alice");
    let list = client.get(CONFIG_MAPS).await;
    assert_eq!(list.status, StatusCode::OK);
    let kinds = [
        // No initial events: released at the response head.
        format!("resourceVersion={}", resource_version(&list.body)),
        // Initial events and a bookmark: released at the bookmark.
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
            .to_owned(),
        // Initial events without a bookmark: released after a pause.
        "resourceVersion=0".to_owned(),
        String::new(),
    ];
    for (number, query) in kinds.into_iter().enumerate() {
        let target = format!("{CONFIG_MAPS}?watch=true&{query}");
        let mut connection = client.connect().await;
        let mut watch = connection.send_for_head(&target).await;
        assert_eq!(watch.status(), StatusCode::OK, "{query}");
        let initialized = f64::from(u32::try_from(number).unwrap()) + 1.0;
        let series = "apiserver_flowcontrol_request_execution_seconds_count";
        harness
            .scrape_until("a watch to be initialized", |scrape| {
                scrape.sum(series, &[("type", "watch")]) == initialized
                    && scrape.level_sum("current_executing_seats", "devs") == 0.0
            })
            .await;
        // The seat is free for another request, and the watch reports its event.
        let map = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"map-{number}"}}}}"#
        );
        let made = client.send("POST", CONFIG_MAPS, &map).await;
        assert_eq!(made.status, StatusCode::CREATED, "{query}: {made:?}");
        let wanted = format!("\"name\":\"map-{number}\"");
        within("an event", async {
            let mut seen = Vec::new();
            while !String::from_utf8_lossy(&seen).contains(&wanted) {
                let frame = watch.body_mut().frame().await.expect("an event");
                seen.extend_from_slice(frame.unwrap().data_ref().unwrap());
            }
        })
        .await;
    }
}
