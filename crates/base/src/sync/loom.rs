//! Loom's locks and atomics by the names and signatures of the real ones, and tokio's primitives with
//! a step before each call.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

pub use loom::sync::MutexGuard;

/// Words of a spawned thread's stack. Loom's own, 4,096, are too few for a queue set without optimization.
const STACK_WORDS: usize = 1 << 16;

/// Preemptions in one execution: nearly all races need two, and each more multiplies the executions.
const PREEMPTIONS: usize = 2;

/// Runs `threads` in all orders of their steps.
pub fn model(threads: impl Fn() + Send + Sync + 'static) {
    // Timers are created in it, and none fires.
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().build().expect("a runtime");
    let _entered = runtime.enter();
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(PREEMPTIONS);
    model.max_branches = 10_000;
    model.check(threads);
}

/// Loom's threads.
pub mod thread {
    use super::STACK_WORDS;

    pub use loom::thread::JoinHandle;

    /// As std's.
    pub fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let thread = loom::thread::Builder::new().stack_size(STACK_WORDS);
        thread.spawn(run).expect("loom has room for it")
    }
}

/// As loom's. Its waker, though, is cloned without a step, since tokio clones wakers under its locks.
pub fn block_on<F: Future>(future: F) -> F::Output {
    #[derive(Default)]
    struct Wakeup {
        is_woken: Mutex<bool>,
        woken: loom::sync::Condvar,
    }
    impl Wake for Wakeup {
        fn wake(self: Arc<Self>) {
            *self.is_woken.lock() = true;
            self.woken.notify_one();
        }
    }
    let wakeup = Arc::<Wakeup>::default();
    let waker = Waker::from(Arc::clone(&wakeup));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let mut is_woken = wakeup.is_woken.lock();
        while !std::mem::take(&mut *is_woken) {
            is_woken = wakeup.woken.wait(is_woken).expect("loom poisons none");
        }
    }
}

/// As parking_lot's: it is not poisoned.
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// An unlocked one.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Waits for it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("loom poisons none")
    }
}

/// Loom's atomics with `try_update`.
pub mod atomic {
    use std::ops::Deref;

    pub use loom::sync::atomic::AtomicBool;
    pub use std::sync::atomic::Ordering;

    macro_rules! atomic {
        ($($name:ident $number:ty),*) => {$(
            /// As std's.
            #[derive(Debug, Default)]
            pub struct $name(loom::sync::atomic::$name);

            impl $name {
                /// With this value.
                pub fn new(value: $number) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                /// As std's.
                pub fn try_update(
                    &self,
                    success: Ordering,
                    failure: Ordering,
                    update: impl FnMut($number) -> Option<$number>,
                ) -> Result<$number, $number> {
                    self.0.fetch_update(success, failure, update)
                }
            }

            impl Deref for $name {
                type Target = loom::sync::atomic::$name;

                fn deref(&self) -> &Self::Target {
                    &self.0
                }
            }
        )*};
    }

    atomic!(AtomicU8 u8, AtomicU32 u32, AtomicU64 u64, AtomicUsize usize);
}

/// A step of a primitive that loom does not know. It orders memory as the primitive does.
#[derive(Clone, Debug, Default)]
struct Step(Arc<atomic::AtomicUsize>);

impl Step {
    fn take(&self) {
        self.0.fetch_add(1, atomic::Ordering::AcqRel);
    }
}

/// As tokio's.
#[derive(Debug, Default)]
pub struct Notify {
    step: Step,
    inner: tokio::sync::Notify,
}

/// As tokio's.
#[derive(Debug)]
pub struct Notified<'a> {
    step: &'a Step,
    inner: Pin<Box<tokio::sync::futures::Notified<'a>>>,
}

impl Notify {
    /// Without a permit.
    pub fn new() -> Self {
        Self::default()
    }

    /// As tokio's.
    pub fn notify_one(&self) {
        self.step.take();
        self.inner.notify_one();
    }

    /// As tokio's.
    pub fn notify_waiters(&self) {
        self.step.take();
        self.inner.notify_waiters();
    }

    /// As tokio's.
    pub fn notified(&self) -> Notified<'_> {
        self.step.take();
        Notified {
            step: &self.step,
            inner: Box::pin(self.inner.notified()),
        }
    }
}

impl Notified<'_> {
    /// As tokio's.
    pub fn enable(mut self: Pin<&mut Self>) -> bool {
        self.step.take();
        self.inner.as_mut().enable()
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.step.take();
        self.inner.as_mut().poll(cx)
    }
}

/// As tokio's.
#[derive(Debug)]
pub struct Semaphore {
    step: Step,
    inner: tokio::sync::Semaphore,
}

/// As tokio's.
#[derive(Debug)]
pub struct SemaphorePermit<'a> {
    step: &'a Step,
    _inner: tokio::sync::SemaphorePermit<'a>,
}

impl Semaphore {
    /// With so many permits.
    pub fn new(permits: usize) -> Self {
        Self {
            step: Step::default(),
            inner: tokio::sync::Semaphore::new(permits),
        }
    }

    /// As tokio's.
    pub fn available_permits(&self) -> usize {
        self.step.take();
        self.inner.available_permits()
    }

    /// As tokio's.
    ///
    /// # Errors
    /// There is no permit.
    pub fn try_acquire(&self) -> Result<SemaphorePermit<'_>, tokio::sync::TryAcquireError> {
        self.step.take();
        let inner = self.inner.try_acquire()?;
        Ok(SemaphorePermit {
            step: &self.step,
            _inner: inner,
        })
    }
}

impl Drop for SemaphorePermit<'_> {
    fn drop(&mut self) {
        self.step.take();
    }
}

/// As tokio's.
pub mod oneshot {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use crate::sync::loom::Step;

    /// As tokio's.
    #[derive(Debug)]
    pub struct Sender<T>(Step, tokio::sync::oneshot::Sender<T>);

    /// As tokio's.
    #[derive(Debug)]
    pub struct Receiver<T>(Step, tokio::sync::oneshot::Receiver<T>);

    /// As tokio's.
    pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let step = Step::default();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        (Sender(step.clone(), sender), Receiver(step, receiver))
    }

    impl<T> Sender<T> {
        /// As tokio's.
        ///
        /// # Errors
        /// The receiver is gone.
        pub fn send(self, value: T) -> Result<(), T> {
            self.0.take();
            self.1.send(value)
        }
    }

    impl<T> Future for Receiver<T> {
        type Output = Result<T, tokio::sync::oneshot::error::RecvError>;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
            self.0.take();
            Pin::new(&mut self.1).poll(cx)
        }
    }
}
