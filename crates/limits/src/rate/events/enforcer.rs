//! Enforces EventRateLimit for all workers, counts decisions, and tracks the keys of events for
//! their patches.

use parking_lot::Mutex;
use std::borrow::Cow;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use crate::rate::events::body::EventEncoding;
use crate::rate::events::buckets::{
    EventBucketKeys, EventLimitId, EventLimits, EventWrite, LimitedEvent, LimitedEventGroups,
    rejection_message,
};
use crate::rate::events::config::LimitType;
use crate::rate::events::{body, config};
use crate::rate::lru::{Lru, LruOutcome};
use crate::rate::lru_key::LruKeyHasher;
use crate::rate::spin_lock::spin_lock;
use crate::rate::top_keys::{TopKey, TopKeys};
use crate::shared_limits::bucket::RefillAnswer;
use crate::shared_limits::source::{RefillSource, Sharing, SourceCall};
use crate::throttling::token_bucket::retry_after_seconds;
use weir_base::metrics::Registry;
use weir_kubernetes::request_info::RequestInfo;

/// The most events whose keys are tracked for their patches: four new events a second for an hour,
/// in at most 12 MiB.
const MAX_TRACKED_EVENTS: usize = 16_384;

/// The longest tracked key in bytes; names and a uid need no more. A patch of an event with a
/// longer key is charged by namespace and name.
const MAX_TRACKED_KEY_BYTES: usize = 512;

/// The configuration of EventRateLimit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRateLimitConfig {
    /// The limits of `--event-rate-limit-config`, in their order.
    pub limits: Vec<config::EventLimitConfig>,
    /// `--event-rate-limit-groups`.
    pub groups: LimitedEventGroups,
    /// `--event-rate-limit-retry-after`.
    pub retry_after: bool,
    /// `--event-rate-limit-enforcement`: events pass, whatever the limits say.
    pub dry_run: bool,
}

/// An event that was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRejection {
    /// Upstream's message.
    pub message: String,
    /// Whole seconds until every limit that rejected has a token; `None` if no `Retry-After` is to
    /// be sent.
    pub retry_after: Option<u32>,
    /// The same, not rounded.
    pub wait: Duration,
}

/// A request that writes an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRequest {
    write: EventWrite,
    /// The encoding of the body, if the body has to be read.
    encoding: Option<EventEncoding>,
}

impl EventRequest {
    /// Whether the decision needs the body.
    #[must_use]
    pub const fn needs_body(&self) -> bool {
        self.encoding.is_some()
    }
}

/// The limits with their state.
#[derive(Debug)]
pub struct EventRateLimit {
    /// Shared with the limits before and after a reload. Locked for one decision.
    limits: Arc<Mutex<EventLimits>>,
    ids: Box<[EventLimitId]>,
    keys: LruKeyHasher,
    types: Box<[LimitType]>,
    limit_configs: Box<[config::EventLimitConfig]>,
    groups: LimitedEventGroups,
    retry_after: bool,
    dry_run: bool,
    /// Whether any limit uses source and object, or a reserve for warnings.
    needs_body: bool,
    counters: Box<[EventLimitCounters]>,
    /// The rejected keys of each limit. Locked for one rejection.
    top_keys: Mutex<Box<[TopKeys]>>,
    /// The keys of events by namespace and name, shared like `limits`. Locked for one lookup.
    tracked_keys: Arc<Mutex<Lru<TrackedEventKey>>>,
}

#[derive(Debug)]
struct TrackedEventKey {
    source_and_object: Box<[u8]>,
    warning: bool,
}

/// The metrics of one limit.
#[derive(Debug)]
struct EventLimitCounters {
    allowed: IntCounter,
    rejected: IntCounter,
    evictions: IntCounter,
    keys: IntGauge,
}

/// The values of one limit's metrics.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventLimitCounts {
    pub(super) allowed: u64,
    pub(super) rejected: u64,
    pub(super) keys: u64,
}

struct EventLimitMetrics {
    requests: IntCounterVec,
    evictions: IntCounterVec,
    keys: IntGaugeVec,
}

impl EventLimitMetrics {
    fn register(registry: &Registry) -> Self {
        Self {
            requests: registry.counters(
                "weir_event_rate_limit_requests_total",
                "Events checked against a limit, by the limit's index in the configuration and its type.",
                &["limit", "type", "decision"],
            ),
            evictions: registry.counters(
                "weir_event_rate_limit_evictions_total",
                "Buckets that were forgotten to make room for another key.",
                &["limit", "type"],
            ),
            keys: registry.gauges(
                "weir_event_rate_limit_keys",
                "Buckets that are remembered; at most the limit's cacheSize.",
                &["limit", "type"],
            ),
        }
    }

    fn for_limit(&self, n: usize, limit: &config::EventLimitConfig) -> EventLimitCounters {
        let (n, name) = (n.to_string(), limit.limit_type.name());
        let requests = |decision| self.requests.with_label_values(&[&n, name, decision]);
        EventLimitCounters {
            allowed: requests("allowed"),
            rejected: requests("rejected"),
            evictions: self.evictions.with_label_values(&[&n, name]),
            keys: self.keys.with_label_values(&[&n, name]),
        }
    }

    /// Removes the gauges of limits whose index or type is gone.
    fn remove_gone(&self, before: &[LimitType], now: &[LimitType]) {
        for (n, limit_type) in before.iter().enumerate() {
            if now.get(n) != Some(limit_type) {
                let labels = [&*n.to_string(), limit_type.name()];
                let _ = self.keys.remove_label_values(&labels);
            }
        }
    }
}

/// No limits; they are refilled while they exist, if they are shared.
fn shared_table(sharing: Option<&Sharing>) -> Arc<Mutex<EventLimits>> {
    let table = Arc::new(Mutex::new(EventLimits::sharing(sharing)));
    if let Some(sharing) = sharing {
        let source: Weak<Mutex<EventLimits>> = Arc::downgrade(&table);
        sharing.add_source(source);
    }
    table
}

impl RefillSource for Mutex<EventLimits> {
    fn collect(&self, now: Instant, max_keys: usize, calls: &mut Vec<SourceCall>) {
        spin_lock(self).collect(now, max_keys, calls);
    }

    fn apply(&self, call: &SourceCall, answer: RefillAnswer, now: Instant) {
        spin_lock(self).apply(call, answer, now);
    }
}

impl EventRateLimit {
    /// Creates the limits and registers their metrics in `registry`.
    #[must_use]
    pub fn new(config: &EventRateLimitConfig, registry: &Registry) -> Self {
        Self::replacing(None, config, None, registry)
    }

    /// The limits of `config`, which replace `earlier`. A limit that is in both keeps its buckets,
    /// which requests that still use `earlier` are charged to as well.
    #[must_use]
    pub fn replacing(
        earlier: Option<&Self>,
        config: &EventRateLimitConfig,
        sharing: Option<&Sharing>,
        registry: &Registry,
    ) -> Self {
        let metrics = EventLimitMetrics::register(registry);
        let configs = &config.limits;
        let looks_inside = |limit: &config::EventLimitConfig| {
            limit.limit_type == LimitType::SourceAndObject || limit.warning_reserve_percent > 0
        };
        let table = match earlier {
            Some(earlier) => Arc::clone(&earlier.limits),
            None => shared_table(sharing),
        };
        let mut limits = spin_lock(&table);
        let mut known = earlier.map_or_else(Vec::new, Self::identified_limits);
        let (mut ids, mut top_keys, mut counters) = (Vec::new(), Vec::new(), Vec::new());
        for (n, limit) in configs.iter().enumerate() {
            let same = known.iter().position(|(known, ..)| known == limit);
            let (id, top) = match same.map(|at| known.swap_remove(at)) {
                Some((_, id, top)) => (id, top),
                None => {
                    let nth = configs
                        .iter()
                        .take(n)
                        .filter(|other| *other == limit)
                        .count();
                    (limits.add_nth(limit, nth), TopKeys::default())
                }
            };
            let counter = metrics.for_limit(n, limit);
            let buckets = limits.bucket_count(id);
            counter.keys.set(i64::try_from(buckets).unwrap_or(i64::MAX));
            counters.push(counter);
            ids.push(id);
            top_keys.push(top);
        }
        limits.retain(&ids);
        drop(limits);
        let types: Box<[LimitType]> = configs.iter().map(|limit| limit.limit_type).collect();
        if let Some(earlier) = earlier {
            metrics.remove_gone(&earlier.types, &types);
        }
        let tracked_keys = earlier.map_or_else(
            || Arc::new(Mutex::new(Lru::new(MAX_TRACKED_EVENTS))),
            |earlier| Arc::clone(&earlier.tracked_keys),
        );
        Self {
            limits: table,
            ids: ids.into(),
            keys: match earlier {
                Some(earlier) => earlier.keys,
                None => LruKeyHasher::sharing(sharing),
            },
            types,
            limit_configs: configs.clone().into(),
            groups: config.groups,
            retry_after: config.retry_after,
            dry_run: config.dry_run,
            needs_body: configs.iter().any(looks_inside),
            counters: counters.into(),
            top_keys: Mutex::new(top_keys.into()),
            tracked_keys,
        }
    }

    /// Each limit with its id and its rejected keys.
    fn identified_limits(&self) -> Vec<(config::EventLimitConfig, EventLimitId, TopKeys)> {
        let top = spin_lock(&self.top_keys).clone();
        let limits = self.limit_configs.iter().copied();
        let identified = limits.zip(self.ids.iter().copied()).zip(top);
        identified
            .map(|((limit, id), top)| (limit, id, top))
            .collect()
    }

    /// Removes the gauges of all limits, when EventRateLimit is switched off.
    pub fn remove_gauges(&self, registry: &Registry) {
        EventLimitMetrics::register(registry).remove_gone(&self.types, &[]);
    }

    /// Parses what matters of a request; `None` if it writes no event that is limited.
    #[must_use]
    pub fn event_request(
        &self,
        info: &RequestInfo<'_>,
        content_type: Option<&[u8]>,
    ) -> Option<EventRequest> {
        let write = EventWrite::from_request(info, self.groups)?;
        let encoding = match write {
            EventWrite::Create | EventWrite::Update => {
                EventEncoding::from_content_type(content_type)
            }
            EventWrite::Patch => EventEncoding::from_patch_content_type(content_type),
        };
        Some(EventRequest {
            write,
            encoding: encoding.filter(|_| self.needs_body),
        })
    }

    /// Whether the limits are configured to count only.
    #[must_use]
    pub const fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Charges an event that `user` writes with `body` (empty if the body is not needed).
    ///
    /// # Errors
    /// At least one limit has no token.
    pub fn admit(
        &self,
        request: EventRequest,
        info: &RequestInfo<'_>,
        user: &str,
        body: &[u8],
        now: Instant,
    ) -> Result<(), EventRejection> {
        let event_body = request.encoding.and_then(|encoding| {
            let group_version = match info.api_group() {
                b"" => Cow::Borrowed(info.api_version()),
                group => Cow::Owned([group, b"/", info.api_version()].concat()),
            };
            // Upstream decodes an event of another version as well, and then rejects it.
            body::parse(encoding, &group_version, body)
                .filter(|event_body| event_body.version_accepted)
        });
        let (source_and_object, warning) = match &event_body {
            Some(event_body) => (
                Cow::Owned(event_body.key.concat()),
                *event_body.event_type == *b"Warning",
            ),
            None => self.key_without_body(request, info),
        };
        let event = LimitedEvent {
            namespace: info.namespace(),
            user: user.as_bytes(),
            source_and_object,
            warning,
        };
        self.charge(&event, now)?;
        if let Some(event_body) = event_body {
            let name = match request.write {
                EventWrite::Create => &*event_body.name,
                EventWrite::Patch | EventWrite::Update => info.name(),
            };
            self.track_key(name, &event);
        }
        Ok(())
    }

    /// The key of an event without a usable body. For a patch it is the tracked key of its name, or
    /// namespace and name; for a body that is not an event it is empty.
    fn key_without_body<'e>(
        &self,
        request: EventRequest,
        info: &RequestInfo<'_>,
    ) -> (Cow<'e, [u8]>, bool) {
        let names = [info.namespace(), info.name()];
        if !self.needs_body || request.write != EventWrite::Patch || request.needs_body() {
            return (Cow::Borrowed(b""), false);
        }
        let tracked = |tracked: &mut TrackedEventKey| {
            let key = tracked.source_and_object.to_vec();
            (Cow::Owned(key), tracked.warning)
        };
        spin_lock(&self.tracked_keys)
            .get_mut(self.keys.hash_separate(names))
            .map(tracked)
            .unwrap_or_else(|| (Cow::Owned(names.join(&b'/')), false))
    }

    fn track_key(&self, name: &[u8], event: &LimitedEvent<'_>) {
        if name.is_empty() || event.source_and_object.len() > MAX_TRACKED_KEY_BYTES {
            return;
        }
        let key = self.keys.hash_separate([event.namespace, name]);
        let new = || TrackedEventKey {
            source_and_object: Box::default(),
            warning: false,
        };
        let mut tracked_keys = spin_lock(&self.tracked_keys);
        let (tracked, _) = tracked_keys.get_or_insert_with(key, new);
        tracked.warning = event.warning;
        if *tracked.source_and_object != *event.source_and_object {
            tracked.source_and_object = (&*event.source_and_object).into();
        }
    }

    /// Charges an event.
    ///
    /// # Errors
    /// At least one limit has no token.
    pub fn charge(&self, event: &LimitedEvent<'_>, now: Instant) -> Result<(), EventRejection> {
        let bucket_keys = EventBucketKeys::from_event(event, &self.keys);
        let mut rejected_by: Vec<(usize, Duration)> = Vec::new();
        spin_lock(&self.limits).charge(&self.ids, &bucket_keys, now, |n, result| {
            let Some(counters) = self.counters.get(n) else {
                return; // unreachable: each limit has its counters
            };
            match result.lookup {
                LruOutcome::Inserted => counters.keys.inc(),
                LruOutcome::InsertedWithEviction => counters.evictions.inc(),
                LruOutcome::Found => {}
            }
            match result.token {
                Ok(()) => counters.allowed.inc(),
                Err(wait) => {
                    counters.rejected.inc();
                    rejected_by.push((n, wait));
                }
            }
        });
        let Some(wait) = rejected_by.iter().map(|(_, wait)| *wait).max() else {
            return Ok(());
        };
        let limit_type = |n: usize| self.types.get(n).copied();
        let mut top = spin_lock(&self.top_keys);
        for (n, _) in &rejected_by {
            if let (Some(top), Some(limit_type)) = (top.get_mut(*n), limit_type(*n)) {
                top.add(event.key_text(limit_type));
            }
        }
        drop(top);
        let types = rejected_by.iter().filter_map(|(n, _)| limit_type(*n));
        Err(EventRejection {
            message: rejection_message(event, types),
            retry_after: self.retry_after.then(|| retry_after_seconds(wait)),
            wait,
        })
    }

    pub(super) fn limit_configs(&self) -> &[config::EventLimitConfig] {
        &self.limit_configs
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = EventLimitCounts> {
        self.counters.iter().map(|counters| EventLimitCounts {
            allowed: counters.allowed.get(),
            rejected: counters.rejected.get(),
            keys: u64::try_from(counters.keys.get()).unwrap_or_default(),
        })
    }

    /// The keys with the most rejections, for each limit.
    #[must_use]
    pub fn top_keys(&self) -> Vec<(LimitType, Vec<TopKey>)> {
        let top = spin_lock(&self.top_keys);
        self.types
            .iter()
            .zip(top.iter())
            .map(|(limit_type, top)| (*limit_type, top.sorted()))
            .collect()
    }
}

#[cfg(test)]
#[path = "enforcer_tests.rs"]
mod tests;
