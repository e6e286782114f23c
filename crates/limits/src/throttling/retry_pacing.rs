//! Paces retries: raises `Retry-After` while rejections for lack of a seat cost too much CPU.
//!
//! A client that is rejected comes back after its `Retry-After`, so a population of 5,000 clients
//! with a `Retry-After` of 1 s costs 5,000 rejections a second. Here each rejection reserves the
//! next free time of a schedule that has as many times a second as the CPU limit pays for, and the
//! client returns at its time. The rate of rejections is therefore the limit's at once and for any
//! number of clients, without a measurement that would lag behind its own effect. The schedule also
//! spreads clients that were rejected together. When clients stay away, the backlog passes with
//! time.
//!
//! A client whose owner has few retries is not paced for the storm of another: an owner's wait is
//! at most that of a schedule of its own with an equal share of the limit.
//!
//! The module is pure: `now` is an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The longest wait that pacing asks for: at 667 rejections a second (the default limit, HTTP/1.1)
/// the 10,000 rejections that may be held are all sent within 15 s. A longer hold would exceed the
/// timeouts of more clients, whose new connections cost more than rejections.
const MAX_PACED_WAIT: Duration = Duration::from_secs(16);

/// The most owners with a schedule of their own; others get the common one. An entry takes less
/// than 64 bytes.
const MAX_OWNERS: usize = 4096;

/// How often owners are removed that no client waits for.
const PRUNE_INTERVAL: Duration = Duration::from_secs(1);

/// The CPU time of one rejection, estimated: three times what it costs on HTTP/1.1 in a hot loop
/// (10 µs, `docs/performance.md`), since the caches are cold when each client returns after seconds.
/// On HTTP/2 the hot loop shares wake-ups between streams, which clients of a storm do not, so only
/// the difference of the two protocols' own work is subtracted. A constant, so that the schedule
/// does not depend on what else the process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionCost {
    /// On an HTTP/1.1 connection.
    Http1,
    /// On an HTTP/2 connection.
    Http2,
}

impl RejectionCost {
    const fn cpu_time(self) -> Duration {
        match self {
            Self::Http1 => Duration::from_micros(30),
            Self::Http2 => Duration::from_micros(24),
        }
    }
}

/// When the client of a rejection may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacedRetry {
    /// The `Retry-After` in seconds: the wait, rounded up.
    pub retry_after: u32,
    /// The wait itself. An early retry is held until then, so that held rejections spread within a
    /// second.
    pub wait: Duration,
}

/// The schedule of one owner.
#[derive(Clone, Copy, Debug)]
struct OwnerSchedule {
    /// When the last reserved time has passed, counted without other owners.
    end: Instant,
    /// When the last client that was rejected returns.
    awaited_until: Instant,
}

/// The schedule of retries.
#[derive(Debug)]
pub struct RetryPacing {
    /// The limit in thousandths of a core; 0 disables pacing.
    max_millicores: u32,
    /// When the last reserved time has passed; `None` before the first.
    end: Option<Instant>,
    owners: HashMap<Option<u64>, OwnerSchedule>,
    pruned_at: Option<Instant>,
}

impl RetryPacing {
    /// Lets rejections cost at most `max_millicores` thousandths of a core; 0 disables pacing.
    #[must_use]
    pub fn new(max_millicores: u32) -> Self {
        Self {
            max_millicores,
            end: None,
            owners: HashMap::new(),
            pruned_at: None,
        }
    }

    /// Changes the limit, in thousandths of a core. Reserved times stay.
    pub fn set_limit(&mut self, max_millicores: u32) {
        self.max_millicores = max_millicores;
    }

    /// Reserves the time at which the client of a rejection that is sent `now` returns.
    /// `owner` is a keyed hash; `None` stands for clients that cannot be distinguished. `retry_after`
    /// is the rejection's own in seconds, which is never shortened.
    pub fn reserve(
        &mut self,
        now: Instant,
        owner: Option<u64>,
        retry_after: u32,
        cost: RejectionCost,
    ) -> PacedRetry {
        let own_wait = Duration::from_secs(retry_after.into());
        if self.max_millicores == 0 {
            return PacedRetry {
                retry_after,
                wait: own_wait,
            };
        }
        self.prune(now);
        let interval = cost.cpu_time().saturating_mul(1000) / self.max_millicores;
        let end = extended(self.end, now, interval);
        self.end = Some(end);
        let common_wait = end.saturating_duration_since(now);
        let is_tracked = self.owners.contains_key(&owner) || self.owners.len() < MAX_OWNERS;
        let paced_wait = if is_tracked {
            let schedule = self.owners.entry(owner).or_insert(OwnerSchedule {
                end: now,
                awaited_until: now,
            });
            schedule.end = extended(Some(schedule.end), now, interval);
            let alone = schedule.end.saturating_duration_since(now);
            let owners = u32::try_from(self.owners.len()).unwrap_or(u32::MAX);
            common_wait.min(alone.saturating_mul(owners))
        } else {
            common_wait
        };
        let wait = own_wait.max(paced_wait);
        if let Some(schedule) = self.owners.get_mut(&owner) {
            schedule.awaited_until = schedule.awaited_until.max(now + wait);
        }
        PacedRetry {
            retry_after: retry_after.max(seconds_rounded_up(paced_wait)),
            wait,
        }
    }

    /// How long a rejection may be held for the schedule: until all reserved times have passed.
    #[must_use]
    pub fn backlog(&self, now: Instant) -> Duration {
        self.end
            .map_or(Duration::ZERO, |end| end.saturating_duration_since(now))
    }

    fn prune(&mut self, now: Instant) {
        let due = self
            .pruned_at
            .is_none_or(|at| now.saturating_duration_since(at) >= PRUNE_INTERVAL);
        if due {
            self.pruned_at = Some(now);
            self.owners
                .retain(|_, schedule| schedule.awaited_until > now);
        }
    }
}

/// The end of a schedule after one more interval, at most [`MAX_PACED_WAIT`] from now.
fn extended(end: Option<Instant>, now: Instant, interval: Duration) -> Instant {
    let end = end.map_or(now, |end| end.max(now));
    (end + interval).min(now + MAX_PACED_WAIT)
}

fn seconds_rounded_up(wait: Duration) -> u32 {
    let whole = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX);
    whole.saturating_add(u32::from(wait.subsec_nanos() > 0))
}

#[cfg(test)]
#[path = "retry_pacing_tests.rs"]
mod tests;
