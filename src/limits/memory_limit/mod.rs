//! The memory limit of the process (`--memory-limit`): rejects new requests before the kernel kills
//! the process.
//!
//! Each budget bounds one kind of memory. This limit bounds their sum, and what no budget counts.
//! What is measured is the resident memory of the process. A task samples it; a request only reads
//! the level.
//!
//! What grows under a flood is responses that clients have not read. From half of the limit on they
//! are counted by user and by connection ([`unread_responses`]). At the limit, those that hold more
//! than an equal share are rejected, and their connections close first. Others are served until memory
//! is an eighth above the limit: then all are rejected, whatever it is that takes the memory.
//!
//! What the HTTP library holds for clients that do not read, and what the allocator keeps, only the
//! kernel knows: so resident memory decides when. Whose it is, the bytes of responses show that
//! were handed to a connection and are not written. With 429 for all, a flood that kept the process
//! at the limit took all service from a client that read everything. What frees memory is the
//! clients' progress: so connections without a request close, those with most unread bytes first.
//! Counting starts at half of the limit, so that a request costs one atomic read in ordinary times.

pub(crate) mod read_ahead;
pub(crate) mod unread_responses;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use prometheus::{IntCounter, IntGauge};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::limits::memory_limit::read_ahead::{ReadAheadAccount, ReadAheadBudget};
use crate::limits::memory_limit::unread_responses::{
    ReservedResponse, UnreadConnection, UnreadResponses,
};
use crate::limits::rejection::Rejection;
use crate::upstream::requester::SlotHolder;
use weir_base::metrics::Registry;
use weir_kubernetes::numeric::saturating_usize;
use weir_limits::throttling::memory_pressure::MemoryPressure;

/// The interval of the samples. In this time a core receives some 100 MB from clients, which is
/// less than what the default limit leaves free of the memory of a small Pod (512 MiB).
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// The limit, and how scarce memory is. Shared by all workers.
#[derive(Debug)]
pub struct MemoryLimit {
    /// In bytes; 0 is no limit.
    limit: Arc<AtomicU64>,
    /// Whether what clients hold is counted: read for each request and each chunk of a response,
    /// without the lock of `pressure`.
    is_counting: AtomicBool,
    /// Only the task of the samples changes it.
    pressure: watch::Sender<MemoryPressure>,
    responses: Arc<UnreadResponses>,
    read_ahead: Arc<ReadAheadBudget>,
    last_sample: Sample,
    level: IntGauge,
    rejected_requests: IntCounter,
    rejected_connections: IntCounter,
}

/// What was in use at the last sample. Relaxed ordering: an estimate.
#[derive(Debug, Default)]
struct Sample {
    used: AtomicU64,
    unread: AtomicU64,
}

impl MemoryLimit {
    /// A limit of this many bytes; 0 is no limit.
    #[must_use]
    pub fn new(limit: u64, registry: &Registry) -> Arc<Self> {
        let read_ahead = ReadAheadBudget::new(limit);
        let ahead = Arc::clone(&read_ahead);
        registry.gauge_fn(
            "weir_memory_read_ahead_bytes",
            "Memory for responses that are read ahead of slow clients, in bytes: at most an eighth of --memory-limit, or 128 MiB without one.",
            move || ahead.used(),
        );
        let limit = Arc::new(AtomicU64::new(limit));
        let shown = Arc::clone(&limit);
        registry.gauge_fn(
            "weir_memory_limit_bytes",
            "Resident memory of the process at which requests are rejected (--memory-limit), in bytes; 0 is no limit.",
            move || saturating_usize(shown.load(Ordering::Relaxed)),
        );
        let responses = Arc::<UnreadResponses>::default();
        let counted = Arc::clone(&responses);
        registry.gauge_fn(
            "weir_memory_unread_response_bytes",
            "Bytes of responses that clients have not read, as far as they are counted: from half of --memory-limit on, without what TLS and the kernel hold.",
            move || saturating_usize(counted.bytes()),
        );
        Arc::new(Self {
            limit,
            is_counting: AtomicBool::new(false),
            pressure: watch::Sender::default(),
            responses,
            read_ahead,
            last_sample: Sample::default(),
            level: registry.gauge(
                "weir_memory_pressure",
                "Whether memory is scarce: 0 below --memory-limit, 1 at the limit (requests of those that hold more than their share of unread responses are rejected unless they are exempt), 2 an eighth above it (all new requests and connections are rejected).",
            ),
            rejected_requests: registry.counter(
                "weir_memory_limit_rejected_total",
                "Requests that were rejected because of --memory-limit.",
            ),
            rejected_connections: registry.counter(
                "weir_memory_limit_refused_connections_total",
                "Connections of clients that were closed at once because memory is an eighth above --memory-limit.",
            ),
        })
    }

    /// The requests and connections that were rejected because of it.
    #[must_use]
    pub(crate) fn rejected(&self) -> u64 {
        self.rejected_requests.get() + self.rejected_connections.get()
    }

    /// The limit in bytes; 0 is none.
    #[must_use]
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit, from the next sample on.
    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        self.read_ahead.set_limit(limit);
    }

    /// The memory for a response of this user that is read ahead.
    #[must_use]
    pub(crate) fn read_ahead_account(&self, holder: SlotHolder) -> ReadAheadAccount {
        self.read_ahead.account(holder)
    }

    /// Samples the memory of the process, without end.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut samples = tokio::time::interval(SAMPLE_INTERVAL);
        loop {
            samples.tick().await;
            if self.limit.load(Ordering::Relaxed) > 0
                && let Some(used) = resident_memory()
            {
                self.record(used);
            } else {
                self.record(0);
            }
        }
    }

    /// Records that the process uses this many bytes.
    pub(crate) fn record(&self, used: u64) {
        let limit = self.limit.load(Ordering::Relaxed);
        self.last_sample.used.store(used, Ordering::Relaxed);
        let unread = self.responses.bytes();
        self.last_sample.unread.store(unread, Ordering::Relaxed);
        let before = *self.pressure.borrow();
        let now = before.after(used, limit);
        if now == before {
            return;
        }
        let is_scarce = |level| level >= MemoryPressure::High;
        self.pressure.send_if_modified(|level| {
            *level = now;
            is_scarce(before) || is_scarce(now) // connections wait for nothing else
        });
        self.read_ahead.set_scarce(is_scarce(now));
        let is_counting = now >= MemoryPressure::Elevated;
        self.is_counting.store(is_counting, Ordering::Relaxed);
        self.level.set(match now {
            MemoryPressure::None | MemoryPressure::Elevated => 0,
            MemoryPressure::High => 1,
            MemoryPressure::Critical => 2,
        });
        if is_scarce(now) && now > before {
            let largest_holder = self.responses.largest_holder();
            warn!(used, limit, level = ?now, unread, %largest_holder, "memory is scarce (--memory-limit): requests are rejected");
        } else if is_scarce(before) {
            info!(used, limit, level = ?now, unread, "memory is less scarce");
        }
    }

    /// Whether what clients hold is counted: memory is not scarce yet, but may be soon.
    pub(crate) fn is_counting(&self) -> bool {
        self.is_counting.load(Ordering::Relaxed)
    }

    /// Whether the limit is reached.
    #[must_use]
    pub(crate) fn is_scarce(&self) -> bool {
        *self.pressure.borrow() >= MemoryPressure::High
    }

    /// Admits a request. At the limit only if its holder has no more than its share, or if it is
    /// exempt: an administrator can look at the cluster, and probes get their answers. At the
    /// critical level none. Returns what the request counts for, if anything is counted.
    ///
    /// # Errors
    /// [`Rejection::MemoryLimit`].
    pub(crate) fn admit(
        &self,
        holder: impl FnOnce() -> SlotHolder,
        is_exempt: impl FnOnce() -> bool,
    ) -> Result<Option<ReservedResponse>, Rejection> {
        if !self.is_counting() {
            return Ok(None);
        }
        let level = *self.pressure.borrow();
        let account = self.responses.account(holder());
        let admitted = match level {
            MemoryPressure::Critical => false,
            MemoryPressure::High => !account.exceeds_share() || is_exempt(),
            MemoryPressure::Elevated | MemoryPressure::None => {
                !self.is_limit_near() || !account.exceeds_share() || is_exempt()
            }
        };
        if admitted {
            return Ok(Some(account.reserve()));
        }
        self.rejected_requests.inc();
        Err(Rejection::MemoryLimit)
    }

    /// Whether the limit is reached, as far as is known before the next sample.
    fn is_limit_near(&self) -> bool {
        let used = self.last_sample.used.load(Ordering::Relaxed);
        let unread = self.last_sample.unread.load(Ordering::Relaxed);
        let used = estimate_use(used, unread, self.responses.bytes());
        used >= self.limit.load(Ordering::Relaxed)
    }

    /// What counts for the holder, for a response whose request was admitted before counting began.
    pub(crate) fn reserve(&self, holder: SlotHolder) -> ReservedResponse {
        self.responses.account(holder).reserve()
    }

    /// Whether the client of this connection has left more unread than an equal share of all
    /// connections that have anything unread.
    pub(crate) fn exceeds_share(&self, connection: &UnreadConnection) -> bool {
        self.responses.exceeds_share(connection)
    }

    /// Whether a new connection is served. Counts it if it is not.
    pub(crate) fn admits_connection(&self) -> bool {
        let admitted = *self.pressure.borrow() < MemoryPressure::Critical;
        if !admitted {
            self.rejected_connections.inc();
        }
        admitted
    }

    /// Observes how scarce memory is.
    #[must_use]
    pub(crate) fn observe(&self) -> watch::Receiver<MemoryPressure> {
        self.pressure.subscribe()
    }
}

/// The memory of the process now, by its last sample: what clients hold may have grown since.
const fn estimate_use(sample: u64, held_at_sample: u64, held_now: u64) -> u64 {
    sample.saturating_add(held_now.saturating_sub(held_at_sample))
}

/// The resident memory of the process in bytes. `None` without `/proc`.
fn resident_memory() -> Option<u64> {
    let pages = parse_resident_pages(&fs::read_to_string("/proc/self/statm").ok()?)?;
    let page = u64::try_from(rustix::param::page_size()).ok()?;
    Some(pages.saturating_mul(page))
}

/// The second field of `proc_pid_statm(5)`.
fn parse_resident_pages(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const LIMIT: u64 = 1600;

    fn user(name: &str) -> SlotHolder {
        SlotHolder::User(name.to_owned())
    }

    fn is_admitted(memory: &MemoryLimit, name: &str, is_exempt: bool) -> bool {
        memory.admit(|| user(name), || is_exempt).is_ok()
    }

    #[test]
    fn at_the_limit_holders_above_their_share_are_rejected_and_far_above_it_all() {
        let registry = Registry::new();
        let memory = MemoryLimit::new(LIMIT, &registry);
        let connection = Arc::<UnreadConnection>::default();
        let flood = memory.reserve(user("bob"));
        let unread = flood.count_unread(Bytes::from(vec![0; 1000]), &connection);
        // bob, bob with an exempt request, alice, alice with an exempt request
        let requests = [
            ("bob", false),
            ("bob", true),
            ("alice", false),
            ("alice", true),
        ];
        let steps = [
            (1599, [true; 4], true),
            (1600, [false, true, true, true], true),
            (1800, [false; 4], false),
            (1699, [false, true, true, true], true),
            (1499, [true; 4], true),
        ];
        for (used, expected, connection) in steps {
            memory.record(used);
            let admitted = requests.map(|(name, exempt)| is_admitted(&memory, name, exempt));
            assert_eq!(admitted, expected, "{used}");
            assert_eq!(memory.admits_connection(), connection, "{used}");
        }
        let metrics = registry.render();
        for line in [
            "weir_memory_limit_bytes 1600",
            "weir_memory_pressure 0",
            "weir_memory_unread_response_bytes 1000",
            "weir_memory_limit_rejected_total 6",
            "weir_memory_limit_refused_connections_total 1",
        ] {
            assert!(metrics.contains(line), "{line}: {metrics}");
        }
        drop((flood, unread));
    }

    #[test]
    fn nothing_is_counted_below_half_of_the_limit() {
        let memory = MemoryLimit::new(LIMIT, &Registry::new());
        let reserved = |memory: &MemoryLimit| memory.admit(|| user("bob"), || false).unwrap();
        assert!(reserved(&memory).is_none() && !memory.is_counting());
        memory.record(LIMIT / 2);
        assert!(reserved(&memory).is_some() && memory.is_counting());
        memory.record(LIMIT / 4);
        assert!(reserved(&memory).is_none() && !memory.is_counting());
    }

    #[test]
    fn what_has_grown_since_the_sample_counts_before_the_next_one() {
        let memory = MemoryLimit::new(LIMIT, &Registry::new());
        let connection = Arc::<UnreadConnection>::default();
        memory.record(LIMIT - 100);
        let flood = memory.reserve(user("bob"));
        let unread = flood.count_unread(Bytes::from(vec![0; 99]), &connection);
        assert!(is_admitted(&memory, "bob", false));
        let more = flood.count_unread(Bytes::from_static(b"1"), &connection);
        let admitted = ["bob", "alice"].map(|name| is_admitted(&memory, name, false));
        assert_eq!(admitted, [false, true]);
        memory.record(LIMIT - 100);
        assert!(is_admitted(&memory, "bob", false), "it was freed elsewhere");
        drop((unread, more));
    }

    #[test]
    fn connections_observe_the_limit_and_not_where_counting_begins() {
        let memory = MemoryLimit::new(LIMIT, &Registry::new());
        let mut observed = memory.observe();
        let mut changed = |used| {
            memory.record(used);
            let changed = observed.has_changed().unwrap();
            (changed, *observed.borrow_and_update())
        };
        assert_eq!(changed(LIMIT / 2), (false, MemoryPressure::Elevated));
        assert_eq!(changed(LIMIT), (true, MemoryPressure::High));
        assert_eq!(changed(LIMIT / 2), (true, MemoryPressure::Elevated));
        assert_eq!(changed(0), (false, MemoryPressure::None));
    }

    #[test]
    fn another_limit_applies_from_the_next_sample_on() {
        let memory = MemoryLimit::new(LIMIT, &Registry::new());
        memory.record(2 * LIMIT);
        assert!(!is_admitted(&memory, "alice", false));
        memory.set_limit(2 * LIMIT);
        memory.record(LIMIT);
        assert!(is_admitted(&memory, "alice", false));
        memory.set_limit(0);
        memory.record(u64::MAX);
        assert!(is_admitted(&memory, "alice", false));
    }

    #[test]
    fn the_resident_memory_of_the_process_is_read() {
        assert_eq!(
            parse_resident_pages("2696 1729 1000 1 0 200 0\n"),
            Some(1729)
        );
        assert_eq!(parse_resident_pages(""), None);
        let used = resident_memory().unwrap();
        assert!((1 << 20..1 << 40).contains(&used), "{used}");
    }

    #[test]
    fn the_estimate_adds_what_has_grown_since_the_sample() {
        assert_eq!(estimate_use(100, 20, 50), 130);
        assert_eq!(estimate_use(100, 50, 20), 100, "freed memory may be kept");
        assert_eq!(estimate_use(u64::MAX, 0, 1), u64::MAX);
    }
}
