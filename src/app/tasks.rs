//! Tasks of the control runtime.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use parking_lot::Mutex;
use tokio::task::AbortHandle;

/// Tasks that run until the end of the process, to be started.
#[derive(Default)]
pub(super) struct Tasks(Vec<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Tasks {
    pub(super) fn push(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.push(Box::pin(task));
    }

    /// Must be called within a runtime.
    pub(super) fn start(self) {
        for task in self.0 {
            tokio::spawn(task);
        }
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tasks").field(&self.0.len()).finish()
    }
}

/// A task of which there is one at a time.
#[derive(Debug, Default)]
pub(super) struct TaskSlot(Mutex<Option<AbortHandle>>);

impl TaskSlot {
    /// Starts `task` after the one before it, which is aborted.
    pub(super) fn start(&self, task: Option<impl Future<Output = ()> + Send + 'static>) {
        let task = task.map(|task| tokio::spawn(task).abort_handle());
        let earlier = std::mem::replace(&mut *self.0.lock(), task);
        if let Some(earlier) = earlier {
            earlier.abort();
        }
    }
}
