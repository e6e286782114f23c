//! What two processes of weir tell each other while the new one takes over from the old one.
//!
//! The old process starts the new one with a Unix socket as its standard input, through which the
//! new process receives the listening sockets. `app` and `cli` decide what happens when.
//!
//! | from | message | |
//! |---|---|---|
//! | old | the offer | with the listening sockets |
//! | new | [`Prepared`](message::Message::Prepared) | everything that can fail has succeeded |
//! | old | [`State`](message::Message::State) | what the old process has learned |
//! | new | [`Serving`](message::Message::Serving) | it accepts connections |
//! | old | [`Main`](message::Message::Main) | it accepts no more, and the service manager follows the new process |
//! | old | [`Held`](message::Message::Held) | what it still holds, until it ends |
//!
//! The new process serves before the old one stops, and everything that can fail comes first.
//!
//! - Both processes have the same sockets, with one queue of connections. With `SO_REUSEPORT` each
//!   has a queue of its own, and what waits in the old one is reset.
//! - A socket with a path, at which a new process asks for the listeners, would let every process
//!   that can open it take over the port. It would also need a second service: systemd stops the main
//!   process of a service before it starts another one.
//! - Standard input is the only descriptor that a child can be given without unsafe code. So no
//!   descriptor is inherited by accident, by a credential plugin for example.
//! - A child ends with process 1 of a container. There two replicas take turns.
//! - The state is JSON of a version. What cannot be read is ignored, since a process works without
//!   it. Rate limits do not move: their keys are hashes with a secret of the process.

pub(crate) mod channel;
pub(crate) mod listeners;
pub(crate) mod message;
