//! How many requests have begun on a connection, how many of them are over, and whether they have to wait.

use std::future::Future;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

/// What was counted on a connection. Relaxed, as the counts stand for nothing but themselves.
#[derive(Debug, Default)]
pub struct Requests {
    begun: AtomicU64,
    ended: AtomicU64,
    at_once: AtomicBool,
    unwritten: AtomicBool,
}

impl Requests {
    /// A request has come.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> Begun {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Begun(Arc::clone(self))
    }

    /// How many have begun.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// How many are over: their answers were handed to the connection to the last byte, or cut off.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Whether an answer's bytes wait for the client to take more.
    #[must_use]
    pub fn unwritten(&self) -> bool {
        self.unwritten.load(Ordering::Relaxed)
    }

    /// Says so; seldom something else than the last time.
    pub fn set_unwritten(&self, unwritten: bool) {
        if self.unwritten() != unwritten {
            self.unwritten.store(unwritten, Ordering::Relaxed);
        }
    }

    /// Whether the last one was answered without having to wait: a guess about the next.
    #[must_use]
    pub fn last_at_once(&self) -> bool {
        self.at_once.load(Ordering::Relaxed)
    }
}

/// A request that is under way until this is dropped.
#[derive(Debug)]
pub struct Begun(Arc<Requests>);

impl Begun {
    /// The answer; it is noted whether it had to be waited for.
    ///
    /// # Cancel safety
    /// That of `answer`.
    pub async fn watch<A: Future>(&self, mut answer: Pin<&mut A>) -> A::Output {
        let mut first = true;
        poll_fn(|cx| {
            let answered = answer.as_mut().poll(cx);
            if std::mem::take(&mut first) {
                self.0.at_once.store(answered.is_ready(), Ordering::Relaxed);
            }
            answered
        })
        .await
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}
