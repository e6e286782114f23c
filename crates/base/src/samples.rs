//! Converts plain numbers to metrics at each scrape.
//!
//! The `prometheus` crate's own metrics are atomics that change with each event. Here events happen
//! under a lock, where a plain number is exact and costs nothing. A
//! [`Collector`](prometheus::core::Collector) reads all of them at once.

use std::collections::HashMap;

use prometheus::core::Desc;
use prometheus::proto::{Bucket, Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::timing_ratio::Histogram;

/// The constant parts of a metric family.
#[derive(Clone, Copy, Debug)]
pub struct MetricSpec {
    /// The metric's name.
    pub name: &'static str,
    /// Gauge, counter or histogram.
    pub kind: MetricType,
    /// In alphabetical order, as in Kubernetes.
    pub labels: &'static [&'static str],
    /// With Kubernetes' stability mark.
    pub help: &'static str,
}

/// The samples of one metric family.
#[derive(Debug)]
pub struct MetricSamples {
    spec: MetricSpec,
    metrics: Vec<Metric>,
}

impl MetricSpec {
    /// The description for a registry.
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "names and labels are constants of this program; a test shows them all"
    )]
    pub fn desc(&self) -> Desc {
        let labels = self.labels.iter().map(|&label| label.to_owned()).collect();
        Desc::new(
            self.name.to_owned(),
            self.help.to_owned(),
            labels,
            HashMap::new(),
        )
        .expect("a metric's name and labels are well-formed")
    }

    /// An empty family.
    pub const fn samples(self) -> MetricSamples {
        MetricSamples {
            spec: self,
            metrics: Vec::new(),
        }
    }
}

impl MetricSamples {
    /// Adds a counter or gauge. `labels` are the values of the labels, in their order.
    pub fn add_value(&mut self, labels: &[&str], value: f64) {
        let mut metric = self.new_metric(labels);
        if self.spec.kind == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.metrics.push(metric);
    }

    /// Adds a histogram.
    pub fn add_histogram(&mut self, labels: &[&str], histogram: &Histogram) {
        let buckets = histogram.buckets().map(|(bound, count)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(count);
            bucket
        });
        let mut proto = prometheus::proto::Histogram::default();
        proto.set_bucket(buckets.collect());
        proto.set_sample_count(histogram.count());
        proto.set_sample_sum(histogram.sum());
        let mut metric = self.new_metric(labels);
        metric.set_histogram(proto);
        self.metrics.push(metric);
    }

    /// The family with its samples.
    pub fn into_family(self) -> MetricFamily {
        let mut family = MetricFamily::default();
        family.set_name(self.spec.name.to_owned());
        family.set_help(self.spec.help.to_owned());
        family.set_field_type(self.spec.kind);
        family.set_metric(self.metrics);
        family
    }

    fn new_metric(&self, values: &[&str]) -> Metric {
        let pairs = self.spec.labels.iter().zip(values).map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        });
        Metric::from_label(pairs.collect())
    }
}
