//! The guard that counts an open connection.

use std::sync::Arc;

use crate::server::connection::connection_shares::{ConnectionShare, ShareExceeded};
use crate::server::handshake_limiter::ConnectionSource;
use crate::server::settings::AddressLimit;
use weir_base::drain::DrainGuard;

/// Counts a connection as open, for its address, and as load of its worker, until its socket is closed. It is held
/// across a protocol upgrade.
#[derive(Debug)]
pub(crate) struct ConnectionGuard {
    _open_guard: DrainGuard,
    _load_guard: Arc<()>,
    share: ConnectionShare,
}

impl ConnectionGuard {
    pub(crate) const fn new(
        open_guard: DrainGuard,
        load_guard: Arc<()>,
        share: ConnectionShare,
    ) -> Self {
        Self {
            _open_guard: open_guard,
            _load_guard: load_guard,
            share,
        }
    }

    /// Counts the connection for its real source, which a trusted proxy has reported.
    ///
    /// # Errors
    /// That source has its share.
    pub(crate) fn set_source(
        &mut self,
        source: ConnectionSource,
        limit: AddressLimit,
        free: usize,
    ) -> Result<(), ShareExceeded> {
        self.share.set_source(source, limit, free)
    }
}
