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
const CALL_EVERY: Duration = Duration::from_secs(1);
/// How long to wait where no call is due: counts get old without notice.
const IDLE: Duration = Duration::from_secs(10);
/// A resource that was not listed for so long is not counted.
const LISTED_WITHIN: Duration = Duration::from_secs(10 * 60);
/// How long a review serves, whatever it said.
const REVIEW_HOLDS: Duration = Duration::from_secs(10 * 60);
/// A resource whose list does not tell a count is tried again after this time.
const UNCOUNTABLE_FOR: Duration = Duration::from_secs(60 * 60);
/// The first wait after a failure of a resource. Each further failure doubles it.
const FIRST_BACKOFF: Duration = Duration::from_secs(30);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60 * 60);
/// The same for all resources together: the API server may be overloaded or down.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);
/// The resource that was longest not listed makes room. Names come from clients' requests, as far as
/// the API server answers them 200.
const MOST_RESOURCES: usize = 256;
/// A DNS subdomain, the longest name of a group or a resource.
const LONGEST_NAME: usize = 253;

/// Resources whose names contain one of these hold credentials, or have them for names. Metadata are
/// no safer: annotations keep what was applied, and `oauthaccesstokens` are named by the token. weir
/// never lists them, whatever it may.
const CREDENTIALS: [&str; 4] = ["secret", "token", "credential", "password"];
/// Each list of these asks all control plane components for their health.
const COMPONENT_STATUSES: &str = "componentstatuses";
/// Groups that end like this are computed for each list (`metrics.k8s.io` and its relatives). The
/// API server stores none of them.
const COMPUTED: &str = "metrics.k8s.io";

/// A resource that may be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Countable {
    /// Empty for the core group.
    pub group: Box<str>,
    /// The version that was last listed.
    pub version: Box<str>,
    /// The plural name.
    pub resource: Box<str>,
}

impl Countable {
    /// The resource of a request, unless it must not be listed by weir.
    fn of(list: &RequestInfo<'_>) -> Option<Self> {
        let text = |bytes| {
            let text = str::from_utf8(bytes).ok()?;
            let is_name = text.len() <= LONGEST_NAME
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
        let is_forbidden = CREDENTIALS.iter().any(|word| resource.contains(word))
            || (group.is_empty() && resource == COMPONENT_STATUSES)
            || group.ends_with(COMPUTED);
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
pub enum Call {
    /// Whether weir may list the resource in all namespaces.
    Review(Countable),
    /// The list of one object.
    List(Countable),
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// This call. [`CountSchedule::ended`] is to follow.
    Call(Call),
    /// Nothing until then, or until another resource is listed.
    Wait(Instant),
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
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
struct Entry {
    of: Countable,
    listed: Instant,
    /// Nothing is done before. The entry that is due for the longest time comes first.
    due: Instant,
    allowed_until: Option<Instant>,
    failures: u32,
}

/// The resources that are listed through weir, and what is known of how to count them.
#[derive(Debug)]
pub struct CountSchedule {
    /// By `group/resource`.
    entries: HashMap<Box<[u8]>, Entry>,
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
    pub fn listed(&mut self, now: Instant, list: &RequestInfo<'_>) -> bool {
        self.look_up(list.api_group(), list.resource());
        if let Some(entry) = self.entries.get_mut(&*self.key) {
            entry.listed = now;
            if entry.of.version.as_bytes() != list.api_version()
                && let Some(of) = Countable::of(list)
            {
                entry.of = of;
            }
            return false;
        }
        let Some(of) = Countable::of(list) else {
            return false;
        };
        if self.entries.len() >= MOST_RESOURCES {
            self.make_room();
        }
        let entry = Entry {
            of,
            listed: now,
            due: now,
            allowed_until: None,
            failures: 0,
        };
        self.entries.insert(self.key.as_slice().into(), entry);
        true
    }

    /// What to do now. `wanted` says whether a resource needs a count.
    pub fn next(&mut self, now: Instant, mut wanted: impl FnMut(&Countable) -> bool) -> Next {
        if now < self.not_before {
            return Next::Wait(self.not_before);
        }
        let due = self
            .entries
            .values()
            .filter(|entry| {
                entry.due <= now && now.saturating_duration_since(entry.listed) < LISTED_WITHIN
            })
            .filter(|entry| wanted(&entry.of))
            .min_by(|a, b| (a.due, &a.of.resource).cmp(&(b.due, &b.of.resource)));
        let Some(entry) = due else {
            return Next::Wait(now + IDLE);
        };
        self.not_before = now + CALL_EVERY;
        let allowed = entry.allowed_until.is_some_and(|until| now < until);
        let of = entry.of.clone();
        Next::Call(if allowed {
            Call::List(of)
        } else {
            Call::Review(of)
        })
    }

    /// Takes in how a call ended.
    pub fn ended(&mut self, now: Instant, call: &Call, outcome: Outcome) {
        let pause = match outcome {
            Outcome::Failed => {
                self.failures = self.failures.saturating_add(1);
                backoff(self.failures, FIRST_PAUSE, LONGEST_PAUSE)
            }
            Outcome::NoReviews => REVIEW_HOLDS,
            Outcome::Allowed | Outcome::Denied | Outcome::Counted | Outcome::Uncountable => {
                self.failures = 0;
                Duration::ZERO
            }
        };
        self.not_before = self.not_before.max(now + pause);
        let (Call::Review(of) | Call::List(of)) = call;
        self.look_up(of.group.as_bytes(), of.resource.as_bytes());
        let Some(entry) = self.entries.get_mut(&*self.key) else {
            return; // it made room
        };
        if outcome == Outcome::Failed {
            entry.failures = entry.failures.saturating_add(1);
        } else {
            entry.failures = 0;
        }
        match outcome {
            // It keeps its turn: the list comes next.
            Outcome::Allowed => entry.allowed_until = Some(now + REVIEW_HOLDS),
            Outcome::Denied | Outcome::NoReviews => {
                entry.allowed_until = None;
                entry.due = now + REVIEW_HOLDS;
            }
            Outcome::Counted => entry.due = now,
            Outcome::Uncountable => entry.due = now + UNCOUNTABLE_FOR,
            Outcome::Failed => {
                entry.due = now + backoff(entry.failures, FIRST_BACKOFF, LONGEST_BACKOFF);
            }
        }
    }

    fn look_up(&mut self, group: &[u8], resource: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(group);
        self.key.push(b'/');
        self.key.extend_from_slice(resource);
    }

    fn make_room(&mut self) {
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.listed);
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
