//! The registry that every module registers its metrics with, and the spelling they share.
//!
//! A module that counts owns a struct of handles made by a `register(&Registry)` of its own; nothing here knows what is
//! counted. Help texts carry Kubernetes' stability mark where the metric is one of kube-apiserver's, so that its
//! dashboards and this endpoint read alike. No global registry: two proxies in one process count apart.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use prometheus::CounterVec;
use prometheus::Histogram;
use prometheus::HistogramOpts;
use prometheus::HistogramVec;
use prometheus::IntCounter;
use prometheus::IntCounterVec;
use prometheus::IntGauge;
use prometheus::IntGaugeVec;
use prometheus::Opts;
use prometheus::TextEncoder;
use prometheus::core::Collector;

/// What `GET /metrics` shows.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    registry: prometheus::Registry,
    /// Everything registered, also what has no sample yet. Held for a push or a copy.
    described: Arc<Mutex<Vec<Described>>>,
}

/// A metric, apart from its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// What it counts.
    pub help: String,
    /// What its samples are told apart by.
    pub labels: Vec<String>,
}

impl Registry {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A counter per combination of `labels`.
    #[must_use]
    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// A counter of seconds per combination of `labels`.
    #[must_use]
    pub fn seconds(&self, name: &str, help: &str, labels: &[&str]) -> CounterVec {
        self.add(CounterVec::new(Opts::new(name, help), labels))
    }

    /// A single counter.
    #[must_use]
    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.add(IntCounter::with_opts(Opts::new(name, help)))
    }

    /// A gauge per combination of `labels`.
    #[must_use]
    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    /// A single gauge.
    #[must_use]
    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.add(IntGauge::with_opts(Opts::new(name, help)))
    }

    /// A single histogram; `buckets` are upper bounds in the metric's unit.
    #[must_use]
    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.add(Histogram::with_opts(opts))
    }

    /// A histogram per combination of `labels`; `buckets` are upper bounds in the metric's unit.
    #[must_use]
    pub fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> HistogramVec {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.add(HistogramVec::new(opts, labels))
    }

    /// What `collector` finds whenever somebody looks, for numbers that are kept elsewhere.
    #[expect(
        clippy::expect_used,
        reason = "names and labels are constants of this program; a test renders them all"
    )]
    pub fn collect_from(&self, collector: impl Collector + 'static) {
        let described = collector.desc().into_iter().map(|desc| Described {
            name: desc.fq_name.clone(),
            help: desc.help.clone(),
            labels: desc.variable_labels.clone(),
        });
        let mut all = self
            .described
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.extend(described);
        drop(all);
        self.registry
            .register(Box::new(collector))
            .expect("a metric is registered once");
    }

    /// Everything registered, in the text exposition format.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Formatting into a string fails only for a metric family without samples, which `gather` leaves out.
        let _ = TextEncoder::new().encode_utf8(&self.registry.gather(), &mut text);
        text
    }

    #[expect(
        clippy::expect_used,
        reason = "names and labels are constants of this program; a test renders them all"
    )]
    fn add<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let collector = made.expect("a metric's name and labels are well-formed");
        self.collect_from(collector.clone());
        collector
    }

    /// Everything registered, by name.
    #[must_use]
    pub fn described(&self) -> Vec<Described> {
        let mut all = self
            .described
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

/// Counts one in a gauge until it is dropped.
#[derive(Debug)]
pub struct Counted(IntGauge);

impl Counted {
    /// One more.
    #[must_use]
    pub fn one_more(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
