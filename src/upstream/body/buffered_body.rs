//! A request body that was read into memory before the request was decided.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use weir_kubernetes::numeric::saturating_u64;
use weir_limits::throttling::memory_budget::MemoryReservation;

/// A body that was read in full. It is forwarded byte for byte.
/// A copy shares the memory.
#[derive(Clone, Debug)]
pub(crate) struct BufferedBody {
    data: Bytes,
    /// Boxed, since hardly any body has some.
    trailers: Option<Box<HeaderMap>>,
    /// Held until the body has been sent and need not be sent again, or the request is dropped.
    _reservation: Arc<MemoryReservation>,
}

impl BufferedBody {
    /// A body of these bytes, which `reservation` covers, with its trailers, which have
    /// been cleaned.
    #[must_use]
    pub(crate) fn new(
        data: Bytes,
        trailers: Option<HeaderMap>,
        reservation: MemoryReservation,
    ) -> Self {
        Self {
            data,
            trailers: trailers.map(Box::new),
            _reservation: Arc::new(reservation),
        }
    }

    /// The bytes that have not been sent yet.
    #[must_use]
    pub(crate) fn data(&self) -> &[u8] {
        &self.data
    }

    pub(crate) fn next_frame(&mut self) -> Option<Frame<Bytes>> {
        if self.data.is_empty() {
            return self
                .trailers
                .take()
                .map(|trailers| Frame::trailers(*trailers));
        }
        Some(Frame::data(std::mem::take(&mut self.data)))
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    /// Not exact if there are trailers: HTTP/1.1 allows them only after chunks.
    pub(crate) fn size_hint(&self) -> SizeHint {
        let left = saturating_u64(self.data.len());
        if self.trailers.is_none() {
            return SizeHint::with_exact(left);
        }
        let mut hint = SizeHint::new();
        hint.set_lower(left);
        hint
    }
}
