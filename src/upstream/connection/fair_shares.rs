//! Slots that holders share fairly, without a fixed number for each. Pure.
//!
//! A holder may acquire another slot while it holds fewer than are free (a dynamic threshold, as
//! switches share their buffers). A single holder gets half, two get a third each, and as much is
//! always free for a new holder as any holder has. A request has several holders (its user and its
//! network, for example) and takes a slot of each. Nothing waits for a slot here.
//!
//! A fixed number for each would be too many in one cluster and too few in the next.

use std::collections::HashMap;
use std::hash::Hash;

/// The slots and how many each holder has.
#[derive(Debug)]
pub(crate) struct FairShares<H> {
    total: usize,
    used: usize,
    holders: HashMap<H, usize>,
}

/// Why no slot was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareError<H> {
    /// All slots are in use.
    Full,
    /// This holder has as many slots as are free.
    HolderLimit(H),
}

impl<H: Clone + Eq + Hash> FairShares<H> {
    /// `total` slots, all free.
    #[must_use]
    pub(crate) fn new(total: usize) -> Self {
        Self {
            total,
            used: 0,
            holders: HashMap::new(),
        }
    }

    /// Changes the number of slots. Those beyond it stay in use until they are released.
    pub(crate) const fn set_total(&mut self, total: usize) {
        self.total = total;
    }

    /// Acquires one slot for all of `holders`.
    ///
    /// # Errors
    /// No slot is free, or a holder has its share.
    pub(crate) fn acquire(&mut self, holders: &[H]) -> Result<(), ShareError<H>> {
        let free = self.total.saturating_sub(self.used);
        if free == 0 {
            return Err(ShareError::Full);
        }
        let over = holders.iter().find(|holder| self.held_by(holder) >= free);
        if let Some(holder) = over {
            return Err(ShareError::HolderLimit(holder.clone()));
        }
        self.used += 1;
        for holder in holders {
            *self.holders.entry(holder.clone()).or_default() += 1;
        }
        Ok(())
    }

    /// Releases one slot that was acquired for all of `holders`.
    pub(crate) fn release(&mut self, holders: &[H]) {
        self.used = self.used.saturating_sub(1);
        for holder in holders {
            match self.held_by(holder) {
                0 | 1 => drop(self.holders.remove(holder)),
                several => drop(self.holders.insert(holder.clone(), several - 1)),
            }
        }
    }

    /// The number of slots, and how many are in use.
    #[must_use]
    pub(crate) const fn counts(&self) -> (usize, usize) {
        (self.total, self.used)
    }

    /// The holders of most slots, most first.
    #[must_use]
    pub(crate) fn top_holders(&self, number: usize) -> Vec<(H, usize)>
    where
        H: Ord,
    {
        let mut all: Vec<_> = self.holders.iter().map(|(h, n)| (h.clone(), *n)).collect();
        all.sort_by(|(one, n), (other, m)| m.cmp(n).then_with(|| one.cmp(other)));
        all.truncate(number);
        all
    }

    fn held_by(&self, holder: &H) -> usize {
        self.holders.get(holder).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the free places a holder can take.
    fn acquire_all(shares: &mut FairShares<&'static str>, holder: &'static str) -> usize {
        (0..1000)
            .take_while(|_| shares.acquire(&[holder]).is_ok())
            .count()
    }

    #[test]
    fn a_single_holder_gets_half_and_leaves_as_much_free() {
        let mut shares = FairShares::new(100);
        assert_eq!(acquire_all(&mut shares, "one"), 50);
        assert_eq!(acquire_all(&mut shares, "two"), 25);
        assert_eq!(acquire_all(&mut shares, "one"), 0);
        assert_eq!(
            shares.acquire(&["one"]),
            Err(ShareError::HolderLimit("one"))
        );
        for _ in 0..30 {
            shares.release(&["one"]);
        }
        assert_eq!(acquire_all(&mut shares, "two"), 15);
        assert_eq!(shares.counts(), (100, 60));
        assert_eq!(shares.top_holders(1), [("two", 40)]);
    }

    #[test]
    fn every_holder_of_a_slot_needs_a_share() {
        let mut shares = FairShares::new(4);
        assert_eq!(shares.acquire(&["alice", "10.0.0.1"]), Ok(()));
        assert_eq!(shares.acquire(&["bob", "10.0.0.1"]), Ok(()));
        let denied = shares.acquire(&["carol", "10.0.0.1"]);
        assert_eq!(denied, Err(ShareError::HolderLimit("10.0.0.1")));
        assert_eq!(shares.acquire(&["carol", "10.0.0.2"]), Ok(()));
        assert_eq!(shares.acquire(&["dave", "10.0.0.3"]), Ok(()));
        assert_eq!(shares.acquire(&["erin", "10.0.0.4"]), Err(ShareError::Full));
    }

    #[test]
    fn a_holder_without_slots_is_removed() {
        fastrand::seed(3);
        println!("seed 3");
        let mut shares = FairShares::new(50);
        let mut taken: Vec<[u8; 2]> = Vec::new();
        for _ in 0..10_000 {
            if fastrand::bool() {
                let holders = [fastrand::u8(0..9), fastrand::u8(10..19)];
                if shares.acquire(&holders).is_ok() {
                    taken.push(holders);
                }
            } else if !taken.is_empty() {
                shares.release(&taken.swap_remove(fastrand::usize(..taken.len())));
            }
            assert_eq!(shares.counts(), (50, taken.len()));
        }
        for holders in taken {
            shares.release(&holders);
        }
        assert!(shares.holders.is_empty());
    }
}
