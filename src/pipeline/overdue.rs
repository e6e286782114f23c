//! Ends what has outlived its time, also when nobody asks for its next byte.
//!
//! A body is polled only while its client reads. One that does not read would hold a seat, and a stream of the upstream,
//! for as long as it likes; so whoever has a deadline is entered here, and a task looks for the overdue a few times a
//! second. Entering and leaving cost a lock and a slot each; the look is linear in what is under way.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use slab::Slab;

/// How often the task looks: how much later than its deadline something may end.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Something that can be ended from outside.
pub trait Expire: Send + Sync {
    /// Ends it; harmless when it has ended already.
    fn expire(&self);
}

/// Everything that has a deadline.
#[derive(Default)]
pub struct Overdue {
    /// Held for one insertion, removal or look; nothing is awaited, and nothing expires, under it.
    entries: Mutex<Slab<(Instant, Arc<dyn Expire>)>>,
}

/// An entry; dropping it takes it out.
pub struct Entered {
    overdue: Arc<Overdue>,
    key: usize,
}

impl Overdue {
    /// Enters `what`, to be ended soon after `deadline`.
    #[must_use]
    pub fn enter(self: &Arc<Self>, deadline: Instant, what: Arc<dyn Expire>) -> Entered {
        let key = self.entries().insert((deadline, what));
        Entered {
            overdue: Arc::clone(self),
            key,
        }
    }

    /// Ends whatever should have ended by `now`.
    pub fn expire(&self, now: Instant) {
        let overdue: Vec<_> = self
            .entries()
            .iter()
            .filter(|(_, (deadline, _))| *deadline <= now)
            .map(|(_, (_, what))| Arc::clone(what))
            .collect();
        for what in overdue {
            what.expire();
        }
    }

    fn entries(&self) -> MutexGuard<'_, Slab<(Instant, Arc<dyn Expire>)>> {
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
