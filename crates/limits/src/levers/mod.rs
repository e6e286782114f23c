//! Levers: limits that an operator sets in an incident, for a few minutes, on the requests of one
//! client; and settings of all limits that an operator overrides for that time.
//!
//! A [`LeverSet`] is a value: a change makes a new one, and every worker checks requests against the
//! one that is in force, without a common lock. Only a lever that matches is locked. Time is an
//! argument. Who waits for a change, and how a lever reaches weir, is not decided here.
//!
//! Several processes have the same levers: replicas, and the two of a hand-over. They exchange
//! [`LeverRecord`]s, of levers and of the ends that came before their time, in any order and as often
//! as they like: a set that has them all is the same everywhere. Of two levers that override the same
//! setting the one with the greater key stays.
//!
//! A request is checked when it arrives, and again while it waits if a lever was added since. It
//! counts once for each lever: [`LeverSet::check`] takes the last lever that it was checked against.

mod lever;
mod protected;
mod setting;
mod target;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::admission_attributes::{AdmissionAttributes, RequestSource};

pub use self::lever::{
    Lever, LeverAction, LeverCounts, LeverKey, LeverRejection, LeverSnapshot, LeverSpec,
    LimitShare, MAX_DURATION, MAX_REASON_BYTES, format_seconds,
};
pub use self::protected::ProtectedRequesters;
pub use self::setting::{InvalidTotal, LeverSetting, LeverSettings, TotalOverride};
pub use self::target::{
    InvalidPattern, LeverTarget, MAX_VALUE_BYTES, MAX_VALUES, NamePattern, ServiceAccountPattern,
    SourceRange,
};

/// The most levers at a time. Every request is compared with each.
pub const MAX_LEVERS: usize = 100;

/// The label of the limit of a lever that blocks.
pub const BLOCKED: &str = "blocked";

/// The label of the limit of a lever that limits.
pub const LEVER_LIMIT: &str = "lever-limit";

/// How long a lever is in force if nothing else is asked for.
pub const DEFAULT_DURATION: Duration = Duration::from_secs(600);

/// The most ends that are kept for processes that do not know them yet. An operator has undone as
/// many levers before a replica that was away all the time may bring one back.
const MAX_ENDED: usize = 4 * MAX_LEVERS;

/// The greatest id of a lever of another process: one more is still exact in JSON.
const MAX_ID: u64 = 1 << 52;

/// Ids follow the ids of other processes that are greater by so many at most, which is more levers
/// than operators set while a process is away. A greater id is no reason to refuse the lever: a
/// process that has just started knows no id. But the next ids of this one must not be greater than
/// all others take.
const MAX_ID_STEP: u64 = 1 << 20;

/// The longest name of a process in bytes.
const MAX_ORIGIN_BYTES: usize = 64;

/// The levers in force.
#[derive(Clone, Debug, Default)]
pub struct LeverSet {
    /// The process that sets them; empty where there are no others.
    origin: String,
    /// The number of levers that were ever added.
    latest: u64,
    /// The id that the next one follows.
    last_id: u64,
    share: LimitShare,
    /// Blocks first, so that a request that is rejected takes no token. Otherwise by age.
    levers: Vec<Arc<Lever>>,
    /// Levers that were ended before their time, and when that would have been.
    ended: BTreeMap<LeverKey, Instant>,
}

/// A lever, or its end, for another process. Times are until now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LeverRecord {
    /// It was ended before its time.
    Ended {
        /// Its name.
        key: LeverKey,
        /// How long it would have been in force.
        remaining: Duration,
    },
    /// It is in force.
    InForce {
        /// Its name.
        key: LeverKey,
        /// It, with the rest of its duration.
        spec: Box<LeverSpec>,
    },
}

impl LeverRecord {
    /// The lever's name.
    #[must_use]
    pub const fn key(&self) -> &LeverKey {
        match self {
            Self::Ended { key, .. } | Self::InForce { key, .. } => key,
        }
    }

    /// What is wrong with a record of another process, a line each.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let key = self.key();
        let mut faults = Vec::new();
        if key.id == 0 || key.id > MAX_ID || key.origin.len() > MAX_ORIGIN_BYTES {
            faults.push("it is not the name of a lever".to_owned());
        }
        if let Self::InForce { spec, .. } = self {
            faults.extend(spec.faults());
        }
        faults
    }
}

/// What a record of another process has changed.
#[derive(Debug, Default)]
pub struct Merged {
    /// The lever that is in force now.
    pub added: Option<Arc<Lever>>,
    /// The lever that is not any more.
    pub removed: Option<Arc<Lever>>,
}

/// There are [`MAX_LEVERS`] already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyLevers;

impl LeverSet {
    /// No lever, in the process of this name.
    #[must_use]
    pub fn of_process(origin: String) -> Self {
        Self {
            origin,
            ..Self::default()
        }
    }

    /// The number of the last lever that was ever added; 0 before the first.
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
        let actions = self.levers.iter().map(|lever| lever.spec.action);
        actions.filter(|action| action.may_reject()).count()
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

    /// The levers that are newer than `after` and may end requests in flight.
    pub fn ending(&self, after: u64) -> impl Iterator<Item = &Arc<Lever>> {
        self.levers.iter().filter(move |lever| {
            let ends = lever.spec.ends_in_flight || lever.spec.action == LeverAction::Disconnect;
            ends && lever.arrival > after
        })
    }

    /// Adds a lever. It lasts no longer than [`MAX_DURATION`].
    ///
    /// # Errors
    /// There are too many.
    pub fn pull(&mut self, now: Instant, spec: LeverSpec) -> Result<Arc<Lever>, TooManyLevers> {
        let key = LeverKey {
            id: self.last_id.saturating_add(1),
            origin: self.origin.clone(),
        };
        let id = key.id;
        let added = self.add(now, key, spec)?;
        self.last_id = id;
        Ok(added)
    }

    fn add(
        &mut self,
        now: Instant,
        key: LeverKey,
        spec: LeverSpec,
    ) -> Result<Arc<Lever>, TooManyLevers> {
        if self.levers.len() >= MAX_LEVERS {
            return Err(TooManyLevers);
        }
        let duration = spec.duration.min(MAX_DURATION);
        self.latest += 1;
        let spec = LeverSpec { duration, ..spec };
        let lever = Arc::new(Lever::new(key, self.latest, spec, self.share, now));
        let blocks = self
            .levers
            .partition_point(|lever| lever.spec.action == LeverAction::Block);
        let at = match lever.spec.action {
            LeverAction::Block => blocks,
            LeverAction::Disconnect | LeverAction::Limit { .. } | LeverAction::Set(_) => {
                self.levers.len()
            }
        };
        self.levers.insert(at, Arc::clone(&lever));
        Ok(lever)
    }

    /// What another process has to know of the levers.
    #[must_use]
    pub fn records(&self, now: Instant) -> Vec<LeverRecord> {
        let ended = self.ended.iter().filter(|(_, at)| **at > now);
        let ended = ended.map(|(key, at)| LeverRecord::Ended {
            key: key.clone(),
            remaining: at.saturating_duration_since(now),
        });
        let levers = self.by_age().into_iter();
        let in_force = levers.map(|lever| LeverRecord::InForce {
            key: lever.key(),
            spec: Box::new(LeverSpec {
                duration: lever.remaining(now),
                ..lever.spec.clone()
            }),
        });
        ended.chain(in_force).collect()
    }

    /// Whether a record says nothing new.
    #[must_use]
    pub fn knows(&self, record: &LeverRecord) -> bool {
        let key = record.key();
        let is_ended = self.ended.contains_key(key);
        match record {
            LeverRecord::Ended { .. } => is_ended,
            LeverRecord::InForce { .. } => {
                is_ended || self.levers.iter().any(|lever| lever.key() == *key)
            }
        }
    }

    /// Takes in what another process knows.
    ///
    /// # Errors
    /// There are too many levers.
    pub fn merge(&mut self, now: Instant, record: LeverRecord) -> Result<Merged, TooManyLevers> {
        let id = record.key().id;
        if id.saturating_sub(self.last_id) <= MAX_ID_STEP {
            self.last_id = self.last_id.max(id);
        }
        if self.knows(&record) {
            return Ok(Merged::default());
        }
        match record {
            LeverRecord::Ended { key, remaining } => {
                let removed = self.remove(&key);
                if removed.is_none() {
                    self.record_end(key, now + remaining.min(MAX_DURATION));
                }
                Ok(Merged {
                    added: None,
                    removed,
                })
            }
            LeverRecord::InForce { key, spec } => self.merge_lever(now, key, *spec),
        }
    }

    fn merge_lever(
        &mut self,
        now: Instant,
        key: LeverKey,
        spec: LeverSpec,
    ) -> Result<Merged, TooManyLevers> {
        if spec.duration.is_zero() {
            return Ok(Merged::default());
        }
        let rival = self.overridden_by(spec.action).map(|lever| lever.key());
        if rival.is_some_and(|rival| rival > key) {
            self.record_end(key, now + spec.duration.min(MAX_DURATION));
            return Ok(Merged::default());
        }
        let removed = self.remove_overridden(spec.action);
        let added = self.add(now, key, spec)?;
        Ok(Merged {
            added: Some(added),
            removed,
        })
    }

    /// Divides what limits admit.
    pub fn set_share(&mut self, now: Instant, share: LimitShare) {
        self.share = share;
        for lever in &self.levers {
            lever.set_share(now, share);
        }
    }

    /// How limits are divided.
    #[must_use]
    pub const fn share(&self) -> LimitShare {
        self.share
    }

    /// Removes the lever that overrides the same setting as `action`, which is to take its place.
    pub fn remove_overridden(&mut self, action: LeverAction) -> Option<Arc<Lever>> {
        let key = self.overridden_by(action)?.key();
        self.remove(&key)
    }

    fn overridden_by(&self, action: LeverAction) -> Option<&Arc<Lever>> {
        let new = action.setting()?;
        self.levers.iter().find(|lever| {
            let setting = lever.spec.action.setting();
            setting.is_some_and(|setting| setting.is_same_setting(&new))
        })
    }

    /// Removes the levers of this id: one, unless replicas gave the id at the same time.
    pub fn undo(&mut self, id: u64) -> Vec<Arc<Lever>> {
        let levers = self.levers.iter().filter(|lever| lever.id == id);
        let keys: Vec<_> = levers.map(|lever| lever.key()).collect();
        keys.iter().filter_map(|key| self.remove(key)).collect()
    }

    fn remove(&mut self, key: &LeverKey) -> Option<Arc<Lever>> {
        let at = self.levers.iter().position(|lever| lever.key() == *key)?;
        let lever = self.levers.remove(at);
        lever.set_undone();
        self.record_end(lever.key(), lever.ends_at);
        Some(lever)
    }

    fn record_end(&mut self, key: LeverKey, ends_at: Instant) {
        self.ended.insert(key, ends_at);
        if self.ended.len() > MAX_ENDED {
            let first = self.ended.iter().min_by_key(|(_, ends_at)| **ends_at);
            if let Some(key) = first.map(|(key, _)| key.clone()) {
                self.ended.remove(&key);
            }
        }
    }

    /// Removes the levers that have ended, and returns them.
    pub fn expire(&mut self, now: Instant) -> Vec<Arc<Lever>> {
        self.ended.retain(|_, ends_at| *ends_at > now);
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
            if lever.arrival > after
                && lever.applies(attributes, source, now)
                && lever.admit(now)?
            {
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
