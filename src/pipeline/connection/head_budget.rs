//! The memory of request heads that nothing else bounds yet: of those that are not complete, and of those whose user is still
//! being looked up.
//!
//! Before a user is known no rate and no seat bounds a request, and a head of 1 MiB costs its client a few KiB on HTTP/2, where
//! HPACK refers to a field by one byte. All such heads share one budget, of which one source network may take a quarter.
//! Reserved is what a head takes in memory, not what was sent.

use std::future::Future;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use http::HeaderMap;
use prometheus::IntCounterVec;

use crate::metrics::Registry;
use crate::pipeline::Peer;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::upstream::body::memory_budget::MemoryBudget;
use crate::upstream::body::memory_budget::MemoryReservation;

/// What all of these heads may take, in bytes: more than ten thousand usual ones, nine of the largest. A source network has a
/// quarter; trusted proxies, behind which many clients are, may have it all.
pub const HEAD_BUDGET: usize = 64 << 20;

/// So much of an incomplete head is not counted, in bytes: each connection reads that much in any case.
pub const UNCOUNTED_HEAD_BYTES: usize = 8 << 10;

/// What a field takes beside its name and value, in bytes: an entry of the map (104) and of its index (up to 11), in tables that
/// grow by doubling.
const FIELD_OVERHEAD: usize = 224;

/// A map with one field has room for six.
const MIN_FIELDS: usize = 3;

/// Fields of the smallest size (33 bytes by HPACK's own count) that fit into the longest head list (1 MiB).
const MAX_FIELDS: usize = (1 << 20) / 33;

/// The budget, and what was refused because of it.
#[derive(Debug)]
pub struct HeadBudget {
    budget: Arc<MemoryBudget>,
    rejected: IntCounterVec,
}

/// At what a head was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectedHead {
    /// Incomplete, and the connection ends.
    Incomplete,
    /// Its user would have to be looked up.
    Unidentified,
}

impl HeadBudget {
    /// [`HEAD_BUDGET`] bytes.
    #[must_use]
    pub fn new(registry: &Registry) -> Arc<Self> {
        let budget = MemoryBudget::new(HEAD_BUDGET);
        let taken = Arc::clone(&budget);
        registry.gauge_fn(
            "weir_request_head_bytes",
            "Memory reserved for request heads that are incomplete (beyond 8 KiB each) or whose user is being looked up, in bytes.",
            move || taken.used(),
        );
        let refused = registry.counters(
            "weir_request_heads_refused_total",
            "Request heads refused because all such heads, or those of the client's address, would take too much memory, by what they were: incomplete (the connection is closed), or unidentified (503).",
            &["head"],
        );
        Arc::new(Self {
            budget,
            rejected: refused,
        })
    }

    /// Nothing yet, for this source; `None` is not bounded apart.
    #[must_use]
    pub fn reserve_for(&self, source: Option<IpAddr>) -> MemoryReservation {
        self.budget.reserve_for(source)
    }

    /// Counts a refusal.
    pub fn record_rejection(&self, head: RejectedHead) {
        let label = match head {
            RejectedHead::Incomplete => "incomplete",
            RejectedHead::Unidentified => "unidentified",
        };
        self.rejected.with_label_values(&[label]).inc();
    }

    /// Waits for `lookup` with the memory of its request's head reserved; a lookup that is ready at once reserves nothing.
    ///
    /// # Errors
    /// There is no room for the head.
    ///
    /// # Cancel safety
    /// That of `lookup`; what was reserved is given back.
    pub(in crate::pipeline) async fn reserve_while_pending<F: Future>(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
        lookup: F,
    ) -> Result<F::Output, RequestRejection> {
        let mut lookup = pin!(lookup);
        let mut reserved = None;
        poll_fn(|cx| {
            if let Poll::Ready(found) = lookup.as_mut().poll(cx) {
                return Poll::Ready(Ok(found));
            }
            if reserved.is_none() {
                let mut reservation = self.reserve_for(peer.source_network());
                if !reservation.try_grow_to(head_memory(headers)) {
                    self.record_rejection(RejectedHead::Unidentified);
                    return Poll::Ready(Err(RequestRejection::HeadBudgetExhausted));
                }
                reserved = Some(reservation);
            }
            Poll::Pending
        })
        .await
    }
}

/// What a head's fields take in memory, in bytes, at most.
#[must_use]
pub fn head_memory(headers: &HeaderMap) -> usize {
    let texts: usize = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    texts + FIELD_OVERHEAD * (headers.len() + MIN_FIELDS)
}

/// What `bytes` of an HTTP/2 header block may take once they are decoded: one byte may be a field. Most blocks take far less, but
/// few are in several frames, and those are incomplete for a moment only.
#[must_use]
pub fn header_block_memory(bytes: usize) -> usize {
    bytes.saturating_add(FIELD_OVERHEAD * bytes.min(MAX_FIELDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_budget_holds_the_largest_head() {
        assert!(2 * header_block_memory(1 << 20) <= HEAD_BUDGET / 4);
    }
}
