//! The memory that lists take while they are served, as in an API server, and its end.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a server without lists has, in bytes.
const BASE: u64 = 64 << 20;

/// The exit code of a process that the kernel ends for want of memory.
const OUT_OF_MEMORY: i32 = 128 + 9;

/// The bytes of all lists that are served.
#[derive(Debug)]
pub(crate) struct ListMemory {
    held: AtomicU64,
    limit: Option<u64>,
}

/// The bytes of one list, until dropped.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    memory: Arc<ListMemory>,
    bytes: u64,
}

impl ListMemory {
    /// Of a server that has at most `limit` bytes for lists.
    pub(crate) fn new(limit: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            held: AtomicU64::new(0),
            limit,
        })
    }

    /// What the process is said to use, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        BASE + self.held.load(Ordering::Relaxed)
    }

    /// Holds these bytes. Ends the process if that is more than it has.
    pub(crate) fn hold(self: &Arc<Self>, bytes: u64) -> HeldBytes {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(limit) = self.limit.filter(|limit| held > *limit) {
            eprintln!("out of memory: the lists take {held} bytes, and there are {limit}");
            process::exit(OUT_OF_MEMORY);
        }
        HeldBytes {
            memory: Arc::clone(self),
            bytes,
        }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.memory.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
