//! `watch_tracker`: watches that start and end, and the number that is interested in a write.

#![expect(
    clippy::unwrap_used,
    reason = "a test says so when a case is not as described"
)]

use serde_json::{Value, json};
use weir_flowcontrol::work_estimator::watch_tracker::WatchTracker;
use weir_kubernetes::request_info::RequestInfo;

use crate::support;

#[test]
fn the_number_of_interested_watches_is_upstream_s() {
    for case in support::cases("watch_tracker") {
        let mut tracker = WatchTracker::default();
        let mut registered = Vec::new();
        let operations = case["input"]["ops"].as_array().unwrap();
        let results = case["expected"]["results"].as_array().unwrap();
        assert_eq!(operations.len(), results.len());
        for (operation, expected) in operations.iter().zip(results) {
            let found = match operation["op"].as_str().unwrap() {
                "register" => {
                    registered.push(tracker.register(&info(operation)));
                    json!(registered.last().is_some_and(Option::is_some))
                }
                "forget" => {
                    let index = operation["register_index"].as_u64().unwrap();
                    if let Some(registration) = registered[usize::try_from(index).unwrap()].take() {
                        tracker.unregister(registration);
                    }
                    json!(null)
                }
                "query" => json!(tracker.interested_watches(&info(operation))),
                other => panic!("{other}"),
            };
            assert_eq!(&found, expected, "{operation}");
        }
    }
}

fn info(operation: &Value) -> RequestInfo<'_> {
    let method = operation["method"].as_str().unwrap();
    let target = operation["url"].as_str().unwrap();
    RequestInfo::parse(method, target.as_bytes()).unwrap()
}
