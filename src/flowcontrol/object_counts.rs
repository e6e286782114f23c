//! How many objects there are of each resource and how large they are, as far as answers to lists
//! have told.
//!
//! kube-apiserver asks etcd about every resource each minute or two (`StorageObjectCountTracker`,
//! Kubernetes 1.36), and takes what it has not heard of for three minutes for endless. From outside
//! there are the answers that pass by: a list of everything tells how many objects there are, or a
//! first page of it that says how many remain. Clients list once and watch from then on, so hours
//! may pass between two such answers, and an old count is still the best there is: it holds until
//! the next one. Nothing is learned of a resource that nobody lists.

use std::collections::HashMap;
use std::time::Instant;

use crate::flowcontrol::work_estimate::ObjectStats;
use crate::request_info::RequestInfo;
use crate::request_info::Verb;

/// More than any API server has; the one that was longest not counted makes room. Keeps a server
/// that answers anything from filling weir's memory.
const MAX_RESOURCES: usize = 4096;

/// What is known of all resources.
#[derive(Debug, Default)]
pub struct ObjectCounts {
    resources: HashMap<Box<[u8]>, Counted>,
    /// Holds one key at a time.
    key: Vec<u8>,
}

/// A successful answer to a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListAnswer {
    /// The number of its items.
    pub items: u64,
    /// Its `metadata.remainingItemCount`.
    pub remaining_items: Option<u64>,
    /// Whether it has a `metadata.continue`, so that there is more.
    pub continues: bool,
    /// The length of its body, if that holds the objects as they are: neither compressed nor a
    /// table, nor their metadata alone. In JSON it is larger than what etcd has, up to three times.
    pub bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    count: u64,
    average_size: u64,
    at: Instant,
}

impl ObjectCounts {
    /// Takes in the answer to `list`, if it tells how many objects there are.
    pub fn learn(&mut self, now: Instant, list: &RequestInfo<'_>, answer: ListAnswer) {
        let Some(count) = total(list, answer) else {
            return;
        };
        let average_size = answer
            .bytes
            .and_then(|bytes| bytes.checked_div(answer.items));
        if let Some(known) = self.find(list.api_group(), list.resource()) {
            *known = Counted {
                count,
                // An answer that does not tell it leaves the one that was known.
                average_size: average_size.unwrap_or(known.average_size),
                at: now,
            };
            return;
        }
        if self.resources.len() >= MAX_RESOURCES {
            self.make_room();
        }
        let counted = Counted {
            count,
            average_size: average_size.unwrap_or_default(),
            at: now,
        };
        self.resources.insert(self.key.as_slice().into(), counted);
    }

    /// What is known of a resource.
    pub fn stats(&mut self, api_group: &[u8], resource: &[u8]) -> ObjectStats {
        self.find(api_group, resource)
            .map_or(ObjectStats::NotFound, |known| ObjectStats::Known {
                count: known.count,
                average_size: known.average_size,
            })
    }

    /// Looks up `resource.group`, as `GroupResource.String` writes it.
    fn find(&mut self, api_group: &[u8], resource: &[u8]) -> Option<&mut Counted> {
        self.key.clear();
        self.key.extend_from_slice(resource);
        if !api_group.is_empty() {
            self.key.push(b'.');
            self.key.extend_from_slice(api_group);
        }
        self.resources.get_mut(&*self.key)
    }

    fn make_room(&mut self) {
        let oldest = self.resources.iter().min_by_key(|(_, known)| known.at);
        if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
            self.resources.remove(&oldest);
        }
    }
}

/// How many objects there are, if the answer tells.
fn total(list: &RequestInfo<'_>, answer: ListAnswer) -> Option<u64> {
    let given = |key| {
        list.query()
            .first(key)
            .is_some_and(|value| !value.is_empty())
    };
    let of_everything = *list.verb() == Verb::List
        && list.namespace().is_empty()
        && list.name().is_empty()
        && !["continue", "fieldSelector", "labelSelector"]
            .into_iter()
            .any(given);
    if !of_everything {
        return None;
    }
    match answer.remaining_items {
        Some(remaining) => answer.items.checked_add(remaining),
        None => (!answer.continues).then_some(answer.items),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PAGE: ListAnswer = ListAnswer {
        items: 500,
        remaining_items: Some(1500),
        continues: true,
        bytes: Some(1_000_100),
    };

    fn learned(target: &str, answer: ListAnswer) -> Option<(u64, u64)> {
        let (mut counts, now) = (ObjectCounts::default(), Instant::now());
        let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
        counts.learn(now, &info, answer);
        match counts.stats(info.api_group(), info.resource()) {
            ObjectStats::Known {
                count,
                average_size,
            } => Some((count, average_size)),
            ObjectStats::NotFound => None,
        }
    }

    #[test]
    fn a_list_of_everything_tells_the_total() {
        let whole = ListAnswer {
            remaining_items: None,
            continues: false,
            ..PAGE
        };
        assert_eq!(learned("/api/v1/pods", whole), Some((500, 2000)));
        assert_eq!(
            learned("/apis/apps/v1/deployments?limit=500", whole),
            Some((500, 2000))
        );
        assert_eq!(
            learned("/apis/apps/v1/deployments?limit=500", PAGE),
            Some((2000, 2000))
        );
        let none = ListAnswer { items: 0, ..whole };
        assert_eq!(learned("/api/v1/pods?labelSelector=", none), Some((0, 0)));
        let table = ListAnswer {
            bytes: None,
            ..whole
        };
        assert_eq!(learned("/api/v1/pods", table), Some((500, 0)));
    }

    #[test]
    fn a_part_of_it_tells_nothing() {
        let targets = [
            "/api/v1/namespaces/a/pods",
            "/api/v1/namespaces/a",
            "/api/v1/pods?labelSelector=x",
            "/api/v1/pods?fieldSelector=metadata.name%3Dx",
            "/api/v1/pods?limit=500&continue=x",
            "/api/v1/pods?watch=1",
        ];
        for target in targets {
            assert_eq!(learned(target, PAGE), None, "{target}");
        }
        let more = ListAnswer {
            remaining_items: None,
            ..PAGE
        };
        assert_eq!(learned("/api/v1/pods?limit=500", more), None);
        let absurd = ListAnswer {
            remaining_items: Some(u64::MAX),
            ..PAGE
        };
        assert_eq!(learned("/api/v1/pods?limit=500", absurd), None);
    }

    /// A list of all there is of a resource.
    fn count(counts: &mut ObjectCounts, now: Instant, resource: &str, answer: ListAnswer) {
        let target = format!("/apis/apps/v1/{resource}");
        let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
        counts.learn(now, &info, answer);
    }

    fn known(counts: &mut ObjectCounts, resource: &str) -> Option<(u64, u64)> {
        match counts.stats(b"apps", resource.as_bytes()) {
            ObjectStats::Known {
                count,
                average_size,
            } => Some((count, average_size)),
            ObjectStats::NotFound => None,
        }
    }

    #[test]
    fn a_count_holds_until_the_next_one() {
        let (mut counts, start) = (ObjectCounts::default(), Instant::now());
        count(&mut counts, start, "deployments", PAGE);
        assert_eq!(known(&mut counts, "deployments"), Some((2000, 2000)));
        let table = ListAnswer {
            items: 7,
            remaining_items: None,
            continues: false,
            bytes: None,
        };
        let a_day = Duration::from_secs(24 * 60 * 60);
        count(&mut counts, start + a_day, "deployments", table);
        assert_eq!(known(&mut counts, "deployments"), Some((7, 2000)));
        assert_eq!(
            counts.stats(b"", b"deployments"),
            ObjectStats::NotFound,
            "another group's"
        );
    }

    #[test]
    fn of_too_many_resources_the_one_longest_not_counted_makes_room() {
        let (mut counts, start) = (ObjectCounts::default(), Instant::now());
        let second = Duration::from_secs(1);
        for n in 0..MAX_RESOURCES {
            count(&mut counts, start, &format!("r{n}"), PAGE);
        }
        for n in (0..MAX_RESOURCES).filter(|&n| n != 7) {
            count(&mut counts, start + second, &format!("r{n}"), PAGE);
        }
        count(&mut counts, start + 2 * second, "new", PAGE);
        assert_eq!(counts.resources.len(), MAX_RESOURCES);
        assert_eq!(known(&mut counts, "r7"), None);
        assert!(known(&mut counts, "new").is_some());
    }
}
