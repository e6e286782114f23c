//! What a request asks of its connection.

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(super) struct ConnectionControl {
    /// To end gracefully.
    pub(super) close: Notify,
    /// To end at once.
    pub(super) reset: Notify,
}
