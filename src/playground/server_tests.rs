//! The whole server over real sockets.
