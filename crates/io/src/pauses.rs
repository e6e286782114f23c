//! Pauses of a worker that has to wait for a core.
//!
//! Beside a busy server on the same cores, a worker is woken for one or two sockets at a time,
//! waits for a core, and finds its caches cold: an answer costs it five times as much as in a hot
//! loop. If it pauses before it looks for more, it finds more, and so do the server and the clients
//! after it. Each request waits for up to two pauses. So the interval between two looks is a
//! small part of what the server takes anyway, and there is none while the worker gets a core at
//! once.

use std::cell::Cell;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;

use weir_base::clock::Clock;

/// The interval between two looks is this part of the server's response time. A twelfth gained
/// less, and an eighth no more (`benches/storm.py`).
const RESPONSE_TIME_DIVISOR: u32 = 10;

/// Events of watches wait for pauses as well, and longer ones gained nothing more.
const MAX_INTERVAL: Duration = Duration::from_millis(5);

/// In a shorter one too little arrives: hot loops lost up to a tenth of their requests by 0.3 ms.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// With fewer requests in flight too few arrive at once: whether 16 connections gained differed from run
/// to run.
const MIN_IN_FLIGHT: f64 = 32.0;

/// The part of a new count of requests in flight that enters their average: bursts are no load.
const NEW_PART: f64 = 0.25;

/// A worker is short of cores if it waited for them for at least this part of the time that it ran.
/// Under a storm on two cores it waits as long as it runs; on cores of its own, not at all.
const WAIT_DIVISOR: u64 = 4;

/// How long a thread ran, and how long it was ready to run and had no core, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    ran: u64,
    waited: u64,
}

impl CpuTimes {
    /// Those of this thread. `None` if the kernel does not say.
    pub fn of_this_thread() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/thread-self/schedstat").ok()?)
    }

    fn parse(schedstat: &str) -> Option<Self> {
        let mut fields = schedstat.split_ascii_whitespace();
        let mut next = || fields.next()?.parse().ok();
        Some(Self {
            ran: next()?,
            waited: next()?,
        })
    }

    /// Whether the thread was short of cores since `earlier`.
    fn were_short_since(self, earlier: Self) -> bool {
        let ran = self.ran.saturating_sub(earlier.ran);
        let waited = self.waited.saturating_sub(earlier.waited);
        waited > 0 && waited.saturating_mul(WAIT_DIVISOR) >= ran
    }
}

/// What the servers that a worker sends to have to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerLoad {
    /// Short requests in flight now.
    pub in_flight: usize,
    /// Requests sent so far.
    pub requests: u64,
}

/// What is known at one time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    cpu: CpuTimes,
    /// Requests that were sent to the servers so far.
    requests: u64,
    /// An average of those in flight.
    in_flight: f64,
}

/// The interval, from what has changed since `earlier`.
fn interval(earlier: &Sample, now: &Sample) -> Duration {
    let sent = now.requests.saturating_sub(earlier.requests);
    let is_busy = sent > 0 && now.in_flight >= MIN_IN_FLIGHT;
    if !is_busy || !now.cpu.were_short_since(earlier.cpu) {
        return Duration::ZERO;
    }
    let elapsed = now.at.saturating_duration_since(earlier.at);
    let between = elapsed / u32::try_from(sent).unwrap_or(u32::MAX);
    // Little's law.
    let response_time = between.mul_f64(now.in_flight);
    let interval = (response_time / RESPONSE_TIME_DIVISOR).min(MAX_INTERVAL);
    if interval < MIN_INTERVAL || interval < between {
        return Duration::ZERO;
    }
    interval
}

/// The pauses of one worker.
#[derive(Debug, Default)]
pub struct Pauses {
    shared: Arc<SharedPauses>,
    last: Option<Sample>,
}

/// In nanoseconds. Relaxed: only the worker's own thread uses them.
#[derive(Debug, Default)]
struct SharedPauses {
    /// The least time between two looks.
    interval: AtomicU64,
    /// The sum of all pauses.
    total: AtomicU64,
}

thread_local! {
    /// When the runtime of this thread was woken last.
    static WOKEN_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

impl Pauses {
    /// Makes the runtime's thread pause when it has nothing more to do, until the interval since it was
    /// woken is over.
    pub fn apply_to(&self, runtime: &mut Builder) {
        let shared = Arc::clone(&self.shared);
        runtime.on_thread_unpark(|| WOKEN_AT.set(Some(Clock.now())));
        runtime.on_thread_park(move || shared.pause());
    }

    /// Sets the interval from what has happened since the last call.
    pub fn adjust(&mut self, at: Instant, cpu: Option<CpuTimes>, load: ServerLoad) {
        let in_flight = f64::from(u32::try_from(load.in_flight).unwrap_or(u32::MAX));
        let average = self.last.map_or(0.0, |last| last.in_flight);
        let sample = cpu.map(|cpu| Sample {
            at,
            cpu,
            requests: load.requests,
            in_flight: average + (in_flight - average) * NEW_PART,
        });
        let interval = match (&self.last, &sample) {
            (Some(earlier), Some(now)) => interval(earlier, now),
            _ => Duration::ZERO,
        };
        self.last = sample;
        let interval = saturating_nanos(interval);
        self.shared.interval.store(interval, Ordering::Relaxed);
    }

    /// The sum of all pauses.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.shared.total.load(Ordering::Relaxed))
    }
}

impl SharedPauses {
    fn pause(&self) {
        let interval = Duration::from_nanos(self.interval.load(Ordering::Relaxed));
        if interval.is_zero() {
            return;
        }
        let Some(woken_at) = WOKEN_AT.get() else {
            return;
        };
        let before = Clock.now();
        let awake = before.saturating_duration_since(woken_at);
        if let Some(rest) = interval.checked_sub(awake) {
            thread::sleep(rest);
            let paused = Clock.now().saturating_duration_since(before);
            self.total
                .fetch_add(saturating_nanos(paused), Ordering::Relaxed);
        }
    }
}

fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const PERIOD: Duration = Duration::from_millis(250);

    /// The interval after 250 ms in which a worker ran for 50 ms, waited `waited` ms for a core, and sent
    /// `sent` requests, with `in_flight` on average.
    fn interval_after(waited: u64, sent: u64, in_flight: f64) -> Duration {
        let earlier = Sample {
            at: Clock.now(),
            cpu: CpuTimes {
                ran: 7 * MS,
                waited: 9 * MS,
            },
            requests: 100,
            in_flight: 0.0,
        };
        let now = Sample {
            at: earlier.at + PERIOD,
            cpu: CpuTimes {
                ran: 57 * MS,
                waited: (9 + waited) * MS,
            },
            requests: 100 + sent,
            in_flight,
        };
        interval(&earlier, &now)
    }

    #[test]
    fn a_worker_that_gets_a_core_at_once_does_not_pause() {
        for waited in [0, 12] {
            assert_eq!(interval_after(waited, 750, 64.0), Duration::ZERO);
        }
    }

    #[test]
    fn one_that_waits_for_cores_looks_once_in_a_tenth_of_the_response_time() {
        // 3,000 a second: 60 in flight take 20 ms each.
        let interval = interval_after(13, 750, 60.0).as_micros();
        assert!((1900..=2000).contains(&interval), "{interval} us");
        assert_eq!(interval_after(13, 750, 300.0), MAX_INTERVAL);
    }

    #[test]
    fn it_does_not_pause_where_too_little_would_arrive_meanwhile() {
        for (sent, in_flight, why) in [
            (750, 31.9, "few are in flight"),
            (5_250, 64.0, "responses take 3 ms"),
            (40, 40.0, "one in 6 ms"),
            (0, 40.0, "none is sent"),
        ] {
            assert_eq!(interval_after(13, sent, in_flight), Duration::ZERO, "{why}");
        }
    }

    #[test]
    fn a_thread_pauses_as_long_as_it_is_short_of_cores() {
        let mut pauses = Pauses::default();
        let mut runtime = Builder::new_current_thread();
        pauses.apply_to(&mut runtime);
        let runtime = runtime.enable_all().build().unwrap();
        let start = Clock.now();
        let mut adjust = |periods: u32, cpu| {
            let load = ServerLoad {
                in_flight: 300,
                requests: u64::from(periods) * 750,
            };
            pauses.adjust(start + PERIOD * periods, cpu, load);
            pauses.total()
        };
        let short = |times| CpuTimes {
            ran: times,
            waited: times,
        };
        assert_eq!(adjust(0, Some(short(0))), Duration::ZERO);
        adjust(1, Some(short(1)));
        let wake = || {
            let woken = async { tokio::task::spawn_blocking(|| ()).await };
            runtime.block_on(woken).unwrap();
        };
        // A thread that has no core for as long as the interval pauses after one of the next turns.
        (0..100).for_each(|_| wake());
        let paused = adjust(2, Some(short(1)));
        assert!(!paused.is_zero());
        for cpu in [Some(short(1)), None] {
            let before = adjust(3, cpu);
            (0..100).for_each(|_| wake());
            assert_eq!(adjust(4, cpu), before, "{cpu:?}");
        }
        assert_eq!(paused, pauses.total());
    }

    #[test]
    fn the_kernel_says_how_long_a_thread_ran_and_waited() {
        let expected = CpuTimes {
            ran: 2500,
            waited: 300,
        };
        assert_eq!(CpuTimes::parse("2500 300 17\n"), Some(expected));
        assert_eq!(CpuTimes::parse("2500\n"), None);
        assert_eq!(CpuTimes::parse("0 no"), None);
    }
}
