//! The registry that every module registers its metrics with, and their common format.
//!
//! A module that counts owns a struct of handles from its own `register(&Registry)`; nothing here
//! knows what is counted. Help texts carry Kubernetes' stability level if the metric is one of
//! kube-apiserver's, so that its dashboards work with this endpoint. There is no global registry:
//! two proxies in one process count separately.

use parking_lot::Mutex;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

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
use prometheus::core::Desc;
use prometheus::proto;
use prometheus::proto::Bucket;
use prometheus::proto::LabelPair;
use prometheus::proto::MetricFamily;

use crate::numeric::saturating_i64;

/// What `GET /metrics` renders.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    registry: prometheus::Registry,
    /// Everything registered, including metrics without samples. Locked for a push or a copy.
    descriptions: Arc<Mutex<Vec<MetricDescription>>>,
}

/// A metric without its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricDescription {
    /// The name with its unit, as in the exposition format.
    pub name: String,
    /// The help text.
    pub help: String,
    /// The names of the labels.
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
    pub fn seconds_counters(&self, name: &str, help: &str, labels: &[&str]) -> CounterVec {
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

    /// A single gauge whose value is read by `read` at each collection, for numbers that are kept
    /// elsewhere.
    pub fn gauge_fn(
        &self,
        name: &str,
        help: &str,
        read: impl Fn() -> usize + Send + Sync + 'static,
    ) {
        match IntGauge::new(name, help) {
            Ok(gauge) => self.register_collector(PolledGauge { gauge, read }),
            Err(_) => drop(self.gauge(name, help)), // which reports the error
        }
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

    /// A histogram per value of `label` for durations that are usually zero; `buckets` are upper
    /// bounds in seconds, none below zero.
    #[must_use]
    pub fn sparse_histograms(
        &self,
        name: &str,
        help: &str,
        label: &str,
        buckets: &[f64],
    ) -> SparseHistograms {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let made = HistogramVec::new(opts, &[label]);
        self.add(made.map(|histograms| SparseHistograms {
            histograms,
            zeros: Arc::default(),
        }))
    }

    /// Registers a `collector` that is read at each collection, for numbers that are kept
    /// elsewhere.
    #[expect(
        clippy::expect_used,
        reason = "names and labels are constants of this program; a test renders them all"
    )]
    pub fn register_collector(&self, collector: impl Collector + 'static) {
        let described = collector.desc().into_iter().map(|desc| MetricDescription {
            name: desc.fq_name.clone(),
            help: desc.help.clone(),
            labels: desc.variable_labels.clone(),
        });
        let mut all = self.descriptions.lock();
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
        // Formatting into a string fails only for a metric family without samples, which `gather`
        // leaves out.
        let _ = TextEncoder::new().encode_utf8(&self.registry.gather(), &mut text);
        with_go_bounds(&text)
    }

    #[expect(
        clippy::expect_used,
        reason = "names and labels are constants of this program; a test renders them all"
    )]
    fn add<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let collector = made.expect("a metric's name and labels are well-formed");
        self.register_collector(collector.clone());
        collector
    }

    /// Everything registered, by name.
    #[must_use]
    pub fn descriptions(&self) -> Vec<MetricDescription> {
        let mut all = self.descriptions.lock().clone();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

/// Writes the upper bounds of buckets as Go does: `1e+06`. A quote within a label's value is
/// escaped, so nothing else looks like a bound.
fn with_go_bounds(text: &str) -> String {
    const BOUND: &str = "le=\"";
    let mut all = String::with_capacity(text.len());
    let mut done = 0;
    for at in memchr::memmem::find_iter(text.as_bytes(), BOUND) {
        let (before, behind) = text.split_at(at);
        let is_label = before.ends_with([',', '{']);
        let Some((bound, _)) = behind.get(BOUND.len()..).and_then(|b| b.split_once('"')) else {
            continue;
        };
        // Bounds that are written alike have at most six digits before the point.
        let written = (is_label && bound.len() > 6).then(|| bound.parse().ok());
        if let Some(written) = written.flatten().and_then(go_exponent) {
            let from = at + BOUND.len();
            all.push_str(text.get(done..from).unwrap_or_default());
            all.push_str(&written);
            done = from + bound.len();
        }
    }
    all.push_str(text.get(done..).unwrap_or_default());
    all
}

/// A number as Go's `strconv.FormatFloat(number, 'g', -1, 64)` writes it, if that has an exponent.
fn go_exponent(number: f64) -> Option<String> {
    let size = number.abs();
    if !size.is_finite() || size == 0.0 || (1e-4..1e6).contains(&size) {
        return None;
    }
    let written = format!("{number:e}");
    let (digits, exponent) = written.split_once('e')?;
    let exponent: i32 = exponent.parse().ok()?;
    let sign = if exponent < 0 { '-' } else { '+' };
    Some(format!("{digits}e{sign}{:02}", exponent.unsigned_abs()))
}

/// A gauge that is read at each collection.
struct PolledGauge<F> {
    gauge: IntGauge,
    read: F,
}

impl<F: Fn() -> usize + Send + Sync> Collector for PolledGauge<F> {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let value = (self.read)();
        self.gauge.set(saturating_i64(value));
        self.gauge.collect()
    }
}

/// Histograms of durations that are usually zero: a lookup, not a wait. A zero costs one addition.
#[derive(Clone, Debug)]
pub struct SparseHistograms {
    histograms: HistogramVec,
    /// Locked for a push or a sum.
    zeros: Arc<Mutex<Vec<LabelZeros>>>,
}

/// The number of zeros of a label value.
type LabelZeros = (String, Arc<AtomicU64>);

/// One of these histograms.
#[derive(Clone, Debug)]
pub struct SparseHistogram {
    histogram: Histogram,
    /// Relaxed: no other memory depends on it.
    zeros: Arc<AtomicU64>,
}

impl SparseHistograms {
    /// The histogram of this label value.
    #[must_use]
    pub fn with_label_value(&self, value: &str) -> SparseHistogram {
        let zeros = Arc::new(AtomicU64::new(0));
        self.zeros().push((value.to_owned(), Arc::clone(&zeros)));
        SparseHistogram {
            histogram: self.histograms.with_label_values(&[value]),
            zeros,
        }
    }

    fn zeros(&self) -> MutexGuard<'_, Vec<LabelZeros>> {
        self.zeros.lock()
    }
}

impl SparseHistogram {
    /// Records a duration.
    pub fn observe(&self, time: Duration) {
        if time.is_zero() {
            self.zeros.fetch_add(1, Ordering::Relaxed);
        } else {
            self.histogram.observe(time.as_secs_f64());
        }
    }
}

impl Collector for SparseHistograms {
    fn desc(&self) -> Vec<&Desc> {
        self.histograms.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let label_zeros = self.zeros();
        let mut families = self.histograms.collect();
        for metric in families.iter_mut().flat_map(MetricFamily::mut_metric) {
            let label = metric.get_label().first().map(LabelPair::value);
            let these = label_zeros
                .iter()
                .filter(|(value, _)| Some(&**value) == label);
            let zeros: u64 = these.map(|(_, zeros)| zeros.load(Ordering::Relaxed)).sum();
            metric.set_histogram(with_zeros(metric.get_histogram(), zeros));
        }
        families
    }
}

/// The histogram with this many more zeros, which are in every bucket.
fn with_zeros(seen: &proto::Histogram, zeros: u64) -> proto::Histogram {
    let buckets = seen.get_bucket().iter().map(|seen| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(seen.upper_bound());
        bucket.set_cumulative_count(seen.cumulative_count() + zeros);
        bucket
    });
    let mut histogram = proto::Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(seen.get_sample_count() + zeros);
    histogram.set_sample_sum(seen.get_sample_sum());
    histogram
}

/// Adds one to a gauge until it is dropped.
#[derive(Debug)]
pub struct GaugeGuard(IntGauge);

impl GaugeGuard {
    /// Adds one to `gauge`.
    #[must_use]
    pub fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_written_as_go_writes_them() {
        let registry = Registry::new();
        let bounds = [1e-5, 0.005, 250_000.0, 1e6, 3_050_000.0, 1e9];
        let sizes = registry.histograms("sizes", "Sizes.", &["of"], &bounds);
        sizes.with_label_values(&["a,le=\"1000000\""]).observe(1.0);
        registry.histogram("alone", "Alone.", &[1e8]).observe(1.0);
        let text = registry.render();
        for bound in [
            "1e-05", "0.005", "250000", "1e+06", "3.05e+06", "1e+09", "+Inf",
        ] {
            assert!(
                text.contains(&format!(",le=\"{bound}\"}} ")),
                "{bound}: {text}"
            );
        }
        assert!(text.contains("alone_bucket{le=\"1e+08\"} 1\n"), "{text}");
        assert!(text.contains("of=\"a,le=\\\"1000000\\\"\",le="), "{text}");
    }

    #[test]
    fn a_zero_is_in_every_bucket_of_its_own_histogram() {
        let registry = Registry::new();
        let times = registry.sparse_histograms("times", "Times.", "of", &[0.0, 0.5, 1.0]);
        let (known, unknown) = (
            times.with_label_value("known"),
            times.with_label_value("unknown"),
        );
        known.observe(Duration::ZERO);
        known.observe(Duration::ZERO);
        known.observe(Duration::from_millis(700));
        unknown.observe(Duration::from_secs(2));
        let text = registry.render();
        for (of, counts, sum) in [("known", [2, 2, 3, 3], 0.7), ("unknown", [0, 0, 0, 1], 2.0)] {
            for (bound, count) in ["0", "0.5", "1", "+Inf"].iter().zip(counts) {
                let line = format!("times_bucket{{of=\"{of}\",le=\"{bound}\"}} {count}\n");
                assert!(text.contains(&line), "{line} in {text}");
            }
            let [.., count] = counts;
            for line in [
                format!("times_sum{{of=\"{of}\"}} {sum}\n"),
                format!("times_count{{of=\"{of}\"}} {count}\n"),
            ] {
                assert!(text.contains(&line), "{line} in {text}");
            }
        }
    }
}
