//! Ends what has outlived its time, also when nobody asks for its next byte.
//!
//! A body is polled only while its client reads. One that does not read would hold a seat, and a stream of the upstream,
//! for as long as it likes; so what has a deadline, or has to go on at a [least rate](crate::minimum_rate), is entered here, and a
//! task looks at all of it a few times a second. Entering and leaving cost a lock and a slot each, and transfers only count their
//! bytes: the clock is read once for each look, which is linear in what is under way.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use prometheus::IntCounter;
use slab::Slab;

use crate::metrics::Registry;
use crate::minimum_rate::MinimumRate;
use crate::minimum_rate::RateMeter;

/// How often the task looks: how much later than its deadline something may end.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Something that can be ended from outside.
pub trait Expire: Send + Sync {
    /// Ends it; harmless when it has ended already.
    fn expire(&self);

    /// How it goes on, where a client has to keep it going.
    fn transfer(&self) -> Option<Transfer> {
        None
    }
}

/// What has passed between a client and weir.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Which way.
    pub phase: Phase,
    /// So far: what was received, or accepted by the client's connection.
    pub bytes: u64,
    /// Whether it is the client that is waited for.
    pub awaited: bool,
}

/// What is transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A request's body.
    RequestBody,
    /// An answer's body.
    ResponseBody,
    /// Bytes of another protocol.
    Tunnel,
}

/// Transfers that were ended because they were too slow, by what they were.
#[derive(Clone, Debug)]
pub struct SlowTransfers([IntCounter; 3]);

impl SlowTransfers {
    /// Registers the counters.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let counts = registry.counters(
            "weir_slow_transfers_ended_total",
            "Transfers that were ended because their client fell behind --min-transfer-rate, by phase: request_body (answered 408 where no answer had begun), response_body, tunnel.",
            &["phase"],
        );
        let count = |phase| counts.with_label_values(&[phase]);
        Self(["request_body", "response_body", "tunnel"].map(count))
    }

    fn count(&self, phase: Phase) {
        let [request_body, response_body, tunnel] = &self.0;
        match phase {
            Phase::RequestBody => request_body.inc(),
            Phase::ResponseBody => response_body.inc(),
            Phase::Tunnel => tunnel.inc(),
        }
    }
}

/// Everything that has a deadline or a least rate.
pub struct Overdue {
    rate: MinimumRate,
    slow: SlowTransfers,
    /// Held for one insertion, removal or look; nothing is awaited, and nothing expires, under it.
    entries: Mutex<Slab<Entry>>,
}

struct Entry {
    deadline: Option<Instant>,
    /// From the first look on.
    meter: Option<RateMeter>,
    /// What is to end; nothing, once it was ended.
    what: Option<Arc<dyn Expire>>,
}

impl Entry {
    /// Whether it is to end by now; of a transfer that is too slow, which it is.
    fn look(&mut self, rate: MinimumRate, now: Instant) -> Option<Option<Phase>> {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Some(None);
        }
        let transfer = self.what.as_ref()?.transfer()?;
        let meter = self.meter.get_or_insert_with(|| RateMeter::new(rate, now));
        let in_time = meter.look(rate, now, transfer.bytes, transfer.awaited);
        (!in_time).then_some(Some(transfer.phase))
    }
}

/// An entry; dropping it takes it out.
pub struct Entered {
    overdue: Arc<Overdue>,
    key: usize,
}

impl Overdue {
    /// Of one worker, whose clients have to keep to `rate`.
    #[must_use]
    pub fn new(rate: MinimumRate, slow: SlowTransfers) -> Arc<Self> {
        Arc::new(Self {
            rate,
            slow,
            entries: Mutex::default(),
        })
    }

    /// The least rate of a transfer.
    #[must_use]
    pub const fn rate(&self) -> MinimumRate {
        self.rate
    }

    /// Enters `what`, to be ended soon after `deadline`, if it has one, or when its transfer is too slow, if it is one.
    #[must_use]
    pub fn enter(self: &Arc<Self>, deadline: Option<Instant>, what: Arc<dyn Expire>) -> Entered {
        let key = self.entries().insert(Entry {
            deadline,
            meter: None,
            what: Some(what),
        });
        Entered {
            overdue: Arc::clone(self),
            key,
        }
    }

    /// Ends whatever should have ended by `now`.
    pub fn expire(&self, now: Instant) {
        let mut overdue = Vec::new();
        for (_, entry) in self.entries().iter_mut() {
            if let Some(slow) = entry.look(self.rate, now)
                && let Some(what) = entry.what.take()
            {
                overdue.push((what, slow));
            }
        }
        for (what, slow) in overdue {
            if let Some(phase) = slow {
                self.slow.count(phase);
            }
            what.expire();
        }
    }

    fn entries(&self) -> MutexGuard<'_, Slab<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let entry = self.overdue.entries().try_remove(self.key);
        drop(entry); // after the lock
    }
}

impl fmt::Debug for Overdue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Overdue({} under way)", self.entries().len())
    }
}

impl fmt::Debug for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entered({})", self.key)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::clock::Clock;

    /// With the rate that weir has by itself.
    pub(in crate::pipeline) fn overdue() -> (Arc<Overdue>, Registry) {
        let registry = Registry::new();
        let slow = SlowTransfers::register(&registry);
        (Overdue::new(MinimumRate::default(), slow), registry)
    }

    #[derive(Default)]
    struct Counting(AtomicU32);

    impl Expire for Counting {
        fn expire(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_overdue_is_ended_once_however_long_it_stays() {
        let (overdue, _) = overdue();
        let what = Arc::new(Counting::default());
        let deadline = Clock.now();
        let ended: Arc<dyn Expire> = Arc::<Counting>::clone(&what);
        let entered = overdue.enter(Some(deadline), ended);
        for _ in 0..3 {
            overdue.expire(deadline + LOOK_EVERY);
        }
        assert_eq!(what.0.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&what), 1, "and not kept");
        drop(entered);
        assert_eq!(format!("{overdue:?}"), "Overdue(0 under way)");
    }

    #[derive(Default)]
    struct Download {
        bytes: AtomicU64,
        awaited: AtomicBool,
        ended: AtomicBool,
    }

    impl Expire for Download {
        fn expire(&self) {
            self.ended.store(true, Ordering::Relaxed);
        }

        fn transfer(&self) -> Option<Transfer> {
            Some(Transfer {
                phase: Phase::ResponseBody,
                bytes: self.bytes.load(Ordering::Relaxed),
                awaited: self.awaited.load(Ordering::Relaxed),
            })
        }
    }

    #[test]
    fn a_transfer_ends_when_its_client_is_too_slow_and_not_when_the_server_is() {
        let (overdue, registry) = overdue();
        let download = Arc::new(Download::default());
        let what: Arc<dyn Expire> = Arc::<Download>::clone(&download);
        let _entered = overdue.enter(None, what);
        let mut now = Clock.now();
        let mut pass = |seconds: u32, bytes| {
            for _ in 0..seconds * 4 {
                now += LOOK_EVERY;
                download.bytes.fetch_add(bytes, Ordering::Relaxed);
                overdue.expire(now);
            }
            download.ended.load(Ordering::Relaxed)
        };
        assert!(!pass(600, 0), "the server works");
        download.awaited.store(true, Ordering::Relaxed);
        assert!(!pass(600, 256), "1 KiB/s");
        assert!(!pass(9, 0));
        assert!(pass(2, 0));
        let count = "weir_slow_transfers_ended_total{phase=\"response_body\"} 1";
        assert!(registry.render().contains(count));
    }
}
