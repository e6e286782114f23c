//! Why weir ends a connection, and what is observed for that.

use std::sync::Arc;
use std::time::Duration;

use crate::pipeline::connection::peer::Peer;
use crate::pipeline::connection::request_count::RequestCount;
use crate::server::connection::head_monitor::{HeadMonitor, IncompleteHeadError};
use crate::server::connection::write_progress::WriteStall;
use weir_io::goaway::Http2Error;

/// How long an idle HTTP/2 connection stays open after its GOAWAY while its client still reads
/// responses. A response counts as complete when its last bytes have been handed to the connection.
/// The client can start no more requests, and a connection without unread data closes at once.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(600);

/// Why weir ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientCloseReason {
    /// The client has sent nothing.
    Silence,
    /// The connection has had no request for a long time.
    Idle,
    /// The connection has no request, and memory is scarce.
    MemoryPressure,
    /// The active requests finish, and no new ones start.
    Drain,
    /// The head of a request was not complete in time, too large, or had too many fields.
    IncompleteHead(IncompleteHeadError),
    /// The client has not read enough of ended responses.
    WriteStall,
    /// The client has reset too many requests.
    TooManyResets,
    /// The CA of the client's certificate was removed.
    Untrusted,
}

impl ClientCloseReason {
    /// The value of the metric's label; `None` if the client did not cause the close.
    pub(crate) const fn metric_label(self) -> Option<&'static str> {
        Some(match self {
            Self::Silence => "silence",
            Self::Idle => "idle",
            Self::MemoryPressure => "memory",
            Self::Drain => return None,
            Self::IncompleteHead(IncompleteHeadError::Timeout) => "head_timeout",
            Self::IncompleteHead(IncompleteHeadError::BudgetExceeded) => "head_budget",
            Self::IncompleteHead(IncompleteHeadError::TooManyFields) => "head_fields",
            Self::TooManyResets => "resets",
            Self::WriteStall => "stalled",
            Self::Untrusted => "ca_removed",
        })
    }

    /// Whether the client exceeded a limit by sending much, so that it has to wait before it connects
    /// again.
    pub(crate) const fn is_violation(self) -> bool {
        matches!(
            self,
            Self::TooManyResets
                | Self::IncompleteHead(
                    IncompleteHeadError::BudgetExceeded | IncompleteHeadError::TooManyFields
                )
        )
    }

    /// The error of the GOAWAY with which the connection is closed at once.
    pub(crate) fn http2_error(self) -> Http2Error {
        if matches!(self, Self::Untrusted | Self::MemoryPressure) {
            Http2Error::NoError
        } else {
            Http2Error::EnhanceYourCalm
        }
    }

    /// How long active requests may take after GOAWAY.
    pub(crate) const fn drain_timeout(self) -> Duration {
        match self {
            Self::Idle => DRAIN_TIMEOUT,
            Self::Silence
            | Self::MemoryPressure
            | Self::Drain
            | Self::IncompleteHead(_)
            | Self::TooManyResets
            | Self::WriteStall
            | Self::Untrusted => Duration::MAX,
        }
    }
}

/// What is observed of a connection besides its requests.
pub(crate) struct ConnectionMonitors {
    pub(crate) head_monitor: Arc<HeadMonitor>,
    pub(crate) write_stall: Arc<WriteStall>,
}

/// Completes when the client violates a limit so that its connection has to be closed, or when its
/// certificate is not trusted any more.
///
/// # Cancel safety
/// Nothing is lost.
pub(crate) async fn wait_for_http1_violation(
    peer: &Peer,
    monitors: &ConnectionMonitors,
) -> ClientCloseReason {
    tokio::select! {
        error = monitors.head_monitor.wait_for_error() => ClientCloseReason::IncompleteHead(error),
        () = monitors.write_stall.stalled() => ClientCloseReason::WriteStall,
        () = peer.trust_loss() => ClientCloseReason::Untrusted,
    }
}

/// [`wait_for_http1_violation`], with what only HTTP/2 has.
///
/// # Cancel safety
/// Nothing is lost.
pub(crate) async fn wait_for_http2_violation(
    peer: &Peer,
    monitors: &ConnectionMonitors,
    requests: &RequestCount,
) -> ClientCloseReason {
    tokio::select! {
        end = wait_for_http1_violation(peer, monitors) => end,
        () = requests.reset_limit_exceeded() => ClientCloseReason::TooManyResets,
    }
}
