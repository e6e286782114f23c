//! A budget for what is held in memory for clients: request bodies, heads and held rejections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use weir_base::sync::atomic::{AtomicUsize, Ordering};
use weir_base::sync::{Mutex, MutexGuard};

/// One source may hold at most a quarter of a budget, and no more than it leaves free. A client
/// that sends slowly leaves the rest to other clients, and several such clients leave as much to a
/// new one as any of them holds.
pub const SOURCE_FRACTION: usize = 4;

/// The bytes that may be held in memory at a time.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: usize,
    used: AtomicUsize,
    /// Bytes by source, for sources with a limit of their own: no more entries than bodies. The
    /// lock is never held across an await.
    sources: Mutex<HashMap<IpAddr, usize>>,
}

/// A part of the budget. Released on drop.
#[derive(Debug)]
pub struct MemoryReservation {
    budget: Arc<MemoryBudget>,
    /// The source, if it has a limit of its own.
    source: Option<IpAddr>,
    bytes: usize,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicUsize::new(0),
            sources: Mutex::default(),
        })
    }

    /// The bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// An empty reservation without a limit for its source.
    #[must_use]
    pub fn reserve(self: &Arc<Self>) -> MemoryReservation {
        self.reserve_for(None)
    }

    /// An empty reservation for this source, which may hold a quarter of the budget at most, and no
    /// more than it leaves free.
    #[must_use]
    pub fn reserve_for(self: &Arc<Self>, source: Option<IpAddr>) -> MemoryReservation {
        MemoryReservation {
            budget: Arc::clone(self),
            source,
            bytes: 0,
        }
    }

    fn try_acquire(&self, more: usize) -> bool {
        // Relaxed: a sum, which orders nothing else.
        let taken = self
            .used
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                let taken = taken.checked_add(more);
                taken.filter(|taken| *taken <= self.limit)
            });
        taken.is_ok()
    }

    fn try_acquire_for(&self, source: IpAddr, more: usize) -> bool {
        let mut sources = self.sources();
        let had = sources.get(&source).copied().unwrap_or_default();
        let has = had.saturating_add(more);
        let left = self.limit.saturating_sub(self.used().saturating_add(more));
        let fits = has <= (self.limit / SOURCE_FRACTION).min(left) && self.try_acquire(more);
        if fits && has > 0 {
            sources.insert(source, has);
        }
        fits
    }

    fn release(&self, source: Option<IpAddr>, less: usize) {
        self.used.fetch_sub(less, Ordering::Relaxed);
        if let Some(source) = source.filter(|_| less > 0) {
            let mut sources = self.sources();
            match sources.get(&source).map(|had| had.saturating_sub(less)) {
                Some(left) if left > 0 => sources.insert(source, left),
                Some(_) | None => sources.remove(&source),
            };
        }
    }

    fn sources(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.sources.lock()
    }
}

impl MemoryReservation {
    /// Grows to `bytes` in all. Returns whether the budget allowed it.
    pub fn try_grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let fits = match self.source {
            Some(source) => self.budget.try_acquire_for(source, more),
            None => self.budget.try_acquire(more),
        };
        if fits {
            self.bytes += more;
        }
        fits
    }

    /// Releases what it holds beyond `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.budget.release(self.source, less);
        self.bytes -= less;
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_never_exceed_the_budget_and_are_released_on_drop() {
        let budget = MemoryBudget::new(100);
        let (mut first, mut second) = (budget.reserve(), budget.reserve());
        assert!(first.try_grow_to(40) && first.try_grow_to(60) && first.try_grow_to(50));
        assert!(!second.try_grow_to(41));
        assert!(second.try_grow_to(40));
        assert_eq!(budget.used(), 100);
        drop(first);
        assert_eq!(budget.used(), 40);
        drop(second);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_new_source_gets_as_much_as_the_last_one() {
        let budget = MemoryBudget::new(1 << 20);
        let mut taken = Vec::new();
        let mut least = usize::MAX;
        for last in 1..10 {
            let mut source = budget.reserve_for(Some(IpAddr::from([192, 0, 2, last])));
            let mut has = 0;
            while source.try_grow_to(has + 256) {
                has += 256;
            }
            assert!(has > 0 && has <= least, "{last}: {has} after {least}");
            least = has;
            taken.push(source);
            let free = (1 << 20) - budget.used();
            assert!(free >= least, "{last}: {free} free, {least} taken");
        }
    }

    #[test]
    fn one_source_gets_at_most_a_quarter() {
        let budget = MemoryBudget::new(100);
        let of = |last: u8| budget.reserve_for(Some(IpAddr::from([192, 0, 2, last])));
        let (mut first, mut again, mut other) = (of(1), of(1), of(2));
        assert!(first.try_grow_to(20) && !first.try_grow_to(26));
        assert!(!again.try_grow_to(6) && again.try_grow_to(5));
        assert!(other.try_grow_to(25));
        let mut proxy = budget.reserve();
        assert!(!proxy.try_grow_to(51) && proxy.try_grow_to(50));
        assert!(!of(3).try_grow_to(1), "the whole is bounded as well");
        first.shrink_to(30);
        first.shrink_to(10);
        assert_eq!(budget.used(), 90);
        assert!(!again.try_grow_to(6), "it has more than is free");
        drop(proxy);
        assert!(!again.try_grow_to(16) && again.try_grow_to(15));
        drop((first, again, other));
        assert!(of(4).try_grow_to(0));
        assert_eq!((budget.used(), budget.sources().len()), (0, 0));
    }

    #[cfg(weir_loom)]
    mod loom_tests {
        use super::*;
        use weir_base::sync::{model, thread};

        #[test]
        fn neither_the_budget_nor_the_share_of_a_source_is_exceeded() {
            model(|| {
                let budget = MemoryBudget::new(8);
                let source = Some(IpAddr::from([192, 0, 2, 1]));
                let grow = |source, bytes| {
                    let budget = Arc::clone(&budget);
                    move || {
                        let mut reservation = budget.reserve_for(source);
                        reservation.try_grow_to(bytes);
                        reservation
                    }
                };
                let of_source = [2, 1].map(|bytes| thread::spawn(grow(source, bytes)));
                let whole = grow(None, 7)();
                let of_source = of_source.map(|reservation| reservation.join().unwrap());
                let bytes = of_source[0].bytes + of_source[1].bytes;
                assert!(bytes <= 8 / SOURCE_FRACTION, "{bytes}");
                assert_eq!(budget.used(), whole.bytes + bytes);
                assert!(budget.used() <= 8);
                let ends = of_source.map(|reservation| thread::spawn(|| drop(reservation)));
                drop(whole);
                for end in ends {
                    end.join().unwrap();
                }
                assert_eq!((budget.used(), budget.sources().len()), (0, 0));
            });
        }
    }
}
