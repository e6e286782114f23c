//! Compares the exposition with that of kube-apiserver 1.36.

use std::collections::{BTreeMap, BTreeSet};

use crate::flowcontrol::controller::tests::{POD, PODS, PolledAdmission, WATCH, one_level, queue};
use weir_base::clock::Clock;

/// Stability, name, type, labels and buckets of all metrics of kube-apiserver.
const UPSTREAM: &str = include_str!("../../../../tests/tools/prometheus/upstream.txt");

/// The lines of [`UPSTREAM`] for fairness metrics, without rare ones: `epoch_advance_total` has no
/// series until a level has been busy for millennia.
fn expected() -> String {
    let lines = UPSTREAM
        .lines()
        .map(|line| line.strip_prefix("maybe ").unwrap_or(line))
        .filter(|line| {
            let name = line.split(' ').nth(1).unwrap_or_default();
            !line.starts_with("absent ")
                && (name.starts_with("apiserver_flowcontrol_")
                    || name.starts_with("apiserver_current_in"))
                && !name.ends_with("_epoch_advance_total")
        });
    // A line without labels has a dash in their place.
    lines
        .map(|line| format!("{}\n", line.trim_end_matches(" -")))
        .collect()
}

/// Describes the metrics of an exposition in the format of [`UPSTREAM`].
fn describe_families(text: &str) -> String {
    let mut helps = BTreeMap::new();
    let mut lines = String::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' ')) {
            helps.insert(name, help);
        }
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' '))
        else {
            continue;
        };
        if name.starts_with("weir_") {
            continue;
        }
        let help = helps[name];
        let timing = help.strip_prefix("EXPERIMENTAL: ");
        let (stability, _) = timing.unwrap_or(help)[1..].split_once("] ").unwrap();
        let (mut labels, mut bounds) = (BTreeSet::new(), Vec::new());
        for sample in text.lines().filter(|l| l.starts_with(name)) {
            let rest = &sample[name.len()..];
            let of_this = ["{", " ", "_bucket{"]
                .iter()
                .any(|next| rest.starts_with(next));
            let Some((_, rest)) = rest.split_once('{').filter(|_| of_this) else {
                continue;
            };
            for pair in rest.rsplit_once('}').unwrap().0.split(',') {
                let (label, value) = pair.split_once('=').unwrap();
                let bound = value.trim_matches('"');
                if label != "le" {
                    labels.insert(label);
                } else if bound != "+Inf" && !bounds.contains(&bound) {
                    bounds.push(bound);
                }
            }
        }
        let labels: Vec<_> = labels.into_iter().collect();
        let parts = [stability, name, kind, &labels.join(","), &bounds.join(" ")].join(" ");
        lines += &format!("{}\n", parts.trim_end());
    }
    lines
}

#[tokio::test(start_paused = true)]
async fn every_metric_has_upstreams_name_type_labels_and_buckets() {
    let fixture = one_level(2, queue(1, 1));
    fixture.publish_peaks();
    let write = fixture.admit("a", "PUT", POD).await.unwrap();
    let watch = fixture.admit("a", "GET", WATCH).await.unwrap();
    let _waiting = fixture.get("b").expect_pending();
    assert!(fixture.admit("c", "GET", POD).await.is_err());
    drop(write);
    drop(watch);
    // A request that needs more seats than are free.
    fixture
        .controller
        .set_server_concurrency_limit(Clock.now(), 20);
    let mut watches = Vec::new();
    for _ in 0..11 {
        let mut watch = fixture.admit("w", "GET", WATCH).await.unwrap();
        watch.release();
        watches.push(watch);
    }
    let _held: Vec<_> = (0..18).map(|_| fixture.get_now("d")).collect();
    let _wide = PolledAdmission::new(fixture.admit("e", "POST", PODS)).expect_pending();
    assert_eq!(describe_families(&fixture.registry.render()), expected());
}
