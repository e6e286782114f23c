//! The control socket: how `weir ctl` sets levers in a running weir.
//!
//! It is a Unix socket that only weir's own user and root can open, and never a part of the admin
//! listener, which any process of the machine reaches. A connection carries one request, a line of
//! JSON of bounded length, and one answer. The log has the peer's user and process.
//!
//! [`message`] is what is sent, [`socket`] the file, [`server`] what answers; [`estimate`] (pure) says
//! what a lever would reject.

pub(crate) mod estimate;
pub(crate) mod message;
pub(crate) mod server;
pub(crate) mod socket;

pub use self::socket::ControlConfig;
pub(crate) use self::socket::{RUN_FOLDER, SOCKET_NAME};
