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
use crate::pipeline::refusal::Refusal;
use crate::pipeline::request_body::source;
use crate::upstream::read_body::Budget;
use crate::upstream::read_body::Reserved;

/// What all of these heads may take, in bytes: more than ten thousand usual ones, nine of the largest. A source network has a
/// quarter; trusted proxies, behind which many clients are, may have it all.
pub const ALL_HEADS: usize = 64 << 20;

/// So much of an incomplete head is not counted, in bytes: each connection reads that much in any case.
pub const FREE: usize = 8 << 10;

/// What a field takes beside its name and value, in bytes: an entry of the map (104) and of its index (up to 11), in tables that
/// grow by doubling.
const FIELD: usize = 224;

/// A map with one field has room for six.
const SMALLEST: usize = 3;

/// Fields of the smallest size (33 bytes by HPACK's own count) that fit into the longest head list (1 MiB).
const MOST_FIELDS: usize = (1 << 20) / 33;

/// The budget, and what was refused because of it.
#[derive(Debug)]
pub struct HeadBudget {
    budget: Arc<Budget>,
    refused: IntCounterVec,
}

/// At what a head was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedHead {
    /// Incomplete, and the connection ends.
    Incomplete,
    /// Its user would have to be looked up.
    Unidentified,
}

impl HeadBudget {
    /// [`ALL_HEADS`] bytes.
    #[must_use]
    pub fn new(registry: &Registry) -> Arc<Self> {
        let budget = Budget::new(ALL_HEADS);
        let taken = Arc::clone(&budget);
        registry.gauge_of(
            "weir_request_head_bytes",
            "Memory reserved for request heads that are incomplete (beyond 8 KiB each) or whose user is being looked up, in bytes.",
            move || taken.taken(),
        );
        let refused = registry.counters(
            "weir_request_heads_refused_total",
            "Request heads refused because all such heads, or those of the client's address, would take too much memory, by what they were: incomplete (the connection is closed), or unidentified (503).",
            &["head"],
        );
        Arc::new(Self { budget, refused })
    }

    /// Nothing yet, for this source; `None` is not bounded apart.
    #[must_use]
    pub fn reserve_for(&self, source: Option<IpAddr>) -> Reserved {
        self.budget.reserve_for(source)
    }

    /// Counts a refusal.
    pub fn record_refusal(&self, head: RefusedHead) {
        let label = match head {
            RefusedHead::Incomplete => "incomplete",
            RefusedHead::Unidentified => "unidentified",
        };
        self.refused.with_label_values(&[label]).inc();
    }

    /// Waits for `lookup` with the memory of its request's head reserved; a lookup that is ready at once reserves nothing.
    ///
    /// # Errors
    /// There is no room for the head.
    ///
    /// # Cancel safety
    /// That of `lookup`; what was reserved is given back.
    pub(super) async fn while_pending<F: Future>(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
        lookup: F,
    ) -> Result<F::Output, Refusal> {
        let mut lookup = pin!(lookup);
        let mut reserved = None;
        poll_fn(|cx| {
            if let Poll::Ready(found) = lookup.as_mut().poll(cx) {
                return Poll::Ready(Ok(found));
            }
            if reserved.is_none() {
                let mut reservation = self.reserve_for(source(peer));
                if !reservation.grow_to(memory_of(headers)) {
                    self.record_refusal(RefusedHead::Unidentified);
                    return Poll::Ready(Err(Refusal::NoRoomForHead));
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
pub fn memory_of(headers: &HeaderMap) -> usize {
    let texts: usize = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    texts + FIELD * (headers.len() + SMALLEST)
}

/// What `bytes` of an HTTP/2 header block may take once they are decoded: one byte may be a field. Most blocks take far less, but
/// few are in several frames, and those are incomplete for a moment only.
#[must_use]
pub fn memory_of_block(bytes: usize) -> usize {
    bytes.saturating_add(FIELD * bytes.min(MOST_FIELDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_budget_holds_the_largest_head() {
        assert!(2 * memory_of_block(1 << 20) <= ALL_HEADS / 4);
    }
}
