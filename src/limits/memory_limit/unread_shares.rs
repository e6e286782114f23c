//! Which holder of memory has more than its share. Pure.

/// What is held, by how many holders. A holder is a user or a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HeldMemory {
    /// In bytes.
    pub(super) total: u64,
    /// The holders of at least one byte.
    pub(super) holders: u64,
}

impl HeldMemory {
    /// Whether a holder of `held` bytes has more than an equal share. One share is left for a
    /// newcomer, so that a single holder has more than its share, too.
    pub(super) const fn is_exceeded_by(self, held: u64) -> bool {
        held > self.total / self.holders.saturating_add(1)
    }
}

/// The memory of the process now, by its last sample: what clients hold may have grown since.
pub(super) const fn estimate_use(sample: u64, held_at_sample: u64, held_now: u64) -> u64 {
    sample.saturating_add(held_now.saturating_sub(held_at_sample))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exceeding(held: &[u64]) -> Vec<u64> {
        let memory = HeldMemory {
            total: held.iter().sum(),
            holders: held.len().try_into().unwrap(),
        };
        let exceeding = held.iter().filter(|held| memory.is_exceeded_by(**held));
        exceeding.copied().collect()
    }

    #[test]
    fn those_above_an_equal_share_exceed_it_and_a_newcomer_never_does() {
        assert_eq!(exceeding(&[250, 1, 3]), [250]);
        assert_eq!(exceeding(&[250]), [250], "one share is left for another");
        assert_eq!(exceeding(&[100, 100, 100]), [100; 3]);
        assert_eq!(exceeding(&[100, 90, 4, 3, 2]), [100, 90]);
        for memory in [
            HeldMemory::default(),
            HeldMemory {
                total: u64::MAX,
                holders: u64::MAX,
            },
        ] {
            assert!(!memory.is_exceeded_by(0));
        }
    }

    #[test]
    fn some_holder_exceeds_its_share_unless_nothing_is_held() {
        fastrand::seed(5);
        println!("seed 5");
        for _ in 0..1000 {
            let held: Vec<u64> = (0..fastrand::usize(1..20))
                .map(|_| fastrand::u64(1..1 << fastrand::u32(1..40)))
                .collect();
            let most = held.iter().max().unwrap();
            assert!(exceeding(&held).contains(most), "{held:?}");
        }
    }

    #[test]
    fn the_estimate_adds_what_has_grown_since_the_sample() {
        assert_eq!(estimate_use(100, 20, 50), 130);
        assert_eq!(estimate_use(100, 50, 20), 100, "freed memory may be kept");
        assert_eq!(estimate_use(u64::MAX, 0, 1), u64::MAX);
    }
}
