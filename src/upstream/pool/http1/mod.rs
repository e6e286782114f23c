//! HTTP/1.1: idle connections, and the exclusive use of one for a request.

pub(crate) mod handshake_permits;
pub(crate) mod http1_lease;
pub(crate) mod idle_connections;
