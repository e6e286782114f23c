//! The registry that every module registers its metrics with, and their common format.
//!
//! A module that counts owns a struct of handles from its own `register(&Registry)`; nothing here
//! knows what is counted. Help texts carry Kubernetes' stability level if the metric is one of
//! kube-apiserver's, so that its dashboards work with this endpoint. There is no global registry:
//! two proxies in one process count separately.
//!
//! A registration can be repeated, so that a component can be built again at a reload: the same
//! name, help and labels give the handles of the metric that is there, and a collector replaces the
//! one of the component before it.

use parking_lot::{Mutex, MutexGuard};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, LabelPair, MetricFamily};
use prometheus::{
    CounterVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, TextEncoder, proto,
};

use weir_kubernetes::numeric::saturating_i64;

/// What `GET /metrics` renders.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    registry: prometheus::Registry,
    /// Everything registered, including metrics without samples. Locked for a registration or a
    /// copy of the descriptions.
    registered: Arc<Mutex<Vec<RegisteredMetric>>>,
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
    /// elsewhere. It replaces a collector of the same metrics that was registered this way before.
    #[expect(
        clippy::expect_used,
        reason = "names and labels are constants of this program; a test renders them all"
    )]
    pub fn register_collector(&self, collector: impl Collector + 'static) {
        let key = CollectorKey::of(&collector);
        let collector: Arc<dyn Collector> = Arc::new(collector);
        let mut registered = self.registered.lock();
        let existing = registered.iter().find(|metric| metric.key == key);
        if let Some(RegisteredCollector::Replaceable(current)) = existing.map(|m| &m.collector) {
            current.store(Arc::new(collector));
            return;
        }
        let slot = CollectorSlot::new(collector);
        let current = Arc::clone(&slot.current);
        self.registry
            .register(Box::new(slot))
            .expect("a name has one kind of metric");
        registered.push(RegisteredMetric {
            key,
            collector: RegisteredCollector::Replaceable(current),
        });
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

    /// Registers a metric, or returns the handles of the same metric that was registered before.
    #[expect(
        clippy::expect_used,
        reason = "names and labels are constants of this program; a test renders them all"
    )]
    fn add<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let collector = made.expect("a metric's name and labels are well-formed");
        let key = CollectorKey::of(&collector);
        let mut registered = self.registered.lock();
        let existing = registered.iter().find(|metric| metric.key == key);
        if let Some(RegisteredCollector::Handles(handles)) = existing.map(|m| &m.collector)
            && let Some(handles) = handles.downcast_ref::<C>()
        {
            return handles.clone();
        }
        self.registry
            .register(Box::new(collector.clone()))
            .expect("a name has one kind of metric");
        registered.push(RegisteredMetric {
            key,
            collector: RegisteredCollector::Handles(Box::new(collector.clone())),
        });
        collector
    }

    /// Everything registered, by name.
    #[must_use]
    pub fn descriptions(&self) -> Vec<MetricDescription> {
        let registered = self.registered.lock();
        let keys = registered.iter().flat_map(|metric| &metric.key.0);
        let mut all: Vec<_> = keys.map(|(description, _)| description.clone()).collect();
        drop(registered);
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

/// What a registration is found again by: the description of each metric of a collector, and the
/// id that prometheus derives from its name and its constant labels.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CollectorKey(Vec<(MetricDescription, u64)>);

impl CollectorKey {
    fn of(collector: &impl Collector) -> Self {
        let describe = |desc: &Desc| MetricDescription {
            name: desc.fq_name.clone(),
            help: desc.help.clone(),
            labels: desc.variable_labels.clone(),
        };
        let descs = collector.desc().into_iter();
        Self(descs.map(|desc| (describe(desc), desc.id)).collect())
    }
}

/// A registered collector.
struct RegisteredMetric {
    key: CollectorKey,
    collector: RegisteredCollector,
}

enum RegisteredCollector {
    /// The handles of [`Registry::add`], which a second registration receives.
    Handles(Box<dyn Any + Send + Sync>),
    /// A collector that a second registration replaces.
    Replaceable(CurrentCollector),
}

impl fmt::Debug for RegisteredMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.key)
    }
}

type CurrentCollector = Arc<ArcSwap<Arc<dyn Collector>>>;

/// Collects from the collector that was registered last.
struct CollectorSlot {
    descs: Vec<Desc>,
    current: CurrentCollector,
}

impl CollectorSlot {
    fn new(collector: Arc<dyn Collector>) -> Self {
        Self {
            descs: collector.desc().into_iter().cloned().collect(),
            current: Arc::new(ArcSwap::from_pointee(collector)),
        }
    }
}

impl Collector for CollectorSlot {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.current.load_full().collect()
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
        let mut label_zeros = self.zeros();
        let known = label_zeros.iter().find(|(known, _)| known == value);
        let zeros = known.map_or_else(Arc::default, |(_, zeros)| Arc::clone(zeros));
        if known.is_none() {
            label_zeros.push((value.to_owned(), Arc::clone(&zeros)));
        }
        drop(label_zeros);
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

    #[test]
    fn a_metric_that_is_registered_again_goes_on_counting() {
        let registry = Registry::new();
        for _ in 0..2 {
            registry.counter("one", "One.").inc();
            let several = registry.counters("several", "Several.", &["of"]);
            several.with_label_values(&["a"]).inc();
            let times = registry.sparse_histograms("times", "Times.", "of", &[0.0, 1.0]);
            times.with_label_value("a").observe(Duration::ZERO);
            registry.histogram("sizes", "Sizes.", &[1.0]).observe(2.0);
        }
        let text = registry.render();
        for line in [
            "one 2\n",
            "several{of=\"a\"} 2\n",
            "times_count{of=\"a\"} 2\n",
            "sizes_count 2\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert_eq!(registry.descriptions().len(), 4);
    }

    #[test]
    fn a_collector_that_is_registered_again_replaces_the_one_before() {
        let registry = Registry::new();
        let kept = Arc::new(());
        let holder = Arc::clone(&kept);
        registry.gauge_fn("held", "Held.", move || Arc::strong_count(&holder));
        assert!(registry.render().contains("held 2\n"));
        registry.gauge_fn("held", "Held.", || 7);
        let text = registry.render();
        assert!(text.contains("held 7\n"), "{text}");
        assert_eq!(text.matches("# TYPE held ").count(), 1, "{text}");
        assert_eq!(Arc::strong_count(&kept), 1, "the old one is dropped");
        assert_eq!(registry.descriptions().len(), 1);
    }

    #[test]
    #[should_panic(expected = "a name has one kind of metric")]
    fn a_metric_of_the_same_name_with_other_labels_is_an_error() {
        let registry = Registry::new();
        let _ = registry.counters("same", "Same.", &["a"]);
        let _ = registry.counters("same", "Same.", &["b"]);
    }

    #[test]
    #[should_panic(expected = "a name has one kind of metric")]
    fn a_metric_of_the_same_name_and_another_kind_is_an_error() {
        let registry = Registry::new();
        let _ = registry.counter("same", "Same.");
        let _ = registry.gauge("same", "Same.");
    }
}
