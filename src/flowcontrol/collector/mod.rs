//! `apiserver_flowcontrol_*`: what kube-apiserver 1.36 shows of API Priority and Fairness, under the
//! same names, with the same labels and buckets.
//!
//! Everything is read from the levels when somebody looks; each level's numbers are of one instant.
//! As upstream, a series begins with the first event that it counts, and does not end with its
//! level. Left out are the metrics that upstream hides by default since they are deprecated.
//! `read_vs_write_current_requests` is shown by `in_flight`.

mod families;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use prometheus::core::Collector;
use prometheus::core::Desc;
use prometheus::proto::MetricFamily;

use self::families::FAMILIES;

use crate::clock::Clock;
use crate::flowcontrol::concurrency::LevelSeats as Seats;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::fairqueuing::queue_set::LastDispatch;
use crate::flowcontrol::fairqueuing::seats::SeatSeconds;
use crate::flowcontrol::level::LevelMetrics;
use crate::flowcontrol::level::SchemaCounters;
use crate::flowcontrol::metrics::histogram::Histogram;
use crate::flowcontrol::metrics::samples::MetricSamples;
use crate::flowcontrol::metrics::samples::MetricSpec;
use crate::metrics::Registry;

/// A metric, and how to find its samples.
struct LevelMetricFamily {
    spec: MetricSpec,
    collect: fn(&mut LevelsView, &mut MetricSamples),
}

/// All levels at (almost) one instant.
struct LevelsView {
    now: Instant,
    levels: Vec<(String, LevelMetrics)>,
    fair_fraction: f64,
}

/// Shows all families of one controller.
struct LevelCollector {
    controller: Arc<Controller>,
    descs: Vec<Desc>,
}

/// Shows the controller in `registry`.
pub(super) fn register(controller: &Arc<Controller>, registry: &Registry) {
    registry.register_collector(LevelCollector {
        controller: Arc::clone(controller),
        descs: FAMILIES.iter().map(|family| family.spec.desc()).collect(),
    });
}

impl Collector for LevelCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let (levels, fair_fraction) = self.controller.levels_and_fair_fraction();
        let mut view = LevelsView {
            now: Clock.now(),
            levels: levels
                .iter()
                .map(|level| (level.name().to_owned(), level.metrics()))
                .collect(),
            fair_fraction,
        };
        let families = FAMILIES.iter().map(|family| {
            let mut samples = family.spec.samples();
            (family.collect)(&mut view, &mut samples);
            samples.into_family()
        });
        families.collect()
    }
}

impl LevelsView {
    fn schema_counters(&self) -> impl Iterator<Item = ([&str; 2], &SchemaCounters)> {
        self.levels.iter().flat_map(|(name, level)| {
            let rows = level.counters.schemas.iter();
            rows.map(move |row| ([row.flow_schema.as_str(), name.as_str()], row))
        })
    }

    /// A counter of each row in which anything was counted.
    fn add_counters(&self, samples: &mut MetricSamples, count: fn(&SchemaCounters) -> u64) {
        for (labels, row) in self.schema_counters().filter(|(_, row)| count(row) > 0) {
            samples.add_value(&labels, to_f64(count(row)));
        }
    }

    /// A gauge of each row that has ever `begun`.
    fn add_gauges(
        &self,
        samples: &mut MetricSamples,
        begun: fn(&SchemaCounters) -> bool,
        value: fn(&SchemaCounters) -> u64,
    ) {
        for (labels, row) in self.schema_counters().filter(|(_, row)| begun(row)) {
            samples.add_value(&labels, to_f64(value(row)));
        }
    }

    fn add_histograms(
        &self,
        samples: &mut MetricSamples,
        histogram: fn(&SchemaCounters) -> &Histogram,
    ) {
        for (labels, row) in self.schema_counters() {
            add_nonempty_histogram(samples, &labels, histogram(row));
        }
    }

    /// A gauge of what a level's seats were when they were last divided.
    fn add_seat_gauges(&self, samples: &mut MetricSamples, value: fn(&Seats) -> f64) {
        for (name, level) in &self.levels {
            if let Some(seats) = &level.counters.seats {
                samples.add_value(&[name], value(seats));
            }
        }
    }

    fn add_dispatch_gauges(
        &self,
        samples: &mut MetricSamples,
        time: fn(&LastDispatch) -> SeatSeconds,
    ) {
        for (name, level) in &self.levels {
            if let Some(last) = &level.last_dispatch {
                samples.add_value(&[name], time(last).as_f64());
            }
        }
    }

    fn add_bounds_gauges(
        &self,
        samples: &mut MetricSamples,
        bounds: fn(&LastDispatch) -> (SeatSeconds, SeatSeconds),
    ) {
        for (name, level) in &self.levels {
            if let Some((least, greatest)) = level.last_dispatch.as_ref().map(bounds) {
                samples.add_value(&["min", name], least.as_f64());
                samples.add_value(&["max", name], greatest.as_f64());
            }
        }
    }
}

fn add_nonempty_histogram(samples: &mut MetricSamples, labels: &[&str], histogram: &Histogram) {
    if histogram.count() > 0 {
        samples.add_histogram(labels, histogram);
    }
}

#[expect(clippy::as_conversions, reason = "a metric is a float")]
const fn to_f64(count: u64) -> f64 {
    count as f64
}
