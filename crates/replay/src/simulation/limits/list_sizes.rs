//! The sizes of lists, learned from the responses of a log: no audit log says how many objects there
//! are. Pure.
//!
//! kube-apiserver estimates a list by the bytes that it reads: so many objects of an average size. The
//! longest response of a resource is taken for all of its objects. A page says how long an object is
//! at least: its limit may be more than it has.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use weir_flowcontrol::work_estimator::ObjectStats;
use weir_kubernetes::request_info::{RequestInfo, Verb};

/// More resources than any API server has.
const MAX_RESOURCES: usize = 4096;

/// What is known of the resources.
#[derive(Debug, Default)]
pub(super) struct ListSizes {
    /// By API group and resource.
    resources: HashMap<u64, ListSize, FixedState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ListSize {
    /// Of the longest response, in bytes.
    longest: u64,
    /// Of an object, in bytes, at least. 0 if there was no page.
    object: u64,
}

impl ListSizes {
    /// Records the response to a request, if it was a list.
    pub(super) fn observe(&mut self, info: &RequestInfo<'_>, bytes: u64) {
        if *info.verb() != Verb::List || !info.name().is_empty() || bytes == 0 {
            return;
        }
        let key = key_of(info.api_group(), info.resource());
        if self.resources.len() >= MAX_RESOURCES && !self.resources.contains_key(&key) {
            return;
        }
        let known = self.resources.entry(key).or_default();
        known.longest = known.longest.max(bytes);
        let limit = info.query().first("limit");
        let limit = limit.and_then(|text| str::from_utf8(&text).ok()?.parse::<u64>().ok());
        let object = limit.and_then(|limit| bytes.checked_div(limit));
        known.object = known.object.max(object.unwrap_or_default());
    }

    pub(super) fn stats(&self, api_group: &[u8], resource: &[u8]) -> ObjectStats {
        let Some(known) = self.resources.get(&key_of(api_group, resource)) else {
            return ObjectStats::NotFound;
        };
        // Without a page, any limit may be more than there is.
        let average_size = if known.object > 0 {
            known.object
        } else {
            known.longest
        };
        ObjectStats::Counted {
            count: known.longest.div_ceil(average_size.max(1)),
            average_size,
        }
    }
}

fn key_of(api_group: &[u8], resource: &[u8]) -> u64 {
    FixedState::default().hash_one((api_group, resource))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_as_long_as_its_longest_response_and_its_pages_say_how_long_an_object_is() {
        let mut sizes = ListSizes::default();
        let stats = |sizes: &ListSizes| match sizes.stats(b"", b"pods") {
            ObjectStats::Counted {
                count,
                average_size,
            } => Some((count, average_size)),
            ObjectStats::NotFound => None,
        };
        let observe = |sizes: &mut ListSizes, url: &'static str, bytes| {
            sizes.observe(&RequestInfo::parse("GET", url.as_bytes()).unwrap(), bytes);
        };
        observe(&mut sizes, "/api/v1/namespaces/a/pods/p", 9000);
        observe(&mut sizes, "/api/v1/pods?watch=1", 9000);
        observe(&mut sizes, "/api/v1/nodes", 9000);
        assert_eq!(stats(&sizes), None);
        observe(&mut sizes, "/api/v1/pods", 1_000_000);
        observe(&mut sizes, "/api/v1/namespaces/a/pods", 1000);
        assert_eq!(stats(&sizes), Some((1, 1_000_000)));
        observe(&mut sizes, "/api/v1/pods?limit=50", 100_000);
        observe(&mut sizes, "/api/v1/pods?limit=500", 120_000);
        observe(&mut sizes, "/api/v1/pods?limit=0", 120_000);
        assert_eq!(stats(&sizes), Some((500, 2000)));
    }
}
