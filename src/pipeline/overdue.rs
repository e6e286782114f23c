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
    entries: Mutex<Slab<Entry>>,
}

/// What is to end, and when; nothing, once it was ended.
type Entry = (Instant, Option<Arc<dyn Expire>>);

/// An entry; dropping it takes it out.
pub struct Entered {
    overdue: Arc<Overdue>,
    key: usize,
}

impl Overdue {
    /// Enters `what`, to be ended soon after `deadline`.
    #[must_use]
    pub fn enter(self: &Arc<Self>, deadline: Instant, what: Arc<dyn Expire>) -> Entered {
        let key = self.entries().insert((deadline, Some(what)));
        Entered {
            overdue: Arc::clone(self),
            key,
        }
    }

    /// Ends whatever should have ended by `now`.
    pub fn expire(&self, now: Instant) {
        let overdue: Vec<_> = self
            .entries()
            .iter_mut()
            .filter(|(_, (deadline, _))| *deadline <= now)
            .filter_map(|(_, (_, what))| what.take())
            .collect();
        for what in overdue {
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
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::clock::Clock;

    #[derive(Default)]
    struct Counting(AtomicU32);

    impl Expire for Counting {
        fn expire(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_overdue_is_ended_once_however_long_it_stays() {
        let overdue = Arc::new(Overdue::default());
        let what = Arc::new(Counting::default());
        let deadline = Clock.now();
        let ended: Arc<dyn Expire> = Arc::<Counting>::clone(&what);
        let entered = overdue.enter(deadline, ended);
        for _ in 0..3 {
            overdue.expire(deadline + LOOK_EVERY);
        }
        assert_eq!(what.0.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&what), 1, "and not kept");
        drop(entered);
        assert_eq!(format!("{overdue:?}"), "Overdue(0 under way)");
    }
}
