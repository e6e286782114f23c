//! Levers: limits that an operator sets in an incident, for a few minutes, on the requests of one
//! client; and settings of all limits that an operator overrides for that time.
//!
//! A [`LeverSet`] is a value: a change makes a new one, and every worker checks requests against the
//! one that is in force, without a common lock. Only a lever that matches is locked. Time is an
//! argument. Who waits for a change, and how a lever reaches weir, is not decided here.
//!
//! A request is checked when it arrives, and again while it waits if a lever was added since. It
//! counts once for each lever: [`LeverSet::check`] takes the last lever that it was checked against.

mod lever;
mod protected;
mod setting;
mod target;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::admission_attributes::{AdmissionAttributes, RequestSource};

pub use self::lever::{
    Lever, LeverAction, LeverCounts, LeverRejection, LeverSnapshot, LeverSpec, format_seconds,
};
pub use self::protected::ProtectedRequesters;
pub use self::setting::{InvalidTotal, LeverSetting, LeverSettings, TotalOverride};
pub use self::target::{
    InvalidPattern, LeverTarget, MAX_VALUE_BYTES, MAX_VALUES, NamePattern, ServiceAccountPattern,
    SourceRange,
};

/// The most levers at a time. Every request is compared with each.
pub const MAX_LEVERS: usize = 100;

/// How long a lever is in force if nothing else is asked for.
pub const DEFAULT_DURATION: Duration = Duration::from_secs(600);

/// How long a lever may be in force. What is needed for longer belongs in the configuration.
pub const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);

/// The levers in force.
#[derive(Clone, Debug, Default)]
pub struct LeverSet {
    /// The id of the last lever that was ever added; 0 before the first.
    latest: u64,
    /// Blocks first, so that a request that is rejected takes no token. Otherwise by age.
    levers: Vec<Arc<Lever>>,
}

/// There are [`MAX_LEVERS`] already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyLevers;

impl LeverSet {
    /// The id of the last lever that was ever added; 0 before the first.
    #[must_use]
    pub const fn latest(&self) -> u64 {
        self.latest
    }

    /// The levers in force, oldest first.
    #[must_use]
    pub fn by_age(&self) -> Vec<Arc<Lever>> {
        let mut levers = self.levers.clone();
        levers.sort_unstable_by_key(|lever| lever.id);
        levers
    }

    /// The number of levers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.levers.len()
    }

    /// Whether there is no lever.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.levers.is_empty()
    }

    /// The number of levers that requests are checked against.
    #[must_use]
    pub fn checked_count(&self) -> usize {
        let settings = self.levers.iter().map(|lever| lever.spec.action.setting());
        settings.filter(Option::is_none).count()
    }

    /// The settings that levers override.
    #[must_use]
    pub fn settings(&self) -> LeverSettings {
        let mut settings = LeverSettings::default();
        for lever in &self.levers {
            if let Some(setting) = lever.spec.action.setting() {
                settings.apply(setting);
            }
        }
        settings
    }

    /// When the next lever ends, if there is one.
    #[must_use]
    pub fn next_end(&self) -> Option<Instant> {
        self.levers.iter().map(|lever| lever.ends_at).min()
    }

    /// Adds a lever. It lasts no longer than [`MAX_DURATION`].
    ///
    /// # Errors
    /// There are too many.
    pub fn pull(&mut self, now: Instant, spec: LeverSpec) -> Result<Arc<Lever>, TooManyLevers> {
        if self.levers.len() >= MAX_LEVERS {
            return Err(TooManyLevers);
        }
        let duration = spec.duration.min(MAX_DURATION);
        self.latest += 1;
        let lever = Arc::new(Lever::new(self.latest, LeverSpec { duration, ..spec }, now));
        let blocks = self
            .levers
            .partition_point(|lever| lever.spec.action == LeverAction::Block);
        let at = match lever.spec.action {
            LeverAction::Block => blocks,
            LeverAction::Limit { .. } | LeverAction::Set(_) => self.levers.len(),
        };
        self.levers.insert(at, Arc::clone(&lever));
        Ok(lever)
    }

    /// Removes the lever that overrides the same setting as `action`, which is to take its place.
    pub fn remove_overridden(&mut self, action: LeverAction) -> Option<Arc<Lever>> {
        let new = action.setting()?;
        let is_same = |lever: &Arc<Lever>| {
            let setting = lever.spec.action.setting();
            setting.is_some_and(|setting| setting.is_same_setting(&new))
        };
        let at = self.levers.iter().position(is_same)?;
        Some(self.levers.remove(at))
    }

    /// Removes a lever. `None` if there is none of this id.
    pub fn undo(&mut self, id: u64) -> Option<Arc<Lever>> {
        let at = self.levers.iter().position(|lever| lever.id == id)?;
        Some(self.levers.remove(at))
    }

    /// Removes the levers that have ended, and returns them.
    pub fn expire(&mut self, now: Instant) -> Vec<Arc<Lever>> {
        let is_over = |lever: &mut Arc<Lever>| lever.ends_at <= now;
        self.levers.extract_if(.., is_over).collect()
    }

    /// Checks a request against the levers that are newer than `after`.
    ///
    /// # Errors
    /// The first lever that rejects it. What others have counted of the request is released, but
    /// tokens are not.
    pub fn check(
        &self,
        now: Instant,
        attributes: &AdmissionAttributes<'_>,
        source: RequestSource<'_>,
        after: u64,
    ) -> Result<LeverPermit, LeverRejection> {
        let mut permit = LeverPermit::default();
        for lever in &self.levers {
            if lever.id > after && lever.applies(attributes, source, now) && lever.admit(now)? {
                permit.0.push(Arc::clone(lever));
            }
        }
        Ok(permit)
    }
}

/// Counts a request for the levers that limit requests in flight, until dropped.
#[derive(Debug, Default)]
pub struct LeverPermit(Vec<Arc<Lever>>);

impl LeverPermit {
    /// Adds what another check of the same request has counted.
    pub fn extend(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }
}

impl Drop for LeverPermit {
    fn drop(&mut self) {
        for lever in &self.0 {
            lever.release();
        }
    }
}
