//! The cost of a rate limit for an event: its buckets, and finding its key in its body.
//!
//! The first part measures one limit's decision with the hash of the key and the lock, for one
//! thread and for two threads that share the key. The time for two threads is that of all decisions
//! divided by their number. The second part has more keys than the table holds, so that every
//! decision evicts one and inserts another. Bodies have 1 KiB.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a benchmark measures time, and its requests are well-formed"
)]

use parking_lot::Mutex;
use std::borrow::Cow;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use weir_limits::rate::events::body;
use weir_limits::rate::events::body::EventEncoding;
use weir_limits::rate::lru::Lru;
use weir_limits::rate::lru_key::LruKeyHasher;
use weir_limits::rate::spin_lock::spin_lock;
use weir_limits::throttling::token_bucket::{Rate, TokenBucket};

/// A limit as a worker uses it.
struct BenchLimit {
    keys: LruKeyHasher,
    rate: Rate,
    buckets: Mutex<Lru<TokenBucket>>,
}

impl BenchLimit {
    fn new(cache_size: usize) -> Self {
        Self {
            keys: LruKeyHasher::default(),
            rate: Rate::new(1_000_000, 1_000_000),
            buckets: Mutex::new(Lru::new(cache_size)),
        }
    }

    fn acquire(&self, key: &[u8], now: Instant) -> bool {
        let key = self.keys.hash_joined([key]);
        let mut buckets = spin_lock(&self.buckets);
        let (bucket, _) = buckets.get_or_insert_with(key, || TokenBucket::full(&self.rate, now));
        bucket.take(&self.rate, now).is_ok()
    }
}

/// The time of `rounds` decisions by each of `threads` threads.
fn measure(limit: &BenchLimit, threads: usize, rounds: u64) -> Duration {
    let now = Instant::now();
    let start = Barrier::new(threads + 1);
    let began = thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                start.wait();
                for _ in 0..rounds {
                    black_box(limit.acquire(black_box(b"system:node:node-17"), now));
                }
            });
        }
        start.wait();
        Instant::now()
    });
    began.elapsed()
}

fn buckets(c: &mut Criterion) {
    let mut group = c.benchmark_group("bucket");
    for threads in [1_usize, 2] {
        let limit = BenchLimit::new(4096);
        group.bench_function(BenchmarkId::new("hot_key", threads), |b| {
            b.iter_custom(|rounds| {
                let each = rounds.div_ceil(u64::try_from(threads).unwrap_or(1));
                measure(&limit, threads, each)
            });
        });
    }
    let limit = BenchLimit::new(4096);
    let names: Vec<String> = (0..8192).map(|n| format!("system:node:node-{n}")).collect();
    let now = Instant::now();
    let mut n = 0;
    group.bench_function("churn", |b| {
        b.iter(|| {
            n = (n + 1) % names.len();
            limit.acquire(names.get(n).map_or(b"", |name| name.as_bytes()), now)
        });
    });
    group.finish();
}

/// An event as the kubelet writes it, padded to 1 KiB by its message.
fn json_event() -> String {
    let event = |message: &str| {
        format!(
            r#"{{"kind":"Event","apiVersion":"v1","metadata":{{"name":"web-0.17a1b2c3d4e5f607","namespace":"default","creationTimestamp":null}},"involvedObject":{{"kind":"Pod","namespace":"default","name":"web-0","uid":"3f1cbb6a-9d25-4a43-8d6b-0f5f8f6b9d2e","apiVersion":"v1","resourceVersion":"123456","fieldPath":"spec.containers{{web}}"}},"reason":"BackOff","message":"{message}","source":{{"component":"kubelet","host":"node-17"}},"firstTimestamp":"2026-02-03T04:05:06Z","lastTimestamp":"2026-02-03T04:05:06Z","count":3,"type":"Warning","eventTime":null,"reportingComponent":"kubelet","reportingInstance":"node-17"}}"#
        )
    };
    let rest = 1024 - event("").len();
    event(&"Back-off restarting failed container. ".repeat(40)[..rest])
}

fn protobuf_field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        field.push(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
        length >>= 7;
    }
    field.push(u8::try_from(length).unwrap_or(0));
    [&field[..], bytes].concat()
}

fn protobuf_event() -> Vec<u8> {
    let object: [(u8, &[u8]); 5] = [
        (1, b"Pod"),
        (2, b"default"),
        (3, b"web-0"),
        (4, b"3f1cbb6a-9d25-4a43-8d6b-0f5f8f6b9d2e"),
        (5, b"v1"),
    ];
    let object = object
        .map(|(number, text)| protobuf_field(number, text))
        .concat();
    let source = [protobuf_field(1, b"kubelet"), protobuf_field(2, b"node-17")].concat();
    let name = protobuf_field(1, b"web-0.17a1b2c3d4e5f607");
    let event = |message: &[u8]| {
        let raw = [
            protobuf_field(1, &[&name[..], &protobuf_field(3, b"default")].concat()),
            protobuf_field(2, &object),
            protobuf_field(3, b"BackOff"),
            protobuf_field(4, message),
            protobuf_field(5, &source),
            vec![8 << 3, 3],
            protobuf_field(9, b"Warning"),
        ]
        .concat();
        let meta = [protobuf_field(1, b"v1"), protobuf_field(2, b"Event")].concat();
        [
            &b"k8s\0"[..],
            &protobuf_field(1, &meta),
            &protobuf_field(2, &raw),
        ]
        .concat()
    };
    let rest = 1024 - event(&[b'x'; 500]).len() + 500;
    event(&vec![b'x'; rest])
}

fn event_keys(c: &mut Criterion) {
    let (json, protobuf) = (json_event(), protobuf_event());
    assert_eq!((json.len(), protobuf.len()), (1024, 1024));
    let mut group = c.benchmark_group("event_key");
    for (name, encoding, bytes) in [
        ("json", EventEncoding::Json, json.as_bytes()),
        ("protobuf", EventEncoding::Protobuf, &protobuf[..]),
    ] {
        let found = body::parse(encoding, b"v1", bytes).expect("an event");
        assert!(
            found
                .key
                .iter()
                .all(|part| matches!(part, Cow::Borrowed(text) if !text.is_empty()))
        );
        group.bench_function(name, |b| {
            b.iter(|| body::parse(encoding, b"v1", black_box(bytes)).is_some());
        });
    }
    group.finish();
}

criterion_group!(benches, buckets, event_keys);
criterion_main!(benches);
