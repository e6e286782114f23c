//! `work_estimate`: the seats of a request, and the object and watch counts that the estimate
//! needed.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test says so when a case is not as described"
)]

use std::cell::{Cell, RefCell};

use serde_json::{Value, json};
use weir_flowcontrol::work_estimator::{EstimateContext, ObjectStats, estimate};
use weir_kubernetes::request_info::RequestInfo;

use crate::support;

/// Returns the counts of a case, and records which ones were requested.
struct CaseEstimateContext<'c> {
    input: &'c Value,
    object_count_key: RefCell<Option<String>>,
    watch_count_consulted: Cell<bool>,
}

impl EstimateContext for CaseEstimateContext<'_> {
    fn consistent_reads_from_cache(&self) -> bool {
        self.input["consistent_read_supported"] == true
    }

    fn object_stats(&self, api_group: &[u8], resource: &[u8]) -> ObjectStats {
        let (group, resource) = (text(api_group), text(resource));
        let dot = if group.is_empty() { "" } else { "." };
        let before = self
            .object_count_key
            .replace(Some(format!("{resource}{dot}{group}")));
        assert_eq!(before, None, "asked twice");
        match self.input["object_stats"].as_str().unwrap() {
            "ok" => ObjectStats::Counted {
                count: self.input["object_count"].as_u64().unwrap(),
                average_size: self.input["average_object_size_bytes"]
                    .as_u64()
                    .unwrap_or(0),
            },
            "not_found" => ObjectStats::NotFound,
            // Upstream's values for stale counts. weir's counts do not become stale.
            "stale" | "error" => ObjectStats::Counted {
                count: 1_000_000_000,
                average_size: 1_500_000,
            },
            other => panic!("{other}"),
        }
    }

    fn interested_watches(&self, _: &RequestInfo<'_>) -> usize {
        assert!(!self.watch_count_consulted.replace(true), "asked twice");
        usize::try_from(self.input["watch_count"].as_u64().unwrap()).unwrap()
    }
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[test]
fn every_request_is_estimated_as_upstream() {
    for case in support::cases("work_estimate") {
        let input = &case["input"];
        let context = CaseEstimateContext {
            input,
            object_count_key: RefCell::default(),
            watch_count_consulted: Cell::default(),
        };
        let method = input["method"].as_str().unwrap();
        let target = input["url"].as_str().unwrap();
        let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
        let max_seats = u32::try_from(input["max_seats"].as_u64().unwrap()).unwrap();
        let work = estimate(&info, (max_seats != 0).then_some(max_seats), &context);
        let found = json!({
            "initial_seats": work.initial_seats,
            "final_seats": work.final_seats,
            "additional_latency_ns": u64::try_from(work.additional_latency.as_nanos()).unwrap(),
            "max_seats_occupied": work.max_seats(),
            "object_count_key": context.object_count_key.take(),
            "watch_count_consulted": context.watch_count_consulted.get(),
            "verb": info.verb().as_str(),
            "name": text(info.name()),
        });
        assert_eq!(found, case["expected"], "{input}");
    }
}
