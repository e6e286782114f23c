//! Metrics of the process: CPU time, memory, files and threads, with the names of Prometheus'
//! client libraries.
//!
//! Values are read from `/proc` at each scrape. Without `/proc`, none of these metrics exist.

use std::fs;
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, IntCounter, IntGauge};
use rustix::time::{ClockId, clock_gettime};

use crate::metrics::Registry;
use weir_kubernetes::numeric::{saturating_i64, saturating_u64};

/// The collector of the process metrics.
struct ProcessMetrics {
    cpu: Counter,
    resident_memory: IntGauge,
    virtual_memory: IntGauge,
    max_virtual_memory: IntGauge,
    open_files: IntGauge,
    max_open_files: IntGauge,
    threads: IntGauge,
    start_time: Gauge,
}

/// Fields of `/proc/self/stat`.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    threads: i64,
    /// In clock ticks since the machine's start.
    start_ticks: u64,
    virtual_bytes: i64,
    resident_pages: i64,
}

/// How often a process took over from another one.
#[derive(Clone, Debug)]
pub struct HandoverMetrics {
    succeeded: IntCounter,
    failed: IntCounter,
}

impl HandoverMetrics {
    /// Registers the counter.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let handovers = registry.counters(
            "weir_handovers_total",
            "Hand-overs to another process (SIGUSR2), by result: success is counted by the new process, failure by the old one, which keeps serving.",
            &["result"],
        );
        Self {
            succeeded: handovers.with_label_values(&["success"]),
            failed: handovers.with_label_values(&["failure"]),
        }
    }

    /// This process has taken over.
    pub fn record_success(&self) {
        self.succeeded.inc();
    }

    /// No process has taken over from this one.
    pub fn record_failure(&self) {
        self.failed.inc();
    }
}

/// Registers the process metrics.
pub fn register(registry: &Registry) {
    if let Some(process) = ProcessMetrics::new() {
        registry.register_collector(process);
    }
}

impl ProcessMetrics {
    /// Returns `None` if `/proc` cannot be read.
    #[expect(
        clippy::expect_used,
        reason = "names are constants of this program; a test renders them all"
    )]
    fn new() -> Option<Self> {
        let stat = read_stat()?;
        let gauge = |name, help| IntGauge::new(name, help).expect("a name is well-formed");
        let start_time = Gauge::new(
            "process_start_time_seconds",
            "When the process began, in seconds since 1970.",
        )
        .expect("a name is well-formed");
        start_time.set(unix_start_time(stat.start_ticks)?.as_secs_f64());
        Some(Self {
            cpu: Counter::new(
                "process_cpu_seconds_total",
                "Processor time that the process has used, in seconds.",
            )
            .expect("a name is well-formed"),
            resident_memory: gauge(
                "process_resident_memory_bytes",
                "Memory of the process that is in use, in bytes.",
            ),
            virtual_memory: gauge(
                "process_virtual_memory_bytes",
                "Address space of the process, in bytes.",
            ),
            max_virtual_memory: gauge(
                "process_virtual_memory_max_bytes",
                "Address space that the process may have, in bytes.",
            ),
            open_files: gauge("process_open_fds", "Files that the process has open."),
            max_open_files: gauge("process_max_fds", "Files that the process may have open."),
            threads: gauge("process_threads", "Threads of the process."),
            start_time,
        })
    }

    fn collectors(&self) -> [&dyn Collector; 8] {
        [
            &self.cpu,
            &self.resident_memory,
            &self.virtual_memory,
            &self.max_virtual_memory,
            &self.open_files,
            &self.max_open_files,
            &self.threads,
            &self.start_time,
        ]
    }

    fn refresh(&self) {
        let used = clock_gettime(ClockId::ProcessCPUTime);
        if let Ok(used) = Duration::try_from(used) {
            // Concurrent scrapes add the same difference: the sum never exceeds the time used.
            let delta = used.as_secs_f64() - self.cpu.get();
            self.cpu.inc_by(delta.max(0.0));
        }
        if let Some(stat) = read_stat() {
            let page = i64::try_from(rustix::param::page_size()).unwrap_or(4096);
            self.resident_memory
                .set(stat.resident_pages.saturating_mul(page));
            self.virtual_memory.set(stat.virtual_bytes);
            self.threads.set(stat.threads);
        }
        if let Some(open) = count_open_files() {
            self.open_files.set(open);
        }
        for (gauge, resource) in [
            (&self.max_open_files, rlimit::Resource::NOFILE),
            (&self.max_virtual_memory, rlimit::Resource::AS),
        ] {
            if let Ok((most, _)) = resource.get() {
                gauge.set(saturating_i64(most));
            }
        }
    }
}

impl Collector for ProcessMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.collectors()
            .iter()
            .flat_map(|part| part.desc())
            .collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.refresh();
        let parts = self.collectors();
        parts.iter().flat_map(|part| part.collect()).collect()
    }
}

fn read_stat() -> Option<ProcessStat> {
    parse_stat(&fs::read_to_string("/proc/self/stat").ok()?)
}

/// Parses `proc_pid_stat(5)`. The second field, the program's name, is in parentheses and may
/// contain any character.
fn parse_stat(text: &str) -> Option<ProcessStat> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(17); // from the third to the twentieth
    let threads = fields.next()?.parse().ok()?;
    let start_time = fields.nth(1)?.parse().ok()?;
    let mapped_bytes = fields.next()?.parse().ok()?;
    let resident_pages = fields.next()?.parse().ok()?;
    Some(ProcessStat {
        threads,
        start_ticks: start_time,
        virtual_bytes: mapped_bytes,
        resident_pages,
    })
}

/// Converts clock ticks since the machine's start to the time since 1970.
fn unix_start_time(ticks: u64) -> Option<Duration> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let since_1970 = text
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()?;
    let milliseconds = ticks
        .saturating_mul(1000)
        .checked_div(rustix::param::clock_ticks_per_second())?;
    Some(Duration::from_secs(since_1970) + Duration::from_millis(milliseconds))
}

/// The processor time that the process has used, and its resident memory in bytes; zero where they
/// are not known.
pub fn usage() -> (Duration, u64) {
    let used = Duration::try_from(clock_gettime(ClockId::ProcessCPUTime));
    let pages = read_stat().map_or(0, |stat| stat.resident_pages);
    let memory = u64::try_from(pages).unwrap_or_default();
    (
        used.unwrap_or_default(),
        memory.saturating_mul(saturating_u64(rustix::param::page_size())),
    )
}

/// The files that the process has open, and how many it may have. `None` without `/proc`.
pub fn open_files() -> Option<(u64, u64)> {
    let open = u64::try_from(count_open_files()?).ok()?;
    let (limit, _) = rlimit::Resource::NOFILE.get().ok()?;
    Some((open, limit))
}

/// Linux 6.2 and later report the number as the directory's size. On older kernels the entries are
/// counted.
fn count_open_files() -> Option<i64> {
    let folder = "/proc/self/fd";
    let size = fs::metadata(folder).ok()?.len();
    let open = if size > 0 {
        size
    } else {
        u64::try_from(fs::read_dir(folder).ok()?.count()).ok()?
    };
    i64::try_from(open).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::clock::Clock;

    #[test]
    fn a_program_name_with_parentheses_is_parsed() {
        let text = "7 (a) b (c d) S 1 7 7 0 -1 4194560 3217 0 0 0 250 130 0 0 20 0 5 0 4321 11042816 1729 184467 1 1 0";
        assert_eq!(
            parse_stat(text),
            Some(ProcessStat {
                threads: 5,
                start_ticks: 4321,
                virtual_bytes: 11_042_816,
                resident_pages: 1729,
            })
        );
        assert_eq!(parse_stat("7 (weir) S 1 7"), None);
    }

    fn metric_value(text: &str, name: &str) -> f64 {
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    }

    /// How much the open files, the memory in bytes and the CPU seconds grow with 50 files and
    /// 64 MiB.
    fn grows_with_use(registry: &Registry) -> (f64, f64, f64) {
        let before = registry.render();
        let files: Vec<_> = (0..50)
            .map(|_| File::open("/proc/self/stat").unwrap())
            .collect();
        let memory = vec![1_u8; 64 << 20];
        let work = memory.iter().fold(0_u64, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
        });
        assert!(work > 0);
        let after = registry.render();
        drop(files);
        let grown = |name| metric_value(&after, name) - metric_value(&before, name);
        (
            grown("process_open_fds"),
            grown("process_resident_memory_bytes"),
            grown("process_cpu_seconds_total"),
        )
    }

    #[test]
    fn the_metrics_match_the_process() {
        let registry = Registry::new();
        register(&registry);
        // Tests that run beside this one close files and free memory of the same process.
        let attempts = (0..20).map(|_| grows_with_use(&registry));
        let mut seen = Vec::new();
        let grown = attempts
            .inspect(|attempt| seen.push(format!("{attempt:?}")))
            .any(|(files, bytes, seconds)| files >= 50.0 && bytes >= 6e7 && seconds > 0.0);
        assert!(grown, "{seen:#?}");
        let after = registry.render();
        assert!(
            metric_value(&after, "process_max_fds") >= metric_value(&after, "process_open_fds")
        );
        assert!(metric_value(&after, "process_threads") >= 1.0);
        let now = Clock.wall().duration_since(std::time::UNIX_EPOCH).unwrap();
        let age = now.as_secs_f64() - metric_value(&after, "process_start_time_seconds");
        assert!((-2.0..86_400.0).contains(&age), "{age} s old");
    }
}
