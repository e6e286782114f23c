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

pub(crate) mod channel;
pub(crate) mod listeners;
pub(crate) mod message;
