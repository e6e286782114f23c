//! One lever: what it does to a request that matches or to the limits, and what it has done.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::admission_attributes::{AdmissionAttributes, RequestSource};
use crate::levers::protected::ProtectedRequesters;
use crate::levers::setting::LeverSetting;
use crate::levers::target::{LeverTarget, MAX_VALUES};
use crate::throttling::token_bucket::{Rate, TokenBucket, retry_after_seconds};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::numeric::saturating_u64;

/// How long a lever may be in force. What is needed for longer belongs in the configuration.
pub const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);

/// The longest reason in bytes. Clients see it.
pub const MAX_REASON_BYTES: usize = 256;

/// The longest `Retry-After`. A lever may be undone, and clients notice within this time.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// When a request may find fewer requests in flight.
const IN_FLIGHT_RETRY_AFTER: Duration = Duration::from_secs(1);

/// What a lever does: to the requests of its target, or to the limits of all requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LeverAction {
    /// Rejects all.
    Block,
    /// Ends the connections that are open, spread over its duration. It rejects nothing.
    Disconnect,
    /// Admits some of them. Without either limit it admits all.
    #[serde(rename_all = "camelCase")]
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
    pub const LABELS: [&str; 6] = ["block", "bypass", "disconnect", "dry-run", "limit", "total"];

    /// The label of metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Disconnect => "disconnect",
            Self::Limit { .. } => "limit",
            Self::Set(LeverSetting::Bypass) => "bypass",
            Self::Set(LeverSetting::DryRun(_)) => "dry-run",
            Self::Set(LeverSetting::Total(_)) => "total",
        }
    }

    /// The requests a second and at a time that it admits, where it limits them.
    #[must_use]
    pub const fn limits(self) -> (Option<u32>, Option<u32>) {
        match self {
            Self::Block | Self::Disconnect | Self::Set(_) => (None, None),
            Self::Limit { qps, in_flight } => (qps, in_flight),
        }
    }

    /// The setting that it overrides, if it overrides one.
    #[must_use]
    pub const fn setting(self) -> Option<LeverSetting> {
        match self {
            Self::Block | Self::Disconnect | Self::Limit { .. } => None,
            Self::Set(setting) => Some(setting),
        }
    }

    /// Whether it may reject requests.
    #[must_use]
    pub const fn may_reject(self) -> bool {
        match self {
            Self::Block | Self::Limit { .. } => true,
            Self::Disconnect | Self::Set(_) => false,
        }
    }
}

/// A lever, before it is in force. Other processes read it: one that does not know all of it
/// refuses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LeverSpec {
    /// What it does.
    pub action: LeverAction,
    /// Whether a block ends requests in flight as well.
    pub ends_in_flight: bool,
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

impl LeverSpec {
    /// What is wrong with it, a line each.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut check = |is_right: bool, fault: &dyn Fn() -> String| {
            if !is_right {
                faults.push(fault());
            }
        };
        let has_few = self.target.value_count() <= MAX_VALUES;
        check(has_few, &|| {
            format!("a target has at most {MAX_VALUES} values")
        });
        let is_allowed = !self.duration.is_zero() && self.duration <= MAX_DURATION;
        check(is_allowed, &|| {
            "a lever lasts more than 0s and at most 24h0m0s".to_owned()
        });
        check(is_line(&self.reason, MAX_REASON_BYTES), &|| {
            format!("a reason is one line of at most {MAX_REASON_BYTES} bytes")
        });
        check(is_line(&self.pulled_by, MAX_REASON_BYTES), &|| {
            format!("an author is one line of at most {MAX_REASON_BYTES} bytes")
        });
        let (qps, in_flight) = self.action.limits();
        let is_limit = matches!(self.action, LeverAction::Limit { .. });
        let has_limits = (qps, in_flight) != (None, None) && ![qps, in_flight].contains(&Some(0));
        check(!is_limit || has_limits, &|| {
            "a limit has --qps or --inflight of at least 1, or both; block rejects all".to_owned()
        });
        if self.action.setting().is_some() {
            check(self.target.is_empty(), &|| {
                "a setting has no target".to_owned()
            });
        } else {
            check(!self.target.is_empty(), &|| {
                "a target names at least one field".to_owned()
            });
        }
        let is_block = self.action == LeverAction::Block;
        check(is_block || !self.ends_in_flight, &|| {
            "only a block ends requests in flight".to_owned()
        });
        faults
    }
}

/// Whether a text is one line of at most `most` bytes.
fn is_line(text: &str, most: usize) -> bool {
    text.len() <= most && !text.chars().any(char::is_control)
}

/// Names a lever among those of all replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeverKey {
    /// Greater than that of every lever that its process knew. Two replicas may give the same id
    /// at the same time.
    pub id: u64,
    /// The process that has set it.
    pub origin: String,
}

/// A process's part of what a limit admits: that of one replica of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitShare {
    /// The replicas, at least 1.
    pub replicas: u32,
    /// The place of this one among them, from 0.
    pub rank: u32,
}

impl Default for LimitShare {
    fn default() -> Self {
        Self {
            replicas: 1,
            rank: 0,
        }
    }
}

impl LimitShare {
    /// This replica's part of a rate: at least one request at once.
    fn of_rate(self, qps: u32) -> Rate {
        let part = f64::from(qps.max(1)) / f64::from(self.replicas.max(1));
        Rate::from_share(part, part.max(1.0))
    }

    /// This replica's part of a number of requests. The parts of all add up to it, unless there are
    /// more replicas: each admits one.
    #[must_use]
    pub fn of_in_flight(self, most: u32) -> u32 {
        let replicas = self.replicas.max(1);
        let rest = u32::from(self.rank < most % replicas);
        (most / replicas + rest).max(1)
    }
}

/// A lever that is in force.
#[derive(Debug)]
pub struct Lever {
    /// Greater than that of every earlier lever of this process.
    pub id: u64,
    /// The process that has set it.
    pub origin: String,
    /// Counts the levers as they reached this process.
    pub(super) arrival: u64,
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
    in_flight_limit: Option<u32>,
    counts: LeverCounts,
    is_undone: bool,
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
    pub(super) fn new(
        key: LeverKey,
        arrival: u64,
        spec: LeverSpec,
        share: LimitShare,
        now: Instant,
    ) -> Self {
        let (qps, in_flight) = spec.action.limits();
        let bucket = qps.map(|qps| {
            let rate = share.of_rate(qps);
            (rate, TokenBucket::full(&rate, now))
        });
        Self {
            id: key.id,
            origin: key.origin,
            arrival,
            ends_at: now + spec.duration,
            reason: spec.reason.as_str().into(),
            spec,
            state: Mutex::new(LeverState {
                bucket,
                in_flight_limit: in_flight.map(|most| share.of_in_flight(most)),
                counts: LeverCounts {
                    rejected: 0,
                    spared: 0,
                    in_flight: 0,
                },
                is_undone: false,
            }),
        }
    }

    /// Its name among the levers of all replicas.
    #[must_use]
    pub fn key(&self) -> LeverKey {
        LeverKey {
            id: self.id,
            origin: self.origin.clone(),
        }
    }

    /// Replicas have come or gone.
    pub(super) fn set_share(&self, now: Instant, share: LimitShare) {
        let (qps, in_flight) = self.spec.action.limits();
        let mut state = self.state.lock();
        state.in_flight_limit = in_flight.map(|most| share.of_in_flight(most));
        if let (Some(qps), Some((rate, bucket))) = (qps, &mut state.bucket) {
            bucket.refill(rate, now);
            *rate = share.of_rate(qps);
        }
    }

    /// It is over before its time.
    pub(super) fn set_undone(&self) {
        self.state.lock().is_undone = true;
    }

    /// Whether it was over before its time.
    #[must_use]
    pub fn is_undone(&self) -> bool {
        self.state.lock().is_undone
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
        let (qps, in_flight_limit) = self.spec.action.limits();
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
        if !self.spec.action.may_reject() || !self.is_aimed_at(attributes, source, now) {
            return false;
        }
        let spared = self.spec.spared.as_ref();
        let is_spared = spared.is_some_and(|spared| spared.spares(attributes));
        self.state.lock().counts.spared += u64::from(is_spared);
        !is_spared
    }

    fn is_aimed_at(
        &self,
        attributes: &AdmissionAttributes<'_>,
        source: RequestSource<'_>,
        now: Instant,
    ) -> bool {
        now < self.ends_at && self.spec.target.matches(attributes, source)
    }

    /// How long a request in flight may still take. `None`: as long as it does. `chance` (0 to 1)
    /// spreads the ends of many.
    #[must_use]
    pub fn ends_in(
        &self,
        attributes: &AdmissionAttributes<'_>,
        source: RequestSource<'_>,
        now: Instant,
        chance: f64,
    ) -> Option<Duration> {
        let spread = match self.spec.action {
            LeverAction::Block if self.spec.ends_in_flight => Duration::ZERO,
            LeverAction::Disconnect => self.remaining(now),
            LeverAction::Block | LeverAction::Limit { .. } | LeverAction::Set(_) => return None,
        };
        let spared = self.spec.spared.as_ref();
        let is_spared = || spared.is_some_and(|spared| spared.spares(attributes));
        let ends = self.is_aimed_at(attributes, source, now) && !is_spared();
        ends.then(|| spread.mul_f64(chance.clamp(0.0, 1.0)))
    }

    /// Whether the connection of a request is to end now. Each has its `moment` (0 to 1) in the first
    /// half of the lever's time: later, it may have no more request.
    #[must_use]
    pub fn disconnects(
        &self,
        attributes: &AdmissionAttributes<'_>,
        source: RequestSource<'_>,
        now: Instant,
        moment: f64,
    ) -> bool {
        self.spec.action == LeverAction::Disconnect
            && self.ends_in(attributes, source, now, 1.0).is_some()
            && self.wait_for(moment, now).is_zero()
    }

    /// After how long the connection of a client is to end on which there may be no request, by the
    /// user of its last one and its `moment`. `None` if it stays.
    #[must_use]
    pub fn disconnects_client_in(
        &self,
        user: &UserInfo,
        address: IpAddr,
        now: Instant,
        moment: f64,
    ) -> Option<Duration> {
        let spared = self.spec.spared.as_ref();
        let is_aimed = self.spec.action == LeverAction::Disconnect
            && now < self.ends_at
            && self.spec.target.matches_client(user, address)
            && !spared.is_some_and(|spared| spared.is_protected(user));
        is_aimed.then(|| self.wait_for(moment, now))
    }

    /// The time until a `moment` (0 to 1) of the first half of the lever's time.
    fn wait_for(&self, moment: f64, now: Instant) -> Duration {
        let elapsed = self.spec.duration.saturating_sub(self.remaining(now));
        let wait = self.spec.duration.mul_f64(moment.clamp(0.0, 1.0) / 2.0);
        wait.saturating_sub(elapsed)
    }

    /// Decides about a request. Returns whether it counts as in flight until
    /// [`release`](Self::release).
    pub(super) fn admit(&self, now: Instant) -> Result<bool, LeverRejection> {
        let mut state = self.state.lock();
        let admitted = match self.spec.action {
            LeverAction::Block => Err(self.remaining(now)),
            LeverAction::Limit { .. } => state.take(now),
            LeverAction::Disconnect | LeverAction::Set(_) => Ok(false),
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
    fn take(&mut self, now: Instant) -> Result<bool, Duration> {
        let in_flight = self.in_flight_limit;
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
