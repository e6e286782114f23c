//! The buckets of EventRateLimit: which of them an event is charged to, and the message of a
//! rejection. Pure.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use crate::rate::bucket_table::{BucketTable, SharedScope};
use crate::rate::events::config::{EventLimitConfig, LimitType};
use crate::rate::lru::LruOutcome;
use crate::rate::lru_key::{LruKey, LruKeyHasher};
use crate::shared_limits::bucket::RefillAnswer;
use crate::shared_limits::source::{Sharing, SourceCall};
use crate::throttling::token_bucket::Rate;
use weir_kubernetes::api::status::truncate_for_json;
use weir_kubernetes::numeric::saturating_usize;
use weir_kubernetes::request_info::{RequestInfo, Verb};

/// The longest message of a rejection, in bytes of JSON. A key may be as long as a body, and
/// client-go reads at most 2 KiB of a response to reuse its connection. A Status contains the
/// message twice.
pub const MAX_MESSAGE_BYTES: usize = 768;

/// The API groups whose events are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitedEventGroups {
    /// The core group and `events.k8s.io`, which modern recorders use.
    All,
    /// The core group only, as upstream.
    Core,
}

/// How a request writes an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventWrite {
    /// POST.
    Create,
    /// PATCH, of any type.
    Patch,
    /// PUT.
    Update,
}

impl EventWrite {
    /// The write that the plugin would be called for: create or update of one event in a namespace,
    /// unless it is a dry run. The server has no route for a POST to all namespaces or to a name.
    #[must_use]
    pub fn from_request(info: &RequestInfo<'_>, groups: LimitedEventGroups) -> Option<Self> {
        let group = match (info.api_group(), info.api_version()) {
            (b"", b"v1") => true,
            (b"events.k8s.io", b"v1" | b"v1beta1") => groups == LimitedEventGroups::All,
            _ => false,
        };
        let event = info.resource() == b"events"
            && info.subresource().is_empty()
            && !info.namespace().is_empty();
        if !info.is_resource_request() || !group || !event {
            return None;
        }
        let named = !info.name().is_empty();
        let verb = info.verb();
        let write = if named && *verb == Verb::Update {
            Self::Update
        } else if named && *verb == Verb::Patch {
            Self::Patch
        } else if !named && *verb == Verb::Create {
            Self::Create
        } else {
            return None;
        };
        let dry = info.query().all("dryRun").any(|value| *value == *b"All");
        (!dry).then_some(write)
    }
}

/// What selects the buckets of an event.
#[derive(Clone, Debug)]
pub struct LimitedEvent<'e> {
    /// The namespace of the request.
    pub namespace: &'e [u8],
    /// The name of the user that writes the event.
    pub user: &'e [u8],
    /// Source and object, concatenated; empty for a body that is not an event.
    pub source_and_object: Cow<'e, [u8]>,
    /// Whether the event has `type: Warning`.
    pub warning: bool,
}

impl LimitedEvent<'_> {
    /// What a limit of this type tells events apart by.
    #[must_use]
    pub fn key_text(&self, limit_type: LimitType) -> &[u8] {
        match limit_type {
            LimitType::Namespace => self.namespace,
            LimitType::Server => b"",
            LimitType::SourceAndObject => &self.source_and_object,
            LimitType::User => self.user,
        }
    }
}

/// The result of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLimitResult {
    /// Whether the key had a bucket.
    pub lookup: LruOutcome,
    /// `Err` is the time until there is a token.
    pub token: Result<(), Duration>,
}

/// Limits with their buckets. A reload adds and removes limits; those that stay keep their buckets.
#[derive(Debug, Default)]
pub struct EventLimits {
    limits: Vec<EventLimit>,
    next_id: u64,
    /// How the buckets are shared with other replicas, if they are.
    sharing: Option<Sharing>,
}

/// Identifies a limit, also after others were removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLimitId(u64);

/// A limit with its buckets.
#[derive(Debug)]
struct EventLimit {
    id: EventLimitId,
    limit_type: LimitType,
    /// Warnings are urgent, and may take the reserve.
    buckets: BucketTable,
}

/// The keys of an event's buckets, computed before the lock is taken.
#[derive(Clone, Copy, Debug)]
pub struct EventBucketKeys {
    namespace: LruKey,
    server: LruKey,
    source_and_object: LruKey,
    user: LruKey,
    warning: bool,
}

impl EventBucketKeys {
    /// The keys for this event.
    #[must_use]
    pub fn from_event(event: &LimitedEvent<'_>, keys: &LruKeyHasher) -> Self {
        let key = |limit_type| keys.hash_joined([event.key_text(limit_type)]);
        Self {
            namespace: key(LimitType::Namespace),
            server: key(LimitType::Server),
            source_and_object: key(LimitType::SourceAndObject),
            user: key(LimitType::User),
            warning: event.warning,
        }
    }
}

impl EventLimits {
    /// Adds a limit without any buckets.
    pub fn add(&mut self, limit: &EventLimitConfig) -> EventLimitId {
        self.add_nth(limit, 0)
    }

    /// Adds a limit without any buckets, as the `nth` of equal ones: those share no buckets.
    pub fn add_nth(&mut self, limit: &EventLimitConfig, nth: usize) -> EventLimitId {
        let id = EventLimitId(self.next_id);
        self.next_id += 1;
        let reserve = limit.warning_reserve_percent;
        let name = format!("event {} {reserve} {nth}", limit.limit_type.name());
        let shared = self.sharing.as_ref().map(|sharing| SharedScope {
            sharing,
            name: &name,
        });
        self.limits.push(EventLimit {
            id,
            limit_type: limit.limit_type,
            buckets: BucketTable::new(
                Rate::new(limit.qps, limit.burst),
                f64::from(limit.warning_reserve_percent) / 100.0,
                saturating_usize(limit.cache_size),
                shared,
            ),
        });
        id
    }

    /// Limits whose buckets are shared with other replicas.
    #[must_use]
    pub fn sharing(sharing: Option<&Sharing>) -> Self {
        Self {
            sharing: sharing.cloned(),
            ..Self::default()
        }
    }

    /// Adds the calls of shared buckets that are due, for up to `max_keys` keys of each limit.
    pub fn collect(&mut self, now: Instant, max_keys: usize, calls: &mut Vec<SourceCall>) {
        for limit in &mut self.limits {
            limit.buckets.collect(limit.id.0, now, max_keys, calls);
        }
    }

    /// Applies the answer to such a call. A limit that was removed ignores it.
    pub fn apply(&mut self, call: &SourceCall, answer: RefillAnswer, now: Instant) {
        let limit = self
            .limits
            .iter_mut()
            .find(|limit| limit.id.0 == call.table);
        if let Some(limit) = limit {
            limit.buckets.apply(call.key, answer, now);
        }
    }

    /// Removes all limits but these.
    pub fn retain(&mut self, kept: &[EventLimitId]) {
        self.limits.retain(|limit| kept.contains(&limit.id));
    }

    /// The number of buckets of a limit.
    #[must_use]
    pub fn bucket_count(&self, id: EventLimitId) -> usize {
        let limit = self.limits.iter().find(|limit| limit.id == id);
        limit.map_or(0, |limit| limit.buckets.len())
    }

    /// Charges each of these limits that has a token. The results are reported in the order of
    /// `ids`. A limit that was removed has no result.
    pub fn charge(
        &mut self,
        ids: &[EventLimitId],
        keys: &EventBucketKeys,
        now: Instant,
        mut report: impl FnMut(usize, EventLimitResult),
    ) {
        for (n, id) in ids.iter().enumerate() {
            // There are a few limits at most.
            let Some(limit) = self.limits.iter_mut().find(|limit| limit.id == *id) else {
                continue;
            };
            let key = match limit.limit_type {
                LimitType::Namespace => keys.namespace,
                LimitType::Server => keys.server,
                LimitType::SourceAndObject => keys.source_and_object,
                LimitType::User => keys.user,
            };
            let buckets = &mut limit.buckets;
            let (token, lookup) = buckets.reserve(key, keys.warning, now, Duration::ZERO);
            let token = token.map(|_| ());
            report(n, EventLimitResult { lookup, token });
        }
    }
}

/// The message that upstream returns, for the limits that rejected the event. Equal texts appear
/// once. Longer messages are truncated to [`MAX_MESSAGE_BYTES`], and no more than that is copied of
/// a key.
pub fn rejection_message(
    event: &LimitedEvent<'_>,
    limit_types: impl IntoIterator<Item = LimitType>,
) -> String {
    let mut texts: Vec<String> = Vec::new();
    for limit_type in limit_types {
        let key = event.key_text(limit_type);
        // The text before the key makes the message longer than the limit already. The message is
        // therefore truncated before a character that this slice may split.
        let key = String::from_utf8_lossy(key.get(..MAX_MESSAGE_BYTES).unwrap_or(key));
        let text = format!("limit reached on type {} for key {key}", limit_type.name());
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    let message = match texts.as_slice() {
        [text] => format!("Too many requests: {text}"),
        texts => format!("Too many requests: [{}]", texts.join(", ")),
    };
    let mut message = truncate_for_json(message, MAX_MESSAGE_BYTES);
    message.shrink_to_fit(); // it is kept as long as the rejection is held
    message
}

#[cfg(test)]
#[path = "buckets_tests.rs"]
mod tests;
