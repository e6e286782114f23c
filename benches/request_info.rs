//! The cost of parsing a [`RequestInfo`], in nanoseconds for each kind of request.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use weir_kubernetes::request_info::{MetricLabels, RequestInfo};

const REQUESTS: [(&str, &str, &str); 10] = [
    ("get", "GET", "/api/v1/namespaces/foo/pods/bar"),
    ("get escaped", "GET", "/api/v1/namespaces/foo/pods/b%61r"),
    (
        "update status",
        "PUT",
        "/apis/apps/v1/namespaces/foo/deployments/bar/status",
    ),
    (
        "list",
        "GET",
        "/api/v1/namespaces/foo/pods?limit=500&resourceVersion=0",
    ),
    (
        "list of a name",
        "GET",
        "/api/v1/namespaces/foo/secrets?fieldSelector=metadata.name%3Dbar&limit=500&resourceVersion=0",
    ),
    (
        "list by labels",
        "GET",
        "/api/v1/namespaces/foo/pods?labelSelector=app%3Dfront%2Ctier+in+%28a%2Cb%29&limit=500",
    ),
    (
        "watch",
        "GET",
        "/api/v1/pods?allowWatchBookmarks=true&fieldSelector=spec.nodeName%3Dnode-1&resourceVersion=12345\
         &timeoutSeconds=431&watch=true",
    ),
    (
        "delete collection",
        "DELETE",
        "/api/v1/namespaces/foo/pods?labelSelector=app=front",
    ),
    ("health", "GET", "/readyz?verbose"),
    ("odd method", "PROPFIND", "/readyz"),
];

fn parse(c: &mut Criterion) {
    let mut group = c.benchmark_group("request_info");
    for (name, method, target) in REQUESTS {
        group.bench_function(name, |b| {
            b.iter(|| RequestInfo::parse(black_box(method), black_box(target.as_bytes())).is_ok());
        });
    }
    group.finish();
}

fn labels(c: &mut Criterion) {
    let mut group = c.benchmark_group("metric_labels");
    for (name, method, target) in REQUESTS {
        let Ok(info) = RequestInfo::parse(method, target.as_bytes()) else {
            continue;
        };
        group.bench_function(name, |b| {
            b.iter(|| {
                MetricLabels::from_request(black_box(method), black_box(&info), black_box(None))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, parse, labels);
criterion_main!(benches);
