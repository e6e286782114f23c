//! EventRateLimit: kube-apiserver's admission plugin, in front of the server.
//!
//! Follows `plugin/pkg/admission/eventratelimit` (Kubernetes 1.36.2): every limit is asked for every event, in the order of
//! the configuration, and charged even if another refuses; a key that had to make room begins anew. On purpose different,
//! and each by a flag: `events.k8s.io` is limited as well (upstream overlooks it), and a refusal says when to come again.
//! Here nothing has been decoded, authorized or mutated yet, so that what the server would refuse later is charged, too.
//!
//! This file decides and is pure; [`enforcer`] locks, counts and remembers, and reads what [`body`] finds in a body.

pub mod body;
pub mod config;
pub mod enforcer;
mod snapshot;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::time::Duration;
use std::time::Instant;

use crate::api::status::truncate_for_json;
use crate::limits::rate::events::config::LimitType;
use crate::limits::rate::lru::Lru;
use crate::limits::rate::lru::LruKey;
use crate::limits::rate::lru::LruKeyHasher;
use crate::limits::rate::lru::LruOutcome;
use crate::limits::rate::token_bucket::Rate;
use crate::limits::rate::token_bucket::TokenBucket;
use crate::limits::rate::token_bucket::TokenReserve;
use crate::request_info::RequestInfo;
use crate::request_info::Verb;

/// The longest message about an event, in bytes of JSON: a key may be as long as a body, and client-go reads 2 KiB to keep the
/// connection. A Status has the message twice.
pub const MAX_MESSAGE_BYTES: usize = 768;

/// Which API groups' events are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitedEventGroups {
    /// The core group's and those of `events.k8s.io`, which modern recorders use.
    All,
    /// The core group's alone, as upstream.
    Core,
}

/// How an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventWrite {
    /// POST.
    Create,
    /// PATCH, of any kind.
    Patch,
    /// PUT.
    Update,
}

impl EventWrite {
    /// What the plugin would be asked about: creating and updating one event in a namespace, unless dry. A POST to all
    /// namespaces, or to a name, is no route of the server's.
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

/// What the buckets of an event are chosen by.
#[derive(Clone, Debug)]
pub struct LimitedEvent<'e> {
    /// Of the request.
    pub namespace: &'e [u8],
    /// The name of who writes it.
    pub user: &'e [u8],
    /// Source and object, joined; empty for what is no event.
    pub source_and_object: Cow<'e, [u8]>,
    /// `type: Warning`.
    pub warning: bool,
}

impl LimitedEvent<'_> {
    fn key_text(&self, limit_type: LimitType) -> &[u8] {
        match limit_type {
            LimitType::Namespace => self.namespace,
            LimitType::Server => b"",
            LimitType::SourceAndObject => &self.source_and_object,
            LimitType::User => self.user,
        }
    }
}

/// What a limit said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLimitResult {
    /// Whether the key had a bucket.
    pub lookup: LruOutcome,
    /// Or how long until there is a token.
    pub token: Result<(), Duration>,
}

/// The limits and their buckets.
#[derive(Debug)]
pub struct EventLimits {
    limits: Box<[EventLimit]>,
}

/// A limit and its buckets.
#[derive(Debug)]
struct EventLimit {
    limit_type: LimitType,
    rate: Rate,
    /// What is left for warnings.
    warning_reserve: TokenReserve,
    buckets: Lru<TokenBucket>,
}

/// The bucket of each limit that an event is charged to, found before the lock is taken.
#[derive(Clone, Copy, Debug)]
pub struct EventBucketKeys {
    namespace: LruKey,
    server: LruKey,
    source_and_object: LruKey,
    user: LruKey,
    warning: bool,
}

impl EventBucketKeys {
    /// Of this event.
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
    /// No bucket is there yet.
    #[must_use]
    pub fn new(limits: &[config::EventLimitConfig]) -> Self {
        let limit = |limit: &config::EventLimitConfig| {
            let rate = Rate::new(limit.qps, limit.burst);
            EventLimit {
                limit_type: limit.limit_type,
                rate,
                warning_reserve: rate
                    .reserve_share(f64::from(limit.warning_reserve_percent) / 100.0),
                buckets: Lru::new(usize::try_from(limit.cache_size).unwrap_or(usize::MAX)),
            }
        };
        Self {
            limits: limits.iter().map(limit).collect(),
        }
    }

    /// Asks every limit, and charges each that has a token; the answers are told in order.
    pub fn charge(
        &mut self,
        charge: &EventBucketKeys,
        now: Instant,
        mut told: impl FnMut(usize, EventLimitResult),
    ) {
        for (n, limit) in self.limits.iter_mut().enumerate() {
            let key = match limit.limit_type {
                LimitType::Namespace => charge.namespace,
                LimitType::Server => charge.server,
                LimitType::SourceAndObject => charge.source_and_object,
                LimitType::User => charge.user,
            };
            let rate = &limit.rate;
            let (bucket, was) = limit
                .buckets
                .get_or_insert_with(key, || TokenBucket::full(rate, now));
            let token = if charge.warning {
                bucket.take(rate, now)
            } else {
                bucket.take_above_reserve(rate, limit.warning_reserve, now)
            };
            told(n, EventLimitResult { lookup: was, token });
        }
    }
}

/// What upstream answers, from the limits that refused, by their types: texts that are equal are told once. Longer ones are cut
/// at [`MAX_MESSAGE_BYTES`], and no more than that is copied of a key.
pub fn rejection_message(
    event: &LimitedEvent<'_>,
    refused: impl IntoIterator<Item = LimitType>,
) -> String {
    let mut texts: Vec<String> = Vec::new();
    for limit_type in refused {
        let key = event.key_text(limit_type);
        // What comes before it makes that too long already, so that the cut goes before a character that this cuts in two.
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
    message.shrink_to_fit(); // it is kept as long as the refusal is held
    message
}
