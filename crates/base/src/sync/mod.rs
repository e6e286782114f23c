//! The locks, atomics and wake-ups of code whose interleavings are explored (`just models`).
//!
//! They are parking_lot's, std's and tokio's. With `--cfg weir_loom` they are loom's, or begin with a
//! step at which loom may switch threads. A model then runs all orders of the steps of a few threads,
//! up to a number of preemptions, and what relaxed atomics may show in each. Tests named `loom_tests`,
//! beside the code, are models.
//!
//! What is no model, and why:
//!
//! - tokio's and futures' primitives themselves: tokio has loom models of its own. Here each of their
//!   calls is one step.
//! - Time. No timer fires in a model: a request whose time is over is one that is dropped.
//! - Pure code (`&mut self` under one lock): orders of calls are all that there is, and random tests
//!   run those.
//! - Sockets, TLS, hyper and h2, and so a whole connection pool: they know nothing of loom.
//! - Miri and ThreadSanitizer would look for what only unsafe code can do, which these crates have none
//!   of. Neither is part of the stable toolchain: ThreadSanitizer needs a std that was built with it.
//! - More than five threads, and loops that end only by chance: loom has no fair scheduler.

#[cfg(weir_loom)]
mod loom;

#[cfg(weir_loom)]
pub use self::loom::{
    Mutex, MutexGuard, Notify, Semaphore, SemaphorePermit, atomic, block_on, model, oneshot, thread,
};
#[cfg(not(weir_loom))]
pub use parking_lot::{Mutex, MutexGuard};
#[cfg(not(weir_loom))]
pub use std::sync::atomic;
#[cfg(not(weir_loom))]
pub use tokio::sync::{Notify, Semaphore, SemaphorePermit, oneshot};
