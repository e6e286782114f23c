//! The memory of request heads that nothing else limits yet: incomplete heads, and heads whose user
//! is being looked up.
//!
//! Before authentication neither a rate nor a seat limits a request, and a head of 1 MiB costs its
//! client a few KiB on HTTP/2, where HPACK refers to a field by one byte. All such heads share one
//! budget, of which one source network may use a quarter. The reservation is the size in memory,
//! not the size that was sent.
//!
//! A rejection for lack of this memory is 503 with `Retry-After` and not 431: the head is valid,
//! and client-go retries.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use http::HeaderMap;
use prometheus::IntCounterVec;

use crate::pipeline::connection::peer::Peer;
use weir_base::metrics::Registry;
use weir_limits::throttling::memory_budget::{MemoryBudget, MemoryReservation};

/// The budget of all of these heads, in bytes: more than ten thousand usual ones, nine of the
/// largest. A source network may use a quarter. Trusted proxies, which stand for many clients, may
/// use all of it.
pub const HEAD_BUDGET: usize = 64 << 20;

/// The part of an incomplete head that is not counted, in bytes: each connection reads that much in
/// any case.
pub(crate) const UNCOUNTED_HEAD_BYTES: usize = 8 << 10;

/// The size of a field besides its name and value, in bytes: an entry of the map (104) and of its
/// index (up to 11), in tables that grow by doubling.
const FIELD_OVERHEAD: usize = 224;

/// A map with one field has room for six.
const MIN_FIELDS: usize = 3;

/// Fields of the smallest size (33 bytes by HPACK's count) that fit into the longest header list (1
/// MiB).
const MAX_FIELDS: usize = (1 << 20) / 33;

/// The budget and the count of heads that it rejected.
#[derive(Debug)]
pub struct HeadBudget {
    budget: Arc<MemoryBudget>,
    rejected: IntCounterVec,
}

/// The state of a rejected head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RejectedHead {
    /// Incomplete; the connection is closed.
    Incomplete,
    /// Complete, but its user would have to be looked up.
    Unidentified,
}

/// There is no memory for a head whose user would have to be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadBudgetExhausted;

impl HeadBudget {
    /// A budget of [`HEAD_BUDGET`] bytes.
    #[must_use]
    pub fn new(registry: &Registry) -> Arc<Self> {
        let budget = MemoryBudget::new(HEAD_BUDGET);
        let measured = Arc::clone(&budget);
        registry.gauge_fn(
            "weir_request_head_bytes",
            "Memory reserved for request heads that are incomplete (beyond 8 KiB each) or whose user is not known yet, in bytes.",
            move || measured.used(),
        );
        let rejected = registry.counters(
            "weir_request_heads_refused_total",
            "Request heads rejected because all such heads, or those of the client's address, would take too much memory, by kind: incomplete (the connection is closed), or unidentified (503).",
            &["head"],
        );
        Arc::new(Self { budget, rejected })
    }

    /// An empty reservation for this source. `None` has no limit of its own.
    #[must_use]
    pub(crate) fn reserve_for(&self, source: Option<IpAddr>) -> MemoryReservation {
        self.budget.reserve_for(source)
    }

    /// Counts a rejection.
    pub(crate) fn record_rejection(&self, head: RejectedHead) {
        let label = match head {
            RejectedHead::Incomplete => "incomplete",
            RejectedHead::Unidentified => "unidentified",
        };
        self.rejected.with_label_values(&[label]).inc();
    }

    /// Waits for `lookup` with the memory of its request's head reserved. A lookup that is ready at
    /// once reserves nothing.
    ///
    /// # Errors
    /// The budget has no room for the head.
    ///
    /// # Cancel safety
    /// That of `lookup`. The reservation is released.
    pub(crate) async fn reserve_while_pending<F: Future>(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
        lookup: F,
    ) -> Result<F::Output, HeadBudgetExhausted> {
        let mut lookup = pin!(lookup);
        let mut reserved = None;
        poll_fn(|cx| {
            if let Poll::Ready(output) = lookup.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            if reserved.is_none() {
                let mut reservation = self.reserve_for(peer.source_network());
                if !reservation.try_grow_to(head_memory(headers)) {
                    self.record_rejection(RejectedHead::Unidentified);
                    return Poll::Ready(Err(HeadBudgetExhausted));
                }
                reserved = Some(reservation);
            }
            Poll::Pending
        })
        .await
    }
}

/// An upper bound of the memory of a head's fields, in bytes.
#[must_use]
pub fn head_memory(headers: &HeaderMap) -> usize {
    let text_bytes: usize = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    text_bytes + FIELD_OVERHEAD * (headers.len() + MIN_FIELDS)
}

/// An upper bound of the memory of `bytes` of an HTTP/2 header block after decoding: one byte may
/// be a field. Most blocks take far less, but few span several frames, and those are incomplete
/// only for a moment.
#[must_use]
pub(crate) fn header_block_memory(bytes: usize) -> usize {
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
