//! Schedules the calls that count a resource by a list of one object (`GET …?limit=1`).
//!
//! The count is `metadata.remainingItemCount` plus the item. weir only counts resources that are
//! listed through it, with one call a second in total, and each only after a
//! `SelfSubjectAccessReview` has allowed `list`. `object_counts` decides whether a count is wanted.
//!
//! Cost at the API server: it reads and decodes one object. `resourceVersion` stays unset, because
//! the watch cache ignores the limit at version 0 and would answer with all objects
//! (`computeListLimit`, Kubernetes 1.36). Without it the watch cache of 1.36 serves the list
//! (`delegator.ShouldDelegateList`). In older versions and for events, etcd serves the list. It
//! walks its index over the keys to count them, as it does for kube-apiserver's own poll each
//! minute.
//!
//! The list is of metadata only. Resources whose names suggest credentials are never listed, since
//! metadata holds names and annotations.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use weir_kubernetes::request_info::RequestInfo;

#[cfg(test)]
mod tests;

/// There is at most one call in this interval, reviews and lists together.
const MIN_CALL_INTERVAL: Duration = Duration::from_secs(1);
/// The time to wait when no call is due: counts become old without an event.
const IDLE_INTERVAL: Duration = Duration::from_secs(10);
/// A resource that was not listed for this time is not counted.
const LISTED_TTL: Duration = Duration::from_secs(10 * 60);
/// The time for which a review is valid, whatever its result.
const REVIEW_TTL: Duration = Duration::from_secs(10 * 60);
/// The wait after a first denial: an API server that has just started denies what it allows a few
/// seconds later.
const FIRST_DENIAL_TTL: Duration = Duration::from_secs(10);
/// A resource whose list has no count is tried again after this time.
const UNCOUNTABLE_RETRY_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// The first wait after a failure of a resource. Each further failure doubles it.
const INITIAL_BACKOFF: Duration = Duration::from_secs(30);
const MAX_BACKOFF: Duration = Duration::from_secs(60 * 60);
/// The same for all resources together: the API server may be overloaded or unavailable.
const INITIAL_GLOBAL_BACKOFF: Duration = Duration::from_secs(2);
const MAX_GLOBAL_BACKOFF: Duration = Duration::from_secs(5 * 60);
/// Beyond this, the resource with the oldest list is evicted. The names come from clients' requests
/// that the API server answers with 200.
const MAX_RESOURCES: usize = 256;
/// The longest name of a group or a resource: a DNS subdomain.
const MAX_NAME_LENGTH: usize = 253;

/// Resources whose names contain one of these hold credentials, or have credentials as names.
/// Metadata is no safer: annotations contain what was applied, and `oauthaccesstokens` are named by
/// the token. weir never lists these resources, whatever its permissions.
const CREDENTIAL_TERMS: [&str; 4] = ["secret", "token", "credential", "password"];
/// A list of these makes the API server check the health of all control plane components.
const COMPONENT_STATUSES: &str = "componentstatuses";
/// Groups with this suffix are computed for each list (`metrics.k8s.io` and similar ones). The API
/// server stores none of them.
const COMPUTED_GROUP_SUFFIX: &str = "metrics.k8s.io";

/// A resource that may be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountableResource {
    /// The API group. Empty for the core group.
    pub group: Box<str>,
    /// The version of the last list.
    pub version: Box<str>,
    /// The plural name.
    pub resource: Box<str>,
}

impl CountableResource {
    /// The resource of a request. `None` if weir must not list it.
    fn from_request(list: &RequestInfo<'_>) -> Option<Self> {
        let text = |bytes| {
            let text = str::from_utf8(bytes).ok()?;
            let is_name = text.len() <= MAX_NAME_LENGTH
                && text.bytes().all(|byte| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte)
                });
            is_name.then_some(text)
        };
        let group = text(list.api_group())?;
        let version = text(list.api_version())?;
        let resource = text(list.resource())?;
        // A segment of dots would lead to another path.
        let is_segment = |text: &str| text.starts_with(|first: char| first.is_ascii_alphanumeric());
        let is_path =
            is_segment(version) && is_segment(resource) && (group.is_empty() || is_segment(group));
        let is_forbidden = CREDENTIAL_TERMS.iter().any(|word| resource.contains(word))
            || (group.is_empty() && resource == COMPONENT_STATUSES)
            || group.ends_with(COMPUTED_GROUP_SUFFIX);
        (is_path && !is_forbidden).then(|| Self {
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
        })
    }

    /// The path and query of the list that counts the resource.
    #[must_use]
    pub fn target(&self) -> String {
        let Self {
            group,
            version,
            resource,
        } = self;
        if group.is_empty() {
            format!("/api/{version}/{resource}?limit=1")
        } else {
            format!("/apis/{group}/{version}/{resource}?limit=1")
        }
    }
}

/// A call to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CountCall {
    /// A review of whether weir may list the resource in all namespaces.
    Review(CountableResource),
    /// The list of one object.
    List(CountableResource),
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextCountCall {
    /// Make this call, then report it to [`CountSchedule::record_outcome`].
    Call(CountCall),
    /// Wait until then, or until another resource is listed.
    Wait(Instant),
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountOutcome {
    /// The review allows the list.
    Allowed,
    /// The review denies the list, or the list was forbidden.
    Denied,
    /// The API server serves no reviews for weir, so nothing is listed.
    NoReviews,
    /// The list contained a count.
    Counted,
    /// The list contained no count, and will not the next time.
    Uncountable,
    /// No response, or one that contains nothing about the resource.
    Failed,
}

#[derive(Clone, Debug)]
struct ScheduleEntry {
    resource: CountableResource,
    last_listed: Instant,
    /// No call before this time. The entry that has been due for longest comes first.
    due: Instant,
    allowed_until: Option<Instant>,
    failures: u32,
    /// Whether the last review, or the last list, was denied.
    is_denied: bool,
}

/// The resources that are listed through weir, and the state of their calls.
#[derive(Debug)]
pub struct CountSchedule {
    /// By `group/resource`.
    entries: HashMap<Box<[u8]>, ScheduleEntry>,
    /// No call before this time.
    not_before: Instant,
    /// Consecutive failures of any resource.
    failures: u32,
    /// Whether the API server served no review the last time.
    lacks_reviews: bool,
    /// A reused buffer for one key.
    key: Vec<u8>,
}

impl CountSchedule {
    /// A schedule without resources.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            entries: HashMap::new(),
            not_before: now,
            failures: 0,
            lacks_reviews: false,
            key: Vec::new(),
        }
    }

    /// Records a successful list of a resource. Returns whether the resource is new.
    pub fn record_list(&mut self, now: Instant, list: &RequestInfo<'_>) -> bool {
        self.set_key(list.api_group(), list.resource());
        if let Some(entry) = self.entries.get_mut(&*self.key) {
            entry.last_listed = now;
            if entry.resource.version.as_bytes() != list.api_version()
                && let Some(resource) = CountableResource::from_request(list)
            {
                entry.resource = resource;
            }
            return false;
        }
        let Some(resource) = CountableResource::from_request(list) else {
            return false;
        };
        if self.entries.len() >= MAX_RESOURCES {
            self.evict_oldest();
        }
        let entry = ScheduleEntry {
            resource,
            last_listed: now,
            due: now,
            allowed_until: None,
            failures: 0,
            is_denied: false,
        };
        self.entries.insert(self.key.as_slice().into(), entry);
        true
    }

    /// The next action. `wanted` returns whether a resource needs a count.
    pub fn next(
        &mut self,
        now: Instant,
        mut wanted: impl FnMut(&CountableResource) -> bool,
    ) -> NextCountCall {
        if now < self.not_before {
            return NextCountCall::Wait(self.not_before);
        }
        let due = self
            .entries
            .values()
            .filter(|entry| {
                entry.due <= now && now.saturating_duration_since(entry.last_listed) < LISTED_TTL
            })
            .filter(|entry| wanted(&entry.resource))
            .min_by(|a, b| (a.due, &a.resource.resource).cmp(&(b.due, &b.resource.resource)));
        let Some(entry) = due else {
            return NextCountCall::Wait(now + IDLE_INTERVAL);
        };
        self.not_before = now + MIN_CALL_INTERVAL;
        let allowed = entry.allowed_until.is_some_and(|until| now < until);
        let resource = entry.resource.clone();
        NextCountCall::Call(if allowed {
            CountCall::List(resource)
        } else {
            CountCall::Review(resource)
        })
    }

    /// Records the outcome of a call.
    pub fn record_outcome(&mut self, now: Instant, call: &CountCall, outcome: CountOutcome) {
        let pause = match outcome {
            CountOutcome::Failed => {
                self.failures = self.failures.saturating_add(1);
                backoff(self.failures, INITIAL_GLOBAL_BACKOFF, MAX_GLOBAL_BACKOFF)
            }
            CountOutcome::NoReviews => denial_ttl(std::mem::replace(&mut self.lacks_reviews, true)),
            CountOutcome::Allowed
            | CountOutcome::Denied
            | CountOutcome::Counted
            | CountOutcome::Uncountable => {
                self.failures = 0;
                self.lacks_reviews = false;
                Duration::ZERO
            }
        };
        self.not_before = self.not_before.max(now + pause);
        let (CountCall::Review(resource) | CountCall::List(resource)) = call;
        self.set_key(resource.group.as_bytes(), resource.resource.as_bytes());
        let Some(entry) = self.entries.get_mut(&*self.key) else {
            return; // evicted
        };
        if outcome == CountOutcome::Failed {
            entry.failures = entry.failures.saturating_add(1);
        } else {
            entry.failures = 0;
        }
        match outcome {
            // The entry stays due: the list comes next.
            CountOutcome::Allowed => entry.allowed_until = Some(now + REVIEW_TTL),
            CountOutcome::Denied | CountOutcome::NoReviews => {
                entry.allowed_until = None;
                entry.due = now + denial_ttl(std::mem::replace(&mut entry.is_denied, true));
            }
            CountOutcome::Counted => {
                entry.is_denied = false;
                entry.due = now;
            }
            CountOutcome::Uncountable => entry.due = now + UNCOUNTABLE_RETRY_INTERVAL,
            CountOutcome::Failed => {
                entry.due = now + backoff(entry.failures, INITIAL_BACKOFF, MAX_BACKOFF);
            }
        }
    }

    fn set_key(&mut self, group: &[u8], resource: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(group);
        self.key.push(b'/');
        self.key.extend_from_slice(resource);
    }

    fn evict_oldest(&mut self) {
        let oldest = self
            .entries
            .iter()
            .min_by_key(|(_, entry)| entry.last_listed);
        if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
            self.entries.remove(&oldest);
        }
    }
}

/// The wait after a denial, by whether it repeats.
const fn denial_ttl(repeats: bool) -> Duration {
    if repeats {
        REVIEW_TTL
    } else {
        FIRST_DENIAL_TTL
    }
}

/// The wait after this many consecutive failures, from 1 on.
fn backoff(failures: u32, first: Duration, longest: Duration) -> Duration {
    let doubled = failures.saturating_sub(1).min(20);
    first.saturating_mul(1 << doubled).min(longest)
}
