//! The number of watches that receive a write.
//!
//! Follows `watchTracker` (Kubernetes 1.36, `util/flowcontrol/watch_tracker.go`): watches are
//! counted by their resource, namespace and name, whatever their selectors. It makes upstream's
//! exception: kubelets, each of which watches the pods of its own node, are not counted at all.
//!
//! It counts the watches of this process. Where clients also reach the API server in other ways,
//! the count is too low.

use std::collections::HashMap;
use std::sync::Arc;

use weir_kubernetes::request_info::{RequestInfo, Verb};

/// The resource whose watches the API server's watch cache distinguishes by an index, and the
/// indexed field.
const INDEXED_FIELD: (&[u8], &str) = (b"pods", "spec.nodeName");

/// The current watches. Its size depends on their number. Ended watches leave no entry.
#[derive(Debug, Default)]
pub struct WatchTracker {
    counts: HashMap<Arc<[u8]>, usize>,
    /// A reused buffer for one key.
    key: Vec<u8>,
}

/// A registered watch, to be passed to [`WatchTracker::unregister`] when it ends.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a watch that is not forgotten is counted for ever"]
pub struct Registration {
    /// `None` if the watch is not counted.
    key: Option<Arc<[u8]>>,
}

impl WatchTracker {
    /// Registers a watch that begins. `None` if the request is not a watch.
    pub fn register(&mut self, info: &RequestInfo<'_>) -> Option<Registration> {
        if *info.verb() != Verb::Watch {
            return None;
        }
        if is_indexed(info) {
            return Some(Registration { key: None });
        }
        write_key(&mut self.key, info, info.namespace(), info.name());
        let existing = self.counts.get_key_value(&*self.key);
        let key = existing.map_or_else(|| self.key.as_slice().into(), |(key, _)| Arc::clone(key));
        *self.counts.entry(Arc::clone(&key)).or_default() += 1;
        Some(Registration { key: Some(key) })
    }

    /// Removes a watch that has ended.
    pub fn unregister(&mut self, registration: Registration) {
        let Some(key) = registration.key else {
            return;
        };
        let Some(count) = self.counts.get_mut(&key) else {
            return; // registered elsewhere
        };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&key);
        }
    }

    /// The number of watches that a write concerns. 0 for other requests. The name of a create is
    /// not known.
    ///
    /// Upstream: `GetInterestedWatchCount`.
    pub fn interested_watches(&mut self, info: &RequestInfo<'_>) -> usize {
        if matches!(
            info.verb(),
            Verb::Get | Verb::List | Verb::Proxy | Verb::Watch
        ) {
            return 0;
        }
        let (namespace, name) = (info.namespace(), info.name());
        let mut watches = self.count(info, b"", b"");
        if !namespace.is_empty() {
            watches += self.count(info, namespace, b"");
        }
        if !name.is_empty() {
            watches += self.count(info, namespace, name);
        }
        watches
    }

    fn count(&mut self, info: &RequestInfo<'_>, namespace: &[u8], name: &[u8]) -> usize {
        write_key(&mut self.key, info, namespace, name);
        self.counts.get(&*self.key).copied().unwrap_or_default()
    }
}

/// Whether the watch covers only a part of the index, and so receives few changes.
fn is_indexed(info: &RequestInfo<'_>) -> bool {
    let (resource, field) = INDEXED_FIELD;
    info.resource() == resource
        && info
            .requires_exact_match(field)
            .is_some_and(|value| !value.is_empty())
}

/// Writes group, resource, namespace and name, each after its length, so that different tuples have
/// different keys.
fn write_key(key: &mut Vec<u8>, info: &RequestInfo<'_>, namespace: &[u8], name: &[u8]) {
    key.clear();
    for part in [info.api_group(), info.resource(), namespace, name] {
        key.extend_from_slice(&part.len().to_le_bytes());
        key.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    fn info(method: &str, target: &'static str) -> RequestInfo<'static> {
        RequestInfo::parse(method, target.as_bytes()).unwrap()
    }

    fn tracker_with(targets: &[&'static str]) -> (WatchTracker, Vec<Registration>) {
        let mut tracker = WatchTracker::default();
        let registrations = targets
            .iter()
            .map(|target| tracker.register(&info("GET", target)).unwrap())
            .collect();
        (tracker, registrations)
    }

    #[test]
    fn a_write_interests_watches_of_the_cluster_its_namespace_and_its_name() {
        let (mut tracker, _) = tracker_with(&[
            "/api/v1/secrets?watch=1",
            "/api/v1/watch/secrets",
            "/api/v1/namespaces/a/secrets?watch=1&labelSelector=x%3Dy",
            "/api/v1/namespaces/a/secrets?watch=1&fieldSelector=metadata.name%3Dn",
            "/api/v1/namespaces/b/secrets?watch=1",
            "/api/v1/secrets?watch=1&fieldSelector=metadata.name%3Dn",
            "/apis/other/v1/secrets?watch=1",
        ]);
        let mut interested = |method, target| tracker.interested_watches(&info(method, target));
        assert_eq!(interested("PUT", "/api/v1/namespaces/a/secrets/n"), 4);
        assert_eq!(
            interested("PATCH", "/api/v1/namespaces/a/secrets/n/status"),
            4
        );
        assert_eq!(interested("DELETE", "/api/v1/namespaces/a/secrets/m"), 3);
        assert_eq!(interested("POST", "/api/v1/namespaces/a/secrets"), 3);
        assert_eq!(interested("DELETE", "/api/v1/namespaces/c/secrets"), 2);
        assert_eq!(interested("GET", "/api/v1/namespaces/a/secrets/n"), 0);
        assert_eq!(interested("PUT", "/api/v1/namespaces/a/pods/n"), 0);
        assert_eq!(
            interested("PUT", "/apis/other/v2/namespaces/a/secrets/n"),
            1
        );
    }

    #[test]
    fn a_write_to_a_namespace_is_one_within_it() {
        let (mut tracker, _) = tracker_with(&[
            "/api/v1/namespaces?watch=1",
            "/api/v1/namespaces?watch=1&fieldSelector=metadata.name%3Da",
            "/api/v1/watch/namespaces/a",
        ]);
        let write = info("PUT", "/api/v1/namespaces/a");
        assert_eq!(tracker.interested_watches(&write), 2);
    }

    #[test]
    fn watches_of_the_pods_of_a_node_are_not_counted() {
        let (mut tracker, kubelets) = tracker_with(&[
            "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1",
            "/api/v1/watch/pods?fieldSelector=spec.nodeName%3D%3Dn1,status.phase!%3Dx",
        ]);
        let write = info("PUT", "/api/v1/namespaces/a/pods/p");
        assert_eq!(tracker.interested_watches(&write), 0);
        let (mut others, _) = tracker_with(&[
            "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3D",
            "/api/v1/pods?watch=1&fieldSelector=spec.nodeName!%3Dn1",
            "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1&limit=x",
            "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1&labelSelector=a+b",
            "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1,bogus",
        ]);
        assert_eq!(others.interested_watches(&write), 5);
        for kubelet in kubelets {
            tracker.unregister(kubelet);
        }
    }

    #[test]
    fn unregistered_watches_leave_no_entry() {
        let target = "/api/v1/namespaces/a/secrets?watch=1";
        let (mut tracker, registrations) = tracker_with(&[target; 3]);
        let write = info("POST", "/api/v1/namespaces/a/secrets");
        for (n, registration) in registrations.into_iter().enumerate() {
            assert_eq!(tracker.interested_watches(&write), 3 - n);
            tracker.unregister(registration);
        }
        assert_eq!(tracker.interested_watches(&write), 0);
        assert!(tracker.counts.is_empty());
        assert_eq!(tracker.register(&info("GET", "/api/v1/secrets")), None);
    }

    #[test]
    fn different_paths_have_different_keys() {
        let (mut tracker, _) =
            tracker_with(&["/apis/a/v1/b%00c?watch=1", "/apis/a%00b/v1/c?watch=1"]);
        assert_eq!(
            tracker.interested_watches(&info("POST", "/apis/a/v1/b%00c")),
            1
        );
    }

    #[test]
    fn the_counts_equal_a_recount_after_any_sequence() {
        let scopes = ["pods", "namespaces/a/pods", "namespaces/b/pods"];
        for seed in 0x5eed..0x5eed + 50 {
            let mut random = Rng::with_seed(seed);
            let (mut tracker, mut live) = (WatchTracker::default(), Vec::new());
            for _ in 0..200 {
                let (scope, name) = (random.usize(..3), random.usize(..3));
                if !live.is_empty() && random.u8(..3) == 0 {
                    let (_, registration) = live.swap_remove(random.usize(..live.len()));
                    tracker.unregister(registration);
                } else {
                    let selector = ["", "metadata.name%3Dx", "metadata.name%3Dy"][name];
                    let target =
                        format!("/api/v1/{}?watch=1&fieldSelector={selector}", scopes[scope]);
                    let watch = RequestInfo::parse("GET", target.as_bytes()).unwrap();
                    live.push(((scope, name), tracker.register(&watch).unwrap()));
                }
                let write = info("PUT", "/api/v1/namespaces/a/pods/x");
                let interested =
                    |(about, _): &&((usize, usize), _)| matches!(about, (0, 0) | (1, 0) | (1, 1));
                let recount = live.iter().filter(interested).count();
                assert_eq!(tracker.interested_watches(&write), recount, "seed {seed}");
            }
        }
    }
}
