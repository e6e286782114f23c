//! How the proxy ends: by a shutdown, or because a new process has taken over.

pub(crate) mod handover;
pub(crate) mod shutdown;
pub(crate) mod state;
