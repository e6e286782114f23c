//! The exposition against what a kube-apiserver 1.36 shows.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::clock::Clock;
use crate::flowcontrol::controller::tests::POD;
use crate::flowcontrol::controller::tests::PODS;
use crate::flowcontrol::controller::tests::Step;
use crate::flowcontrol::controller::tests::WATCH;
use crate::flowcontrol::controller::tests::one_level;
use crate::flowcontrol::controller::tests::queue;

/// Stability, name, type, labels, buckets. `epoch_advance_total` has no series until a level has
/// been busy for millennia.
const UPSTREAM: &str = "
STABLE apiserver_current_inflight_requests gauge request_kind
ALPHA apiserver_current_inqueue_requests gauge request_kind
BETA apiserver_flowcontrol_current_executing_requests gauge flow_schema,priority_level
BETA apiserver_flowcontrol_current_executing_seats gauge flow_schema,priority_level
BETA apiserver_flowcontrol_current_inqueue_requests gauge flow_schema,priority_level
ALPHA apiserver_flowcontrol_current_inqueue_seats gauge flow_schema,priority_level
ALPHA apiserver_flowcontrol_current_limit_seats gauge priority_level
ALPHA apiserver_flowcontrol_current_r gauge priority_level
ALPHA apiserver_flowcontrol_demand_seats histogram priority_level 0.2 0.4 0.6 0.8 1 1.2 1.4 1.7 2 2.8 4 6
ALPHA apiserver_flowcontrol_demand_seats_average gauge priority_level
ALPHA apiserver_flowcontrol_demand_seats_high_watermark gauge priority_level
ALPHA apiserver_flowcontrol_demand_seats_smoothed gauge priority_level
ALPHA apiserver_flowcontrol_demand_seats_stdev gauge priority_level
ALPHA apiserver_flowcontrol_dispatch_r gauge priority_level
BETA apiserver_flowcontrol_dispatched_requests_total counter flow_schema,priority_level
ALPHA apiserver_flowcontrol_latest_s gauge priority_level
ALPHA apiserver_flowcontrol_lower_limit_seats gauge priority_level
ALPHA apiserver_flowcontrol_next_discounted_s_bounds gauge bound,priority_level
ALPHA apiserver_flowcontrol_next_s_bounds gauge bound,priority_level
BETA apiserver_flowcontrol_nominal_limit_seats gauge priority_level
ALPHA apiserver_flowcontrol_priority_level_request_utilization histogram phase,priority_level 0 0.001 0.003 0.01 0.03 0.1 0.25 0.5 0.75 1
ALPHA apiserver_flowcontrol_priority_level_seat_utilization histogram phase,priority_level 0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 0.95 0.99 1
ALPHA apiserver_flowcontrol_read_vs_write_current_requests histogram phase,request_kind 0 0.001 0.01 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 0.95 0.99 1
BETA apiserver_flowcontrol_rejected_requests_total counter flow_schema,priority_level,reason
ALPHA apiserver_flowcontrol_request_dispatch_no_accommodation_total counter flow_schema,priority_level
ALPHA apiserver_flowcontrol_request_execution_seconds histogram flow_schema,priority_level,type 0 0.005 0.02 0.05 0.1 0.2 0.5 1 2 5 10 15 30
ALPHA apiserver_flowcontrol_request_queue_length_after_enqueue histogram flow_schema,priority_level 0 10 25 50 100 250 500 1000
BETA apiserver_flowcontrol_request_wait_duration_seconds histogram execute,flow_schema,priority_level 0 0.005 0.02 0.05 0.1 0.2 0.5 1 2 5 10 15 30
ALPHA apiserver_flowcontrol_seat_fair_frac gauge
ALPHA apiserver_flowcontrol_target_seats gauge priority_level
ALPHA apiserver_flowcontrol_upper_limit_seats gauge priority_level
ALPHA apiserver_flowcontrol_watch_count_samples histogram flow_schema,priority_level 0 1 10 100 1000 10000
ALPHA apiserver_flowcontrol_work_estimated_seats histogram flow_schema,priority_level 1 2 4 8 16 32 64 100
";

/// What a text says of its metrics, in the form of [`UPSTREAM`].
fn shapes(text: &str) -> String {
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
        lines += &format!("\n{}", parts.trim_end());
    }
    lines + "\n"
}

#[tokio::test(start_paused = true)]
async fn every_metric_has_upstreams_name_type_labels_and_buckets() {
    let world = one_level(2, queue(1, 1));
    world.controller.publish_peaks();
    let write = world.admit("a", "PUT", POD).await.unwrap();
    let watch = world.admit("a", "GET", WATCH).await.unwrap();
    let _waiting = world.get("b").begin();
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
        watch.initialized();
        watches.push(watch);
    }
    let _held: Vec<_> = (0..18).map(|_| world.get_now("d")).collect();
    let _wide = Step::of(world.admit("e", "POST", PODS)).begin();
    assert_eq!(shapes(&world.registry.render()), UPSTREAM);
}
