//! The cost of API Priority and Fairness for a request: classify it, estimate it, admit it and
//! release its seats, with all metrics.
//!
//! With the built-in objects. The request matches the last schema but one, and nothing is queued.
//! With two threads, both use the same priority level. The time is that of all requests divided by
//! their number. The last two measure configuration swaps: concurrent with requests, some ten
//! thousand times a second, where each swap takes the locks of the priority levels for a few steps
//! only; and alone.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a benchmark measures time, and its requests are well-formed"
)]

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use weir::flowcontrol::controller::{Controller, ControllerConfig, Enforcement, RequestTimes};
use weir_base::metrics::Registry;
use weir_flowcontrol::bootstrap;
use weir_flowcontrol::bootstrap::BootstrapClass;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;

fn controller() -> Arc<Controller> {
    let config = ControllerConfig {
        server_concurrency_limit: 600,
        request_timeout: Duration::from_secs(60),
        enforcement: Enforcement::Enforce,
        consistent_reads_from_cache: true,
    };
    let all = [BootstrapClass::Mandatory, BootstrapClass::Suggested];
    let objects = all.into_iter().flat_map(bootstrap::objects);
    Controller::new(config, objects, &Registry::new())
}

/// One of many users that only `global-default` matches.
fn user(number: usize) -> UserInfo {
    UserInfo {
        name: format!("user-{number}"),
        ..UserInfo::default()
    }
    .with_authenticated_group()
}

fn info() -> RequestInfo<'static> {
    let target = b"/api/v1/namespaces/default/pods/web-0";
    RequestInfo::parse("GET", target).expect("a request for a pod")
}

/// Admits a request that is not queued, and ends it.
fn admit_and_finish(
    controller: &Controller,
    info: &RequestInfo<'_>,
    user: &UserInfo,
    arrived: Instant,
) {
    let admitted = pin!(controller.admit(info, user, RequestTimes::at(arrived)));
    let mut context = Context::from_waker(Waker::noop());
    match admitted.poll(&mut context) {
        Poll::Ready(Ok(admitted)) => drop(black_box(admitted)),
        Poll::Ready(Err(_)) | Poll::Pending => unreachable!("there are seats for all"),
    }
}

/// The time of `rounds` requests by each of `threads` threads.
fn measure(controller: &Controller, threads: usize, users: &[UserInfo], rounds: u64) -> Duration {
    let (info, arrived) = (info(), Instant::now());
    let start = Barrier::new(threads + 1);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                let (info, start) = (&info, &start);
                scope.spawn(move || {
                    let mut users = users.iter().cycle().skip(worker);
                    start.wait();
                    for user in users
                        .by_ref()
                        .take(usize::try_from(rounds).expect("64 bits"))
                    {
                        admit_and_finish(controller, info, user, arrived);
                    }
                })
            })
            .collect();
        start.wait();
        let begun = Instant::now();
        for worker in workers {
            worker.join().expect("a worker that does not panic");
        }
        begun.elapsed()
    })
}

fn admissions(c: &mut Criterion) {
    let mut group = c.benchmark_group("admission");
    for threads in [1, 2] {
        for flows in [1, 100, 10_000] {
            let controller = controller();
            let users: Vec<_> = (0..flows).map(user).collect();
            group.bench_function(BenchmarkId::new(format!("threads={threads}"), flows), |b| {
                b.iter_custom(|rounds| {
                    let each = rounds.div_ceil(u64::try_from(threads).expect("64 bits"));
                    measure(&controller, threads, &users, each)
                });
            });
        }
    }
    group.finish();
}

/// One thread of requests while another one swaps the configuration without a pause.
fn config_swaps(c: &mut Criterion) {
    let controller = controller();
    let users: Vec<_> = (0..100).map(user).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let all = [BootstrapClass::Mandatory, BootstrapClass::Suggested];
                let objects = all.into_iter().flat_map(bootstrap::objects);
                controller.configure(Instant::now(), objects);
            }
        });
        c.bench_function("admission/beside-swaps", |b| {
            b.iter_custom(|rounds| measure(&controller, 1, &users, rounds));
        });
        done.store(true, Ordering::Relaxed);
    });
}

/// One swap without concurrent requests.
fn configure(c: &mut Criterion) {
    let controller = controller();
    c.bench_function("admission/configure", |b| {
        b.iter(|| {
            let all = [BootstrapClass::Mandatory, BootstrapClass::Suggested];
            let objects = all.into_iter().flat_map(bootstrap::objects);
            controller.configure(Instant::now(), objects);
        });
    });
}

criterion_group!(benches, admissions, config_swaps, configure);
criterion_main!(benches);
