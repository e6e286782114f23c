//! The cost of metrics: a scrape of 10,000 series, the metrics of one request, and those of an API
//! server, which weir reads each minute.
//!
//! The budget is 1 % of a core, 10 ms, for a scrape a second, 1 µs for the metrics of a request, and
//! 0.2 % of a core, 120 ms, for 3 MB a minute.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use http::{HeaderMap, StatusCode};
use weir::observe::info_metrics::InfoMetrics;
use weir::pipeline::trace::{MetricSubject, RequestMetrics, Trace};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_base::process_metrics;
use weir_flowcontrol::work_estimator::resource_metrics::ResourceMetrics;
use weir_kubernetes::request_info::{MetricLabels, RequestInfo};

/// A resource request for an existing resource, from its arrival to its end.
fn record_request(metrics: &Arc<RequestMetrics>, target: &str) {
    let Ok(info) = RequestInfo::parse("GET", target.as_bytes()) else {
        return;
    };
    let subject = MetricSubject {
        labels: MetricLabels::from_request("GET", &info, None),
        info: &info,
    };
    let mut trace = Trace::start(Arc::clone(metrics), Clock.now());
    trace.record_response(subject, StatusCode::OK, &HeaderMap::new(), None);
}

fn scrape(criterion: &mut Criterion) {
    let registry = Registry::new();
    let metrics = RequestMetrics::register(&registry);
    InfoMetrics::register(None, Vec::new(), &registry);
    process_metrics::register(&registry);
    let mut resource = 0;
    while registry.render().lines().count() < 10_000 {
        record_request(&metrics, &format!("/apis/example.com/v1/things{resource}"));
        resource += 1;
    }
    let series = registry.render().lines().count();
    let mut group = criterion.benchmark_group("metrics");
    group.throughput(Throughput::Elements(u64::try_from(series).unwrap_or(0)));
    group.bench_function("scrape of 10,000 series", |bench| {
        bench.iter(|| black_box(registry.render().len()));
    });
    group.finish();
}

fn request_metrics(criterion: &mut Criterion) {
    let registry = Registry::new();
    let metrics = RequestMetrics::register(&registry);
    let target = "/api/v1/namespaces/default/pods/a";
    let Ok(info) = RequestInfo::parse("GET", target.as_bytes()) else {
        return;
    };
    let subject = MetricSubject {
        labels: MetricLabels::from_request("GET", &info, None),
        info: &info,
    };
    record_request(&metrics, target);
    criterion.bench_function("metrics of a request", |bench| {
        bench.iter_batched(
            || Trace::start(Arc::clone(&metrics), Clock.now()),
            |mut trace| trace.record_response(subject, StatusCode::OK, &HeaderMap::new(), None),
            BatchSize::SmallInput,
        );
    });
}

/// As a large cluster's: nearly all of it are buckets, which weir does not use.
fn server_metrics(criterion: &mut Criterion) {
    let mut text = String::new();
    for n in 0..200 {
        text += &format!("apiserver_storage_objects{{resource=\"things{n}.example.com\"}} {n}\n");
    }
    let mut bucket = 0;
    while text.len() < 3_000_000 {
        text += &format!(
            "apiserver_request_duration_seconds_bucket{{component=\"apiserver\",dry_run=\"\",group=\"example.com\",resource=\"things{}\",scope=\"namespace\",subresource=\"\",verb=\"LIST\",version=\"v1\",le=\"{}\"}} {bucket}\n",
            bucket / 20,
            bucket % 20
        );
        bucket += 1;
    }
    let mut group = criterion.benchmark_group("an API server's metrics");
    group.throughput(Throughput::Bytes(u64::try_from(text.len()).unwrap_or(0)));
    group.bench_function("3 MB", |bench| {
        bench.iter(|| {
            let mut metrics = ResourceMetrics::default();
            // The pieces in which TLS delivers it.
            text.as_bytes()
                .chunks(16 << 10)
                .for_each(|piece| metrics.feed(piece));
            black_box(metrics.counts().count())
        });
    });
    group.finish();
}

criterion_group!(benches, scrape, request_metrics, server_metrics);
criterion_main!(benches);
