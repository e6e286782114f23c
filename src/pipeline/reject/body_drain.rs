//! Reads the bodies of rejected requests to their end, so that their connections can be reused.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Version, header, request};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use prometheus::IntCounter;

use crate::pipeline::connection::peer::Peer;
use crate::pipeline::reject::rejection::StatusEncoding;
use crate::upstream::body::client_body::ClientBody;
use weir_base::metrics::Registry;
use weir_limits::throttling::memory_budget::{MemoryBudget, MemoryReservation};

/// A rejected request's body up to this size, in bytes, is read so that the connection can be
/// reused, as in Go's server (`net/http.maxPostHandlerReadBytes`). A larger or slower body closes
/// the connection. On HTTP/2 only the stream is reset after the response, but some clients (curl
/// 7.88 is one) then report the reset and not the response.
const MAX_DRAINED_BODY: u64 = 256 << 10;

/// How long the body of a rejected request may take to arrive.
const BODY_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// How many bodies of rejected requests are read at a time. Each may hold what its client has sent
/// of it (256 KiB at most) for a second. One source network may use a quarter of them.
pub const MAX_BODY_DRAINS: usize = 1024;

/// The budget for bodies of rejected requests.
#[derive(Debug)]
pub struct BodyDrainBudget {
    slots: Arc<MemoryBudget>,
    rejected: IntCounter,
}

impl BodyDrainBudget {
    /// A budget of [`MAX_BODY_DRAINS`] slots.
    #[must_use]
    pub fn new(registry: &Registry) -> Arc<Self> {
        let slots = MemoryBudget::new(MAX_BODY_DRAINS);
        let measured = Arc::clone(&slots);
        registry.gauge_fn(
            "weir_skipped_bodies",
            "Rejected requests whose bodies are being drained, so that their connections stay usable.",
            move || measured.used(),
        );
        Arc::new(Self {
            slots,
            rejected: registry.counter(
                "weir_skipped_bodies_refused_total",
                "Rejected requests whose bodies were not drained because a limit was reached (in all, for the client's address, or on the connection): on HTTP/1.1 the connection is closed.",
            ),
        })
    }

    /// Acquires a slot for a body from this source; `None` if there is none.
    fn try_acquire(&self, source: Option<IpAddr>) -> Option<MemoryReservation> {
        let mut slot = self.slots.reserve_for(source);
        slot.try_grow_to(1).then_some(slot)
    }
}

/// The state of a request's body.
pub(crate) enum RequestBodyState {
    /// The body may still arrive.
    Unread(ClientBody),
    /// The body has been read completely.
    Consumed,
    /// The body has been handed to the upstream request.
    Forwarded,
}

impl RequestBodyState {
    /// Takes the body for the upstream request, if it is unread.
    pub(crate) fn take(&mut self) -> Option<ClientBody> {
        match std::mem::replace(self, Self::Forwarded) {
            Self::Unread(body) => Some(body),
            Self::Consumed | Self::Forwarded => None,
        }
    }

    /// The body, if it is unread.
    pub(crate) const fn as_mut(&mut self) -> Option<&mut ClientBody> {
        match self {
            Self::Unread(body) => Some(body),
            Self::Consumed | Self::Forwarded => None,
        }
    }
}

/// What a rejection needs to know of a request that was taken apart: nothing that shares the
/// connection's buffer.
#[derive(Clone, Copy)]
pub(crate) struct RejectionContext {
    pub(crate) encoding: StatusEncoding,
    pub(crate) is_head: bool,
    pub(crate) is_http1: bool,
    /// Whether more than the head was announced.
    pub(crate) has_body: bool,
    expects_continue: bool,
}

impl RejectionContext {
    pub(crate) fn from_request(head: &request::Parts, body: &Incoming) -> Self {
        Self {
            encoding: StatusEncoding::from_request(head),
            is_head: head.method == Method::HEAD,
            is_http1: head.version < Version::HTTP_2,
            has_body: !body.is_end_stream(),
            expects_continue: head.headers.contains_key(header::EXPECT),
        }
    }

    /// Reads the rest of a rejected request's body. Returns whether that was all: a small and
    /// timely body obstructs neither the response nor the next request on an HTTP/1.1 connection.
    pub(crate) async fn drain_body(
        self,
        body: RequestBodyState,
        peer: &Peer,
        budget: &BodyDrainBudget,
    ) -> bool {
        let mut body = match body {
            RequestBodyState::Unread(body) => body,
            RequestBodyState::Consumed => return true,
            RequestBodyState::Forwarded => return false, // its end is not observed any more
        };
        if body.is_end_stream() {
            return true;
        }
        if self.expects_continue || body.size_hint().lower() > MAX_DRAINED_BODY {
            return false;
        }
        let connection_slot = peer.body_drain_slots.0.try_acquire().ok();
        let slots = connection_slot
            .and_then(|connection| Some((connection, budget.try_acquire(peer.source_network())?)));
        let Some(_slots) = slots else {
            budget.rejected.inc();
            return false;
        };
        let drained = async {
            let mut remaining = MAX_DRAINED_BODY;
            while let Some(frame) = body.frame().await {
                let bytes = frame.ok()?.data_ref().map_or(0, |data| data.len());
                remaining = remaining.checked_sub(u64::try_from(bytes).ok()?)?;
            }
            Some(())
        };
        matches!(
            tokio::time::timeout(BODY_DRAIN_TIMEOUT, drained).await,
            Ok(Some(()))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_may_use_a_quarter_of_the_body_drain_budget() {
        let skipped = BodyDrainBudget::new(&Registry::new());
        let [one, other] = [1, 2].map(|last| Some(IpAddr::from([192, 0, 2, last])));
        let mut places = Vec::new();
        for _ in 0..MAX_BODY_DRAINS / 4 {
            places.push(skipped.try_acquire(one).expect("there is one"));
        }
        assert!(skipped.try_acquire(one).is_none());
        assert!(skipped.try_acquire(other).is_some());
        while let Some(place) = skipped.try_acquire(None) {
            places.push(place);
        }
        assert_eq!(places.len(), MAX_BODY_DRAINS);
        assert!(skipped.try_acquire(other).is_none());
        drop(places);
        assert!(skipped.try_acquire(one).is_some());
    }
}
