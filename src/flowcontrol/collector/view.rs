//! The numbers of all levels at one instant, and the functions that turn them into samples.

use std::time::Instant;

use crate::flowcontrol::level::{LevelMetrics, SchemaCounters};
use weir_base::samples::{MetricSamples, MetricSpec};
use weir_base::timing_ratio::Histogram;
use weir_flowcontrol::concurrency::LevelSeats;
use weir_flowcontrol::fairqueuing::queue_set::LastDispatch;
use weir_flowcontrol::fairqueuing::seats::SeatSeconds;
use weir_kubernetes::numeric::to_f64;

/// A metric family, and the function that collects its samples.
pub(super) struct LevelMetricFamily {
    pub(super) spec: MetricSpec,
    pub(super) collect: fn(&mut LevelsView, &mut MetricSamples),
}

/// All levels at (almost) one instant.
pub(super) struct LevelsView {
    pub(super) now: Instant,
    pub(super) levels: Vec<(String, LevelMetrics)>,
    pub(super) fair_fraction: Option<f64>,
}

impl LevelsView {
    pub(super) fn schema_counters(&self) -> impl Iterator<Item = ([&str; 2], &SchemaCounters)> {
        self.levels.iter().flat_map(|(name, level)| {
            let schemas = level.counters.schemas.iter();
            schemas.map(move |counters| ([counters.flow_schema.as_str(), name.as_str()], counters))
        })
    }

    /// Adds a counter for each schema in which anything was counted.
    pub(super) fn add_counters(
        &self,
        samples: &mut MetricSamples,
        count: fn(&SchemaCounters) -> u64,
    ) {
        for (labels, counters) in self
            .schema_counters()
            .filter(|(_, counters)| count(counters) > 0)
        {
            samples.add_value(&labels, to_f64(count(counters)));
        }
    }

    /// Adds a gauge for each schema for which `has_begun` is true.
    pub(super) fn add_gauges(
        &self,
        samples: &mut MetricSamples,
        has_begun: fn(&SchemaCounters) -> bool,
        value: fn(&SchemaCounters) -> u64,
    ) {
        for (labels, counters) in self
            .schema_counters()
            .filter(|(_, counters)| has_begun(counters))
        {
            samples.add_value(&labels, to_f64(value(counters)));
        }
    }

    pub(super) fn add_histograms(
        &self,
        samples: &mut MetricSamples,
        histogram: fn(&SchemaCounters) -> &Histogram,
    ) {
        for (labels, counters) in self.schema_counters() {
            add_nonempty_histogram(samples, &labels, histogram(counters));
        }
    }

    /// Adds a gauge of the level's seats as of the last allocation.
    pub(super) fn add_seat_gauges(
        &self,
        samples: &mut MetricSamples,
        value: fn(&LevelSeats) -> f64,
    ) {
        for (name, level) in &self.levels {
            if let Some(seats) = &level.counters.seats {
                samples.add_value(&[name], value(seats));
            }
        }
    }

    pub(super) fn add_dispatch_gauges(
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

    pub(super) fn add_bounds_gauges(
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

pub(super) fn add_nonempty_histogram(
    samples: &mut MetricSamples,
    labels: &[&str],
    histogram: &Histogram,
) {
    if histogram.count() > 0 {
        samples.add_histogram(labels, histogram);
    }
}
