//! The definitions of the metrics. Their help texts begin with Kubernetes' stability mark.

use prometheus::proto::MetricType;

use super::view::{LevelMetricFamily, add_nonempty_histogram};
use crate::flowcontrol::level::SchemaCounters;
use weir_base::samples::MetricSpec;
use weir_kubernetes::numeric::to_f64;

const LEVEL_LABELS: &[&str] = &["priority_level"];
const SCHEMA_LABELS: &[&str] = &["flow_schema", "priority_level"];

const COUNTER: MetricType = MetricType::COUNTER;
const GAUGE: MetricType = MetricType::GAUGE;
const HISTOGRAM: MetricType = MetricType::HISTOGRAM;

pub(super) const FAMILIES: &[LevelMetricFamily] = &[
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_current_executing_requests",
            kind: GAUGE,
            labels: SCHEMA_LABELS,
            help: "[BETA] Requests that run now (watches only until they are initialized)",
        },
        collect: |view, samples| view.add_gauges(samples, has_run, |counters| counters.executing),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_current_executing_seats",
            kind: GAUGE,
            labels: SCHEMA_LABELS,
            help: "[BETA] Seats taken now, by requests that run (watches only until they are initialized) and by what follows from those that ran",
        },
        collect: |view, samples| {
            view.add_gauges(samples, has_run, |counters| counters.executing_seats)
        },
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_current_inqueue_requests",
            kind: GAUGE,
            labels: SCHEMA_LABELS,
            help: "[BETA] Requests that wait now",
        },
        collect: |view, samples| view.add_gauges(samples, has_queued, |counters| counters.waiting),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_current_inqueue_seats",
            kind: GAUGE,
            labels: SCHEMA_LABELS,
            help: "[ALPHA] Seats that waiting requests will need",
        },
        collect: |view, samples| {
            view.add_gauges(samples, has_queued, |counters| counters.waiting_seats)
        },
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_current_limit_seats",
            kind: GAUGE,
            labels: LEVEL_LABELS,
            help: "[ALPHA] Seats that the level has now, with what it borrows and without what it lends",
        },
        collect: |view, samples| view.add_seat_gauges(samples, |seats| seats.current_limit.into()),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_current_r",
            kind: GAUGE,
            labels: LEVEL_LABELS,
            help: "[ALPHA] Virtual time of the level at its last change, in seat-seconds",
        },
        collect: |view, samples| {
            for (name, level) in &view.levels {
                samples.add_value(&[name], level.current_r.as_f64());
            }
        },
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_demand_seats",
            kind: HISTOGRAM,
            labels: LEVEL_LABELS,
            help: "EXPERIMENTAL: [ALPHA] Nanoseconds by the seats that the level could use, as a fraction of those it has",
        },
        collect: |view, samples| {
            let now = view.now;
            for (name, level) in &mut view.levels {
                samples.add_histogram(&[name], level.counters.utilization.demand.read(now));
            }
        },
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_demand_seats_average",
            kind: GAUGE,
            labels: LEVEL_LABELS,
            help: "[ALPHA] Seats that the level could use, on average over the last period of borrowing",
        },
        collect: |view, samples| view.add_seat_gauges(samples, |seats| seats.demand.average),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_demand_seats_high_watermark",
            kind: GAUGE,
            labels: LEVEL_LABELS,
            help: "[ALPHA] Most seats that the level could use at once in the last period of borrowing",
        },
        collect: |view, samples| {
            view.add_seat_gauges(samples, |seats| seats.demand.high_watermark.into())
        },
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_demand_seats_smoothed",
            kind: GAUGE,
            labels: LEVEL_LABELS,
            help: "[ALPHA] Smoothed seat demand of the level: a rise counts at once, a fall with delay",
        },
        collect: |view, samples| view.add_seat_gauges(samples, |seats| seats.demand.smoothed),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_demand_seats_stdev",
            kind: GAUGE,
            labels: LEVEL_LABELS,
            help: "[ALPHA] Standard deviation over time of the seats that the level could use, in the last period of borrowing",
        },
        collect: |view, samples| view.add_seat_gauges(samples, |seats| seats.demand.deviation),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_dispatch_r",
            kind: GAUGE,
            labels: LEVEL_LABELS,
            help: "[ALPHA] Virtual time of the level at its last dispatch, in seat-seconds",
        },
        collect: |view, samples| view.add_dispatch_gauges(samples, |last| last.r),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_dispatched_requests_total",
            kind: COUNTER,
            labels: SCHEMA_LABELS,
            help: "[BETA] Requests that were dispatched",
        },
        collect: |view, samples| view.add_counters(samples, |counters| counters.dispatched),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_epoch_advance_total",
            kind: COUNTER,
            labels: &["priority_level", "success"],
            help: "[ALPHA] Times that the virtual time of the level was wound back",
        },
        collect: |view, samples| {
            for (name, level) in &view.levels {
                for (success, times) in ["false", "true"]
                    .into_iter()
                    .zip(level.counters.epoch_advances)
                {
                    if times > 0 {
                        samples.add_value(&[name, success], to_f64(times));
                    }
                }
            }
        },
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_latest_s",
            kind: GAUGE,
            labels: LEVEL_LABELS,
            help: "[ALPHA] Virtual start of the request that was dispatched last, in seat-seconds",
        },
        collect: |view, samples| view.add_dispatch_gauges(samples, |last| last.s),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_lower_limit_seats",
            kind: GAUGE,
            labels: LEVEL_LABELS,
            help: "[ALPHA] Seats that the level keeps whatever others need",
        },
        collect: |view, samples| view.add_seat_gauges(samples, |seats| seats.limits.lower.into()),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_next_discounted_s_bounds",
            kind: GAUGE,
            labels: &["bound", "priority_level"],
            help: "[ALPHA] Least and greatest virtual start over the queues with waiting requests, less the expected work of executing requests",
        },
        collect: |view, samples| view.add_bounds_gauges(samples, |last| last.discounted_s_bounds),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_next_s_bounds",
            kind: GAUGE,
            labels: &["bound", "priority_level"],
            help: "[ALPHA] Least and greatest virtual start over the queues with waiting requests",
        },
        collect: |view, samples| view.add_bounds_gauges(samples, |last| last.s_bounds),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_nominal_limit_seats",
            kind: GAUGE,
            labels: LEVEL_LABELS,
            help: "[BETA] Seats that the level has by its shares",
        },
        collect: |view, samples| view.add_seat_gauges(samples, |seats| seats.limits.nominal.into()),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_priority_level_request_utilization",
            kind: HISTOGRAM,
            labels: &["phase", "priority_level"],
            help: "EXPERIMENTAL: [ALPHA] Nanoseconds by the requests that waited or ran (watches only until they are initialized), as a fraction of the most there can be",
        },
        collect: |view, samples| {
            let now = view.now;
            for (name, level) in &mut view.levels {
                let ratios = &mut level.counters.utilization;
                samples.add_histogram(&["executing", name], ratios.executing.read(now));
                samples.add_histogram(&["waiting", name], ratios.waiting.read(now));
            }
        },
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_priority_level_seat_utilization",
            kind: HISTOGRAM,
            labels: &["phase", "priority_level"],
            help: "EXPERIMENTAL: [ALPHA] Nanoseconds by the seats that were taken, as a fraction of those there are",
        },
        collect: |view, samples| {
            let now = view.now;
            for (name, level) in &mut view.levels {
                samples.add_histogram(
                    &["executing", name],
                    level.counters.utilization.seats.read(now),
                );
            }
        },
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_rejected_requests_total",
            kind: COUNTER,
            labels: &["flow_schema", "priority_level", "reason"],
            help: "[BETA] Requests that were rejected",
        },
        collect: |view, samples| {
            for ([schema, level], counters) in view.schema_counters() {
                for (reason, times) in counters
                    .rejected
                    .into_iter()
                    .filter(|(_, times)| *times > 0)
                {
                    samples.add_value(&[schema, level, reason.label()], to_f64(times));
                }
            }
        },
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_request_dispatch_no_accommodation_total",
            kind: COUNTER,
            labels: SCHEMA_LABELS,
            help: "[ALPHA] Times that the next request in line found too few free seats",
        },
        collect: |view, samples| view.add_counters(samples, |counters| counters.no_accommodation),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_request_execution_seconds",
            kind: HISTOGRAM,
            labels: &["flow_schema", "priority_level", "type"],
            help: "[ALPHA] Time that requests ran (watches: until they were initialized)",
        },
        collect: |view, samples| {
            for ([schema, level], counters) in view.schema_counters() {
                add_nonempty_histogram(samples, &[schema, level, "regular"], &counters.executions);
                add_nonempty_histogram(
                    samples,
                    &[schema, level, "watch"],
                    &counters.watch_initializations,
                );
            }
        },
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_request_queue_length_after_enqueue",
            kind: HISTOGRAM,
            labels: SCHEMA_LABELS,
            help: "[ALPHA] Length of the queue that a request joined, as it found it with itself",
        },
        collect: |view, samples| view.add_histograms(samples, |counters| &counters.queue_lengths),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_request_wait_duration_seconds",
            kind: HISTOGRAM,
            labels: &["execute", "flow_schema", "priority_level"],
            help: "[BETA] Time that requests spent in a queue",
        },
        collect: |view, samples| {
            for ([schema, level], counters) in view.schema_counters() {
                add_nonempty_histogram(
                    samples,
                    &["false", schema, level],
                    &counters.rejected_waits,
                );
                add_nonempty_histogram(samples, &["true", schema, level], &counters.waits);
            }
        },
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_seat_fair_frac",
            kind: GAUGE,
            labels: &[],
            help: "[ALPHA] Fraction of its target that each level gets unless a bound limits it",
        },
        collect: |view, samples| {
            if let Some(fraction) = view.fair_fraction {
                samples.add_value(&[], fraction);
            }
        },
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_target_seats",
            kind: GAUGE,
            labels: LEVEL_LABELS,
            help: "[ALPHA] Seats that the level would have if there were enough",
        },
        collect: |view, samples| view.add_seat_gauges(samples, |seats| seats.target),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_upper_limit_seats",
            kind: GAUGE,
            labels: LEVEL_LABELS,
            help: "[ALPHA] Most seats that the level may have with what it borrows",
        },
        collect: |view, samples| view.add_seat_gauges(samples, |seats| seats.limits.upper.into()),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_watch_count_samples",
            kind: HISTOGRAM,
            labels: SCHEMA_LABELS,
            help: "[ALPHA] Watches that a write concerns, as estimated",
        },
        collect: |view, samples| view.add_histograms(samples, |counters| &counters.watch_counts),
    },
    LevelMetricFamily {
        spec: MetricSpec {
            name: "apiserver_flowcontrol_work_estimated_seats",
            kind: HISTOGRAM,
            labels: SCHEMA_LABELS,
            help: "[ALPHA] Seats that requests were estimated to need, the more of while they run and after it",
        },
        collect: |view, samples| view.add_histograms(samples, |counters| &counters.estimated_seats),
    },
];

fn has_run(counters: &SchemaCounters) -> bool {
    counters.dispatched > 0
}

fn has_queued(counters: &SchemaCounters) -> bool {
    counters.queue_lengths.count() > 0
}
