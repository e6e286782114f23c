//! Virtual time. Pure.

/// Nanoseconds since the first arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SimTime(pub u64);

impl SimTime {
    /// This time, so many nanoseconds later.
    pub(crate) const fn plus(self, nanoseconds: u64) -> Self {
        Self(self.0.saturating_add(nanoseconds))
    }

    /// The nanoseconds since an earlier time.
    pub(crate) const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
