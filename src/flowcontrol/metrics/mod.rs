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
use crate::flowcontrol::concurrency::Level as Seats;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::exposition::Samples;
use crate::flowcontrol::exposition::Shape;
use crate::flowcontrol::histogram::Histogram;
use crate::flowcontrol::level::Reading;
use crate::flowcontrol::level::Row;
use crate::flowcontrol::queue_set::LastDispatch;
use crate::flowcontrol::seats::SeatSeconds;
use crate::metrics::Registry;

/// A metric, and how to find its samples.
struct Family {
    shape: Shape,
    collect: fn(&mut View, &mut Samples),
}

/// All levels at (almost) one instant.
struct View {
    now: Instant,
    levels: Vec<(String, Reading)>,
    fair_fraction: f64,
}

/// Shows all families of one controller.
struct Exposition {
    controller: Arc<Controller>,
    descs: Vec<Desc>,
}

/// Shows the controller in `registry`.
pub(super) fn register(controller: &Arc<Controller>, registry: &Registry) {
    registry.collect_from(Exposition {
        controller: Arc::clone(controller),
        descs: FAMILIES.iter().map(|family| family.shape.desc()).collect(),
    });
}

impl Collector for Exposition {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let (levels, fair_fraction) = self.controller.counted();
        let mut view = View {
            now: Clock.now(),
            levels: levels
                .iter()
                .map(|level| (level.name().to_owned(), level.reading()))
                .collect(),
            fair_fraction,
        };
        let families = FAMILIES.iter().map(|family| {
            let mut samples = family.shape.samples();
            (family.collect)(&mut view, &mut samples);
            samples.family()
        });
        families.collect()
    }
}

impl View {
    fn rows(&self) -> impl Iterator<Item = ([&str; 2], &Row)> {
        self.levels.iter().flat_map(|(name, level)| {
            let rows = level.tally.rows.iter();
            rows.map(move |row| ([row.flow_schema.as_str(), name.as_str()], row))
        })
    }

    /// A counter of each row in which anything was counted.
    fn counters(&self, samples: &mut Samples, count: fn(&Row) -> u64) {
        for (labels, row) in self.rows().filter(|(_, row)| count(row) > 0) {
            samples.number(&labels, number(count(row)));
        }
    }

    /// A gauge of each row that has ever `begun`.
    fn gauges(&self, samples: &mut Samples, begun: fn(&Row) -> bool, value: fn(&Row) -> u64) {
        for (labels, row) in self.rows().filter(|(_, row)| begun(row)) {
            samples.number(&labels, number(value(row)));
        }
    }

    fn histograms(&self, samples: &mut Samples, histogram: fn(&Row) -> &Histogram) {
        for (labels, row) in self.rows() {
            shown(samples, &labels, histogram(row));
        }
    }

    /// A gauge of what a level's seats were when they were last divided.
    fn seats(&self, samples: &mut Samples, value: fn(&Seats) -> f64) {
        for (name, level) in &self.levels {
            if let Some(seats) = &level.tally.seats {
                samples.number(&[name], value(seats));
            }
        }
    }

    fn dispatch(&self, samples: &mut Samples, time: fn(&LastDispatch) -> SeatSeconds) {
        for (name, level) in &self.levels {
            if let Some(last) = &level.last_dispatch {
                samples.number(&[name], time(last).as_f64());
            }
        }
    }

    fn bounds(
        &self,
        samples: &mut Samples,
        bounds: fn(&LastDispatch) -> (SeatSeconds, SeatSeconds),
    ) {
        for (name, level) in &self.levels {
            if let Some((least, greatest)) = level.last_dispatch.as_ref().map(bounds) {
                samples.number(&["min", name], least.as_f64());
                samples.number(&["max", name], greatest.as_f64());
            }
        }
    }
}

fn shown(samples: &mut Samples, labels: &[&str], histogram: &Histogram) {
    if histogram.count() > 0 {
        samples.histogram(labels, histogram);
    }
}

#[expect(clippy::as_conversions, reason = "a metric is a float")]
const fn number(count: u64) -> f64 {
    count as f64
}
