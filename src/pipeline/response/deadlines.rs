//! Expires what has passed its deadline, also without a reader.
//!
//! A body is polled only while its client reads. A client that does not read would hold a seat and
//! an upstream stream indefinitely. So everything with a deadline or a [minimum
//! rate](weir_limits::throttling::minimum_rate) is registered here, and a task checks all entries a few times a
//! second. Registration and removal cost a lock and a slot each, and transfers only count their
//! bytes. The clock is read once per check, which is linear in the number of entries.
//!
//! The check also finds a response that waits for its client twice in a row (a quarter of a
//! second), and starts the task that reads it [ahead](super::read_ahead). So a response that its
//! client reads at once has no task and no buffer.

use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use prometheus::IntCounter;
use slab::Slab;

use crate::pipeline::trace::lever_subject::{LeverEnd, LeverSubject};
use weir_base::metrics::Registry;
use weir_limits::levers::Lever;
use weir_limits::throttling::minimum_rate::{MinimumRate, RateMeter};

/// The interval of the checks: how long after its deadline an entry may expire.
pub(crate) const SCAN_INTERVAL: Duration = Duration::from_millis(250);

/// Something that can be ended from outside.
pub(crate) trait Expire: Send + Sync {
    /// Ends it, at its deadline or because its transfer is too slow; no effect if it has ended
    /// already.
    fn expire(&self, slow: Option<SlowTransfer>);

    /// The progress of a transfer that depends on the client; `None` for anything else.
    fn transfer(&self) -> Option<Transfer> {
        None
    }

    /// Reads the response ahead of its client, which is slow.
    fn read_ahead(self: Arc<Self>) {}

    /// What levers match, if it is a response or a tunnel.
    fn lever_subject(&self) -> Option<LeverSubject> {
        None
    }

    /// Has its connection end once its requests have.
    fn go_away(&self) {}
}

/// The progress of a transfer between a client and weir.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    /// The kind of transfer.
    pub(crate) phase: TransferPhase,
    /// The bytes so far: received, or accepted by the client's connection.
    pub(crate) bytes: u64,
    /// Whether the transfer waits for the client.
    pub(crate) waiting_for_client: bool,
    /// Whether the client may pause, as it holds nothing that others need: the limit is the
    /// longest pause instead of the rate, while memory is not scarce.
    pub(crate) may_pause: bool,
    /// Whether a response may be read ahead of its client, and is not yet.
    pub(crate) may_read_ahead: bool,
    /// Whether the source has sent everything. There is no deadline then.
    pub(crate) source_ended: bool,
}

impl Transfer {
    /// A transfer with no more than this.
    pub(crate) const fn new(phase: TransferPhase, bytes: u64, waiting_for_client: bool) -> Self {
        Self {
            phase,
            bytes,
            waiting_for_client,
            may_pause: false,
            may_read_ahead: false,
            source_ended: false,
        }
    }
}

/// What a client may do that reads its response slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlowReader {
    /// Its response keeps to the minimum rate.
    MinimumRate,
    /// As above; the response is read ahead of it.
    ReadAhead,
    /// Pause: the response holds nothing that others need.
    Pause,
}

impl SlowReader {
    /// The client of a user that is proven or not, of a long-running request or of one that ends.
    pub(crate) const fn new(is_proven: bool, is_long_running: bool) -> Self {
        match (is_proven, is_long_running) {
            (false, _) => Self::MinimumRate,
            (true, false) => Self::ReadAhead,
            (true, true) => Self::Pause,
        }
    }
}

/// A transfer that is ended because its client is too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlowTransfer {
    /// The kind of transfer.
    pub(crate) phase: TransferPhase,
    /// The bytes that were transferred.
    pub(crate) bytes: u64,
    /// The flag that sets the limit.
    pub(crate) flag: &'static str,
}

/// The kind of transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferPhase {
    /// A request body.
    RequestBody,
    /// A response body.
    ResponseBody,
    /// Bytes of another protocol.
    Tunnel,
    /// What is left of responses whose requests have ended.
    EndedResponse,
}

impl TransferPhase {
    /// The limits of this phase. What is left of ended responses gets twice the time, so that
    /// a response on the same connection that is not read ends by itself first.
    fn rate(self, rate: MinimumRate) -> MinimumRate {
        match self {
            Self::RequestBody | Self::ResponseBody | Self::Tunnel => rate,
            Self::EndedResponse => MinimumRate {
                grace: rate.grace.saturating_mul(2),
                pause: rate.pause.saturating_mul(2),
                ..rate
            },
        }
    }
}

/// Counts the transfers that were ended because they were too slow, by kind.
#[derive(Clone, Debug)]
pub struct SlowTransfers([IntCounter; 4]);

impl SlowTransfers {
    /// Registers the counters.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let counts = registry.counters(
            "weir_slow_transfers_ended_total",
            "Transfers that were ended because their client fell behind --min-transfer-rate or paused for --long-running-pause-timeout, by phase: request_body (408 unless a response has started), response_body, tunnel, ended_response (what the client has not read of responses whose requests have ended: the connection is closed).",
            &["phase"],
        );
        let count = |phase| counts.with_label_values(&[phase]);
        Self(["request_body", "response_body", "tunnel", "ended_response"].map(count))
    }

    fn count(&self, phase: TransferPhase) {
        let [request_body, response_body, tunnel, ended_response] = &self.0;
        match phase {
            TransferPhase::RequestBody => request_body.inc(),
            TransferPhase::ResponseBody => response_body.inc(),
            TransferPhase::Tunnel => tunnel.inc(),
            TransferPhase::EndedResponse => ended_response.inc(),
        }
    }
}

/// Everything with a deadline or a minimum rate.
pub struct Deadlines {
    rate: ArcSwap<MinimumRate>,
    slow_transfers: SlowTransfers,
    /// While it is, no transfer may pause: what is buffered for it is needed. Relaxed: it orders
    /// nothing else.
    memory_is_scarce: AtomicBool,
    /// Locked for one insertion, removal or check; nothing is awaited and nothing expires under it.
    entries: Mutex<Slab<DeadlineEntry>>,
}

struct DeadlineEntry {
    deadline: Option<Instant>,
    /// Set by the first check.
    meter: Option<RateMeter>,
    /// Whether the last check found a response that may be read ahead waiting for its client.
    is_slow: bool,
    /// The lever that ends it, unless it is undone before.
    lever_end: Option<Box<ScheduledEnd>>,
    /// What expires; `None` once it has.
    expirable: Option<Arc<dyn Expire>>,
}

/// An end by a lever that spreads them.
struct ScheduledEnd {
    at: Instant,
    lever: Arc<Lever>,
    cuts_off: bool,
}

/// What a check has found.
enum EntryState {
    InTime,
    /// A response whose client is slow, which may be read ahead.
    ReadAhead,
    /// The deadline has passed.
    Overdue,
    Slow(SlowTransfer),
}

impl DeadlineEntry {
    /// The state of the entry by now.
    fn check(&mut self, rate: MinimumRate, now: Instant, memory_is_scarce: bool) -> EntryState {
        let transfer = self.expirable.as_ref().and_then(|what| what.transfer());
        let source_ended = transfer.is_some_and(|transfer| transfer.source_ended);
        if !source_ended && self.deadline.is_some_and(|deadline| deadline <= now) {
            return EntryState::Overdue;
        }
        let Some(transfer) = transfer else {
            return EntryState::InTime;
        };
        let rate = transfer.phase.rate(rate);
        let (bytes, awaited) = (transfer.bytes, transfer.waiting_for_client);
        let meter = self.meter.get_or_insert_with(|| RateMeter::new(rate, now));
        let (in_time, flag) = if transfer.may_pause && !memory_is_scarce {
            let in_time = meter.check_pause(rate, now, bytes, awaited);
            (in_time, "--long-running-pause-timeout")
        } else {
            let in_time = meter.check(rate, now, bytes, awaited);
            (in_time, "--min-transfer-rate")
        };
        if !in_time {
            return EntryState::Slow(SlowTransfer {
                phase: transfer.phase,
                bytes,
                flag,
            });
        }
        let is_slow = transfer.may_read_ahead && awaited;
        let was_slow = std::mem::replace(&mut self.is_slow, is_slow);
        if is_slow && was_slow {
            return EntryState::ReadAhead;
        }
        EntryState::InTime
    }
}

/// An entry; dropping it removes it.
pub(crate) struct DeadlineGuard {
    deadlines: Arc<Deadlines>,
    key: usize,
}

impl Deadlines {
    /// The deadlines of one worker, whose clients must keep to `rate`.
    #[must_use]
    pub fn new(rate: MinimumRate, slow_transfers: SlowTransfers) -> Arc<Self> {
        Arc::new(Self {
            rate: ArcSwap::from_pointee(rate),
            slow_transfers,
            memory_is_scarce: AtomicBool::new(false),
            entries: Mutex::default(),
        })
    }

    /// The minimum rate of a transfer.
    #[must_use]
    pub(crate) fn rate(&self) -> MinimumRate {
        **self.rate.load()
    }

    /// Changes the minimum rate, also of transfers under way. What a transfer has fallen behind
    /// still counts.
    pub(crate) fn set_rate(&self, rate: MinimumRate) {
        self.rate.store(Arc::new(rate));
    }

    /// Sets whether memory is scarce, from the next check on.
    pub(crate) fn set_memory_scarce(&self, scarce: bool) {
        self.memory_is_scarce.store(scarce, Ordering::Relaxed);
    }

    /// Registers `expirable`, which expires soon after `deadline`, if it has one, or when its
    /// transfer is too slow, if it is one.
    #[must_use]
    pub(crate) fn register(
        self: &Arc<Self>,
        deadline: Option<Instant>,
        expirable: Arc<dyn Expire>,
    ) -> DeadlineGuard {
        let key = self.entries().insert(DeadlineEntry {
            deadline,
            meter: None,
            is_slow: false,
            lever_end: None,
            expirable: Some(expirable),
        });
        DeadlineGuard {
            deadlines: Arc::clone(self),
            key,
        }
    }

    /// Expires every entry that is due by `now`, and reads responses of slow clients ahead.
    pub(crate) fn expire(&self, now: Instant) {
        let (mut expired, mut slow_readers, rate) = (Vec::new(), Vec::new(), self.rate());
        let memory_is_scarce = self.memory_is_scarce.load(Ordering::Relaxed);
        let mut leaving = Vec::new();
        for (_, entry) in self.entries().iter_mut() {
            if let Some(end) = entry.lever_end.take_if(|end| end.at <= now)
                && !end.lever.is_undone()
            {
                leaving.extend(entry.expirable.clone());
                if end.cuts_off {
                    expired.extend(entry.expirable.take().map(|what| (what, None)));
                    continue;
                }
            }
            let slow = match entry.check(rate, now, memory_is_scarce) {
                EntryState::InTime => continue,
                EntryState::ReadAhead => {
                    slow_readers.extend(entry.expirable.clone());
                    continue;
                }
                EntryState::Overdue => None,
                EntryState::Slow(slow) => Some(slow),
            };
            if let Some(expirable) = entry.expirable.take() {
                expired.push((expirable, slow));
            }
        }
        for response in slow_readers {
            response.read_ahead();
        }
        for what in leaving {
            what.go_away();
        }
        for (expirable, slow) in expired {
            if let Some(slow) = slow {
                self.slow_transfers.count(slow.phase);
            }
            expirable.expire(slow);
        }
    }

    /// Ends what new levers are aimed at: now, or at a random moment until the lever ends.
    pub(crate) fn end_by(&self, levers: &[Arc<Lever>], now: Instant) {
        let entries: Vec<_> = {
            let entries = self.entries();
            let entries = entries.iter();
            entries
                .filter_map(|(key, entry)| Some((key, entry.expirable.clone()?)))
                .collect()
        };
        // Not under the lock: what is asked has locks of its own.
        for (key, expirable) in entries {
            let Some(subject) = expirable.lever_subject() else {
                continue;
            };
            for lever in levers {
                match subject.end_by(lever, now, fastrand::f64()) {
                    None => {}
                    Some(end) if end.after.is_zero() => expirable.expire(None),
                    Some(LeverEnd { after, cuts_off }) => {
                        if let Some(entry) = self.entries().get_mut(key) {
                            entry.lever_end = Some(Box::new(ScheduledEnd {
                                at: now + after,
                                lever: Arc::clone(lever),
                                cuts_off,
                            }));
                        }
                    }
                }
            }
        }
    }

    fn entries(&self) -> MutexGuard<'_, Slab<DeadlineEntry>> {
        self.entries.lock()
    }
}

impl Drop for DeadlineGuard {
    fn drop(&mut self) {
        let entry = self.deadlines.entries().try_remove(self.key);
        drop(entry); // after the lock
    }
}

impl fmt::Debug for Deadlines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deadlines({} under way)", self.entries().len())
    }
}

impl fmt::Debug for DeadlineGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeadlineGuard({})", self.key)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64};

    use super::*;
    use weir_base::clock::Clock;

    /// With weir's default rate.
    pub(crate) fn deadlines() -> (Arc<Deadlines>, Registry) {
        let registry = Registry::new();
        let slow = SlowTransfers::register(&registry);
        (Deadlines::new(MinimumRate::default(), slow), registry)
    }

    #[derive(Default)]
    struct ExpireCounter(AtomicU32);

    impl Expire for ExpireCounter {
        fn expire(&self, _: Option<SlowTransfer>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn an_entry_past_its_deadline_expires_once() {
        let (overdue, _) = deadlines();
        let what = Arc::new(ExpireCounter::default());
        let deadline = Clock.now();
        let ended: Arc<dyn Expire> = Arc::<ExpireCounter>::clone(&what);
        let entered = overdue.register(Some(deadline), ended);
        for _ in 0..3 {
            overdue.expire(deadline + SCAN_INTERVAL);
        }
        assert_eq!(what.0.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&what), 1, "and not kept");
        drop(entered);
        assert_eq!(format!("{overdue:?}"), "Deadlines(0 under way)");
    }

    #[derive(Default)]
    struct Download {
        bytes: AtomicU64,
        waiting_for_client: AtomicBool,
        may_pause: AtomicBool,
        ended: AtomicBool,
    }

    impl Expire for Download {
        fn expire(&self, _: Option<SlowTransfer>) {
            self.ended.store(true, Ordering::Relaxed);
        }

        fn transfer(&self) -> Option<Transfer> {
            let bytes = self.bytes.load(Ordering::Relaxed);
            let waiting = self.waiting_for_client.load(Ordering::Relaxed);
            Some(Transfer {
                may_pause: self.may_pause.load(Ordering::Relaxed),
                ..Transfer::new(TransferPhase::ResponseBody, bytes, waiting)
            })
        }
    }

    #[test]
    fn the_minimum_rate_changes_for_transfers_under_way() {
        let (overdue, _) = deadlines();
        let download = Arc::new(Download::default());
        download.waiting_for_client.store(true, Ordering::Relaxed);
        let what: Arc<dyn Expire> = Arc::<Download>::clone(&download);
        let _entered = overdue.register(None, what);
        let start = Clock.now();
        let ended_after = |seconds| {
            overdue.expire(start + Duration::from_secs(seconds));
            download.ended.load(Ordering::Relaxed)
        };
        assert!(!ended_after(0) && !ended_after(5));
        overdue.set_rate(MinimumRate {
            bytes_per_second: 0,
            ..MinimumRate::default()
        });
        assert!(!ended_after(600), "there is no minimum");
        overdue.set_rate(MinimumRate::default());
        assert!(!ended_after(604));
        assert!(ended_after(606), "it has stalled for ten seconds in all");
    }

    #[test]
    fn a_transfer_that_may_pause_does_so_while_memory_is_not_scarce() {
        let (overdue, _) = deadlines();
        let download = Arc::new(Download::default());
        download.waiting_for_client.store(true, Ordering::Relaxed);
        download.may_pause.store(true, Ordering::Relaxed);
        let what: Arc<dyn Expire> = Arc::<Download>::clone(&download);
        let _entered = overdue.register(None, what);
        let start = Clock.now();
        let ended_after = |seconds| {
            overdue.expire(start + Duration::from_secs(seconds));
            download.ended.load(Ordering::Relaxed)
        };
        assert!(!ended_after(0) && !ended_after(800));
        overdue.set_memory_scarce(true);
        assert!(!ended_after(801) && !ended_after(809), "it has its grace");
        assert!(ended_after(811));
    }

    #[test]
    fn a_transfer_expires_for_a_slow_client_and_not_for_a_slow_server() {
        let (overdue, registry) = deadlines();
        let download = Arc::new(Download::default());
        let what: Arc<dyn Expire> = Arc::<Download>::clone(&download);
        let _entered = overdue.register(None, what);
        let mut now = Clock.now();
        let mut pass = |seconds: u32, bytes| {
            for _ in 0..seconds * 4 {
                now += SCAN_INTERVAL;
                download.bytes.fetch_add(bytes, Ordering::Relaxed);
                overdue.expire(now);
            }
            download.ended.load(Ordering::Relaxed)
        };
        assert!(!pass(600, 0), "the server works");
        download.waiting_for_client.store(true, Ordering::Relaxed);
        assert!(!pass(600, 256), "1 KiB/s");
        assert!(!pass(9, 0));
        assert!(pass(2, 0));
        let count = "weir_slow_transfers_ended_total{phase=\"response_body\"} 1";
        assert!(registry.render().contains(count));
    }
}
