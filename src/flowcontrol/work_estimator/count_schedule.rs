//! Which resource weir counts next by a list of one object (`GET …?limit=1`), and when.
//!
//! `metadata.remainingItemCount` and the item make the count. Only resources that are listed through
//! weir are counted, one call a second in all, and each only after a `SelfSubjectAccessReview` has
//! allowed `list`. Whether a count is wanted is not decided here (`object_counts`).
//!
//! Cost at the API server: one object is read and decoded. `resourceVersion` stays unset: the watch
//! cache ignores the limit at version 0 and would answer with everything (`computeListLimit`,
//! Kubernetes 1.36). Without it the watch cache of 1.36 serves the list
//! (`delegator.ShouldDelegateList`). Where etcd serves it, as in older versions and for events, it
//! walks its index over the keys to count them, as it does for kube-apiserver's own poll each
//! minute.

use std::collections::HashMap;
use std::time::Duration;
use std::time::Instant;

use crate::request_info::RequestInfo;

#[cfg(test)]
mod tests;

/// There is at most one call in this time, of reviews and lists together.
const MIN_CALL_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait where no call is due: counts get old without notice.
const IDLE_INTERVAL: Duration = Duration::from_secs(10);
/// A resource that was not listed for so long is not counted.
const LISTED_TTL: Duration = Duration::from_secs(10 * 60);
/// How long a review serves, whatever it said.
const REVIEW_TTL: Duration = Duration::from_secs(10 * 60);
/// A resource whose list does not tell a count is tried again after this time.
const UNCOUNTABLE_RETRY_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// The first wait after a failure of a resource. Each further failure doubles it.
const INITIAL_BACKOFF: Duration = Duration::from_secs(30);
const MAX_BACKOFF: Duration = Duration::from_secs(60 * 60);
/// The same for all resources together: the API server may be overloaded or down.
const INITIAL_GLOBAL_BACKOFF: Duration = Duration::from_secs(2);
const MAX_GLOBAL_BACKOFF: Duration = Duration::from_secs(5 * 60);
/// The resource that was longest not listed makes room. Names come from clients' requests, as far as
/// the API server answers them 200.
const MAX_RESOURCES: usize = 256;
/// A DNS subdomain, the longest name of a group or a resource.
const MAX_NAME_LENGTH: usize = 253;

/// Resources whose names contain one of these hold credentials, or have them for names. Metadata are
/// no safer: annotations keep what was applied, and `oauthaccesstokens` are named by the token. weir
/// never lists them, whatever it may.
const CREDENTIAL_TERMS: [&str; 4] = ["secret", "token", "credential", "password"];
/// Each list of these asks all control plane components for their health.
const COMPONENT_STATUSES: &str = "componentstatuses";
/// Groups that end like this are computed for each list (`metrics.k8s.io` and its relatives). The
/// API server stores none of them.
const COMPUTED_GROUP_SUFFIX: &str = "metrics.k8s.io";

/// A resource that may be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountableResource {
    /// Empty for the core group.
    pub group: Box<str>,
    /// The version that was last listed.
    pub version: Box<str>,
    /// The plural name.
    pub resource: Box<str>,
}

impl CountableResource {
    /// The resource of a request, unless it must not be listed by weir.
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

    /// The path and query of the list that tells its count.
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
    /// Whether weir may list the resource in all namespaces.
    Review(CountableResource),
    /// The list of one object.
    List(CountableResource),
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextCountCall {
    /// This call. [`CountSchedule::ended`] is to follow.
    Call(CountCall),
    /// Nothing until then, or until another resource is listed.
    Wait(Instant),
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountOutcome {
    /// The review allows the list.
    Allowed,
    /// The review denies the list, or the list was forbidden.
    Denied,
    /// The API server serves no reviews for weir: nothing is listed.
    NoReviews,
    /// The list told how many objects there are.
    Counted,
    /// The list did not tell it, and will not the next time.
    Uncountable,
    /// No answer, or one that says nothing of the resource.
    Failed,
}

#[derive(Clone, Debug)]
struct ScheduleEntry {
    resource: CountableResource,
    last_listed: Instant,
    /// Nothing is done before. The entry that is due for the longest time comes first.
    due: Instant,
    allowed_until: Option<Instant>,
    failures: u32,
}

/// The resources that are listed through weir, and what is known of how to count them.
#[derive(Debug)]
pub struct CountSchedule {
    /// By `group/resource`.
    entries: HashMap<Box<[u8]>, ScheduleEntry>,
    /// No call before.
    not_before: Instant,
    /// In a row, of any resource.
    failures: u32,
    /// Holds one key at a time.
    key: Vec<u8>,
}

impl CountSchedule {
    /// Without any resource.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            entries: HashMap::new(),
            not_before: now,
            failures: 0,
            key: Vec::new(),
        }
    }

    /// Notes that a resource was listed, with success. Returns whether it is a new one.
    pub fn record_list(&mut self, now: Instant, list: &RequestInfo<'_>) -> bool {
        self.set_key(list.api_group(), list.resource());
        if let Some(entry) = self.entries.get_mut(&*self.key) {
            entry.last_listed = now;
            if entry.resource.version.as_bytes() != list.api_version()
                && let Some(of) = CountableResource::from_request(list)
            {
                entry.resource = of;
            }
            return false;
        }
        let Some(of) = CountableResource::from_request(list) else {
            return false;
        };
        if self.entries.len() >= MAX_RESOURCES {
            self.evict_oldest();
        }
        let entry = ScheduleEntry {
            resource: of,
            last_listed: now,
            due: now,
            allowed_until: None,
            failures: 0,
        };
        self.entries.insert(self.key.as_slice().into(), entry);
        true
    }

    /// What to do now. `wanted` says whether a resource needs a count.
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
        let of = entry.resource.clone();
        NextCountCall::Call(if allowed {
            CountCall::List(of)
        } else {
            CountCall::Review(of)
        })
    }

    /// Takes in how a call ended.
    pub fn record_outcome(&mut self, now: Instant, call: &CountCall, outcome: CountOutcome) {
        let pause = match outcome {
            CountOutcome::Failed => {
                self.failures = self.failures.saturating_add(1);
                backoff(self.failures, INITIAL_GLOBAL_BACKOFF, MAX_GLOBAL_BACKOFF)
            }
            CountOutcome::NoReviews => REVIEW_TTL,
            CountOutcome::Allowed
            | CountOutcome::Denied
            | CountOutcome::Counted
            | CountOutcome::Uncountable => {
                self.failures = 0;
                Duration::ZERO
            }
        };
        self.not_before = self.not_before.max(now + pause);
        let (CountCall::Review(of) | CountCall::List(of)) = call;
        self.set_key(of.group.as_bytes(), of.resource.as_bytes());
        let Some(entry) = self.entries.get_mut(&*self.key) else {
            return; // it made room
        };
        if outcome == CountOutcome::Failed {
            entry.failures = entry.failures.saturating_add(1);
        } else {
            entry.failures = 0;
        }
        match outcome {
            // It keeps its turn: the list comes next.
            CountOutcome::Allowed => entry.allowed_until = Some(now + REVIEW_TTL),
            CountOutcome::Denied | CountOutcome::NoReviews => {
                entry.allowed_until = None;
                entry.due = now + REVIEW_TTL;
            }
            CountOutcome::Counted => entry.due = now,
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

/// The wait after so many failures in a row, from 1 on.
fn backoff(failures: u32, first: Duration, longest: Duration) -> Duration {
    let doubled = failures.saturating_sub(1).min(20);
    first.saturating_mul(1 << doubled).min(longest)
}
