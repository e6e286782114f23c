//! A watch holds a seat until it has sent what there was; from then on it is only counted.

use http::StatusCode;
use http_body_util::BodyExt;

use crate::LOAD_LOCK;
use crate::harness::HarnessBuilder;
use crate::harness::within;
use crate::manifests::REJECT;
use crate::manifests::level_for;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The version of what there is.
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
    let stand = HarnessBuilder::default()
        .manifest("devs.yaml", level_for("dev", "devs", 245, REJECT))
        .flag("--max-requests-inflight=1")
        .flag("--max-mutating-requests-inflight=1")
        .start()
        .await;
    let client = stand.client("alice");
    let list = client.get(CONFIG_MAPS).await;
    assert_eq!(list.status, StatusCode::OK);
    let kinds = [
        // Nothing is sent of what there was: at the headers.
        format!("resourceVersion={}", resource_version(&list.body)),
        // All there was, and a mark behind it.
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
            .to_owned(),
        // All there was, and no mark: after a lull.
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
        stand
            .scrape_until("a watch to be initialized", |scrape| {
                scrape.sum(series, &[("type", "watch")]) == initialized
                    && scrape.level_sum("current_executing_seats", "devs") == 0.0
            })
            .await;
        // There is a seat for somebody else, and the watch tells of it.
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
