//! Whether limits are enforced: as each is configured, or as an operator says for all of them.

use std::sync::atomic::{AtomicU8, Ordering};

/// What an operator says of all limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnforcementOverride {
    /// Nothing: each limit does what it is configured to do.
    #[default]
    Configured,
    /// They only count.
    DryRun,
    /// They are enforced.
    Enforced,
    /// Requests pass without them. A limit that is asked nevertheless only counts.
    Lifted,
}

/// The [`EnforcementOverride`] in force, shared by all limits.
#[derive(Debug, Default)]
pub struct EnforcementSwitch {
    /// The variant. Relaxed: no other memory depends on it.
    in_force: AtomicU8,
}

impl EnforcementSwitch {
    /// Changes it.
    pub fn set(&self, to: EnforcementOverride) {
        let bits = match to {
            EnforcementOverride::Configured => 0,
            EnforcementOverride::DryRun => 1,
            EnforcementOverride::Enforced => 2,
            EnforcementOverride::Lifted => 3,
        };
        self.in_force.store(bits, Ordering::Relaxed);
    }

    /// What is in force.
    #[must_use]
    pub fn get(&self) -> EnforcementOverride {
        match self.in_force.load(Ordering::Relaxed) {
            1 => EnforcementOverride::DryRun,
            2 => EnforcementOverride::Enforced,
            3 => EnforcementOverride::Lifted,
            _ => EnforcementOverride::Configured,
        }
    }

    /// Whether a limit only counts that is configured to do so (`configured`) or not to.
    #[must_use]
    pub fn is_dry_run(&self, configured: bool) -> bool {
        match self.get() {
            EnforcementOverride::Configured => configured,
            EnforcementOverride::DryRun | EnforcementOverride::Lifted => true,
            EnforcementOverride::Enforced => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_their_configuration_unless_it_is_overridden() {
        let switch = EnforcementSwitch::default();
        for (to, expected) in [
            (EnforcementOverride::DryRun, [true, true]),
            (EnforcementOverride::Enforced, [false, false]),
            (EnforcementOverride::Lifted, [true, true]),
            (EnforcementOverride::Configured, [false, true]),
        ] {
            switch.set(to);
            assert_eq!(switch.get(), to);
            assert_eq!([false, true].map(|one| switch.is_dry_run(one)), expected);
        }
    }
}
