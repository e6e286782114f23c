//! `retry_after`: the header's value for each of a sequence of rejections.

use std::collections::HashMap;

use weir_flowcontrol::retry_after::DroppedRequestsTracker;

use crate::support;

const NANOS_PER_SECOND: i64 = 1_000_000_000;

#[test]
fn every_dropped_request_gets_the_retry_after_of_upstream() {
    for case in support::cases("retry_after") {
        let mut levels: HashMap<&str, DroppedRequestsTracker> = HashMap::new();
        let retry_after: Vec<i64> = case["input"]["drops"]
            .as_array()
            .unwrap()
            .iter()
            .map(|drop| {
                let second = drop[0].as_i64().unwrap().div_euclid(NANOS_PER_SECOND);
                levels
                    .entry(drop[1].as_str().unwrap())
                    .or_default()
                    .record(second)
            })
            .collect();
        let expected = &case["expected"];
        assert_eq!(
            serde_json::json!(retry_after),
            expected["retry_after_s"],
            "{}",
            case["name"]
        );
        assert_eq!(
            DroppedRequestsTracker::default().retry_after(),
            expected["unknown_level"]
        );
    }
}
