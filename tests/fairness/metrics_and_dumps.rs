//! Metrics and dumps on the admin listener, as kube-apiserver has them.

use std::collections::{BTreeMap, BTreeSet};

use http::StatusCode;

use crate::LOAD_LOCK;
use crate::harness::{Harness, HarnessBuilder};
use crate::manifests::level_for;
use crate::scrape::Scrape;

/// Stability, name, type, labels and buckets of all metrics of kube-apiserver, from its reference.
const UPSTREAM_METRICS: &str = include_str!("../tools/prometheus/upstream.txt");

/// The metrics of fairness in [`UPSTREAM_METRICS`], except rare ones: `epoch_advance_total` has no
/// series until a level has been busy for millennia.
fn expected_metrics() -> Vec<&'static str> {
    let lines = UPSTREAM_METRICS
        .lines()
        .map(|line| line.strip_prefix("maybe ").unwrap_or(line))
        .filter(|line| {
            let name = line.split(' ').nth(1).unwrap_or_default();
            !line.starts_with("absent ")
                && (name.starts_with("apiserver_flowcontrol_")
                    || name.starts_with("apiserver_current_in"))
                && !name.ends_with("_epoch_advance_total")
        });
    // A metric without labels has a dash in their place.
    lines.map(|line| line.trim_end_matches(" -")).collect()
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DUMPS_PATH: &str = "/debug/api_priority_and_fairness";

/// The metrics of a scrape in the form of [`UPSTREAM_METRICS`].
fn metric_shapes(scrape: &Scrape) -> Vec<String> {
    let of_comments = |kind: &str| -> BTreeMap<String, String> {
        let lines = scrape.text().lines();
        let found = lines.filter_map(|line| line.strip_prefix(kind)?.split_once(' '));
        found.map(|(n, t)| (n.to_owned(), t.to_owned())).collect()
    };
    let (helps, types) = (of_comments("# HELP "), of_comments("# TYPE "));
    let ours = types.iter().filter(|(name, _)| {
        name.starts_with("apiserver_flowcontrol_") || name.starts_with("apiserver_current_in")
    });
    ours.map(|(name, kind)| {
        let help = helps[name].trim_start_matches("EXPERIMENTAL: ");
        let stability = help.split_once("] ").unwrap().0.trim_start_matches('[');
        let (mut labels, mut bounds) = (BTreeSet::new(), Vec::new());
        let bucket = format!("{name}_bucket");
        let own = |of: &str| of == name || of == bucket;
        for (label, value) in scrape
            .samples()
            .filter(|sample| own(sample.name))
            .flat_map(|sample| sample.labels().collect::<Vec<_>>())
        {
            if label != "le" {
                labels.insert(label);
            } else if value != "+Inf" && !bounds.contains(&value) {
                bounds.push(value);
            }
        }
        let labels: Vec<_> = labels.into_iter().collect();
        let parts = [stability, name, kind, &labels.join(","), &bounds.join(" ")];
        parts.join(" ").trim_end().to_owned()
    })
    .collect()
}

async fn wait_for_queued_request(harness: &Harness) {
    let one_waits = |scrape: &Scrape| scrape.level_sum("current_inqueue_requests", "devs") == 1.0;
    harness.scrape_until("a request to wait", one_waits).await;
}

#[tokio::test]
async fn every_metric_has_upstreams_name_type_labels_and_buckets() {
    let _others = LOAD_LOCK.read().await;
    // Twenty seats, and a queue for one request.
    let one = "{type: Queue, queuing: {queues: 1, handSize: 1, queueLengthLimit: 1}}";
    let harness = HarnessBuilder::default()
        .manifest("devs.yaml", level_for("dev", "devs", 245, one))
        .flag("--max-requests-inflight=20")
        .flag("--max-mutating-requests-inflight=20")
        .start()
        .await;
    let client = harness.client("alice");
    // All seats are in use, one request is queued, and another one is rejected.
    let mut writes = Vec::new();
    for _ in 0..20 {
        writes.push(client.hold_seat().await);
    }
    let waits = tokio::spawn({
        let client = client.clone();
        async move { client.get(CONFIG_MAPS).await }
    });
    wait_for_queued_request(&harness).await;
    let rejected = client.get(CONFIG_MAPS).await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    writes.truncate(1);
    assert_eq!(waits.await.unwrap().status, StatusCode::OK);
    // With eleven interested watches a write takes two seats.
    let mut watches = Vec::new();
    for _ in 0..11 {
        let mut connection = client.connect().await;
        let watch = connection
            .send_for_head(&format!("{CONFIG_MAPS}?watch=true"))
            .await;
        watches.push((connection, watch));
    }
    let initialized = "apiserver_flowcontrol_request_execution_seconds_count";
    harness
        .scrape_until("the watches to be initialized", |scrape| {
            scrape.sum(initialized, &[("type", "watch")]) == 11.0
        })
        .await;
    for _ in 0..9 {
        writes.push(client.hold_seat().await);
    }
    // One seat is left, which is not enough.
    let waits = tokio::spawn({
        let client = client.clone();
        async move { client.hold_seat().await }
    });
    wait_for_queued_request(&harness).await;
    // Published every second.
    let peaks = |scrape: &Scrape| scrape.sum("apiserver_current_inqueue_requests", &[]) == 1.0;
    let scrape = harness.scrape_until("the peaks", peaks).await;
    assert_eq!(metric_shapes(&scrape), expected_metrics());
    drop(writes);
    drop(waits.await.unwrap());
}

/// The cells of a table, by line. Each column must start at the same position in all lines.
fn table_cells(table: &str) -> Vec<Vec<&str>> {
    let begins = |line: &str| {
        let cells: Vec<_> = line.split_inclusive(',').collect();
        let widths = cells.iter().map(|cell| {
            let text = cell.trim_start();
            cell.len() - text.len()
        });
        // The position of each non-empty cell.
        let mut at = 0;
        cells
            .iter()
            .zip(widths)
            .map(|(cell, indent)| {
                let begin = at + indent;
                at += cell.len();
                (!cell.trim().trim_end_matches(',').is_empty()).then_some(begin)
            })
            .collect::<Vec<_>>()
    };
    let header = begins(table.lines().next().unwrap());
    let lines = table.lines().map(|line| {
        let own = begins(line);
        assert_eq!(own.len(), header.len(), "{table}");
        for (own, header) in own.iter().zip(&header) {
            assert!(own.is_none() || own == header, "{table}");
        }
        line.split(',').map(str::trim).collect()
    });
    lines.collect()
}

/// The lines of a priority level, without its name.
fn rows_of_level<'t>(table: &[Vec<&'t str>], level: &str) -> Vec<Vec<&'t str>> {
    let lines = table.iter().filter(|line| line[0] == level);
    lines.map(|line| line[1..].to_vec()).collect()
}

#[tokio::test]
async fn the_dumps_show_levels_queues_and_requests_as_upstream_does() {
    let _others = LOAD_LOCK.read().await;
    let two = "{type: Queue, queuing: {queues: 2, handSize: 1, queueLengthLimit: 5}}";
    let harness = HarnessBuilder::default()
        .manifest("devs.yaml", level_for("dev", "devs", 245, two))
        .flag("--max-requests-inflight=1")
        .flag("--max-mutating-requests-inflight=1")
        .start()
        .await;
    let held = harness.client("alice").hold_seat().await;
    let bob = harness.client("bob");
    let waits = tokio::spawn(async move { bob.get(CONFIG_MAPS).await });
    wait_for_queued_request(&harness).await;
    let dump = async |which| harness.get_admin(&format!("{DUMPS_PATH}/{which}")).await;
    assert_levels(&dump("dump_priority_levels").await);
    assert_queues(&dump("dump_queues").await);
    let plain = dump("dump_requests").await;
    assert_eq!(table_cells(&plain)[0].len(), 10);
    assert_requests(&dump("dump_requests?includeRequestDetails=1").await);
    drop(held);
    assert_eq!(waits.await.unwrap().status, StatusCode::OK);
}

/// Of the group devs one request executes and one is queued. No other request exists.
fn assert_levels(dump: &str) {
    assert!(dump.starts_with(
        "PriorityLevelName, ActiveQueues, IsIdle, IsQuiescing, WaitingRequests, ExecutingRequests, \
         DispatchedRequests, RejectedRequests, TimedoutRequests, CancelledRequests\n"
    ));
    let levels = table_cells(dump);
    let own = rows_of_level(&levels, "devs");
    assert_eq!(own, [["1", "false", "false", "1", "1", "1", "0", "0", "0"]]);
    let names: Vec<_> = levels[1..].iter().map(|line| line[0]).collect();
    assert_eq!(
        names,
        [
            "catch-all",
            "devs",
            "exempt",
            "global-default",
            "leader-election",
            "node-high",
            "system",
            "workload-high",
            "workload-low"
        ]
    );
}

/// The queued and the executing request are in one of two queues each.
fn assert_queues(dump: &str) {
    assert!(dump.starts_with(
        "PriorityLevelName, Index,  PendingRequests, ExecutingRequests, SeatsInUse, NextDispatchR"
    ));
    let queues = table_cells(dump);
    let own = rows_of_level(&queues, "devs");
    let indices: Vec<_> = own.iter().map(|line| line[0]).collect();
    assert_eq!(indices, ["0", "1"]);
    let sum = |column: usize| -> u32 {
        let numbers = own.iter().map(|line| line[column].parse::<u32>().unwrap());
        numbers.sum()
    };
    assert_eq!((sum(1), sum(2), sum(3)), (1, 1, 1));
    assert!(own.iter().all(|line| line[4].ends_with("ss")), "{own:?}");
}

/// alice's request executes, bob's is queued.
fn assert_requests(dump: &str) {
    let requests = table_cells(dump);
    assert_eq!(requests[0][4], "FlowDistingsher");
    let mut own = rows_of_level(&requests, "devs");
    own.sort_by_key(|line| line[3]);
    let [alice, bob] = &own[..] else {
        panic!("{own:?}");
    };
    assert_eq!((alice[0], alice[2], alice[3]), ("devs", "-1", "alice"));
    assert_eq!((bob[0], bob[2], bob[3]), ("devs", "0", "bob"));
    assert_eq!(bob[8], "0001-01-01T00:00:00Z");
    for time in [alice[4], alice[8], bob[4]] {
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    }
    assert_eq!(alice[5..8], ["1", "0", "0s"]);
    let of = |user, verb| {
        [
            user,
            verb,
            CONFIG_MAPS,
            "default",
            "",
            "v1",
            "configmaps",
            "",
        ]
    };
    assert_eq!(alice[9..], of("alice", "create"));
    assert_eq!(bob[9..], of("bob", "list"));
}
