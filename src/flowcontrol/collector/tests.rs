//! The exposition against what a kube-apiserver 1.36 shows.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::clock::Clock;
use crate::flowcontrol::controller::tests::POD;
use crate::flowcontrol::controller::tests::PODS;
use crate::flowcontrol::controller::tests::PolledAdmission;
use crate::flowcontrol::controller::tests::WATCH;
use crate::flowcontrol::controller::tests::one_level;
use crate::flowcontrol::controller::tests::queue;

/// Stability, name, type, labels, buckets: of all that kube-apiserver shows.
const UPSTREAM: &str = include_str!("../../../tests/tools/prometheus/upstream.txt");

/// What of [`UPSTREAM`] is fairness', without what is seldom there: `epoch_advance_total` has no series until a level has been
/// busy for millennia.
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

/// What a text says of its metrics, in the form of [`UPSTREAM`].
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
    let world = one_level(2, queue(1, 1));
    world.controller.publish_peaks();
    let write = world.admit("a", "PUT", POD).await.unwrap();
    let watch = world.admit("a", "GET", WATCH).await.unwrap();
    let _waiting = world.get("b").expect_pending();
    assert!(world.admit("c", "GET", POD).await.is_err());
    drop(write);
    drop(watch);
    // One that needs more seats than are free.
    world
        .controller
        .set_server_concurrency_limit(Clock.now(), 20);
    let mut watches = Vec::new();
    for _ in 0..11 {
        let mut watch = world.admit("w", "GET", WATCH).await.unwrap();
        watch.mark_initialized();
        watches.push(watch);
    }
    let _held: Vec<_> = (0..18).map(|_| world.get_now("d")).collect();
    let _wide = PolledAdmission::new(world.admit("e", "POST", PODS)).expect_pending();
    assert_eq!(describe_families(&world.registry.render()), expected());
}
