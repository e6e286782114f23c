//! One lever: what it does to a request that matches or to the limits, and what it has done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::admission_attributes::{AdmissionAttributes, RequestSource};
use crate::levers::protected::ProtectedRequesters;
use crate::levers::setting::LeverSetting;
use crate::levers::target::LeverTarget;
use crate::throttling::token_bucket::{Rate, TokenBucket, retry_after_seconds};
use weir_kubernetes::numeric::saturating_u64;

/// The longest `Retry-After`. A lever may be undone, and clients notice within this time.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// When a request may find fewer requests in flight.
const IN_FLIGHT_RETRY_AFTER: Duration = Duration::from_secs(1);

/// What a lever does: to the requests of its target, or to the limits of all requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeverAction {
    /// Rejects all.
    Block,
    /// Admits some of them. Without either limit it admits all.
    Limit {
        /// Requests a second, and as many at once; at least 1. One bucket for all of the target.
        qps: Option<u32>,
        /// Requests at a time, at least 1. Those that were admitted before the lever do not count.
        in_flight: Option<u32>,
    },
    /// Overrides what is configured. It has no target and rejects nothing.
    Set(LeverSetting),
}

impl LeverAction {
    /// The labels of all actions.
    pub const LABELS: [&str; 5] = ["block", "bypass", "dry-run", "limit", "total"];

    /// The label of metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Limit { .. } => "limit",
            Self::Set(LeverSetting::Bypass) => "bypass",
            Self::Set(LeverSetting::DryRun(_)) => "dry-run",
            Self::Set(LeverSetting::Total(_)) => "total",
        }
    }

    /// The setting that it overrides, if it overrides one.
    #[must_use]
    pub const fn setting(self) -> Option<LeverSetting> {
        match self {
            Self::Block | Self::Limit { .. } => None,
            Self::Set(setting) => Some(setting),
        }
    }
}

/// A lever, before it is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeverSpec {
    /// What it does.
    pub action: LeverAction,
    /// To which requests. Empty for a setting.
    pub target: LeverTarget,
    /// How long.
    pub duration: Duration,
    /// Why; may be empty. Clients see it.
    pub reason: String,
    /// Who wanted it.
    pub pulled_by: String,
    /// The requesters that are spared; `None` spares nothing.
    pub spared: Option<ProtectedRequesters>,
}

/// A lever that is in force.
#[derive(Debug)]
pub struct Lever {
    /// Greater than that of every earlier lever.
    pub id: u64,
    /// What it does.
    pub spec: LeverSpec,
    /// When it ends.
    pub ends_at: Instant,
    /// The text of `spec`, for rejections.
    reason: Arc<str>,
    /// Locked for a request that matches, by any worker. Nothing is awaited under it.
    state: Mutex<LeverState>,
}

/// What a lever has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeverCounts {
    /// Requests that it has rejected.
    pub rejected: u64,
    /// Requests of protected requesters that it has spared.
    pub spared: u64,
    /// Requests that it has admitted and that have not ended, where it limits them.
    pub in_flight: u32,
}

/// A lever as plain data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeverSnapshot {
    /// Its id.
    pub id: u64,
    /// `block`, `limit` or the name of a setting.
    pub action: String,
    /// The value of a setting.
    pub value: Option<String>,
    /// The limit of requests a second.
    pub qps: Option<u32>,
    /// The limit of requests at a time.
    pub in_flight_limit: Option<u32>,
    /// Requests that count for that limit now.
    pub in_flight: u32,
    /// The target, as the flags of `weir ctl`.
    pub target: String,
    /// The time until its end.
    pub remaining_seconds: f64,
    /// Requests that it has rejected.
    pub rejected: u64,
    /// Requests that it has spared.
    pub spared: u64,
    /// Whether it spares nothing.
    pub is_forced: bool,
    /// Why; may be empty.
    pub reason: String,
    /// Who wanted it.
    pub pulled_by: String,
    /// The replica that has it, where several are shown together.
    pub replica: Option<String>,
}

impl LeverSnapshot {
    /// What it does and to what, as `block user=alice` or `total 50`.
    #[must_use]
    pub fn summary(&self) -> String {
        let (effect, target) = (self.effect(), &self.target);
        let gap = if target.is_empty() { "" } else { " " };
        format!("{effect}{gap}{target}")
    }

    /// What it does, as `block`, `limit to 5/s, 3 at a time` or `total 50`.
    #[must_use]
    pub fn effect(&self) -> String {
        if let Some(value) = &self.value {
            return format!("{} {value}", self.action);
        }
        let rate = self.qps.map(|qps| format!("{qps}/s"));
        let in_flight = self.in_flight_limit.map(|most| format!("{most} at a time"));
        let limits: Vec<_> = rate.into_iter().chain(in_flight).collect();
        if limits.is_empty() {
            return self.action.clone();
        }
        format!("{} to {}", self.action, limits.join(", "))
    }

    /// The time until its end, as `9m58s`.
    #[must_use]
    pub fn remaining(&self) -> String {
        let seconds = Duration::try_from_secs_f64(self.remaining_seconds);
        format_seconds(seconds.unwrap_or_default())
    }
}

#[derive(Debug)]
struct LeverState {
    bucket: Option<(Rate, TokenBucket)>,
    counts: LeverCounts,
}

/// The rejection of a request by a lever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeverRejection {
    /// The lever.
    pub id: u64,
    /// What it does.
    pub action: LeverAction,
    /// Why; may be empty.
    pub reason: Arc<str>,
    /// When a request may be admitted.
    pub wait: Duration,
    /// The seconds of `Retry-After`.
    pub retry_after: u32,
}

impl Lever {
    pub(super) fn new(id: u64, spec: LeverSpec, now: Instant) -> Self {
        let bucket = match spec.action {
            LeverAction::Limit { qps: Some(qps), .. } => {
                let rate = Rate::new(qps.max(1), qps.max(1));
                Some((rate, TokenBucket::full(&rate, now)))
            }
            LeverAction::Block | LeverAction::Limit { .. } | LeverAction::Set(_) => None,
        };
        Self {
            id,
            ends_at: now + spec.duration,
            reason: spec.reason.as_str().into(),
            spec,
            state: Mutex::new(LeverState {
                bucket,
                counts: LeverCounts {
                    rejected: 0,
                    spared: 0,
                    in_flight: 0,
                },
            }),
        }
    }

    /// What it has counted so far.
    #[must_use]
    pub fn counts(&self) -> LeverCounts {
        self.state.lock().counts
    }

    /// What it is and has counted, as plain data.
    #[must_use]
    pub fn snapshot(&self, now: Instant) -> LeverSnapshot {
        let counts = self.counts();
        let (qps, in_flight_limit) = match self.spec.action {
            LeverAction::Block | LeverAction::Set(_) => (None, None),
            LeverAction::Limit { qps, in_flight } => (qps, in_flight),
        };
        let setting = self.spec.action.setting();
        LeverSnapshot {
            id: self.id,
            action: self.spec.action.label().to_owned(),
            value: setting.map(|setting| setting.to_string()),
            qps,
            in_flight_limit,
            in_flight: counts.in_flight,
            target: self.spec.target.to_string(),
            remaining_seconds: self.remaining(now).as_secs_f64(),
            rejected: counts.rejected,
            spared: counts.spared,
            is_forced: self.spec.spared.is_none(),
            reason: self.spec.reason.clone(),
            pulled_by: self.spec.pulled_by.clone(),
            replica: None,
        }
    }

    /// The time until its end.
    #[must_use]
    pub fn remaining(&self, now: Instant) -> Duration {
        self.ends_at.saturating_duration_since(now)
    }

    /// Whether the lever decides about a request. Counts one that it spares.
    pub(super) fn applies(
        &self,
        attributes: &AdmissionAttributes<'_>,
        source: RequestSource<'_>,
        now: Instant,
    ) -> bool {
        let is_setting = self.spec.action.setting().is_some();
        if is_setting || now >= self.ends_at || !self.spec.target.matches(attributes, source) {
            return false;
        }
        let spared = self.spec.spared.as_ref();
        let is_spared = spared.is_some_and(|spared| spared.spares(attributes));
        self.state.lock().counts.spared += u64::from(is_spared);
        !is_spared
    }

    /// Decides about a request. Returns whether it counts as in flight until
    /// [`release`](Self::release).
    pub(super) fn admit(&self, now: Instant) -> Result<bool, LeverRejection> {
        let mut state = self.state.lock();
        let admitted = match self.spec.action {
            LeverAction::Block => Err(self.remaining(now)),
            LeverAction::Limit { in_flight, .. } => state.take(in_flight, now),
            LeverAction::Set(_) => Ok(false),
        };
        state.counts.rejected += u64::from(admitted.is_err());
        admitted.map_err(|wait| {
            let wait = wait.min(self.remaining(now)).min(MAX_RETRY_AFTER);
            LeverRejection {
                id: self.id,
                action: self.spec.action,
                reason: Arc::clone(&self.reason),
                wait,
                retry_after: retry_after_seconds(wait),
            }
        })
    }

    pub(super) fn release(&self) {
        let counts = &mut self.state.lock().counts;
        counts.in_flight = counts.in_flight.saturating_sub(1);
    }
}

impl LeverState {
    /// Takes a token and a place. A request that is rejected takes neither.
    fn take(&mut self, in_flight: Option<u32>, now: Instant) -> Result<bool, Duration> {
        if in_flight.is_some_and(|most| self.counts.in_flight >= most) {
            return Err(IN_FLIGHT_RETRY_AFTER);
        }
        if let Some((rate, bucket)) = &mut self.bucket {
            bucket.take(rate, now)?;
        }
        self.counts.in_flight += u32::from(in_flight.is_some());
        Ok(in_flight.is_some())
    }
}

impl LeverRejection {
    /// Whether the request waits for a token, of which there is a next one.
    #[must_use]
    pub fn is_by_rate(&self) -> bool {
        matches!(self.action, LeverAction::Limit { qps: Some(_), .. })
            && self.wait < IN_FLIGHT_RETRY_AFTER
    }
}

/// A duration as `9m58s`, in whole seconds.
#[must_use]
pub fn format_seconds(duration: Duration) -> String {
    // Up, so that what has just begun has all of its time.
    let seconds = saturating_u64(duration.as_millis().div_ceil(1000));
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}
