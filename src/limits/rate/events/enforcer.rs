//! The limits at work: shared by all workers, counted, and remembering which key an event's name belongs to.

use std::borrow::Cow;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;

use prometheus::IntCounter;
use prometheus::IntCounterVec;
use prometheus::IntGauge;
use prometheus::IntGaugeVec;

use crate::limits::rate::events::EventBucketKeys;
use crate::limits::rate::events::EventLimits;
use crate::limits::rate::events::EventWrite;
use crate::limits::rate::events::LimitedEvent;
use crate::limits::rate::events::LimitedEventGroups;
use crate::limits::rate::events::body;
use crate::limits::rate::events::body::EventEncoding;
use crate::limits::rate::events::config;
use crate::limits::rate::events::config::LimitType;
use crate::limits::rate::events::rejection_message;
use crate::limits::rate::events::snapshot::EventLimitCounts;
use crate::limits::rate::lru::Lru;
use crate::limits::rate::lru::LruKeyHasher;
use crate::limits::rate::lru::LruOutcome;
use crate::limits::rate::spin_lock::spin_lock;
use crate::limits::rate::top_keys::TopKey;
use crate::limits::rate::top_keys::TopKeys;
use crate::limits::retry_after_seconds;
use crate::metrics::Registry;
use crate::request_info::RequestInfo;

/// How many events' keys are remembered for their patches: an hour of four new events a second, in at most 12 MiB.
const MAX_TRACKED_EVENTS: usize = 16_384;

/// The longest key that is remembered, in bytes: names and a uid need no more. The patch of an event with a longer one
/// is charged by namespace and name.
const MAX_TRACKED_KEY_BYTES: usize = 512;

/// What is enforced, and how.
#[derive(Clone, Debug)]
pub struct EventRateLimitConfig {
    /// `--event-rate-limit-config`, in its order.
    pub limits: Vec<config::EventLimitConfig>,
    /// `--event-rate-limit-groups`.
    pub groups: LimitedEventGroups,
    /// `--event-rate-limit-retry-after`.
    pub retry_after: bool,
}

/// An event too many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRejection {
    /// Upstream's words.
    pub message: String,
    /// Whole seconds until every limit that refused has a token, if that is to be said.
    pub retry_after: Option<u32>,
    /// The same, not rounded.
    pub wait: Duration,
}

/// A request that writes an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRequest {
    write: EventWrite,
    /// How its body is written, if that is to be read.
    encoding: Option<EventEncoding>,
}

impl EventRequest {
    /// Whether the body must be there to decide.
    #[must_use]
    pub const fn needs_body(&self) -> bool {
        self.encoding.is_some()
    }
}

/// The limits, at work.
#[derive(Debug)]
pub struct EventRateLimit {
    /// Guards the buckets; held for one decision.
    limits: Mutex<EventLimits>,
    keys: LruKeyHasher,
    types: Box<[LimitType]>,
    limit_configs: Box<[config::EventLimitConfig]>,
    groups: LimitedEventGroups,
    retry_after: bool,
    /// Some limit goes by source and object, or spares warnings.
    needs_body: bool,
    counters: Box<[EventLimitCounters]>,
    /// Guards who was refused by which limit; held for one refusal.
    top_keys: Mutex<Box<[TopKeys]>>,
    /// Guards the keys of events by namespace and name; held for a look.
    tracked_keys: Mutex<Lru<TrackedEventKey>>,
}

#[derive(Debug)]
struct TrackedEventKey {
    source_and_object: Box<[u8]>,
    warning: bool,
}

/// What is counted of one limit.
#[derive(Debug)]
struct EventLimitCounters {
    allowed: IntCounter,
    rejected: IntCounter,
    evictions: IntCounter,
    keys: IntGauge,
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
                "Events that a limit was asked about, by its place in the configuration and its type.",
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
}

impl EventRateLimit {
    /// Limits that nothing was charged to, and that show themselves in `registry`.
    #[must_use]
    pub fn new(config: &EventRateLimitConfig, registry: &Registry) -> Self {
        let metrics = EventLimitMetrics::register(registry);
        let limits = &config.limits;
        let looks_inside = |limit: &config::EventLimitConfig| {
            limit.limit_type == LimitType::SourceAndObject || limit.warning_reserve_percent > 0
        };
        Self {
            limits: Mutex::new(EventLimits::new(limits)),
            keys: LruKeyHasher::default(),
            types: limits.iter().map(|limit| limit.limit_type).collect(),
            limit_configs: limits.clone().into(),
            groups: config.groups,
            retry_after: config.retry_after,
            needs_body: limits.iter().any(looks_inside),
            counters: limits
                .iter()
                .enumerate()
                .map(|(n, limit)| metrics.for_limit(n, limit))
                .collect(),
            top_keys: Mutex::new(limits.iter().map(|_| TopKeys::default()).collect()),
            tracked_keys: Mutex::new(Lru::new(MAX_TRACKED_EVENTS)),
        }
    }

    /// What is to be done about a request; `None` if it writes no event that is limited.
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

    /// Charges an event that `user` writes with `body` (empty where it is not wanted).
    ///
    /// # Errors
    /// One limit or more has no token for it.
    pub fn admit(
        &self,
        request: EventRequest,
        info: &RequestInfo<'_>,
        user: &str,
        body: &[u8],
        now: Instant,
    ) -> Result<(), EventRejection> {
        let found = request.encoding.and_then(|encoding| {
            let group_version = match info.api_group() {
                b"" => Cow::Borrowed(info.api_version()),
                group => Cow::Owned([group, b"/", info.api_version()].concat()),
            };
            // One of another version is read upstream as well, and then refused.
            body::parse(encoding, &group_version, body).filter(|found| found.version_accepted)
        });
        let (source_and_object, warning) = match &found {
            Some(found) => (
                Cow::Owned(found.key.concat()),
                *found.event_type == *b"Warning",
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
        if let Some(found) = found {
            let name = match request.write {
                EventWrite::Create => &*found.name,
                EventWrite::Patch | EventWrite::Update => info.name(),
            };
            self.track_key(name, &event);
        }
        Ok(())
    }

    /// The key of an event whose body does not tell it: of a patch the one that its name is known to have, or namespace and
    /// name; of what is no event none.
    fn key_without_body<'e>(
        &self,
        request: EventRequest,
        info: &RequestInfo<'_>,
    ) -> (Cow<'e, [u8]>, bool) {
        let names = [info.namespace(), info.name()];
        if !self.needs_body || request.write != EventWrite::Patch || request.needs_body() {
            return (Cow::Borrowed(b""), false);
        }
        let known = |known: &mut TrackedEventKey| {
            let key = known.source_and_object.to_vec();
            (Cow::Owned(key), known.warning)
        };
        spin_lock(&self.tracked_keys)
            .get_mut(self.keys.hash_separate(names))
            .map(known)
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
        let mut remembered = spin_lock(&self.tracked_keys);
        let (known, _) = remembered.get_or_insert_with(key, new);
        known.warning = event.warning;
        if *known.source_and_object != *event.source_and_object {
            known.source_and_object = (&*event.source_and_object).into();
        }
    }

    fn charge(&self, event: &LimitedEvent<'_>, now: Instant) -> Result<(), EventRejection> {
        let charge = EventBucketKeys::from_event(event, &self.keys);
        let mut refused: Vec<(usize, Duration)> = Vec::new();
        spin_lock(&self.limits).charge(&charge, now, |n, answer| {
            let Some(counters) = self.counters.get(n) else {
                return; // never: there is one for each
            };
            match answer.lookup {
                LruOutcome::Inserted => counters.keys.inc(),
                LruOutcome::InsertedWithEviction => counters.evictions.inc(),
                LruOutcome::Found => {}
            }
            match answer.token {
                Ok(()) => counters.allowed.inc(),
                Err(wait) => {
                    counters.rejected.inc();
                    refused.push((n, wait));
                }
            }
        });
        let Some(wait) = refused.iter().map(|(_, wait)| *wait).max() else {
            return Ok(());
        };
        let limit_type = |n: usize| self.types.get(n).copied();
        let mut top = spin_lock(&self.top_keys);
        for (n, _) in &refused {
            if let (Some(top), Some(limit_type)) = (top.get_mut(*n), limit_type(*n)) {
                top.add(event.key_text(limit_type));
            }
        }
        drop(top);
        let types = refused.iter().filter_map(|(n, _)| limit_type(*n));
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

    /// Who was refused most, limit by limit.
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
mod tests {
    use super::*;

    const POST: &str = "/api/v1/namespaces/default/events";

    fn new_limits(limits: &[(LimitType, u32, u32, u8)]) -> (EventRateLimit, Registry) {
        let registry = Registry::new();
        let limit = |&(limit_type, qps, burst, reserve): &(LimitType, u32, u32, u8)| {
            config::EventLimitConfig {
                limit_type,
                qps,
                burst,
                cache_size: 2,
                warning_reserve_percent: reserve,
            }
        };
        let config = EventRateLimitConfig {
            limits: limits.iter().map(limit).collect(),
            groups: LimitedEventGroups::All,
            retry_after: true,
        };
        (EventRateLimit::new(&config, &registry), registry)
    }

    fn send(
        limits: &EventRateLimit,
        (method, target): (&str, &str),
        content_type: Option<&[u8]>,
        body: &str,
        now: Instant,
    ) -> Result<(), EventRejection> {
        let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
        let request = limits.event_request(&info, content_type).unwrap();
        limits.admit(request, &info, "alice", body.as_bytes(), now)
    }

    fn event(source: &str, name: &str, event_type: &str) -> String {
        format!(
            r#"{{"metadata":{{"name":"{name}"}},"source":{{"component":"{source}"}},"type":"{event_type}"}}"#
        )
    }

    #[test]
    fn a_patch_is_charged_to_the_key_tracked_for_its_name() {
        let (limits, _registry) = new_limits(&[(LimitType::SourceAndObject, 1, 3, 0)]);
        let now = Instant::now();
        let patch = ("PATCH", "/api/v1/namespaces/default/events/a.1");
        let strategic = Some(&b"application/strategic-merge-patch+json"[..]);
        send(
            &limits,
            ("POST", POST),
            None,
            &event("kubelet", "a.1", "Normal"),
            now,
        )
        .unwrap();
        send(&limits, patch, strategic, "", now).unwrap();
        // The other group writes the same objects.
        let other = (
            "PATCH",
            "/apis/events.k8s.io/v1/namespaces/default/events/a.1",
        );
        send(&limits, other, strategic, "", now).unwrap();
        let refused = send(&limits, patch, strategic, "", now).unwrap_err();
        assert_eq!(
            refused.message,
            "Too many requests: limit reached on type SourceAndObject for key kubelet"
        );
        assert_eq!(refused.retry_after, Some(1));
        let unknown = ("PATCH", "/api/v1/namespaces/default/events/b.2");
        for _ in 0..3 {
            send(&limits, unknown, strategic, "", now).unwrap();
        }
        let refused = send(&limits, unknown, strategic, "", now).unwrap_err();
        assert!(
            refused.message.ends_with("for key default/b.2"),
            "{refused:?}"
        );
    }

    #[test]
    fn an_invalid_event_has_the_empty_key() {
        let (limits, _registry) = new_limits(&[(LimitType::SourceAndObject, 1, 2, 0)]);
        let now = Instant::now();
        send(&limits, ("POST", POST), None, "{", now).unwrap();
        send(&limits, ("POST", POST), Some(b"text/plain"), "", now).unwrap();
        let foreign = r#"{"apiVersion":"events.k8s.io/v1","deprecatedSource":{"component":"x"}}"#;
        let refused = send(&limits, ("POST", POST), None, foreign, now).unwrap_err();
        assert!(refused.message.ends_with("for key "), "{refused:?}");
    }

    #[test]
    fn normal_events_leave_the_reserve_to_warnings() {
        let (limits, _registry) = new_limits(&[(LimitType::Server, 1, 10, 50)]);
        let now = Instant::now();
        let count = |event_type| {
            let body = event("c", "n", event_type);
            (0..20)
                .take_while(|_| send(&limits, ("POST", POST), None, &body, now).is_ok())
                .count()
        };
        assert_eq!(count("Normal"), 6);
        assert_eq!(count("Warning"), 4);
        assert_eq!(count("Normal"), 0);
    }

    #[test]
    fn retry_after_is_whole_seconds_until_the_slowest_rejecting_limit_has_a_token() {
        let (limits, _registry) =
            new_limits(&[(LimitType::Server, 100, 1, 0), (LimitType::User, 1, 1, 0)]);
        let now = Instant::now();
        send(&limits, ("POST", POST), None, "{}", now).unwrap();
        let later = now + Duration::from_millis(1);
        let refused = send(&limits, ("POST", POST), None, "{}", later).unwrap_err();
        assert_eq!(refused.retry_after, Some(1));
        assert_eq!(
            refused.message,
            "Too many requests: [limit reached on type Server for key , limit reached on type User for key alice]"
        );
        let later = now + Duration::from_millis(20);
        let refused = send(&limits, ("POST", POST), None, "{}", later).unwrap_err();
        assert!(
            !refused.message.contains('['),
            "the server's has one: {refused:?}"
        );
    }

    #[test]
    fn decisions_evictions_and_keys_are_counted() {
        let (limits, registry) = new_limits(&[(LimitType::Namespace, 1, 1, 0)]);
        let now = Instant::now();
        for namespace in ["a", "b", "b", "c"] {
            let target = format!("/api/v1/namespaces/{namespace}/events");
            let _ = send(&limits, ("POST", &target), None, "{}", now);
        }
        let text = registry.render();
        for line in [
            "weir_event_rate_limit_requests_total{decision=\"allowed\",limit=\"0\",type=\"Namespace\"} 3",
            "weir_event_rate_limit_requests_total{decision=\"rejected\",limit=\"0\",type=\"Namespace\"} 1",
            "weir_event_rate_limit_evictions_total{limit=\"0\",type=\"Namespace\"} 1",
            "weir_event_rate_limit_keys{limit=\"0\",type=\"Namespace\"} 2",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let (_, top) = &limits.top_keys()[0];
        assert_eq!((top[0].key.as_str(), top[0].rejections), ("b", 1));
    }

    #[test]
    fn only_writes_of_events_in_a_namespace_are_limited() {
        let (limits, _registry) = new_limits(&[(LimitType::Server, 1, 1, 0)]);
        let concerned = |method: &str, target: &str| {
            let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
            limits.event_request(&info, None).is_some()
        };
        assert!(concerned("POST", POST));
        assert!(concerned(
            "POST",
            "/apis/events.k8s.io/v1/namespaces/a/events"
        ));
        assert!(concerned("PUT", "/api/v1/namespaces/a/events/x"));
        assert!(concerned("PATCH", "/api/v1/namespaces/a/events/x?dryRun="));
        for (method, target) in [
            ("POST", "/api/v1/events"),
            ("POST", "/api/v1/namespaces/a/events/x"),
            ("POST", "/api/v1/namespaces/a/events?dryRun=All"),
            ("POST", "/api/v1/namespaces/a/pods"),
            ("POST", "/apis/example.org/v1/namespaces/a/events"),
            ("GET", "/api/v1/namespaces/a/events/x"),
            ("DELETE", "/api/v1/namespaces/a/events/x"),
            ("DELETE", "/api/v1/namespaces/a/events"),
            ("PUT", "/api/v1/namespaces/a/events"),
            ("PUT", "/api/v1/namespaces/a/events/x/status"),
        ] {
            assert!(!concerned(method, target), "{method} {target}");
        }
    }
}
