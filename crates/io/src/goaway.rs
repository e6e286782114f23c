//! The GOAWAY of a connection that is closed at once, which the HTTP library cannot send with a reason.

use std::sync::atomic::{AtomicU32, Ordering};

/// HTTP/2's GOAWAY (RFC 9113, 6.8), and its reason for a client that exceeds a limit:
/// ENHANCE_YOUR_CALM.
const GOAWAY: u8 = 7;
const ENHANCE_YOUR_CALM: u32 = 0xb;

/// The highest stream id of an HTTP/2 connection with a complete header block.
#[derive(Debug, Default)]
pub struct LastStreamId(AtomicU32);

/// Why a connection is closed at once.
#[derive(Clone, Copy, Debug)]
pub enum Http2Error {
    /// The client may connect again.
    NoError,
    /// The client has exceeded a limit.
    EnhanceYourCalm,
}

impl Http2Error {
    /// The error code (RFC 9113, 7).
    const fn code(self) -> u32 {
        match self {
            Self::NoError => 0,
            Self::EnhanceYourCalm => ENHANCE_YOUR_CALM,
        }
    }
}

impl LastStreamId {
    /// Records that a header block of stream `id` is complete.
    pub fn record(&self, id: u32) {
        self.0.store(id, Ordering::Relaxed);
    }

    /// The GOAWAY frame of a connection that is closed at once. Streams after the last one were not
    /// processed.
    #[must_use]
    pub fn goaway_frame(&self, error: Http2Error) -> Vec<u8> {
        let last = self.0.load(Ordering::Relaxed).to_be_bytes();
        let payload = [last, error.code().to_be_bytes()].concat();
        let header = [0, 0, 8, GOAWAY, 0, 0, 0, 0, 0];
        [&header[..], &payload].concat()
    }
}
