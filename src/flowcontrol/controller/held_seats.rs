//! Seats that requests of another process hold: of the one that this process takes over from.
//!
//! Seats that other replicas hold: they and this process divide a total, and move it as they need it.
//!
//! Two processes serve while the old one finishes its requests. The new one leaves it the seats that
//! it still holds, so that both together stay within the limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::apf_controller::Controller;
use super::config::{ControllerConfig, Enforcement};
use weir_kubernetes::numeric::saturating_u32;

/// What the levels that limit their requests need and have, in seats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeatUse {
    /// In use, and reserved for another process.
    pub(crate) in_use: u32,
    /// What queued requests wait for.
    pub(crate) waiting: u32,
    /// What the levels have beyond the seats that they share, since each level's part is rounded
    /// up.
    pub(crate) rounding: u32,
}

impl Controller {
    /// The seats in use of each level that limits its requests, and those that were reserved in it.
    #[must_use]
    pub(crate) fn held_seats(&self) -> BTreeMap<String, u32> {
        let levels = self.levels().into_iter();
        let limited = levels.filter(|level| !level.is_exempt());
        let held = limited.map(|level| (level.name().to_owned(), level.held_seats()));
        held.filter(|(_, seats)| *seats > 0).collect()
    }

    /// Leaves these seats of each level to another process, instead of those of the last call. One
    /// request of a level can execute in any case.
    pub(crate) fn reserve_seats(&self, now: Instant, seats: &BTreeMap<String, u32>) {
        for level in self.levels() {
            let reserved = seats.get(level.name()).copied().unwrap_or_default();
            level.reserve_seats(now, reserved);
        }
    }

    /// What the levels need and have.
    #[must_use]
    pub(crate) fn seat_use(&self) -> SeatUse {
        let (mut in_use, mut waiting) = (0, 0);
        for level in self.levels() {
            if !level.is_exempt() {
                in_use += u64::from(level.held_seats());
                waiting += level.dump().totals.seats_waiting;
            }
        }
        let seats = self.config.load().server_concurrency_limit;
        SeatUse {
            in_use: saturating_u32(in_use),
            waiting: saturating_u32(waiting),
            rounding: self.configuration.lock().rounding(seats),
        }
    }

    /// Changes whether decisions are enforced. Requests that wait keep the settings under which they
    /// arrived. Called by one thread at a time, as all changes of the settings.
    pub(crate) fn set_enforcement(&self, enforcement: Enforcement) {
        let config = **self.config.load();
        self.config.store(Arc::new(ControllerConfig {
            enforcement,
            ..config
        }));
    }

    /// Changes the number of seats that the levels share, as often as the replicas move them. The
    /// statistics of demand go on.
    pub(crate) fn resize(&self, now: Instant, seats: u32) {
        let config = **self.config.load();
        if config.server_concurrency_limit == seats {
            return;
        }
        self.config.store(Arc::new(ControllerConfig {
            server_concurrency_limit: seats,
            ..config
        }));
        let mut configuration = self.configuration.lock();
        configuration.resize(now, seats);
        if configuration.is_in_force() {
            self.seats_gauge.set(seats.into());
        }
    }
}
