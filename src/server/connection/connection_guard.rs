//! The guard that counts an open connection.

use std::sync::Arc;

use crate::drain::DrainGuard;

/// Counts a connection as open, and as load of its worker, until its socket is closed. It is held
/// across a protocol upgrade.
#[derive(Debug)]
pub(crate) struct ConnectionGuard {
    _open_guard: DrainGuard,
    _load_guard: Arc<()>,
}

impl ConnectionGuard {
    pub(in crate::server) const fn new(open_guard: DrainGuard, load_guard: Arc<()>) -> Self {
        Self {
            _open_guard: open_guard,
            _load_guard: load_guard,
        }
    }
}
