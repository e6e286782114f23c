//! The progress of a client's body: written by the body, read by the deadline checks.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use futures_util::task::AtomicWaker;

/// The progress of a client's body.
#[derive(Debug, Default)]
pub(crate) struct BodyProgress {
    /// Written by one task, as is `awaiting_client`; read now and then. Relaxed: they order nothing
    /// else.
    bytes: AtomicU64,
    pub(super) awaiting_client: AtomicBool,
    state: AtomicU8,
    pub(super) reader_waker: AtomicWaker,
}

/// The state of a client's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyState {
    /// More of it is expected.
    Unfinished,
    /// It was received in full.
    Complete,
    /// The client closed the connection or reset the stream.
    Aborted,
    /// What arrived is not a valid body (a chunk size that is not a number, for example).
    Malformed,
    /// It was aborted because its client was too slow.
    Stalled,
}

impl BodyProgress {
    /// The bytes received so far.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether weir waits for the client: the upstream would take more.
    #[must_use]
    pub(crate) fn is_awaiting_client(&self) -> bool {
        self.awaiting_client.load(Ordering::Relaxed)
    }

    /// The state of the body.
    #[must_use]
    pub(crate) fn state(&self) -> BodyState {
        match self.state.load(Ordering::Acquire) {
            COMPLETE => BodyState::Complete,
            ABORTED => BodyState::Aborted,
            MALFORMED => BodyState::Malformed,
            STALLED => BodyState::Stalled,
            _ => BodyState::Unfinished,
        }
    }

    /// Aborts the body unless it has ended: its next frame is an error.
    pub(crate) fn stall(&self) {
        self.finish(STALLED);
        self.reader_waker.wake();
    }

    pub(super) fn finish(&self, state: u8) {
        self.awaiting_client.store(false, Ordering::Relaxed);
        let _ = self
            .state
            .compare_exchange(UNFINISHED, state, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(super) fn record_bytes(&self, bytes: usize) {
        self.awaiting_client.store(false, Ordering::Relaxed);
        let bytes = u64::try_from(bytes).unwrap_or_default();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

pub(super) const UNFINISHED: u8 = 0;

pub(super) const COMPLETE: u8 = 1;

pub(super) const ABORTED: u8 = 2;

pub(super) const MALFORMED: u8 = 3;

pub(super) const STALLED: u8 = 4;
